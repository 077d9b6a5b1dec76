"""Eight kernels at once on one machine, with turns and without: what each measures as the time of a step.

A timing that is read, not passed or failed: `python tests/benchmarks/bench_room.py`. Leave the machine alone
meanwhile. Each kernel is a process of its own that loads the model, waits until all are ready, and then times a step
as notebook 01 does, twice. About three minutes.
"""

import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from utils.turns import SWITCH

ROOT = Path(__file__).resolve().parents[2]
KERNELS = 8
CLOSE = 0.15  # to the time alone
KERNEL = """
import json, sys
from chapter01 import loop
from utils import device, weights
model = weights.load_embedded(device.prepare())[0]
print("ready", flush=True)
sys.stdin.readline()
steps = [loop.time_first_and_step(model, [1, 2, 3, 4, 5])[1].median_s for _ in range(2)]
print(json.dumps(steps))
"""


def steps_s(kernels: int, turns: bool) -> tuple[list[float], float]:
    """Seconds of a step as each of so many kernels at once measures it, and the seconds until the last is done.

    A kernel that died has no entry.
    """
    env = os.environ | {SWITCH: "on" if turns else "off"}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    started = [subprocess.Popen([sys.executable, "-c", KERNEL], cwd=ROOT, env=env, **pipes) for _ in range(kernels)]
    for process in started:
        assert process.stdout.readline() == "ready\n"
    began = time.perf_counter()
    for process in started:
        process.stdin.write("go\n")
        process.stdin.flush()
    answers = [process.communicate()[0] for process in started]
    found = [statistics.median(json.loads(answer)) for answer in answers if answer]
    return found, time.perf_counter() - began


def bench():
    (alone,), _ = steps_s(1, turns=True)
    print(f"\nalone: {1e3 * alone:.1f} ms a step")
    for turns in (True, False):
        found, took_s = steps_s(KERNELS, turns)
        off = [step / alone - 1 for step in found]
        how = "in turns" if turns else "at once, without turns"
        print(f"{KERNELS} kernels {how}: {len(found)} of them done in {took_s:.0f} s")
        print(f"   against alone: {', '.join(f'{share:+.0%}' for share in off)}")
        print(f"   within {CLOSE:.0%} of alone: {sum(abs(share) <= CLOSE for share in off)} of {KERNELS}")
    (again,), _ = steps_s(1, turns=True)
    print(f"alone again: {1e3 * again:.1f} ms a step ({again / alone - 1:+.0%})")


if __name__ == "__main__":
    bench()
