"""The figures of notebook 05: runs in, axes out. A machine's number is its line in the table."""

from collections.abc import Mapping, Sequence
from statistics import median

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import LogLocator, NullLocator

from chapter01.room import Run
from utils.chips import find
from utils.plots import FONT, PALETTE, colour, label, measured, predicted, style, unit_ticks

NAMED = 3  # with more machines than this only their numbers are written
NEAR = 0.09, 0.032  # shares of the axes, across and up, within which two numbers would lie on each other


@style()
def draw_roofs(ax: Axes, runs: Sequence[Run]) -> None:
    """Each machine's two roofs with its ridge at their corner, and below them its decode and its prefill."""
    intensities = [p.intensity for run in runs for p in (run.decode, run.prefill)] + [run.ridge for run in runs]
    rates = [p.flop_per_s for run in runs for p in (run.decode, run.prefill)] + [run.flop_per_s for run in runs]
    ax.set(xscale="log", yscale="log", xlim=(min(intensities) / 3, 4 * max(intensities)))
    ax.set(ylim=(min(rates) / 6, 12 * max(rates)), xlabel="FLOP for each byte", ylabel="FLOP a second")
    x = np.geomspace(*ax.get_xlim(), 300)
    for run in runs:
        roof = np.minimum(run.flop_per_s, x * run.read_bytes_per_s)
        ax.plot(x, roof, color=colour("prediction", 0.8 if len(runs) <= NAMED else 0.45), linewidth=1.6, zorder=2)
    for role, name in (("bandwidth", "decode"), ("compute", "prefill")):
        passes = [getattr(run, name) for run in runs]
        measured(ax, [p.intensity for p in passes], [p.flop_per_s for p in passes], role)
        lowest = min(passes, key=lambda p: p.flop_per_s)
        text = "one token" if name == "decode" else "a prompt"
        label(ax, text, (lowest.intensity, lowest.flop_per_s), role, offset=(0, -9), fontweight="bold")
    corners = [(run.ridge, run.flop_per_s) for run in runs]
    ax.plot(
        *zip(*corners, strict=True), linestyle="none", marker="D", markersize=7, color=PALETTE["measured"], zorder=4
    )
    _write(ax, _machines(ax, runs, corners), (-6, 6))
    for role, name in (("bandwidth", "decode"), ("compute", "prefill")):
        places = [(getattr(run, name).intensity, getattr(run, name).flop_per_s) for run in runs]
        _write(ax, _numbers(ax, places), (9, 0), role)
    unit_ticks(ax.xaxis)
    unit_ticks(ax.yaxis, "FLOP/s")
    _decades(ax)


@style()
def draw_law(ax: Axes, runs: Sequence[Run]) -> None:
    """Idle arithmetic in decode against the ridge: the law as a line for each number format, machines as dots."""
    h100 = find("H100 SXM")
    datasheet = h100.ridge("bf16"), 1 / h100.ridge("bf16")
    ridges = [run.ridge for run in runs] + [datasheet[0]]
    lowest = min([run.used for run in runs] + [datasheet[1]])
    ax.set(xscale="log", yscale="log", xlim=(min(1.0, *ridges) if min(ridges) < 2 else 2, 6 * max(ridges)))
    ax.set(ylim=(1.0, lowest / 6), xlabel="ridge, FLOP for each byte", ylabel="idle arithmetic")  # more idle is up
    x = np.geomspace(*ax.get_xlim(), 100)
    asked = _asked(runs)
    for flop_per_byte in asked.values():
        predicted(ax, x, np.minimum(1.0, flop_per_byte / x))
    which = ["upper line, ", "lower line, "] if len(asked) == 2 else [""] * len(asked)
    lines = [
        f"{line}{bits} numbers: {flop:.2g} FLOP for a byte"
        for line, (bits, flop) in zip(which, asked.items(), strict=True)
    ]
    text = "\n".join(["the law, at least so idle:", *lines])
    label(ax, text, (ax.get_xlim()[1], 1.0), "prediction", offset=(-6, 8), linespacing=1.3)
    ax.plot(*datasheet, marker="o", markersize=9, color="white", markeredgecolor=PALETTE["muted"], zorder=3)
    label(ax, "an H100 by its\ndatasheet, 16-bit", datasheet, "muted", offset=(7, -9))
    places = [(run.ridge, run.used) for run in runs]
    measured(ax, *zip(*places, strict=True))
    _write(ax, _machines(ax, runs, places), (-6, 6))
    ax.yaxis.set_major_locator(LogLocator(numticks=20))
    ax.yaxis.set_major_formatter(lambda used, _: f"{100 * (1 - used):.{max(0, round(-np.log10(used)) - 2)}f} %")
    ax.yaxis.set_minor_locator(NullLocator())
    ax.xaxis.set_minor_locator(NullLocator())
    unit_ticks(ax.xaxis)


@style()
def draw_foretold(ax: Axes, runs: Sequence[Run]) -> None:
    """Measured against foretold seconds of all passes; on the diagonal they agree."""
    passes = [p for run in runs for p in (run.decode, run.prefill)]
    low = min(min(p.predicted_s, p.time_s) for p in passes) / 3
    high = 3 * max(max(p.predicted_s, p.time_s) for p in passes)
    ends = np.array([low, high])
    ax.fill_between(ends, ends / 2, 2 * ends, color=colour("idle", 0.6), linewidth=0, zorder=0)
    predicted(ax, ends, ends)
    ax.set(xscale="log", yscale="log", xlim=(low, high), ylim=(low, high), xlabel="foretold", ylabel="measured")
    for row, (role, name) in enumerate((("compute", "prefill, a prompt"), ("bandwidth", "decode, one token"))):
        chosen = [getattr(run, name.split(",")[0]) for run in runs]
        measured(ax, [p.predicted_s for p in chosen], [p.time_s for p in chosen], role)
        for number, p in enumerate(chosen, 1):
            if not 0.5 <= p.time_s / p.predicted_s <= 2:  # these are worth a look
                label(ax, str(number), (p.predicted_s, p.time_s), role, offset=(9, -5), fontsize=FONT - 1)
        label(ax, name, (low, high), role, offset=(10, -8 - 20 * row), fontweight="bold")
    label(ax, "grey: within a factor of two", (high, low), "muted", offset=(-6, 8))
    for axis in (ax.xaxis, ax.yaxis):
        unit_ticks(axis, "s")
    _decades(ax)


def _asked(runs: Sequence[Run]) -> dict[str, float]:
    """FLOP that one token has for each byte, by the width of the numbers, widest first."""
    bits = {"float32": "32-bit", "bfloat16": "16-bit", "float16": "16-bit"}
    found: dict[str, list[float]] = {}
    for run in runs:
        found.setdefault(bits.get(run.dtype, run.dtype), []).append(run.decode.intensity)
    return {width: median(values) for width, values in sorted(found.items(), key=lambda item: median(item[1]))}


def _decades(ax: Axes) -> None:
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_major_locator(LogLocator(numticks=20))
        axis.set_minor_locator(NullLocator())


def _machines(ax: Axes, runs: Sequence[Run], places: Sequence[tuple[float, float]]) -> dict[tuple[float, float], str]:
    """What stands at the machines' places: number and name where they are few, otherwise the number."""
    if len(runs) > NAMED:
        return _numbers(ax, places)
    return {place: f"{number}: {runs[number - 1].device}" for number, place in enumerate(places, 1)}


def _numbers(ax: Axes, places: Sequence[tuple[float, float]]) -> dict[tuple[float, float], str]:
    """The machines' numbers at their places; of those that lie on each other, one text for all."""
    groups: dict[tuple[float, float], list[int]] = {}
    for number, place in enumerate(places, 1):
        at = next((other for other in groups if _near(ax, other, place)), place)
        groups.setdefault(at, []).append(number)
    return {place: _short(numbers) for place, numbers in groups.items()}


def _write(ax: Axes, texts: Mapping[tuple[float, float], str], offset: tuple[float, float], role="measured") -> None:
    for place, text in texts.items():
        label(ax, text, place, role, offset=offset, fontsize=FONT - 1)


def _short(numbers: Sequence[int]) -> str:
    """1, 2 and 3 as "1-3"; more than one gap as "1 ... 9"."""
    if numbers[-1] - numbers[0] == len(numbers) - 1 > 1:
        return f"{numbers[0]}-{numbers[-1]}"
    return ", ".join(map(str, numbers)) if len(numbers) <= 3 else f"{numbers[0]} ... {numbers[-1]}"


def _near(ax: Axes, one: tuple[float, float], other: tuple[float, float]) -> bool:
    a, b = (ax.transAxes.inverted().transform(ax.transData.transform(place)) for place in (one, other))
    return abs(a[0] - b[0]) < NEAR[0] and abs(a[1] - b[1]) < NEAR[1]
