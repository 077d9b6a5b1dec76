"""The figures of notebook 02: numbers in, axes out."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import LogLocator

from chapter01.phases import WHOLE, Point
from utils.plots import colour, in_units, label, measured, predicted, style, unit_ticks
from utils.roofline import Prediction
from utils.timing import Timing


@style()
def draw_lengths(ax: Axes, lengths: Sequence[int], products: Sequence[float], attention: Sequence[float]) -> None:
    """TFLOP of a prompt against its length: the matrix products' straight line, and attention's curve on top."""
    lengths, products, attention = map(np.asarray, (lengths, products, attention))
    ax.fill_between(lengths, products, color=colour("compute"))
    ax.fill_between(lengths, products, products + attention, color=colour("compute", 0.45))
    ax.set(xlabel="tokens in the prompt", ylabel="TFLOP", xlim=(0, lengths[-1]), ylim=(0, None))
    unit_ticks(ax.xaxis)
    unit_ticks(ax.yaxis)
    inside = {"color": "white", "path_effects": []}
    label(ax, "matrix products: proportional", (0.7 * lengths[-1], 0.25 * products[-1]), **inside)
    top = 0.7 * (products[-1] + attention[-1])
    label(ax, "attention: grows with the square", (0.72 * lengths[-1], top), "compute", offset=(-14, 8))


@style()
def draw_sweep(
    axes: Sequence[Axes],
    timings: Mapping[int, Timing],
    floor_s: Sequence[float],
    foretold_s: Sequence[float],
    flops: Sequence[float],
    moved: Sequence[float],
) -> None:
    """Time, FLOP/s and bytes/s of a pass against its new tokens: two predictions as lines, measurements as dots."""
    new = list(timings)
    took_s = np.array([timing.median_s for timing in timings.values()])
    floor_s, foretold_s, flops, moved = map(np.asarray, (floor_s, foretold_s, flops, moved))
    for ax, done, unit, title in (
        (axes[0], None, "s", "time of a pass"),
        (axes[1], flops, "FLOP/s", "arithmetic"),
        (axes[2], moved, "B/s", "bytes"),
    ):

        def rate(seconds: np.ndarray, done=done) -> np.ndarray:
            return seconds if done is None else done / seconds

        ax.plot(new, rate(floor_s), color=colour("prediction", 0.6), linestyle=":", linewidth=2, zorder=2)
        predicted(ax, new, rate(foretold_s))
        measured(ax, new, rate(took_s))
        ax.set(xscale="log", yscale="log", xlabel="new tokens", title=title)
        ax.set_xticks([1, 8, 64, 512])
        ax.minorticks_off()
        ax.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if done is moved else (1,)))
        unit_ticks(ax.xaxis)
        unit_ticks(ax.yaxis, unit)
        low, high = min(map(np.min, map(rate, (floor_s, took_s)))), max(map(np.max, map(rate, (floor_s, took_s))))
        ax.set_ylim(low / 2, high * 2)
    at = len(new) // 2
    label(axes[0], "ideal floor", (new[at], floor_s[at]), "muted", offset=(8, -8))
    label(axes[0], "foretold", (new[at], foretold_s[at]), "prediction", offset=(-8, 8))


@style()
def draw_roofline(
    ax: Axes,
    flop_per_s: float,
    read_bytes_per_s: float,
    dots: Mapping[str, Sequence[tuple[str, float, float, float]]],
    specification: tuple[float, float] | None = None,
) -> None:
    """The roofs of a machine, and passes and products under them.

    `dots`: for "prefill" and "decode" rows of (name, FLOP, bytes, seconds); the row named `WHOLE` is drawn larger.
    `specification`: FLOP/s and bytes/s of the datasheet, if known.
    """
    roles = {"prefill": "compute", "decode": "bandwidth"}
    places = {phase: [(n, f / b, f / s) for n, f, b, s in rows] for phase, rows in dots.items()}
    intensities = [x for rows in places.values() for _, x, _ in rows]
    ridge = flop_per_s / read_bytes_per_s
    x = np.geomspace(min(0.1, *intensities) / 1.5, 6 * max(ridge, *intensities), 200)
    if specification:
        ax.plot(x, np.minimum(specification[0], x * specification[1]), color=colour("idle"), linewidth=2, zorder=1)
        label(ax, "specification", (x[-1], specification[0]), "muted", offset=(-4, 6))
    predicted(ax, x, np.minimum(flop_per_s, x * read_bytes_per_s))
    low = x < ridge
    ax.fill_between(x[low], x[low] * read_bytes_per_s, 1, color=colour("bandwidth", 0.07), zorder=0)
    ax.fill_between(x[~low], flop_per_s, 1, color=colour("compute", 0.07), zorder=0)
    for phase, rows in places.items():
        for name, intensity, rate in rows:
            big = name == WHOLE
            ax.plot(
                intensity, rate, marker="o", markersize=15 if big else 8, color=colour(roles[phase], 1 if big else 0.6),
                markeredgecolor="white", zorder=4 if big else 3,
            )  # fmt: skip
            if big:
                label(ax, phase, (intensity, rate), roles[phase], offset=(0, -14), fontweight="bold")
    label(ax, f"measured: {in_units(flop_per_s, 'FLOP/s')}", (ridge, flop_per_s), "prediction", offset=(-10, 4))
    slope = ridge / 4  # to the left of the slope nothing can lie
    memory = f"measured: {in_units(read_bytes_per_s, 'B/s')}"
    label(ax, memory, (slope, slope * read_bytes_per_s), "prediction", offset=(-8, 8))
    ax.plot([ridge, ridge], [1, flop_per_s], color=colour("prediction"), linestyle=":", linewidth=1.2, zorder=1)
    bottom = min(rate for rows in places.values() for _, _, rate in rows) / 6
    top = 4 * max(flop_per_s, specification[0] if specification else 0)
    label(ax, f"ridge: {ridge:.3g} FLOP/B", (ridge, bottom), "muted", offset=(6, 6))
    ax.set(xscale="log", yscale="log", xlim=(x[0], x[-1]), ylim=(bottom, top))
    ax.set(xlabel="arithmetic intensity, FLOP per byte", ylabel="FLOP per second")
    unit_ticks(ax.xaxis)
    unit_ticks(ax.yaxis, "FLOP/s")


@style()
def draw_split(ax: Axes, bars: Sequence[tuple[str, Prediction, float]]) -> None:
    """The predicted time of passes, each a bar split by what binds; rows of (name, prediction, FLOP per byte)."""
    for row, (_, p, intensity) in enumerate(bars):
        left = 0.0
        for role, seconds in (("compute", p.compute_s), ("bandwidth", p.bytes_s), ("overhead", p.overhead_s)):
            share = seconds / (p.compute_s + p.bytes_s + p.overhead_s)
            ax.barh(row, share, left=left, color=colour(role), height=0.42)
            if share > 0.12:
                ink = {"color": "black" if role == "overhead" else "white", "path_effects": []}
                label(ax, f"{100 * share:.0f} %", (left + share / 2, row), offset=(0, 0), **ink)
            left += share
        per_byte = f"{intensity:,.0f}" if intensity >= 100 else f"{intensity:.3g}"
        text = f"{in_units(p.seconds, 's')}, {per_byte} FLOP/B: {p.regime}-bound"
        label(ax, text, (0, row - 0.21), p.regime, offset=(4, 5), fontweight="bold")
    ax.set_yticks(range(len(bars)), [name for name, *_ in bars])
    ax.set(xlim=(0, 1), ylim=(len(bars) - 0.5, -0.85), xlabel="share of the predicted time")
    ax.set_xticks([0, 0.25, 0.5, 0.75, 1], ["0 %", "25 %", "50 %", "75 %", "100 %"])
    ax.grid(visible=False, axis="y")
    legend = [(0.46, "compute", "arithmetic"), (0.66, "bandwidth", "bytes"), (0.8, "overhead", "overhead")]
    for x, role, text in legend if any(p.overhead_s for _, p, _ in bars) else legend[:2]:
        label(ax, text, (x, -0.7), role, offset=(14, 0))
        ax.plot(x, -0.7, marker="s", markersize=9, color=colour(role), linestyle="none", clip_on=False)


@style()
def draw_request(ax: Axes, first_s: float, step_s: float, prompt: int, tokens: int) -> None:
    """One request on a line of time: the prompt in one block, then a thin block for each further token."""
    ax.barh(0, first_s, color=colour("compute"), height=0.5)
    ax.barh([0] * (tokens - 1), step_s, left=first_s + step_s * np.arange(tokens - 1), height=0.5,
            color=colour("bandwidth"), edgecolor="white", linewidth=0.8)  # fmt: skip
    end_s = first_s + step_s * (tokens - 1)
    ax.set(xlim=(0, 1.02 * end_s), ylim=(-0.75, 0.95), yticks=[], xlabel="seconds since the question was sent")
    ax.grid(visible=False, axis="y")
    label(ax, f"prefill: {prompt:,} tokens in one pass", (0, 0.27), "compute", offset=(4, 5), fontweight="bold")
    steps = f"decode: {tokens - 1} more tokens, one pass each"
    label(ax, steps, (end_s, 0.27), "bandwidth", offset=(-1, 5), fontweight="bold")
    label(ax, f"time to first token: {in_units(first_s, 's')}", (0, -0.3), "compute", offset=(4, -5))
    label(ax, f"time per output token: {in_units(step_s, 's')}", (end_s, -0.3), "bandwidth", offset=(-1, -5))


@style()
def draw_predictions(ax: Axes, points: Sequence[Point]) -> None:
    """Measured against predicted seconds of many passes; on the diagonal they agree."""
    x, y = ([getattr(p, "predicted_s") for p in points], [p.timing.median_s for p in points])  # noqa: B009
    low, high = min(*x, *y) / 1.6, 1.6 * max(*x, *y)
    ends = np.array([low, high])
    ax.fill_between(ends, 0.85 * ends, 1.15 * ends, color=colour("idle"), zorder=0)
    predicted(ax, ends, ends)
    for role, name, of in (
        ("bandwidth", "decode", lambda p: p.new == 1),
        ("compute", "many new tokens", lambda p: p.new > 1),
    ):
        chosen = [p for p in points if of(p)]
        if chosen:
            measured(ax, [p.predicted_s for p in chosen], [p.timing.median_s for p in chosen], role)
            label(ax, name, (chosen[-1].predicted_s, chosen[-1].timing.median_s), role, offset=(10, -10))
    label(ax, "grey: within 15 %", (high, low), "muted", offset=(-6, 8))
    ax.set(xscale="log", yscale="log", xlim=(low, high), ylim=(low, high), xlabel="foretold", ylabel="measured")
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        unit_ticks(axis, "s")
    ax.minorticks_off()


@style()
def draw_intensity(
    ax: Axes, batches: Sequence[int], products: Sequence[float], attention: Sequence[float], ridge: float
) -> None:
    """FLOP per byte of a decode step's products and of its attention against the batch, and a chip's ridge."""
    predicted(ax, batches, products, "compute")
    predicted(ax, batches, attention, "bandwidth")
    ax.axhline(ridge, color=colour("prediction"), linestyle="--", linewidth=1.5)
    middle = len(batches) // 2
    shared = "matrix products:\nall sequences share the weights"
    label(ax, shared, (batches[middle], products[middle]), "compute", offset=(-8, 8))
    own = "attention: each sequence brings its own keys and values"
    label(ax, own, (batches[-1], attention[-1]), "bandwidth", offset=(-4, -8))
    label(ax, f"ridge of an H100: {ridge:.0f} FLOP/B", (batches[0], ridge), "prediction", offset=(4, 6))
    ax.set(xscale="log", yscale="log", xlabel="sequences in the batch", ylabel="FLOP per byte", ylim=(0.7, 2000))
    unit_ticks(ax.xaxis)
    unit_ticks(ax.yaxis)
