"""The idle chip's arithmetic, against worked problems of public sources and the properties that it must have."""

import math

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from chapter01 import idle
from utils.chips import CHIPS
from utils.chips import find as chip
from utils.counts import forward_pass, totals
from utils.models import MODELS, find

H100 = chip("H100 SXM")
BIG = find("Llama-3.1-70B")
SMALL = find("SmolLM2-135M")

parameters = st.floats(1e6, 1e13)
batches = st.integers(1, 10_000)
contexts = st.integers(1, 200_000)
widths = st.sampled_from([0.5, 1, 2, 4])
shapes = st.sampled_from(sorted(MODELS.values(), key=lambda s: s.name))
chips_and_dtypes = st.sampled_from([(c, dtype) for c in CHIPS for dtype in c.flop_per_s])


def bandwidth(bytes_per_s: float) -> idle.Chip:
    """A chip of which only the bandwidth matters."""
    return idle.given(bytes_per_s, 1e18)


# --- worked problems -------------------------------------------------------------------------------------------------


def test_the_chapters_derivation():
    step = idle.idealised(H100, "bf16", 70e9, price=(4, 8))
    assert step.bytes == 140e9
    assert f"{1e3 * step.seconds:.1f} ms" == "41.8 ms"
    assert f"{step.tokens_per_s:.2f}" == "23.93"
    assert f"{step.flop_per_s / 1e12:.2f}" == "3.35"
    assert f"{round(step.tokens_per_s) * step.flops / 1e12:.2f}" == "3.36"  # the rate rounded first
    assert f"{step.used:.3%}" == "0.339%"
    assert f"{step.idle:.2%}" == "99.66%"
    assert step.bound_by == "bandwidth"
    assert [f"{dollars:.1f}" for dollars in step.dollars_per_million] == ["46.4", "92.9"]


def test_it_does_not_fit_one_card_and_two_write_twice_as_fast_for_the_same_money():
    one = idle.idealised(H100, "bf16", 70e9, price=(4, 8))
    two = idle.idealised(H100, "bf16", 70e9, price=(4, 8), chips=2)
    assert (one.fits, one.chips_needed, two.fits) == (False, 2, True)
    assert f"{two.tokens_per_s_per_user:.1f}" == "47.9"
    assert two.dollars_per_million == pytest.approx(one.dollars_per_million)
    assert two.idle == pytest.approx(one.idle)


def test_the_exact_70b_leaves_out_the_input_embedding():
    step = idle.exact(H100, "bf16", BIG)
    assert f"{step.bytes / 1e9:.1f}" == "139.0"
    assert f"{step.tokens_per_s:.2f}" == "24.10"
    assert f"{step.used:.3%}" == "0.339%"
    assert f"{step.parts['layers'] / 80 / 1e9:.3f}" == "1.711"
    assert f"{step.parts['layers'] / 1e9:.1f}" == "136.9"
    assert f"{step.parts['output head'] / 1e9:.2f}" == "2.10"
    assert f"{step.parts['output head'] / step.bytes:.1%}" == "1.5%"
    assert step.needed_bytes > 2 * BIG.parameters  # what is not read has to lie there all the same


def test_a_small_model_spends_a_fifth_of_its_bytes_on_the_head():
    step = idle.exact(H100, "bf16", SMALL)
    assert f"{step.parts['output head'] / step.bytes:.0%}" == "21%"


@pytest.mark.parametrize(("context", "gb", "per_s"), [(8192, "2.68", "23.6"), (131_072, "42.9", "18.4")])
def test_the_step_grows_with_the_context(context, gb, per_s):
    step = idle.exact(H100, "bf16", BIG, context=context)
    assert f"{step.parts['keys and values'] / 1e9:.2f}".startswith(gb)
    assert f"{step.tokens_per_s:.1f}" == per_s


@pytest.mark.parametrize(("sequences", "decimals", "answer"), [(1, 3, 0.134), (128, 1, 17.2)])
def test_keys_and_values_of_the_8b_shape(sequences, decimals, answer):
    step = idle.exact(H100, "bf16", find("Llama-3.1-8B"), batch=sequences, context=1024)
    assert round(step.parts["keys and values"] / 1e9, decimals) == answer


@pytest.mark.parametrize(
    ("context", "batch"), [(1, 295), (500, 446), (1000, 915), (1477, None), (2000, None), (131_072, None)]
)
def test_where_the_whole_70b_step_crosses_the_ridge(context, batch):
    step = idle.exact(H100, "bf16", BIG, context=context)
    assert math.floor(step.matmuls_cross_at_batch) == 295
    assert (step.step_crosses_at_batch and math.floor(step.step_crosses_at_batch)) == batch
    assert (step.step_flop_per_byte_limit > H100.ridge("bf16")) == (batch is not None)


def test_the_limit_that_long_contexts_set():
    assert round(idle.exact(H100, "bf16", BIG, context=2000).step_flop_per_byte_limit) == 220


@pytest.mark.parametrize(
    ("weight_bytes", "dtype", "used", "per_s"),
    [(2, "bf16", "0.34%", "23.9"), (1, "bf16", "0.68%", "47.9"), (1, "fp8", "0.34%", "47.9")],
)
def test_precision_of_weights_and_of_arithmetic_are_two_things(weight_bytes, dtype, used, per_s):
    step = idle.idealised(H100, dtype, 70e9, weight_bytes=weight_bytes)
    assert f"{step.used:.2%}" == used
    assert f"{step.tokens_per_s:.1f}" == per_s


def test_an_ordinary_processor_is_not_as_idle():
    step = idle.idealised(idle.given(31e9, 310e9, "fp32"), "fp32", 135e6, weight_bytes=4)
    assert step.used == pytest.approx(0.05)


def test_textbook_problems_of_bandwidth_alone():
    assert f"{1e3 * idle.idealised(bandwidth(1.23e12), 'given', 200e9, chips=32).seconds:.0f}" == "10"
    assert f"{1e3 * idle.idealised(bandwidth(1.008e12), 'given', 7111e6).seconds:.1f}" == "14.1"
    assert f"{1e3 * idle.idealised(bandwidth(1.008e12), 'given', 7111e6, weight_bytes=1).seconds:.2f}" == "7.05"
    assert idle.idealised(bandwidth(2e12), "given", 7e9).seconds / 14e-3 == pytest.approx(0.5)  # a measured 14 ms
    assert round(idle.idealised(bandwidth(3.35e12), "given", 1.24e9).tokens_per_s, -1) == 1350


def test_keys_and_values_equal_the_weights_at_424_000_tokens():
    step = idle.exact(H100, "bf16", BIG, batch=424, context=1000)
    weights = step.parts["layers"] + step.parts["output head"]
    assert step.parts["keys and values"] == pytest.approx(weights, rel=1e-3)


# --- two readings ----------------------------------------------------------------------------------------------------


@given(parameters, shapes, st.integers(1, 500), contexts, widths, widths)
def test_the_differences_lead_from_one_reading_to_the_other(count, shape, batch, context, weight_bytes, kv_bytes):
    rough = idle.idealised(H100, "bf16", count, batch, weight_bytes)
    exact = idle.exact(H100, "bf16", shape, batch, context, weight_bytes, kv_bytes)
    named = idle.differences(count, shape, batch, context, weight_bytes, kv_bytes)
    assert rough.bytes + sum(d.bytes for d in named) == pytest.approx(exact.bytes)
    assert rough.flops + sum(d.flops for d in named) == pytest.approx(exact.flops)


def test_what_does_not_differ_is_not_named():
    names = " ".join(d.name for d in idle.differences(SMALL.parameters, SMALL))
    assert "embedding" not in names  # tied: read whole, as the head
    assert "very model" not in names
    assert "attention" in names and "norms" in names


@pytest.mark.parametrize(("context", "share"), [(2048, "3.9%"), (8192, "15%")])
def test_the_share_of_attention_in_the_arithmetic(context, share):
    attention = next(d for d in idle.differences(70e9, BIG, context=context) if "attention" in d.name)
    weights = idle.exact(H100, "bf16", BIG, context=context).flops - attention.flops
    assert f"{attention.flops / weights:.{1 if context < 8192 else 0}%}" == share


@given(shapes, st.integers(1, 64), st.integers(1, 5000), widths, widths)
def test_the_exact_bytes_are_the_decoders_reads(shape, batch, context, weight_bytes, kv_bytes):
    step = idle.exact(H100, "bf16", shape, batch, context, weight_bytes, kv_bytes)
    cache = batch * context * shape.kv_bytes_per_token(kv_bytes)
    assert step.bytes == pytest.approx(shape.read_parameters * weight_bytes + cache)
    assert sum(step.parts.values()) == pytest.approx(step.bytes)
    assert step.needed_bytes == pytest.approx(shape.parameters * weight_bytes + cache)
    assert step.flops == totals(forward_pass(shape, batch, 1, context - 1)).flops


# --- properties ------------------------------------------------------------------------------------------------------


@given(parameters, parameters, chips_and_dtypes, batches, widths)
def test_the_size_of_the_model_cancels(one, other, where, batch, weight_bytes):
    readings = [idle.idealised(*where, count, batch, weight_bytes) for count in (one, other)]
    assert readings[0].used == pytest.approx(readings[1].used, rel=1e-5)  # FLOPs are whole numbers
    assert readings[0].matmuls_cross_at_batch == readings[1].matmuls_cross_at_batch


@given(parameters, chips_and_dtypes, batches, widths)
def test_use_is_batch_over_ridge_until_the_ridge(count, where, batch, weight_bytes):
    chip, dtype = where
    used = idle.idealised(chip, dtype, count, batch, weight_bytes).used
    assert used == pytest.approx(min(1, 2 * batch / weight_bytes / chip.ridge(dtype)), rel=1e-5)


@given(shapes, chips_and_dtypes, batches, contexts, widths, widths, st.integers(1, 64))
def test_idle_is_a_share(shape, where, batch, context, weight_bytes, kv_bytes, chips):
    rough = idle.idealised(*where, shape.parameters, batch, weight_bytes, chips)
    exact = idle.exact(*where, shape, batch, context, weight_bytes, kv_bytes, chips)
    for step in (rough, exact):
        assert 0 <= step.idle <= 1
        assert step.used + step.idle == 1
        assert step.flop_per_s <= where[0].flop_per_s[where[1]] * chips * (1 + 1e-12)


@given(shapes, chips_and_dtypes, batches, batches, contexts, widths, widths)
def test_more_users_never_leave_more_idle(shape, where, one, other, context, weight_bytes, kv_bytes):
    assume(one != other)
    few, many = sorted((one, other))
    for read, rest in ((idle.idealised, {}), (idle.exact, {"context": context, "kv_bytes": kv_bytes})):
        of = shape.parameters if read is idle.idealised else shape
        less, more = (read(*where, of, b, weight_bytes=weight_bytes, **rest) for b in (few, many))
        assert more.idle <= less.idle + 1e-12
        assert more.seconds >= less.seconds * (1 - 1e-12)
        if many <= less.matmuls_cross_at_batch:
            assert more.idle < less.idle  # the rows that ride free
            assert read is idle.exact or more.seconds == pytest.approx(less.seconds)


def test_past_the_ridge_arithmetic_takes_the_time():
    step = idle.idealised(H100, "bf16", 70e9, batch=1000)
    assert step.bound_by == "compute"
    assert (step.used, step.idle) == (1, 0)
    assert step.seconds == pytest.approx(1000 * 140e9 / 989.4e12)


def test_attention_keeps_waiting_for_memory_beside_matmuls_that_do_not():
    step = idle.exact(H100, "bf16", BIG, batch=2000, context=8192)
    kv_s = step.parts["keys and values"] / H100.read_bytes_per_s
    assert step.seconds > kv_s + 2000 * 139e9 / 989.4e12 * 0.99  # one after the other, not the larger of both
    assert 0.05 < step.idle < 1


@given(shapes, chips_and_dtypes, st.integers(1, 500), contexts, st.integers(2, 64))
def test_chips_that_share_without_loss(shape, where, batch, context, chips):
    one = idle.exact(*where, shape, batch, context, price=(1, 3))
    many = idle.exact(*where, shape, batch, context, chips=chips, price=(1, 3))
    assert many.tokens_per_s == pytest.approx(one.tokens_per_s * chips)
    assert many.dollars_per_million == pytest.approx(one.dollars_per_million)
    assert many.idle == pytest.approx(one.idle)
    assert many.chips_needed == one.chips_needed
    if one.chips_needed is not None:
        memory = where[0].memory_bytes
        assert (one.chips_needed - 1) * memory < one.needed_bytes <= one.chips_needed * memory
        assert many.fits == (many.needed_bytes <= chips * memory)


def test_unknown_memory_stays_unknown():
    step = idle.idealised(chip("Apple M3"), "fp32", 7e9)
    assert (step.fits, step.chips_needed) == (None, None)


# --- bad values ------------------------------------------------------------------------------------------------------

BAD = [0, -1, math.nan, math.inf, "7", None]


@pytest.mark.parametrize("value", BAD)
@pytest.mark.parametrize("name", ["batch", "chips", "weight_bytes"])
def test_bad_values_are_refused_by_name(name, value):
    for call in (lambda **k: idle.idealised(H100, "bf16", 7e9, **k), lambda **k: idle.exact(H100, "bf16", SMALL, **k)):
        with pytest.raises(ValueError, match=f"{name.split('_')[0]}.*is {value!r}"):
            call(**{name: value})


@pytest.mark.parametrize("value", BAD)
def test_bad_values_of_the_exact_reading(value):
    with pytest.raises(ValueError, match=f"context is {value!r}"):
        idle.exact(H100, "bf16", SMALL, context=value)
    with pytest.raises(ValueError, match=f"KV is {value!r}"):
        idle.exact(H100, "bf16", SMALL, kv_bytes=value)


@pytest.mark.parametrize("value", [0, -7e9, 0.5, math.nan, math.inf])
def test_bad_numbers_of_parameters(value):
    with pytest.raises(ValueError, match="parameters"):
        idle.idealised(H100, "bf16", value)


@pytest.mark.parametrize("price", [(0, 4), (4, 0), (-1, 4), (4, math.nan), (math.inf, math.inf)])
def test_bad_prices(price):
    with pytest.raises(ValueError, match="price in dollars an hour is"):
        idle.idealised(H100, "bf16", 7e9, price=price)


def test_a_price_range_the_wrong_way_round():
    with pytest.raises(ValueError, match="8:4 is the wrong way round: give 4:8"):
        idle.exact(H100, "bf16", SMALL, price=(8, 4))


def test_a_dtype_without_a_rate():
    with pytest.raises(ValueError, match="no verified bf16 rate for T4; take one of fp16, fp32, int8"):
        idle.idealised(chip("T4"), "bf16", 7e9)


@pytest.mark.parametrize(("name", "dtype"), [("H100 SXM", "bf16"), ("T4", "fp16"), ("Apple M4", "fp32")])
def test_the_dtype_that_a_chip_would_run_is_one_it_has(name, dtype):
    assert idle.default_dtype(chip(name)) == dtype


@pytest.mark.parametrize("name", ["TPU v5e", "Apple M3 Max 300 GB/s"])
def test_no_rate_no_dtype(name):
    found = chip(name)
    if found.flop_per_s:
        assert idle.default_dtype(found) in found.flop_per_s
    else:
        with pytest.raises(ValueError, match="no verified arithmetic rate"):
            idle.default_dtype(found)


def test_values_that_overflow():
    with pytest.raises((ValueError, OverflowError)):
        idle.idealised(H100, "bf16", 1e308, batch=100)
    with pytest.raises(ValueError, match="too large or too small"):
        idle.idealised(idle.given(1e-300, 1e-300), "given", 1e9)
    with pytest.raises(ValueError, match="too large or too small"):
        idle.exact(H100, "bf16", SMALL, kv_bytes=1e-320)
