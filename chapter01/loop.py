"""Notebook 01, the loop: a next-token predictor run again and again, what a turn costs, why none can be skipped.

Functions here run or time the real model and return plain numbers; `utils.plots` draws them. The predicates at the end
turn measured numbers into the verdicts that the notebook prints.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from time import perf_counter

import torch
from torch import Tensor

from utils.decoder import Decoder, KVCache
from utils.graphs import capture, captures, decode_step
from utils.products import settle
from utils.timing import Timing, interleave, ratio
from utils.turns import turn

# --- the loop --------------------------------------------------------------------------------------------------------


def device_of(model: Decoder) -> torch.device:
    """The device on which the model's weights lie."""
    return model.embed.weight.device


def new_cache(model: Decoder, length: int, batch: int = 1) -> KVCache:
    """An empty cache for `batch` texts of up to `length` tokens, beside the model's weights and in their dtype."""
    if captures(device_of(model)):  # attention with a mask wants a multiple of 16, and else copies the mask each time
        length = -(-length // 16) * 16
    return KVCache(model.shape, batch, length, device_of(model), model.embed.weight.dtype)


def batch_of(model: Decoder, *texts: Sequence[int]) -> Tensor:
    """Token ids of equally long texts as [batch, tokens] on the model's device.

    Raises:
        ValueError: texts of different lengths, or an id that is not in the model's vocabulary.
    """
    if len({len(text) for text in texts}) > 1:
        raise ValueError(f"texts of {', '.join(str(len(t)) for t in texts)} tokens: a batch needs equal lengths")
    vocab = model.shape.vocab
    strange = [token for text in texts for token in text if not 0 <= token < vocab]
    if strange:
        raise ValueError(f"token {strange[0]} is not one of the model's {vocab:,}: ids go from 0 to {vocab - 1}")
    return torch.tensor(texts, device=device_of(model))


def next_logits(model: Decoder, tokens: Sequence[int]) -> Tensor:
    """The score [vocab] of every token as the next one after `tokens`."""
    return model(batch_of(model, tokens), new_cache(model, len(tokens)))[0]


def probabilities(logits: Tensor, temperature: float = 1.0) -> Tensor:
    """Softmax of logits / temperature: below 1 the favourite gains, above 1 the others do.

    Raises:
        ValueError: a temperature that is not a positive number.
    """
    if not temperature > 0:
        raise ValueError(f"temperature {temperature}: give a number above 0 (towards 0 the likeliest always wins)")
    return (logits.float() / temperature).softmax(-1)


def likeliest(probs: Tensor, count: int) -> list[tuple[int, float]]:
    """The `count` likeliest tokens of a distribution [vocab], as (token id, probability), likeliest first."""
    top = probs.topk(count)
    return list(zip(top.indices.tolist(), top.values.tolist(), strict=True))


def generate(model: Decoder, prompt: Sequence[int], count: int, cached: bool = True) -> list[int]:
    """Write `count` tokens after the prompt, always the likeliest (greedy).

    Without the cache every step reads the whole text again; the tokens are the same, the work is not.

    Raises:
        ValueError: an empty prompt, a count below 1, or an id that is not in the model's vocabulary.
    """
    return [token for token, _ in _write(model, prompt, count, cached)]


@turn()
def timed_generate(model: Decoder, prompt: Sequence[int], count: int, cached: bool = True) -> list[tuple[int, float]]:
    """Like `generate`, with the seconds since the start at which each token was there: [(token, seconds), ...].

    Raises:
        ValueError: an empty prompt, or a count below 1.
    """
    return _write(model, prompt, count, cached)


def _write(model: Decoder, prompt: Sequence[int], count: int, cached: bool) -> list[tuple[int, float]]:
    if count < 1 or not prompt:
        raise ValueError(f"{count} tokens after a prompt of {len(prompt)}: give at least one of each")
    cache = new_cache(model, len(prompt) + count)
    step = decode_step(model, cache, range(len(prompt), len(prompt) + count - 1) if cached else range(0))
    settle(model.embed.weight, len(prompt) if cached else len(prompt) + count)
    new, written = list(prompt), []
    start = perf_counter()
    for _ in range(count):
        tokens = batch_of(model, new)
        logits = step(tokens) if written and cached else model(tokens, cache)  # [1, vocab]
        token = int(logits.argmax())  # reading the number waits for the device
        written.append((token, perf_counter() - start))
        new = [token]
        if not cached:
            cache.used = 0
            new = [*prompt, *(t for t, _ in written)]
    return written


# --- why it cannot be skipped ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Future:
    """One way in which the text can go on, and what would follow it."""

    token: int
    probability: float
    then: list[tuple[int, float]]  # the likeliest tokens after it, with their probabilities


def futures(model: Decoder, prompt: Sequence[int], count: int = 5, then: int = 3) -> list[Future]:
    """The `count` likeliest next tokens, and for each the `then` likeliest tokens after it."""
    branches = likeliest(probabilities(next_logits(model, prompt)), count)
    texts = batch_of(model, *([*prompt, token] for token, _ in branches))
    probs = probabilities(model(texts, new_cache(model, texts.shape[1], batch=count)))
    return [Future(token, p, likeliest(row, then)) for (token, p), row in zip(branches, probs, strict=True)]


def influence(model: Decoder, tokens: Sequence[int], changed: Sequence[int]) -> list[float]:
    """Largest change of any logit, position by position, between two equally long texts."""
    both = batch_of(model, tokens, changed)
    logits = model(both, new_cache(model, len(tokens), batch=2), all_logits=True)  # [2, tokens, vocab]
    return (logits[0] - logits[1]).abs().amax(-1).tolist()


# --- what it costs ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Run:
    """A real run of the loop, and what was foretold for it from single steps before it began; seconds."""

    tokens: int
    predicted_s: float  # first token + (tokens - 1) steps
    measured_s: float

    @property
    def error(self) -> float:
        """Predicted against measured, as a share: +0.1 was foretold 10 % too long."""
        return self.predicted_s / self.measured_s - 1


def first_and_step(model: Decoder, prompt: Sequence[int]) -> tuple[Callable[[], int], Callable[[], int]]:
    """Two calls to be timed: prefill of the prompt, and one step after it, each with its pick."""
    cache = new_cache(model, len(prompt) + 1)
    whole, one = batch_of(model, prompt), batch_of(model, prompt[-1:])
    cached_step = decode_step(model, cache, range(len(prompt), len(prompt) + 1))

    def first() -> int:
        cache.used = 0
        return int(model(whole, cache).argmax())  # reading the number waits for the device

    def step() -> int:
        cache.used = len(prompt)
        return int(cached_step(one).argmax())

    first()  # fills the cache
    return first, step


def time_first_and_step(model: Decoder, prompt: Sequence[int]) -> tuple[Timing, Timing, Timing]:
    """Time to the first token, of one step after it, and of the pass over the prompt alone, timed in turns.

    The third is launched as the step is: on CUDA as a graph, where the first token of a run waits for Python to launch
    each kernel. So these two differ in their rows only.
    """
    first, step = first_and_step(model, prompt)
    cache, whole = new_cache(model, len(prompt)), batch_of(model, prompt)

    def read() -> Tensor:
        cache.used = 0
        return model(whole, cache)

    captured = capture(read, device_of(model))
    calls = {"first": first, "step": step, "prompt": lambda: int(captured().argmax())}
    timings = interleave(calls, device_of(model), least=10)
    return timings["first"], timings["step"], timings["prompt"]


def foretell(first_s: float, step_s: float, tokens: int) -> float:
    """Seconds for `tokens` tokens: the first comes out of prefill, each further one costs a step."""
    return first_s + (tokens - 1) * step_s


def foretold_runs(
    model: Decoder, prompt: Sequence[int], counts: Sequence[int], first_s: float, step_s: float
) -> list[Run]:
    """Real runs of several lengths against the line from a first token and a step timed before."""
    return [
        Run(count, foretell(first_s, step_s, count), timed_generate(model, prompt, count)[-1][1]) for count in counts
    ]


@turn()
def steps_in_a_run(model: Decoder, prompt: Sequence[int], count: int) -> list[tuple[float, float]]:
    """Seconds of each step of a run after its first token, paired with one single step alone right after it.

    A busy moment of the machine slows both of a pair, so their ratio tells what the run itself does to a step.
    """
    _, alone = first_and_step(model, prompt)
    cache = new_cache(model, len(prompt) + count)
    step = decode_step(model, cache, range(len(prompt), len(prompt) + count - 1))
    token = int(model(batch_of(model, prompt), cache).argmax())
    pairs = []
    for _ in range(count - 1):
        start = perf_counter()
        token = int(step(batch_of(model, [token])).argmax())
        pairs.append((perf_counter() - start, _seconds(alone)))
    return pairs


def _seconds(call: Callable[[], int]) -> float:
    start = perf_counter()
    call()
    return perf_counter() - start


def users_that_bind(model: Decoder) -> int:
    """How many texts to step at once so that bytes and arithmetic decide, not the launching of kernels.

    One does on a CPU. A GPU runs this small model faster than the CPU can start its kernels.
    """
    return {"cpu": 1, "mps": 4}.get(device_of(model).type, 16)


def time_step_at(model: Decoder, contexts: Sequence[int], batch: int, budget_s: float = 2.0) -> dict[int, Timing]:
    """One cached step behind contexts of several lengths, timed in turns; the cache is filled with random numbers."""
    cache = new_cache(model, max(contexts) + 1, batch)
    cache.k.normal_()
    cache.v.normal_()
    token = torch.ones(batch, 1, dtype=torch.long, device=device_of(model))

    def step(context: int) -> None:
        cache.used = context
        model(token, cache)

    return _in_turns(step, contexts, model, budget_s, least=9)


def time_step_without_cache(
    model: Decoder, contexts: Sequence[int], batch: int, budget_s: float = 2.0
) -> dict[int, Timing]:
    """One step that reads the whole text again, at several lengths of the text, timed in turns."""
    cache = new_cache(model, max(contexts), batch)
    text = torch.ones(batch, max(contexts), dtype=torch.long, device=device_of(model))

    def step(context: int) -> None:
        cache.used = 0
        model(text[:, :context], cache)

    return _in_turns(step, contexts, model, budget_s)


def _in_turns(step, contexts: Sequence[int], model: Decoder, budget_s: float, least: int = 3) -> dict[int, Timing]:
    device = device_of(model)
    calls = {str(c): capture(lambda c=c: step(c), device) for c in contexts}
    timings = interleave(calls, device, budget_s, least)
    return {c: timings[str(c)] for c in contexts}


def text_lengths(model: Decoder) -> list[int]:
    """Lengths of text at which a step without a cache has enough to do to show how it grows."""
    return [32, 128, 512] if device_of(model).type == "cpu" else [256, 1024, 4096]


def thinking(first_s: float, step_s: float, thought: int, answer: int, dollars_per_hour: float) -> tuple[float, float]:
    """Seconds and dollars for an answer of `answer` tokens after `thought` tokens of thinking.

    Raises:
        ValueError: a negative number of tokens, or a price that is not positive.
    """
    if thought < 0 or answer < 1 or not dollars_per_hour > 0:
        raise ValueError(
            f"{thought} thinking tokens, {answer} answer tokens, ${dollars_per_hour} an hour: "
            "thinking may be 0 or more, the answer and the price must be above 0"
        )
    seconds = foretell(first_s, step_s, thought + answer)
    return seconds, seconds * dollars_per_hour / 3600


# --- a way out, in sight ---------------------------------------------------------------------------------------------


def check_guesses(model: Decoder, prompt: Sequence[int], guesses: Sequence[int]) -> list[int]:
    """Check guessed tokens in one forward pass: the tokens that greedy decoding writes, as far as the guesses tell.

    Every guess that is what the model itself would have written is kept; the first that is not is replaced by the
    model's own token, and nothing after it counts. So a pass over k guesses yields 1 to k tokens.
    """
    cache = new_cache(model, len(prompt) + len(guesses))
    model(batch_of(model, prompt[:-1]), cache) if len(prompt) > 1 else None
    logits = model(batch_of(model, [prompt[-1], *guesses[:-1]]), cache, all_logits=True)  # [1, k, vocab]
    own = logits[0].argmax(-1).tolist()  # own[i] is written if the guesses before i are right
    right = next((i for i, (g, o) in enumerate(zip(guesses, own, strict=True)) if g != o), len(own) - 1)
    return own[: right + 1]


def time_check_and_steps(
    model: Decoder, prompt: Sequence[int], guesses: Sequence[int], budget_s: float = 2.0
) -> tuple[Timing, Timing]:
    """One pass over the k guessed tokens, and k steps that write them, timed in turns."""
    cache = new_cache(model, len(prompt) + len(guesses))
    model(batch_of(model, prompt), cache)
    text = batch_of(model, [prompt[-1], *guesses[:-1]])  # [1, k]
    start = len(prompt) - 1

    ends = range(start, start + len(guesses))
    score = decode_step(model, cache, ends, (len(guesses),), all_logits=True)
    step = decode_step(model, cache, ends)

    def check() -> None:
        cache.used = start
        score(text).argmax(-1).tolist()

    def steps() -> None:
        cache.used = start
        for i in range(len(guesses)):
            int(step(text[:, i : i + 1]).argmax())

    timings = interleave({"check": check, "steps": steps}, device_of(model), budget_s)
    return timings["check"], timings["steps"]


# --- verdicts: what the notebook says of the numbers just measured ---------------------------------------------------


def longer_takes_longer(runs: Sequence[Run]) -> bool:
    """Whether the runs, in the order of their tokens, took more and more time."""
    seconds = [run.measured_s for run in sorted(runs, key=lambda run: run.tokens)]
    return all(a < b for a, b in pairwise(seconds))


def line_holds(pairs: Sequence[tuple[float, float]], within: float = 0.20) -> bool:
    """Whether the steps of a run took what steps alone took, in its first half and in its second.

    Then N of them take N times a step. In a loop whose steps get dearer as it runs, the second half gives it away.
    """
    ratios = [in_run / alone for in_run, alone in pairs]
    halves = ratios[: len(ratios) // 2], ratios[len(ratios) // 2 :]
    return all(abs(median(half) - 1) <= within for half in halves)


def past_untouched(changes: Sequence[float], position: int) -> bool:
    """Whether changing the token at `position` moved the logits there and at the end, and none before it."""
    before, after = changes[:position], changes[position:]
    return max(before) < 1e-3 < 0.1 < min(after[0], after[-1])


def futures_differ(branches: Sequence[Future]) -> bool:
    """Whether what comes after the next token depends on which token that is."""
    return len({branch.then[0][0] for branch in branches}) > 1


def cheaper(together: Timing, step: Timing, times: int) -> bool:
    """Whether a pass over several tokens took less than `times` steps, round by round."""
    return ratio(together, step) < times


def faster(quick: Timing, slow: Timing, by: float = 1.2) -> bool:
    """Whether the first of two timings taken in turns is shorter, by more than a noisy machine makes up."""
    return ratio(slow, quick) > by


def growth(timings: dict[int, Timing]) -> float:
    """How many times longer a step took at the longest context than at the shortest, round by round."""
    return ratio(timings[max(timings)], timings[min(timings)])


def grows(timings: dict[int, Timing], by: float) -> bool:
    """Whether a step at the longest context took more than `by` times one at the shortest, round by round."""
    return growth(timings) > by
