"""What the choice between torch's two routes for few rows brings: passes of the embedded model in float32, in turns.

A timing that is read, not passed or failed: `python tests/benchmarks/bench_products.py`.
"""

import sys
from collections.abc import Callable
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from chapter01.speeds import ready
from utils import device, products
from utils.timing import interleave, ratio
from utils.weights import load_embedded

ROWS = (1, 2, 4, 8, 16, 32, 64)


def by(route: Callable[[int, int], bool], call: Callable[[], object]) -> Callable[[], object]:
    """The call with another answer to the question which route is faster."""

    def run() -> None:
        products._pieces_are_faster = route
        call()

    return run


def main() -> None:
    cpu = torch.device("cpu")
    model, _ = load_embedded()
    print(f"{device.name(cpu)}, torch {torch.__version__}, {torch.get_num_threads()} threads, float32")
    chosen = products._pieces_are_faster
    for rows in ROWS:
        call = ready(model, 1, rows, 64)
        calls = {"plain": by(lambda *_: False, call), "chosen": by(chosen, call)}
        timed = interleave(calls, cpu, budget_s=2.0)
        route = "pieces" if chosen(rows.bit_length() - 1, torch.get_num_threads()) else "plain"
        print(f"{rows:3} rows: plain {timed['plain']}, chosen ({route}) {timed['chosen']}: ", end="")
        print(f"{ratio(timed['plain'], timed['chosen']):.2f} x", flush=True)


if __name__ == "__main__":
    main()
