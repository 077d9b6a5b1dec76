"""All that a GPU has to show, in one command: `make gpu-check`, or `python tests/gpu_check.py --help`.

The GPU tests, then `python -m chapter01 measure` for each model, each in a process of its own, with this Python. No
network, no notebook packages: torch, numpy, matplotlib and pytest are enough. A part that fails does not keep the
others from running. Exit code 1: a part failed, or found no time.

Estimated, not measured: about five minutes. `measure` spends fixed budgets of time, about a minute for each model (58 s
for the smallest on two CPU cores); captures, weights and the tests come on top.
"""

import argparse
import importlib.util
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MODELS = ("Llama-3.2-1B", "Llama-3.1-8B", "Llama-3.1-70B")
LIMIT_S = 470.0  # for all parts together


def main(argv: Sequence[str] | None = None) -> int:
    """Run all parts, say how each ended, and leave their files in the folder."""
    parser = argparse.ArgumentParser(description="The GPU tests, and `measure` for each model; JSON into the folder.")
    parser.add_argument("--device", default="cuda", metavar="D", help="as for `measure` (cuda)")
    parser.add_argument("--models", nargs="+", default=MODELS, metavar="NAME", help=f"({' '.join(MODELS)})")
    parser.add_argument("--folder", type=Path, default=ROOT / "gpu_check", help="for what is written (gpu_check)")
    args = parser.parse_args(argv)
    args.folder.mkdir(parents=True, exist_ok=True)

    end, verdicts = time.monotonic() + LIMIT_S, []
    for name, command in parts(args.device, args.models, args.folder):
        print(f"--- {name}", flush=True)
        start = time.monotonic()
        verdict = run(command, end - start)
        verdicts.append(f"{name}: {verdict} ({time.monotonic() - start:.0f} s)")
    print("---", *verdicts, sep="\n")
    return 0 if all(": ok (" in verdict for verdict in verdicts) else 1


def parts(device: str, models: Sequence[str], folder: Path) -> list[tuple[str, list[str]]]:
    """Names and commands, the shortest first; a command is empty where it cannot run here."""
    tests = [sys.executable, "-m", "pytest", "-m", "gpu", "-rs", str(ROOT / "tests" / "test_gpu.py")]
    measure = [sys.executable, "-m", "chapter01", "measure", "--device", device]
    found = importlib.util.find_spec("pytest") is not None
    return [
        ("tests", tests if found else []),
        *((name, [*measure, "--model", name, "--json", str(folder / f"{name}.json")]) for name in models),
    ]


def run(command: list[str], left_s: float) -> str:
    """How a command ended that was given so many seconds: "ok", or what went wrong."""
    if not command:
        return "FAILED, pytest is not installed for this Python: pip install pytest"
    if left_s <= 0:
        return "FAILED, no time was left for it"
    try:
        code = subprocess.run(command, cwd=ROOT, timeout=left_s, check=False).returncode
    except subprocess.TimeoutExpired:
        return f"FAILED, stopped when all {LIMIT_S:.0f} s were used up"
    return "ok" if code == 0 else f"FAILED, exit code {code}"


if __name__ == "__main__":
    sys.exit(main())
