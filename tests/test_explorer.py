"""Sliders around a figure: each picture is the figure at these values, and nothing else ever takes its place."""

import base64
import io
import json
import subprocess
import sys
import threading
import time
from pathlib import Path

import ipywidgets
import matplotlib
import nbformat
import numpy as np
import pytest
from PIL import Image

from utils import plots
from utils.explorer import _Canvas, choice, explorer, slider

ROOT = Path(__file__).resolve().parent.parent
VIEW = "application/vnd.jupyter.widget-view+json"


def draw_roofline(ax, rows):
    plots.predicted(ax, [1, 300, 10_000], [1, 300, 300], text="roof")
    plots.measured(ax, [rows], [min(rows, 300)], "bandwidth", text=f"{rows} rows")
    ax.set(xscale="log", yscale="log", xlim=(0.5, 2e4), ylim=(0.5, 1e3), xlabel="rows", ylabel="TFLOP/s")
    plots.unit_ticks(ax.xaxis)


def draw_under_the_grid(ax, rows):
    ax.axhspan(0, rows, color=plots.colour("idle"), zorder=0)
    ax.set(xlim=(0, 1), ylim=(0, 600))


def draw_message(ax, rows):
    ax.set(xlim=(0, 1), ylim=(0, 1))
    plots.message(ax, f"A title with {rows} rows, " + (rows % 60) * "long ")


def draw_bars(ax, rows):  # limits, names and their order follow the values
    ax.barh([f"{rows} rows", "a token", "b"], [rows, 1, 2])
    ax.invert_yaxis()


def draw_pair(axes, rows):
    draw_bars(axes[0], rows)
    axes[0].legend(["a bar"], loc="lower right")
    axes[1].plot([0, rows], [rows**2, 0])
    twin = axes[1].twinx()
    twin.plot([0, rows], [0, 1 / rows])
    twin.grid(visible=False)
    if rows > 10:
        axes[1].set(xscale="log", title="many rows")
        axes[1].text(rows, 0, "here")


def draw_nothing(ax, rows):
    ax.set_axis_off()


SINGLE = (draw_roofline, draw_under_the_grid, draw_message, draw_bars, draw_nothing)
FIGURES = dict.fromkeys(SINGLE, (1,)) | {draw_pair: (2, 1)}


def make(draw=draw_roofline, compute=lambda rows: rows, **kwargs):
    values = {"rows": slider("Rows", [1, 8, 64, 512], readout="{:,} rows")} | kwargs
    return explorer(compute, draw, "A dot below a roof.", widths=FIGURES[draw], **values)


def move(widget, name="Rows", to=0):
    (control,) = (c for c in widget.children[0].children if c.description == name)
    control.index = to


def picture(widget) -> np.ndarray:
    head, data = bytes(widget.picture.value).split(b",", 1)
    assert head == b"data:image/png;base64"
    return pixels(base64.b64decode(data))


def pixels(png: bytes) -> np.ndarray:
    return np.array(Image.open(io.BytesIO(png)).convert("RGB")).astype(int)


def still(draw, rows) -> np.ndarray:
    """The same figure drawn by itself, whole."""
    fig, axes = plots.figure(widths=FIGURES[draw])
    with plots.style():
        draw(axes, rows)
    return pixels(plots.png(fig, 1))


@pytest.mark.parametrize("draw", FIGURES)
def test_after_any_moves_the_picture_is_the_figure_drawn_from_scratch(draw):
    widget = make(draw)
    for index in (3, 1, 2, 0):
        move(widget, to=index)
        difference = np.abs(picture(widget) - still(draw, (1, 8, 64, 512)[index])).max(axis=2)
        # Glyphs may be placed a hundredth of a pixel apart; nothing is missing, left over or moved.
        assert (difference > 60).mean() < 1e-4
    assert picture(widget).shape == (480, 900, 3)


def draw_wide_numbers(ax, power):  # the names of the ticks take more and more of the picture's width
    ax.set(xlim=(0, 10**power), ylim=(0, 1.1 * 100**power), xlabel="x", ylabel="y")


@pytest.mark.parametrize("draw", [*FIGURES, draw_wide_numbers])
def test_the_same_values_give_the_same_picture_whatever_came_before(draw):
    values = slider("Rows", range(1, 9))
    widget = explorer(lambda rows: rows, draw, "A frame.", widths=FIGURES.get(draw, (1,)), rows=values)
    seen: dict[int, set] = {}
    for index in (1, 7, 2, 1, 3, 0, 7, 6, 3, 2, 6, 0):
        move(widget, to=index)
        seen.setdefault(index, set()).add(bytes(widget.picture.value))
    assert {index: len(pictures) for index, pictures in seen.items()} == dict.fromkeys(seen, 1)


def test_the_frame_is_drawn_once_while_it_stays_the_same(monkeypatch):
    frames = []
    drawn = _Canvas._draw_frame
    monkeypatch.setattr(_Canvas, "_draw_frame", lambda *args: frames.append(1) or drawn(*args))

    def draw(ax, rows):
        ax.plot([0, rows], [0, 1])
        ax.set(xlim=(0, 1000 if rows < 512 else 2000), ylim=(0, 1))

    widget = explorer(lambda rows: rows, draw, "A line.", rows=slider("Rows", [1, 8, 64, 512]))
    for index in (1, 2, 1):
        move(widget, to=index)
    assert len(frames) == 1
    move(widget, to=3)
    assert len(frames) == 2, "new limits need a new frame"


def test_moves_from_several_threads_are_drawn_one_after_the_other():
    """JupyterLab may hand a slider's move to another thread than a cell that makes or shows a figure."""
    inside = []

    def draw(ax, rows):
        inside.append(rows)
        (line,) = ax.plot([0, rows], [0, 1])
        time.sleep(0.02)  # long enough for another thread to come in
        assert inside.pop() == rows and line in ax.lines
        draw_roofline(ax, rows)

    widget = explorer(lambda rows: rows, draw, "A line.", rows=slider("Rows", [1, 8, 64, 512]))

    def show() -> None:
        for _ in range(6):
            plots.png(plots.figure("A cell's own figure")[0], 1)
            widget._repr_mimebundle_()

    threads = [threading.Thread(target=show)]
    threads += [
        threading.Thread(target=lambda at=at: [move(widget, to=i % 4) for i in range(at, at + 8)]) for at in (0, 1)
    ]
    problems = []
    widget.picture.observe(lambda change: problems.append(repr(widget)), "value")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(threading, "excepthook", lambda args: problems.append(repr(args.exc_value)))
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert set(problems) == {"A line."}
    last = widget.children[0].children[0].value
    assert (np.abs(picture(widget) - still(draw_roofline, last)).max(axis=2) > 60).mean() < 0.01  # but for the line
    assert matplotlib.rcParams["font.size"] == matplotlib.rcParamsDefault["font.size"]


def test_values_reach_compute_by_name_and_its_result_reaches_draw():
    seen = []
    widget = explorer(
        lambda **values: values,
        lambda ax, result: seen.append(result),
        "Nothing.",
        rows=slider("Rows", [1, 8, 64], start=8),
        chip=choice("Chip", ["H100 SXM", "T4"], start="T4"),
    )
    move(widget, "Chip", 0)
    move(widget, "Rows", 2)
    assert seen == [
        {"rows": 8, "chip": "T4"},
        {"rows": 8, "chip": "H100 SXM"},
        {"rows": 64, "chip": "H100 SXM"},
    ]


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (ValueError("64 rows do not fit: take fewer."), "64 rows do not fit: take fewer."),
        (KeyError("T4"), "KeyError: 'T4'"),
        (ValueError(), "ValueError: "),
    ],
)
def test_an_error_takes_the_figures_place_as_a_sentence_and_the_widget_lives_on(error, says, capsys):
    def compute(rows):
        if rows == 64:
            raise error
        return rows

    widget = make(compute=compute)
    before = picture(widget)
    move(widget, to=2)
    assert repr(widget) == says
    assert picture(widget).shape == before.shape
    # A white page with a line of text: dark pixels in the middle, none elsewhere.
    dark = (picture(widget) < 128).all(axis=2)
    assert dark[200:280].any() and not dark[:200].any() and not dark[280:].any()
    assert widget._repr_mimebundle_()[0]["text/plain"] == says, "compared when the notebook is tested"
    move(widget, to=0)
    assert repr(widget) == "A dot below a roof."
    assert np.array_equal(picture(widget), before)
    assert capsys.readouterr() == ("", "")


def test_an_error_in_the_drawing_is_shown_too():
    widget = explorer(
        lambda rows: 1 / rows, lambda ax, x: ax.plot(1 / (1 - x)), "A dot.", rows=slider("Rows", [2, 1, 4])
    )
    move(widget, to=1)
    assert repr(widget).startswith("ZeroDivisionError: ")
    assert widget.picture.tooltip == repr(widget)
    move(widget, to=2)
    assert widget.picture.tooltip == repr(widget) == "A dot."


def test_an_error_at_the_start_is_the_authors_and_is_raised():
    def broken(rows):
        raise ValueError("no such row")

    with pytest.raises(ValueError, match="no such row"):
        make(compute=broken)


def test_it_is_displayed_as_a_live_widget_and_as_the_picture_of_this_moment():
    widget = make()
    move(widget, to=2)
    data, metadata = widget._repr_mimebundle_()
    assert data[VIEW]["model_id"] == widget.model_id
    saved = pixels(base64.b64decode(data["image/png"]))
    assert saved.shape == (960, 1800, 3), "twice as sharp: it is not exchanged while a key is held"
    small = np.array(Image.fromarray(saved.astype(np.uint8)).resize((900, 480), Image.Resampling.BOX)).astype(int)
    assert np.abs(small - picture(widget)).mean() < 2
    assert data["text/plain"] == metadata["image/png"]["alt"] == "A dot below a roof."


def test_the_words_are_the_same_for_the_same_explorer():
    one, other = make(), make()
    assert repr(one) == repr(other)
    assert one._repr_mimebundle_()[0]["text/plain"] == other._repr_mimebundle_()[0]["text/plain"]


def test_a_screen_reader_finds_words_and_the_size_is_fixed_before_the_picture_is_there():
    state = make().picture.get_state()
    assert state["tooltip"] == "A dot below a roof."
    # Without a description trait the front end fails to make the image: see Picture.
    assert state["description"] == ""
    assert (state["width"], state["height"]) == ("900", "480")


def test_a_slider_is_evenly_spaced_over_its_values_and_says_what_they_are():
    control = slider("Context", [512, 2048, 131_072], start=2048, readout="{:,} tokens")
    assert (control.value, control.index) == (2048, 1)
    texts = [text for text, _ in control.options]
    assert [text.strip("\N{FIGURE SPACE}") for text in texts] == ["512 tokens", "2,048 tokens", "131,072 tokens"]
    assert len({len(text) for text in texts}) == 1
    assert all(text[0] == "\N{FIGURE SPACE}" for text in texts), "the handle at its right end lies on the longest"
    with pytest.raises(Exception, match="not found"):
        slider("Context", [512, 2048], start=1000)


def test_a_name_too_long_for_its_place_loses_no_letters_at_its_end_before_its_spaces():
    control = choice("chip", ["H200", "A100 80 GB SXM"], start="H200")
    assert [text[1:].rstrip("\N{FIGURE SPACE}") for text, _ in control.options] == ["H200", "A100 80 GB SXM"]
    assert len({len(text) for text, _ in control.options}) == 1 and control.value == "H200"
    control = choice("chip", ["Apple M4 Max 410 GB/s", "Apple M4 Max 546 GB/s"])
    assert [text.strip("\N{FIGURE SPACE}") for text, _ in control.options] == ["M4 Max 410 GB/s", "M4 Max 546 GB/s"]
    assert control.value == "Apple M4 Max 410 GB/s"
    with pytest.raises(Exception, match="not found"):
        choice("chip", ["H200"], start="H2000")


def test_descriptions_get_the_room_that_they_need():
    widget = make(price=slider("Price of an hour, in dollars", [4, 8]), compute=lambda rows, price: rows)
    for control in widget.children[0].children:
        assert control.style.description_width == "29ch"


def test_what_is_no_control_is_refused_by_name():
    with pytest.raises(TypeError, match="rows = 8 is no control"):
        explorer(lambda rows: rows, draw_roofline, "A dot.", rows=8)
    with pytest.raises(ValueError, match="alternative text"):
        explorer(lambda rows: rows, draw_bars, " ", rows=slider("Rows", [1]))


def test_names_are_chosen_by_a_slider_too_because_a_list_does_not_hear_the_keyboard_in_jupyterlab():
    control = choice("Chip", ["H100 SXM", "T4"], start="T4")
    assert (control.value, control.index) == ("T4", 1)
    with pytest.raises(TypeError, match="chip = Dropdown"):
        make(chip=ipywidgets.Dropdown(options=["H100 SXM", "T4"]))


CELLS = """
from utils.explorer import explorer, slider
explorer(lambda rows: rows, lambda ax, y: ax.plot([0, y]), "A line.", rows=slider("Rows", [1, 8, 64]))
"""


@pytest.fixture(scope="module")
def executed(tmp_path_factory):
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(CELLS, id="line")])
    file = tmp_path_factory.mktemp("notebooks") / "line.ipynb"
    nbformat.write(notebook, file)
    run("tests/execute.py", file)
    return file


def run(*args):
    done = subprocess.run([sys.executable, *map(str, args)], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_notebook_with_an_explorer_is_compared_strictly_and_passes(executed):
    run("-m", "pytest", "-p", "no:cacheprovider", "--nbval", "--nbval-current-env", executed)
    notebook = json.loads(executed.read_text())
    assert "widgets" not in notebook["metadata"]
    (output,) = notebook["cells"][0]["outputs"]
    assert set(output["data"]) == {VIEW, "image/png", "text/plain"}


def test_a_page_made_by_nbconvert_shows_the_picture_once(executed):
    page = run("-m", "nbconvert", "--to", "html", "--stdout", executed)
    assert page.count("<img") == 1
