"""Notebook 02, prefill and decode: one pass seen matrix by matrix, foretold from measured speeds, and timed.

A pass is named by three numbers: `batch` sequences bring `new` tokens each after `context` cached ones. Prefill has
many new tokens, decode has one. The predicates at the end turn measured numbers into the verdicts that the notebook
prints.
"""

import copy
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import product

import numpy as np
import torch
from torch import Tensor, nn

from chapter01.loop import device_of, new_cache
from chapter01.speeds import (
    Speeds,
    attention_alone,
    foretell,
    modules_of,
    ready,
    time_launches,
    time_products,
    weights_by_product,
)
from utils import device as devices
from utils.ceilings import Ceilings
from utils.chips import DATASHEET_DTYPE, from_device_name
from utils.counts import Module, forward_pass, totals
from utils.decoder import Decoder
from utils.models import Shape, find
from utils.products import multiply
from utils.roofline import Prediction, predict
from utils.timing import Timing, interleave, ratio, time_call
from utils.weights import random_decoder

# --- one pass, matrix by matrix --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Product:
    """One kind of matrix product of a real pass: the shapes that its tensors had, and how often it ran."""

    name: str
    times: int
    input: tuple[int, ...]  # [batch, rows of each, inner]
    weight: tuple[int, ...]  # [outer, inner], as nn.Linear keeps it
    output: tuple[int, ...]
    bytes_per_number: int

    @property
    def flops(self) -> int:
        """Of one product: a multiplication and an addition for each weight and row."""
        outer, inner = self.weight
        return 2 * _numbers(self.input) // inner * inner * outer

    @property
    def bytes(self) -> int:
        """Of one product: input and weight read, output written, each once."""
        return self.bytes_per_number * sum(map(_numbers, (self.input, self.weight, self.output)))

    @property
    def intensity(self) -> float:
        """FLOP per byte."""
        return self.flops / self.bytes


def trace(model: Decoder, tokens: Tensor) -> list[Product]:
    """Run tokens [batch, new] through the model and note every matrix product, in the order of the pass."""
    seen: Counter[tuple] = Counter()

    def note(name: str) -> Callable:
        def hook(linear: nn.Linear, inputs: tuple[Tensor], output: Tensor) -> None:
            shapes = (tuple(t.shape) for t in (inputs[0], linear.weight, output))
            seen[(name, *shapes, linear.weight.element_size())] += 1

        return hook

    linears = {path: part for path, part in model.named_modules() if isinstance(part, nn.Linear)}
    hooks = [part.register_forward_hook(note(path.split(".")[-1])) for path, part in linears.items()]
    try:
        model(tokens, new_cache(model, tokens.shape[1], tokens.shape[0]))
    finally:
        for hook in hooks:
            hook.remove()
    return [Product(name, times, *sizes) for (name, *sizes), times in seen.items()]


def trace_table(products: Sequence[Product]) -> str:
    """The products as a table in plain text, with a last line for the whole pass."""
    columns = ("product", "times", "input", "weight", "output", "MFLOP", "MB", "FLOP/B")
    head = "{:8} {:>5}  {:>14}  {:>13}  {:>16} {:>10} {:>8} {:>7}".format(*columns)
    lines = [head, "-" * len(head)]
    for p in products:
        sizes = f"{_size(p.input):>14}  {_size(p.weight):>13}  {_size(p.output):>16}"
        lines.append(f"{p.name:8} {p.times:5}  {sizes} {p.flops / 1e6:10,.1f} {p.bytes / 1e6:8.1f} {p.intensity:7.2f}")
    flops, moved = (sum(p.times * getattr(p, what) for p in products) for what in ("flops", "bytes"))
    whole = f"{'whole':8} {sum(p.times for p in products):5}  {'':14}  {'':13}  {'':16}"
    return "\n".join([*lines, f"{whole} {flops / 1e6:10,.1f} {moved / 1e6:8.1f} {flops / moved:7.2f}"])


def counted_alike(products: Iterable[Product], modules: Iterable[Module]) -> bool:
    """Whether the real pass had just the products that `counts.forward_pass` foretells, with its FLOPs and bytes."""
    real = {p.name: (p.times, p.flops, p.bytes) for p in products}
    return real == {m.name: (m.times, m.flops, m.bytes) for m in modules if m.kind == "matmul"}


def _numbers(size: tuple[int, ...]) -> int:
    return int(np.prod(size, dtype=np.int64))


def _size(size: tuple[int, ...]) -> str:
    return "[" + ", ".join(map(str, size)) + "]"


# --- timing passes ---------------------------------------------------------------------------------------------------


def time_phases(model: Decoder, short: int = 128, long: int = 512, budget_s: float = 1.0) -> dict[str, Timing]:
    """Prefill of a short and a long prompt, one token and eight tokens behind them, taken in turns.

    Keys: "prefill short", "prefill long", "decode short", "decode long", "eight".
    """
    calls = {
        "prefill short": ready(model, 1, short, 0),
        "prefill long": ready(model, 1, long, 0),
        "decode short": ready(model, 1, 1, short),
        "decode long": ready(model, 1, 1, long),
        "eight": ready(model, 1, 8, long),
    }
    return interleave(calls, device_of(model), budget_s, least=5)


SWEEP = (1, 2, 4, 8, 16, 32, 64, 128, 256, 1024)  # new tokens
LOOKS = 2  # other programs take a machine for seconds at a time: passes are timed twice, with time between


def sweep(model: Decoder, new_tokens: Iterable[int] = SWEEP, told: Callable[[int], object] = lambda new: None):
    """Timings of passes with so many new tokens each, {new tokens: Timing}; `told` hears of each before it runs."""
    samples_s: dict[int, tuple[float, ...]] = {}
    for new in [*new_tokens] * LOOKS:
        told(new)
        look = time_call(ready(model, 1, new, 0), device_of(model), budget_s=0.1, least=1 if new > 300 else 2)
        samples_s[new] = samples_s.get(new, ()) + look.samples_s
    return {new: Timing(samples) for new, samples in samples_s.items()}


def time_batching(
    model: Decoder, batch: int = 16, context: int | None = None, budget_s: float = 0.5
) -> dict[str, Timing]:
    """Attention alone and matrix products alone of one decode step, for one sequence and for `batch`, in turns.

    Keys: "attention 1", "attention N", "products 1", "products N"; each over all layers. A GPU is given more context:
    it would launch a short attention no faster than it runs it.
    """
    context = context or (1024 if device_of(model).type == "cpu" else 8192)
    weights = [weight for kind in weights_by_product(model).values() for weight in kind]

    def attention(batch: int) -> Callable[[], None]:
        return attention_alone(model.shape, device_of(model), weights[0].dtype, batch, 1, context)

    def products(batch: int) -> Callable[[], None]:
        inputs = {width: torch.randn(batch, width).to(weights[0]) for width in {w.shape[1] for w in weights}}

        def call() -> None:
            for weight in weights:
                multiply(inputs[weight.shape[1]], weight)

        return call

    calls = {"attention 1": attention(1), "attention N": attention(batch)}
    calls |= {"products 1": products(1), "products N": products(batch)}
    return interleave(calls, device_of(model), budget_s, least=3)


# --- predicted against measured --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Point:
    """One pass, foretold before it was timed."""

    batch: int
    new: int
    context: int
    predicted_s: float
    timing: Timing

    @property
    def error(self) -> float:
        """Predicted against measured, as a share: +0.1 was foretold 10 % too long."""
        return self.predicted_s / self.timing.median_s - 1


@dataclass(frozen=True)
class Grid:
    """Points of a grid of passes, and (batch, new, context, predicted seconds) of those left out as too long."""

    points: tuple[Point, ...]
    left_out: tuple[tuple[int, int, int, float], ...]

    @property
    def errors(self) -> list[float]:
        """Absolute errors, smallest first."""
        return sorted(abs(point.error) for point in self.points)

    @property
    def median_error(self) -> float:
        return statistics.median(self.errors)

    @property
    def p90_error(self) -> float:
        return float(np.quantile(self.errors, 0.9))

    @property
    def worst(self) -> Point:
        return max(self.points, key=lambda point: abs(point.error))

    @property
    def mean_error(self) -> float:
        """With its sign: above zero if passes were foretold too long on the whole."""
        return statistics.fmean(point.error for point in self.points)


def swept(shape: Shape, speeds: Speeds, timings: dict[int, Timing]) -> list[Point]:
    """The passes of a `sweep` as points, each with what is foretold for it."""
    return [Point(1, new, 0, foretell(shape, speeds, 1, new, 0), timing) for new, timing in timings.items()]


GRID = tuple(product((1, 4, 16), (1, 8, 64, 512), (0, 1024)))  # batch, new tokens, context


def grid(
    model: Decoder,
    speeds: Speeds,
    passes: Iterable[tuple[int, int, int]] = GRID,
    limit_s: float = 20.0,
    budget_s: float = 0.5,
    told: Callable[[Point], object] = lambda point: None,
    looks: int = 1,
) -> Grid:
    """Foretell passes (batch, new, context) of the model, then time those that should take no longer than the limit.

    `told` hears of each point as soon as it is timed, in each of the looks.
    """
    foretold = {at: foretell(model.shape, speeds, *at) for at in passes}
    left_out = tuple((*at, seconds) for at, seconds in foretold.items() if seconds > limit_s)
    points: dict[tuple[int, int, int], Point] = {}
    for at in [at for at, seconds in foretold.items() if seconds <= limit_s] * looks:
        look = time_call(ready(model, *at), device_of(model), budget_s, least=3 if foretold[at] < 3 else 1)
        before = points[at].timing.samples_s if at in points else ()
        points[at] = Point(*at, foretold[at], Timing(before + look.samples_s))
        told(points[at])
    return Grid(tuple(points.values()), left_out)


# --- a model on which bytes bind -------------------------------------------------------------------------------------


def until_bytes_bind(model: Decoder, read_bytes_per_s: float, times: float = 2.0) -> Decoder:
    """The model itself on a CPU, or if the bytes of a step take `times` as long as its overhead; else a larger one.

    A fast GPU reads a small model sooner than the CPU can launch its kernels. Then layers of a large model, with random
    weights, take its place: as many as a quarter of the free memory holds, eight at most.
    """
    device, dtype = device_of(model), model.embed.weight.dtype
    step_s = model.shape.read_parameters * dtype.itemsize / read_bytes_per_s
    if device.type == "cpu" or step_s >= times * time_launches(model.shape, device, dtype):
        return model
    for name in ("Llama-3.1-70B", "Llama-3.1-8B", "Llama-3.2-1B"):
        whole = replace(find(name), vocab=32_000)
        room = devices.free_bytes(device) / 4 / dtype.itemsize - whole.vocab * whole.hidden * 2
        layers = min(8, int(room // whole.layer_parameters))
        if layers >= 2:
            return random_decoder(replace(whole, name=f"{layers} layers of {name}", layers=layers), device, dtype)
    return model


def at_hand(real: Decoder, ceilings: Ceilings) -> Decoder:
    """The model that the notebook times: the real one in the dtype picked, or one on which bytes bind."""
    model = in_dtype(real, getattr(torch, ceilings.best_dtype))
    return until_bytes_bind(model, ceilings.read_bytes_per_s)


def in_dtype(model: Decoder, dtype: torch.dtype) -> Decoder:
    """The model itself if it has that dtype, or a copy that has."""
    return model if model.embed.weight.dtype == dtype else copy.deepcopy(model).to(dtype)


def shrunk(shape: Shape) -> Shape:
    """The same depth, and so the same launches, at a hundredth of the weights or less."""
    return replace(shape, name=f"{shape.name}, shrunk", hidden=32, heads=2, kv_heads=1, head_dim=16, ffn=64, vocab=512)


# --- under the roofs -------------------------------------------------------------------------------------------------

WHOLE = "whole pass"  # the row that is no single product


def roofline_dots(
    model: Decoder, prefill: Timing, decode: Timing, tokens: int
) -> dict[str, list[tuple[str, float, float, float]]]:
    """Dots for a roofline: for each phase rows of (name, FLOP, bytes, seconds), single products and the whole pass.

    `prefill` and `decode` are timings of whole passes: over `tokens` tokens, and over one behind them.
    """
    width, dots = model.embed.weight.element_size(), {}
    for phase, timing, new, context in (("prefill", prefill, tokens, 0), ("decode", decode, 1, tokens)):
        modules = forward_pass(model.shape, 1, new, context, width, width, width)
        took = time_products(model, new)
        rows = [
            (m.name, m.times * m.flops, m.times * m.bytes, took[m.name].median_s) for m in modules if m.name in took
        ]
        whole = totals(modules)
        dots[phase] = [*rows, (WHOLE, whole.flops, whole.bytes, timing.median_s)]
    return dots


def specification(ceilings: Ceilings, dtype: str) -> tuple[float, float] | None:
    """FLOP/s and bytes/s of the datasheet, if the device is in the catalogue, once, and has that dtype there."""
    found = from_device_name(ceilings.device_name)
    name = DATASHEET_DTYPE[dtype]
    if len(found) != 1 or name not in found[0].flop_per_s:
        return None
    return found[0].flop_per_s[name], found[0].read_bytes_per_s


def three_regimes(shape: Shape, small: Shape, speeds: Speeds, tokens: int = 512) -> list[tuple[str, Prediction, float]]:
    """Prefill and decode of a model, and a step of a small one of the same depth, under this machine's roofs.

    Rows of (name, prediction with overhead, FLOP per byte), for `draw_split`.
    """
    rows = []
    for name, of, new, context in (
        (f"prefill\n{tokens} tokens", shape, tokens, 0),
        ("decode\n1 token", shape, 1, tokens),
        ("decode,\nshrunk", small, 1, tokens),
    ):
        modules = modules_of(of, speeds, 1, new, context)
        overhead_s = speeds.overhead_s * of.layers / shape.layers
        p = predict(modules, speeds.flop_per_s, speeds.read_bytes_per_s, overhead_s, overlap=speeds.overlap)
        rows.append((name, p, totals(modules).intensity))
    return rows


# --- arithmetic on paper ---------------------------------------------------------------------------------------------


def on_paper(
    shape: Shape, batch: int, new: int, context: int, flop_per_s: float, bytes_per_s: float, width: float = 2
) -> Prediction:
    """A pass under two given roofs, at `width` bytes a number: a datasheet's promise, without overhead."""
    return predict(forward_pass(shape, batch, new, context, width, width, width), flop_per_s, bytes_per_s)


def attention_intensity(shape: Shape, batch: int, context: int) -> float:
    """FLOP per byte of keys and values that attention reads in one decode step, 16-bit."""
    modules = forward_pass(shape, batch, 1, context - 1)
    return next(m.flops / m.kv_read_bytes for m in modules if m.kind == "attention")


# --- verdicts: what the notebook says of the numbers just measured ---------------------------------------------------


def opposite_loads(prefill: Timing, decode: Timing, shape: Shape, tokens: int, width: int) -> bool:
    """Whether prefill does far more arithmetic a second than decode, and decode reads far more weights a second."""
    many, one = (totals(forward_pass(shape, 1, *at, width, width, width)) for at in ((tokens, 0), (1, tokens)))
    times_longer = ratio(prefill, decode)
    arithmetic = many.flops / one.flops / times_longer  # FLOP/s of prefill over FLOP/s of decode
    reading = one.weight_bytes / many.weight_bytes * times_longer
    return arithmetic > 5 and reading > 2


def shares_the_weights(few: Timing, one: Timing, tokens: int) -> bool:
    """Whether a pass over a few tokens takes less than half of as many passes over one."""
    return ratio(few, one) < tokens / 2


def leaves_the_floor(many: Timing, few: Timing) -> bool:
    """Whether a pass over many tokens takes more than twice one over a few."""
    return ratio(many, few) > 2


def prompt_delays_the_first_token_more(timings: dict[str, Timing]) -> bool:
    """Whether a longer prompt slows prefill by a larger factor than it slows the steps after it."""
    first = ratio(timings["prefill long"], timings["prefill short"])
    later = ratio(timings["decode long"], timings["decode short"])
    return first > 1.2 * later


def overhead_binds(step: Timing, needed_s: float) -> bool:
    """Whether a step takes more than five times what its arithmetic and its bytes need."""
    return min(step.samples_s) > 5 * needed_s


def foretold_in_proportion(points: Sequence[Point], factor: float) -> bool:
    """Whether three passes of four took what was foretold within a factor, all slowed alike by a busy machine.

    The measured times span far more than that factor, so that a wrong idea of what a pass costs shows. Of each pass the
    quickest run counts, the one that was disturbed least. Fewer than four passes show nothing.
    """
    if len(points) < 4:
        return False
    longer = [min(p.timing.samples_s) / p.predicted_s for p in points]
    slowed = statistics.median(longer)
    return sum(1 / factor < x / slowed < factor for x in longer) >= 0.75 * len(longer)


def batch_lifts_products_only(timings: dict[str, Timing]) -> bool:
    """Whether a larger batch makes attention dearer by a larger factor than it does the matrix products."""
    attention = ratio(timings["attention N"], timings["attention 1"])
    return attention > 1.2 * ratio(timings["products N"], timings["products 1"])
