"""The levers' experiments, speculation beside greedy decoding above all; the verdicts of notebook 04, turned."""

import itertools
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import claims
import pytest
import torch
import torch.nn.functional as F
from claims import assert_shown, turned
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.backends.backend_agg import FigureCanvasAgg
from torch import nn

from chapter01 import idle, levers, levers_figures, loop, phases
from utils import plots
from utils.chips import find as chip
from utils.decoder import KVCache
from utils.models import Shape, find
from utils.timing import Timing
from utils.weights import random_decoder

TINY = Shape("tiny", 2, 64, 4, 2, 16, 96, 101, tied=True)
NOTEBOOK = Path(__file__).parent.parent / "notebooks" / "04_filling_the_chip.ipynb"


ONE_ROW = SimpleNamespace(one_row_bytes_per_s={"float32": 25e9, "bfloat16": 14e9, "float16": 15e9})  # of ceilings


def timing(*seconds: float) -> Timing:
    return Timing(tuple(seconds))


def say(*ids: str, **given) -> str:
    return claims.say(NOTEBOOK, *ids, **given)


@pytest.fixture(scope="module")
def tiny():
    torch.manual_seed(0)
    model = random_decoder(TINY)
    for weight in model.parameters():  # wide enough apart that no two logits tie
        weight.normal_(std=0.3)
    return model


# --- speculation writes what greedy decoding writes ------------------------------------------------------------------

OPENINGS = [
    "The capital of France is", "Once upon a time", "def add(a, b):\n", "1, 2, 3, 4,", "Dear Sir or Madam,",
    "SELECT name FROM", "The sky is blue because", "To be, or not to be,", "import numpy as np\n", "What is 2 + 2?",
    "In the beginning", "Monday, Tuesday,", "<html>\n<body>\n", "It was a dark and stormy night", "The quick brown fox",
    "Il était une fois", "Ein kleiner Hund", "the the the the", "a b c a b c a b", "{\"id\": 1}, {\"id\": 2},",
    "Breaking news:", "for i in range(10):\n    ", "Ingredients:\n- flour\n- ", "x = 1\ny = 2\nz =", "H2O is",
]  # fmt: skip
CHAT = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"
QUESTIONS = [
    "Hi!", "Count to ten.", "Repeat after me: the cat sat on the mat.", "Write a haiku about rain.", "What is a prime?",
    "Name three colours.", "Copy: one two three one two three", "Translate 'dog' to French.", "Who wrote Hamlet?",
    "Why is the sky blue?", "List five animals.", "What is 12 times 12?", "Write a function that adds two numbers.",
    "Tell me a joke.", "Explain gravity to a child.", "Spell 'memory'.", "Summarise: the sun is hot. the sun is big.",
    "Give me a recipe for bread.", "What comes after Monday?", "Write the alphabet.", "What is the boiling point?",
    "Say yes three times.", "Who are you?", "Describe a lighthouse.", "Write a table with two columns.",
]  # fmt: skip
PROMPTS = OPENINGS + [CHAT.format(question) for question in QUESTIONS]


def test_fifty_prompts_are_written_as_greedy_decoding_writes_them(embedded):
    """A text is greedy if each of its tokens is the best one behind those before it: one pass shows all of them."""
    model, tokenizer = embedded
    assert len(set(PROMPTS)) == 50
    ties, kept = [], 0
    for text in PROMPTS:
        prompt = tokenizer.encode(text)
        written = levers.speculate(model, prompt, 12, k=6)
        assert len(written.tokens) == 12
        whole = loop.batch_of(model, [*prompt, *written.tokens[:-1]])
        logits = model(whole, loop.new_cache(model, whole.shape[1]), all_logits=True)[0, len(prompt) - 1 :]
        short = logits.max(-1).values - logits.gather(1, torch.tensor(written.tokens)[:, None])[:, 0]
        assert short.max() < levers.TIE, text
        ties += [text] if short.max() > 0 else []
        kept += sum(p.kept for p in written.passes)
    print(f"{len(ties)} of 50 texts take the other one of a tie: {ties}; {kept} guesses were kept")
    assert len(ties) <= 5  # ties are rare
    assert kept > 20  # and guesses were really at work


def drafters(truth: Sequence[int], prompt: Sequence[int]):
    """Drafters that are always right, always wrong, right at first, and one that never guesses."""

    def at(text: Sequence[int], k: int) -> list[int]:
        done = len(text) - len(prompt)
        return list(truth[done : done + k])

    return {
        "right": at,
        "wrong": lambda text, k: [(t + 1) % TINY.vocab for t in at(text, k)],
        "half": lambda text, k: [(t + i // 2) % TINY.vocab for i, t in enumerate(at(text, k))],
        "silent": lambda text, k: [],
    }


PROMPT = [5, 17, 3, 99, 42]


@pytest.mark.parametrize("name", ["right", "wrong", "half", "silent"])
@pytest.mark.parametrize("k", [0, 1, 4, 40])
def test_no_drafter_can_change_the_text(tiny, name, k):
    truth = loop.generate(tiny, PROMPT, 21)
    draft = drafters(truth, PROMPT)[name]
    written = levers.speculate(tiny, PROMPT, 21, k, draft)
    assert written.tokens == truth
    assert written.passes == levers.foretell_passes(PROMPT, truth, k, draft)
    if name == "right":
        assert len(written.passes) == -(-20 // (k + 1))  # each yields k + 1 tokens
    if name in ("wrong", "silent"):
        assert len(written.passes) == 20


def test_guesses_that_are_kept_unchecked_change_the_text(tiny, monkeypatch):
    truth = loop.generate(tiny, PROMPT, 21)
    monkeypatch.setattr(levers, "right", lambda guesses, own: len(guesses))
    written = levers.speculate(tiny, PROMPT, 21, 4, drafters(truth, PROMPT)["half"])
    assert not levers.same_text(tiny, PROMPT, truth, written.tokens[:21])


def test_a_cache_that_does_not_forget_wrong_guesses_changes_the_text(tiny, monkeypatch):
    class Stuck(KVCache):
        """`used` never goes back."""

        @property
        def used(self):
            return self.__dict__.get("filled", 0)

        @used.setter
        def used(self, value):
            self.__dict__["filled"] = max(value, self.used)

    truth = loop.generate(tiny, PROMPT, 21)
    monkeypatch.setattr(levers, "new_cache", lambda model, length: Stuck(TINY, 1, 200))
    written = levers.speculate(tiny, PROMPT, 21, 4, drafters(truth, PROMPT)["wrong"])
    assert not levers.same_text(tiny, PROMPT, truth, written.tokens)


def test_texts_that_part_where_the_model_is_sure_are_not_the_same(tiny):
    truth = loop.generate(tiny, PROMPT, 6)
    other = [*truth[:3], (truth[3] + 1) % TINY.vocab, *truth[4:]]
    assert levers.parting(tiny, PROMPT, truth, truth) is None
    best = loop.next_logits(tiny, [*PROMPT, *truth[:3]]).sort(descending=True).values
    assert levers.parting(tiny, PROMPT, truth, other) == pytest.approx((best[0] - best[1]).item())
    assert not levers.same_text(tiny, PROMPT, truth, other)


@pytest.mark.parametrize(("prompt", "count", "k"), [([], 5, 2), ([1], 0, 2), ([1], 5, -1)])
def test_impossible_speculation_is_refused(tiny, prompt, count, k):
    with pytest.raises(ValueError, match="give at least"):
        levers.speculate(tiny, prompt, count, k)


# --- the drafter -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "k", "guess"),
    [
        ([1, 2, 3, 4, 1, 2], 2, [3, 4]),
        ([1, 2, 3, 4, 1, 2], 9, [3, 4, 1, 2]),
        ([1, 2, 3, 9, 2, 3, 8, 1, 2, 3], 1, [9]),  # three tokens match further back: better than two near by
        ([1, 2, 7, 7, 1, 2, 8, 8, 1, 2], 2, [8, 8]),  # the latest
        ([1, 2, 7, 7, 5, 1, 2], 2, [7, 7]),
        ([5, 6, 5, 6, 5, 6], 3, [5, 6]),
        ([1, 2, 3], 5, []),
        ([4, 1, 4], 5, []),  # one token alone is no match
        ([], 5, []),
    ],
)
def test_what_followed_before_is_guessed(text, k, guess):
    assert levers.look_up(text, k) == guess


@given(st.lists(st.integers(0, 3), max_size=30), st.integers(1, 6))
def test_a_guess_is_always_copied_from_behind_the_same_two_tokens(text, k):
    guess = levers.look_up(text, k)
    assert len(guess) <= k
    if guess:
        places = [i for i in range(len(text) - 2) if text[i : i + 2] == text[-2:]]
        assert any(text[i + 2 : i + 2 + len(guess)] == guess for i in places)


@given(st.floats(0, 0.999), st.integers(0, 20))
def test_expected_tokens_follow_the_published_formula(a, k):
    assert levers.expected_tokens(a, k) == pytest.approx((1 - a ** (k + 1)) / (1 - a))


def test_expected_tokens_are_what_chance_gives():
    draws = torch.rand(100_000, 5, generator=torch.Generator().manual_seed(1)) < 0.7
    tokens = 1 + draws.cumprod(1).sum(1).float().mean().item()
    assert levers.expected_tokens(0.7, 5) == pytest.approx(tokens, rel=0.01)


@pytest.mark.parametrize(("a", "k"), [(-0.1, 3), (1.1, 3), (float("nan"), 3), (0.5, -1)])
def test_an_acceptance_that_is_none_is_refused(a, k):
    with pytest.raises(ValueError, match="share from 0 to 1"):
        levers.expected_tokens(a, k)


BY_ROWS = {1: timing(1.0), 2: timing(1.1), 5: timing(1.4), 16: timing(2.0)}


def test_the_gain_is_tokens_over_time():
    passes = [levers.Pass(4, 4), levers.Pass(0, 0), levers.Pass(4, 1)]  # 5 + 1 + 2 tokens in 1.4 + 1 + 1.4
    assert levers.foretell_gain(BY_ROWS, passes) == pytest.approx(8 / 3.8)
    assert levers.acceptance(passes) == 5 / 8
    assert levers.acceptance([levers.Pass(0, 0)]) == 0
    assert levers.tokens_per_pass(passes) == 8 / 3
    with pytest.raises(ValueError, match="0 passes have no average"):
        levers.tokens_per_pass([])
    assert levers.gain(BY_ROWS, 0.5, 1) == pytest.approx(1.5 / 1.1)
    assert levers.gain(BY_ROWS, 1.0, 15) == pytest.approx(8)


def test_the_best_number_of_guesses_is_that_which_gains_most():
    assert levers.best_k(BY_ROWS, 1.0) == 15  # the most that was timed
    assert levers.best_k(BY_ROWS, 0.5) == 2  # 1.75 tokens in 1.2 beat 1.5 in 1.1 and 1.875 in 1.3
    assert levers.best_k(BY_ROWS, 0.05) == 0  # 1.05 tokens in 1.1: step by step is best
    assert levers.best_k(BY_ROWS, 0.0) == 0


# --- users and memory ------------------------------------------------------------------------------------------------


@given(st.integers(1, 8), st.integers(1, 100_000))
def test_as_many_users_as_fit_and_not_one_more(cards, context):
    llama = find("Llama-3.1-70B")
    users = levers.users_that_fit(llama, context, cards * 80e9)
    room = cards * 80e9 - llama.parameters * 2
    each = context * 327_680
    assert users * each <= max(0, room)
    assert (users + 1) * each > room


def test_c15_memory_ends_before_the_arithmetic():
    llama, h100 = find("Llama-3.1-70B"), chip("H100 SXM")
    assert levers.users_that_fit(llama, 2000, 2 * h100.memory_bytes) == 28
    assert levers.users_that_fit(llama, 2000, h100.memory_bytes) == 0  # one card does not hold the weights
    assert not levers.memory_ends_first(llama, h100, 8, 2000)  # enough cards: the ridge comes first
    assert not levers.memory_ends_first(llama, h100, 4, 100)  # short contexts too
    assert not turned(say("levers-memory-verdict", llama=llama, h100=h100))
    roomy = replace(h100, memory_bytes=4 * h100.memory_bytes)
    assert len(turned(say("levers-memory-verdict", llama=llama, h100=roomy))) == 3


@pytest.mark.parametrize(("context", "memory"), [(0, 80e9), (-1, 80e9), (10, 0), (10, float("nan"))])
def test_impossible_memory_is_refused(context, memory):
    with pytest.raises(ValueError, match="give a"):
        levers.users_that_fit(TINY, context, memory)


def test_patience_picks_the_largest_batch_and_the_knee_the_first_doubling():
    step_s = {1: 0.030, 4: 0.033, 16: 0.045, 64: 0.070}
    assert levers.within(step_s, 0.05) == 16
    assert levers.within(step_s, 0.02) is None
    assert levers.knee(step_s) == 64
    assert levers.knee({1: 1.0, 64: 1.9}) is None


def test_a_crowd_is_timed_with_a_context_for_each(tiny):
    seen = []
    hook = tiny.register_forward_pre_hook(lambda _, args: seen.append((tuple(args[0].shape), args[1].used)))
    try:
        served = levers.serve(tiny, {1: 0.1, 4: 0.2, 64: 99.0}, context=7, budget_s=0.01)
    finally:
        hook.remove()
    assert set(seen) == {((1, 1), 7), ((4, 1), 7)}
    assert [(p.batch, p.predicted_s) for p in served.points] == [(1, 0.1), (4, 0.2)]
    assert served.left_out == ((64, 1, 7, 99.0),)


# --- bytes -----------------------------------------------------------------------------------------------------------


def test_one_byte_weights_are_off_by_half_a_step_at_most():
    weight = torch.randn(48, 64)
    whole, scale = levers.rounded(weight)
    assert whole.dtype == torch.int8
    assert ((whole * scale[:, None] - weight).abs() <= scale[:, None] * 0.5001).all()
    assert (whole.abs().amax(1) == 127).all()  # every row uses the whole range


def test_the_byte_products_multiply_the_rounded_weights():
    linear = nn.Linear(64, 48, bias=False)
    whole, scale = levers.rounded(linear.weight)
    x = torch.randn(3, 64)
    exact = F.linear(x, whole * scale[:, None])
    assert torch.allclose(levers.OneByte(linear)(x), exact, atol=1e-5)
    if levers.has_byte_kernel(torch.device("cpu")):
        rough = levers.with_byte_kernel(linear)(x)
        assert (rough - exact).norm() / exact.norm() < 0.03  # inputs in a byte: about 1 %
        assert not torch.allclose(rough, exact, atol=1e-5)


@pytest.mark.skipif(not levers.has_half_kernel(torch.device("cpu")), reason="torch has no such kernel here")
def test_the_half_kernel_multiplies_float16_weights_with_exact_inputs():
    linear = nn.Linear(64, 48, bias=False)
    x = 1 + 1e-4 * torch.rand(3, 64)  # float16 inputs would all be 1
    with torch.no_grad():
        y, exact = levers.with_half_kernel(linear)(x), F.linear(x, linear.weight.half().float())
        assert y.dtype == torch.float32 and torch.allclose(y, exact, atol=1e-5)
        assert not torch.allclose(y, F.linear(x, linear.weight), atol=1e-6)


@pytest.mark.parametrize("faster", ["plain", "packed"])
def test_of_the_two_byte_models_the_one_with_the_faster_step_is_taken(tiny, monkeypatch, faster):
    monkeypatch.setattr(levers, "time_widths", lambda models, **_: {n: timing(1 + (n != faster)) for n in models})
    two = levers.widths(tiny, ONE_ROW)[levers.TWO]
    kernel = levers.has_half_kernel(torch.device("cpu"))
    assert levers.kind(two) == ("float16, packed ahead for a CPU" if faster == "packed" and kernel else "float16")


def test_where_torch_has_no_half_kernel_the_plain_model_is_taken(tiny, monkeypatch):
    def missing(linear):
        raise RuntimeError("this build has no such engine")

    monkeypatch.setattr(levers, "with_half_kernel", missing)
    assert levers.kind(levers.widths(tiny, ONE_ROW)[levers.TWO]) == "float16"


def test_a_model_in_one_byte_is_a_copy_that_holds_bytes(tiny):
    before = loop.next_logits(tiny, PROMPT)
    small = levers.in_kernels(tiny)
    products = [part for part in small.modules() if isinstance(part, levers.OneByte)]
    assert len(products) == 5 * TINY.layers + 1
    assert all(part.weight.dtype == torch.int8 for part in products)
    assert not any(isinstance(part, nn.Linear) for part in small.modules())
    assert torch.equal(loop.next_logits(tiny, PROMPT), before)  # the original is as it was
    assert not torch.equal(loop.next_logits(small, PROMPT), before)


def test_probability_moved():
    p, q = torch.tensor([[0.5, 0.5, 0.0]]), torch.tensor([[0.2, 0.5, 0.3]])
    assert levers.moved(p, p) == 0
    assert levers.moved(p, q) == pytest.approx(0.3)
    assert levers.moved(torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 1.0]])) == 1
    assert levers.same_favourite(torch.tensor([[0.6, 0.4], [0.6, 0.4]]), torch.tensor([[0.9, 0.1], [0.1, 0.9]])) == 0.5


def test_probabilities_are_read_token_by_token(tiny):
    rows = levers.step_probabilities(tiny, PROMPT)
    assert rows.shape == (5, TINY.vocab)
    whole = tiny(loop.batch_of(tiny, PROMPT), loop.new_cache(tiny, 5), all_logits=True)[0].softmax(-1)
    assert torch.allclose(rows, whole, atol=1e-5)


# --- chips, pools, and all together ----------------------------------------------------------------------------------


def test_the_least_idle_chip_comes_first():
    ranked = levers.on_chips(find("Llama-3.1-8B"), 2000)
    ridges = [one.ridge(idle.default_dtype(one)) for one, _ in ranked]
    assert ridges == sorted(ridges)
    assert {one.name for one, _ in ranked} >= {"H100 SXM", "Apple M4", "T4"}


def test_prompts_stall_the_decoder_between_its_steps(tiny):
    seen = []
    hook = tiny.register_forward_pre_hook(lambda _, args: seen.append(tuple(args[0].shape)))
    try:
        stalls = levers.interrupt(tiny, 32, users=3, context=4, steps=5, at=(2,))
    finally:
        hook.remove()
    assert seen[3:] == [(3, 1), (3, 1), (1, 32), (3, 1), (3, 1), (3, 1)]
    assert len(stalls.gaps_s) == 5
    made_up = levers.Stalls([1.0, 9.0, 2.0, 1.0], [1])
    assert (made_up.quiet_s, made_up.stalled_s) == (1.0, 9.0)


def test_pools_share_the_chips_so_that_none_waits():
    share = levers.prefill_pool(0.2, 0.03, 100, 16)
    prompts_per_s, answers_per_s = share / 0.2, (1 - share) * 16 / (99 * 0.03)  # of one chip in all
    assert prompts_per_s == pytest.approx(answers_per_s)
    with pytest.raises(ValueError, match="seconds of a prefill"):
        levers.prefill_pool(0, 0.03, 100, 16)


def test_on_paper_the_first_row_is_the_idle_figure():
    llama, h100 = find("Llama-3.1-70B"), chip("H100 SXM")
    none, half, guesses, users, every = levers.on_paper(llama, h100, 2, 2000, 0.8, 3)
    assert none.predicted == pytest.approx(0.00337, rel=0.01)  # 0.34 %, less what attention reads
    assert half.predicted == pytest.approx(2 * none.predicted, rel=0.01)
    assert guesses.predicted == pytest.approx(levers.expected_tokens(0.8, 3) * none.predicted, rel=0.01)
    assert 20 * none.predicted < users.predicted < 28 * none.predicted
    assert every.predicted > max(half.predicted, guesses.predicted, users.predicted)


# --- the claims: the notebook's own verdicts, on numbers that hold and on numbers that do not -------------------------

ONE, SLOW = timing(1.0, 3.0), timing(16.0, 48.0)  # a busy second round slows both


def served(**steps_s: float) -> dict:
    """Steps of 1, 16 and 64 users, foretold as they came."""
    took = {int(users.removeprefix("n")): seconds for users, seconds in steps_s.items()}
    points = tuple(phases.Point(n, 1, 128, s, timing(s, 3 * s)) for n, s in took.items())
    return {"served": phases.Grid(points, ()), "most": max(took)}


def test_c5_a_step_that_gains_nothing_by_more_rows_turns_the_verdicts():
    assert not turned(say("levers-serve-verdict", **served(n1=0.03, n4=0.04, n16=0.06, n64=0.12)))
    by_the_piece = turned(say("levers-serve-verdict", **served(n1=0.03, n4=0.12, n16=0.48, n64=1.92)))
    assert by_the_piece == ["16 users together get more than twice the tokens a second of one"]
    free = turned(say("levers-serve-verdict", **served(n1=0.03, n4=0.03, n16=0.03, n64=0.03)))
    assert free == ["in the largest batch each user waits longer for a token than alone"]
    assert not turned(say("levers-rows-verdict", by_rows={1: ONE, 16: timing(2.0, 6.0)}))
    assert turned(say("levers-rows-verdict", by_rows={1: ONE, 16: SLOW}))


def race(text: list[int], steps: Timing, speculation: Timing, kept: int) -> levers.Race:
    return levers.Race(text, levers.Written(text, [levers.Pass(8, kept)], 1.0), steps, speculation, 1.0)


def test_c5_guesses_that_are_never_right_turn_the_verdicts(tiny):
    text = loop.generate(tiny, PROMPT, 6)
    story = race(text, timing(3.0, 9.0), timing(3.1, 9.1), 1)
    names = {"real": tiny, "texts": {"copying": PROMPT, "a story": PROMPT}}

    def noted(copy: levers.Race) -> list[str]:
        return turned(say("levers-race-verdict", races={"copying": copy, "a story": story}, **names))

    assert not noted(race(text, timing(3.0, 9.0), timing(1.0, 3.0), 8))
    assert noted(race(text, timing(3.0, 9.0), timing(3.3, 9.8), 0)) == [
        "copying is clearly faster with guesses", "more guesses are right in the copy than in the story"
    ]  # fmt: skip
    other = replace(race(text, timing(3.0, 9.0), timing(1.0, 3.0), 8), text=[(text[0] + 1) % TINY.vocab, *text[1:]])
    assert noted(other) == ["copying: with guesses the model writes what it writes without"]


def test_c14_rows_that_cost_less_than_nothing_or_far_too_much_turn_the_verdicts():
    assert not turned(say("levers-gain-verdict", by_rows={1: ONE, 16: timing(2.0, 6.0)}))
    assert not turned(say("levers-gain-verdict", by_rows={1: ONE, 16: timing(0.95, 2.9)}))  # rows that ride free
    less = turned(say("levers-gain-verdict", by_rows={1: ONE, 16: timing(0.5, 1.5)}))
    assert less == ["guesses that are never right gain nothing"]
    dear = turned(say("levers-gain-verdict", by_rows={1: ONE, 16: SLOW}))
    assert dear == ["guesses that are nearly always right gain"]


def test_c14_bytes_that_change_nothing_turn_the_verdicts():
    four, same = timing(4.0, 8.0), timing(4.0, 8.1)
    widths = {levers.FOUR: four, levers.TWO: same, levers.ONE: timing(2.0, 4.0)}
    assert not turned(say("levers-widths-verdict", width_timings=widths))
    assert turned(say("levers-widths-verdict", width_timings=widths | {levers.ONE: timing(9.0, 18.0)}))
    h100 = chip("H100 SXM")
    two, one, fp8 = (idle.idealised(h100, d, 70e9, weight_bytes=w) for d, w in (("bf16", 2), ("bf16", 1), ("fp8", 1)))
    assert not turned(say("levers-precision-verdict", cases={"two": two, "one": one, "fp8": fp8}))
    assert len(turned(say("levers-precision-verdict", cases={"two": two, "one": two, "fp8": one}))) == 3


def test_c14_chips_on_which_bandwidth_does_not_decide_turn_the_verdicts():
    on_chips = levers.on_chips(find("Llama-3.1-8B"), 2000)
    assert not turned(say("levers-hardware-verdict", on_chips=on_chips))
    quick = replace(on_chips[0][1], tokens_per_s=1e6)  # the one that wastes least is the fastest as well
    assert len(turned(say("levers-hardware-verdict", on_chips=[(on_chips[0][0], quick), *on_chips[1:]]))) == 2


def test_c14_a_prompt_that_delays_nobody_turns_the_verdict():
    assert not turned(say("levers-stalls-verdict", stalls=levers.Stalls([1.0, 1.1, 5.0, 0.9, 6.0], [2, 4])))
    pools = levers.Stalls([1.0, 1.1, 1.2, 0.9, 6.0], [2, 4])  # as two pools would have it
    assert turned(say("levers-stalls-verdict", stalls=pools))


def test_c14_pools_that_do_not_depend_on_the_answers_turn_the_verdict(monkeypatch):
    assert not turned(say("levers-pools-verdict", prefill=0.03, step=0.005))
    honest = levers.prefill_pool
    monkeypatch.setattr(levers, "prefill_pool", lambda prefill, step, answer, users: honest(prefill, step, 20, users))
    assert turned(say("levers-pools-verdict", prefill=0.03, step=0.005))


def test_c15_levers_that_do_not_add_up_turn_the_verdicts():
    def noted(none: Timing, every: Timing, *paper: float) -> list[str]:
        on_paper = [levers.Lever("", share) for share in paper]
        names = {"right": 0.8, "guesses": 3, "crowd": 16, "on_two_cards": on_paper}
        return turned(say("levers-together-verdict", together={"none": none, "all": every}, **names))

    assert not noted(timing(1.0, 2.0), timing(4.0, 8.0), 0.1, 0.2, 0.5)
    assert noted(timing(1.0), timing(40.0), 0.1, 0.2, 0.5) == [
        "all levers together write over twice the tokens of none"
    ]
    assert noted(timing(1.0), timing(4.0), 0.1, 0.6, 0.5) == ["on paper all three together beat each of them"]


CLAIM_MAP = {  # claim: the cells of notebook 04 whose verdicts show it; the tests above turn them
    "C5": ["levers-serve-verdict", "levers-rows-verdict", "levers-race-verdict"],
    "C14": [
        "levers-serve-verdict",
        "levers-race-verdict",
        "levers-gain-verdict",
        "levers-widths-verdict",
        "levers-precision-verdict",
        "levers-hardware-verdict",
        "levers-stalls-verdict",
        "levers-pools-verdict",
    ],
    "C15": ["levers-memory-verdict", "levers-together-verdict"],
}


@pytest.mark.parametrize("claim", CLAIM_MAP)
def test_the_notebook_shows_the_claim(claim):
    assert_shown(NOTEBOOK, CLAIM_MAP, claim, globals())


# --- figures ---------------------------------------------------------------------------------------------------------


def texts(ax) -> str:
    return " | ".join(text.get_text() for text in ax.texts)


def test_the_frontier_rings_the_largest_batch_within_patience():
    step_s = {1: 0.030, 4: 0.033, 16: 0.045, 64: 0.070}
    for patience_s, words in ((0.05, "50 ms a token: 16 users, 356 tokens/s"), (0.01, "no batch is quick enough")):
        _, ax = plots.figure("x")
        levers_figures.draw_frontier(ax, step_s, step_s, patience_s)
        assert words in texts(ax)


def test_no_number_of_the_frontier_lies_on_a_dot_or_another_text():
    step_s = {1: 0.052, 2: 0.0555, 4: 0.0539, 8: 0.0625, 16: 0.0737, 32: 0.105, 64: 0.168}
    fig, ax = plots.figure("x")
    levers_figures.draw_frontier(ax, {n: 0.8 * s for n, s in step_s.items()}, step_s, 0.1)
    FigureCanvasAgg(fig).draw()
    boxes = [text.get_window_extent() for text in ax.texts]
    assert not any(a.overlaps(b) for a, b in itertools.combinations(boxes, 2))
    dots = ax.transData.transform([(1 / s, n / s) for n, s in step_s.items()])
    assert not any(box.contains(*dot) for box in boxes for dot in dots)


def test_the_passes_are_drawn_row_by_row():
    _, axes = plots.figure("x", widths=(1, 1))
    passes = [levers.Pass(4, 3), levers.Pass(0, 0)]
    levers_figures.draw_passes(axes, {"copy": passes, "story": passes[1:]})
    heights = [bar.get_height() for bar in axes[0].patches]
    assert heights == [1, 1, 3, 0, 1, 0]  # the model's own tokens, guesses kept, guesses thrown away
    assert axes[0].get_title() == "copy: 5 tokens, 2 passes"


def test_the_levers_are_drawn_as_shares_at_work():
    _, axes = plots.figure("x", widths=(1, 1))
    here = [levers.Lever("one user", 0.02, 0.018), levers.Lever("all three", 0.5, 0.4)]
    levers_figures.draw_together(axes, {"paper": [levers.Lever("one user", 0.0034)], "here": here})
    assert "99.66 % idle" in texts(axes[0])
    assert "98 % idle" in texts(axes[1]) and "60 % idle" in texts(axes[1])
    dots = [line.get_xdata()[0] for line in axes[1].lines if line.get_marker() == "o"]
    assert dots == pytest.approx([1.8, 40])
    assert axes[0].get_xlim() == axes[1].get_xlim()  # or bars of one length would mean two things


@pytest.mark.parametrize("rows_cost", [0.0, 0.05, 0.9])
def test_the_gain_stays_inside_its_axes_however_cheap_rows_are(rows_cost):
    by_rows = {n: Timing([1e-3 * (1 + rows_cost * (n - 1))]) for n in (1, 2, 4, 8, 16)}
    _, ax = plots.figure("x")
    levers_figures.draw_gain(ax, by_rows, [(0.98, 15)])
    plots.png(ax.figure, 1)  # lays it out
    assert all(max(line.get_ydata()) < ax.get_ylim()[1] for line in ax.lines)
    box = ax.texts[0].get_window_extent()
    assert box.x1 <= ax.figure.bbox.x1 and box.y1 <= ax.figure.bbox.y1


@pytest.mark.parametrize("rows_cost", [0.0, 0.05, 0.9])
def test_each_line_of_the_gain_has_its_words_at_its_end_and_none_covers_another(rows_cost):
    by_rows = {n: Timing([1e-3 * (1 + rows_cost * (n - 1))]) for n in (1, 2, 4, 8, 16)}
    _, ax = plots.figure("x")
    levers_figures.draw_gain(ax, by_rows, [(0.3, 2), (0.8, 4), (0.95, 15)])
    plots.png(ax.figure, 1)  # lays it out
    boxes = [text.get_window_extent() for text in ax.texts]
    assert len(boxes) == 3 and not any(a.overlaps(b) for a, b in itertools.combinations(boxes, 2))
    end = ax.transData.transform((15, 0))[0]
    assert all(box.x0 > end for box in boxes)


def test_the_gain_is_marked_where_it_is_asked_for():
    _, ax = plots.figure("x")
    levers_figures.draw_gain(ax, BY_ROWS, [(0.5, 1)])
    assert f"50% right:\n{1.5 / 1.1:.2f} x at k = 1" in texts(ax)


@pytest.mark.parametrize("step_s", [0.003, 0.03])
def test_no_text_of_the_stalls_lies_on_a_jump(step_s):
    gaps_s, at = [step_s] * 24, [6, 12, 18]
    for i in at:
        gaps_s[i] += 0.15
    _, ax = plots.figure("x")
    levers_figures.draw_stalls(ax, levers.Stalls(gaps_s, at), step_s, 0.15)
    plots.png(ax.figure, 1)  # lays it out
    sides = [ax.transData.transform((i + 1 + side, 0))[0] for i in at for side in (-0.5, 0.5)]
    highest = ax.transData.transform((0, 1e3 * (step_s + 0.15)))[1]
    for box in (text.get_window_extent() for text in ax.texts):
        assert box.y0 > highest or not any(box.x0 <= x <= box.x1 for x in sides)


def test_memory_and_stalls_are_drawn_to_scale():
    _, ax = plots.figure("x")
    levers_figures.draw_memory(ax, find("Llama-3.1-70B"), 2000, chip("H100 SXM"), (2, 4), 400)
    assert "4 cards hold 320 GB" in texts(ax) and "295 users: the ridge" in texts(ax)
    _, ax = plots.figure("x")
    levers_figures.draw_stalls(ax, levers.Stalls([0.03, 0.23, 0.03], [1]), 0.03, 0.2)
    assert any(
        list(line.get_ydata()) == pytest.approx([30, 230, 30]) for line in ax.lines if len(line.get_ydata()) == 3
    )
