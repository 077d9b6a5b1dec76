"""The look that all figures share: told apart by every reader, opaque, legible, shown once, with words."""

import base64
import io
import itertools
import subprocess
import sys

import matplotlib
import numpy as np
import pytest
from matplotlib.colors import to_rgb
from PIL import Image

from utils import plots
from utils.plots import INK, PALETTE

RESOURCES = ("compute", "bandwidth", "overhead", "idle")
# What an eye without one kind of cone makes of linear RGB: Machado, Oliveira, Fernandes (2009), severity 1.
EYES = {
    "all cones": np.eye(3),
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.01182, 0.04294, 0.968881]],
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "tritanopia": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.3039]],
}


def linear(colour):
    rgb = np.array(to_rgb(colour))
    return np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)


def lab(light):
    """CIE L*a*b* of linear sRGB, white D65: distance 2 is just visible, 20 plainly another colour."""
    to_xyz = [[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]
    xyz = to_xyz @ np.clip(light, 0, 1) / [0.9505, 1, 1.089]
    x, y, z = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


def pixels(picture: bytes) -> np.ndarray:
    return np.array(Image.open(io.BytesIO(picture)).convert("RGBA"))


def sketch(title="What it shows"):
    with plots.style():
        fig, ax = plots.figure(title)
        plots.predicted(ax, [1, 10, 100], [1, 10, 100], text="predicted")
        plots.measured(ax, [1, 10, 100], [1, 9, 80], text="measured", spread=[[0.1, 1, 9], [0.2, 2, 9]])
        ax.set(xscale="log", yscale="log", xlabel="rows", ylabel="time (s)")
        plots.unit_ticks(ax.xaxis)
        plots.unit_ticks(ax.yaxis, "s")
    return fig, ax


@pytest.mark.parametrize("eye", EYES)
@pytest.mark.parametrize(("one", "other"), [*itertools.combinations(RESOURCES, 2), ("prediction", "measured")])
def test_colours_are_told_apart_by_every_eye(eye, one, other):
    seen = [lab(np.array(EYES[eye]) @ linear(PALETTE[role])) for role in (one, other)]
    assert np.linalg.norm(seen[0] - seen[1]) > 20


def test_colours_are_told_apart_in_grey_print():
    lightness = [lab(linear(PALETTE[role]))[0] for role in RESOURCES]
    assert np.all(np.diff(lightness) > 12), "the four get lighter, step by step"


@pytest.mark.parametrize("role", INK)
def test_text_in_a_role_can_be_read_on_white(role):
    luminance = linear(INK[role]) @ [0.2126, 0.7152, 0.0722]
    assert 1.05 / (luminance + 0.05) > 4.5, "the contrast that WCAG 2.1 asks of text"


def test_a_figure_is_white_and_opaque_so_that_a_dark_theme_changes_nothing():
    fig, _ = sketch()
    seen = pixels(plots.png(fig))
    assert np.all(seen[..., 3] == 255)
    assert np.all(seen[[0, 0, -1, -1], [0, -1, 0, -1]] == 255)


def test_prediction_is_a_line_and_measurement_is_dots():
    _, ax = sketch()
    line, dots = ax.lines[0], ax.containers[0].lines[0]
    assert (line.get_linestyle(), line.get_marker()) == ("-", "None")
    assert (dots.get_linestyle(), dots.get_marker()) == ("None", "o")
    assert list(dots.get_ydata()) == [1, 9, 80]
    assert dots.get_zorder() > line.get_zorder()


def test_nothing_is_clipped_not_even_a_long_title_or_a_label_outside_the_axes():
    fig, ax = sketch("A title that states its message at some length, in a sentence which one line cannot hold")
    fig.savefig(io.BytesIO())
    drawn = fig.get_tightbbox()  # in inches, around everything that is drawn
    assert drawn.x0 >= 0 and drawn.y0 >= 0
    assert drawn.x1 <= plots.SIZE[0] and drawn.y1 <= plots.SIZE[1]
    assert "\n" in fig._suptitle.get_text()
    assert not fig._suptitle.get_window_extent().overlaps(ax.get_window_extent())


def test_letters_are_large_enough_for_the_back_of_a_room():
    fig, ax = sketch()
    fig.savefig(io.BytesIO())
    for word in (fig._suptitle, ax.xaxis.label, ax.yaxis.label, *ax.texts, *ax.get_xticklabels()):
        # 100 pixels an inch, 900 pixels wide: 12 points are 1/54 of the width.
        assert word.get_fontsize() >= 12


def test_the_look_does_not_leak_into_other_figures():
    before = dict(matplotlib.rcParams)
    sketch()
    assert dict(matplotlib.rcParams) == before


def test_panels():
    fig, axes = plots.figure("Two", widths=(2, 1))
    plots.png(fig)
    left, right = (ax.get_position().width for ax in axes)
    assert left / right == pytest.approx(2, rel=0.05)


def test_a_figure_is_displayed_once_with_words_and_at_a_fixed_width(monkeypatch):
    shown = []
    monkeypatch.setattr("IPython.display.display", lambda data, **kwargs: shown.append((data, kwargs)))
    fig, ax = sketch()
    assert plots.show(ax, "A line through dots.") is None
    ((data, kwargs),) = shown
    assert kwargs == {"raw": True, "metadata": {"image/png": {"alt": "A line through dots.", "width": 900}}}
    assert data["text/plain"] == "A line through dots."
    assert pixels(base64.b64decode(data["image/png"])).shape == (960, 1800, 4)
    with pytest.raises(ValueError, match="alternative text"):
        plots.show(fig, " ")


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (3.35e12, "B/s", "3.35 TB/s"),
        (140e9 / 3.35e12, "s", "41.8 ms"),
        (140e9, "B", "140 GB"),
        (999.9, "B", "1 kB"),
        (0, "s", "0 s"),
        (-2e-6, "s", "\N{MINUS SIGN}2 µs"),
    ],
)
def test_values_get_the_prefix_that_fits(value, unit, text):
    assert plots.in_units(value, unit) == text


def test_ticks_are_written_in_units():
    _, ax = sketch()
    assert ax.yaxis.get_major_formatter()(0.01, 0) == "10 ms"
    assert [ax.xaxis.get_major_formatter()(x, 0) for x in (0.1, 1, 1000, 1e6)] == ["0.1", "1", "1,000", "1,000,000"]


def test_a_paler_colour_is_still_opaque():
    assert plots.colour("compute") == pytest.approx(to_rgb(PALETTE["compute"]))
    assert plots.colour("compute", 0) == (1, 1, 1)


def test_the_module_works_without_pyplot_or_a_notebook():
    code = "import sys, utils.plots; sys.exit('matplotlib.pyplot' in sys.modules or 'IPython' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=plots.__file__.rsplit("/utils", 1)[0]).returncode == 0
