"""The figures of notebook 03: numbers in, axes out."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import FancyBboxPatch, PathPatch
from matplotlib.path import Path

from chapter01.idle_runs import Monitored, Setting, Tile
from utils.chips import Chip
from utils.plots import FONT, PALETTE, colour, fixed_ticks, in_units, label, measured, predicted, style, unit_ticks

COLUMNS, ROWS = 43, 23  # 989 cells: on an H100, one for each TFLOP/s
CELLS = COLUMNS * ROWS


def percent(share: float) -> str:
    """A share of the chip, with the digits that matter at its size: "99.66 %", "78.3 %", "0.34 %", "100 %"."""
    value = 100 * share
    near = min(value, 100 - value)
    return f"{value:.{0 if near < 0.005 else 2 if near < 2 else 1}f} %"


def three_digits(value: float) -> str:
    """A number to three digits at least: "3.35", "214", "1,984"."""
    return f"{value:,.0f}" if value >= 99.95 else f"{value:.3g}"


# --- the chip --------------------------------------------------------------------------------------------------------


@style()
def draw_chip(ax: Axes, used: float, memory: float, name: str, head: float = 5.8, foot: float = 3.6) -> None:
    """A chip of 989 cells of which the share `used` is lit, between two banks of memory filled by how busy it is.

    `memory` is the share of its rate at which memory is at work. Cells light up from the bottom, the last one in part.
    `head` and `foot` leave room for the words above and below, in cells. Limits stay the same whatever the values.
    """
    ax.axis("off")
    ax.set(xlim=(-5.2, COLUMNS + 5.2), ylim=(-foot, ROWS + head), aspect="equal", anchor="N")
    edge = {"facecolor": "white", "edgecolor": PALETTE["muted"], "linewidth": 1.2, "zorder": 1}
    ax.add_patch(FancyBboxPatch((-0.6, -0.6), COLUMNS + 1.1, ROWS + 1.1, boxstyle="round,pad=0.35", **edge))
    _fill(ax, DARK, "idle")
    _fill(ax, _path(_lit(used)), "compute")
    filled = [_box(left, row, 2.9, 0.82 * min(1.0, max(0.0, memory * ROWS - row))) for left, row in BANKS]
    _fill(ax, _path(filled), "bandwidth")
    corner, other, below = (-4.9, ROWS + 0.9), (COLUMNS + 4.8, ROWS + 0.9), (-4.9, -0.9)
    _words(ax, name, corner, "muted", (0, 32), fontweight="bold")
    _words(ax, f"{percent(1 - used)} idle", corner, "text", (0, 5), fontsize=21, fontweight="bold")
    at_work = f"{three_digits(used * CELLS)} of {CELLS} at work"
    _words(ax, at_work, other, "compute", (0, 7), ha="right", fontweight="bold")
    _words(ax, f"memory at {percent(memory)} of its rate", below, "bandwidth", (0, -6), fontweight="bold")


def _words(ax: Axes, text: str, at: tuple[float, float], role: str, offset: tuple[float, float], **properties) -> None:
    """A label that starts at a point and takes no part in the layout: a longer text does not shrink the chip."""
    properties = {"ha": "left", "in_layout": False, "path_effects": []} | properties  # on white: no halo to draw
    label(ax, text.replace("$", r"\$"), at, role, offset, **properties)  # two bare dollar signs would begin a formula


def _box(left: float, bottom: float, width: float, height: float) -> list[tuple[float, float]]:
    return [(left, bottom), (left + width, bottom), (left + width, bottom + height), (left, bottom + height)]


def _path(boxes: Sequence) -> Path:
    """Boxes as one path: a path for each of a thousand would take a slider's time."""
    corners = np.reshape([(*box, box[0]) for box in boxes], (-1, 2))
    return Path(corners, [Path.MOVETO, Path.LINETO, Path.LINETO, Path.LINETO, Path.CLOSEPOLY] * len(boxes))


def _fill(ax: Axes, path: Path, role: str) -> None:
    ax.add_artist(PathPatch(path, facecolor=colour(role), edgecolor="none", zorder=2))


BOXES = [_box(i % COLUMNS, i // COLUMNS, 0.82, 0.82) for i in range(CELLS)]
BANKS = [(left, row) for left in (-4.9, COLUMNS + 1.9) for row in range(ROWS)]
DARK = _path(BOXES + [_box(left, row, 2.9, 0.82) for left, row in BANKS])


def _lit(used: float) -> list:
    """The cells that are lit, the last of them only as wide as its share."""
    whole, part = divmod(used * CELLS, 1)
    bright = BOXES[: int(whole)]
    if part and whole < CELLS:
        bright.append(_box(whole % COLUMNS, whole // COLUMNS, 0.82 * part, 0.82))
    return bright


@style()
def draw_two_chips(axes: Sequence[Axes], shares: Mapping[str, tuple[float, float]]) -> None:
    """Chips side by side: {what it does: (share of the arithmetic, share of the bandwidth)}."""
    for ax, (name, (used, memory)) in zip(axes, shares.items(), strict=True):
        draw_chip(ax, min(1.0, used), min(1.0, memory), name, head=9.4, foot=4.8)


# --- one setting: chip, roofline, users and cost ---------------------------------------------------------------------


@style()
def draw_setting(axes: Sequence[Axes], at: Setting) -> None:
    """The chip with what it does for its users, and beside it the dot that climbs the roofline."""
    chip_ax, roof_ax = axes
    r = at.reading
    draw_chip(chip_ax, r.used, at.memory, f"{at.chip.name}, {at.dtype} arithmetic", head=9, foot=17)
    users, each = ("1 user", "") if at.batch == 1 else (f"{at.batch:,} users", " each")
    several = "s" * ((r.chips_needed or 1) > 1)
    chips = "" if r.chips_needed is None else f": {r.chips_needed:,} chip{several}"
    bold = {"fontweight": "bold", "fontsize": FONT + 1.5}
    for row, (text, role, look) in enumerate(
        (
            (f"{users}, {three_digits(r.tokens_per_s_per_user)} tokens/s{each}", "text", bold),
            (f"${three_digits(r.dollars_per_million[0])} a million tokens at ${at.price:g} an hour", "text", {}),
            (f"{three_digits(r.needed_bytes / 1e9)} GB of memory{chips}", "muted", {}),
        )
    ):
        _words(chip_ax, text, (-4.9, -0.9), role, (0, -34 - 22 * row), **look)
    draw_climb(roof_ax, at.chip, at.dtype, at.path, r.bound_by)


@style()
def draw_climb(ax: Axes, chip: Chip, dtype: str, path: Sequence[tuple[float, float]], bound_by: str) -> None:
    """The chip's roofline, and on it the way of the dot from a batch of one to this one; the gap above it is idle.

    `path`: FLOP per byte and FLOP/s, the last of them this batch. The limits hold every chip of the catalogue.
    """
    peak, ridge = chip.flop_per_s[dtype], chip.ridge(dtype)
    right, x = 2e4, np.geomspace(0.3, 2e4, 200)
    predicted(ax, x, np.minimum(peak, x * chip.read_bytes_per_s))
    above = [5e11, peak]  # of the three lines of text
    ax.plot([ridge, ridge], above, color=colour("prediction"), linestyle=":", linewidth=1.2, zorder=1)
    intensity, rate = path[-1]
    ax.plot([intensity, intensity], [rate, peak], color=colour("idle"), linewidth=7, solid_capstyle="butt", zorder=1.5)
    if rate < 0.3 * peak:
        side = 9 if intensity < 4 else -9
        label(ax, "idle", (intensity, (rate * peak) ** 0.5), "idle", offset=(side, 0))
    before = {"marker": "o", "markersize": 6, "markeredgecolor": "white", "markeredgewidth": 0.8}
    ax.plot(*zip(*path, strict=True), color=colour(bound_by, 0.45), linestyle="none", zorder=3, **before)
    ax.plot([intensity], [rate], marker="o", markersize=15, color=PALETTE[bound_by], markeredgecolor="white", zorder=4)
    at_end = {"ha": "right"}
    _words(ax, f"peak: {in_units(peak, 'FLOP/s', 4)}", (right, peak), "prediction", (-2, 8), **at_end)
    _words(ax, f"used: {in_units(rate, 'FLOP/s')}", (right, 1e10), bound_by, (-2, 48), fontweight="bold", **at_end)
    _words(ax, f"asked: {three_digits(intensity)} FLOP/B", (right, 1e10), bound_by, (-2, 27), **at_end)
    _words(ax, f"ridge: {ridge:.0f} FLOP/B", (right, 1e10), "muted", (-2, 6), **at_end)
    ax.set(xscale="log", yscale="log", xlim=(0.3, right), ylim=(1e10, 1e16))
    ax.set(xlabel="FLOP per byte", ylabel="FLOP per second")
    fixed_ticks(ax.xaxis, [1, 10, 100, 1000, 10000], ["1", "10", "100", "1,000", ""])
    fixed_ticks(ax.yaxis, [1e10, 1e12, 1e14, 1e16], ["10 G", "1 T", "100 T", "10 P"])


# --- rows that ride free ---------------------------------------------------------------------------------------------


@style()
def draw_rows(ax: Axes, tile: Tile) -> None:
    """Time of one tile of weights against rows: the floor of both roofs as a line, measurements as dots."""
    rows = sorted(tile.runs)
    ms = {n: 1e3 * tile.seconds(n) for n in rows}
    ridge = tile.floor_s(1) / tile.floor_s(10**9) * 10**9  # so many rows are far up the slope
    knee = min(max(ridge, rows[0]), rows[-1])
    fine = np.geomspace(rows[0], rows[-1], 200)
    low, high = 0.3e3 * tile.floor_s(1), 2.2 * max(*ms.values(), 1e3 * tile.floor_s(rows[-1]))
    ax.axvspan(rows[0] / 1.4, knee, color=colour("bandwidth", 0.08), zorder=0)
    ax.axvspan(knee, rows[-1] * 1.4, color=colour("compute", 0.08), zorder=0)
    predicted(ax, fine, [1e3 * tile.floor_s(n) for n in fine])
    measured(ax, rows, list(ms.values()))
    label(ax, "measured", (rows[3], ms[rows[3]]), "measured", offset=(0, 9))
    ax.set(xscale="log", yscale="log", xlim=(rows[0] / 1.4, rows[-1] * 1.4), ylim=(low, high))
    ax.set(xlabel="rows (tokens that share one reading of the weights)", ylabel="time")
    ax.set_xticks(rows, [f"{n:,}" for n in rows])
    ax.set_xticks([], minor=True)
    ax.yaxis.set_major_formatter(lambda value, _: in_units(value / 1e3, "s", 2))
    label(ax, "bytes set the time:", (rows[0] / 1.3, high), "bandwidth", offset=(1, -6), va="top", fontweight="bold")
    label(ax, "rows can ride free", (rows[0] / 1.3, high), "bandwidth", offset=(1, -24), va="top")
    label(ax, "arithmetic", (rows[-1] * 1.3, low), "compute", offset=(-1, 24), va="bottom", fontweight="bold")
    label(ax, "sets the time", (rows[-1] * 1.3, low), "compute", offset=(-1, 6), va="bottom")
    side = -6 if knee > 12 else 6
    label(ax, f"ridge: {ridge:.0f} rows", (knee, low), "muted", offset=(side, 6), va="bottom")
    label(ax, "the floor", (rows[1], 1e3 * tile.floor_s(rows[1])), "prediction", offset=(0, -6))


# --- the monitor -----------------------------------------------------------------------------------------------------


@style()
def draw_monitor(ax: Axes, seen: Monitored) -> None:
    """Three bars: what a monitor shows, what the memory did, what the arithmetic did."""
    names = ["the monitor:\nsomething is running", "the memory:\nbytes delivered", "the arithmetic:\noperations done"]
    shares = [seen.busy, seen.memory, seen.used]
    roles = ["measured", "bandwidth", "compute"]
    for row, (share, role) in enumerate(zip(shares, roles, strict=True)):
        ax.barh(row, 1, color=colour("idle"), height=0.55, zorder=1)
        ax.barh(row, min(1.0, share), color=colour(role), height=0.55, zorder=2)
        text = percent(share) if share < 0.1 else f"{100 * min(1.0, share):.0f} %"
        label(ax, text, (1, row), role, offset=(8, 0), fontweight="bold", fontsize=FONT + 3)
    ax.set_yticks(range(3), names)
    ax.invert_yaxis()
    ax.set(xlim=(0, 1.2), xticks=[0, 0.25, 0.5, 0.75, 1], xlabel="share of what the device can do")
    ax.set_xticklabels(["0", "25 %", "50 %", "75 %", "100 %"])
    ax.grid(visible=False, axis="y")


# --- operations sold, operations asked for ---------------------------------------------------------------------------


@style()
def draw_sold(ax: Axes, sold: Mapping[str, float], asked: float) -> None:
    """Bars of operations that chips can do for each byte, and beside them the sliver that one token asks for."""
    names, values = list(sold), list(sold.values())
    ax.barh(names, values, color=colour("idle"), height=0.62)
    ax.barh(names, [asked] * len(names), color=colour("bandwidth"), height=0.62)
    ax.invert_yaxis()
    ax.set(xlim=(0, 1.14 * max(values)), ylim=(len(names) - 0.4, -1.3))
    ax.set(xlabel="operations for each byte read from memory")
    ax.grid(visible=False, axis="y")
    for row, value in enumerate(values):
        label(ax, f"{value:.0f} sold", (value, row), "idle", offset=(6, 0), fontweight="bold")
    label(ax, f"{asked:g} asked for by one token: the sliver", (asked, -0.82), "bandwidth", (6, 0), fontweight="bold")


# --- money -----------------------------------------------------------------------------------------------------------


@style()
def draw_money(
    ax: Axes, batches: Sequence[int], bands: Sequence[tuple[float, float]], ridge: float, kept: Sequence[float]
) -> None:
    """Dollars for a million tokens against users: the band of two prices, and a line where each user brings a context.

    `bands`: dollars at the lower and the upper price. `kept`: dollars at the upper price with the cache read too.
    """
    low, high = zip(*bands, strict=True)
    ax.fill_between(batches, low, high, color=colour("bandwidth", 0.35), linewidth=0, zorder=1)
    ax.plot(batches, low, color=colour("bandwidth"), linewidth=1.5)
    ax.plot(batches, high, color=colour("bandwidth"), linewidth=1.5)
    ax.plot(batches, kept, color=colour("prediction"), linestyle="--", linewidth=2)
    ax.axvline(ridge, color=colour("prediction"), linestyle=":", linewidth=1.5, zorder=1)
    ax.set(xscale="log", yscale="log", xlim=(1, batches[-1]), ylim=(0.05, 200))
    ax.set(xlabel="users served in one step", ylabel="dollars a million tokens")
    unit_ticks(ax.xaxis)
    ax.set_yticks([0.1, 1, 10, 100], [r"\$0.10", r"\$1", r"\$10", r"\$100"])
    one = rf"one user: \${low[0]:.0f} to \${high[0]:.0f}"
    label(ax, one, (1, high[0]), "bandwidth", offset=(14, 4), fontweight="bold")
    middle = len(batches) // 2
    label(ax, r"\$4 to \$8 an hour", (batches[middle], low[middle]), "bandwidth", offset=(-6, -16))
    crowded = "\n".join((r"at \$8, with", "2,000 tokens", "of context each"))  # narrow: right of the ridge's line
    label(ax, crowded, (batches[-1], kept[-1]), "prediction", offset=(-6, 8))
    label(ax, f"ridge: {ridge:.0f} users", (ridge, 200), "muted", offset=(-6, -6))
    label(ax, "all arithmetic sold", (batches[-1], low[-1]), "compute", offset=(-6, -8), fontweight="bold")
