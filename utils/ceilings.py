"""Measure this device's two ceilings: bytes per second and FLOP per second, by dtype.

Bandwidth is the best of several plain kernels, so that the roof does not depend on the kernel judged by it:
a sum (reads), a copy (reads and writes) and the decoder's product of one row with large matrices (reads).
Arithmetic is the best of square matrix products.
"""

import itertools
import math
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

from utils import device as devices
from utils.products import multiply
from utils.timing import Timing, interleave, ratio, stretched, time_call

Key = TypeVar("Key")  # a dtype, or its name

DTYPES = (torch.float32, torch.bfloat16, torch.float16)  # where two are equally fast, the earlier is picked

LEAST_BYTES = 1 << 30  # the working set of the bandwidth roof is at least this ...
LEAST_CACHES = 4  # ... and this many times the last-level cache
SETTLED = 0.05  # doubling the working set changes the rate by no more: the cache has no part in it
TOLERANCE = 0.05  # a share this far over a measured ceiling can still be noise
DRIFT = 0.10  # a ceiling that moved further is said
TIE = 0.20  # rates this close are equal: one of them leads today, another tomorrow

READ_S = 1.0  # time budgets: the bandwidth kernels of one dtype together,
SIZE_S = 0.1  # one size of square product,
BEST_S = 0.7  # the best of them, again,
CALL_S = 0.05  # and about the longest single call where its work can be divided
NEXT_SIZE_S = 0.25  # a square product that would take longer is left out
WARM_S = 1.0  # accelerators clock down when idle

PARTS = 1 + 4 * len(DTYPES)  # of a measurement
BLOCK = 1 << 22  # random normals made once and repeated: making gigabytes of them would take longer than reading


@dataclass(frozen=True)
class Ceilings:
    """What this device was measured to do at most. Dtypes go by torch's names, e.g. "bfloat16"."""

    device_name: str
    read_bytes_per_s: float  # the bandwidth roof, and
    read_how: str  # the kernel that reached it: "sum", "copy", "one row, float32", ...
    working_set_bytes: int
    one_row_bytes_per_s: dict[str, float]  # weights read by a product of one row, as decode does it
    flop_per_s: dict[str, float]  # best square product, and
    flop_size: dict[str, int]  # its width
    best_dtype: str  # most parameters per second in the product of one row, of those that are not emulated
    notes: tuple[str, ...]  # what a reader should know before trusting the figures; usually empty


class Read(NamedTuple):
    """A kernel of the bandwidth roof: the bytes that one call moves, and how long calls took."""

    moved_bytes: int
    timing: Timing

    @property
    def per_s(self) -> float:
        """Bytes per second, in a quarter of the runs or more: other programs take bandwidth, none adds to it."""
        return self.moved_bytes / self.timing.q1_s


class Product(NamedTuple):
    """The product of two n x n matrices, and how long it took."""

    n: int
    timing: Timing

    @property
    def per_s(self) -> float:
        """FLOP per second of the median run; single runs reach clock rates that no longer work can hold."""
        return 2 * self.n**3 / self.timing.median_s


_measured: dict[tuple, Ceilings] = {}


def dtype_name(dtype: torch.dtype) -> str:
    """Torch's own name of a dtype, "float32" for torch.float32."""
    return str(dtype).removeprefix("torch.")


# --- the two ceilings ---------------------------------------------------------------------------------


def measure(device: torch.device, told: Callable[[str], object] = lambda part: None) -> Ceilings:
    """Both ceilings of a device, measured once in a process for each number of threads and each factor of `stretch`.

    `told` is called with the name of each part before it is measured, at most PARTS times, for a progress
    bar. Takes under half a minute on two CPU cores. An interrupted measurement keeps nothing.
    """
    key = (str(device), torch.get_num_threads(), stretched())
    if key not in _measured:
        _measured[key] = _freeing(_measure, device, told)
    return _measured[key]


def _measure(device: torch.device, told: Callable[[str], object]) -> Ceilings:
    dtypes = [dtype for dtype in DTYPES if _runs(device, dtype)]
    notes = [f"{dtype_name(d)} does not run on this device" for d in DTYPES if d not in dtypes]
    _warm_clocks(device)

    told("size of the working set")
    nbytes, note = _working_set_bytes(device)
    notes += [note] if note else []

    # Other programs take a machine for seconds at a time: everything is looked at twice, with time between.
    memory = room(device, nbytes)
    reads: dict[str, Read] = {}
    products: dict[torch.dtype, Product] = {}
    for look, dtype in itertools.product(("", ", again"), dtypes):
        told(f"bytes per second, {dtype_name(dtype)}{look}")
        for how, read in _time_reads(device, dtype, memory, READ_S).items():
            reads[how] = _faster(read, reads.get(how))
        told(f"FLOP per second, {dtype_name(dtype)}{look}")
        products[dtype] = _faster(_best_product(device, dtype), products.get(dtype))

    read_how = max(reads, key=lambda how: reads[how].per_s)
    for what, timing in [(read_how, reads[read_how].timing)] + [
        (f"product of {dtype_name(dtype)} matrices", product.timing) for dtype, product in products.items()
    ]:
        if timing.noisy:
            notes.append(f"the machine was busy when a ceiling was measured ({what}): {timing}")

    one_row = {dtype: reads[f"one row, {dtype_name(dtype)}"].per_s for dtype in dtypes}
    flop_per_s = {dtype: product.per_s for dtype, product in products.items()}
    return Ceilings(
        device_name=devices.name(device),
        read_bytes_per_s=reads[read_how].per_s,
        read_how=read_how,
        working_set_bytes=nbytes,
        one_row_bytes_per_s={dtype_name(d): rate for d, rate in one_row.items()},
        flop_per_s={dtype_name(d): rate for d, rate in flop_per_s.items()},
        flop_size={dtype_name(d): product.n for d, product in products.items()},
        best_dtype=dtype_name(_best_dtype(one_row, flop_per_s)),
        notes=tuple(notes),
    )


def _faster(new: Read | Product, old: Read | Product | None) -> Read | Product:
    return new if old is None or new.per_s > old.per_s else old


def _runs(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether the device multiplies in this dtype at all; how fast, the measurement tells."""
    try:
        F.linear(torch.ones(1, 8, device=device, dtype=dtype), torch.ones(8, 8, device=device, dtype=dtype))
    except (RuntimeError, TypeError):
        return False
    return True


def _best_dtype(one_row: dict[torch.dtype, float], flop_per_s: dict[torch.dtype, float]) -> torch.dtype:
    """The dtype in which one row goes through the most parameters a second: bytes/s over the bytes of one.

    A decode step is little else. One that is emulated is left out. Where two are about equally fast, the faster
    products decide, and where that is a tie too, the order of DTYPES.
    """

    def best(rates: dict[torch.dtype, float]) -> list[torch.dtype]:
        return [dtype for dtype, rate in rates.items() if rate >= (1 - TIE) * max(rates.values())]

    fastest = best({dtype: one_row[dtype] / dtype.itemsize for dtype in native(flop_per_s, torch.float32)})
    return min(best({dtype: flop_per_s[dtype] for dtype in fastest}), key=DTYPES.index)


def native(flop_per_s: Mapping[Key, float], float32: Key) -> list[Key]:
    """The dtypes whose square products are as fast as float32's, or faster; `float32` is the key of that one.

    The others are emulated, their numbers converted first: bfloat16 on a T4, float16 on many CPUs. One row of them
    may be quick all the same; many rows are not.
    """
    return [dtype for dtype, rate in flop_per_s.items() if rate >= (1 - TIE) * flop_per_s[float32]]


def _warm_clocks(device: torch.device) -> None:
    """Keep an accelerator busy until its clocks have risen."""
    if device.type != "cpu":
        a = torch.randn(2048, 2048, device=device)
        time_call(lambda: F.linear(a, a), device, budget_s=WARM_S)


# --- bytes per second ---------------------------------------------------------------------------------


def _working_set_bytes(device: torch.device) -> tuple[int, str]:
    """Bytes to stream so that the rate is the memory's, and a note if memory is too short to be sure."""
    least = max(LEAST_BYTES, LEAST_CACHES * (devices.cache_bytes(device) or 0))
    most = devices.free_bytes(device) // 2
    nbytes, settled = settle(least, most, lambda n: _doubling_changes_rate(device, n))
    if nbytes < least:
        return nbytes, (
            f"free memory allows a working set of {nbytes / 1e9:.2f} GB only, under the {least / 1e9:.2f} GB "
            "that rule out the cache: the bandwidth roof may be too high"
        )
    if not settled:
        return nbytes, (
            f"the working set stayed at {nbytes / 1e9:.2f} GB, for want of free memory to see whether the "
            "rate falls with twice as much"
        )
    return nbytes, ""


def settle(least: int, most: int, change: Callable[[int], float]) -> tuple[int, bool]:
    """The first of `least`, 2 `least`, 4 `least`, ... whose doubling does not change the rate, and True.

    `change(n)` is the relative change of the rate from n to 2 n bytes. If 2 n exceeds `most`, the size
    reached by then (or `most`, if that is less) and False.
    """
    nbytes = least
    while 2 * nbytes <= most:
        if abs(change(nbytes)) <= SETTLED:
            return nbytes, True
        nbytes *= 2
    return min(nbytes, most), False


def _doubling_changes_rate(device: torch.device, nbytes: int) -> float:
    data = normals(room(device, 2 * nbytes), torch.float32)
    half = data[: len(data) // 2]
    timed = interleave({"half": half.sum, "all": data.sum}, device, READ_S / 2)
    return 2 / ratio(timed["all"], timed["half"]) - 1


def room(device: torch.device, nbytes: float) -> Tensor:
    """Memory for `normals`: about so many bytes, never less than 4 blocks.

    Taken once and filled for one dtype after the other: to hand out a gigabyte takes a system longer than to read it.
    """
    block_bytes = BLOCK * torch.float32.itemsize
    return torch.empty(max(4, round(nbytes / block_bytes)) * block_bytes, dtype=torch.uint8, device=device)


def normals(memory: Tensor, dtype: torch.dtype) -> Tensor:
    """The memory, filled with random normals of a dtype. Zeros would run faster."""
    data = memory.view(dtype)
    data.view(-1, BLOCK).copy_(torch.randn(BLOCK, device=memory.device).to(dtype))
    return data


def _time_reads(device: torch.device, dtype: torch.dtype, memory: Tensor, budget_s: float) -> dict[str, Read]:
    """The kernels of the bandwidth roof in one dtype, timed in turns on the given memory."""
    data = normals(memory, dtype)
    half = len(data) // 2
    weights = _square_weights(data)
    x = torch.randn(1, weights.shape[-1], device=device).to(dtype)

    name = dtype_name(dtype)
    calls, moved = {}, {}
    if dtype == torch.float32:  # a copy moves bytes, whatever they mean, and sums of others are no faster
        calls = {"sum": data.sum, "copy": lambda: data[:half].copy_(data[half : 2 * half])}
        moved = {"sum": data.nbytes, "copy": 2 * half * dtype.itemsize}
    for how, call_on in {
        f"one row, {name}": lambda w: multiply(x, w),  # weights [out, in], as nn.Linear keeps them
        f"one row, {name}, transposed": lambda w: x[:, : len(w)] @ w,  # weights [in, out]
    }.items():
        call, count = _in_turn(call_on, weights, device)
        if count or "transposed" not in how:  # a layout without a kernel made for it may take seconds
            calls[how], moved[how] = call, max(1, count) * weights[0].nbytes
    timed = interleave(calls, device, budget_s, least=3, before=_flush(device))
    return {how: Read(moved[how], timed[how]) for how in calls}


def _dtype_of(read_how: str) -> torch.dtype:
    return next((d for d in DTYPES if dtype_name(d) in read_how), torch.float32)


def _square_weights(data: Tensor) -> Tensor:
    """The data as square matrices, at least four of them, wide enough for a GPU where the data allow."""
    width = 8192 if len(data) >= 4 * 8192**2 else 2048
    return data[: len(data) // width**2 * width**2].view(-1, width, width)


def _in_turn(
    call_on: Callable[[Tensor], Tensor], weights: Tensor, device: torch.device
) -> tuple[Callable[[], None], int]:
    """A call that multiplies with the next few of the weights, and how many fit into CALL_S (0: not even one).

    It takes one at least. The next call goes on where the last one ended, so that weights have left the cache
    when they come again.
    """
    turns = itertools.cycle(weights)
    eighth = weights[0][: len(weights[0]) // 8]
    probe_s = 8 * time_call(lambda: call_on(eighth), device, budget_s=CALL_S / 10, least=1).median_s
    count = min(len(weights), int(CALL_S / probe_s))

    def call() -> None:
        for _ in range(max(1, count)):
            call_on(next(turns))

    return call, count


def _flush(device: torch.device) -> Callable[[], object] | None:
    """Something to run before each sample that leaves nothing of the working set in a GPU's L2 cache.

    It reads, because a cache full of written lines would have to write them back during the sample.
    """
    cache = devices.cache_bytes(device) if device.type == "cuda" else None
    return torch.ones(LEAST_CACHES * cache // 4, device=device).sum if cache else None


# --- FLOP per second ----------------------------------------------------------------------------------


def _best_product(device: torch.device, dtype: torch.dtype) -> Product:
    """The fastest product of two square matrices.

    It is timed anew, and longer than in the search: the best of several short timings is a lucky one.
    """
    return _time_product(device, dtype, _best_size(device, dtype), BEST_S)


def _time_product(device: torch.device, dtype: torch.dtype, n: int, budget_s: float) -> Product:
    a, b = (torch.randn(n, n, device=device).to(dtype) for _ in range(2))
    return Product(n, time_call(lambda: F.linear(a, b), device, budget_s, least=3))


def _best_size(device: torch.device, dtype: torch.dtype) -> int:
    """The n of the fastest product of two n x n matrices, n from 256 doubled while time and memory allow."""

    def grows(last: Product) -> bool:
        fits = 3 * (2 * last.n) ** 2 * dtype.itemsize <= devices.free_bytes(device) // 2
        return fits and last.n < 16384 and 8 * last.timing.median_s <= NEXT_SIZE_S

    tried = [_time_product(device, dtype, 256, SIZE_S)]
    while grows(tried[-1]):
        tried.append(_time_product(device, dtype, 2 * tried[-1].n, SIZE_S))
    return max(tried, key=lambda product: product.per_s).n


# --- using them ---------------------------------------------------------------------------------------


class Share(float):
    """A share of a measured ceiling: a float that knows when it cannot be true."""

    @property
    def error(self) -> bool:
        """Whether it lies so far over the ceiling that something was measured wrongly."""
        return self > 1 + TOLERANCE

    def __str__(self) -> str:
        """The share in percent, with the reason to distrust it."""
        return f"{self:.0%}" + (" of a ceiling: an error of measurement" if self.error else "")


def share_of_ceiling(achieved: float, ceiling: float) -> Share:
    """Which share of a measured ceiling was achieved, both in the same unit (bytes/s or FLOP/s).

    Nothing runs faster than the fastest there is: over 105 % the share's `error` is True, and it is no
    result (the timer did not wait, the data lay in a cache, or the ceiling is another dtype's). Raises
    ValueError for a rate below zero, a ceiling that is not positive, or one that is not a number.
    """
    if not (achieved >= 0 and 0 < ceiling < math.inf):
        raise ValueError(f"A share needs a rate and a positive ceiling, not {achieved} of {ceiling}.")
    return Share(achieved / ceiling)


def drift(ceilings: Ceilings, device: torch.device) -> float:
    """How far the bandwidth roof has moved since it was measured: -0.2 if it has lost a fifth.

    Measures the same kernel again, in turns with the others, and once more before it reports a large change.
    """

    def again(device: torch.device) -> dict[str, Read]:
        memory = room(device, ceilings.working_set_bytes)
        return _time_reads(device, _dtype_of(ceilings.read_how), memory, READ_S)

    moved = math.inf
    for _ in range(2):
        reads = _freeing(again, device)
        moved = min(moved, reads[ceilings.read_how].per_s / ceilings.read_bytes_per_s - 1, key=abs)
        if abs(moved) <= DRIFT:
            break
    return moved


def drift_in_words(moved: float) -> str:
    """One line on a drift: whether figures taken at the two ends may be compared."""
    if abs(moved) <= DRIFT:
        return f"The bandwidth roof held: {moved:+.0%} since it was measured."
    return (
        f"The bandwidth roof moved by {moved:+.0%} since it was measured (battery, heat, or other programs): "
        "compare figures from before and after with care, or restart and measure again."
    )


def still_the_same(moved: float, factor: float = 3.0) -> bool:
    """Whether a ceiling measured again, which has moved by the share `moved`, is the same within a factor."""
    return 1 / factor < 1 + moved < factor


def cache_label(nbytes: float, cache: int | None) -> str:
    """Where data of this size lie when they are read again and again; a cached rate may exceed the roof."""
    if cache is None:
        return "cache size unknown"
    return "in cache" if nbytes < cache else "partly in cache" if nbytes < LEAST_CACHES * cache else "in memory"


def _freeing(work: Callable, device: torch.device, *args: object) -> object:
    """Run a measurement and let go of its gigabytes, even if it is interrupted.

    A notebook keeps the last traceback, and the frames in it would keep their variables.
    """
    try:
        return work(device, *args)
    except BaseException as error:
        traceback.clear_frames(error.__traceback__)
        raise
    finally:
        devices.empty_cache(device)
