"""Captured passes, with a stand-in that keeps to the rules of a CUDA graph; tests/test_gpu.py has real ones."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from test_decoder import TINY, oracle_and_decoder, oracle_logits, shapes, tokens_of
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from chapter01 import idle_runs, levers, loop, measure, speeds
from utils import decoder as decoders
from utils import graphs
from utils.ceilings import Ceilings
from utils.decoder import Decoder, KVCache
from utils.graphs import step_in_windows
from utils.timing import interleave, ratio
from utils.weights import random_decoder

CPU = torch.device("cpu")


# --- the stand-in ----------------------------------------------------------------------------------------------------


class Recorder(TorchDispatchMode):
    """Keeps every operation of a pass with its very arguments, as a CUDA graph keeps its kernels with theirs."""

    def __init__(self):
        super().__init__()
        self.operations = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func is torch.ops.aten._local_scalar_dense.default:
            raise RuntimeError("a captured pass must not read a number from the device")
        out = func(*args, **(kwargs or {}))
        self.operations.append((func, args, kwargs or {}, out))
        return out


def recorded(call, device):
    """In place of `capture`: a replay runs the operations again, writes to the same memory, and runs no Python."""
    call()
    with Recorder() as recorder:
        result = call()

    @torch.inference_mode()  # as the decoder's tensors were made
    def replay():
        for func, args, kwargs, out in recorder.operations:
            for old, new in zip(tree_leaves(out), tree_leaves(func(*args, **kwargs)), strict=True):
                if isinstance(old, torch.Tensor) and old.data_ptr() != new.data_ptr():
                    old.copy_(new)
        return result

    return replay


@pytest.fixture
def captured(monkeypatch):
    """Capture as on CUDA, with the stand-in, in windows of 16; a list of how many passes were captured."""
    count = []
    monkeypatch.setattr(graphs, "WINDOW", 16)
    monkeypatch.setattr(graphs, "captures", lambda device: True)
    for module in (graphs, loop, speeds, idle_runs, measure):
        monkeypatch.setattr(module, "capture", lambda call, device: count.append(call) or recorded(call, device))
    return count


def steps(step, cache: KVCache, decoder: Decoder, tokens: torch.Tensor, prompt: int) -> torch.Tensor:
    """Logits [B, length - prompt, vocab] after each token behind the prompt, one step at a time."""
    decoder(tokens[:, :prompt], cache)
    return torch.stack([step(tokens[:, i : i + 1]).clone() for i in range(prompt, tokens.shape[1])], dim=1)


# --- captured steps against plain ones -------------------------------------------------------------------------------


@settings(max_examples=30, deadline=None)
@given(shapes, st.integers(1, 3), st.integers(1, 40), st.integers(1, 25), st.booleans())
def test_captured_steps_agree_with_transformers_across_windows(shape_seed, batch, prompt, count, stand_in):
    shape, seed = shape_seed
    oracle, decoder = oracle_and_decoder(shape, seed)
    tokens = tokens_of(shape, batch, prompt + count, seed)
    cache = KVCache(shape, batch, prompt + count)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(graphs, "WINDOW", 16)
        if stand_in:
            patch.setattr(graphs, "capture", recorded)
        step = step_in_windows(decoder, cache, range(prompt, prompt + count))
        got = steps(step, cache, decoder, tokens, prompt)
    assert cache.used == prompt + count
    torch.testing.assert_close(got, oracle_logits(oracle, tokens)[:, prompt:], atol=1e-3, rtol=0)


@pytest.mark.parametrize("kv_heads", [2, 6])
def test_passes_of_several_rows_agree_with_plain_ones(captured, kv_heads):
    shape = replace(TINY, kv_heads=kv_heads)
    _, decoder = oracle_and_decoder(shape)
    tokens = tokens_of(shape, 1, 40)
    cache, plain = KVCache(shape, 1, 40), KVCache(shape, 1, 40)
    step = graphs.decode_step(decoder, cache, range(10, 40), (1, 3, 5), all_logits=True)
    decoder(tokens[:, :10], cache)
    expected = decoder(tokens, plain, all_logits=True)
    at = 10
    for rows in (3, 5, 1, 5, 3, 1, 5, 5):
        torch.testing.assert_close(
            step(tokens[:, at : at + rows]), expected[:, at : at + rows], atol=1e-4, rtol=0, msg=str(at)
        )
        at += rows


def test_a_step_may_be_taken_back(captured):
    """The window behind the position holds what was written there before, and none of it is seen."""
    _, decoder = oracle_and_decoder(TINY)
    tokens = tokens_of(TINY, 1, 30)
    cache = KVCache(TINY, 1, 40)
    step = graphs.decode_step(decoder, cache, range(3, 30))
    first = steps(step, cache, decoder, tokens, 3)
    cache.used = 3
    again = torch.stack([step(tokens[:, i : i + 1]).clone() for i in range(3, 30)], dim=1)
    assert torch.equal(first, again)


def test_the_loop_writes_the_same_text_with_captured_steps(captured):
    _, decoder = oracle_and_decoder(TINY)
    prompt = tokens_of(TINY, 1, 9)[0].tolist()
    text = loop.generate(decoder, prompt, 30)
    windows = len(captured)
    assert windows == 3  # of 16, 32 and 39 positions
    assert text == loop.generate(decoder, prompt, 30, cached=False)
    assert len(captured) == windows
    assert levers.speculate(decoder, prompt, 30, 3, lambda known, k: text[len(known) - 9 :][:k]).tokens == text
    assert levers.speculate(decoder, prompt, 30, 3, lambda known, k: [1] * k).tokens == text


def test_a_stale_result_changes_the_text(captured, monkeypatch):
    """The mutation: a replay that does not run the pass again."""
    _, decoder = oracle_and_decoder(TINY)
    prompt = tokens_of(TINY, 1, 9)[0].tolist()
    truth = loop.generate(decoder, prompt, 12)

    def stale(call, device):
        result = call()
        return lambda: result

    monkeypatch.setattr(graphs, "capture", stale)
    assert loop.generate(decoder, prompt, 12) != truth


def test_a_position_taken_from_python_changes_the_text(captured, monkeypatch):
    """The mutation that a stand-in which simply calls again would not see: the plain pass, captured."""
    _, decoder = oracle_and_decoder(TINY)
    prompt = tokens_of(TINY, 1, 9)[0].tolist()
    truth = loop.generate(decoder, prompt, 12)
    for name in ("rotary", "extend"):
        with monkeypatch.context() as patch:
            patch.setattr(graphs.Window, name, getattr(KVCache, name))
            assert loop.generate(decoder, prompt, 12) != truth, name


def test_everything_that_times_a_step_captures_it(captured, monkeypatch):
    monkeypatch.setattr(idle_runs, "in_turns", lambda calls, *args: None)
    monkeypatch.setattr(measure, "BUDGET_S", 0.01)
    one_layer = random_decoder(replace(TINY, layers=1))
    _, decoder = oracle_and_decoder(TINY)
    prompt = tokens_of(TINY, 1, 5)[0].tolist()
    for work in (
        lambda: loop.time_first_and_step(decoder, prompt),
        lambda: loop.steps_in_a_run(decoder, prompt, 4),
        lambda: loop.time_step_at(decoder, [4, 20], 1, 0.01),
        lambda: loop.time_check_and_steps(decoder, prompt, [1, 2, 3], 0.01),
        lambda: levers.time_rows(decoder, 8, 0.01),
        lambda: speeds.ready(decoder, 1, 1, 7)(),
        lambda: speeds.ready(decoder, 1, 20, 0)(),
        lambda: speeds.time_launches(TINY, CPU, torch.float32),
        lambda: speeds.time_products(decoder, 1, budget_s=0.01),
        lambda: speeds.attention_alone(TINY, CPU, torch.float32, 1, 1, 8)(),
        lambda: measure.time_pass(one_layer, 2, 1, 8),
        lambda: idle_runs.passes(decoder, None, 8),
    ):
        captured.clear()
        work()
        assert captured


@pytest.mark.parametrize(("device", "overlap"), [("cuda", False), ("mps", True)])
def test_a_captured_pass_has_no_launches_to_hide(monkeypatch, device, overlap):
    monkeypatch.setattr(speeds, "device_of", lambda model: torch.device(device))
    monkeypatch.setattr(speeds, "time_launches", lambda *args: 1e-4)
    for name in ("product_speed", "attention_speed"):
        monkeypatch.setattr(speeds, name, lambda *args: lambda *at: 1e10)
    roofs = Ceilings("x", 1e10, "sum", 1 << 30, {"float32": 1e10}, {"float32": 1e11}, {"float32": 512}, "float32", ())
    assert speeds.measure_speeds(Decoder(TINY), roofs).overlap == overlap


# --- what a step reads -----------------------------------------------------------------------------------------------


def test_what_attention_reads_grows_with_the_context_window_by_window(monkeypatch):
    _, decoder = oracle_and_decoder(TINY)
    cache = KVCache(TINY, 1, 1000)
    read = []
    honest = decoders.attend
    monkeypatch.setattr(decoders, "attend", lambda q, k, v, seen: read.append(k.shape[2]) or honest(q, k, v, seen))
    step = step_in_windows(decoder, cache, range(0, 1000))
    contexts = (0, 255, 256, 511, 512, 767, 768, 999)
    for cache.used in contexts:
        step(torch.zeros(1, 1, dtype=torch.long))
    assert read[:: TINY.layers] == [256, 256, 512, 512, 768, 768, 1000, 1000]
    assert all(length >= context + 1 for length, context in zip(read[:: TINY.layers], contexts, strict=True))


def test_a_step_in_a_long_window_takes_longer():
    shape = replace(TINY, layers=4, heads=8, kv_heads=8, head_dim=64)
    cache = KVCache(shape, 4, 4096)
    cache.k.normal_()
    cache.v.normal_()
    step = step_in_windows(random_decoder(shape), cache, range(200, 4000))
    token = torch.zeros(4, 1, dtype=torch.long)

    def at(context: int) -> None:
        cache.used = context
        step(token)

    timed = interleave({"short": lambda: at(200), "long": lambda: at(3999)}, CPU, 0.5)
    assert ratio(timed["long"], timed["short"]) > 1.5  # it reads 16 times the keys and values


def test_windows_share_the_memory_of_the_cache():
    cache = KVCache(TINY, 2, 40)
    part = graphs.Window(cache, 16)
    assert part.k.data_ptr() == cache.k.data_ptr() and part.layers[1][0].shape == (2, 2, 16, 8)
    assert part.layers[1][1].data_ptr() == cache.layers[1][1].data_ptr()


# --- what is refused, and where nothing is captured ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("used", "new", "said"),
    [
        (40, 1, "1 new tokens after 40 cached ones: .*the cache holds 40"),
        (39, 2, "2 new tokens after 39 cached ones"),
        (20, 3, "steps of 1, 2 tokens after 2 to 9 were captured"),
        (20, 1, "1 new tokens after 20 cached ones"),
        (2, 0, "0 new tokens"),
    ],
)
def test_a_step_that_was_not_captured_is_refused_and_nothing_is_lost(captured, used, new, said):
    _, decoder = oracle_and_decoder(TINY)
    cache = KVCache(TINY, 1, 40)
    step = graphs.decode_step(decoder, cache, range(2, 10), (1, 2))
    cache.used, before = used, cache.k.clone()
    with pytest.raises(ValueError, match=said):
        step(torch.zeros(1, new, dtype=torch.long))
    assert cache.used == used and torch.equal(cache.k, before)


def test_a_cpu_runs_the_plain_pass():
    def call():
        return 1

    assert graphs.capture(call, CPU) is call
    _, decoder = oracle_and_decoder(TINY)
    tokens = tokens_of(TINY, 2, 6)
    cache, plain = KVCache(TINY, 2, 6), KVCache(TINY, 2, 6)
    step = graphs.decode_step(decoder, cache, range(0))
    assert torch.equal(step(tokens), decoder(tokens, plain))
    assert cache.used == 6 and torch.equal(cache.k, plain.k)


def test_a_pass_that_cuda_will_not_capture_is_run_as_it_is_and_said(monkeypatch):
    def refuses(call, device):
        raise RuntimeError("operation not permitted when stream is capturing\nand a page of advice")

    monkeypatch.setattr(graphs, "captures", lambda device: True)
    monkeypatch.setattr(graphs, "_captured", refuses)
    with pytest.warns(UserWarning, match="not captured.*stream is capturing$"):
        assert graphs.capture(lambda: 1, CPU)() == 1
    _, decoder = oracle_and_decoder(TINY)
    prompt = tokens_of(TINY, 1, 9)[0].tolist()
    with pytest.warns(UserWarning, match="not captured"):
        text = loop.generate(decoder, prompt, 12)
    monkeypatch.undo()
    assert text == loop.generate(decoder, prompt, 12)


def test_a_capture_that_finds_no_memory_is_an_error(monkeypatch):
    def fills(call, device):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(graphs, "captures", lambda device: True)
    monkeypatch.setattr(graphs, "_captured", fills)
    with pytest.raises(torch.OutOfMemoryError):
        graphs.capture(lambda: 1, CPU)


def test_attention_does_not_count_on_how_a_kernel_lays_out_its_result(monkeypatch):
    """CUDA's kernel for float32 returns [B, heads, N, E] as a view of [B, N, heads, E]."""
    honest = torch.nn.functional.scaled_dot_product_attention

    def laid_out_otherwise(*args, **kwargs):
        return honest(*args, **kwargs).transpose(1, 2).contiguous().transpose(1, 2)

    q, k, v = torch.randn(1, 6, 1, 8), torch.randn(1, 2, 5, 8), torch.randn(1, 2, 5, 8)
    expected = decoders.attend(q, k, v)
    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", laid_out_otherwise)
    torch.testing.assert_close(decoders.attend(q, k, v), expected)
