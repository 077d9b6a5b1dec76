"""The loop's experiments on the real model, and the verdicts of notebook 01 turned by what would make them false."""

from itertools import accumulate, combinations
from pathlib import Path

import claims
import pytest
import torch.nn.functional as F
from claims import assert_shown, turned
from hypothesis import given
from hypothesis import strategies as st

from chapter01 import loop, loop_figures
from utils import plots
from utils.decoder import KVCache
from utils.timing import Timing

NOTEBOOK = Path(__file__).parent.parent / "notebooks" / "01_the_loop.ipynb"
PROMPT = "The capital of France is"


@pytest.fixture(scope="module")
def model(embedded):
    return embedded[0]


@pytest.fixture(scope="module")
def tokens(embedded):
    return embedded[1].encode(PROMPT)


def same_text(model, prompt, one: list[int], other: list[int], tie: float = 1e-3) -> bool:
    """Whether two greedy texts are the same, or part at a tie: kernels for one and for many rows round differently."""
    for i, (a, b) in enumerate(zip(one, other, strict=True)):
        if a != b:
            logits = loop.next_logits(model, [*prompt, *one[:i]])
            return abs(logits[a] - logits[b]).item() < tie
    return True


# --- the real model's text -------------------------------------------------------------------------------------------

PROMPTS = [PROMPT, "Once upon a time", "def add(a, b):\n", "1, 2, 3, 4,", "<|im_start|>user\nHi!<|im_end|>\n"]


@pytest.mark.parametrize("prompt", PROMPTS)
def test_cached_and_uncached_generation_write_the_same(embedded, prompt):
    model, tokenizer = embedded
    start = tokenizer.encode(prompt)
    cached, uncached = (loop.generate(model, start, 12, cached=c) for c in (True, False))
    assert same_text(model, start, cached, uncached)


def test_checking_guesses_writes_what_steps_write(model, tokens):
    true = loop.generate(model, tokens, 6)
    for wrong_at in range(7):
        guesses = [t if i != wrong_at else t + 1 for i, t in enumerate(true)]
        assert loop.check_guesses(model, tokens, guesses) == true[: wrong_at + 1]


def test_temperature_keeps_the_order_and_sharpens_towards_zero(model, tokens):
    logits = loop.next_logits(model, tokens)
    hot, plain, cold = (loop.likeliest(loop.probabilities(logits, t), 5) for t in (3.0, 1.0, 0.2))
    assert [t for t, _ in hot] == [t for t, _ in plain] == [t for t, _ in cold]
    assert hot[0][1] < plain[0][1] < cold[0][1]


@pytest.mark.parametrize("temperature", [0, -1, float("nan")])
def test_a_temperature_that_is_none_is_refused(model, tokens, temperature):
    with pytest.raises(ValueError, match=r"temperature .*above 0"):
        loop.probabilities(loop.next_logits(model, tokens), temperature)


@pytest.mark.parametrize(("prompt", "count"), [([], 5), ([1], 0), ([1], -3)])
def test_nothing_to_read_or_to_write_is_refused(model, prompt, count):
    with pytest.raises(ValueError, match="give at least one of each"):
        loop.generate(model, prompt, count)


def test_texts_of_different_lengths_are_refused(model):
    with pytest.raises(ValueError, match="texts of 2, 3 tokens"):
        loop.influence(model, [1, 2], [1, 2, 3])


@pytest.mark.parametrize("strange", [-1, 49_152])
def test_a_token_that_the_model_does_not_know_is_refused(model, strange):
    with pytest.raises(ValueError, match=rf"token {strange} is not one of the model's 49,152: ids go from 0 to 49151"):
        loop.generate(model, [1, strange], 2)


@given(st.floats(1e-3, 10), st.floats(1e-3, 1), st.integers(0, 10_000), st.integers(1, 1000), st.floats(0.1, 50))
def test_thinking_is_paid_by_the_token(first_s, step_s, thought, answer, price):
    seconds, dollars = loop.thinking(first_s, step_s, thought, answer, price)
    one_more, _ = loop.thinking(first_s, step_s, thought + 1, answer, price)
    assert one_more - seconds == pytest.approx(step_s, rel=1e-3)
    assert dollars == pytest.approx(seconds / 3600 * price)


@pytest.mark.parametrize(("thought", "answer", "price"), [(-1, 1, 1), (0, 0, 1), (0, 1, 0), (0, 1, float("nan"))])
def test_impossible_thinking_is_refused(thought, answer, price):
    with pytest.raises(ValueError, match="thinking may be 0 or more"):
        loop.thinking(0.1, 0.1, thought, answer, price)


# --- the claims: the notebook's own verdicts, on numbers that hold and on numbers that do not -----------------------


def say(*ids: str, **given) -> str:
    return claims.say(NOTEBOOK, *ids, **given)


def timing(*seconds: float) -> Timing:
    return Timing(tuple(seconds))


def test_c1_a_generate_that_does_not_take_the_likeliest_turns_the_verdict(embedded, tokens, monkeypatch):
    model, tokenizer = embedded
    names = {"model": model, "tokenizer": tokenizer, "tokens": tokens, "written": loop.generate(model, tokens, 8)}
    assert not turned(say("loop-generate", **names))
    monkeypatch.setattr(type(model), "forward", backwards(type(model).forward))
    assert turned(say("loop-generate", **names))


def backwards(forward):
    return lambda *args, **kwargs: -forward(*args, **kwargs)


def test_c3_futures_that_do_not_depend_on_the_token_picked_turn_the_verdict(model, tokens):
    branches = loop.futures(model, tokens)
    assert not turned(say("loop-futures-verdict", branches=branches))
    assert turned(say("loop-futures-verdict", branches=[branches[0]] * 5))


def test_c3_attention_that_looks_ahead_turns_the_verdict(model, tokens, monkeypatch):
    changed = [*tokens[:2], tokens[0], *tokens[3:]]

    def noted() -> list[str]:
        changes = loop.influence(model, tokens, changed)
        return turned(say("loop-influence-verdict", changes=changes, position=2))

    assert not noted()
    assert turned(say("loop-influence-verdict", changes=[0.0] * 5, position=2))  # nothing moved at all
    honest = F.scaled_dot_product_attention
    monkeypatch.setattr(
        F, "scaled_dot_product_attention", lambda *args, is_causal=False, **kwargs: honest(*args, **kwargs)
    )
    assert noted()


def test_c4_a_run_that_stops_early_turns_the_verdict():
    runs = [loop.Run(n, 0.08 * n, 0.1 * n) for n in (8, 16, 32)]
    assert runs[0].error == pytest.approx(-0.2)  # foretold a fifth too short
    assert not turned(say("loop-runs-verdict", runs=runs))
    assert turned(say("loop-runs-verdict", runs=[*runs, loop.Run(48, 3.8, 3.1)]))


def test_c4_quadratic_times_turn_the_verdict():
    alone = [0.03, 0.031, 0.045, 0.03] * 8

    def noted(in_run: list[float]) -> list[str]:
        return turned(say("loop-steps-verdict", pairs=list(zip(in_run, alone, strict=True))))

    assert not noted([1.05 * a for a in alone])
    assert not noted([a * (3 if i % 5 == 0 else 1) for i, a in enumerate(alone)])  # hiccups of the machine
    per_step = [0.03 * (i + 1) for i in range(32)]  # each step reads everything again: the total is quadratic
    assert list(accumulate(per_step))[31] == pytest.approx(0.03 * 32 * 33 / 2)
    assert noted(per_step)
    assert noted([0.03 * (1 + i / 32) for i in range(32)])  # steps that get twice as dear over the run
    assert noted([0.5 * a for a in alone])  # a timer that does not wait for the device


def test_c4_a_run_that_reads_everything_again_turns_the_verdict(model, tokens, monkeypatch):
    honest = loop.batch_of
    seen = []

    def whole_text(model, text):  # the mutation: each step of the run reads a text that grows by 64 tokens
        if text == tokens or text == tokens[-1:]:  # the prompt, and the step alone
            return honest(model, text)
        seen.append(text)
        return honest(model, list(tokens) * 13 * len(seen))

    monkeypatch.setattr(loop, "batch_of", whole_text)
    monkeypatch.setattr(loop, "new_cache", lambda model, length, batch=1: KVCache(model.shape, batch, 2000))
    assert turned(say("loop-steps-verdict", pairs=loop.steps_in_a_run(model, tokens, 5)))


def test_c4_a_context_that_costs_nothing_turns_the_verdict():
    short = timing(1.0, 3.0, 1.0)  # a busy second round slows both
    assert not turned(say("loop-context-verdict", by_context={16: short, 4096: timing(1.2, 3.6, 1.2)}))
    assert turned(say("loop-context-verdict", by_context={16: short, 4096: timing(1.02, 3.0, 1.01)}))


def test_c5_a_cache_written_one_position_off_turns_the_verdict(model, tokens, monkeypatch):
    honest = KVCache.extend

    def one_off(cache, layer, k, v):
        if k.shape[2] > 1 or not cache.used:
            return honest(cache, layer, k, v)
        cache.used -= 1
        honest(cache, layer, k, v)
        cache.used += 1
        return cache.layers[layer][0][:, :, : cache.used + 1], cache.layers[layer][1][:, :, : cache.used + 1]

    def noted() -> list[str]:
        cached, uncached = (loop.timed_generate(model, tokens, 8, cached=cached) for cached in (True, False))
        return turned(say("loop-nocache-verdict", cached=cached, uncached=uncached))

    assert not noted()
    monkeypatch.setattr(KVCache, "extend", one_off)
    assert noted()


def test_c5_flat_or_shrinking_times_turn_the_verdicts():
    rising = {32: timing(1.0, 3.0, 1.0), 512: timing(2.5, 7.5, 2.5)}
    assert not turned(say("loop-nocache-growth-verdict", by_length=rising))
    assert turned(say("loop-nocache-growth-verdict", by_length=rising | {512: timing(1.9, 5.7, 1.9)}))
    names = {"step": timing(1.0, 2.0), "tokens": [1] * 5}
    assert not turned(say("loop-time-step-verdict", together=timing(2.0, 4.0), **names))
    assert turned(say("loop-time-step-verdict", together=timing(5.1, 10.2), **names))
    assert not turned(say("loop-check-time-verdict", check=timing(1.0, 2.0), steps=timing(3.0, 6.0)))
    assert turned(say("loop-check-time-verdict", check=timing(1.0, 2.0), steps=timing(1.1, 2.1)))


@pytest.mark.parametrize("kept", [8, 3], ids=["wrong guesses are kept", "the model's own token is lost"])
def test_c5_a_check_that_yields_too_much_or_too_little_turns_the_verdicts(model, tokens, monkeypatch, kept):
    true = loop.generate(model, tokens, 8)
    names = {"model": model, "tokens": tokens, "true": true, "spoiled": [*true[:3], true[0], *true[4:]]}
    assert not turned(say("loop-check-verdict", **names))
    monkeypatch.setattr(loop, "check_guesses", lambda model, prompt, guesses: guesses[:kept])
    assert "behind a wrong guess nothing is kept" in turned(say("loop-check-verdict", **names))


def test_c6_thinking_that_costs_nothing_turns_the_verdict():
    names = {"answer": 50, "dollars_per_hour": 4.0, "first": timing(0.1)}
    assert not turned(say("loop-thinking-verdict", step=timing(0.05), **names))
    assert turned(say("loop-thinking-verdict", step=timing(1e-9), **names))


# --- figures ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("asked", [None, 1, 20, 100, 200, 8000])
@pytest.mark.parametrize("step_s", [0.002, 0.03])
def test_no_text_of_the_runs_lies_on_another_or_on_the_axis(asked, step_s):
    runs = [loop.Run(n, n * step_s, n * step_s) for n in (8, 16, 32, 48)]
    fig, ax = plots.figure("A title")
    loop_figures.draw_runs(ax, step_s, step_s, runs, asked)
    plots.png(fig, 1)  # lays it out
    boxes = {text.get_text(): text.get_window_extent() for text in ax.texts}
    for words, box in boxes.items():
        assert box.y0 >= ax.bbox.y0 and box.y1 <= ax.bbox.y1, f"{words!r} leaves the axes"
    for (one, a), (other, b) in combinations(boxes.items(), 2):
        assert not a.overlaps(b), f"{one!r} lies over {other!r}"


CLAIM_MAP = {  # claim: the cells of notebook 01 whose verdicts show it; the tests above turn them
    "C1": ["loop-generate"],
    "C3": ["loop-futures-verdict", "loop-influence-verdict"],
    "C4": ["loop-runs-verdict", "loop-steps-verdict", "loop-context-verdict"],
    "C5": [
        "loop-time-step-verdict",
        "loop-nocache-verdict",
        "loop-nocache-growth-verdict",
        "loop-check-verdict",
        "loop-check-time-verdict",
    ],
    "C6": ["loop-thinking-verdict"],
}


@pytest.mark.parametrize("claim", CLAIM_MAP)
def test_the_notebook_shows_the_claim(claim):
    assert_shown(NOTEBOOK, CLAIM_MAP, claim, globals())
