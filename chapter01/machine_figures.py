"""The figures of notebook 00: numbers in, axes out."""

import math
from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import EngFormatter, LogLocator, NullLocator

from chapter01.machine import Place, Width, compared
from utils.plots import colour, label, measured, message, style

# Where a chip's name stands: points to the right and up. The others are dots; where room is short, the first
# names here stand.
NAMED = {
    "H100 SXM": (0, 9),
    "B200": (-3, 7),
    "A100 80 GB SXM": (10, 0),
    "RTX 5090": (10, -6),
    "L4": (-9, 6),
    "T4": (-9, -4),
    "Apple M4 Max 546 GB/s": (10, -7),
    "Apple M1": (-9, 6),
}
LETTER, LINE, DOT = 0.0133, 0.05, 0.025  # width of a letter, height of a line, size of a dot: shares of the map
READS, CALCULATES = (8e9, 2e13), (4e10, 6e15)  # the map's corners: bytes/s and FLOP/s
RIDGES = (1, 10, 100, 1000)


@style()
def draw_widths(axes: Sequence[Axes], rows: Sequence[Width], roof: float, picked: str) -> None:
    """Three columns of dots, a row for each dtype: bytes/s under the roof, parameters/s, FLOP/s."""
    names, at = [row.dtype for row in rows], range(len(rows))
    columns = {
        "bytes read a second,\none row": ([row.one_row_bytes_per_s for row in rows], "B/s"),
        "parameters a second,\none row": ([row.parameters_per_s for row in rows], ""),
        "FLOP a second,\nsquare product": ([row.flop_per_s for row in rows], ""),
    }
    roles = ("bandwidth", "measured", "compute")
    for ax, (title, (values, unit)), role in zip(axes, columns.items(), roles, strict=True):
        most = max([*values, roof] if unit else values)
        ax.hlines(at, 0, values, color=colour(role, 0.35), linewidth=3, zorder=2)
        measured(ax, values, list(at), role)
        for row, value in zip(at, values, strict=True):
            text = EngFormatter(unit)(float(f"{value:.2g}"))
            side = "right" if value > 0.6 * most else "center" if value > 0.2 * most else "left"
            label(
                ax, text, (0 if side == "left" else value, row), role, offset=(0 if side != "left" else 4, 8), ha=side
            )
        ax.set(xlim=(0, 1.14 * most), ylim=(len(rows) - 0.5, -1.05), xlabel=title)
        ax.xaxis.set_major_formatter(EngFormatter(unit, sep=" "))
        ax.locator_params(axis="x", nbins=3)
        ax.set_yticks(list(at), names if ax is axes[0] else [""] * len(names))
        ax.axhspan(names.index(picked) - 0.62, names.index(picked) + 0.38, color=colour("idle", 0.5), zorder=0)
        ax.grid(visible=False)
    axes[0].axvline(roof, color=colour("prediction"), zorder=1)
    label(axes[0], "the roof", (roof, -1.05), "prediction", offset=(-6, -2))


@style()
def draw_map(ax: Axes, machine: Place, chips: Mapping[str, Place], chosen: str | None = None) -> None:
    """Chips small and grey by their datasheets, this machine large; along each slanted line the ridge is the same.

    With `chosen`, that chip is drawn large too, and the ridge lines of both.
    """
    ax.set(xscale="log", yscale="log", xlim=_with(READS, machine.read_bytes_per_s))
    ax.set(ylim=_with(CALCULATES, machine.flop_per_s), xlabel="bytes read a second", ylabel="FLOP a second")
    ax.xaxis.set_major_formatter(EngFormatter("B/s"))
    ax.yaxis.set_major_formatter(EngFormatter("FLOP/s"))
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_major_locator(LogLocator(numticks=20))
        axis.set_minor_locator(NullLocator())
    ax.grid(visible=False)
    for ridge in RIDGES:
        _ridge_line(ax, ridge)
        _ridge_text(ax, ridge)
    ax.plot(
        [chip.read_bytes_per_s for chip in chips.values()],
        [chip.flop_per_s for chip in chips.values()],
        linestyle="none", marker="o", markersize=6, color=colour("idle"), markeredgecolor=colour("muted"),
        zorder=3, label="chips",
    )  # fmt: skip
    taken = [_large(ax, machine, "measured", above=chosen is not None and machine.ridge > chips[chosen].ridge)]
    if chosen is not None:
        taken.append(_large(ax, chips[chosen], "compute", above=chips[chosen].ridge >= machine.ridge))
        for place, role in ((machine, "measured"), (chips[chosen], "compute")):
            _ridge_line(ax, place.ridge, color=colour(role, 0.6), linewidth=1.8, linestyle="--", zorder=2)
    dashed = [place.ridge for place in (machine, chips[chosen])] if chosen is not None else []
    for name, offset in NAMED.items():
        box = _box(ax, chips[name], name, offset)
        struck = any(_crosses(ax, ridge, box) for ridge in dashed)
        if name != chosen and not struck and not any(_overlap(box, other) for other in taken):
            taken.append(box)
            label(ax, name, (chips[name].read_bytes_per_s, chips[name].flop_per_s), "muted", offset=offset)


def draw_comparison(ax: Axes, machine: Place, chips: Mapping[str, Place], chosen: str) -> None:
    """The map with one chip picked, and the comparison as its title."""
    draw_map(ax, machine, chips, chosen)
    message(ax, compared(chips[chosen], machine))


Box = tuple[float, float, float, float]  # left, right, bottom, top as shares of the map


def _large(ax: Axes, place: Place, role: str, above: bool) -> Box:
    """A large dot with its name above or below; the room that both take."""
    at = (place.read_bytes_per_s, place.flop_per_s)
    look = {"markersize": 14, "markeredgecolor": "white", "markeredgewidth": 1.5, "zorder": 4}
    ax.plot(*at, marker="o", color=colour(role), label=place.name, **look)
    x, y = _share(ax.get_xlim(), place.read_bytes_per_s), _share(ax.get_ylim(), place.flop_per_s)
    room = x > 1.5 * LETTER * len(place.name) + DOT  # bold and larger than the other names
    left = x > 0.6 or (above and room)  # no room to the right, or the place's own ridge line is there
    offset = (-12 if left else 12, 9 if above else -9)
    label(ax, place.name, at, role, offset=offset, fontweight="bold", fontsize=14.5)
    left, right, bottom, top = _box(ax, place, place.name + "   ", offset)
    return min(left, x - DOT), max(right, x + DOT), min(bottom, y - LINE), max(top, y + LINE)


def _box(ax: Axes, place: Place, text: str, offset: tuple[float, float]) -> Box:
    """About the room that a text beside a place takes."""
    wide = LETTER * len(text)
    x = _share(ax.get_xlim(), place.read_bytes_per_s) + DOT * np.sign(offset[0])
    y = _share(ax.get_ylim(), place.flop_per_s) + DOT * np.sign(offset[1])
    left, bottom = x + (np.sign(offset[0]) - 1) / 2 * wide, y + (np.sign(offset[1]) - 1) / 2 * LINE
    return left, left + wide, bottom, bottom + LINE


def _share(limits: tuple[float, float], value: float) -> float:
    """Where a value stands between two limits, on logarithms: 0 at the lower, 1 at the upper."""
    return math.log(value / limits[0]) / math.log(limits[1] / limits[0])


def _overlap(one: Box, other: Box) -> bool:
    across = one[0] < other[1] and other[0] < one[1]
    return across and one[2] < other[3] and other[2] < one[3]


def _crosses(ax: Axes, ridge: float, box: Box) -> bool:
    """Whether the line of that ridge passes through the box or close by; it rises from left to right."""
    low, high = (ridge * np.exp(np.interp(x, (0, 1), np.log(ax.get_xlim()))) for x in box[:2])
    return _share(ax.get_ylim(), low) < box[3] and box[2] - DOT / 2 < _share(ax.get_ylim(), high)


def _ridge_line(ax: Axes, ridge: float, **look) -> None:
    reads = np.array(ax.get_xlim())
    ax.plot(reads, ridge * reads, **({"color": colour("idle"), "linewidth": 1.4, "zorder": 1} | look))


def _ridge_text(ax: Axes, ridge: float) -> None:
    """Written where the line leaves the axes, at the top or at the right."""
    most_reads, most_flops = ax.get_xlim()[1], ax.get_ylim()[1]
    text = f"{ridge:,} FLOP/B"
    if ridge * most_reads > most_flops:
        label(ax, text, (most_flops / ridge, most_flops), "grid", offset=(0, 2))
    else:
        label(ax, text, (most_reads, ridge * most_reads), "grid", offset=(5, 0), va="center")


def _with(corners: tuple[float, float], value: float) -> tuple[float, float]:
    """The corners, moved apart where the value would fall outside or on the edge."""
    return min(corners[0], value / 3), max(corners[1], 3 * value)
