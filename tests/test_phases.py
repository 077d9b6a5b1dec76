"""Prefill and decode: traces and counts of real passes, predictions on machines made up for the purpose, verdicts."""

import dataclasses
import json
import statistics
from pathlib import Path

import claims
import pytest
import torch
from claims import assert_shown, turned
from torch import nn
from torch.profiler import ProfilerActivity, profile

from chapter01 import phases, phases_figures, speeds
from utils import plots
from utils.ceilings import Ceilings
from utils.chips import find as chip
from utils.counts import forward_pass, totals
from utils.models import Shape, find
from utils.roofline import Prediction
from utils.timing import Timing
from utils.weights import random_decoder

CPU = torch.device("cpu")
# No two widths alike, and the query width is not the hidden width.
TINY = Shape("tiny", layers=3, hidden=40, heads=6, kv_heads=2, head_dim=16, ffn=56, vocab=77, tied=False)
BIG = find("Llama-3.1-70B")
NOTEBOOK = Path(__file__).parent.parent / "notebooks" / "02_prefill_and_decode.ipynb"


def say(*ids: str, **given) -> str:
    return claims.say(NOTEBOOK, *ids, **given)


def timing(*seconds):
    return Timing(tuple(seconds))


def made_up(**changes):
    """A machine of round numbers: 100 FLOP a byte, no kernel below its roof, no overhead."""
    ideal = speeds.Speeds(4, 1e12, 1e10, lambda name, rows: 1e12, lambda new, batch: 1e12, 1e10, 0.0, False)
    return dataclasses.replace(ideal, **changes)


@pytest.fixture(scope="module")
def model():
    return random_decoder(TINY)


# --- one pass, matrix by matrix --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("batch", "new"), [(1, 9), (1, 1), (3, 5)])
def test_a_trace_is_what_the_counts_foretell(model, batch, new):
    products = phases.trace(model, torch.ones(batch, new, dtype=torch.long))
    modules = forward_pass(TINY, batch, new, 0, 4, 4, 4)
    assert phases.counted_alike(products, modules)
    assert [p.name for p in products] == ["qkv", "out", "gate", "up", "down", "head"]  # in the order of the pass
    assert products[0].input == (batch, new, 40)
    assert products[0].weight == ((6 + 2 * 2) * 16, 40)
    assert products[0].output == (batch, new, 160)
    assert products[-1].input == (batch, 40)  # the head works on the last position only
    assert not any(part._forward_hooks for part in model.modules())


@pytest.mark.parametrize(
    "wrong",
    [(2, 9, 4), (1, 8, 4), (1, 9, 2)],
    ids=["another batch", "another length", "another width"],
)
def test_c8_counts_of_another_pass_turn_the_verdict(model, wrong):
    batch, new, width = wrong
    products = phases.trace(model, torch.ones(1, 9, dtype=torch.long))
    assert not phases.counted_alike(products, forward_pass(TINY, batch, new, 0, width, width, width))


def test_c7_passes_that_are_not_what_was_counted_turn_the_verdicts(model):
    many, one = (phases.trace(model, torch.ones(1, new, dtype=torch.long)) for new in (512, 1))
    assert not turned(say("phases-trace-verdict", real=model, prefill_products=many, decode_products=one))
    swapped = say("phases-trace-verdict", real=model, prefill_products=one, decode_products=many)
    assert len(turned(swapped)) == 2


def test_c8_a_machine_that_is_asked_for_all_it_offers_turns_the_verdict():
    assert not turned(say("phases-ceilings-verdict", ridge=9.0, width=4))
    assert turned(say("phases-ceilings-verdict", ridge=0.4, width=4))


def test_a_product_that_is_left_out_is_noticed(model):
    products = phases.trace(model, torch.ones(1, 9, dtype=torch.long))
    assert not phases.counted_alike(products[1:], forward_pass(TINY, 1, 9, 0, 4, 4, 4))


def test_the_hooks_are_gone_when_a_pass_fails(model):
    with pytest.raises(IndexError):
        phases.trace(model, torch.full((1, 2), 10_000))
    assert not any(part._forward_hooks for part in model.modules())


def test_the_table_of_a_trace(model):
    table = phases.trace_table(phases.trace(model, torch.ones(1, 9, dtype=torch.long))).splitlines()
    assert len(table) == 2 + 6 + 1
    assert len({len(line) for line in table}) == 1
    assert table[2].split()[:2] == ["qkv", "3"]
    assert "[1, 9, 40]" in table[2]
    assert table[-1].split()[1] == "16"  # 5 products in 3 layers, and the head


# --- predictions -----------------------------------------------------------------------------------------------------


def test_without_losses_the_prediction_is_the_floor():
    for at in ((1, 1, 0), (4, 8, 100), (1, 2000, 0)):
        assert speeds.foretell(BIG, made_up(), *at) == pytest.approx(speeds.floor(BIG, made_up(), *at).seconds)


def test_each_loss_lengthens_its_own_part():
    at = (1, 64, 1024)
    ideal = speeds.foretell_parts(BIG, made_up(), *at)
    for part, loss in {
        "matmul": {"matmul_flop_per_s": lambda name, rows: 1e10 if (name, rows) == ("gate", 64) else 1e12},
        "attention": {"attention_flop_per_s": lambda new, batch: 1e8 if (new, batch) == (64, 1) else 1e12},
        "other": {"elementwise_bytes_per_s": 1e9},
        "overhead": {"overhead_s": 5.0},
    }.items():
        slower = speeds.foretell_parts(BIG, made_up(**loss), *at)
        assert slower[part] > 1.5 * ideal[part]
        assert {k: v for k, v in slower.items() if k != part} == {k: v for k, v in ideal.items() if k != part}


def test_overhead_adds_on_a_cpu_and_hides_behind_a_gpu():
    executing_s = speeds.foretell(BIG, made_up(), 1, 1, 0)
    for overhead_s in (0.5 * executing_s, 2 * executing_s):
        cpu, gpu = (made_up(overhead_s=overhead_s, overlap=overlap) for overlap in (False, True))
        assert speeds.foretell(BIG, cpu, 1, 1, 0) == pytest.approx(executing_s + overhead_s)
        assert speeds.foretell(BIG, gpu, 1, 1, 0) == pytest.approx(max(executing_s, overhead_s))


def test_the_speeds_of_this_machine(model):
    """No figure is sworn to, but each part is there, positive, and measured for what it is asked for."""
    roofs = Ceilings("x", 1e10, "sum", 1 << 30, {"float32": 1e10}, {"float32": 1e11}, {"float32": 512}, "float32", ())
    here = speeds.measure_speeds(model, roofs)
    assert (here.flop_per_s, here.read_bytes_per_s, here.bytes_per_number) == (1e11, 1e10, 4)
    assert all(here.matmul_flop_per_s(name, 3) > 0 for name in ("qkv", "out", "gate", "up", "down", "head"))
    assert all(here.attention_flop_per_s(new, batch) > 0 for new in (1, 3, 4000) for batch in (1, 2, 99))
    assert here.elementwise_bytes_per_s > 0
    assert not here.overlap


def test_the_speed_of_a_product_is_its_flops_over_its_time(model, monkeypatch):
    """All products take one second, whatever their rows: the rates are the FLOPs."""
    names = ("qkv", "out", "gate", "up", "down", "head")
    monkeypatch.setattr(speeds, "time_products", lambda *args, **kwargs: {name: timing(1.0) for name in names})
    flop_per_s = speeds.product_speed(model)
    assert flop_per_s("qkv", 1) == pytest.approx(2 * 3 * 40 * 160)  # three layers
    assert flop_per_s("qkv", 256) == pytest.approx(256 * 2 * 2 * 40 * 160)  # two will do
    assert flop_per_s("down", 16) == pytest.approx(16 * 2 * 3 * 40 * 56)
    assert flop_per_s("head", 4) == pytest.approx(4 * 2 * 40 * 77)
    assert flop_per_s("head", 512) == flop_per_s("head", 64) == pytest.approx(64 * 2 * 40 * 77)
    assert flop_per_s("qkv", 1) < flop_per_s("qkv", 3) < flop_per_s("qkv", 4)


def test_launches_go_with_the_depth():
    shallow, deep = (dataclasses.replace(TINY, layers=layers) for layers in (1, 40))
    assert speeds.time_launches(shallow, CPU, torch.float32) < speeds.time_launches(deep, CPU, torch.float32)


def test_a_hollow_model_has_all_but_the_products():
    model = speeds.hollow(TINY, CPU, torch.float32)
    assert not [part for part in model.modules() if isinstance(part, nn.Linear)]
    assert len([part for part in model.modules() if isinstance(part, nn.RMSNorm)]) == 2 * 3 + 1
    speeds.ready(model, 2, 5, 3)()  # and it runs
    called = []
    speeds.ready(speeds.hollow(TINY, CPU, torch.float32, lambda: called.append(1)), 1, 1, 0)()
    assert len(called) == 5 * 3 + 1  # in place of each product


def test_the_reads_taken_off_are_those_of_the_pass():
    def reads_of(call):
        with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as seen:
            call()
        block = [speeds.SWEPT_BYTES // 4]
        return sum(event.name == "aten::sum" and block in event.input_shapes for event in seen.events())

    swept, reads = speeds.swept(TINY, CPU, torch.float32)
    assert reads_of(speeds.ready(swept, 1, 1, 0)) == reads_of(reads) == 5 * 3 + 1


def test_specification_is_that_of_the_dtype():
    measured = Ceilings("NVIDIA H100 80GB HBM3", 3e12, "sum", 1 << 30, {}, {}, {}, "bfloat16", ())
    assert phases.specification(measured, "bfloat16") == (989.4e12, 3.35e12)
    assert phases.specification(measured, "float32") == (67e12, 3.35e12)
    t4 = dataclasses.replace(measured, device_name="Tesla T4")
    assert phases.specification(t4, "bfloat16") is None  # emulated there: no peak to draw
    unknown = dataclasses.replace(measured, device_name="a chip of tomorrow")
    assert phases.specification(unknown, "bfloat16") is None


# --- predicted against measured --------------------------------------------------------------------------------------


def test_the_grid_of_the_course_has_24_passes():
    assert len(set(phases.GRID)) == len(phases.GRID) == 3 * 4 * 2


def test_a_grid_times_what_is_short_and_lists_what_is_not(model):
    passes = [(1, 1, 0), (2, 8, 4), (4, 64, 0)]
    slow = made_up(flop_per_s=1e7, matmul_flop_per_s=lambda name, rows: 1e7)
    seconds = [speeds.foretell(TINY, slow, *at) for at in passes]
    told = []
    result = phases.grid(model, slow, passes, limit_s=sorted(seconds)[1], budget_s=0.01, told=told.append)
    assert [(p.batch, p.new, p.context) for p in result.points] == passes[:2]
    assert [p.predicted_s for p in result.points] == seconds[:2]
    assert result.left_out == ((*passes[2], seconds[2]),)
    assert tuple(told) == result.points
    again = phases.grid(model, slow, passes[:1], budget_s=0.01, told=told.append, looks=2)
    assert len(again.points) == 1 and len(told) == 2 + 2
    assert again.points[0].timing.samples_s[: len(told[2].timing.samples_s)] == told[2].timing.samples_s


def test_errors_of_a_grid():
    points = tuple(phases.Point(1, 1, 0, s, timing(1.0)) for s in (1.1, 0.8, 1.05, 1.6))
    result = phases.Grid(points, ())
    assert result.median_error == pytest.approx(0.15)
    assert result.worst is points[3]
    assert result.mean_error == pytest.approx(0.1375)  # foretold too long
    assert 0.2 < result.p90_error < 0.6


# --- a model on which bytes bind -------------------------------------------------------------------------------------


def test_a_cpu_keeps_the_real_model(model):
    assert phases.until_bytes_bind(model, 1e15) is model


def test_the_model_at_hand_has_the_best_dtype_and_leaves_the_real_one_alone(model):
    roofs = Ceilings("x", 1e10, "sum", 1, {}, {}, {}, "bfloat16", ())
    other = phases.at_hand(model, roofs)
    assert other.embed.weight.dtype == torch.bfloat16
    assert model.embed.weight.dtype == torch.float32
    assert phases.at_hand(model, dataclasses.replace(roofs, best_dtype="float32")) is model


def test_the_shrunk_model_has_the_depth_and_a_hundredth_of_the_weights():
    real = find("SmolLM2-135M")
    small = phases.shrunk(real)
    assert small.layers == real.layers
    assert small.parameters < real.parameters / 100
    speeds.ready(random_decoder(small), 1, 1, 2)()


# --- the claims on paper ---------------------------------------------------------------------------------------------


def test_70b_falls_by_three_orders_of_magnitude():
    prefill, decode = (totals(forward_pass(BIG, 1, *at)) for at in ((2000, 0), (1, 2000)))
    assert prefill.intensity / decode.intensity > 1000
    assert prefill.weight_bytes == pytest.approx(decode.weight_bytes, rel=1e-3)


def test_c9_70b_on_an_h100_is_bound_by_one_roof_and_then_by_the_other():
    h100 = chip("H100 SXM")
    roofs = h100.flop_per_s["bf16"], h100.read_bytes_per_s
    prefill = phases.on_paper(BIG, 1, 2000, 0, *roofs)
    decode = phases.on_paper(BIG, 1, 1, 2000, *roofs)
    assert (prefill.regime, decode.regime) == ("compute", "bandwidth")
    assert prefill.compute_s == pytest.approx(0.283, rel=0.02)  # 280 TFLOP, and attention
    assert decode.seconds == pytest.approx(0.0417, rel=0.01)


def test_c9_a_chip_without_arithmetic_or_without_memory_to_wait_for_turns_the_verdicts():
    slow_arithmetic = phases.on_paper(BIG, 1, 1, 2000, 1e11, 3.35e12)
    endless_bandwidth = phases.on_paper(BIG, 1, 1, 2000, 989.4e12, 1e18)
    assert slow_arithmetic.regime == endless_bandwidth.regime == "compute"
    slow_memory = phases.on_paper(BIG, 1, 2000, 0, 989.4e12, 1e11)
    assert slow_memory.regime == "bandwidth"

    def noted(prefill: Prediction, decode: Prediction) -> int:
        return len(turned(say("phases-split-verdict", split=lambda: [("", prefill, 0), ("", decode, 0)])))

    assert noted(endless_bandwidth, slow_memory) == 0
    assert (noted(slow_memory, slow_memory), noted(endless_bandwidth, slow_arithmetic)) == (1, 1)


@pytest.mark.parametrize("batch", [1, 16, 1024])
def test_no_batch_lifts_attention(batch):
    assert phases.attention_intensity(BIG, batch, 2000) == 8


def test_three_regimes_on_a_made_up_machine():
    here = made_up(flop_per_s=2e11, read_bytes_per_s=2e10, overhead_s=10e-3)
    real = find("SmolLM2-135M")
    rows = phases.three_regimes(real, phases.shrunk(real), here)
    assert [p.regime for _, p, _ in rows] == ["compute", "bandwidth", "overhead"]


# --- verdicts: each with numbers that it accepts, and with sabotaged ones that turn it -------------------------------

SHAPE = find("SmolLM2-135M")


@pytest.mark.parametrize(
    ("prefill_s", "decode_s", "holds"),
    [
        ((0.9, 0.95, 1.0), (0.045, 0.05, 0.048), True),
        ((6.0,), (0.9,), True),
        ((512 * 0.045,), (0.045,), False),
        ((0.05,), (0.045,), False),
    ],
    ids=["healthy", "busy: decode suffers more", "prefill goes token by token", "decode reads as slowly as prefill"],
)
def test_c2_equal_loads_turn_the_verdict(prefill_s, decode_s, holds):
    taken = {"prefill long": timing(*prefill_s), "decode long": timing(*decode_s)}
    assert bool(turned(say("phases-roofline-verdict", taken=taken, shape=SHAPE, width=4))) is not holds


GOOD = {
    "prefill short": timing(0.2, 0.21), "prefill long": timing(0.9, 0.8),
    "decode short": timing(0.045, 0.05), "decode long": timing(0.047, 0.05), "eight": timing(0.09, 0.08),
}  # fmt: skip


def test_c7_weights_that_are_not_shared_turn_the_verdict():
    assert not turned(say("phases-phases-verdict", taken=GOOD))
    each_again = GOOD | {"eight": timing(8 * 0.045, 8 * 0.045)}  # each token reads the weights again
    assert "eight tokens together" in turned(say("phases-phases-verdict", taken=each_again))[0]


def test_c7_a_time_that_does_not_grow_turns_the_verdict():
    flat = GOOD | {"prefill long": timing(0.1, 0.09)}
    assert turned(say("phases-phases-verdict", taken=flat)) == ["512 tokens cost more than twice what eight do"]


def test_c8_steps_that_grow_like_prefill_turn_the_verdict():
    assert not turned(say("phases-waits-verdict", taken=GOOD))
    for wrong in ({"prefill long": timing(0.21, 0.22)}, {"decode long": timing(0.2, 0.21)}):
        assert turned(say("phases-waits-verdict", taken=GOOD | wrong))


def test_c9_a_prompt_paid_token_by_token_turns_the_verdict():
    assert not turned(say("phases-here-verdict", taken=GOOD))
    assert turned(say("phases-here-verdict", taken=GOOD | {"prefill long": timing(512 * 0.045, 512 * 0.045)}))


def test_overhead_that_binds():
    assert phases.overhead_binds(timing(9e-3, 10e-3), 60e-6)
    assert not phases.overhead_binds(timing(1e-4, 10e-3), 60e-6)
    assert not phases.overhead_binds(timing(0.045), 0.025)


PASSES = [(1, 1, 0), (16, 1, 1024), (1, 8, 1024), (4, 8, 0), (1, 64, 0), (4, 64, 0), (1, 512, 0), (4, 512, 0)]


def points_of(foretold, slowed=1.0):
    """Points timed on the made-up machine, foretold by another idea of what a pass costs."""
    truth = [speeds.foretell(SHAPE, made_up(), *at) for at in PASSES]
    return [phases.Point(*at, foretold(*at), timing(slowed * s)) for at, s in zip(PASSES, truth, strict=True)]


def test_a_right_prediction_stands_on_a_busy_machine_too():
    for slowed in (1.0, 3.0):
        assert phases.foretold_in_proportion(points_of(lambda *at: speeds.foretell(SHAPE, made_up(), *at), slowed), 1.6)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda batch, new, context: 1e-3 * batch * new,
        lambda batch, new, context: 1e-3,
        lambda *at: speeds.floor(SHAPE, made_up(read_bytes_per_s=1e14), *at).compute_s + 1e-9,
    ],
    ids=["every token costs the same", "every pass costs the same", "bytes are free"],
)
def test_a_wrong_idea_of_the_cost_turns_the_verdict(wrong):
    assert not phases.foretold_in_proportion(points_of(wrong), 1.6)


def test_a_handful_of_passes_shows_no_proportion():
    points = points_of(lambda *at: speeds.foretell(SHAPE, made_up(), *at))
    assert phases.foretold_in_proportion(points[:4], 1.6)
    assert not phases.foretold_in_proportion(points[:3], 1.6)
    assert not phases.foretold_in_proportion([], 1.6)


def test_c8_a_batch_that_lifts_attention_turns_the_verdict():
    good = {"attention 1": timing(7e-3), "attention N": timing(70e-3)}
    good |= {"products 1": timing(26e-3), "products N": timing(80e-3)}
    assert not turned(say("phases-attention-verdict", batching=good))
    for wrong in ({"attention N": timing(8e-3)}, {"products N": timing(16 * 26e-3)}):
        assert turned(say("phases-attention-verdict", batching=good | wrong))


# --- what is timed is what is said -----------------------------------------------------------------------------------


def test_a_pass_is_the_one_asked_for(model):
    seen = []
    hook = model.register_forward_pre_hook(lambda _, args: seen.append((args[0].shape, args[1].used, args[1].k.shape)))
    try:
        speeds.ready(model, 3, 5, 7)()
    finally:
        hook.remove()
    assert seen == [((3, 5), 7, (3, 3, 2, 12, 16))]


def test_the_timed_phases_and_products(model):
    taken = phases.time_phases(model, short=4, long=16, budget_s=0.01)
    assert set(taken) == {"prefill short", "prefill long", "decode short", "decode long", "eight"}
    assert len({len(t.samples_s) for t in taken.values()}) == 1  # taken in turns
    dots = phases.roofline_dots(model, taken["prefill long"], taken["decode long"], tokens=16)
    whole = totals(forward_pass(TINY, 1, 16, 0, 4, 4, 4))
    assert dots["prefill"][-1] == (phases.WHOLE, whole.flops, whole.bytes, taken["prefill long"].median_s)
    assert [name for name, *_ in dots["decode"]] == ["qkv", "out", "gate", "up", "down", "head", phases.WHOLE]
    batching = phases.time_batching(model, batch=4, context=16, budget_s=0.01)
    assert all(t.median_s > 0 for t in batching.values())


def test_a_sweep_tells_of_each_pass(model):
    told = []
    timings = phases.sweep(model, (1, 4), told.append)
    assert told == [1, 4] * phases.LOOKS and list(timings) == [1, 4]
    assert all(len(timing.samples_s) >= 2 * phases.LOOKS for timing in timings.values())  # both looks count
    points = phases.swept(TINY, made_up(), timings)
    assert [(p.batch, p.new, p.context, p.timing) for p in points] == [(1, n, 0, timings[n]) for n in (1, 4)]
    assert points[1].predicted_s == speeds.foretell(TINY, made_up(), 1, 4, 0)


# --- figures ---------------------------------------------------------------------------------------------------------


def texts(ax):
    return " | ".join(text.get_text() for text in ax.texts)


def test_the_split_names_regime_and_shares():
    h100 = chip("H100 SXM")
    roofs = h100.flop_per_s["bf16"], h100.read_bytes_per_s
    bars = [(name, phases.on_paper(BIG, 1, *at, *roofs), 1.0) for name, at in (("p", (2000, 0)), ("d", (1, 2000)))]
    _, ax = plots.figure("x")
    phases_figures.draw_split(ax, bars)
    assert "compute-bound" in texts(ax)
    assert "bandwidth-bound" in texts(ax)
    widths = [bar.get_width() for bar in ax.patches]
    assert sum(widths) == pytest.approx(2)  # each bar is whole
    assert widths[0] > 0.9
    assert widths[4] > 0.99


def test_the_key_of_the_split_has_the_colours_of_its_bars():
    shares = Prediction(seconds=1.0, compute_s=0.4, bytes_s=0.4, overhead_s=0.2, regime="compute", by_module=())
    _, ax = plots.figure("x")
    phases_figures.draw_split(ax, [("a pass", shares, 1.0)])
    assert [line.get_color() for line in ax.lines] == [bar.get_facecolor()[:3] for bar in ax.patches]


def test_the_roofline_has_its_dots_under_the_roof_and_at_their_intensity():
    dots = {
        "prefill": [("qkv", 1e9, 1e7, 0.01), (phases.WHOLE, 4e9, 5e7, 0.05)],
        "decode": [("qkv", 2e6, 4e6, 4e-4), (phases.WHOLE, 8e6, 1.6e7, 2e-3)],
    }
    _, ax = plots.figure("x")
    phases_figures.draw_roofline(ax, 2e11, 2e10, dots, specification=(4e11, 4e10))
    drawn = [(line.get_xdata()[0], line.get_ydata()[0]) for line in ax.lines if line.get_marker() == "o"]
    assert sorted(drawn) == sorted([(100, 1e11), (80, 8e10), (0.5, 5e9), (0.5, 4e9)])
    assert "ridge: 10 FLOP/B" in texts(ax)
    assert "specification" in texts(ax)


def test_the_request_has_a_block_for_each_pass():
    _, ax = plots.figure("x")
    phases_figures.draw_request(ax, 0.9, 0.05, prompt=512, tokens=24)
    assert len(ax.patches) == 24
    assert max(bar.get_x() + bar.get_width() for bar in ax.patches) == pytest.approx(0.9 + 23 * 0.05)


def test_the_other_figures_draw_what_they_are_given():
    _, ax = plots.figure("x")
    phases_figures.draw_intensity(ax, [1, 16, 256], [1, 16, 250], [8, 8, 8], 295)
    assert {tuple(line.get_ydata()) for line in ax.lines} >= {(1, 16, 250), (8, 8, 8)}
    _, axes = plots.figure("x", widths=(1, 1, 1))
    timings = {1: timing(0.05), 8: timing(0.1), 64: timing(0.2)}
    phases_figures.draw_sweep(axes, timings, [0.02, 0.03, 0.1], [0.05, 0.09, 0.2], [1e8, 8e8, 6e9], [5e8] * 3)
    assert any(list(line.get_ydata()) == [0.05, 0.1, 0.2] for line in axes[0].lines)
    assert any(list(line.get_ydata()) == [2e9, 8e9, 3e10] for line in axes[1].lines)
    _, ax = plots.figure("x")
    points = [phases.Point(1, 1, 0, 0.05, timing(0.06)), phases.Point(1, 64, 0, 0.2, timing(0.25))]
    phases_figures.draw_predictions(ax, points)
    assert statistics.median(ax.get_xlim()) > 0
    _, ax = plots.figure("x")
    phases_figures.draw_lengths(ax, [1000, 2000], [10, 20], [1, 4])
    assert ax.get_ylim()[1] >= 24


# --- the notebook shows what it claims -------------------------------------------------------------------------------

CLAIM_MAP = {  # claim: the cells of notebook 02 whose verdicts show it; the tests above turn them
    "C2": ["phases-roofline-verdict"],
    "C7": ["phases-trace-verdict", "phases-phases-verdict", "phases-split-verdict"],
    "C8": ["phases-trace-verdict", "phases-ceilings-verdict", "phases-waits-verdict", "phases-attention-verdict"],
    "C9": ["phases-split-verdict", "phases-here-verdict"],
}


@pytest.mark.parametrize("claim", CLAIM_MAP)
def test_the_notebook_shows_the_claim(claim):
    assert_shown(NOTEBOOK, CLAIM_MAP, claim, globals())


def test_the_notebook_works_c9_out_exactly():
    cells = {cell["id"]: cell for cell in json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]}
    printed = {
        name: "".join(cells[name]["outputs"][0]["text"])
        for name in cells
        if name.startswith("phases-paper-") and cells[name].get("outputs") and "text" in cells[name]["outputs"][0]
    }
    assert "280 TFLOP" in printed["phases-paper-prefill"] and "0.28 s" in printed["phases-paper-prefill"]
    assert "140 GB" in printed["phases-paper-bytes"]
    assert "41.8 ms" in printed["phases-paper-decode"]
