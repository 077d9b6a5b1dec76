"""Notebook 03, the idle chip: what one decode step moves, how long that takes, and how little arithmetic it uses.

Two readings of the same step stand side by side. The idealised one counts the weights alone: every parameter is
read once and used for one row of each sequence. The exact one follows the decoder's shape: an untied input embedding
is not read, keys and values are, and attention does arithmetic of its own. `differences` names what lies between.

Both count what a step reads from memory. Left out are the activations, the written keys and values and the gathered
rows of the embedding: a few megabytes a sequence, which a chip's cache holds or hides. No overhead, no link between
chips: these are bounds, the best that a chip can do.
"""

import math
from dataclasses import dataclass, replace

from utils.chips import Chip
from utils.counts import Module, crossing_batch, forward_pass, positive, totals, weights_only, whole
from utils.models import Shape
from utils.roofline import Regime, predict


@dataclass(frozen=True)
class Reading:
    """One decode step, of all sequences together, on all chips together."""

    parts: dict[str, float]  # bytes read a step, by what they are
    bytes: float  # their sum
    flops: int
    seconds: float
    tokens_per_s_per_user: float
    tokens_per_s: float  # of all users
    flop_per_s: float  # arithmetic done
    used: float  # share of the peak, 0 to 1
    idle: float  # 1 - used
    bound_by: Regime
    needed_bytes: float  # weights, input embedding included, and the cache: the least that has to fit
    fits: bool | None  # on these chips, by the datasheet's memory; None where that is unknown
    chips_needed: int | None
    dollars_per_million: tuple[float, float] | None  # tokens, at the lower and the upper price
    matmuls_cross_at_batch: float  # there their FLOP per byte equal the ridge
    step_crosses_at_batch: float | None  # the same of the whole step at this context; None: at no batch
    step_flop_per_byte_limit: float | None  # which its intensity nears as the batch grows; None: no limit


@dataclass(frozen=True)
class Difference:
    """Something that the exact reading counts and the idealised one does not (negative: the other way round)."""

    name: str
    bytes: float
    flops: float


def idealised(
    chip: Chip,
    dtype: str,
    parameters: float,
    batch: int = 1,
    weight_bytes: float = 2,
    chips: int = 1,
    price: tuple[float, float] | None = None,
) -> Reading:
    """The weights-only reading.

    Args:
        chip: from `utils.chips`, or from `given`.
        dtype: what the arithmetic runs in, a key of `chip.flop_per_s`; it need not be what the weights are stored in.
        parameters: how many, for instance 70e9.
        batch: sequences, one user each.
        weight_bytes: bytes a weight.
        chips: how many share the work without loss (ideal tensor parallelism).
        price: dollars for a chip and hour, lower and upper.

    Raises:
        ValueError: a value out of range, or no verified rate of that dtype.
    """
    if parameters < 1:
        raise ValueError(f"{parameters!r} parameters: give a number of at least 1, for instance 70e9")
    modules = weights_only(parameters, batch, weight_bytes)
    matmuls = chip.ridge(dtype) * weight_bytes / 2  # 2 FLOPs a weight and row
    parts = {"weights": totals(modules).weight_bytes}
    return _reading(chip, dtype, modules, parts, parts["weights"], batch, chips, price, matmuls, matmuls, None)


def exact(
    chip: Chip,
    dtype: str,
    shape: Shape,
    batch: int = 1,
    context: int = 1,
    weight_bytes: float = 2,
    kv_bytes: float = 2,
    chips: int = 1,
    price: tuple[float, float] | None = None,
) -> Reading:
    """The reading by the decoder's shape.

    Args:
        chip, dtype, batch, weight_bytes, chips, price: as for `idealised`.
        shape: the decoder, from `utils.models`.
        context: tokens of each sequence whose keys and values the step reads, the newest among them.
        kv_bytes: bytes a number in the cache.

    Raises:
        ValueError: a value out of range, or no verified rate of that dtype.
    """
    ridge = chip.ridge(dtype)
    modules = exact_step(shape, batch, context, weight_bytes, kv_bytes)
    by_name = {m.name: m.weight_bytes * m.times for m in modules}
    head = by_name["head"] + by_name["norm"]  # the last norm belongs to it
    sums = totals(modules)
    parts = {"layers": sums.weight_bytes - head, "output head": head, "keys and values": sums.kv_bytes}
    whole_step = crossing_batch(shape, context, ridge, weight_bytes, kv_bytes)
    needed = shape.parameters * weight_bytes + sums.kv_bytes
    limit = sums.flops / sums.kv_bytes  # both grow with the batch, the weights do not
    matmuls = ridge * weight_bytes / 2
    return _reading(chip, dtype, modules, parts, needed, batch, chips, price, matmuls, whole_step, limit)


def exact_step(
    shape: Shape, batch: int = 1, context: int = 1, weight_bytes: float = 2, kv_bytes: float = 2
) -> list[Module]:
    """The modules of one decode step with the bytes that they read from memory: weights, keys and values.

    Raises:
        ValueError: a count that is not a whole number from 1, or a width that is not a positive number.
    """
    whole("context", context, 1)
    step = forward_pass(shape, batch, 1, context - 1, weight_bytes, kv_bytes)
    return [replace(m, activation_bytes=0, kv_write_bytes=0) for m in step if m.name != "embed"]


def _reading(
    chip: Chip,
    dtype: str,
    modules: list[Module],
    parts: dict[str, float],
    needed: float,
    batch: int,
    chips: int,
    price: tuple[float, float] | None,
    matmuls_cross: float,
    step_crosses: float | None,
    limit: float | None,
) -> Reading:
    chip.ridge(dtype)  # refuses a dtype without a rate
    whole("chips", chips, 1)
    check_price(price)
    peak = chip.flop_per_s[dtype] * chips
    prediction = predict(modules, peak, chip.read_bytes_per_s * chips)
    sums, seconds = totals(modules), prediction.seconds
    if not 0 < seconds < math.inf:
        raise ValueError(f"a step of {seconds} s comes out: some of the values are too large or too small")
    tokens_per_s = batch / seconds
    used = min(1.0, sums.flops / seconds / peak)  # rounding alone could pass 1
    dollars = None if price is None else tuple(p * chips / 3600 / tokens_per_s * 1e6 for p in price)
    if not all(map(math.isfinite, (1 / seconds, tokens_per_s, used, matmuls_cross, limit or 0, *(dollars or ())))):
        raise ValueError("the results overflow: some of the values are too large or too small")
    chips_needed = None if chip.memory_bytes is None else math.ceil(needed / chip.memory_bytes)
    return Reading(
        parts=parts,
        bytes=sums.bytes,
        flops=sums.flops,
        seconds=seconds,
        tokens_per_s_per_user=1 / seconds,
        tokens_per_s=tokens_per_s,
        flop_per_s=sums.flops / seconds,
        used=used,
        idle=1 - used,
        bound_by=prediction.regime,
        needed_bytes=needed,
        fits=None if chips_needed is None else chips_needed <= chips,
        chips_needed=chips_needed,
        dollars_per_million=dollars,
        matmuls_cross_at_batch=matmuls_cross,
        step_crosses_at_batch=step_crosses,
        step_flop_per_byte_limit=limit,
    )


def differences(
    parameters: float,
    shape: Shape,
    batch: int = 1,
    context: int = 1,
    weight_bytes: float = 2,
    kv_bytes: float = 2,
) -> list[Difference]:
    """What turns the idealised reading of `parameters` into the exact one of `shape`; the entries add up to it.

    Raises:
        ValueError: a value out of range.
    """
    positive("parameters", parameters)
    attention = next(m for m in exact_step(shape, batch, context, weight_bytes, kv_bytes) if m.kind == "attention")

    def of_parameters(name: str, count: float) -> Difference:
        return Difference(name, count * weight_bytes, 2 * batch * count)

    norms = shape.hidden * (2 * shape.layers + 1)
    entries = [
        of_parameters("the parameters of this very model", shape.parameters - parameters),
        of_parameters("input embedding: one row is read", shape.read_parameters - shape.parameters),
        Difference("norms: read, but not multiplied", 0.0, -2 * batch * norms),
        Difference(
            "attention to keys and values",
            attention.times * attention.kv_read_bytes,
            attention.times * attention.flops,
        ),
    ]
    return [entry for entry in entries if entry.bytes or entry.flops]


def default_dtype(chip: Chip) -> str:
    """What weights of two bytes would be multiplied in: bf16, else fp16, else fp32.

    Raises:
        ValueError: the catalogue has a verified rate for none of them.
    """
    for dtype in ("bf16", "fp16", "fp32"):
        if dtype in chip.flop_per_s:
            return dtype
    raise ValueError(f"no verified arithmetic rate for {chip.name}: give --bandwidth and --peak yourself")


def given(
    bytes_per_s: float,
    flop_per_s: float,
    dtype: str = "given",
    name: str = "given rates",
    memory_bytes: int | None = None,
) -> Chip:
    """A chip that is in no catalogue: one of a textbook problem, or the reader's own with its measured ceilings.

    Raises:
        ValueError: a rate that is not a positive number.
    """
    positive("the bandwidth in bytes per second", bytes_per_s)
    positive("the peak in FLOP per second", flop_per_s)
    return Chip(name, {dtype: flop_per_s}, bytes_per_s, memory_bytes, "given")


def check_price(price: tuple[float, float] | None) -> None:
    """Refuse a price range (dollars for a chip and hour) that is not two positive numbers in rising order."""
    if price is None:
        return
    low, high = price
    positive("the lower price in dollars an hour", low)
    positive("the upper price in dollars an hour", high)
    if low > high:
        raise ValueError(f"price range {low:g}:{high:g} is the wrong way round: give {high:g}:{low:g}")
