"""Notebook 00, your machine: what it is, its two ceilings, the dtype it decodes best in, and the ridge.

Functions here look at the machine or time it and return plain numbers; `machine_figures` draws them. The predicates at
the end turn measured numbers into the verdicts that the notebook prints.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from utils import device as devices
from utils.ceilings import (
    DTYPES,
    LEAST_CACHES,
    PARTS,
    TIE,
    Ceilings,
    Share,
    dtype_name,
    measure,
    native,
    normals,
    room,
    share_of_ceiling,
)
from utils.chips import CHIPS, DATASHEET_DTYPE, Chip, from_device_name
from utils.plots import in_units
from utils.products import multiply
from utils.timing import Timing, interleave, ratio

# --- what is here ----------------------------------------------------------------------------------------------------

KINDS = {"cuda": "an NVIDIA GPU (CUDA)", "mps": "an Apple GPU (MPS)", "cpu": "a CPU"}


@dataclass(frozen=True)
class Found:
    """What the device is, and what of it this process may use. None: nothing tells."""

    name: str
    kind: str  # "cuda", "mps" or "cpu"
    missing: tuple[str, ...]  # kinds that are not here
    threads: int  # CPU threads that this process may use, and
    host_threads: int  # that the machine has
    free_bytes: int  # memory of the device that this process may still take,
    total_bytes: int  # that it could have if nothing else ran, and
    host_bytes: int | None  # that the machine has, for a CPU
    cache_bytes: int | None  # last-level cache
    chips: tuple[Chip, ...]  # what the catalogue knows under this name: none, one, or several that share it


def look(device: torch.device) -> Found:
    """What there is to know before anything is measured."""
    here = {name.split(":")[0] for name in devices.available()}
    name = devices.name(device)
    return Found(
        name=name,
        kind=device.type,
        missing=tuple(kind for kind in KINDS if kind not in here),
        threads=devices.threads(),
        host_threads=os.cpu_count() or 1,
        free_bytes=devices.free_bytes(device),
        total_bytes=devices.total_bytes(device),
        host_bytes=_host_bytes() if device.type == "cpu" else None,
        cache_bytes=devices.cache_bytes(device),
        chips=known_chips(device),
    )


def known_chips(device: torch.device) -> tuple[Chip, ...]:
    """The chips of the catalogue that the device can be. It lists no CPUs: an Apple chip's rate is that of its GPU."""
    return () if device.type == "cpu" else tuple(from_device_name(devices.name(device)))


def _host_bytes() -> int | None:
    """Memory of the whole machine; a container may get less of it."""
    names = getattr(os, "sysconf_names", {})  # Windows has none
    if "SC_PHYS_PAGES" not in names:
        return None
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def in_words(found: Found) -> str:
    """What was found and what was not, a line each."""
    memory = f"{found.free_bytes / 1e9:.1f} GB free for this process, of {found.total_bytes / 1e9:.1f} GB it could have"
    if found.host_bytes is not None:
        memory += f" and {found.host_bytes / 1e9:.1f} GB in the machine"
    cache = "this system does not tell" if found.cache_bytes is None else in_units(found.cache_bytes, "B")
    lines = {
        "device": f"{found.name}, {KINDS[found.kind]}",
        "not found": ", ".join(KINDS[kind] for kind in found.missing) or "nothing is missing",
        "CPU threads": f"{found.threads} for this process, of {found.host_threads} in the machine",
        "memory": memory,
        "last-level cache": cache,
        "vendor peak": vendor_peak(found.chips),
    }
    return "\n".join(f"{what + ':':18}{text}" for what, text in lines.items())


def vendor_peak(chips: Sequence[Chip]) -> str:
    """What the catalogue says of the device, never a guess."""
    if not chips:
        return "not in the catalogue"
    return "; or ".join(
        f"{in_units(chip.read_bytes_per_s, 'B/s')}"
        + "".join(
            f", {in_units(chip.flop_per_s[dtype], 'FLOP/s')} in {dtype}"
            for dtype in DATASHEET_DTYPE.values()
            if dtype in chip.flop_per_s
        )
        + f" ({chip.name}, source: {chip.source})"
        for chip in chips
    )


# --- the ceilings ----------------------------------------------------------------------------------------------------


def measure_ceilings(device: torch.device) -> Ceilings:
    """Both ceilings, measured once in a process, behind a progress bar that is gone afterwards."""
    from tqdm.auto import tqdm  # here, because the command line does without it

    with tqdm(total=PARTS, desc="measuring", leave=False) as bar:

        def told(part: str) -> None:
            bar.set_description_str(part)
            bar.update()

        roofs = measure(device, told)
    if hasattr(bar, "container"):  # a widget: closed, it still leaves its text in a saved notebook
        from IPython.display import clear_output

        clear_output()
    return roofs


def against_vendor(ceilings: Ceilings, chips: Sequence[Chip]) -> str:
    """The measured ceilings as shares of the datasheet's, or the line that there is none."""
    if len(chips) != 1:
        return f"vendor peak: {'not in the catalogue' if not chips else 'one of several chips of this name'}"
    (chip,) = chips
    lines = [f"{ceilings.read_bytes_per_s / chip.read_bytes_per_s:.0%} of the vendor's bandwidth"]
    for dtype, rate in ceilings.flop_per_s.items():
        peak = chip.flop_per_s.get(DATASHEET_DTYPE[dtype])
        lines.append(f"{rate / peak:.0%} of its {dtype} peak" if peak else f"no {dtype} peak in the catalogue")
    return ", ".join(lines)


@dataclass(frozen=True)
class Width:
    """What one dtype does on this machine."""

    dtype: str
    itemsize: int  # bytes of one number
    one_row_bytes_per_s: float
    share: Share  # of the bandwidth roof
    flop_per_s: float  # of the best square product

    @property
    def parameters_per_s(self) -> float:
        """How many parameters one row goes through in a second: what decode is made of."""
        return self.one_row_bytes_per_s / self.itemsize


def widths(ceilings: Ceilings) -> list[Width]:
    """The dtypes that run here, in the order in which a tie is decided."""
    return [
        Width(
            name,
            dtype.itemsize,
            ceilings.one_row_bytes_per_s[name],
            share_of_ceiling(ceilings.one_row_bytes_per_s[name], ceilings.read_bytes_per_s),
            ceilings.flop_per_s[name],
        )
        for dtype in DTYPES
        if (name := dtype_name(dtype)) in ceilings.flop_per_s
    ]


def own_formats(rows: Sequence[Width]) -> list[Width]:
    """The dtypes that are calculated as fast as float32, or faster; the others are emulated."""
    names = native({row.dtype: row.flop_per_s for row in rows}, "float32")
    return [row for row in rows if row.dtype in names]


def widths_table(rows: Sequence[Width], picked: str) -> str:
    """The dtypes side by side; an arrow at the picked one."""
    columns = ("", "dtype", "bytes/s", "of the roof", "parameters/s", "FLOP/s")
    lines = ["{:2} {:9} {:>11} {:>12} {:>14} {:>14}".format(*columns)]
    for row in rows:
        cells = (in_units(row.one_row_bytes_per_s, "B/s"), f"{row.share:.0%}", in_units(row.parameters_per_s, "/s"))
        arrow = "->" if row.dtype == picked else ""
        lines.append(
            "{:2} {:9} {:>11} {:>12} {:>14} {:>14}".format(arrow, row.dtype, *cells, in_units(row.flop_per_s, "FLOP/s"))
        )
    return "\n".join(lines)


def why_picked(rows: Sequence[Width], picked: str) -> str:
    """The reason for the pick, and for leaving a dtype out, in a sentence each."""
    own = own_formats(rows)
    left_out = "".join(
        f"\n{row.dtype} is left out, however fast its single row is: its square products are slower than float32's."
        for row in rows
        if row not in own
    )
    return _why_of(own, picked) + left_out


def _why_of(rows: Sequence[Width], picked: str) -> str:
    fastest = max(row.parameters_per_s for row in rows)
    tied = [row for row in rows if row.parameters_per_s >= (1 - TIE) * fastest]
    if len(rows) == 1:
        return f"{picked}: no other format is calculated as fast."
    if len(tied) == 1:
        return f"{picked}: of the chip's own formats, it takes a row through clearly the most parameters a second."
    names = " and ".join(row.dtype for row in tied)
    most = max(row.flop_per_s for row in tied)
    if len([row for row in tied if row.flop_per_s >= (1 - TIE) * most]) == 1:
        return f"{picked}: {names} decode about equally fast, and its square products are the fastest among them."
    return f"{picked}: {names} decode about equally fast, and of those as fast at square products it is the plainest."


# --- one row and many ------------------------------------------------------------------------------------------------


def time_reading(device: torch.device, nbytes: int) -> dict[str, Timing]:
    """Reading a block of random numbers once, and its first half alone, in turns: "all" and "half"."""
    data = normals(room(device, nbytes), torch.float32)
    half = data[: len(data) // 2]
    return interleave({"half": half.sum, "all": data.sum}, device, budget_s=1.0)


@dataclass(frozen=True)
class Extremes:
    """The same arithmetic asked of by one row and by many, timed in turns."""

    one_row: Timing
    one_row_flops: int
    square: Timing
    square_flops: int

    @property
    def one_row_flop_per_s(self) -> float:
        return self.one_row_flops / self.one_row.median_s

    @property
    def square_flop_per_s(self) -> float:
        return self.square_flops / self.square.median_s

    @property
    def one_row_busy(self) -> float:
        """FLOP/s of the one-row product as a share of the square product's, round by round."""
        return self.one_row_flops / self.square_flops * ratio(self.square, self.one_row)


def time_extremes(device: torch.device, ceilings: Ceilings) -> Extremes:
    """One row times many matrices, more than the cache holds, and the best square product, in the picked dtype."""
    dtype, n = getattr(torch, ceilings.best_dtype), ceilings.flop_size[ceilings.best_dtype]
    one_row, parameters = _one_row(device, dtype, min(_beyond_cache(device), devices.free_bytes(device) // 3))
    a, b = (torch.randn(n, n, device=device).to(dtype) for _ in range(2))
    timings = interleave({"one row": one_row, "square": lambda: F.linear(a, b)}, device, budget_s=1.5)
    return Extremes(timings["one row"], 2 * parameters, timings["square"], 2 * n**3)


def time_formats(device: torch.device, ceilings: Ceilings) -> dict[str, Timing]:
    """One row through large matrices in each of the chip's own formats, in turns: seconds for one parameter, by dtype.

    What the pick is checked by: it was made from rates that were measured one after another.
    """
    names = native(ceilings.flop_per_s, "float32")
    nbytes = min(_beyond_cache(device), devices.free_bytes(device) // 3 // len(names))
    rows = {name: _one_row(device, getattr(torch, name), nbytes) for name in names}
    timings = interleave({name: call for name, (call, _) in rows.items()}, device, budget_s=1.0)
    return {name: Timing(tuple(s / rows[name][1] for s in t.samples_s)) for name, t in timings.items()}


def _beyond_cache(device: torch.device) -> int:
    """Bytes that no cache of the device holds, half a gigabyte at least."""
    return max(1 << 29, LEAST_CACHES * (devices.cache_bytes(device) or 0))


def _one_row(device: torch.device, dtype: torch.dtype, nbytes: int) -> tuple[Callable[[], None], int]:
    """One row times one matrix after another, about so many bytes of them; and the parameters that it meets."""
    width = 8192 if device.type == "cuda" else 4096  # a fast GPU reads a small matrix sooner than it is given the next
    data = normals(room(device, max(nbytes, width * width * dtype.itemsize)), dtype)
    matrices = data[: len(data) // width**2 * width**2].view(-1, width, width)
    x = torch.randn(1, width, device=device).to(dtype)

    def call() -> None:
        for weights in matrices:
            multiply(x, weights)

    return call, matrices.numel()


def one_row_intensity(itemsize: int) -> float:
    """FLOP for each byte read in the product of one row: every weight is multiplied and added once."""
    return 2 / itemsize


def foretold_busy(ridge: float, itemsize: int, rows: int = 1) -> float:
    """Share of the arithmetic that so many rows keep busy, from the two ceilings alone; at most 1."""
    return min(1.0, rows * one_row_intensity(itemsize) / ridge)


def ridge_in_words(ridge: float) -> str:
    """What the ridge asks of a program."""
    operations = f"{ridge:,.0f}" if ridge >= 10 else f"{ridge:.1f}"
    return f"To keep the arithmetic busy, each byte read must feed {operations} operations."


# --- among the chips of the catalogue --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Place:
    """Where a machine or chip stands on the map of ceilings."""

    name: str
    read_bytes_per_s: float
    flop_per_s: float

    @property
    def ridge(self) -> float:
        """FLOP per byte."""
        return self.flop_per_s / self.read_bytes_per_s


def here(ceilings: Ceilings) -> Place:
    """This machine, in the dtype that it decodes best in."""
    dtype = ceilings.best_dtype
    return Place(f"this machine, {dtype}", ceilings.read_bytes_per_s, ceilings.flop_per_s[dtype])


def catalogue() -> dict[str, Place]:
    """The chips by name, at their datasheet's rates in bf16, else fp16, else fp32; those with none are left out."""
    places = {}
    for chip in CHIPS:
        dtype = next((d for d in ("bf16", "fp16", "fp32") if d in chip.flop_per_s), None)
        if dtype:
            places[chip.name] = Place(f"{chip.name}, {dtype}", chip.read_bytes_per_s, chip.flop_per_s[dtype])
    return places


def compared(chip: Place, machine: Place) -> str:
    """A chip beside this machine, in one sentence."""

    def times(theirs: float, ours: float) -> str:
        if 0.95 < theirs / ours < 1.05:
            return "about"
        return f"{_digits(theirs / ours)} times" if theirs > ours else f"1/{_digits(ours / theirs)} of"

    return (
        f"{chip.name}: {times(chip.read_bytes_per_s, machine.read_bytes_per_s)} this machine's bytes/s, "
        f"{times(chip.flop_per_s, machine.flop_per_s)} its FLOP/s; "
        f"each byte must feed {_digits(chip.ridge, 3)} operations, here {_digits(machine.ridge, 3)}"
    )


def _digits(value: float, digits: int = 2) -> str:
    return f"{float(f'{value:.{digits}g}'):,.10g}"


# --- verdicts: what the notebook says of the numbers just measured ---------------------------------------------------


def no_more_than_the_machine(found: Found) -> bool:
    """Whether this process gets at least a thread and some memory, and no more than the machine has."""
    host = found.total_bytes if found.host_bytes is None else found.host_bytes
    return 1 <= found.threads <= found.host_threads and 0 < found.free_bytes <= found.total_bytes <= host


def larger_than_the_cache(ceilings: Ceilings, found: Found) -> bool:
    """Whether the block read for the bandwidth does not fit into the last-level cache, as far as one is known."""
    return ceilings.working_set_bytes > (found.cache_bytes or 0)


def twice_takes_twice(timings: dict[str, Timing]) -> bool:
    """Whether twice the bytes took about twice the time, round by round: neither a cache nor a fixed cost decides."""
    return 1.6 < ratio(timings["all"], timings["half"]) < 2.5


def outruns_the_memory(ceilings: Ceilings) -> bool:
    """Whether the device does more operations in a second than bytes arrive: the ridge lies above one."""
    return max(ceilings.flop_per_s.values()) > ceilings.read_bytes_per_s


def square_does_more(extremes: Extremes) -> bool:
    """Whether the square product did more than twice the FLOP per second of the one-row product."""
    return extremes.one_row_busy < 0.5


def none_clearly_faster(again: Mapping[str, Timing], picked: str, by: float = 1.5) -> bool:
    """Whether, timed again in turns, no format is over half as fast again, in parameters a second, as the picked one.

    Formats within a tie of each other may change places; a pick made from a bad moment would lose by far more.
    """
    return all(ratio(again[picked], timing) < by for timing in again.values())
