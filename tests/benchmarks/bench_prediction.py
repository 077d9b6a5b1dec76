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

from chapter01 import phases, speeds
from utils import ceilings, device, models, weights
from utils.counts import forward_pass, totals
from utils.plots import in_units


def told(point: phases.Point) -> None:
    at = f"batch {point.batch:2}, {point.new:3} new, {point.context:4} context"
    print(f"{at}: foretold {in_units(point.predicted_s, 's'):>7}, took {point.timing}: {point.error:+.0%}", flush=True)


def rates(flop_per_s: Callable[[int], float], rows: Iterable[int]) -> str:
    return ", ".join(f"{n} rows {in_units(flop_per_s(n), 'FLOP/s')}" for n in rows)


def bench(name: str, limit_s: float = 20.0) -> None:
    where = device.prepare()
    roofs = ceilings.measure(where)
    model = weights.load_embedded(where)[0] if name == "embedded" else weights.random_decoder(models.find(name), where)
    shape, here = model.shape, speeds.measure_speeds(model, roofs)
    print(f"\n{shape.name}, float32, on {device.describe(where)}")
    print(f"{in_units(here.read_bytes_per_s, 'B/s')}, {in_units(here.flop_per_s, 'FLOP/s')}", end=", ")
    print(f"overhead {in_units(here.overhead_s, 's')}, elementwise {in_units(here.elementwise_bytes_per_s, 'B/s')}")
    print("largest product: " + rates(partial(here.matmul_flop_per_s, "gate"), speeds.PRODUCT_ROWS))
    print("attention:       " + rates(partial(here.attention_flop_per_s, batch=1), speeds.ATTENTION_NEW))

    started = time.perf_counter()
    result = phases.grid(model, here, limit_s=limit_s, told=told)
    for batch, new, context, seconds in result.left_out:
        print(f"left out, foretold over {limit_s:g} s: batch {batch}, {new} new, {context} context: {seconds:.0f} s")
    worst = result.worst
    print(
        f"{len(result.points)} passes in {time.perf_counter() - started:.0f} s: median error {result.median_error:.1%}"
    )
    print(f"90th percentile {result.p90_error:.1%}, largest {abs(worst.error):.1%}", end=" ")
    print(f"(batch {worst.batch}, {worst.new} new, {worst.context} context), mean {result.mean_error:+.1%}")
    parts = speeds.foretell_parts(shape, here, worst.batch, worst.new, worst.context)
    print("the worst, foretold: " + ", ".join(f"{part} {in_units(seconds, 's')}" for part, seconds in parts.items()))

    taken = phases.time_phases(model)
    reading = totals(forward_pass(shape, 1, 1, 512, 4, 4, 4)).weight_bytes / taken["decode long"].median_s
    modules = forward_pass(shape, 1, 512, 0, 4, 4, 4)
    computing = totals(modules).useful_flops / taken["prefill long"].median_s
    products = totals(m for m in modules if m.kind == "matmul").flops / taken["prefill long"].median_s
    print(f"decode reads weights at {ceilings.share_of_ceiling(reading, here.read_bytes_per_s)} of the bandwidth roof")
    all_of_it, of_products = (ceilings.share_of_ceiling(rate, here.flop_per_s) for rate in (computing, products))
    print(f"prefill of 512 tokens computes at {all_of_it} of the best matrix product, its products alone {of_products}")
    print(ceilings.drift_in_words(ceilings.drift(roofs, where)))


if __name__ == "__main__":
    for name in sys.argv[1:] or ["embedded", "Llama-3.2-1B"]:
        bench(name)
