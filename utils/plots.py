"""The course's figures: data in, axes out. Nothing here measures anything.

Colour says which resource: arithmetic, bandwidth, overhead, or nothing at work. Shape says where a number comes
from: a prediction is a line, a measurement is a dot. Figures are made without pyplot, so none is kept or shown
twice; `show` displays one, with its alternative text.
"""

import base64
import io
import textwrap
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke
from matplotlib.ticker import EngFormatter, FixedFormatter, FixedLocator, NullLocator

# Told apart with any of the three colour-blindnesses, and in grey print: the first four get lighter in order.
PALETTE = {
    "compute": "#0b4f8a",
    "bandwidth": "#cf4717",
    "overhead": "#e8b02e",
    "idle": "#dce0e5",
    "prediction": "#56626c",
    "measured": "#14181c",
    "text": "#1f262d",
    "muted": "#5d6873",
    "grid": "#e6e9ed",
}
# The same roles as text: the lighter colours are too pale to read on white.
INK = PALETTE | {"overhead": "#856000", "idle": "#5d6873", "grid": "#5d6873"}

SIZE = (9.0, 4.8)  # inches; a notebook shows it 900 pixels wide
PIXELS_PER_INCH = 100
FONT = 13.5  # points: read from the back of a room

STYLE = {
    "font.family": "DejaVu Sans",  # ships with matplotlib: the same letters everywhere
    "font.size": FONT,
    "text.color": PALETTE["text"],
    "figure.facecolor": "white",  # never transparent: a dark theme would swallow the text
    "savefig.facecolor": "white",
    "axes.facecolor": "white",
    "axes.edgecolor": PALETTE["muted"],
    "axes.labelcolor": PALETTE["text"],
    "axes.labelsize": FONT,
    "axes.linewidth": 1.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "axes.prop_cycle": matplotlib.cycler(color=[PALETTE[r] for r in ("compute", "bandwidth", "overhead")]),
    "grid.color": PALETTE["grid"],
    "grid.linewidth": 1.0,
    "xtick.color": PALETTE["muted"],
    "ytick.color": PALETTE["muted"],
    "xtick.labelcolor": PALETTE["text"],
    "ytick.labelcolor": PALETTE["text"],
    "xtick.labelsize": FONT - 1,
    "ytick.labelsize": FONT - 1,
    "legend.frameon": False,
    "legend.fontsize": FONT - 1,
    "lines.linewidth": 2.5,
    "lines.markersize": 9,
    "figure.constrained_layout.use": True,
    "figure.constrained_layout.w_pad": 0.12,
    "figure.constrained_layout.h_pad": 0.1,
}
_drawing = threading.RLock()


@contextmanager
def style() -> Iterator[None]:
    """`with style():` around drawing, or `@style()` above a function that draws: new artists get the course's look.

    One thread draws at a time: JupyterLab may hand a slider's move to another thread than a cell, and matplotlib's
    look is one for all threads.
    """
    with _drawing, matplotlib.rc_context(STYLE):
        yield


@style()
def figure(
    title: str = "", widths: Sequence[float] = (1,), size: tuple[float, float] = SIZE
) -> tuple[Figure, Axes | np.ndarray]:
    """A white figure with axes side by side, in the proportions `widths`; one entry gives one Axes, not an array.

    The title states the figure's message. Draw into the axes inside `style()`, then call `show`.
    """
    fig = Figure(figsize=size, dpi=PIXELS_PER_INCH)
    axes = fig.subplots(1, len(widths), width_ratios=widths)
    message(fig, title)
    return fig, axes


def message(drawn: Figure | Axes, title: str) -> None:
    """Set the figure's title, at its left edge, broken into lines that fit."""
    fig = drawn.figure
    text = fig.suptitle(
        textwrap.fill(title, int(7.6 * fig.get_figwidth())),
        x=0.014,
        ha="left",
        fontsize=FONT + 2.5,
        fontweight="bold",
        color=PALETTE["text"],
    )
    # Where the layout would put it: a figure that is not laid out again keeps its title in place.
    text.set_y(1 - STYLE["figure.constrained_layout.h_pad"] / fig.get_figheight())


def predicted(ax: Axes, x, y, role: str = "prediction", text: str = "") -> None:
    """A prediction: a line, drawn below the dots. `text` is written at its right end."""
    (line,) = ax.plot(x, y, color=PALETTE[role], zorder=2, label=text or None)
    if text:
        label(ax, text, (line.get_xdata()[-1], line.get_ydata()[-1]), role, offset=(8, 0))


def measured(ax: Axes, x, y, role: str = "measured", text: str = "", spread=None) -> None:
    """Measurements: dots with a white rim. `spread` [2, n] is the distance to the quartiles, down and up."""
    colour = PALETTE[role]
    dots = {"linestyle": "none", "marker": "o", "markeredgecolor": "white", "markeredgewidth": 1.2, "zorder": 4}
    ax.errorbar(x, y, yerr=spread, color=colour, ecolor=colour, elinewidth=1.5, label=text or None, **dots)
    if text:
        label(ax, text, (np.ravel(x)[-1], np.ravel(y)[-1]), role, offset=(10, 0))


def label(ax: Axes, text: str, at: tuple[float, float], role: str = "text", offset=(0, 8), **text_properties) -> None:
    """Write on the thing itself, in its colour: `at` in data coordinates, moved by `offset` in points.

    Text to the right of a point starts there, text to the left ends there, text above or below is centred.
    A white halo keeps it legible across lines.
    """
    right, up = offset
    properties = {
        "ha": "center" if right == 0 else "left" if right > 0 else "right",
        "va": "center" if up == 0 else "bottom" if up > 0 else "top",
        "color": INK[role],
        "fontsize": FONT - 0.5,
        "zorder": 5,
        "path_effects": [withStroke(linewidth=3, foreground="white")],
    } | text_properties
    ax.annotate(text, at, xytext=offset, textcoords="offset points", **properties)


def in_units(value: float, unit: str, digits: int = 3) -> str:
    """The value with a prefix that fits, to so many digits: 3.35e12, "B/s" gives "3.35 TB/s"."""
    return EngFormatter(unit)(float(f"{value:.{digits}g}"))


def unit_ticks(axis: Axis, unit: str = "") -> None:
    """Write the ticks of an x or y axis as 1 ms, 10 ms, 1 s, ... or, without a unit, as 1, 10, 100, 1,000."""
    axis.set_major_formatter(EngFormatter(unit) if unit else lambda value, _: f"{value:,.10g}")


def fixed_ticks(axis: Axis, at: Sequence[float], names: Sequence[str]) -> None:
    """Ticks at these places and no others. (`set_xticks` makes each of them at once, a slider's frame mostly none.)"""
    axis.set_major_locator(FixedLocator(at))
    axis.set_major_formatter(FixedFormatter(names))
    axis.set_minor_locator(NullLocator())


def png(fig: Figure, scale: float = 2) -> bytes:
    """The figure as a PNG, `scale` pixels for each pixel of a notebook's width (2: sharp on every screen)."""
    file = io.BytesIO()
    with style():
        fig.savefig(file, format="png", dpi=scale * PIXELS_PER_INCH, metadata={"Software": None})
    return file.getvalue()


def show(drawn: Figure | Axes, alt: str) -> None:
    """Display the figure in a notebook, once, with its alternative text.

    The text is put where nbconvert looks for it (the image's metadata), and in place of the usual
    "<Figure size ...>" for readers that show no image. It is compared when the notebook is tested: say what is
    drawn, not the numbers of one run.
    """
    from IPython.display import display

    fig = drawn.figure
    data, metadata = bundle(png(fig), alt, int(fig.get_figwidth() * PIXELS_PER_INCH))
    display(data, metadata=metadata, raw=True)


def bundle(picture: bytes, alt: str, width: int) -> tuple[dict, dict]:
    """Data and metadata of a notebook output that holds one PNG, `width` notebook pixels wide.

    Raises ValueError without an alternative text.
    """
    if not alt.strip():
        raise ValueError("a figure needs an alternative text: one sentence that says what is drawn")
    data = {"image/png": base64.b64encode(picture).decode(), "text/plain": alt}
    return data, {"image/png": {"alt": alt, "width": width}}


def colour(role: str, strength: float = 1.0) -> tuple[float, float, float]:
    """Red, green and blue (0 to 1) of a role, mixed with white below strength 1: opaque, unlike an alpha."""
    return tuple(1 - strength * (1 - part) for part in to_rgb(PALETTE[role]))
