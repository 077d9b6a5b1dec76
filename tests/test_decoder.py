"""The decoder against transformers, which computes the same architecture in its own way."""

import dataclasses

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import LlamaConfig, LlamaForCausalLM

from utils.decoder import Decoder, KVCache
from utils.models import RopeScaling, Shape
from utils.weights import _fill

TINY = Shape("tiny", layers=2, hidden=48, heads=6, kv_heads=2, head_dim=8, ffn=80, vocab=97, tied=False)


def oracle_and_decoder(shape: Shape, seed: int = 0) -> tuple[LlamaForCausalLM, Decoder]:
    """transformers' model with random weights, and ours with the same."""
    torch.manual_seed(seed)
    scaling = shape.rope_scaling
    rope = {"rope_type": "default"} if scaling is None else {
        "rope_type": "llama3",
        "factor": scaling.factor,
        "low_freq_factor": scaling.low_freq_factor,
        "high_freq_factor": scaling.high_freq_factor,
        "original_max_position_embeddings": scaling.original_context,
    }  # fmt: skip
    config = LlamaConfig(
        num_hidden_layers=shape.layers,
        hidden_size=shape.hidden,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        intermediate_size=shape.ffn,
        vocab_size=shape.vocab,
        tie_word_embeddings=shape.tied,
        rope_parameters={**rope, "rope_theta": shape.rope_base},
        rms_norm_eps=shape.norm_eps,
        initializer_range=0.3,  # large weights: a small mistake shows in the logits
        max_position_embeddings=4096,
    )
    oracle = LlamaForCausalLM(config).eval()
    weights = oracle.state_dict()
    decoder = Decoder(shape)
    _fill(decoder, weights.__getitem__)
    return oracle, decoder


def oracle_logits(oracle: LlamaForCausalLM, tokens: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return oracle(tokens).logits


def tokens_of(shape: Shape, batch: int, length: int, seed: int = 1) -> torch.Tensor:
    return torch.randint(shape.vocab, (batch, length), generator=torch.Generator().manual_seed(seed))


shapes = st.builds(
    lambda layers, kv_heads, group, half, ffn, tied, base, seed: (
        Shape(
            "random",
            layers=layers,
            hidden=4 * kv_heads * group,  # transformers wants a multiple of the heads
            heads=kv_heads * group,
            kv_heads=kv_heads,
            head_dim=2 * half,
            ffn=ffn,
            vocab=61,
            tied=tied,
            rope_base=base,
        ),
        seed,
    ),
    layers=st.integers(1, 3),
    kv_heads=st.integers(1, 3),
    group=st.integers(1, 4),
    half=st.integers(1, 6),
    ffn=st.integers(1, 40),
    tied=st.booleans(),
    base=st.sampled_from([100.0, 10_000.0, 500_000.0]),
    seed=st.integers(0, 99),
)


@settings(max_examples=40, deadline=None)
@given(shapes, st.integers(1, 3), st.integers(1, 40), st.data())
def test_logits_agree_with_transformers_however_the_prompt_is_cut(shape_seed, batch, length, data):
    shape, seed = shape_seed
    oracle, decoder = oracle_and_decoder(shape, seed)
    tokens = tokens_of(shape, batch, length, seed)
    expected = oracle_logits(oracle, tokens)

    whole = decoder(tokens, KVCache(shape, batch, length), all_logits=True)
    torch.testing.assert_close(whole, expected, atol=1e-3, rtol=0)

    one_by_one = KVCache(shape, batch, length)
    steps = [decoder(tokens[:, i : i + 1], one_by_one) for i in range(length)]
    torch.testing.assert_close(torch.stack(steps, dim=1), expected, atol=1e-3, rtol=0)

    cut = data.draw(st.integers(0, length))
    in_two = KVCache(shape, batch, length)
    parts = [decoder(part, in_two, all_logits=True) for part in tokens.split([cut, length - cut], 1) if part.numel()]
    torch.testing.assert_close(torch.cat(parts, dim=1), expected, atol=1e-3, rtol=0)


def test_a_long_prompt_agrees_with_transformers():
    oracle, decoder = oracle_and_decoder(TINY)
    tokens = tokens_of(TINY, 1, 2000)
    got = decoder(tokens, KVCache(TINY, 1, 2000), all_logits=True)
    torch.testing.assert_close(got, oracle_logits(oracle, tokens), atol=1e-3, rtol=0)


def test_llama_3_frequency_scaling_agrees_with_transformers():
    scaling = RopeScaling(factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_context=64)
    shape = dataclasses.replace(TINY, rope_scaling=scaling, rope_base=1000.0)
    oracle, decoder = oracle_and_decoder(shape)
    tokens = tokens_of(shape, 1, 300)
    got = decoder(tokens, KVCache(shape, 1, 300), all_logits=True)
    torch.testing.assert_close(got, oracle_logits(oracle, tokens), atol=1e-3, rtol=0)
    plain = dataclasses.replace(shape, rope_scaling=None)
    unscaled = Decoder(plain)
    unscaled.load_state_dict(decoder.state_dict())
    assert (unscaled(tokens, KVCache(plain, 1, 300), all_logits=True) - got).abs().max() > 0.1


def test_only_the_last_position_goes_through_the_head():
    _, decoder = oracle_and_decoder(TINY)
    rows = []
    decoder.head.register_forward_hook(lambda module, args, out: rows.append(args[0].shape[:-1].numel()))
    tokens = tokens_of(TINY, 2, 7)
    last = decoder(tokens, KVCache(TINY, 2, 7))
    every = decoder(tokens, KVCache(TINY, 2, 7), all_logits=True)
    assert rows == [2, 14]
    torch.testing.assert_close(last, every[:, -1])


def test_forgetting_positions_is_setting_used_back():
    _, decoder = oracle_and_decoder(TINY)
    tokens = tokens_of(TINY, 1, 9)
    cache = KVCache(TINY, 1, 9)
    decoder(tokens, cache)
    cache.used = 4
    again = decoder(tokens[:, 4:], cache, all_logits=True)
    fresh = decoder(tokens, KVCache(TINY, 1, 9), all_logits=True)
    torch.testing.assert_close(again, fresh[:, 4:], atol=1e-4, rtol=0)


@pytest.mark.parametrize(("new", "used"), [(0, 3), (6, 0), (3, 3)])
def test_too_many_or_no_new_tokens_are_refused_and_nothing_is_lost(new, used):
    _, decoder = oracle_and_decoder(TINY)
    cache = KVCache(TINY, 1, 5)
    if used:
        decoder(tokens_of(TINY, 1, used), cache)
    before = cache.k.clone()
    with pytest.raises(ValueError, match=f"{new} new tokens after {used} cached ones, and the cache holds 5"):
        decoder(torch.zeros(1, new, dtype=torch.long), cache)
    assert cache.used == used
    assert torch.equal(cache.k, before)


class LargestNewTensor(TorchDispatchMode):
    """The largest memory that any operation allocated for its result, in bytes."""

    largest = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        inputs = {a.untyped_storage().data_ptr() for a in args if isinstance(a, torch.Tensor)}
        for tensor in out if isinstance(out, tuple | list) else [out]:
            if isinstance(tensor, torch.Tensor) and tensor.untyped_storage().data_ptr() not in inputs:
                self.largest = max(self.largest, tensor.untyped_storage().nbytes())
        return out


@pytest.mark.parametrize("kv_heads", [2, 6])
def test_a_step_copies_neither_weights_nor_cache(kv_heads):
    shape = dataclasses.replace(TINY, kv_heads=kv_heads, tied=True)
    _, decoder = oracle_and_decoder(shape)
    cache = KVCache(shape, 1, 4000)
    decoder(tokens_of(shape, 1, 3900), cache)
    decoder(tokens_of(shape, 1, 1), cache)  # the first step in a process also finds the faster route of its products
    with LargestNewTensor() as seen:
        decoder(tokens_of(shape, 1, 1), cache)
    one_layer_of_keys = 3902 * kv_heads * shape.head_dim * 4
    smallest_weight = min(p.nbytes for p in decoder.parameters() if p.dim() == 2)
    assert 0 < seen.largest < min(one_layer_of_keys, smallest_weight)
