"""Notebook 03: what its measurements make of made-up numbers, what its figures draw, and what turns its verdicts."""

import itertools
from dataclasses import replace
from pathlib import Path

import claims
import numpy as np
import pytest
import torch
from claims import assert_shown, cells, turned
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.cbook import is_math_text
from matplotlib.colors import to_rgb

from chapter01 import idle, idle_figures, idle_runs
from utils import chips as catalogue
from utils import plots
from utils.ceilings import Ceilings
from utils.counts import weights_only
from utils.models import MODELS, Shape, find
from utils.timing import Timing

NOTEBOOK = Path(__file__).parent.parent / "notebooks" / "03_the_idle_chip.ipynb"
BIG = find("Llama-3.1-70B")
TINY = Shape("tiny", 3, 64, 4, 2, 16, 128, 256, True)
ROOFS = Ceilings(
    device_name="made up",
    read_bytes_per_s=25e9,
    read_how="sum",
    working_set_bytes=1 << 30,
    one_row_bytes_per_s={"float32": 25e9, "bfloat16": 15e9, "float16": 14e9},
    flop_per_s={"float32": 250e9, "bfloat16": 100e9},
    flop_size={"float32": 64, "bfloat16": 64},
    best_dtype="float32",
    notes=(),
)
CPU = torch.device("cpu")


def run(
    used: float,
    memory: float,
    seconds: float = 1.0,
    busy=(1.0, 1.0, 1.0),
    peak: float = 1e12,
    roof: float = 1e11,
    one_row: float = 1.0,
) -> idle_runs.Run:
    """Something that used these shares of a device; `busy` slows whole rounds, yardsticks included."""

    def rounds(of_s: float) -> Timing:
        return Timing(tuple(of_s * slow for slow in busy))

    return idle_runs.Run(
        flops=used * peak * seconds, bytes=memory * roof * seconds, timing=rounds(seconds),
        product=rounds(0.1), product_flops=0.1 * peak, read=rounds(0.2), read_bytes=0.2 * roof,
        one_row=rounds(0.3), one_row_bytes=0.3 * one_row * roof, peak=peak, roof=roof,
    )  # fmt: skip


def tile(
    ms: dict[int, float], peak: float = 1e12, roof: float = 1e11, width: int = 1000, one_row: float = 1.0
) -> idle_runs.Tile:
    """A tile of two-byte weights that took so many milliseconds, by rows."""
    blank = run(0, 0, peak=peak, roof=roof, one_row=one_row)
    runs = {
        rows: replace(blank, flops=2 * rows * width**2, bytes=2 * width**2, timing=Timing((took / 1e3,) * 3))
        for rows, took in ms.items()
    }
    return idle_runs.Tile(width, width, 2, runs)


POWERS = [2**k for k in range(10)]
IDEAL = tile({n: max(0.02, n * 0.002) for n in POWERS})  # 2 MB at 100 GB/s, 2 MFLOP a row at 1 TFLOP/s: 10 rows


# --- the measured numbers ------------------------------------------------------------------------------------------


def test_a_run_knows_its_shares():
    some = run(0.0034, 0.95, seconds=0.5)
    assert some.used == pytest.approx(0.0034)
    assert some.memory == pytest.approx(0.95)
    assert some.flop_per_s == pytest.approx(3.4e9)
    assert some.bytes_per_s == pytest.approx(95e9)


@given(st.floats(0.001, 1), st.floats(0.001, 1), st.lists(st.floats(0.5, 20), min_size=3, max_size=9))
def test_a_busy_neighbour_does_not_move_the_shares_taken_in_turns(used, memory, busy):
    disturbed = run(used, memory, busy=tuple(busy))
    assert disturbed.used_in_turn == pytest.approx(used)
    assert disturbed.memory_in_turn == pytest.approx(memory)


def test_more_than_a_ceiling_is_called_an_error():
    assert run(0.1, 1.3).memory.error
    assert not run(0.1, 1.02).memory.error


@pytest.mark.parametrize(
    ("rates", "products", "best", "expected"),
    [
        ((25e9, 15e9, 15e9), (400e9, 2e12, 400e9), "bfloat16", torch.float32),  # conversion binds
        ((4.4e12, 4.2e12, 4.2e12), (50e12, 700e12, 700e12), "bfloat16", torch.bfloat16),
        ((0.29e12, 0.29e12, 0.28e12), (8e12, 3e12, 50e12), "float16", torch.float16),
        ((15e9, 12e9, 17e9), (141e9, 363e9, 28e9), "bfloat16", torch.float32),  # float16 is emulated
    ],
)
def test_memory_is_judged_in_a_dtype_in_which_it_binds(rates, products, best, expected):
    one_row, flops = (
        dict(zip(("float32", "bfloat16", "float16"), values, strict=True)) for values in (rates, products)
    )
    measured = replace(ROOFS, one_row_bytes_per_s=one_row, flop_per_s=flops, best_dtype=best)
    assert idle_runs.streaming_dtype(measured) == expected


def test_foretold_use_is_the_roofline_over_the_peak():
    share = idle_runs.foretold_use(ROOFS, torch.float32, flops=1e9, nbytes=2e9)  # half a FLOP a byte, a ridge of 10
    assert share == pytest.approx(0.05)  # an ordinary processor in fp32
    assert idle_runs.foretold_use(ROOFS, torch.float32, flops=1e12, nbytes=1e9) == 1


def test_rows_go_on_until_the_rise_can_be_seen():
    assert idle_runs.rows_to_time(ROOFS, torch.float32) == POWERS
    fast = replace(ROOFS, flop_per_s={"bfloat16": 800e12}, read_bytes_per_s=4e12)  # its ridge is at 200 rows
    assert idle_runs.rows_to_time(fast, torch.bfloat16) == [*POWERS, 1024]


def test_the_knee_of_an_ideal_tile_is_its_ridge():
    assert IDEAL.ridge_rows == pytest.approx(10)
    assert IDEAL.knee == pytest.approx(10)
    for rows in POWERS:
        assert IDEAL.seconds(rows) == pytest.approx(IDEAL.floor_s(rows))


def test_a_slow_kernel_for_one_row_moves_the_knee_as_foretold():
    took = {n: max(0.08, n * 0.002) for n in POWERS}  # four times as long as the bytes of one row take
    slow = tile(took, one_row=0.25)
    assert slow.ridge_rows == pytest.approx(10) and slow.knee == pytest.approx(40)
    assert slow.foretold_knee == pytest.approx(40)
    assert idle_runs.knee_as_foretold(slow)
    assert not idle_runs.knee_as_foretold(tile(took))  # the plain product is as fast as a read, and this one is not


def test_one_of_many_took_its_part_of_the_time():
    four = run(0.2, 0.7, seconds=8)
    one = idle_runs._of_one(four, 4)
    assert one.timing.median_s == 2
    assert (one.used, one.memory) == pytest.approx((0.2, 0.7))
    assert (one.used_in_turn, one.memory_in_turn) == pytest.approx((0.2, 0.7))


@pytest.fixture
def small(monkeypatch):
    """Measurements over megabytes, not over gigabytes."""
    monkeypatch.setattr(idle_runs, "LEAST_BYTES", 1 << 26)


def test_a_tile_is_timed_with_every_number_of_rows(small):
    timed = idle_runs.time_tile(ROOFS, CPU, torch.float32, [1, 4], budget_s=0.05)
    assert list(timed.runs) == [1, 4]
    assert timed.runs[4].flops == 4 * timed.runs[1].flops == 4 * 2 * timed.outer * timed.inner
    assert timed.runs[4].bytes == timed.runs[1].bytes == timed.bytes == 4 * timed.outer * timed.inner
    assert len({len(r.timing.samples_s) for r in timed.runs.values()}) == 1  # in turns


def test_the_tile_is_another_one_each_time(small, monkeypatch):
    seen = []
    honest = idle_runs.multiply
    monkeypatch.setattr(idle_runs, "multiply", lambda x, w: seen.append(w.data_ptr()) or honest(x, w))
    idle_runs.time_tile(ROOFS, CPU, torch.float32, [1], budget_s=0.05)
    assert len(seen) > 4 and all(a != b for a, b in itertools.pairwise(seen))


def test_two_passes_of_the_real_decoder(small):
    from utils.weights import random_decoder

    runs = idle_runs.passes(random_decoder(TINY), ROOFS, prompt=8)
    weights = 4 * TINY.read_parameters
    cache = TINY.kv_bytes_per_token(4)
    assert runs["decode"].bytes == pytest.approx(weights + 9 * cache + cache)  # read nine, written one
    assert runs["prefill"].bytes == pytest.approx(weights + 8 * cache + 8 * cache)
    assert runs["prefill"].flops > 5 * runs["decode"].flops


# --- one layer of a large model ------------------------------------------------------------------------------------


def test_one_layer_has_the_size_that_the_whole_model_gives_it():
    layer = idle_runs.narrowed(BIG, 1)
    assert f"{2 * layer.layer_parameters / 1e9:.3f} GB" == "1.711 GB"
    assert f"{idle_runs.HEAD_PARTS * 2 * layer.vocab * layer.hidden / 1e9:.2f} GB" == "2.10 GB"
    quarter = idle_runs.narrowed(BIG, 2)
    assert 4 * quarter.layer_parameters == pytest.approx(layer.layer_parameters, rel=1e-4)
    assert quarter.heads // quarter.kv_heads == 8  # the shape of the sharing stays


@pytest.mark.parametrize(("free_gb", "by"), [(100, 1), (5, 2), (3, 4), (2.1, 8)])
def test_a_layer_that_does_not_fit_is_narrowed(free_gb, by):
    assert idle_runs.divisor(BIG, torch.float32, free_gb * 1e9) == by


def test_too_little_memory_is_said():
    with pytest.raises(MemoryError, match=r"1\.0 GB are free: too little even for a narrow layer"):
        idle_runs.divisor(BIG, torch.float32, 1e9)


@pytest.mark.parametrize("by", [1, 2])
def test_layers_and_head_make_a_step(by):
    h100 = catalogue.find("H100 SXM")
    part = idle_runs.narrowed(BIG, by)
    layer_s, head_s = (2 * count / h100.read_bytes_per_s for count in (part.layer_parameters, part.vocab * part.hidden))
    timed = idle_runs.LayerRun(run(0, 1, layer_s), run(0, 1, head_s), BIG.layers, by)
    assert f"{1 / timed.step_s:.1f} tokens a second" == "24.1 tokens a second"


def test_a_layer_is_timed_for_real(small):
    timed = idle_runs.time_layer(TINY, ROOFS, CPU, torch.float32)
    assert timed.divided_by == 1
    assert timed.layer.bytes == 4 * TINY.layer_parameters
    assert timed.head.bytes == 4 * TINY.vocab // idle_runs.HEAD_PARTS * TINY.hidden
    assert "one layer of tiny, as it is" in idle_runs.layer_in_words(timed, TINY)
    assert "divided by 4, for want of memory" in idle_runs.layer_in_words(replace(timed, divided_by=4), TINY)


def test_a_processor_is_not_made_to_hold_140_gb():
    assert idle_runs.time_whole(BIG, CPU, torch.bfloat16) is None


def test_the_monitor_of_a_processor_is_the_system(small):
    seen = idle_runs.watch(ROOFS, CPU, torch.float32, seconds=0.1)
    assert "system" in seen.monitor
    assert 0 < seen.busy <= 1
    assert seen.used / seen.memory == pytest.approx(0.5 * 25e9 / 250e9)  # half a FLOP a byte, whatever the speed


# --- the sliders' arithmetic ---------------------------------------------------------------------------------------


def test_a_setting_is_the_exact_reading():
    at = idle_runs.setting("H100 SXM", "Llama-3.1-70B", 2, 1, 1, 4)
    assert f"{at.reading.tokens_per_s:.2f}" == "24.10"
    assert (at.dtype, at.memory, len(at.path), at.reading.chips_needed) == ("bf16", 1.0, 1, 2)
    assert at.path[-1] == pytest.approx((1.0, 3.35e12), rel=1e-3)


def test_the_dot_climbs_with_the_batch_and_memory_rests_beyond_the_ridge():
    at = idle_runs.setting("H100 SXM", "Llama-3.1-70B", 2, 64, 1, 4)
    assert [round(intensity) for intensity, _ in at.path] == [1, 2, 4, 8, 16, 32, 64]
    assert all(later > sooner for (_, sooner), (_, later) in itertools.pairwise(at.path))
    beyond = idle_runs.setting("H100 SXM", "Llama-3.1-70B", 2, 1024, 1, 4)
    assert beyond.reading.bound_by == "compute"
    assert beyond.memory == pytest.approx(295 / 1024, rel=0.01)


def test_every_chip_and_model_of_the_sliders_can_be_set():
    names = idle_runs.chips_to_choose()
    assert names[0] == "H100 SXM" and len(set(names)) == len(names) > 20
    for chip in names:
        for model in ("SmolLM2-135M", "Llama-3.1-405B"):
            assert 0 <= idle_runs.setting(chip, model, 0.5, 1024, 131_072, 1).reading.idle <= 1


def test_an_unknown_name_is_answered_with_the_nearest():
    with pytest.raises(ValueError, match=r"nearest: Llama-3\.1-70B"):
        idle_runs.setting("H100 SXM", "Llama-3.1-71B", 2, 1, 1, 4)


def test_words_a_minute():
    assert idle_runs.words_per_minute(24, "three short words", 4) == pytest.approx(1080)


@pytest.mark.parametrize(("rate", "text", "tokens"), [(0, "a", 1), (1, "", 1), (1, "a", 0), (float("nan"), "a", 1)])
def test_words_that_cannot_be_counted(rate, text, tokens):
    with pytest.raises(ValueError, match="give a number above zero"):
        idle_runs.words_per_minute(rate, text, tokens)


# --- the figures ---------------------------------------------------------------------------------------------------


def boxes_of(ax, role: str) -> list[tuple[float, float, float]]:
    """(left, width, height) of the boxes of one colour, five points each."""
    paths = [a for a in ax.patches if np.allclose(a.get_facecolor()[:3], to_rgb(plots.PALETTE[role]))]
    boxes = [box for a in paths for box in a.get_path().vertices.reshape(-1, 5, 2)]
    return [(box[0, 0], *(box.max(0) - box.min(0))) for box in boxes]


def area(boxes) -> float:
    return sum(width * height for _, width, height in boxes)


def drawn(draw, *args, widths=(1,), size=plots.SIZE, **options):
    fig, axes = plots.figure("A title that says what is drawn", widths, size)
    draw(axes, *args, **options)
    return fig, axes


def test_the_chip_has_a_cell_for_each_tflop_of_an_h100():
    assert idle_figures.CELLS == int(catalogue.find("H100 SXM").flop_per_s["bf16"] / 1e12) == 989
    _, ax = drawn(idle_figures.draw_chip, 3.35 / 989, 1.0, "H100 SXM")
    lit = boxes_of(ax, "compute")
    assert len(lit) == 4  # three, and a part of the fourth
    assert lit[3][1] / lit[0][1] == pytest.approx(0.35)


@settings(max_examples=20, deadline=None)
@given(st.floats(0, 1), st.floats(0, 1))
def test_what_is_lit_is_what_is_used(used, memory):
    _, ax = drawn(idle_figures.draw_chip, used, memory, "a chip")
    one_cell, banks = 0.82**2, 2 * idle_figures.ROWS * 2.9 * 0.82
    assert area(boxes_of(ax, "compute")) / one_cell / 989 == pytest.approx(used, abs=1e-6)
    assert area(boxes_of(ax, "bandwidth")) / banks == pytest.approx(memory, abs=1e-6)


@pytest.mark.parametrize(
    ("share", "text"),
    [(0.99661, "99.66 %"), (0.7833, "78.3 %"), (0.00339, "0.34 %"), (1.0, "100 %"), (0.0, "0 %"), (0.5, "50.0 %")],
)
def test_percentages_keep_the_digits_that_matter(share, text):
    assert idle_figures.percent(share) == text


SETTINGS = [
    ("H100 SXM", "Llama-3.1-70B", 2, 1, 1, 4),
    ("H100 SXM", "Llama-3.1-70B", 2, 64, 1, 4),
    ("Apple M1", "Llama-3.1-405B", 0.5, 1024, 131_072, 8),
    ("B200", "SmolLM2-135M", 0.5, 1024, 1, 1),
    ("A100 80 GB PCIe", "SmolLM2-1.7B", 1, 128, 131_072, 8),
    ("T4", "Llama-2-13B", 2, 16, 500, 6),
]


def every_figure():
    h100 = catalogue.find("H100 SXM")
    users = [1, 8, 64, 295, 2048]
    bands = [idle.idealised(h100, "bf16", 70e9, n, price=(4, 8)).dollars_per_million for n in users]
    wide = {"widths": (1.25, 1), "size": (9, 5.2)}
    two = {"widths": (1, 1), "size": (9, 3.7)}
    shares = {"Prefill: 2,000 tokens at once": (0.939, 0.244), "Decode: the very next token": (0.0035, 1.0)}
    seen = idle_runs.Monitored(0.997, "somebody", run(0.04, 0.94).memory, run(0.04, 0.94).used)
    flat = tile({2**k: max(0.02, 2**k * 1e-4) for k in range(11)}, peak=2e13)
    low = tile({n: max(0.02, n * 0.02) for n in POWERS}, peak=1e11)
    return [
        *((idle_figures.draw_setting, (idle_runs.setting(*at),), wide) for at in SETTINGS),
        (idle_figures.draw_chip, (0.00339, 1.0, "H100 SXM"), {}),
        (idle_figures.draw_two_chips, (shares,), two),
        (idle_figures.draw_rows, (IDEAL,), {}),
        (idle_figures.draw_rows, (flat,), {}),
        (idle_figures.draw_rows, (low,), {}),
        (idle_figures.draw_monitor, (seen,), {"size": (9, 3.9)}),
        (idle_figures.draw_sold, ({"H100 SXM": 295.0, "A100 80 GB SXM": 153.0, "L4": 403.0}, 1), {}),
        (idle_figures.draw_money, (users, bands, 295, [high for _, high in bands]), {}),
    ]


@pytest.mark.parametrize("which", range(len(every_figure())))
def test_words_are_large_enough_apart_and_inside(which):
    draw, args, options = every_figure()[which]
    fig, axes = drawn(draw, *args, **options)
    plots.png(fig, 1)  # lays it out
    renderer = FigureCanvasAgg(fig).get_renderer()
    texts = [t for ax in np.ravel(axes) for t in ax.texts if t.get_text()]
    assert texts
    boxes = {}
    for text in texts:
        assert text.get_fontsize() >= 12
        assert not is_math_text(text.get_text()), "two bare dollar signs begin a formula"
        boxes[text.get_text()] = text.get_window_extent(renderer)
    for words, box in boxes.items():
        inside = fig.bbox.x0 <= box.x0 and box.x1 <= fig.bbox.x1 and fig.bbox.y0 <= box.y0 and box.y1 <= fig.bbox.y1
        assert inside, f"{words!r} leaves the figure"
    for (one, a), (other, b) in itertools.combinations(boxes.items(), 2):
        assert not a.padded(-1).overlaps(b.padded(-1)), f"{one!r} lies over {other!r}"


def test_sliders_move_what_is_drawn_and_never_the_frame():
    def frame(axes):
        return [
            (ax.get_xlim(), ax.get_ylim(), list(ax.get_xticks()), list(ax.get_yticks()), ax.get_xlabel()) for ax in axes
        ]

    frames, pictures = [], set()
    for at in SETTINGS:
        fig, axes = drawn(idle_figures.draw_setting, idle_runs.setting(*at), widths=(1.25, 1), size=(9, 5.2))
        frames.append(frame(axes))
        pictures.add(plots.png(fig, 1))
    assert all(other == frames[0] for other in frames)
    assert len(pictures) == len(SETTINGS)


def test_the_dot_sits_on_its_roofline_and_the_gap_above_it_is_idle():
    at = idle_runs.setting("H100 SXM", "Llama-3.1-70B", 2, 64, 1, 4)
    _, (_, ax) = drawn(idle_figures.draw_setting, at, widths=(1.25, 1), size=(9, 5.2))
    (dot,) = [line for line in ax.lines if line.get_markersize() > 12 and line.get_marker() == "o"]
    assert (dot.get_xdata()[0], dot.get_ydata()[0]) == pytest.approx((64, 64 * 3.35e12), rel=0.01)
    (gap,) = [line for line in ax.lines if line.get_linewidth() > 5]
    assert max(gap.get_ydata()) == 989.4e12 and min(gap.get_ydata()) == dot.get_ydata()[0]


@pytest.mark.parametrize("at", SETTINGS)
def test_the_line_of_the_ridge_crosses_no_word(at):
    fig, (_, ax) = drawn(idle_figures.draw_setting, idle_runs.setting(*at), widths=(1.25, 1), size=(9, 5.2))
    plots.png(fig, 1)  # lays it out
    (line,) = [line for line in ax.lines if line.get_linestyle() == ":"]
    ends = ax.transData.transform(np.column_stack(line.get_data()))
    for box in (text.get_window_extent() for text in ax.texts if text.get_text() != "idle"):
        crosses = box.x0 < ends[0, 0] < box.x1 and min(ends[:, 1]) < box.y1 and box.y0 < max(ends[:, 1])
        assert not crosses


def test_measured_rows_are_dots_and_the_floor_is_a_line():
    _, ax = drawn(idle_figures.draw_rows, IDEAL)
    floor, dots = ax.lines[0], ax.lines[-1]
    assert list(dots.get_xdata()) == POWERS and dots.get_linestyle() == "None"
    assert "ridge: 10 rows" in [text.get_text() for text in ax.texts]
    assert dots.get_ydata()[0] == pytest.approx(0.02) and floor.get_ydata()[0] == pytest.approx(0.02)


# --- the claims: the notebook's own cells, on numbers that hold and on numbers that do not ---------------------------


def say(*ids: str, **given) -> str:
    names = {"h100": catalogue.find("H100 SXM"), "llama": BIG, "peak": 989.4e12, "ridge": 989.4 / 3.35}
    return claims.say(NOTEBOOK, *ids, **names | given)


DERIVATION = [f"idle-derive-{part}" for part in ("bytes", "seconds", "rate", "flops", "used")]
GOOD = {"prefill": run(0.6, 0.1), "decode": run(0.004, 0.9)}


def other_chip(**changes) -> catalogue.Chip:
    return replace(catalogue.find("H100 SXM"), **changes)


def test_c9_a_prompt_that_changes_nothing_turns_the_verdicts(monkeypatch):
    assert not turned(say("idle-prefill-verdict")) and not turned(say("idle-measure-verdict", runs=GOOD))
    wide = other_chip(read_bytes_per_s=1e18)
    assert turned(say("idle-prefill-verdict", h100=wide)) == ["arithmetic binds the first, memory the second"]
    alike = GOOD | {"prefill": run(0.007, 0.9)}
    assert "more than twice" in turned(say("idle-measure-verdict", runs=alike))[0]
    import utils.counts

    honest = utils.counts.forward_pass
    by_row = [replace(m, weight_bytes=m.weight_bytes * m.rows) for m in honest(BIG, 1, 2000, 0)]  # read for each row
    monkeypatch.setattr(utils.counts, "forward_pass", lambda s, b, n, c: by_row if n > 1 else honest(s, b, n, c))
    assert "both passes multiply with the same weights, to the byte" in turned(say("idle-prefill-verdict"))


def test_c10_a_chip_that_waits_for_no_memory_turns_the_verdicts(monkeypatch):
    assert not turned(say(*DERIVATION, "idle-derive-verdict")) and not turned(say("idle-cards-verdict"))
    assert turned(say("idle-cards-verdict", h100=other_chip(memory_bytes=160 * 10**9)))
    assert turned(say("idle-cards-verdict", h100=other_chip(memory_bytes=20 * 10**9)))
    honest, slow = run(0.03, 0.8), run(0.03, 0.3)  # the second waits for something else than memory
    assert not turned(say("idle-layer-verdict", big=idle_runs.LayerRun(honest, honest, 80, 1)))
    assert "reads its weights" in turned(say("idle-layer-verdict", big=idle_runs.LayerRun(slow, slow, 80, 1)))[0]
    weak = run(0.03, 0.3, one_row=0.36)  # and so does a plain product of one row
    assert not turned(say("idle-layer-verdict", big=idle_runs.LayerRun(weak, weak, 80, 1)))
    fast = other_chip(read_bytes_per_s=3.35e18)
    monkeypatch.setattr(catalogue, "find", lambda name: fast)
    assert "the memory, not the arithmetic, sets the time" in turned(say(*DERIVATION, "idle-derive-verdict"))


def test_c10_two_cards_of_which_one_sleeps_turn_the_verdict(monkeypatch):
    honest = idle.idealised
    monkeypatch.setattr(idle, "idealised", lambda *a, chips=1, **k: replace(honest(*a, **k), fits=chips > 1))
    assert turned(say("idle-cards-verdict")) == ["two cards write faster, and both idle as much as one"]


def test_c11_a_share_that_depends_on_the_size_turns_the_verdict(monkeypatch):
    assert not turned(say("idle-size", "idle-size-verdict"))
    monkeypatch.setattr(idle, "weights_only", lambda p, b, w: [replace(m, flops=140e9) for m in weights_only(p, b, w)])
    assert turned(say("idle-size", "idle-size-verdict"))


def test_c11_arithmetic_counted_once_a_weight_turns_the_verdict(monkeypatch):
    monkeypatch.setattr(
        idle, "weights_only", lambda p, b, w: [replace(m, flops=m.flops // 2) for m in weights_only(p, b, w)]
    )
    assert turned(say(*DERIVATION, "idle-derive-verdict")) == ["six lines by hand and idle.py agree"]


def test_c11_a_busy_chip_or_a_hasty_timer_turns_the_verdicts():
    assert "mostly idle" in turned(say("idle-measure-verdict", runs=GOOD | {"decode": run(0.6, 0.9)}))[0]
    hasty = GOOD | {"decode": run(0.004, 2.0)}  # it did not wait for the device
    assert turned(say("idle-measure-verdict", runs=hasty)) == [
        "a step takes at least two thirds of the time in which a plain read takes its bytes"
    ]
    busy = run(0.7, 0.8)
    assert "mostly idle" in turned(say("idle-layer-verdict", big=idle_runs.LayerRun(busy, busy, 80, 1)))[0]
    starved = replace(run(0.04, 0.8), product=Timing((2.0,) * 3))  # a neighbour has slowed the product of these rounds
    assert not turned(say("idle-layer-verdict", big=idle_runs.LayerRun(starved, starved, 80, 1)))


def test_c11_a_monitor_that_counts_operations_turns_the_verdict():
    shares = run(0.04, 0.94)
    for busy, says_no in ((0.99, False), (0.04, True)):
        seen = idle_runs.Monitored(busy, "somebody", shares.memory, shares.used)
        assert bool(turned(say("idle-monitor-verdict", seen=seen))) == says_no


def test_c11_a_long_context_that_fills_the_chip_turns_the_verdict():
    assert not turned(say("idle-exact-verdict"))
    assert turned(say("idle-exact-verdict", h100=other_chip(flop_per_s={"bf16": 30e12})))


def test_c12_rows_that_do_not_ride_turn_the_verdicts():
    assert not turned(say("idle-rows-verdict", tile=IDEAL))
    each_pays = tile({n: 0.02 * n for n in POWERS})
    assert "64 rows take less than half of 64 times one row" in turned(say("idle-rows-verdict", tile=each_pays))
    for_ever = turned(say("idle-rows-verdict", tile=tile(dict.fromkeys(POWERS, 0.02))))
    knee = "the knee lies where ridge and one row foretell it, within a factor of three"
    assert for_ever == ["in the end more rows take more time", knee]
    other_dtype = replace(IDEAL, bytes_per_weight=8)
    assert turned(say("idle-rows-verdict", tile=other_dtype)) == [knee]
    assert turned(say("idle-rows-verdict", tile=tile({n: max(0.02, n * 0.002) for n in POWERS}, one_row=0.2))) == [
        knee
    ]  # one row was said to be slow, and is not


def test_c12_memory_that_feeds_every_core_turns_the_verdict():
    assert not turned(say("idle-tick", "idle-tick-verdict"))
    assert len(turned(say("idle-tick", "idle-tick-verdict", h100=other_chip(read_bytes_per_s=500e12)))) == 2


def test_c13_users_who_do_not_share_turn_the_verdict(monkeypatch):
    assert not turned(say("idle-money-verdict"))
    honest = idle.idealised
    monkeypatch.setattr(idle, "idealised", lambda c, d, p, batch, **k: honest(c, d, p, 1, **k))
    assert turned(say("idle-money-verdict")) == ["295 users pay less than a hundredth each of what one pays"]


def test_c13_arithmetic_without_end_turns_the_verdict():
    endless = other_chip(flop_per_s={"bf16": 1e18})
    assert turned(say("idle-money-verdict", h100=endless)) == ["beyond the ridge, more users make it no cheaper"]


def test_c16_a_slow_chip_or_a_busy_one_turns_the_verdicts(embedded):
    step = idle.idealised(catalogue.find("H100 SXM"), "bf16", 70e9)
    names = {"tokenizer": embedded[1], "step": step, "tokens_per_s": step.tokens_per_s}
    assert not turned(say("idle-reading", "idle-reading-verdict", **names))
    slow = turned(say("idle-reading", "idle-reading-verdict", **names | {"tokens_per_s": 5.0}))
    assert slow == ["one user is served more than twice as fast as he reads"]
    busy = turned(say("idle-reading", "idle-reading-verdict", **names | {"step": replace(step, idle=0.2)}))
    assert busy == ["and the chip idles all the same"]


def test_c17_a_chip_that_sells_what_is_asked_turns_the_verdicts(monkeypatch):
    assert not turned(say("idle-sold-verdict"))
    device = {"my_peak": 250e9, "my_bandwidth": 25e9, "dtype": torch.float32}
    assert not turned(say("idle-ceilings-verdict", **device))
    assert turned(say("idle-ceilings-verdict", **device | {"my_peak": 10e9}))
    fitting = other_chip(flop_per_s={"bf16": 3.35e12})
    monkeypatch.setattr(catalogue, "find", lambda name: fitting)
    assert turned(say("idle-sold-verdict"))


NO_CLAIM = {"idle-drift-verdict"}  # it asks whether the yardstick held
CLAIM_MAP = {  # claim: the cells of notebook 03 whose verdicts show it; the tests above turn them
    "C9": ["idle-prefill-verdict", "idle-measure-verdict"],
    "C10": ["idle-derive-verdict", "idle-cards-verdict", "idle-layer-verdict"],
    "C11": [
        "idle-derive-verdict",
        "idle-size-verdict",
        "idle-exact-verdict",
        "idle-measure-verdict",
        "idle-layer-verdict",
        "idle-monitor-verdict",
    ],
    "C12": ["idle-rows-verdict", "idle-tick-verdict"],
    "C13": ["idle-money-verdict"],
    "C16": ["idle-reading-verdict"],
    "C17": ["idle-sold-verdict", "idle-ceilings-verdict"],
}


@pytest.mark.parametrize("claim", CLAIM_MAP)
def test_the_notebook_shows_the_claim(claim):
    assert_shown(NOTEBOOK, CLAIM_MAP, claim, globals())


def test_every_verdict_of_the_notebook_belongs_to_a_claim():
    mapped = {cell_id for ids in CLAIM_MAP.values() for cell_id in ids}
    assert mapped | NO_CLAIM == {
        cell_id for cell_id, cell in cells(NOTEBOOK).items() if "checks.verdict(" in "".join(cell["source"])
    }


@pytest.mark.parametrize(
    ("cell_id", "figure"),
    [
        ("idle-derive-bytes", "140 GB"),
        ("idle-derive-seconds", "41.8 ms"),
        ("idle-derive-rate", "23.9 tokens a second"),
        ("idle-derive-flops", "3.35 TFLOP/s; with 24 tokens a second: 3.36 TFLOP/s"),
        ("idle-derive-used", "0.34%"),
        ("idle-derive-idle", "99.66%"),
        ("idle-money", "$46.4 to $92.9"),
        ("idle-tick", "989.4 TFLOP/s"),
    ],
)
def test_the_derivation_prints_the_chapters_figures(cell_id, figure):
    assert figure in "".join("".join(output.get("text", "")) for output in cells(NOTEBOOK)[cell_id]["outputs"])


def test_all_models_of_the_catalogue_are_in_the_table():
    printed = "".join("".join(output.get("text", "")) for output in cells(NOTEBOOK)["idle-size"]["outputs"])
    assert all(shape.name in printed for shape in MODELS.values())
    assert printed.count("0.339% used") == len(MODELS)
