"""Times from counts, against worked problems of public sources and the properties that any roofline has."""

import math

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from utils.chips import find as chip
from utils.counts import Module, forward_pass, totals, weights_only
from utils.models import find
from utils.roofline import attainable_flop_per_s, predict, ridge

H100 = chip("H100 SXM")
PEAK, BANDWIDTH = H100.flop_per_s["bf16"], H100.read_bytes_per_s
BIG = find("Llama-3.1-70B")

rates = st.floats(1e9, 1e16)
intensities = st.floats(1e-3, 1e5)


def module(name: str, flops: int, weight_bytes: float, times: int = 1, rows: int = 1) -> Module:
    return Module(name, "matmul", times, rows, flops=flops, weight_bytes=weight_bytes)


# --- worked problems -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flop_per_s", "bytes_per_s", "answer"), [(989e12, 3.35e12, 295), (312e12, 2e12, 156), (2250e12, 8e12, 281)]
)
def test_ridges(flop_per_s, bytes_per_s, answer):
    assert round(ridge(flop_per_s, bytes_per_s)) == answer


def test_one_user_of_70b_leaves_an_h100_idle():
    step = weights_only(70e9)
    prediction = predict(step, PEAK, BANDWIDTH)
    assert totals(step).bytes == 140e9
    assert prediction.seconds == pytest.approx(41.8e-3, abs=0.05e-3)
    assert 1 / prediction.seconds == pytest.approx(23.93, abs=0.005)
    achieved = totals(step).flops / prediction.seconds
    assert achieved == pytest.approx(3.35e12)  # and 24 x 140e9, the rate rounded first, is 3.36e12
    assert achieved / PEAK == pytest.approx(0.00339, abs=5e-6)
    assert f"{1 - achieved / PEAK:.2%}" == "99.66%"
    assert prediction.regime == "bandwidth"


def test_the_exact_70b_reads_less_and_is_as_idle():
    step = [m for m in forward_pass(BIG, 1, 1, 0) if m.kind == "matmul"]
    prediction = predict(step, PEAK, BANDWIDTH)
    assert 1 / prediction.seconds == pytest.approx(24.10, abs=0.01)
    assert totals(step).flops / prediction.seconds / PEAK == pytest.approx(0.00339, abs=5e-6)


@pytest.mark.parametrize(
    ("weight_bytes", "dtype", "used", "per_s"),
    [(2, "bf16", 0.34, 23.9), (1, "bf16", 0.68, 47.9), (1, "fp8", 0.34, 47.9)],
)
def test_idle_is_a_ratio_and_tokens_per_second_what_the_user_feels(weight_bytes, dtype, used, per_s):
    step = weights_only(70e9, weight_bytes=weight_bytes)
    prediction = predict(step, H100.flop_per_s[dtype], BANDWIDTH)
    assert 1 / prediction.seconds == pytest.approx(per_s, abs=0.05)
    achieved = totals(step).flops / prediction.seconds
    assert 100 * achieved / H100.flop_per_s[dtype] == pytest.approx(used, abs=0.005)


def test_prefill_of_2000_tokens_at_the_peak():
    prediction = predict(weights_only(70e9, batch=2000), PEAK, BANDWIDTH)
    assert prediction.seconds == pytest.approx(0.28, abs=0.005)
    assert prediction.regime == "compute"


@pytest.mark.parametrize(
    ("parameters", "weight_bytes", "bytes_per_s", "ms"),
    [(200e9, 2, 32 * 1.23e12, 10), (7111e6, 2, 1.008e12, 14.1), (7111e6, 1, 1.008e12, 7.05)],
)
def test_step_times(parameters, weight_bytes, bytes_per_s, ms):
    prediction = predict(weights_only(parameters, weight_bytes=weight_bytes), 1e18, bytes_per_s)
    assert prediction.seconds * 1e3 == pytest.approx(ms, rel=0.02)


def test_passes_a_second_of_a_1b_model():
    assert 1 / predict(weights_only(1.24e9), PEAK, BANDWIDTH).seconds == pytest.approx(1350, rel=1e-3)


def test_share_of_the_bandwidth():
    assert predict(weights_only(7e9), 1e15, 2e12).seconds / 14e-3 == pytest.approx(0.5)


def test_kv_of_an_8b_shape():
    per_sequence = 1024 * find("Llama-3.1-8B").kv_bytes_per_token()
    assert per_sequence == pytest.approx(134e6, rel=2e-3)
    assert 128 * per_sequence == pytest.approx(17.2e9, rel=2e-3)


# --- properties ------------------------------------------------------------------------------------------


@given(intensities, rates, rates)
def test_the_roof(intensity, flop_per_s, bytes_per_s):
    roof = attainable_flop_per_s(intensity, flop_per_s, bytes_per_s)
    at_ridge = ridge(flop_per_s, bytes_per_s)
    assert roof == pytest.approx(flop_per_s * min(1, intensity / at_ridge))
    assert attainable_flop_per_s(at_ridge, flop_per_s, bytes_per_s) == pytest.approx(flop_per_s)


@given(st.integers(1, 10**15), st.floats(1, 1e12), rates, rates)
def test_one_module_runs_at_the_roof(flops, moved, flop_per_s, bytes_per_s):
    prediction = predict([module("m", flops, moved)], flop_per_s, bytes_per_s)
    roof = attainable_flop_per_s(flops / moved, flop_per_s, bytes_per_s)
    assert flops / prediction.seconds == pytest.approx(roof)
    assume(not math.isclose(flops / moved, ridge(flop_per_s, bytes_per_s)))
    below = flops / moved < ridge(flop_per_s, bytes_per_s)
    assert prediction.regime == ("bandwidth" if below else "compute")


@given(
    st.lists(st.tuples(st.integers(0, 10**15), st.floats(1, 1e12), st.integers(1, 99)), min_size=1, max_size=5),
    st.floats(0, 1),
)
def test_the_sum_over_modules_lies_above_the_larger_of_the_sums(parts, overhead_s):
    modules = [module("same name", *part) for part in parts]
    prediction = predict(modules, 1e12, 1e11, overhead_s)
    whole = totals(modules)
    compute_s, bytes_s = whole.flops / 1e12, whole.bytes / 1e11
    executing_s = prediction.seconds - overhead_s
    assert max(compute_s, bytes_s) <= executing_s * (1 + 1e-9) + 1e-12
    assert executing_s <= (compute_s + bytes_s) * (1 + 1e-9) + 1e-12
    assert prediction.seconds == pytest.approx(prediction.compute_s + prediction.bytes_s + overhead_s)
    assert sum(m.seconds for m in prediction.by_module) == pytest.approx(executing_s)


def test_bandwidth_bound_attention_is_not_hidden_behind_compute_bound_products():
    modules = forward_pass(BIG, 1024, 1, 2047)
    prediction = predict(modules, PEAK, BANDWIDTH)
    regimes = {m.name: m.regime for m in prediction.by_module}
    assert regimes["gate"] == regimes["qkv"] == "compute"
    assert regimes["attention"] == regimes["elementwise"] == "bandwidth"
    whole = totals(modules)
    assert prediction.seconds > 1.1 * max(whole.flops / PEAK, whole.bytes / BANDWIDTH)


def test_instances_count():
    once, often = (predict([module("m", 10**9, 1e9, times)], 1e12, 1e11) for times in (1, 7))
    assert often.seconds == pytest.approx(7 * once.seconds)
    twice = predict([module("m", 10**9, 1e9)] * 2, 1e12, 1e11)
    assert twice.seconds == pytest.approx(2 * once.seconds)


# --- overhead --------------------------------------------------------------------------------------------

MODULES = [module("a", 10**12, 1.0), module("b", 1, 0.5e11)]  # 1 s of arithmetic, then 0.5 s of memory


@pytest.mark.parametrize(
    ("overhead_s", "overlap", "seconds", "regime"),
    [
        (0.0, False, 1.5, "compute"),
        (0.9, False, 2.4, "compute"),
        (1.2, False, 2.7, "overhead"),  # the largest of three parts
        (1.2, True, 1.5, "compute"),  # launched while earlier kernels still ran
        (1.7, True, 1.7, "overhead"),
    ],
)
def test_overhead_adds_or_overlaps(overhead_s, overlap, seconds, regime):
    prediction = predict(MODULES, 1e12, 1e11, overhead_s, overlap=overlap)
    assert prediction.seconds == pytest.approx(seconds)
    assert prediction.regime == regime
    assert (prediction.compute_s, prediction.bytes_s) == pytest.approx((1.0, 0.5))
    assert prediction.overhead_s == overhead_s


def test_a_small_model_on_a_fast_chip_is_bound_by_overhead():
    """0.11 ms of memory traffic in fp32 against milliseconds of launches."""
    h200 = chip("H200")
    step = forward_pass(find("SmolLM2-135M"), 1, 1, 0, 4, 4, 4)
    prediction = predict(step, h200.flop_per_s["fp32"], h200.read_bytes_per_s, overhead_s=3e-3, overlap=True)
    assert prediction.bytes_s == pytest.approx(0.11e-3, abs=0.005e-3)
    assert prediction.regime == "overhead"


# --- bad input -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bad", [0, -1.0, math.nan, math.inf, "fast", None])
def test_bad_rates_are_named(bad):
    for call in (lambda *r: ridge(*r), lambda *r: attainable_flop_per_s(1, *r), lambda *r: predict([], *r)):
        with pytest.raises(ValueError, match=r"FLOP per second is .*: give a number above zero"):
            call(bad, 1e12)
        with pytest.raises(ValueError, match=r"bytes per second is .*: give a number above zero"):
            call(1e12, bad)


def test_other_bad_values_are_named():
    with pytest.raises(ValueError, match="the intensity is 0"):
        attainable_flop_per_s(0, 1e12, 1e11)
    for bad in (-1e-3, math.nan):
        with pytest.raises(ValueError, match="overhead in seconds is"):
            predict(MODULES, 1e12, 1e11, overhead_s=bad)
