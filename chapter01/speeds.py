"""This machine's speeds, and what they foretell: a pass is predicted from single kernels, before it is ever run.

A pass is named by three numbers: `batch` sequences bring `new` tokens each after `context` cached ones. Nothing here is
fitted to a pass of the model itself.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import cycle

import numpy as np
import torch
from torch import Tensor, nn

from chapter01.loop import device_of, new_cache
from utils.ceilings import Ceilings, dtype_name
from utils.counts import Module, forward_pass
from utils.decoder import Decoder, attend
from utils.graphs import capture, captures
from utils.models import Shape
from utils.products import multiply
from utils.roofline import Prediction, predict
from utils.timing import Timing, interleave, time_call

# --- what is timed ---------------------------------------------------------------------------------------------------


def ready(model: Decoder, batch: int, new: int, context: int, all_logits: bool = False) -> Callable[[], None]:
    """A pass to be timed: random tokens behind a cache filled with random normals; `all_logits` as in the decoder.

    On CUDA it is captured: launched at once, as engines that serve models do it.
    """
    cache = new_cache(model, context + new, batch)
    cache.k.normal_()
    cache.v.normal_()
    tokens = torch.randint(model.shape.vocab, (batch, new), device=device_of(model))

    def call() -> None:
        cache.used = context
        model(tokens, cache, all_logits)

    return capture(call, device_of(model))


def time_products(
    model: Decoder, rows: int, head_rows: int = 1, layers: int | None = None, budget_s: float = 0.5
) -> dict[str, Timing]:
    """Each kind of matrix product alone, with random inputs of so many rows, in turns.

    Keys as in `trace`; a timing is of all layers together (or of the first `layers`).
    """

    def run(weights: list[Tensor], rows: int) -> Callable[[], None]:
        x = torch.randn(rows, weights[0].shape[1]).to(weights[0])

        def call() -> None:
            for weight in weights:
                multiply(x, weight)

        return capture(call, x.device)

    calls = {name: run(weights[:layers], rows) for name, weights in weights_by_product(model).items()}
    calls["head"] = run([model.head.weight], head_rows)
    return interleave(calls, device_of(model), budget_s, least=2)


def weights_by_product(model: Decoder) -> dict[str, list[Tensor]]:
    """The weights [outer, inner] of all layers by the name of their product: "qkv", "out", "gate", "up", "down"."""
    named: dict[str, list[Tensor]] = {}
    for path, part in model.layers.named_modules():
        if isinstance(part, nn.Linear):
            named.setdefault(path.split(".")[-1], []).append(part.weight)
    return named


# --- this machine's speeds: all that a prediction needs, measured outside of the pass that it foretells ---------------


@dataclass(frozen=True)
class Speeds:
    """Two roofs, and how near to them this machine's kernels come. FLOP/s and bytes/s of one dtype."""

    bytes_per_number: int
    flop_per_s: float  # roof
    read_bytes_per_s: float  # roof
    matmul_flop_per_s: Callable[[str, int], float]  # of a product, by its name and rows
    attention_flop_per_s: Callable[[int, int], float]  # of attention, by new tokens and batch
    elementwise_bytes_per_s: float  # of norms, rotations, gates and additions
    overhead_s: float  # of one pass: Python, dispatch, launches
    overlap: bool  # launches run ahead of the execution (a GPU that captures nothing)


def measure_speeds(model: Decoder, ceilings: Ceilings) -> Speeds:
    """What foretells passes of this model here, from single kernels and a hollow model: some seconds of work.

    Nothing is fitted to a pass of the model itself.
    """
    shape, device, dtype = model.shape, device_of(model), model.embed.weight.dtype
    if device.type == "cpu":
        overhead_s, elementwise_bytes_per_s = time_rest(shape, device, dtype)
    else:  # launches take longer than elementwise kernels of a few hundred rows: their speed does not show
        overhead_s, elementwise_bytes_per_s = time_launches(shape, device, dtype), ceilings.read_bytes_per_s
    return Speeds(
        bytes_per_number=dtype.itemsize,
        flop_per_s=ceilings.flop_per_s[dtype_name(dtype)],
        read_bytes_per_s=ceilings.read_bytes_per_s,
        matmul_flop_per_s=product_speed(model),
        attention_flop_per_s=attention_speed(shape, device, dtype),
        elementwise_bytes_per_s=elementwise_bytes_per_s,
        overhead_s=overhead_s,
        overlap=device.type != "cpu" and not captures(device),
    )


def time_rest(shape: Shape, device: torch.device, dtype: torch.dtype, budget_s: float = 1.0) -> tuple[float, float]:
    """(seconds of overhead, bytes/s of elementwise work) of a pass on a CPU, from a hollow model of the same depth.

    One token through it is overhead. What many tokens take more than one, less their attention, is elementwise work, in
    the bytes that `counts` allows it. The weights of a real pass sweep the caches, and launches and norms after that
    take about twice as long: so the model is a swept one, and the time of its reads alone is taken off again.
    """
    model, reads = swept(shape, device, dtype)
    calls = {"reads": reads, "one": ready(model, 1, 1, 0), "many": ready(model, 1, REST_ROWS, 0)}
    calls["attention"] = attention_alone(shape, device, dtype, 1, REST_ROWS, 0)
    timings = interleave(calls, device, budget_s, least=3)
    reads_s, one_s, many_s, attention_s = (np.array(timing.samples_s) for timing in timings.values())
    overhead_s = float(np.median(one_s - reads_s))
    rest_s = float(np.median(many_s - one_s - attention_s))
    counted = forward_pass(shape, 1, REST_ROWS - 1, 0, *3 * [dtype.itemsize])
    moved = sum(m.times * m.bytes for m in counted if m.name == "elementwise")
    return max(0.0, overhead_s), moved / max(rest_s, 1e-6)


def swept(shape: Shape, device: torch.device, dtype: torch.dtype) -> tuple[Decoder, Callable[[], None]]:
    """A hollow model that reads a block of memory in place of each product; and the reads of one pass, alone."""
    turn = cycle(torch.randn(64, SWEPT_BYTES // 4))

    def read() -> None:
        next(turn).sum()

    model = hollow(shape, device, dtype, read)
    products = sum(isinstance(part, _Given) for part in model.modules())

    def reads() -> None:
        for _ in range(products):
            read()

    return model, reads


def time_launches(shape: Shape, device: torch.device, dtype: torch.dtype) -> float:
    """Seconds that the launches of a pass take, whatever its size: one token through a hollow model of that depth.

    Captured, that is what its kernels take besides the products, small as they are: they add to what these take.
    """
    return time_call(ready(hollow(shape, device, dtype), 1, 1, 0), device).median_s


REST_ROWS = 256
SWEPT_BYTES = 4 << 20  # read in place of each product: about what one weight matrix of the embedded model takes
PRODUCT_ROWS = (1, 2, 4, 8, 16, 64, 256, 1024)
HEAD_ROWS = 64  # the head works on one row of each sequence: more than this is not asked for


def product_speed(model: Decoder) -> Callable[[str, int], float]:
    """FLOP/s of each kind of matrix product by its rows, interpolated on logarithms and flat beyond.

    By kind, because kernels for few rows are slower for some widths than for others. All weights are gone through, so
    that none is in the cache; with many rows that does not matter, and two layers do.
    """
    rates: dict[str, list[float]] = {}
    for rows in PRODUCT_ROWS:
        layers = model.shape.layers if rows < 64 else 2
        head_rows = min(rows, HEAD_ROWS)
        timings = time_products(model, rows, head_rows, layers, budget_s=0.05)
        for name, timing in timings.items():
            weights = [model.head.weight] if name == "head" else weights_by_product(model)[name][:layers]
            flops = 2 * (head_rows if name == "head" else rows) * sum(weight.numel() for weight in weights)
            rates.setdefault(name, []).append(flops / timing.q1_s)

    def flop_per_s(name: str, rows: int) -> float:
        if name == "head":
            rows = min(rows, HEAD_ROWS)  # not measured beyond
        return float(np.exp(np.interp(np.log(rows), np.log(PRODUCT_ROWS), np.log(rates[name]))))

    return flop_per_s


ATTENTION_NEW, ATTENTION_BATCH, ATTENTION_CONTEXT = (1, 8, 64, 512), (1, 4), 1024


def attention_speed(shape: Shape, device: torch.device, dtype: torch.dtype) -> Callable[[int, int], float]:
    """FLOP/s of attention alone by new tokens and batch, masked pairs counted; interpolated on logarithms.

    The batch matters where there are few heads: one sequence's do not share out evenly among the threads.
    """

    def rate(batch: int, new: int) -> float:
        few = replace(shape, layers=min(shape.layers, 2)) if new > 8 else shape  # long ones do not depend on the cache
        call = attention_alone(few, device, dtype, batch, new, ATTENTION_CONTEXT)
        took_s = time_call(call, device, budget_s=0.05, least=3).q1_s
        counted = {m.name: m for m in forward_pass(few, batch, new, ATTENTION_CONTEXT)}["attention"]
        return counted.times * counted.flops / took_s

    rates = {batch: np.log([rate(batch, new) for new in ATTENTION_NEW]) for batch in ATTENTION_BATCH}

    def flop_per_s(new: int, batch: int) -> float:
        at = [np.interp(np.log(new), np.log(ATTENTION_NEW), by_new) for by_new in rates.values()]
        return float(np.exp(np.interp(np.log(batch), np.log(ATTENTION_BATCH), at)))

    return flop_per_s


def attention_alone(
    shape: Shape, device: torch.device, dtype: torch.dtype, batch: int, new: int, context: int
) -> Callable[[], None]:
    """Attention alone, once for each layer, each with keys and values of its own."""
    q = torch.randn(batch, shape.heads, new, shape.head_dim, device=device).to(dtype)
    size = (shape.layers, 2, batch, shape.kv_heads, context + new, shape.head_dim)
    cache = torch.randn(size, device=device).to(dtype)

    def call() -> None:
        for k, v in cache:
            attend(q, k, v)

    return capture(call, device)


class _Given(nn.Module):
    """In place of a matrix product: hands out a ready result of the right shape."""

    def __init__(self, linear: nn.Linear, instead: Callable[[], None]):
        super().__init__()
        self.outer, self.instead, self.results = linear.out_features, instead, {}

    def forward(self, x: Tensor) -> Tensor:
        self.instead()
        size = (*x.shape[:-1], self.outer)
        if size not in self.results:
            self.results[size] = torch.randn(size, device=x.device).to(x.dtype)
        return self.results[size]


def hollow(
    shape: Shape, device: torch.device, dtype: torch.dtype, instead: Callable[[], None] = lambda: None
) -> Decoder:
    """A decoder of that shape that calls `instead` of its matrix products; all else between them is real."""
    with torch.device("meta"):  # weights that are never used take no memory
        model = Decoder(replace(shape, name="hollow", vocab=8)).to(dtype)
    for part in [model, *model.modules()]:
        for name, child in list(part.named_children()):
            if isinstance(child, nn.Linear):
                setattr(part, name, _Given(child, instead))
    model.to_empty(device=device)
    for weight in model.parameters():
        weight.normal_()
    return model


# --- predictions -----------------------------------------------------------------------------------------------------


def floor(shape: Shape, speeds: Speeds, batch: int, new: int, context: int) -> Prediction:
    """The least time of a pass under the two roofs of this machine, by what binds it; no overhead, ideal kernels."""
    return predict(modules_of(shape, speeds, batch, new, context), speeds.flop_per_s, speeds.read_bytes_per_s)


def foretell(shape: Shape, speeds: Speeds, batch: int, new: int, context: int, all_logits: bool = False) -> float:
    """Seconds of a pass with this machine's own kernels and overhead; `all_logits` as in the decoder."""
    parts = foretell_parts(shape, speeds, batch, new, context, all_logits)
    overhead_s = parts.pop("overhead")
    executing_s = sum(parts.values())
    return max(executing_s, overhead_s) if speeds.overlap else executing_s + overhead_s


def foretell_parts(
    shape: Shape, speeds: Speeds, batch: int, new: int, context: int, all_logits: bool = False
) -> dict[str, float]:
    """The parts of `foretell` in seconds: "matmul", "attention", "other", "overhead"."""
    seconds = {"matmul": 0.0, "attention": 0.0, "other": 0.0, "overhead": speeds.overhead_s}
    for m in modules_of(shape, speeds, batch, new, context, all_logits):
        read_bytes_per_s = speeds.read_bytes_per_s
        if m.kind == "matmul":
            flop_per_s = speeds.matmul_flop_per_s(m.name, m.rows)
        elif m.kind == "attention":
            flop_per_s = speeds.attention_flop_per_s(new, batch)
        else:
            flop_per_s, read_bytes_per_s = speeds.flop_per_s, speeds.elementwise_bytes_per_s
        seconds[m.kind] += m.times * max(m.flops / flop_per_s, m.bytes / read_bytes_per_s)
    return seconds


def modules_of(
    shape: Shape, speeds: Speeds, batch: int, new: int, context: int, all_logits: bool = False
) -> list[Module]:
    """The modules of a pass, all numbers as wide as this machine's."""
    return forward_pass(shape, batch, new, context, *3 * [speeds.bytes_per_number], all_logits=all_logits)
