"""FLOPs and bytes of one forward pass, exact, from the decoder's shape alone.

What is counted, for a batch of sequences that each bring new tokens after the cached ones of their context:

- FLOPs: two (multiply, add) for each weight and row of a matrix product, and for each pair of positions and
  head dimension in each of attention's two products. Norms, rotations, softmax and activations count as none,
  as in torch's flop counter: they cost bytes, not arithmetic.
- Weights: read once a pass, however many rows use them. An untied input embedding is gathered, one row a
  token; a tied one is the output head, which is read whole already.
- Keys and values: those of context and new tokens are read once, those of the new tokens written once.
  Grouped-query attention stores `kv_heads` of them, not `heads`.
- Attention's masked pairs count in `flops` and not in `useful_flops`; a causal kernel that skips masked blocks
  runs a number between the two. At one new token nothing is masked.
- Activations: a matrix product reads its input and writes its output once; attention reads the queries and
  writes as much. For the rest see `_elementwise`.

These are the fewest bytes that a pass moves module by module: a kernel may have to read again what its cache
does not hold, and small activations may never leave it.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Literal

from utils.models import Shape


@dataclass(frozen=True)
class Module:
    """One part of the forward pass. Every count is for one instance; the pass has `times` of them."""

    name: str
    kind: Literal["matmul", "attention", "other"]
    times: int
    rows: int  # positions it works on, over the whole batch
    inner: int = 0  # width that a matrix product sums over
    outer: int = 0  # width of its output
    flops: int = 0  # executed, masked pairs of positions included
    useful_flops: int = 0  # without the pairs that the causal mask throws away
    weight_bytes: float = 0
    kv_read_bytes: float = 0
    kv_write_bytes: float = 0
    activation_bytes: float = 0  # read and written

    @property
    def bytes(self) -> float:
        """All bytes it must move."""
        return self.weight_bytes + self.kv_read_bytes + self.kv_write_bytes + self.activation_bytes

    @property
    def intensity(self) -> float:
        """FLOP per byte moved."""
        return self.flops / self.bytes


@dataclass(frozen=True)
class Totals:
    """Sums over all modules and their instances."""

    flops: int
    useful_flops: int
    weight_bytes: float
    kv_bytes: float  # read and written
    activation_bytes: float
    bytes: float

    @property
    def intensity(self) -> float:
        """FLOP per byte moved, over the whole pass."""
        return self.flops / self.bytes


def forward_pass(
    shape: Shape,
    batch: int,
    new_tokens: int,
    context: int,
    weight_bytes: float = 2,
    kv_bytes: float = 2,
    activation_bytes: float = 2,
    all_logits: bool = False,
) -> list[Module]:
    """The modules of one forward pass, in the decoder's order: prefill with many new tokens, decode with one.

    Args:
        shape: the decoder.
        batch: sequences.
        new_tokens: positions that each sequence runs through the layers.
        context: positions of each sequence that are in the cache already.
        weight_bytes: bytes a weight, 0.5 for four bits; norms and embedding included.
        kv_bytes: bytes a number in the cache.
        activation_bytes: bytes a number between the modules.
        all_logits: run the output head on every new position, not only on the last.

    Raises:
        ValueError: a count that is not a whole number or too small, or a width that is not a positive number.
    """
    whole("batch", batch, 1)
    whole("new tokens", new_tokens, 1)
    whole("context", context, 0)
    for name, width in (("weight", weight_bytes), ("KV", kv_bytes), ("activation", activation_bytes)):
        positive(f"bytes per {name}", width)

    rows, head_rows = batch * new_tokens, batch * (new_tokens if all_logits else 1)
    hidden, layers = shape.hidden, shape.layers

    def matmul(name: str, times: int, rows: int, inner: int, outer: int) -> Module:
        flops = 2 * rows * inner * outer
        return Module(name, "matmul", times, rows, inner, outer, flops, flops,
                      weight_bytes=inner * outer * weight_bytes,
                      activation_bytes=rows * (inner + outer) * activation_bytes)  # fmt: skip

    def other(name: str, times: int, rows: int, weights: int, numbers: int) -> Module:
        return Module(name, "other", times, rows,
                      weight_bytes=weights * weight_bytes,
                      activation_bytes=numbers * activation_bytes)  # fmt: skip

    return [
        other("embed", 1, rows, 0 if shape.tied else rows * hidden, rows * hidden),
        matmul("qkv", layers, rows, hidden, shape.q_width + 2 * shape.kv_width),
        _attention(shape, batch, new_tokens, context, kv_bytes, activation_bytes),
        matmul("out", layers, rows, shape.q_width, hidden),
        matmul("gate", layers, rows, hidden, shape.ffn),
        matmul("up", layers, rows, hidden, shape.ffn),
        matmul("down", layers, rows, shape.ffn, hidden),
        other("elementwise", layers, rows, 2 * hidden, rows * _elementwise(shape)),
        other("norm", 1, head_rows, hidden, head_rows * 2 * hidden),
        matmul("head", 1, head_rows, hidden, shape.vocab),
    ]


def _attention(shape: Shape, batch: int, new: int, context: int, kv_bytes: float, activation_bytes: float) -> Module:
    """Attention of the new positions to the cached ones and, causally, to each other."""
    rows, seen = batch * new, context + new
    pairs = new * context + new * (new + 1) // 2  # new position i sees the context, itself, and the i before it
    per_pair = 4 * batch * shape.q_width  # two products of head_dim, in every head
    return Module(
        "attention",
        "attention",
        shape.layers,
        rows,
        flops=per_pair * new * seen,
        useful_flops=per_pair * pairs,
        kv_read_bytes=batch * seen * 2 * shape.kv_width * kv_bytes,
        kv_write_bytes=rows * 2 * shape.kv_width * kv_bytes,
        activation_bytes=rows * 2 * shape.q_width * activation_bytes,
    )


def _elementwise(shape: Shape) -> int:
    """Numbers that one row reads and writes in one layer outside of products and attention.

    Each step counts as one kernel that reads its inputs and writes its output once. Eager torch moves more:
    it runs a rotation as several kernels.
    """
    norms = 2 * (1 + 1) * shape.hidden
    residual_adds = 2 * (2 + 1) * shape.hidden
    rotation = (1 + 1) * (shape.q_width + shape.kv_width)  # of queries and keys
    into_cache = 2 * shape.kv_width  # read here; their writing is kv_write_bytes
    gate = (2 + 1) * shape.ffn  # silu(gate) * up
    return norms + residual_adds + rotation + into_cache + gate


def weights_only(parameters: float, batch: int = 1, weight_bytes: float = 2) -> list[Module]:
    """A decode step in which only the weights count, each read once and used for one row of every sequence.

    Raises:
        ValueError: a batch that is not a whole number from 1, or another value that is not a positive number.
    """
    whole("batch", batch, 1)
    positive("parameters", parameters)
    positive("bytes per weight", weight_bytes)
    flops = round(2 * parameters * batch)
    weights = parameters * weight_bytes
    return [Module("weights", "matmul", 1, batch, flops=flops, useful_flops=flops, weight_bytes=weights)]


def totals(modules: Iterable[Module]) -> Totals:
    """Sum the modules over all their instances."""
    modules = list(modules)

    def total(*fields: str) -> float:
        return sum(m.times * getattr(m, field) for m in modules for field in fields)

    return Totals(
        total("flops"),
        total("useful_flops"),
        total("weight_bytes"),
        total("kv_read_bytes", "kv_write_bytes"),
        total("activation_bytes"),
        total("bytes"),
    )


def matmul_intensity(rows: float, inner: int, outer: int, bytes_per_element: float = 2) -> float:
    """FLOP per byte of [rows, inner] x [inner, outer]: input and weights read, output written, each once.

    It rises with the rows, but never above 2 inner outer / (inner + outer) / bytes_per_element.
    """
    numbers = rows * inner + inner * outer + rows * outer
    return 2 * rows * inner * outer / (numbers * bytes_per_element)


def crossing_rows(inner: int, outer: int, ridge: float, bytes_per_element: float = 2) -> float | None:
    """Rows at which a product's intensity reaches the ridge (FLOP per byte); None if no number of rows does.

    Raises:
        ValueError: a ridge or width that is not a positive number.
    """
    positive("the ridge", ridge)
    positive("bytes per element", bytes_per_element)
    needed = ridge * bytes_per_element / 2  # multiply-adds for each number moved
    slack = inner * outer - needed * (inner + outer)
    return needed * inner * outer / slack if slack > 0 else None


def crossing_batch(
    shape: Shape, tokens: int, ridge: float, weight_bytes: float = 2, kv_bytes: float = 2
) -> float | None:
    """Batch at which a whole decode step, attention included, reaches the ridge; None if no batch does.

    Counted are the bytes read from memory: the weights, and the KV of `tokens` positions in each sequence,
    the new one among them. Not counted: KV written, rows gathered from the embedding, and activations, which
    stay in cache at decode. Every sequence adds the same FLOPs and the same KV bytes, so the intensity nears
    their ratio as the batch grows, and a ridge above that is out of reach.

    Raises:
        ValueError: tokens below 1, or another value that is not a positive number.
    """
    whole("tokens", tokens, 1)
    positive("the ridge", ridge)
    step = forward_pass(shape, 1, 1, tokens - 1, weight_bytes, kv_bytes)
    kv_read = sum(m.times * m.kv_read_bytes for m in step)
    slack = totals(step).flops - ridge * kv_read  # of each sequence, beyond what its own KV takes
    return ridge * shape.read_parameters * weight_bytes / slack if slack > 0 else None


def whole(name: str, value: int, least: int) -> None:
    """Refuse anything but a whole number of at least `least`."""
    if not isinstance(value, Integral) or isinstance(value, bool) or value < least:
        raise ValueError(f"{name} is {value!r}: give a whole number, {least} or more")


def positive(name: str, value: float) -> None:
    """Refuse anything but a finite number above zero."""
    if not isinstance(value, Real) or isinstance(value, bool) or not math.isfinite(value) or value <= 0:
        raise ValueError(f"{name} is {value!r}: give a number above zero")
