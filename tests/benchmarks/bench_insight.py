"""What the course costs its reader: seconds to import, to the first figure, to the end, and memory.

`python tests/benchmarks/bench_insight.py` runs every notebook in a kernel of its own (nothing is saved), and a sweep
of the decoder several times over in one process, to see whether memory is left behind.
"""

import asyncio
import gc
import re
import subprocess
import sys
import time
from pathlib import Path

import nbformat
from nbclient import NotebookClient

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from chapter01 import loop, phases
from utils import device, weights

ROOT = Path(__file__).resolve().parents[2]


def import_s(module: str) -> float:
    """Seconds until a fresh interpreter has imported a module: its own start counts, its end (0.4 s of torch) not."""
    started, code = time.time(), f"import {module}, time; print(time.time())"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, capture_output=True, text=True)
    return float(done.stdout) - started


def memory_mb(key: str, process: int | str = "self") -> float:
    """Resident memory of a process in MB: VmRSS now, VmHWM at its peak (Linux)."""
    status = Path(f"/proc/{process}/status").read_text()
    return int(re.search(rf"{key}:\s+(\d+) kB", status)[1]) * 1024 / 1e6


async def read(file: Path) -> tuple[float, float | None, float]:
    """Run a notebook: seconds to its end, seconds to its first figure, kernel start included, and peak MB."""
    client = NotebookClient(nbformat.read(file, as_version=4), resources={"metadata": {"path": str(file.parent)}})
    first, started = None, time.perf_counter()
    async with client.async_setup_kernel():
        for i, cell in enumerate(client.nb.cells):
            done = await client.async_execute_cell(cell, i)
            if first is None and any("image/png" in output.get("data", {}) for output in done.get("outputs", [])):
                first = time.perf_counter() - started
        took, peak = time.perf_counter() - started, memory_mb("VmHWM", client.km.provisioner.pid)
    return took, first, peak


def left_behind(times: int = 4) -> list[float]:
    """Resident MB of this process after each run of the same sweep of passes."""
    model, _ = weights.load_embedded(device.prepare())
    after = []
    for _ in range(times):
        phases.sweep(model)
        loop.time_step_at(model, [16, 1024], batch=1)
        gc.collect()
        after.append(memory_mb("VmRSS"))
    return after


if __name__ == "__main__":
    print(device.describe(device.prepare()))
    for file in sorted((ROOT / "chapter01").glob("*.py")):
        if not file.stem.startswith("__"):
            print(f"import chapter01.{file.stem:16} {import_s(f'chapter01.{file.stem}'):.1f} s")
    total_s = 0.0
    for file in sorted((ROOT / "notebooks").glob("*.ipynb")):
        took, first, peak = asyncio.run(read(file))
        total_s += took
        figure = "no figure" if first is None else f"first figure after {first:.1f} s"
        print(f"{file.stem:22} {took:4.0f} s, {figure}, peak {peak:,.0f} MB", flush=True)
    print(f"all notebooks: {total_s:.0f} s")
    print("the same sweep again and again: " + ", ".join(f"{mb:,.0f} MB" for mb in left_behind()))
