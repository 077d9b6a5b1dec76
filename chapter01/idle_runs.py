"""Notebook 03, the idle chip: the same share as on paper, measured on the device at hand.

Whatever is judged here is timed in turns with two yardsticks, a large square product and a plain read of memory, so
that a busy moment slows judge and judged alike. Functions here time and return plain numbers; `idle_figures` draws
them. The predicates at the end turn measured numbers into the verdicts that the notebook prints.
"""

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import cycle

import torch
import torch.nn.functional as F
from torch import Tensor

from chapter01 import idle
from chapter01.loop import device_of, new_cache
from utils import device as devices
from utils.ceilings import LEAST_BYTES, Ceilings, Share, dtype_name, native, normals, room, share_of_ceiling
from utils.chips import CHIPS, DTYPE_BYTES, Chip
from utils.chips import find as find_chip
from utils.counts import forward_pass, positive, totals
from utils.decoder import Decoder, KVCache
from utils.graphs import capture
from utils.models import Shape
from utils.models import find as find_model
from utils.products import multiply
from utils.roofline import attainable_flop_per_s
from utils.timing import Timing, interleave, ratio
from utils.weights import random_decoder

# --- on paper: one setting of the sliders ----------------------------------------------------------------------------

BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)


@dataclass(frozen=True)
class Setting:
    """One decode step on one chip, at one position of the sliders, and the way to it from a batch of one."""

    chip: Chip
    dtype: str  # of the arithmetic
    batch: int
    price: float  # dollars an hour
    reading: idle.Reading  # the exact one
    path: tuple[tuple[float, float], ...]  # (FLOP per byte, FLOP/s) of smaller batches, and of this one

    @property
    def memory(self) -> float:
        """Share of the time, 0 to 1, in which the memory is at work."""
        return min(1.0, self.reading.bytes / self.reading.seconds / self.chip.read_bytes_per_s)


def setting(chip: str, model: str, weight_bytes: float, batch: int, context: int, price: float) -> Setting:
    """The exact reading of a decode step, by the names of chip and model.

    Arithmetic runs in what the chip multiplies two-byte weights in, the cache holds 16-bit numbers, and it is one chip
    whether or not the model fits: more of them divide bytes, arithmetic and time alike.

    Raises:
        ValueError: an unknown name, or a value out of range.
    """
    found, shape = find_chip(chip), find_model(model)
    dtype = idle.default_dtype(found)

    def read(users: int) -> idle.Reading:
        return idle.exact(found, dtype, shape, users, context, weight_bytes, price=(price, price))

    readings = [read(users) for users in (*(b for b in BATCHES if b < batch), batch)]
    path = tuple((r.flops / r.bytes, r.flop_per_s) for r in readings)
    return Setting(found, dtype, batch, price, readings[-1], path)


def chips_to_choose() -> list[str]:
    """Names of the chips whose arithmetic rate is known, for a slider; the chapter's chip first."""
    known = [chip.name for chip in CHIPS if {"bf16", "fp16", "fp32"} & set(chip.flop_per_s)]
    return sorted(known, key=lambda name: name != "H100 SXM")


# --- timed in turns with the device's own best -----------------------------------------------------------------------


@dataclass(frozen=True)
class Run:
    """Something that was timed, what it had to do, and the yardsticks of the same rounds."""

    flops: float
    bytes: float  # that it reads from memory
    timing: Timing
    product: Timing  # the square product
    product_flops: float
    read: Timing  # the plain read
    read_bytes: float
    one_row: Timing  # the plain product of one row
    one_row_bytes: float
    peak: float  # FLOP/s, the ceiling measured before
    roof: float  # bytes/s, the same

    @property
    def flop_per_s(self) -> float:
        """Arithmetic done in a second."""
        return self.flops / self.timing.median_s

    @property
    def bytes_per_s(self) -> float:
        """Bytes read in a second."""
        return self.bytes / self.timing.median_s

    @property
    def used(self) -> Share:
        """Share of the measured arithmetic ceiling."""
        return share_of_ceiling(self.flop_per_s, self.peak)

    @property
    def memory(self) -> Share:
        """Share of the measured bandwidth ceiling."""
        return share_of_ceiling(self.bytes_per_s, self.roof)

    @property
    def used_in_turn(self) -> float:
        """Share of what the square product did, round by round."""
        return self.flops / self.product_flops * ratio(self.product, self.timing)

    @property
    def plain_read(self) -> float:
        """What the plain read of these rounds reached, over the bandwidth ceiling measured before: has it moved?"""
        return self.read_bytes / self.read.median_s / self.roof

    @property
    def memory_in_turn(self) -> float:
        """Share of what the plain read did, round by round."""
        return self.bytes / self.read_bytes * ratio(self.read, self.timing)

    @property
    def one_row_in_turn(self) -> float:
        """Share of the plain read that the plain product of one row reached, round by round."""
        return self.one_row_bytes / self.read_bytes * ratio(self.read, self.one_row)


def foretold_use(ceilings: Ceilings, dtype: torch.dtype, flops: float, nbytes: float) -> float:
    """Share of the arithmetic that the two ceilings allow for that many FLOPs and bytes: the roofline over the peak."""
    peak = ceilings.flop_per_s[dtype_name(dtype)]
    return attainable_flop_per_s(flops / nbytes, peak, ceilings.read_bytes_per_s) / peak


def in_turns(
    work: Mapping[str, tuple[Callable[[], object], float, float]],
    ceilings: Ceilings,
    device: torch.device,
    dtype: torch.dtype,
    budget_s: float = 1.5,
    least: int = 5,
) -> dict[str, Run]:
    """Time calls in turns with the yardsticks: {name: (call, FLOPs, bytes)} to {name: run}."""
    name = dtype_name(dtype)
    width = ceilings.flop_size[name]
    a = torch.randn(width, width, device=device).to(dtype)
    parts = cycle(normals(room(device, LEAST_BYTES), torch.float32).view(4, -1))
    read_bytes = LEAST_BYTES / 4
    tiles = tiles_of(device, dtype)
    turns, x = cycle(tiles), torch.randn(1, tiles.shape[-1], device=device).to(dtype)

    def one_row() -> None:
        for _ in range(len(tiles) // 4):
            multiply(x, next(turns))

    calls = {key: call for key, (call, _, _) in work.items()}
    yardsticks = {
        "the square product": lambda: F.linear(a, a),
        "the plain read": lambda: next(parts).sum(),
        "the product of one row": one_row,
    }
    timed = interleave(calls | yardsticks, device, budget_s, least)
    product, read, single = (timed.pop(key) for key in yardsticks)
    single_bytes = len(tiles) // 4 * tiles[0].nbytes
    peak, roof = ceilings.flop_per_s[name], ceilings.read_bytes_per_s
    return {
        key: Run(*work[key][1:], timing, product, 2 * width**3, read, read_bytes, single, single_bytes, peak, roof)
        for key, timing in timed.items()
    }


def tiles_of(device: torch.device, dtype: torch.dtype) -> Tensor:
    """A gigabyte of square weights [tiles, width, width], wide enough to keep an accelerator busy."""
    width = 2048 if device.type == "cpu" else 8192
    return normals(room(device, LEAST_BYTES), dtype).view(-1, width, width)


def working_dtype(ceilings: Ceilings) -> torch.dtype:
    """The dtype in which a single row was measured to go through the most weights a second, of the chip's own."""
    return getattr(torch, ceilings.best_dtype)


def streaming_dtype(ceilings: Ceilings) -> torch.dtype:
    """The dtype whose one-row product comes nearest to the bandwidth roof; of near equals, the one of fewest bytes.

    Some processors convert 16-bit weights more slowly than their memory delivers them: what is to show that memory
    binds must be in a dtype in which it does, and in one that is not emulated.
    """
    rates = {name: ceilings.one_row_bytes_per_s[name] for name in native(ceilings.flop_per_s, "float32")}
    near = [getattr(torch, name) for name, rate in rates.items() if rate >= 0.85 * max(rates.values())]
    return min(near, key=lambda dtype: (dtype.itemsize, dtype != working_dtype(ceilings)))


# --- the real model: two passes over the same weights ----------------------------------------------------------------


def passes(model: Decoder, ceilings: Ceilings, prompt: int = 256) -> dict[str, Run]:
    """Prefill of a prompt and the decode step behind it, on one model with the same weights, timed in turns."""
    device, dtype = device_of(model), model.embed.weight.dtype
    cache = new_cache(model, prompt + 1)
    text = torch.ones(1, prompt + 1, dtype=torch.long, device=device)

    def prefill() -> None:
        cache.used = 0
        model(text[:, :prompt], cache)

    def decode() -> None:
        cache.used = prompt
        model(text[:, prompt:], cache)

    prefill()  # fills the cache
    width = dtype.itemsize
    counts = {
        "prefill": totals(forward_pass(model.shape, 1, prompt, 0, width, width, width)),
        "decode": totals(forward_pass(model.shape, 1, 1, prompt, width, width, width)),
    }
    work = {"prefill": capture(prefill, device), "decode": capture(decode, device)}
    calls = {
        key: (call, counts[key].flops, counts[key].weight_bytes + counts[key].kv_bytes) for key, call in work.items()
    }
    return in_turns(calls, ceilings, device, dtype)


# --- one tile, many rows ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Tile:
    """One tile of weights [outer, inner], multiplied with ever more rows; every call works on fresh tiles."""

    outer: int
    inner: int
    bytes_per_weight: int
    runs: dict[int, Run]  # by rows, of one tile each

    @property
    def bytes(self) -> int:
        """Of its weights."""
        return self.outer * self.inner * self.bytes_per_weight

    def seconds(self, rows: int) -> float:
        """What that many rows took."""
        return self.runs[rows].timing.median_s

    @property
    def knee(self) -> float:
        """Rows at which arithmetic would take as long as one row does, at the speed of the largest product."""
        most = max(self.runs)
        return most * ratio(self.runs[1].timing, self.runs[most].timing)

    @property
    def ridge_rows(self) -> float:
        """Rows at which the yardsticks of the same rounds meet: the ridge, in rows instead of FLOP per byte."""
        run = self.runs[1]
        per_s = run.product_flops / run.read_bytes * ratio(run.read, run.product)  # FLOP per byte
        return per_s * self.bytes_per_weight / 2

    @property
    def foretold_knee(self) -> float:
        """Rows of the ridge, and more where the plain product of one row stays below the plain read."""
        return self.ridge_rows / self.runs[1].one_row_in_turn

    def floor_s(self, rows: int) -> float:
        """The least time of that many rows: bytes or arithmetic, whichever takes longer.

        The roofs are the ceilings, or the yardsticks where these were faster this time.
        """
        run = self.runs[1]
        bytes_per_s = max(run.roof, run.read_bytes / run.read.median_s)
        flop_per_s = max(run.peak, run.product_flops / run.product.median_s)
        return max(self.bytes / bytes_per_s, 2 * rows * self.outer * self.inner / flop_per_s)


def rows_to_time(ceilings: Ceilings, dtype: torch.dtype) -> list[int]:
    """1, 2, 4, ... to 512, and further where the ridge lies high, so that the rise can be seen."""
    ridge = ceilings.flop_per_s[dtype_name(dtype)] / ceilings.read_bytes_per_s * dtype.itemsize / 2
    rows = [2**k for k in range(10)]
    while rows[-1] < 4 * ridge and rows[-1] < 4096:
        rows.append(2 * rows[-1])
    return rows


SAMPLE_S = 0.01  # of one call: several turns of the scheduler on a busy machine


def time_tile(
    ceilings: Ceilings, device: torch.device, dtype: torch.dtype, rows: Iterable[int], budget_s: float = 2.0
) -> Tile:
    """Time one tile of weights with each number of rows, in turns.

    The tile is the next one of a gigabyte of them each time: read again and again, it would stay in the cache. A call
    works on so many tiles that few rows take about as long as many: something else on the machine then hits them
    alike, and on an accelerator launching a kernel is hidden behind the one before.
    """
    tiles = tiles_of(device, dtype)
    turns, width = cycle(tiles), tiles.shape[-1]
    peak, roof = ceilings.flop_per_s[dtype_name(dtype)], ceilings.read_bytes_per_s

    def call(x: Tensor, at_once: int) -> None:
        for _ in range(at_once):
            multiply(x, next(turns))

    work, counts = {}, {}
    for count in rows:
        x = torch.randn(count, width, device=device).to(dtype)
        flops = 2 * count * width**2
        at_once = counts[count] = math.ceil(SAMPLE_S / max(tiles[0].nbytes / roof, flops / peak))
        work[str(count)] = (partial(call, x, at_once), at_once * flops, at_once * tiles[0].nbytes)
    timed = in_turns(work, ceilings, device, dtype, budget_s)
    return Tile(width, width, dtype.itemsize, {int(key): _of_one(run, counts[int(key)]) for key, run in timed.items()})


def _of_one(run: Run, count: int) -> Run:
    """A run of `count` equal things, as a run of one of them."""
    timing = Timing(tuple(s / count for s in run.timing.samples_s))
    return replace(run, flops=run.flops / count, bytes=run.bytes / count, timing=timing)


# --- where 140 GB lives ----------------------------------------------------------------------------------------------

HEAD_PARTS = 8  # the output head is timed by an eighth of its rows


@dataclass(frozen=True)
class LayerRun:
    """One layer of a large shape (or a narrower one in its place), and part of its output head, timed."""

    layer: Run
    head: Run
    layers: int  # how many of them the whole model has
    divided_by: int  # all widths were divided by this, so that it fits into memory; 1: the layer as it is

    @property
    def step_s(self) -> float:
        """A whole decode step: all layers and the whole head, at full width, in seconds.

        A layer's weights shrink with the square of its widths. The head's do with one of them: the vocabulary stays.
        """
        layers_s = self.layers * self.layer.timing.median_s
        return self.divided_by**2 * layers_s + self.divided_by * HEAD_PARTS * self.head.timing.median_s


def narrowed(shape: Shape, divide_by: int) -> Shape:
    """One layer of the shape with every width divided, and an eighth of its output head.

    Halving every width leaves a quarter of the layer's weights; the width of one head stays.
    """
    return replace(
        shape, name=f"one layer of {shape.name}", layers=1, hidden=shape.hidden // divide_by,
        heads=shape.heads // divide_by, kv_heads=shape.kv_heads // divide_by, ffn=shape.ffn // divide_by,
        vocab=shape.vocab // HEAD_PARTS, tied=True,
    )  # fmt: skip


def divisor(shape: Shape, dtype: torch.dtype, free_bytes: float) -> int:
    """By how much the widths have to be divided (1, 2, 4 or 8) for the layer to fit beside the yardsticks.

    Raises:
        MemoryError: not even an eighth of the widths fits.
    """
    for by in (1, 2, 4, 8):
        if narrowed(shape, by).parameters * dtype.itemsize + 1.5 * LEAST_BYTES <= 0.85 * free_bytes:
            return by
    raise MemoryError(f"{free_bytes / 1e9:.1f} GB are free: too little even for a narrow layer. Close something")


def time_layer(shape: Shape, ceilings: Ceilings, device: torch.device, dtype: torch.dtype) -> LayerRun:
    """One token through one layer of the shape, and through part of its output head, with random weights."""
    by = divisor(shape, dtype, devices.free_bytes(device))
    part = narrowed(shape, by)
    model = random_decoder(part, device, dtype)
    cache = KVCache(part, 1, 1, device, dtype)
    x = torch.randn(1, 1, part.hidden, device=device).to(dtype)
    at_once = 1 if device.type == "cpu" else 4  # on a GPU, later launches pass while earlier kernels run

    def layer() -> None:
        for _ in range(at_once):
            model.layers[0](x, (cache.cos, cache.sin), cache, 0)

    def head() -> None:
        for _ in range(at_once):
            model.head(x)

    weights = {"layer": part.layer_parameters, "head": part.vocab * part.hidden}
    work = {
        key: (call, at_once * 2 * weights[key], at_once * weights[key] * dtype.itemsize)
        for key, call in (("layer", layer), ("head", head))
    }
    runs = {key: _of_one(run, at_once) for key, run in in_turns(work, ceilings, device, dtype).items()}
    return LayerRun(runs["layer"], runs["head"], shape.layers, by)


def layer_in_words(run: LayerRun, shape: Shape) -> str:
    """What was timed: the layer itself, or what stands in for it, and why."""
    size = f"{run.layer.bytes / 1e9:.2f} GB"
    if run.divided_by == 1:
        return f"one layer of {shape.name}, as it is: {size}"
    return f"a layer of {shape.name} with all widths divided by {run.divided_by}, for want of memory: {size}"


def time_whole(shape: Shape, device: torch.device, dtype: torch.dtype) -> Timing | None:
    """One decode step of the whole model, where an accelerator's memory holds it; None elsewhere."""
    needed = shape.parameters * dtype.itemsize
    if device.type == "cpu" or needed + LEAST_BYTES > devices.free_bytes(device):
        return None
    model = random_decoder(shape, device, dtype)
    cache = new_cache(model, 1)
    token = torch.ones(1, 1, dtype=torch.long, device=device)

    def step() -> None:
        cache.used = 0
        model(token, cache)

    return interleave({"step": capture(step, device)}, device, 2.0)["step"]


# --- the monitor -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Monitored:
    """A stretch of one-row products as three instruments see it; each a share, 0 to 1."""

    busy: float  # of the time, something of ours was running: what a monitor shows
    monitor: str  # which one it was
    memory: Share  # of the bandwidth ceiling
    used: Share  # of the arithmetic ceiling


def watch(ceilings: Ceilings, device: torch.device, dtype: torch.dtype, seconds: float = 1.5) -> Monitored:
    """Run one-row products back to back, as decode does, and read the monitor meanwhile.

    On a CPU the monitor is the operating system's account of this process. On a CUDA device it is the driver's
    counter where the package that reads it is installed; without it, and on other accelerators, the device counts as
    running from the first product to the last, because the next one is always waiting.
    """
    width = 2048 if device.type == "cpu" else 8192
    tiles = normals(room(device, LEAST_BYTES), dtype).view(-1, width, width)
    x = torch.randn(1, width, device=device).to(dtype)
    for tile in tiles:  # warm
        multiply(x, tile)
    devices.synchronize(device)
    count, ran = 0, -time.process_time()
    start = time.perf_counter()
    while time.perf_counter() - start < seconds:
        for tile in tiles:
            multiply(x, tile)
        count += len(tiles)
        if device.type != "cpu" and count % (64 * len(tiles)) == 0:
            devices.synchronize(device)  # the queue of launches has an end
    counter = _driver_counter(device)
    devices.synchronize(device)
    took = time.perf_counter() - start
    ran += time.process_time()
    if device.type == "cpu":
        busy, monitor = ran / took / torch.get_num_threads(), "the system's account of this process"
    else:
        busy, monitor = counter
    per_s = count / took
    peak = ceilings.flop_per_s[dtype_name(dtype)]
    return Monitored(
        busy=min(1.0, busy),
        monitor=monitor,
        memory=share_of_ceiling(per_s * tiles[0].nbytes, ceilings.read_bytes_per_s),
        used=share_of_ceiling(per_s * 2 * width**2, peak),
    )


def _driver_counter(device: torch.device) -> tuple[float, str]:
    """The driver's "GPU utilisation" of the last moment, as a share, and who says so."""
    if device.type == "cuda":
        try:
            return torch.cuda.utilization(device) / 100, "the driver's counter"
        except Exception:  # the package is not installed, or the driver does not tell: several kinds
            pass
    return 1.0, "no counter can be read here: the next product was always waiting"


# --- reading speed ---------------------------------------------------------------------------------------------------


def words_per_minute(tokens_per_s: float, text: str, tokens: int) -> float:
    """Words a minute at which a text of that many tokens appears.

    Raises:
        ValueError: a rate or a count that is not positive, or a text without words.
    """
    positive("tokens per second", tokens_per_s)
    positive("tokens", tokens)
    words = len(text.split())
    positive("words", words)
    return 60 * tokens_per_s * words / tokens


# --- verdicts: what the notebook says of the numbers -----------------------------------------------------------------


def size_cancels(readings: Iterable[idle.Reading]) -> bool:
    """Whether the same share is used whatever the model."""
    shares = [reading.used for reading in readings]
    return max(shares) - min(shares) < 1e-6 * max(shares)


def mostly_idle(run: Run) -> bool:
    """Whether more than half of the arithmetic that the device can do was not done.

    By the ceiling measured before, as printed: a busy machine slows many threads that wait for each other
    more than it slows a read of memory, and then the square product of the same rounds is no yardstick.
    """
    return run.used < 0.5


def prompt_uses_more(prefill: Run, decode: Run, times: float = 2) -> bool:
    """Whether the pass over a prompt used the arithmetic so many times as much as the step of one token."""
    return prefill.used_in_turn > times * decode.used_in_turn


def bytes_set_the_floor(run: Run) -> bool:
    """Whether a step took at least two thirds of the time in which a plain read takes its bytes.

    What lies in a cache can be read a little faster than memory, and some kernels read faster than a plain sum.
    """
    return run.memory_in_turn < 1.5


def rows_ride(tile: Tile, rows: int = 64) -> bool:
    """Whether so many rows together took less than half of what they would have taken one by one.

    Far less on most machines; a processor with little arithmetic for its bandwidth has its ridge at a few rows.
    """
    return ratio(tile.runs[rows].timing, tile.runs[1].timing) < rows / 2


def rises_in_the_end(tile: Tile) -> bool:
    """Whether the largest number of rows took clearly longer than one."""
    return ratio(tile.runs[max(tile.runs)].timing, tile.runs[1].timing) > 1.5


def knee_as_foretold(tile: Tile, factor: float = 3) -> bool:
    """Whether the knee lies at the rows foretold from the ridge and the plain product of one row, within a factor."""
    return 1 / factor < tile.knee / tile.foretold_knee < factor


def streams(run: Run) -> bool:
    """Whether bytes came at more than half of the rate that a plain product of one row reached, round by round.

    On most machines that is the bandwidth. On some processors the stock product stays far below it, and no layer made
    of such products reads faster.
    """
    return run.memory_in_turn > run.one_row_in_turn / 2


def monitor_misleads(seen: Monitored) -> bool:
    """Whether the monitor showed more than twice the share of the arithmetic that was at work."""
    return seen.busy > 2 * seen.used


def sells_more_than_asked(chips: Sequence[Chip], times: float = 10) -> bool:
    """Whether every chip can do so many times the operations for each byte that one token asks for.

    A token does two operations with each weight, of as many bytes as the chip's arithmetic takes.
    """
    dtypes = [idle.default_dtype(chip) for chip in chips]
    return all(chip.ridge(d) > times * 2 / DTYPE_BYTES[d] for chip, d in zip(chips, dtypes, strict=True))
