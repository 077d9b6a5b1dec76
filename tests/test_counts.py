"""Counts against what the real decoder does: torch's flop counter, its tensors' own bytes, its attention's mask."""

import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from utils import products
from utils.chips import find as chip
from utils.counts import (
    crossing_batch,
    crossing_rows,
    forward_pass,
    matmul_intensity,
    totals,
    weights_only,
)
from utils.decoder import Decoder, KVCache, attend
from utils.models import Shape, find

# No two widths alike, so that no mix-up goes unseen; the query width is not the hidden width.
TINY = Shape("tiny", layers=3, hidden=40, heads=6, kv_heads=2, head_dim=16, ffn=56, vocab=77, tied=False)
TIED = Shape("tied", layers=2, hidden=48, heads=4, kv_heads=4, head_dim=8, ffn=72, vocab=91, tied=True)
BIG = find("Llama-3.1-70B")
H100_RIDGE = chip("H100 SXM").ridge("bf16")

# batch, new tokens, context: prefill, decode, a later part of a prompt
PASSES = [(2, 7, 0), (1, 1, 0), (3, 1, 9), (2, 5, 4)]
cases = pytest.mark.parametrize(
    ("shape", "batch", "new", "context", "all_logits"),
    [(s, *p, a) for s, p, a in itertools.product((TINY, TIED), PASSES, (False, True))],
    ids=lambda value: value.name if isinstance(value, Shape) else str(value),
)


def prepared(shape, batch, new, context, device="cpu", dtype=torch.float32):
    """A decoder, a cache that holds the context and has room for just the new tokens, and those tokens."""
    with torch.device(device):
        decoder = Decoder(shape).to(dtype)
        cache = KVCache(shape, batch, context + new, device, dtype)
        if context:
            decoder(torch.zeros(batch, context, dtype=torch.long), cache)
        return decoder, cache, torch.ones(batch, new, dtype=torch.long)


def named(modules):
    return {m.name: m for m in modules}


def instances(decoder, name):
    """The decoder's own modules of a counted name."""
    return [module for path, module in decoder.named_modules() if path.split(".")[-1] == name]


def counted_flops(decoder, cache, tokens, all_logits):
    """Matrix products by the last part of the module's name, as torch's flop counter sees them, and the total."""
    with FlopCounterMode(display=False) as counter:
        decoder(tokens, cache, all_logits)
    seen = dict.fromkeys(("qkv", "out", "gate", "up", "down", "head"), 0)
    for path, by_op in counter.get_flop_counts().items():
        if path.split(".")[-1] in seen:
            seen[path.split(".")[-1]] += sum(by_op.values())
    return seen, counter.get_total_flops()


# --- FLOPs -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("in_pieces", [False, True])  # the two routes of few rows; deciding is work, too
@cases
def test_flops_of_the_linears_equal_torchs_count(monkeypatch, shape, batch, new, context, all_logits, in_pieces):
    monkeypatch.setattr(products, "_pieces_are_faster", lambda *_: in_pieces)
    modules = named(forward_pass(shape, batch, new, context, all_logits=all_logits))
    seen, _ = counted_flops(*prepared(shape, batch, new, context), all_logits)
    assert {name: modules[name].times * modules[name].flops for name in seen} == seen


@pytest.mark.parametrize("name", ["SmolLM2-135M", "Llama-3.1-8B", "Llama-3.1-70B"])
@pytest.mark.parametrize(("new", "context"), [(512, 0), (1, 511), (64, 192)])
def test_flops_of_a_whole_pass_equal_torchs_count(name, new, context):
    """On the meta device attention runs as plain products, which torch counts with the masked pairs."""
    shape = find(name)
    _, total = counted_flops(*prepared(shape, 2, new, context, "meta"), False)
    assert totals(forward_pass(shape, 2, new, context)).flops == total


@pytest.mark.parametrize(("batch", "new", "context"), PASSES)
def test_useful_attention_is_the_pairs_that_the_decoder_does_not_mask(batch, new, context):
    shape, seen = TINY, context + new
    torch.manual_seed(0)
    q = torch.randn(batch, shape.heads, new, shape.head_dim)
    k = torch.randn(batch, shape.kv_heads, seen, shape.head_dim)
    # Each value vector is a unit vector of its own, so the output spells out the weight of every pair.
    v = torch.eye(seen, shape.head_dim).expand(batch, shape.kv_heads, seen, shape.head_dim)
    unmasked = attend(q, k, v).count_nonzero().item()  # over batch and heads

    brute_force = sum(key <= context + query for query in range(new) for key in range(seen))
    assert unmasked == batch * shape.heads * brute_force
    attention = named(forward_pass(shape, batch, new, context))["attention"]
    assert attention.useful_flops == unmasked * 2 * 2 * shape.head_dim  # two products, multiply and add
    assert attention.flops == batch * shape.heads * new * seen * 2 * 2 * shape.head_dim


def test_one_new_token_wastes_nothing_and_a_long_prompt_half():
    decode, prefill = (totals(forward_pass(TINY, 4, *p)) for p in ((1, 99), (4000, 0)))
    assert decode.useful_flops == decode.flops
    attention = named(forward_pass(TINY, 4, 4000, 0))["attention"]
    assert attention.useful_flops / attention.flops == pytest.approx(0.5, abs=1e-3)
    assert prefill.flops - prefill.useful_flops == TINY.layers * (attention.flops - attention.useful_flops)


# --- bytes -----------------------------------------------------------------------------------------------


@cases
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_bytes_equal_the_tensors_own(shape, batch, new, context, all_logits, dtype):
    width = dtype.itemsize
    modules = named(forward_pass(shape, batch, new, context, width, width, width, all_logits))
    decoder, cache, tokens = prepared(shape, batch, new, context, dtype=dtype)
    moved, rows = {}, {}  # by module: bytes in and out, and positions

    def note(module, inputs, output):
        moved[module] = inputs[0].nbytes + output.nbytes
        rows[module] = math.prod(output.shape[:-1])

    for module in decoder.modules():
        module.register_forward_hook(note)
    for kept in (cache.k, cache.v):
        kept[:, :, :, context:] = math.nan
    decoder(tokens, cache, all_logits)

    for name in ("qkv", "out", "gate", "up", "down", "norm", "head"):
        found = instances(decoder, name)
        assert [m.weight.nbytes for m in found] == [modules[name].weight_bytes] * modules[name].times
        assert [moved[m] for m in found] == [modules[name].activation_bytes] * modules[name].times
        assert {rows[m] for m in found} == {modules[name].rows}
    norms = [instances(decoder, name)[0] for name in ("attention_norm", "ffn_norm")]
    assert modules["elementwise"].weight_bytes == sum(norm.weight.nbytes for norm in norms)

    whole = totals(modules.values())
    gathered = 0 if shape.tied else tokens.numel() * decoder.embed.weight[0].nbytes
    unread = 0 if shape.tied else decoder.embed.weight.nbytes
    assert whole.weight_bytes == sum(p.nbytes for p in decoder.parameters()) - unread + gathered
    assert whole.weight_bytes - gathered == shape.read_parameters * width

    attention = modules["attention"]
    assert attention.times * attention.kv_read_bytes == cache.k.nbytes + cache.v.nbytes
    written = [kept[:, :, :, context:] for kept in (cache.k, cache.v)]
    assert not any(part.isnan().any() for part in written)  # all of it, and what follows is its size
    assert attention.times * attention.kv_write_bytes == sum(part.numel() * width for part in written)
    assert attention.kv_write_bytes * attention.times == batch * new * shape.kv_bytes_per_token(width)
    queries_and_output = 2 * batch * new * shape.q_width * width
    assert attention.activation_bytes == queries_and_output
    assert modules["embed"].activation_bytes == batch * new * shape.hidden * width


class Additions(TorchDispatchMode):
    """Bytes in and out of the residual additions."""

    total = 0

    def __torch_dispatch__(self, op, types, args=(), kwargs=None):
        out = op(*args, **(kwargs or {}))
        if op is torch.ops.aten.add.Tensor and out.dim() == 3:  # [batch, new, hidden]
            self.total += sum(x.nbytes for x in (*args, out))
        return out


@pytest.mark.parametrize(("batch", "new", "context"), PASSES)
def test_elementwise_bytes_are_those_between_the_products(batch, new, context):
    """What lies between two products reads what the one left and writes what the next one takes."""
    elementwise = named(forward_pass(TINY, batch, new, context, 4, 4, 4))["elementwise"]
    decoder, cache, tokens = prepared(TINY, batch, new, context)
    into, from_ = {}, {}  # bytes by the last part of a module's name, all layers together

    def note(name):
        def hook(module, inputs, output):
            into[name] = into.get(name, 0) + inputs[0].nbytes
            from_[name] = from_.get(name, 0) + output.nbytes

        return hook

    for path, part in decoder.named_modules():
        part.register_forward_hook(note(path.split(".")[-1]))
    with Additions() as additions:
        decoder(tokens, cache)

    norms = sum(way[name] for way in (into, from_) for name in ("attention_norm", "ffn_norm"))
    gate = from_["gate"] + from_["up"] + into["down"]
    new_keys = cache.k[:, :, :, context:].numel() * 4
    rotation = 2 * (into["out"] + new_keys)  # the queries are as wide as what attention hands on
    into_cache = 2 * new_keys
    expected = norms + additions.total + gate + rotation + into_cache
    assert elementwise.times * elementwise.activation_bytes == expected


def test_grouped_queries_store_kv_heads_only():
    """64 query heads share 8 key/value heads: an eighth of what full multi-head attention would read."""
    attention = named(forward_pass(BIG, 1, 1, 1023))["attention"]
    assert attention.kv_read_bytes == 1024 * 2 * 8 * 128 * 2


def test_an_untied_embedding_is_gathered_and_a_tied_one_read_once_as_the_head():
    untied, tied = find("Llama-3.1-8B"), find("Llama-3.2-1B")
    assert named(forward_pass(untied, 4, 1, 0))["embed"].weight_bytes == 4 * untied.hidden * 2
    assert named(forward_pass(tied, 4, 1, 0))["embed"].weight_bytes == 0
    for shape in (untied, tied):
        assert named(forward_pass(shape, 4, 1, 0))["head"].weight_bytes == shape.vocab * shape.hidden * 2


widths = st.sampled_from([0.5, 1, 2, 4])


@given(weight=widths, kv=widths, activation=widths, batch=st.integers(1, 64), context=st.integers(0, 5000))
def test_each_width_moves_its_own_bytes_only(weight, kv, activation, batch, context):
    one = totals(forward_pass(BIG, batch, 1, context, 1, 1, 1))
    mixed = totals(forward_pass(BIG, batch, 1, context, weight, kv, activation))
    assert mixed.flops == one.flops
    assert mixed.weight_bytes == weight * one.weight_bytes
    assert mixed.kv_bytes == kv * one.kv_bytes
    assert mixed.activation_bytes == activation * one.activation_bytes
    assert mixed.bytes == mixed.weight_bytes + mixed.kv_bytes + mixed.activation_bytes
    assert mixed.intensity == mixed.flops / mixed.bytes


def test_weights_only_is_the_exact_pass_of_a_decoder_without_norms_and_context():
    assert totals(weights_only(70e9)).bytes == 140e9
    assert totals(weights_only(70e9, batch=3, weight_bytes=1)).intensity == 6
    exact = totals(m for m in forward_pass(BIG, 1, 1, 0) if m.kind == "matmul")
    ideal = totals(weights_only(BIG.read_parameters))
    assert ideal.flops == pytest.approx(exact.flops, rel=1e-4)
    assert ideal.weight_bytes == pytest.approx(exact.weight_bytes, rel=1e-4)


# --- what an expert checks -------------------------------------------------------------------------------


def test_a_step_of_70b():
    modules = named(forward_pass(BIG, 1, 1, 0))
    layer = sum(m.weight_bytes for m in modules.values() if m.times == 80)
    assert layer == pytest.approx(1.711e9, rel=1e-3)
    assert 80 * layer == pytest.approx(136.9e9, rel=1e-3)
    assert modules["head"].weight_bytes == pytest.approx(2.10e9, rel=1e-3)
    weights = totals(modules.values()).weight_bytes
    assert weights == pytest.approx(139.0e9, rel=1e-3)
    assert 3.35e12 / weights == pytest.approx(24.10, abs=0.01)
    assert modules["head"].weight_bytes / weights == pytest.approx(0.015, abs=5e-4)
    small = named(forward_pass(find("SmolLM2-135M"), 1, 1, 0))
    assert small["head"].weight_bytes / totals(small.values()).weight_bytes == pytest.approx(0.21, abs=5e-3)


@pytest.mark.parametrize(("tokens", "gigabytes", "per_s"), [(8192, 2.68, 23.6), (131072, 42.9, 18.4)])
def test_kv_slows_the_step(tokens, gigabytes, per_s):
    modules = forward_pass(BIG, 1, 1, tokens - 1)
    kv_read = sum(m.times * m.kv_read_bytes for m in modules)
    assert kv_read / 1e9 == pytest.approx(gigabytes, abs=0.05)
    assert 3.35e12 / (totals(modules).weight_bytes + kv_read) == pytest.approx(per_s, abs=0.05)


@pytest.mark.parametrize(("tokens", "share"), [(2048, 0.039), (8192, 0.15)])
def test_attentions_share_of_the_flops(tokens, share):
    modules = forward_pass(BIG, 1, 1, tokens - 1)
    attention = named(modules)["attention"]
    assert attention.times * attention.flops == 4 * 80 * 64 * 128 * tokens
    linears = sum(m.times * m.flops for m in modules if m.kind == "matmul")
    assert attention.times * attention.flops / linears == pytest.approx(share, abs=0.005)


@pytest.mark.parametrize("batch", [1, 64, 4096])
def test_batching_does_not_lift_attentions_intensity(batch):
    attention = named(forward_pass(BIG, batch, 1, 2047))["attention"]
    assert attention.flops / attention.kv_read_bytes == BIG.heads / BIG.kv_heads == 8


def test_prefill_of_2000_tokens_is_280_tflop_in_the_chapters_reading():
    assert totals(weights_only(70e9, batch=2000)).flops == 280e12
    exact = totals(forward_pass(BIG, 1, 2000, 0))
    assert exact.flops == pytest.approx(280e12, rel=0.02)  # the head on one position only, and attention


def test_kv_of_all_users_equals_the_weights_at_424000_tokens():
    weights = totals(forward_pass(BIG, 1, 1, 0)).weight_bytes
    assert weights / BIG.kv_bytes_per_token() == pytest.approx(424_000, rel=1e-3)


@pytest.mark.parametrize(("tokens", "batch"), [(1, 295), (500, 446), (1000, 915)])
def test_the_whole_step_crosses_the_ridge_later_with_context(tokens, batch):
    """The last whole batch that is still below the ridge."""
    crossing = crossing_batch(BIG, tokens, H100_RIDGE)
    assert math.floor(crossing) == batch
    for at, sign in ((batch, -1), (batch + 1, 1)):
        modules = forward_pass(BIG, at, 1, tokens - 1)
        read = sum(m.times * (m.weight_bytes + m.kv_read_bytes) for m in modules if m.name != "embed")
        assert sign * (totals(modules).flops / read - H100_RIDGE) > 0


def test_and_beyond_1476_tokens_never():
    assert crossing_batch(BIG, 1476, H100_RIDGE) > 1_000_000
    assert crossing_batch(BIG, 1477, H100_RIDGE) is None
    one = forward_pass(BIG, 1, 1, 1999)
    limit = totals(one).flops / sum(m.times * m.kv_read_bytes for m in one)
    assert limit == pytest.approx(220, abs=0.5)  # FLOP per byte, weights shared by ever more sequences
    assert crossing_batch(BIG, 2000, limit * 1.001) is None
    assert crossing_batch(BIG, 2000, limit * 0.999) > 10_000


@pytest.mark.parametrize(
    ("inner", "outer", "rows"),
    [(8192, 28672, 310), (576, 1536, 997), (576, 49152, 612), (576, 576, None), (576, 192, None)],
)
def test_where_a_product_crosses_depends_on_its_width(inner, outer, rows):
    crossing = crossing_rows(inner, outer, 295)
    if rows is None:
        assert crossing is None
        assert matmul_intensity(1e12, inner, outer) < 295
    else:
        assert crossing == pytest.approx(rows, abs=1)


@pytest.mark.parametrize(("outer", "limit"), [(576, 288), (192, 144)])
def test_an_intensity_has_a_limit(outer, limit):
    assert matmul_intensity(1e12, 576, outer) == pytest.approx(limit)


@given(st.integers(1, 10**5), st.integers(1, 10**5), st.floats(0.1, 1e4, allow_nan=False), st.sampled_from([1, 2, 4]))
def test_at_the_crossing_the_intensity_is_the_ridge(inner, outer, ridge, width):
    rows = crossing_rows(inner, outer, ridge, width)
    limit = 2 * inner * outer / (inner + outer) / width
    if rows is None:
        assert ridge >= limit * (1 - 1e-9)
    else:
        assert ridge <= limit * (1 + 1e-9)
        if ridge < 0.999 * limit:  # else a rounding error of the ridge is many rows
            assert matmul_intensity(rows, inner, outer, width) == pytest.approx(ridge)


def test_a_products_intensity_is_its_modules():
    qkv = named(forward_pass(BIG, 3, 100, 0))["qkv"]
    assert qkv.intensity == matmul_intensity(qkv.rows, qkv.inner, qkv.outer)


# --- bad input -------------------------------------------------------------------------------------------

GOOD = {"batch": 1, "new_tokens": 1, "context": 0}


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"batch": 0}, "batch is 0: give a whole number, 1 or more"),
        ({"batch": -2}, "batch is -2"),
        ({"batch": 1.5}, "batch is 1.5: give a whole number"),
        ({"batch": math.nan}, "batch is nan"),
        ({"batch": "four"}, "batch is 'four'"),
        ({"batch": True}, "batch is True"),
        ({"new_tokens": 0}, "new tokens is 0"),
        ({"context": -1}, "context is -1: give a whole number, 0 or more"),
        ({"weight_bytes": 0}, "bytes per weight is 0: give a number above zero"),
        ({"kv_bytes": math.inf}, "bytes per KV is inf"),
        ({"activation_bytes": "two"}, "bytes per activation is 'two'"),
    ],
)
def test_bad_input_is_named(bad, message):
    with pytest.raises(ValueError, match=message):
        forward_pass(TINY, **(GOOD | bad))


def test_bad_input_of_the_crossings_is_named():
    with pytest.raises(ValueError, match="tokens is 0"):
        crossing_batch(BIG, 0, 295)
    for call in (lambda: crossing_batch(BIG, 1, math.nan), lambda: crossing_rows(576, 576, math.nan)):
        with pytest.raises(ValueError, match="the ridge is nan"):
            call()
    with pytest.raises(ValueError, match="parameters is -7"):
        weights_only(-7)
