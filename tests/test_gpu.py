"""What only a CUDA device can show. torch, numpy, matplotlib and pytest are enough; without a device all is skipped."""

import math

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from chapter01 import levers, loop, measure
from chapter01.speeds import ready
from utils import ceilings, graphs
from utils.counts import forward_pass, totals
from utils.decoder import Decoder, KVCache
from utils.models import Shape, find
from utils.timing import interleave, ratio
from utils.weights import random_decoder

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device on this machine"),
]
DEVICE = torch.device("cuda")
GROUPED = Shape("grouped", layers=4, hidden=512, heads=8, kv_heads=2, head_dim=64, ffn=1024, vocab=1000, tied=False)
FULL = Shape("full", layers=4, hidden=512, heads=8, kv_heads=8, head_dim=64, ffn=1024, vocab=1000, tied=False)
CLOSE = {torch.float32: 1e-3, torch.bfloat16: 0.1}  # difference between two kernels' logits, of their spread


def model_of(shape: Shape, dtype: torch.dtype = torch.float32) -> Decoder:
    """A model whose logits differ clearly from one text to another."""
    torch.manual_seed(0)
    model = Decoder(shape)
    for weight in model.parameters():
        if weight.dim() == 2:
            weight.normal_(std=1.5 / math.sqrt(weight.shape[1]))
    model.embed.weight.normal_()
    return model.to(DEVICE, dtype)


def text_of(shape: Shape, batch: int, length: int) -> torch.Tensor:
    return torch.randint(shape.vocab, (batch, length), generator=torch.Generator().manual_seed(1)).to(DEVICE)


def off(got: torch.Tensor, expected: torch.Tensor) -> float:
    """The largest difference, of the spread of what was expected."""
    return float((got.float() - expected.float()).abs().max() / expected.float().std())


# --- right -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", CLOSE, ids=str)
@pytest.mark.parametrize("shape", [GROUPED, FULL], ids=lambda shape: shape.name)
@pytest.mark.parametrize("batch", [1, 3])
def test_captured_steps_agree_with_plain_ones_across_windows(shape, dtype, batch):
    model, tokens = model_of(shape, dtype), text_of(shape, batch, 270)
    plain, captured = loop.new_cache(model, 270, batch), loop.new_cache(model, 270, batch)
    step = graphs.decode_step(model, captured, range(250, 270))
    for cache in (plain, captured):
        model(tokens[:, :250], cache)
    for i in range(250, 270):
        one = tokens[:, i : i + 1]
        assert off(step(one), model(one, plain)) < CLOSE[dtype], f"after {i} tokens"
    assert captured.used == 270


@pytest.mark.parametrize("dtype", CLOSE, ids=str)
def test_captured_passes_of_several_rows_agree_with_plain_ones(dtype):
    model, tokens = model_of(GROUPED, dtype), text_of(GROUPED, 1, 270)
    plain, captured = loop.new_cache(model, 270), loop.new_cache(model, 270)
    step = graphs.decode_step(model, captured, range(250, 270), (4,), all_logits=True)
    for cache in (plain, captured):
        model(tokens[:, :250], cache)
    for i in range(250, 270, 4):
        rows = tokens[:, i : i + 4]
        assert off(step(rows), model(rows, plain, all_logits=True)) < CLOSE[dtype], f"after {i} tokens"


def test_the_captured_loop_writes_the_text_of_the_plain_one():
    """Or the first difference is a tie: captured and plain attention round differently."""
    model, prompt = model_of(GROUPED), text_of(GROUPED, 1, 240)[0].tolist()
    cache = loop.new_cache(model, 280)
    new, plain = prompt, []
    for _ in range(40):
        plain.append(int(model(loop.batch_of(model, new), cache).argmax()))
        new = plain[-1:]
    gap = levers.parting(model, prompt, plain, loop.generate(model, prompt, 40))
    assert gap is None or gap < levers.TIE


def test_a_replay_reads_what_lies_there_now():
    model, tokens = model_of(GROUPED), text_of(GROUPED, 1, 8)
    cache = loop.new_cache(model, 8)

    def call() -> torch.Tensor:
        cache.used = 0
        return model(tokens, cache)

    replay = graphs.capture(call, DEVICE)
    before = replay().clone()
    tokens.add_(1).remainder_(GROUPED.vocab)
    assert off(replay(), call()) < 1e-3 < off(before, call())


# --- fast ------------------------------------------------------------------------------------------------------------


def test_a_captured_step_of_a_small_model_waits_for_no_launches():
    model = random_decoder(find("SmolLM2-135M"), DEVICE)
    cache = loop.new_cache(model, 65)
    token = text_of(model.shape, 1, 1)

    def plain() -> None:
        cache.used = 64
        model(token, cache)

    timed = interleave({"captured": ready(model, 1, 1, 64), "plain": plain}, DEVICE)
    assert loop.faster(timed["captured"], timed["plain"])


LONG = Shape("long", layers=4, hidden=1024, heads=8, kv_heads=8, head_dim=128, ffn=1024, vocab=1000, tied=False)


def test_a_step_behind_a_long_context_takes_longer():
    """Captured at its length, and in windows: 2 GB of keys and values against 33 MB."""
    model = random_decoder(LONG, DEVICE, torch.float16)
    assert loop.grows(loop.time_step_at(model, [250, 16000], batch=8), by=3)

    cache = KVCache(LONG, 8, 16384, DEVICE, torch.float16)
    cache.k.normal_()
    cache.v.normal_()
    token = text_of(LONG, 8, 1)
    steps = {c: graphs.decode_step(model, cache, range(c, c + 1)) for c in (250, 16000)}

    def at(context: int) -> None:
        cache.used = context
        steps[context](token)

    timed = interleave({"short": lambda: at(250), "long": lambda: at(16000)}, DEVICE)
    assert ratio(timed["long"], timed["short"]) > 3


def test_prefill_goes_through_fused_attention():
    if torch.cuda.get_device_capability() < (8, 0):
        pytest.skip("the fused kernel for grouped queries needs compute capability 8.0")
    model = random_decoder(GROUPED, DEVICE, torch.bfloat16)
    fused = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.CUDNN_ATTENTION]
    with sdpa_kernel(fused):  # an error where only the plain one, with all its scores in memory, would do
        model(text_of(GROUPED, 1, 512), loop.new_cache(model, 512))


# --- a model of a billion parameters ---------------------------------------------------------------------------------


def test_a_captured_step_reads_the_weights_in_place():
    model = random_decoder(find("Llama-3.2-1B"), DEVICE, torch.float16)
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    ready(model, 1, 1, 64)()
    assert torch.cuda.max_memory_allocated() - before < 0.1 * 2 * model.shape.parameters


def test_prefill_and_decode_keep_below_the_ceilings():
    roofs = ceilings.measure(DEVICE)
    dtype = getattr(torch, roofs.best_dtype)
    shape = find("Llama-3.2-1B")
    model = random_decoder(shape, DEVICE, dtype)
    for new, context in ((512, 0), (1, 512)):
        done = totals(forward_pass(shape, 1, new, context, *3 * [dtype.itemsize]))
        took_s = measure.time_pass(model, shape.layers, new, context)
        for what, rate, roof in (
            ("bytes", done.bytes / took_s, roofs.read_bytes_per_s),
            ("FLOP", done.useful_flops / took_s, roofs.flop_per_s[roofs.best_dtype]),
        ):
            share = ceilings.share_of_ceiling(rate, roof)
            assert not share.error, f"{new} tokens after {context}: {share} of the {what} per second"
