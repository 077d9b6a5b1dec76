"""Predicted against measured over the whole grid: `python tests/benchmarks/bench_prediction.py [MODEL ...]`.

Models: "embedded" (real weights) and names of the catalogue (random weights). Prints every point, then the median, the
90th percentile and the largest absolute error and the mean with its sign; then decode's share of the bandwidth roof
and prefill's share of the best matrix product. Run it on a machine that does nothing else.
"""

import sys
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from chapter01 import phases
from utils import ceilings, device, models, weights
from utils.counts import forward_pass, totals
from utils.plots import in_units


def told(point: phases.Point) -> None:
    at = f"batch {point.batch:2}, {point.new:3} new, {point.context:4} context"
    print(f"{at}: foretold {in_units(point.predicted_s, 's'):>7}, took {point.timing}: {point.error:+.0%}", flush=True)


def rates(flop_per_s: Callable[[int], float], rows: Iterable[int]) -> str:
    return ", ".join(f"{n} rows {in_units(flop_per_s(n), 'FLOP/s')}" for n in rows)


def bench(name: str, limit_s: float = 20.0) -> None:
    here = device.prepare()
    roofs = ceilings.measure(here)
    model = weights.load_embedded(here)[0] if name == "embedded" else weights.random_decoder(models.find(name), here)
    shape, speeds = model.shape, phases.measure_speeds(model, roofs)
    print(f"\n{shape.name}, float32, on {device.describe(here)}")
    print(f"{in_units(speeds.read_bytes_per_s, 'B/s')}, {in_units(speeds.flop_per_s, 'FLOP/s')}", end=", ")
    print(f"overhead {in_units(speeds.overhead_s, 's')}, elementwise {in_units(speeds.elementwise_bytes_per_s, 'B/s')}")
    print("largest product: " + rates(partial(speeds.matmul_flop_per_s, "gate_up"), phases.PRODUCT_ROWS))
    print("attention:       " + rates(partial(speeds.attention_flop_per_s, batch=1), phases.ATTENTION_NEW))

    started = time.perf_counter()
    result = phases.grid(model, speeds, limit_s=limit_s, told=told)
    for batch, new, context, seconds in result.left_out:
        print(f"left out, foretold over {limit_s:g} s: batch {batch}, {new} new, {context} context: {seconds:.0f} s")
    worst = result.worst
    print(
        f"{len(result.points)} passes in {time.perf_counter() - started:.0f} s: median error {result.median_error:.1%}"
    )
    print(f"90th percentile {result.p90_error:.1%}, largest {abs(worst.error):.1%}", end=" ")
    print(f"(batch {worst.batch}, {worst.new} new, {worst.context} context), mean {result.mean_error:+.1%}")
    parts = phases.foretell_parts(shape, speeds, worst.batch, worst.new, worst.context)
    print("the worst, foretold: " + ", ".join(f"{part} {in_units(seconds, 's')}" for part, seconds in parts.items()))

    taken = phases.time_phases(model)
    reading = totals(forward_pass(shape, 1, 1, 512, 4, 4, 4)).weight_bytes / taken["decode long"].median_s
    products = [m for m in forward_pass(shape, 1, 512, 0, 4, 4, 4) if m.kind == "matmul"]
    computing = totals(products).flops / taken["prefill long"].median_s
    print(
        f"decode reads weights at {ceilings.share_of_ceiling(reading, speeds.read_bytes_per_s)} of the bandwidth roof"
    )
    share = ceilings.share_of_ceiling(computing, speeds.flop_per_s)
    print(f"prefill of 512 tokens does its products at {share} of the best matrix product")
    print(ceilings.drift_in_words(ceilings.drift(roofs, here)))


if __name__ == "__main__":
    for name in sys.argv[1:] or ["embedded", "Llama-3.2-1B"]:
        bench(name)
