"""The figures of notebook 01: numbers in, axes out."""

import textwrap
from collections.abc import Sequence

from matplotlib.axes import Axes

from chapter01.loop import Future, Run, foretell, thinking
from utils.plots import colour, in_units, label, measured, predicted, style, unit_ticks


def visible(text: str) -> str:
    """A token as it can be read in a figure: spaces and line ends get a sign."""
    return text.replace(" ", "␣").replace("\n", "↵")


@style()
def draw_distribution(ax: Axes, tokens: Sequence[str], probs: Sequence[float]) -> None:
    """Bars of the likeliest tokens' probabilities, likeliest on top; the rest of the vocabulary is the last bar."""
    names = [*map(visible, tokens), "all others"]
    values = [*probs, max(0.0, 1 - sum(probs))]
    roles = [colour("compute")] * len(tokens) + [colour("idle")]
    ax.barh(names, values, color=roles)
    ax.invert_yaxis()
    ax.set(xlim=(0, 1.08), xlabel="probability of being the next token")
    ax.grid(visible=False, axis="y")
    for row, value in enumerate(values):
        label(ax, f"{value:.2f}", (value, row), offset=(6, 0))


@style()
def draw_futures(ax: Axes, branches: Sequence[Future], decode, prompt: str) -> None:
    """The prompt, its likeliest next tokens, and what would follow each of them; thick branches are likely ones."""
    ax.axis("off")
    rows = len(branches)
    ax.set(xlim=(0, 10.1), ylim=(rows - 0.4, -1.1))
    middle = (rows - 1) / 2
    for x, text in ((0, "the text so far"), (3.6, "token t+1"), (6.1, "token t+2, depending on t+1")):
        label(ax, text, (x, -0.8), "muted", offset=(1, 0))
    label(ax, textwrap.fill(f"{prompt} …", 16), (0, middle), offset=(1, 0), fontweight="bold")
    for row, branch in enumerate(branches):
        width = 1 + 14 * branch.probability
        ax.plot([2.9, 3.5], [middle, row], color=colour("compute"), linewidth=width, solid_capstyle="round", zorder=1)
        first = f"{visible(decode([branch.token]))}  {branch.probability:.2f}"
        label(ax, first, (3.6, row), offset=(1, 0), fontweight="bold")
        then = "     ".join(f"{visible(decode([token]))}  {p:.2f}" for token, p in branch.then)
        ax.plot([5.6, 6.0], [row, row], color=colour("compute", 0.4), linewidth=2, zorder=1)
        label(ax, then, (6.1, row), offset=(1, 0))


@style()
def draw_influence(ax: Axes, tokens: Sequence[str], changes: Sequence[float], position: int) -> None:
    """How far the logits moved at each position after one token was changed."""
    past = range(position)
    ax.bar(range(len(tokens)), changes, color=colour("compute"), width=0.7)
    ax.set_xticks(range(len(tokens)), [visible(t) for t in tokens], rotation=35, ha="right")
    ax.set(ylabel="largest change of a logit", ylim=(0, 1.25 * max(changes)))
    ax.grid(visible=False, axis="x")
    ax.axvspan(-0.5, position - 0.5, color=colour("idle", 0.6), zorder=0)
    label(ax, "before it: nothing moves", (sum(past) / max(1, len(past)), 0.5 * max(changes)), "muted", offset=(0, 0))
    label(ax, "changed here", (position, changes[position]), "compute", offset=(0, 6))


@style()
def draw_runs(ax: Axes, first_s: float, step_s: float, runs: Sequence[Run], asked: int | None = None) -> None:
    """Seconds against tokens: the line drawn from single steps, real runs as dots, `asked` tokens read off the line."""
    longest = max(asked or 0, *(run.tokens for run in runs))
    predicted(ax, [1, longest], [first_s, first_s + (longest - 1) * step_s])
    middle = 0.55 * longest
    label(
        ax, "foretold: first token + (N − 1) × step", (middle, first_s + middle * step_s), "prediction", offset=(-8, 6)
    )
    measured(ax, [run.tokens for run in runs], [run.measured_s for run in runs])
    # Where the runs crowd at the left, below them is the axis: their name goes to the right of the last one.
    run, offset = (runs[-1], (44, 2)) if longest > 3 * runs[-1].tokens else (runs[1], (12, -12))
    label(ax, "real runs", (run.tokens, run.measured_s), "measured", offset=offset)
    top = 1.15 * max(*(run.measured_s for run in runs), first_s + longest * step_s)
    ax.set(xlabel="tokens written, N", ylabel="seconds", xlim=(0, 1.04 * longest), ylim=(0, top))
    unit_ticks(ax.xaxis)
    if asked:
        seconds = foretell(first_s, step_s, asked)
        ax.plot([asked, asked, 0], [0, seconds, seconds], color=colour("text"), linestyle=":", zorder=3)
        took = f"{seconds:,.1f} s" if seconds >= 1 else in_units(seconds, "s", 2)
        text = f"{asked:,} token{'s' * (asked > 1)}: {took}"
        label(ax, text, (0, top), offset=(8, -4), fontweight="bold")


@style()
def draw_cache(ax: Axes, cached: Sequence[tuple[int, float]], uncached: Sequence[tuple[int, float]]) -> None:
    """Seconds until each token was there, with the cache and without; input as from `timed_generate`."""
    count = len(cached)
    for times, role, text, offset in (
        (uncached, "compute", "without a cache: read everything again", (-14, 10)),
        (cached, "bandwidth", "with the cache: read one token", (6, -16)),
    ):
        seconds = [s for _, s in times]
        measured(ax, range(1, count + 1), seconds, role)
        at = int(0.62 * count)
        label(ax, text, (at + 1, seconds[at]), role, offset=offset)
    ax.set(xlabel="tokens written", ylabel="seconds since the start", xlim=(0, count + 1))
    ax.set_ylim(0, 1.1 * max(cached[-1][1], uncached[-1][1]))


@style()
def draw_thinking(ax: Axes, first_s: float, step_s: float, thought: int, answer: int, dollars_per_hour: float) -> None:
    """One request as a bar of time: the thinking, then the answer that the reader was waiting for."""
    seconds, dollars = thinking(first_s, step_s, thought, answer, dollars_per_hour)
    answer_s = answer * step_s if thought else seconds  # whatever is written first comes after the prompt
    thinking_s = seconds - answer_s
    ax.barh([0], [thinking_s], color=colour("bandwidth", 0.45), height=0.5)
    ax.barh([0], [answer_s], left=[thinking_s], color=colour("bandwidth"), height=0.5)
    ax.set(xlabel="seconds on this machine", ylim=(-0.9, 1.1), xlim=(0, 1.02 * seconds), yticks=[])
    ax.grid(visible=False, axis="y")
    label(ax, f"{thought:,} thinking tokens: {thinking_s:.1f} s", (0, 0.42), "muted", offset=(5, 0))
    label(ax, f"the answer: {answer_s:.1f} s", (seconds, -0.42), "bandwidth", offset=(-1, 0))
    total = f"{seconds:,.1f} s, and ${dollars * 1000:,.2f} for a thousand such answers"
    label(ax, total, (0, 0.85), offset=(5, 0), fontweight="bold")


@style()
def draw_check(ax: Axes, guesses: int, check_s: float, steps_s: float) -> None:
    """Two bars: writing k tokens one after the other, and checking k guessed ones in one pass."""
    names = [f"{guesses} steps, one after the other", f"one pass over {guesses} guesses"]
    ax.barh(names, [1e3 * steps_s, 1e3 * check_s], color=[colour("bandwidth"), colour("compute")], height=0.55)
    ax.invert_yaxis()
    ax.set(xlabel="milliseconds", xlim=(0, 1.2e3 * max(steps_s, check_s)))
    ax.grid(visible=False, axis="y")
    for row, seconds in enumerate((steps_s, check_s)):
        label(ax, f"{1e3 * seconds:.0f} ms", (1e3 * seconds, row), offset=(6, 0))
