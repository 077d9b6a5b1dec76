"""Sliders around a figure: `explorer(compute, draw, alt, batch=slider(...), ...)` as the last line of a cell.

The figure is a picture in an image widget of fixed size, so a moved slider exchanges one picture for the next:
nothing flickers, and nothing is printed twice. Where no kernel is running, the saved picture stands in its place.
"""

import base64
import struct
import textwrap
import zlib
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import Any

import ipywidgets
import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from traitlets import Unicode

from utils.plots import FONT, PALETTE, PIXELS_PER_INCH, SIZE, bundle, figure, png, style

READOUT = 17  # letters that have room beside a slider in JupyterLab; a longer name is shown without its first word


def slider(description: str, values: Sequence, start: Any = None, readout: str = "{:,}") -> ipywidgets.Widget:
    """A slider over a list of values, evenly spaced whatever they are: `[1, 2, 4, 8]` gives logarithmic steps.

    `start` is one of the values (the first if left out), `readout` says how one is written: "{:,} users".
    """
    texts = [readout.format(value) for value in values]
    width = 1 + max(map(len, texts))  # padded with spaces as wide as a digit, the text never moves the slider
    return _selection(description, [text.rjust(width, "\N{FIGURE SPACE}") for text in texts], values, start)


def choice(description: str, names: Sequence[str], start: str | None = None) -> ipywidgets.Widget:
    """A slider over names, such as chips; `start` is one of them (the first if left out).

    A drop-down list does not hear the keyboard in JupyterLab: its arrow keys move on to the next cell.
    """
    texts = [name if len(name) <= READOUT else name.partition(" ")[2] for name in names]
    return _selection(description, ["\N{FIGURE SPACE}" + text for text in texts], names, start)


def _selection(description: str, texts: Sequence[str], values: Sequence, start: Any) -> ipywidgets.Widget:
    # JupyterLab makes a readout up to a third narrower than its text: only the spaces at the end are cut.
    width = max(map(len, texts)) * 3 // 2
    options = [*zip([text.ljust(width, "\N{FIGURE SPACE}") for text in texts], values, strict=True)]
    return ipywidgets.SelectionSlider(
        description=description, options=options, value=values[0] if start is None else start
    )


def explorer(
    compute: Callable[..., Any],
    draw: Callable[[Any, Any], None],
    alt: str,
    *,
    title: str = "",
    size: tuple[float, float] = SIZE,
    widths: Sequence[float] = (1,),
    **controls: ipywidgets.Widget,
) -> ipywidgets.Widget:
    """A figure that follows its controls; the keyword of a control is the name of its value in `compute`.

    `compute(**values)` is pure arithmetic, or looks up what is already measured: it runs at every move, so it
    never starts a long timing. `draw(axes, result)` draws from scratch with the course's look into empty axes
    (`figure(title, widths)`: one Axes, or an array); the same function draws the still figure above. It only adds
    artists and sets limits, ticks and labels. Limits that stay the same from move to move are drawn once, and
    make the next picture three times as fast.

    What `compute` or `draw` raises at the start is raised here. Raised later, it is shown as a sentence in the
    figure's place, and the next move draws again.
    """
    for name, control in controls.items():
        if not isinstance(control, ipywidgets.SelectionSlider):
            raise TypeError(f"{name} = {control!r} is no control: make it with slider(...) or choice(...)")
    if not alt.strip():
        raise ValueError("an explorer needs an alternative text: one sentence that says what is drawn")
    return Explorer(compute, draw, alt, title, size, widths, controls)


class Explorer(ipywidgets.VBox):
    """The widget that `explorer` returns: a class, because only a class can say how it is displayed."""

    def __init__(self, compute, draw, alt: str, title: str, size, widths, controls: Mapping[str, ipywidgets.Widget]):
        width, height = (int(inches * PIXELS_PER_INCH) for inches in size)
        self._compute, self._draw, self._alt, self._controls = compute, draw, alt, controls
        self._canvas = _Canvas(*figure(title, size=size, widths=widths))
        self._problem = ""
        # A data URL, not a PNG: the browser has the new picture at once, with no moment in between.
        self.picture = Picture(format="url", width=width, height=height, layout={"max_width": "100%"})
        self._show()
        letters = max((len(control.description) for control in controls.values()), default=0)
        for control in controls.values():
            control.style.description_width = f"{letters + 1}ch"
            control.layout.width, control.layout.min_width = "48%", "380px"
            control.observe(self._follow, "value")
        two_in_a_row = {"flex_flow": "row wrap", "max_width": f"{width}px"}
        super().__init__([ipywidgets.Box([*controls.values()], layout=two_in_a_row), self.picture])

    def _drawing(self) -> Callable[[Any], None]:
        result = self._compute(**{name: control.value for name, control in self._controls.items()})
        return lambda axes: self._draw(axes, result)

    @style()
    def _show(self) -> None:
        drawing = self._drawing()
        try:
            self._put(self._canvas.paint(drawing))
        finally:  # only now, while the reader looks at the picture: it takes a quarter of the time that drawing takes
            self._canvas.clear()

    def _put(self, picture: bytes) -> None:
        self.picture.tooltip = repr(self)  # what a screen reader reads
        self.picture.value = b"data:image/png;base64," + base64.b64encode(picture)

    def _follow(self, _change) -> None:
        self._problem = ""
        try:
            self._show()
        except Exception as error:  # whatever it is: a traceback would take the place of the figure
            sentence = str(error) if isinstance(error, ValueError) else ""
            self._problem = sentence or f"{type(error).__name__}: {error}"
            self._put(png(self._sentence(), 1))

    def _sentence(self) -> Figure:
        """What went wrong, in the figure's place."""
        fig = Figure(figsize=self._canvas.figure.get_size_inches(), dpi=PIXELS_PER_INCH, facecolor="white")
        look = {"ha": "center", "va": "center", "fontsize": FONT, "color": PALETTE["text"]}
        fig.text(0.5, 0.5, textwrap.fill(self._problem, 60), **look)
        return fig

    def __repr__(self) -> str:
        return self._problem or self._alt

    def _repr_mimebundle_(self, **kwargs) -> tuple[dict, dict]:
        """The live widget, and the picture of this moment for readers without a kernel."""
        still = png(self._sentence()) if self._problem else self._canvas.still(self._drawing())
        data, metadata = bundle(still, repr(self), int(self.picture.width))
        return super()._repr_mimebundle_(**kwargs) | data, metadata


class Picture(ipywidgets.Image):
    """An image with a title, which a screen reader reads: there is no alt attribute on an image widget.

    The front end sets a title only on widgets that have a description, though it may be empty.
    """

    description = Unicode("").tag(sync=True)


class _Canvas:
    """A figure whose frame (axes, ticks, grid) is kept as pixels for as long as it stays the same.

    Drawing the frame takes most of the time: with it kept, only what `draw` adds is drawn at each move.
    """

    def __init__(self, fig: Figure, axes: Axes | np.ndarray):
        self.figure, self._axes = fig, axes
        self._layout = fig.get_layout_engine()
        fig.set_layout_engine("none")  # laid out only with a new frame
        self._canvas = FigureCanvasAgg(fig)
        self._frame = self._pixels = None

    def paint(self, draw: Callable[[Any], None]) -> bytes:
        """Draw into the empty axes, and return the picture as a PNG, one pixel for each pixel of a notebook."""
        draw(self._axes)
        axes = self.figure.axes
        contents = [(ax, artist) for ax in axes for artist in _contents(ax)]
        above = [(ax, artist) for ax, artist in contents if artist.get_zorder() >= ax.xaxis.get_zorder()]
        below = len(contents) > len(above)
        above += [(self.figure, text) for text in self.figure.texts]
        frame = [self.figure.get_suptitle().count("\n"), *map(_frame, axes)]
        if below or frame != self._frame:
            self._frame, self._pixels = frame, self._draw_frame([artist for _, artist in above])
        self._canvas.restore_region(self._pixels)
        for parent, artist in above:
            parent.draw_artist(artist)
        return _quick_png(np.asarray(self._canvas.buffer_rgba()))

    @style()
    def still(self, draw: Callable[[Any], None]) -> bytes:
        """The same picture twice as sharp, for readers without a kernel; the axes are empty before and after."""
        try:
            draw(self._axes)
            return png(self.figure)
        finally:
            self.clear()

    def clear(self) -> None:
        """Empty the axes for the next drawing."""
        own = list(np.ravel(self._axes))
        for ax in self.figure.axes:
            if ax not in own:  # a twin
                ax.remove()
        for ax in own:
            ax.clear()

    def _draw_frame(self, above: list[Artist]):
        """Lay out the figure and draw all but what lies above the grid."""
        for ax in np.ravel(self._axes):  # back to where it was made: layout moves axes on from where they are,
            ax.set_subplotspec(ax.get_subplotspec())  # and the same values are to give the same picture
        self._layout.execute(self.figure)
        hidden = [artist for artist in above if artist.get_visible()]
        for artist in hidden:
            artist.set_visible(False)
        self._canvas.draw()
        for artist in hidden:
            artist.set_visible(True)
        return self._canvas.copy_from_bbox(self.figure.bbox)


def _quick_png(pixels: np.ndarray) -> bytes:
    """[height, width, 4] bytes as a PNG, every line stored as it is.

    Pillow first tries for each line which of five filters makes it smaller: that takes twice as long, and a figure is
    mostly white.
    """
    height, width, _ = pixels.shape
    lines = np.zeros((height, 1 + 4 * width), np.uint8)  # the number of its filter before each line: 0 is none
    lines[:, 1:] = pixels.reshape(height, -1)

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 6, 0, 0, 0)  # 8 bits for each of red, green, blue and opacity
    body = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(lines, 1)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + body


def _contents(ax: Axes) -> list[Artist]:
    """What `draw` put into the axes, and the lines that bound them, in the order of drawing."""
    groups = (ax.collections, ax.images, ax.patches, ax.lines, ax.artists, ax.tables, ax.texts, ax.child_axes)
    legend = [ax.get_legend()] if ax.get_legend() else []
    spines = ax.spines.values() if ax.axison else []
    return sorted(chain(*groups, legend, spines), key=Artist.get_zorder)


def _frame(ax: Axes) -> list:
    """All that the look of the empty axes depends on: equal lists, equal pixels."""
    looks = [ax.axison, *(ax.get_title(loc) for loc in ("left", "center", "right"))]
    for axis in (ax.xaxis, ax.yaxis):
        at = axis.get_majorticklocs()
        names = axis.get_major_formatter().format_ticks(at)
        minor = [*axis.get_minorticklocs()]
        looks += [*axis.get_view_interval(), axis.get_scale(), axis.get_label_text(), [*at], names, minor]
    return looks
