"""The figures of notebook 04: numbers in, axes out."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes

from chapter01.levers import Lever, Pass, Stalls, gain, within
from utils.chips import Chip
from utils.models import Shape
from utils.plots import colour, in_units, label, measured, predicted, style, unit_ticks
from utils.timing import Timing


def short(value: float) -> str:
    """A number to two digits at least, with thousands set apart: "0.34", "12", "1,984"."""
    return f"{value:,.0f}" if value >= 9.95 else f"{value:.2g}"


# --- batching --------------------------------------------------------------------------------------------------------


@style()
def draw_crowd(axes: Sequence[Axes], foretold_s: Mapping[int, float], took_s: Mapping[int, float]) -> None:
    """Against the number of users: the time of a step, tokens a second in all, tokens a second for each."""
    line, dots = (np.array(list(s.items())).T for s in (foretold_s, took_s))
    for ax, title, of in (
        (axes[0], "time of a step", lambda users, s: 1e3 * s),
        (axes[1], "tokens/s, all users", lambda users, s: users / s),
        (axes[2], "tokens/s, each user", lambda users, s: 1 / s),
    ):
        predicted(ax, line[0], of(*line))
        measured(ax, dots[0], of(*dots))
        ax.set(xscale="log", xlabel="users in a step", title=title, ylim=(0, 1.15 * max(*of(*dots), *of(*line))))
        ax.set_xticks([n for n in (1, 4, 16, 64, 256) if n <= line[0][-1]])
        ax.minorticks_off()
        unit_ticks(ax.xaxis)
        unit_ticks(ax.yaxis)
    axes[0].set_ylabel("ms")
    label(axes[1], "foretold", (line[0][-2], (line[0] / line[1])[-2]), "prediction", offset=(-8, 8))


@style()
def draw_memory(ax: Axes, shape: Shape, context: int, chip: Chip, cards: Sequence[int], most: int) -> None:
    """GB against users: weights, and on top of them each user's keys and values; lines for what the cards hold."""
    users = np.array([0, most])
    weights = shape.parameters * 2 / 1e9
    each = context * shape.kv_bytes_per_token() / 1e9
    ax.fill_between(users, [weights] * 2, color=colour("bandwidth"))
    ax.fill_between(users, [weights] * 2, weights + users * each, color=colour("bandwidth", 0.4))
    inside = {"color": "white", "path_effects": [], "fontweight": "bold"}
    label(ax, "weights: shared by all", (0.02 * most, weights / 2), offset=(1, 0), **inside)
    at = 0.48 * most
    label(ax, "keys and values: each user's own", (at, weights + 0.45 * at * each), offset=(0, 0))
    for count in cards:
        holds = count * chip.memory_bytes / 1e9
        predicted(ax, users, [holds] * 2)
        label(ax, f"{count} cards hold {holds:,.0f} GB", (0, holds), "prediction", offset=(6, 4))
    ridge = chip.ridge("bf16")
    ax.axvline(ridge, color=colour("compute"), linestyle=":", linewidth=2)
    top = 1.12 * max(max(cards) * chip.memory_bytes / 1e9, weights + most * each)
    label(ax, f"{ridge:.0f} users: the ridge", (ridge, 0.955 * top), "compute", offset=(6, 0))
    ax.set(xlabel=f"users with {context:,} tokens each", ylabel="GB", xlim=(0, most), ylim=(0, top))
    unit_ticks(ax.yaxis)


@style()
def draw_frontier(ax: Axes, foretold_s: Mapping[int, float], took_s: Mapping[int, float], patience_s: float) -> None:
    """Tokens a second in all against tokens a second for each, by users; what a user will bear cuts it off."""

    def places(step_s: Mapping[int, float]) -> tuple[list[float], list[float]]:
        return [1 / s for s in step_s.values()], [n / s for n, s in step_s.items()]

    every = [*foretold_s.values(), *took_s.values()]
    right = 1.15 / min(every)
    top = 1.2 * max(*places(foretold_s)[1], *places(took_s)[1])
    ax.axvspan(0, min(right, 1 / patience_s), color=colour("idle", 0.6), zorder=0)
    predicted(ax, *places(foretold_s))
    measured(ax, *places(took_s))
    for users, seconds in took_s.items():
        label(ax, f"{users}", (1 / seconds, users / seconds), offset=(-10, 0), fontsize=12)
    label(ax, "line: foretold\ndots: measured", (right, top), "muted", offset=(-10, -8), linespacing=1.3)
    chosen = within(took_s, patience_s)
    text = f"{1e3 * patience_s:.0f} ms a token: "
    if chosen is None:
        text += "no batch is quick enough"
    else:
        at = (1 / took_s[chosen], chosen / took_s[chosen])
        ax.plot(*at, marker="o", markersize=17, markerfacecolor="none", markeredgewidth=2.5, color=colour("text"))
        text += f"{chosen} user{'s' * (chosen > 1)}, {short(at[1])} tokens/s in all"
    label(ax, text, (0, top), offset=(10, -8), fontweight="bold")
    ax.set(xlabel="tokens a second, each user", ylabel="tokens a second, all users", xlim=(0, right), ylim=(0, top))
    unit_ticks(ax.yaxis)


# --- speculation -----------------------------------------------------------------------------------------------------


@style()
def draw_passes(axes: Sequence[Axes], by_text: Mapping[str, Sequence[Pass]]) -> None:
    """For each text a column for each pass: guesses kept, the model's own token, and guesses thrown away."""
    most = max(len(passes) for passes in by_text.values())
    deepest = max(p.rows for passes in by_text.values() for p in passes)
    for ax, (name, passes) in zip(axes, by_text.items(), strict=True):
        x = np.arange(1, len(passes) + 1)
        kept, own = np.array([p.kept for p in passes]), np.ones(len(passes))
        lost = np.array([p.guessed - p.kept for p in passes])
        ax.bar(x, own, color=colour("bandwidth"), width=0.8)
        ax.bar(x, kept, bottom=own, color=colour("compute"), width=0.8)
        ax.bar(x, lost, bottom=own + kept, color=colour("idle"), width=0.8)
        tokens = sum(p.tokens for p in passes)
        ax.set(title=f"{name}: {tokens} tokens, {len(passes)} passes", xlabel="pass")
        ax.set(xlim=(0, most + 1), ylim=(0, 1.35 * deepest), yticks=range(0, deepest + 1, 4))
    axes[0].set_ylabel("rows of the pass")
    for row, (text, role) in enumerate(
        (("guesses thrown away", "muted"), ("guesses kept", "compute"), ("the model's own token", "bandwidth"))
    ):
        axes[0].text(
            0.98, 0.97 - 0.085 * row, text, transform=axes[0].transAxes, color=colour(role), ha="right", va="top"
        )


@style()
def draw_gain(ax: Axes, timings: Mapping[int, Timing], marked: Sequence[tuple[float, int]]) -> None:
    """Gain over single steps against guesses a pass, for each acceptance of `marked`, with a ring at its k.

    The axes have room for guesses of which 98 % are right, whatever is marked.
    """
    most = max(timings) - 1
    k = np.arange(0, most + 1)
    top = 1.2 * max(gain(timings, 0.98, int(n)) for n in k)
    ax.axhline(1, color=colour("muted"), linestyle=":", linewidth=1.5)
    for accepted, at in marked:
        gains = [gain(timings, accepted, int(n)) for n in k]
        ax.plot(k, gains, color=colour("prediction"), zorder=2)
        ax.plot(at, gains[at], marker="o", markersize=13, markerfacecolor="none", markeredgewidth=2.5,
                color=colour("text"), zorder=4, clip_on=False)  # fmt: skip
        label(ax, f"{accepted:.0%} right:\n{gains[at]:.2f} x at k = {at}", (most, gains[-1]), offset=(14, 0))
    ax.set(xlabel="guesses a pass, k", ylabel="times as fast as step by step", xlim=(0, 1.27 * most), ylim=(0, top))
    ax.set_xticks(range(0, most + 1, 3))


# --- fewer bytes -----------------------------------------------------------------------------------------------------


@style()
def draw_widths(ax: Axes, foretold_s: Mapping[str, float], timings: Mapping[str, Timing]) -> None:
    """Milliseconds of a step by the width of the weights: a line for a kernel at the roof, a dot for this one."""
    for row, (name, timing) in enumerate(timings.items()):
        took_ms, good_ms = 1e3 * timing.median_s, 1e3 * foretold_s[name]
        ax.barh(row, took_ms, color=colour("bandwidth", 0.25), height=0.5, zorder=1)
        ax.plot([good_ms] * 2, [row - 0.36, row + 0.36], color=colour("prediction"), linewidth=3, zorder=3)
        measured(ax, [took_ms], [row])
        label(ax, f"{took_ms:.3g} ms", (max(took_ms, good_ms), row), "measured", offset=(12, 0))
    ax.set_yticks(range(len(timings)), list(timings))
    ax.invert_yaxis()
    ax.grid(visible=False, axis="y")
    longest = 1e3 * max(max(t.median_s for t in timings.values()), *foretold_s.values())
    ax.set(xlabel="ms a step", xlim=(0, 1.2 * longest), ylim=(len(timings) - 0.4, -0.85))
    at = 1e3 * foretold_s[next(iter(timings))]
    side = -4 if at > 0.6 * longest else 4  # where there is room
    label(ax, "foretold, with a kernel at the roof", (at, -0.36), "prediction", offset=(side, 4))


@style()
def draw_precision(axes: Sequence[Axes], rows: Mapping[str, tuple[float, float]]) -> None:
    """Bars on paper, {name: (tokens a second, share of the arithmetic at work)}: what the user feels, what works."""
    names, y = list(rows), np.arange(len(rows))
    for ax, at, title, role, write in (
        (axes[0], 0, "tokens a second", "bandwidth", lambda v: f"{v:.1f}"),
        (axes[1], 1, "arithmetic at work", "compute", lambda v: f"{100 * v:.2f} %, idle {100 * (1 - v):.2f} %"),
    ):
        values = np.array([pair[at] for pair in rows.values()])
        ax.barh(y, values, color=colour(role), height=0.55)
        for row, value in zip(y, values, strict=True):
            label(ax, write(value), (value, row), offset=(6, 0))
        ax.set(title=title, xlim=(0, 1.9 * values.max() if at else 1.3 * values.max()))
        ax.grid(visible=False)
        ax.set_xticks([])
        ax.invert_yaxis()
        ax.set_yticks(y, names if at == 0 else [""] * len(names))


# --- hardware --------------------------------------------------------------------------------------------------------


# Chips that get their name, and where it stands from the dot, in points: others would cover each other.
NAMED = {
    "Apple M1": (10, 0), "Apple M4 Max 546 GB/s": (2, 10), "RTX 3090": (-8, 4), "RTX 5090": (-8, 4), "T4": (8, -4),
    "L4": (8, -4), "L40S": (8, -4), "TPU v6e": (0, 10), "H100 SXM": (9, 4), "MI300X": (-8, 4), "B200": (-8, 4),
}  # fmt: skip


@style()
def draw_hardware(ax: Axes, chips: Sequence[tuple[str, float, float]]) -> None:
    """Tokens a second of one user against the ridge, a dot for each chip (name, FLOP per byte, tokens/s)."""
    for name, ridge, tokens in chips:
        role, strength = ("bandwidth", 1) if name in NAMED else ("muted", 0.45)
        ax.plot(ridge, tokens, marker="o", markersize=9, color=colour(role, strength), zorder=3)
        if name in NAMED:
            label(ax, name.removesuffix(" 546 GB/s"), (ridge, tokens), offset=NAMED[name], fontsize=12)
    ax.set(xscale="log", yscale="log", xlabel="ridge: FLOP offered for each byte (the further left, the less idles)")
    ax.set_ylabel("tokens a second, one user")
    ridges, rates = [c[1] for c in chips], [c[2] for c in chips]
    ax.set(xlim=(min(ridges) / 1.3, 1.6 * max(ridges)), ylim=(min(rates) / 1.4, 1.7 * max(rates)))
    ax.set_xticks([t for t in (10, 30, 100, 300) if min(ridges) / 1.3 < t < 1.6 * max(ridges)])
    ax.set_yticks([t for t in (5, 10, 30, 100, 300) if min(rates) / 1.4 < t < 1.7 * max(rates)])
    ax.minorticks_off()
    unit_ticks(ax.xaxis)
    unit_ticks(ax.yaxis)


# --- two pools -------------------------------------------------------------------------------------------------------


@style()
def draw_stalls(ax: Axes, stalls: Stalls, step_s: float, prefill_s: float) -> None:
    """The gap before each token: dots as measured on one chip, a line as foretold, a dashed line for two pools."""
    steps = np.arange(1, len(stalls.gaps_s) + 1)
    foretold = np.array([step_s + prefill_s * (i in stalls.at) for i in range(len(steps))])
    ax.step(steps, 1e3 * foretold, where="mid", color=colour("prediction"), zorder=2)
    ax.plot(steps[[0, -1]], [1e3 * step_s] * 2, color=colour("prediction"), linestyle="--", linewidth=2.5, zorder=3)
    measured(ax, steps, 1e3 * np.array(stalls.gaps_s))
    top = 1e3 * max(*stalls.gaps_s, step_s + prefill_s)
    first = stalls.at[0]
    label(ax, "another user's prompt is read", (first + 1, 1.08 * top), "text", offset=(-6, 4), ha="left")
    between = 1 + np.mean(stalls.at[:2])  # the first two jumps
    label(ax, "two pools,\nforetold:\nno jump", (between, 1e3 * step_s), "prediction", offset=(0, 10))
    ax.set(xlabel="token", ylabel="ms since the last token", xlim=(0, len(steps) + 1), ylim=(0, 1.25 * top))


# --- together --------------------------------------------------------------------------------------------------------


@style()
def draw_together(axes: Sequence[Axes], panels: Mapping[str, Sequence[Lever]]) -> None:
    """For each machine a bar for each lever, of 100 %: the share of the arithmetic at work is blue, the rest idle."""
    for ax, (title, levers) in zip(axes, panels.items(), strict=True):
        for row, lever in enumerate(levers):
            best = lever.predicted if lever.measured is None else lever.measured
            ax.barh(row, 100, color=colour("idle", 0.7), height=0.62, zorder=1)
            ax.barh(row, 100 * best, color=colour("compute", 0.85), height=0.62, zorder=2)
            ax.plot([100 * lever.predicted] * 2, [row - 0.4, row + 0.4], color=colour("prediction"), lw=3, zorder=3)
            if lever.measured is not None:
                measured(ax, [100 * lever.measured], [row])
            idle = 100 * (1 - best)
            text = f"{idle:.2f} % idle" if idle > 98.95 else f"{idle:.0f} % idle"
            if max(lever.predicted, best) < 0.68:
                label(ax, text, (100, row), offset=(-8, 0))
            else:
                label(ax, text, (0, row), offset=(8, 0), color="white", path_effects=[])
        ax.set_yticks(range(len(levers)), [lever.name for lever in levers])
        ax.invert_yaxis()
        ax.set(xlim=(0, 100), xlabel="% of the arithmetic at work", title=title)
        ax.set_xticks([0, 25, 50, 75, 100])
        ax.grid(visible=False)


def rate(tokens_per_s: float) -> str:
    """Tokens a second for a printed line: "24 tokens/s", "1.2k tokens/s"."""
    return in_units(tokens_per_s, "tokens/s", 2)
