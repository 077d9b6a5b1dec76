"""Notebook 04, filling the chip: each way out of the idle chip, foretold, then run on the machine at hand.

Batching puts more rows into a step, speculation puts guesses into it, fewer bytes make it shorter, and two pools keep
prefill out of its way. The predicates at the end turn measured numbers into the verdicts that the notebook prints.
"""

import copy
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from time import perf_counter

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from chapter01 import idle
from chapter01.loop import batch_of, device_of, new_cache, next_logits, timed_generate
from chapter01.phases import Grid, Point, in_dtype
from chapter01.speeds import Speeds, foretell, ready
from utils.ceilings import Ceilings, dtype_name
from utils.chips import CHIPS, Chip
from utils.counts import forward_pass, positive, totals, whole
from utils.decoder import Decoder
from utils.device import synchronize
from utils.graphs import decode_step
from utils.models import Shape
from utils.roofline import predict
from utils.timing import Timing, interleave, ratio

# --- batching --------------------------------------------------------------------------------------------------------


def crowds(model: Decoder) -> list[int]:
    """How many users to step at once: 1, 2, 4, ... to 64 on a CPU, to 512 where there is more arithmetic to fill."""
    return [2**i for i in range(7 if device_of(model).type == "cpu" else 10)]


def serve(
    model: Decoder, foretold_s: Mapping[int, float], context: int, budget_s: float = 3.0, limit_s: float = 5.0
) -> Grid:
    """One step for each number of users of {users: foretold seconds}, timed in turns, beside what was foretold.

    Every user has a context of his own. Steps foretold to take over the limit are left out.
    """
    calls = {str(n): ready(model, n, 1, context) for n, s in foretold_s.items() if s <= limit_s}
    timings = interleave(calls, device_of(model), budget_s, least=3)
    points = [Point(int(n), 1, context, foretold_s[int(n)], timing) for n, timing in timings.items()]
    return Grid(tuple(points), tuple((n, 1, context, s) for n, s in foretold_s.items() if s > limit_s))


def used(shape: Shape, users: int, context: int, seconds: float, flop_per_s: float) -> float:
    """Share of the arithmetic, 0 to 1, that one step for so many users keeps at work."""
    return totals(forward_pass(shape, users, 1, context)).flops / seconds / flop_per_s


def knee(step_s: Mapping[int, float]) -> int | None:
    """The first number of users whose step takes more than twice as long as one user's; None if none does."""
    return next((n for n, s in sorted(step_s.items()) if s > 2 * step_s[min(step_s)]), None)


def within(step_s: Mapping[int, float], patience_s: float) -> int | None:
    """The largest number of users whose step takes no longer than they will bear; None if not even the fewest do."""
    return max((n for n, s in step_s.items() if s <= patience_s), default=None)


def users_that_fit(
    shape: Shape, context: int, memory_bytes: float, weight_bytes: float = 2, kv_bytes: float = 2
) -> int:
    """Users whose keys and values fit beside the weights, at `context` tokens each.

    Raises:
        ValueError: a context below 1, or a size that is not a positive number.
    """
    whole("context", context, 1)
    for name, value in (("memory", memory_bytes), ("bytes per weight", weight_bytes), ("bytes per KV", kv_bytes)):
        positive(name, value)
    left = memory_bytes - shape.parameters * weight_bytes
    return max(0, int(left // (context * shape.kv_bytes_per_token(kv_bytes))))


# --- speculation -----------------------------------------------------------------------------------------------------


def look_up(text: Sequence[int], k: int, longest: int = 3, shortest: int = 2) -> list[int]:
    """Guess up to k tokens: what followed the last few tokens when they stood in the text before.

    Known as prompt look-up (Saxena, 2023). The longest match counts; of several, the latest that has k tokens behind
    it. No match, no guess: then nothing is lost either.
    """
    for n in range(min(longest, len(text) - 1), shortest - 1, -1):
        tail, found = list(text[-n:]), []
        for start in range(len(text) - n - 1, -1, -1):
            if list(text[start : start + n]) == tail:
                found = list(text[start + n : start + n + k])
                if len(found) == k:
                    break
        if found:
            return found
    return []


@dataclass(frozen=True)
class Pass:
    """One pass of speculative decoding: guesses checked in it, and how many of them were right."""

    guessed: int
    kept: int

    @property
    def rows(self) -> int:
        """Positions that the pass works on: the last token, and the guesses behind it."""
        return 1 + self.guessed

    @property
    def tokens(self) -> int:
        """Tokens that it yields: the right guesses, and the model's own token after them."""
        return 1 + self.kept


@dataclass(frozen=True)
class Written:
    """A text written by speculation; seconds count from the first token on, as `greedy` counts them."""

    tokens: list[int]
    passes: list[Pass]
    seconds: float


def acceptance(passes: Sequence[Pass]) -> float:
    """Share of the guesses that were right; 0 if none was made."""
    return sum(p.kept for p in passes) / max(1, sum(p.guessed for p in passes))


def tokens_per_pass(passes: Sequence[Pass]) -> float:
    """Tokens that one pass yields on average.

    Raises:
        ValueError: no passes.
    """
    if not passes:
        raise ValueError("0 passes have no average: write at least one token with `speculate` first")
    return sum(p.tokens for p in passes) / len(passes)


Drafter = Callable[[Sequence[int], int], Sequence[int]]


def speculate(model: Decoder, prompt: Sequence[int], count: int, k: int, draft: Drafter = look_up) -> Written:
    """Write `count` tokens greedily, checking up to k guesses in each pass.

    One pass scores the last token and the guesses behind it. Guesses are kept as long as each is what the model itself
    picks. The first wrong one is replaced by the model's pick, and the cache forgets what lies behind: `used` is set
    back. So the text is the one that greedy decoding writes, whatever the drafter says.

    Raises:
        ValueError: an empty prompt, a count below 1, or a negative k.
    """
    if count < 1 or not prompt or k < 0:
        raise ValueError(f"{count} tokens after a prompt of {len(prompt)}, {k} guesses: give at least 1, 1 and 0")
    cache = new_cache(model, len(prompt) + count)
    step = decode_step(model, cache, range(len(prompt), len(prompt) + count - 1), range(1, k + 2), all_logits=True)
    written, passes = [int(model(batch_of(model, prompt), cache).argmax())], []
    start = perf_counter()
    while len(written) < count:
        guesses = list(draft([*prompt, *written], min(k, count - len(written) - 1)))
        known = cache.used
        logits = step(batch_of(model, [written[-1], *guesses]))  # [1, rows, vocab]
        own = logits[0].argmax(-1).tolist()  # own[i] is the model's pick if the guesses before i are right
        kept = right(guesses, own)
        cache.used = known + 1 + kept
        written += own[: kept + 1]
        passes.append(Pass(len(guesses), kept))
    return Written(written, passes, perf_counter() - start)


def right(guesses: Sequence[int], own: Sequence[int]) -> int:
    """How many guesses, from the first, are the model's own picks."""
    return next((i for i, (g, o) in enumerate(zip(guesses, own, strict=False)) if g != o), len(guesses))


def greedy(model: Decoder, prompt: Sequence[int], count: int) -> tuple[list[int], float]:
    """The greedy text, and the seconds from its first token to its last."""
    written = timed_generate(model, prompt, count)
    return [token for token, _ in written], written[-1][1] - written[0][1]


def foretell_passes(prompt: Sequence[int], text: Sequence[int], k: int, draft: Drafter = look_up) -> list[Pass]:
    """The passes that speculation needs for a text that is known already: arithmetic, no model runs."""
    passes, done = [], 1
    while done < len(text):
        guesses = list(draft([*prompt, *text[:done]], min(k, len(text) - done - 1)))
        passes.append(Pass(len(guesses), right(guesses, text[done:])))
        done += passes[-1].tokens
    return passes


ROWS = (1, 2, 3, 4, 5, 8, 12, 16)


def time_rows(model: Decoder, context: int = 128, budget_s: float = 2.0) -> dict[int, Timing]:
    """Passes of 1 to 16 rows behind a context, all rows scored and the picks read, timed in turns; by rows."""
    cache = new_cache(model, context + max(ROWS))
    cache.k.normal_()
    cache.v.normal_()
    text = torch.randint(model.shape.vocab, (1, max(ROWS)), device=device_of(model))

    step = decode_step(model, cache, range(context, context + 1), ROWS, all_logits=True)

    def check(rows: int) -> None:
        cache.used = context
        step(text[:, :rows]).argmax(-1).tolist()

    calls = {str(rows): (lambda rows=rows: check(rows)) for rows in ROWS}
    timings = interleave(calls, device_of(model), budget_s, least=3)
    return {rows: timings[str(rows)] for rows in ROWS}


def pass_seconds(timings: Mapping[int, Timing], rows: float) -> float:
    """Seconds of a pass of so many rows, between the rows that were timed."""
    return float(np.interp(rows, list(timings), [t.median_s for t in timings.values()]))


def foretell_gain(timings: Mapping[int, Timing], passes: Sequence[Pass]) -> float:
    """How many times faster than step by step these passes write, from the times of passes by rows."""
    steps_s = sum(p.tokens for p in passes) * pass_seconds(timings, 1)
    return steps_s / sum(pass_seconds(timings, p.rows) for p in passes)


def expected_tokens(accepted: float, k: int) -> float:
    """Tokens of a pass of k guesses if each is right with that probability: 1 + a + a^2 + ... + a^k.

    From "Fast Inference from Transformers via Speculative Decoding" (Leviathan et al., 2023).

    Raises:
        ValueError: a probability outside 0 to 1, or a negative k.
    """
    if not 0 <= accepted <= 1 or k < 0:
        raise ValueError(f"acceptance {accepted}, {k} guesses: give a share from 0 to 1 and a number from 0 on")
    return sum(accepted**i for i in range(k + 1))


def gain(timings: Mapping[int, Timing], accepted: float, k: int) -> float:
    """Expected gain of k guesses a pass over single steps, from the times of passes by rows."""
    return expected_tokens(accepted, k) * pass_seconds(timings, 1) / pass_seconds(timings, k + 1)


def best_k(timings: Mapping[int, Timing], accepted: float) -> int:
    """The guesses a pass that gain most, of all that the timed rows have room for; 0 where none gain anything."""
    return max(range(max(timings)), key=lambda k: gain(timings, accepted, k))


@dataclass(frozen=True)
class Race:
    """The same text written step by step and with guesses, in turns."""

    text: list[int]
    written: Written
    steps: Timing
    speculation: Timing
    foretold: float  # gain, known before the first guess was checked

    @property
    def gain(self) -> float:
        """How many times faster the guesses made it, round by round."""
        return ratio(self.steps, self.speculation)


def race(
    model: Decoder, timings: Mapping[int, Timing], prompt: Sequence[int], count: int, k: int, rounds: int = 2
) -> Race:
    """Write a text both ways, in turns, after foretelling the gain from the greedy text and the times of passes."""
    text, seconds = greedy(model, prompt, count)
    foretold = foretell_gain(timings, foretell_passes(prompt, text, k))
    pairs = [(seconds, speculate(model, prompt, count, k))]
    for _ in range(rounds - 1):
        pairs.append((greedy(model, prompt, count)[1], speculate(model, prompt, count, k)))
    steps, quick = Timing(tuple(s for s, _ in pairs)), Timing(tuple(w.seconds for _, w in pairs))
    return Race(text, pairs[-1][1], steps, quick, foretold)


TIE = 1e-3  # of a logit: closer than this, one-row and many-row kernels may pick differently


def parting(model: Decoder, prompt: Sequence[int], one: Sequence[int], other: Sequence[int]) -> float | None:
    """The gap between the two best logits where two texts part; None if they are the same."""
    for i, (a, b) in enumerate(zip(one, other, strict=True)):
        if a != b:
            best, second = next_logits(model, [*prompt, *one[:i]]).topk(2).values.tolist()
            return best - second
    return None


# --- fewer bytes -----------------------------------------------------------------------------------------------------


class OneByte(nn.Module):
    """A matrix product whose weights [outer, inner] are kept as one byte each, with one scale for each row.

    The weights are widened before they are multiplied: the result is that of rounded weights and exact inputs. Torch
    does it in two kernels, so that the widened weights travel through memory too. A good kernel does both in one.
    """

    def __init__(self, linear: nn.Linear):
        super().__init__()
        weight, scale = rounded(linear.weight)
        self.register_buffer("weight", weight)
        self.register_buffer("scale", scale.to(linear.weight.dtype))

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight.to(x.dtype)) * self.scale


def rounded(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Weights [outer, inner] as whole numbers from -127 to 127, and the scale [outer] that gives them their size."""
    scale = (weight.float().abs().amax(1) / 127).clamp_min(1e-12)
    return (weight.float() / scale[:, None]).round().to(torch.int8), scale


def with_byte_kernel(linear: nn.Linear) -> nn.Module:
    """The same one-byte weights behind torch's own CPU kernel, which reads one byte a weight.

    It multiplies bytes with bytes: the inputs are rounded too, all of a call with one scale, as the call comes.
    """
    weight, scale = rounded(linear.weight)
    with warnings.catch_warnings():  # torch moves this kernel to a package of its own, and says so
        warnings.simplefilter("ignore")
        zeros = torch.zeros(len(scale), dtype=torch.long)
        packed = torch.quantize_per_channel(weight.float() * scale[:, None], scale.double(), zeros, 0, torch.qint8)
        return _kernel(linear, packed, torch.qint8)


def with_half_kernel(linear: nn.Linear) -> nn.Module:
    """The weights as float16, packed ahead for torch's own CPU kernel: inputs and results keep their four bytes.

    Raises:
        RuntimeError: torch was built without this kernel, as it is for ARM.
    """
    with warnings.catch_warnings():  # as above
        warnings.simplefilter("ignore")
        return _kernel(linear, linear.weight.detach().float(), torch.float16)


def _kernel(linear: nn.Linear, weight: Tensor, dtype: torch.dtype) -> nn.Module:
    from torch.ao.nn.quantized.dynamic import Linear

    product = Linear(linear.in_features, linear.out_features, bias_=False, dtype=dtype)
    product.set_weight_bias(weight, None)
    return product


def has_byte_kernel(device: torch.device) -> bool:
    """Whether torch has a kernel here that reads one byte a weight: on a CPU, if it was built with one."""
    return device.type == "cpu" and any(engine != "none" for engine in torch.backends.quantized.supported_engines)


def has_half_kernel(device: torch.device) -> bool:
    """Whether torch has a kernel here for float16 weights that were packed ahead."""
    try:
        return device.type == "cpu" and with_half_kernel(nn.Linear(8, 8, bias=False)) is not None
    except RuntimeError:
        return False


def in_kernels(model: Decoder, product: Callable[[nn.Linear], nn.Module] = OneByte) -> Decoder:
    """A copy of the model with `product` in place of its matrix products; norms and embedding stay."""
    small = {id(part): product(part) for part in model.modules() if isinstance(part, nn.Linear)}
    return copy.deepcopy(model, small)  # copied already, says the second argument: no weight is copied in vain


FOUR, TWO, ONE = "4 bytes", "2 bytes", "1 byte"


def widths(model: Decoder, ceilings: Ceilings) -> dict[str, Decoder]:
    """The model with weights of four bytes, of two (the kind with the faster step here), and of one.

    The one in the model's own dtype is the model itself, not a copy.
    """
    device = device_of(model)
    names = [name for name in ("bfloat16", "float16") if name in ceilings.one_row_bytes_per_s]
    half = in_dtype(model, getattr(torch, max(names, key=ceilings.one_row_bytes_per_s.get)))
    wide = in_dtype(model, torch.float32)
    halves = {"plain": half} | ({"packed": in_kernels(wide, with_half_kernel)} if has_half_kernel(device) else {})
    steps = time_widths(halves, budget_s=0.5)
    two = halves[min(steps, key=lambda name: steps[name].median_s)]
    one = in_kernels(wide, with_byte_kernel) if has_byte_kernel(device) else in_kernels(half)
    return {FOUR: wide, TWO: two, ONE: one}


def kind(model: Decoder) -> str:
    """How the weights of a model lie: "bfloat16", or what a kernel packed ahead."""
    packed = not any(isinstance(part, nn.Linear) for part in model.modules())
    return "float16, packed ahead for a CPU" if packed else dtype_name(model.embed.weight.dtype)


def time_widths(models: Mapping[str, Decoder], context: int = 64, budget_s: float = 1.5) -> dict[str, Timing]:
    """One step of each model, in turns."""
    calls = {name: ready(model, 1, 1, context) for name, model in models.items()}
    return interleave(calls, device_of(next(iter(models.values()))), budget_s)


def good_kernel_s(shape: Shape, speeds: Speeds, width: float, users: int = 1, rows: int = 1, context: int = 64):
    """Seconds of a pass whose weights take `width` bytes, with kernels that reach the roofs, and this overhead."""
    numbers = speeds.bytes_per_number
    modules = forward_pass(shape, users, rows, context, width, numbers, numbers, all_logits=True)
    return predict(
        modules, speeds.flop_per_s, speeds.read_bytes_per_s, speeds.overhead_s, overlap=speeds.overlap
    ).seconds


def step_probabilities(model: Decoder, tokens: Sequence[int]) -> Tensor:
    """What the model expects after each token of a text, [tokens, vocab]; read token by token, as decoding does."""
    cache = new_cache(model, len(tokens))
    rows = [model(batch_of(model, [token]), cache)[0].float().softmax(-1) for token in tokens]
    return torch.stack(rows).cpu()


def moved(before: Tensor, after: Tensor) -> float:
    """Share of the probability that went to other tokens, mean over the rows of two [tokens, vocab] (0 to 1)."""
    return float((before - after).abs().sum(-1).mean() / 2)


def same_favourite(before: Tensor, after: Tensor) -> float:
    """Share of the rows of two [tokens, vocab] with the same likeliest token."""
    return float((before.argmax(-1) == after.argmax(-1)).float().mean())


# --- hardware --------------------------------------------------------------------------------------------------------


def on_chips(shape: Shape, context: int, weight_bytes: float = 2, chips: Sequence[Chip] = CHIPS):
    """One user's step on every chip of the catalogue: [(chip, idle.Reading)], the least idle first.

    Arithmetic in the chip's usual 16-bit type, or in 32 bits where the catalogue has no other rate.
    """
    known = [chip for chip in chips if chip.flop_per_s]
    readings = [(chip, idle.exact(chip, idle.default_dtype(chip), shape, 1, context, weight_bytes)) for chip in known]
    return sorted(readings, key=lambda pair: pair[1].idle)


# --- two pools -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Stalls:
    """Seconds between the tokens of users who share the chip with prompts that come in between."""

    gaps_s: list[float]
    at: list[int]  # the gaps in which a prompt was read

    @property
    def quiet_s(self) -> float:
        """The usual gap, with no prompt in it."""
        return median(s for i, s in enumerate(self.gaps_s) if i not in self.at)

    @property
    def stalled_s(self) -> float:
        """The usual gap with a prompt in it."""
        return median(self.gaps_s[i] for i in self.at)


def interrupt(
    model: Decoder, prompt: int, users: int = 4, context: int = 128, steps: int = 24, at: Sequence[int] = (6, 12, 18)
) -> Stalls:
    """Step the users' texts on; now and then another user's prompt is read between two steps, on the same chip."""
    decode, prefill = ready(model, users, 1, context), ready(model, 1, prompt, 0)
    device, gaps_s = device_of(model), []
    for call in (decode, prefill, decode):  # warm
        call()
    for i in range(steps):
        synchronize(device)
        start = perf_counter()
        if i in at:
            prefill()
        decode()
        synchronize(device)
        gaps_s.append(perf_counter() - start)
    return Stalls(gaps_s, list(at))


def prefill_pool(prefill_s: float, step_s: float, answer: int, users: int) -> float:
    """Share of the chips that the pool for prompts needs, so that neither pool waits for the other.

    A request keeps a prefill chip for `prefill_s`, which gives the first token, and a decode chip for the steps of the
    others, which it shares with all users of a batch.

    Raises:
        ValueError: a value that is not above zero.
    """
    for name, value in (("prefill", prefill_s), ("step", step_s)):
        positive(f"seconds of a {name}", value)
    whole("answer", answer, 1)
    whole("users", users, 1)
    return prefill_s / (prefill_s + (answer - 1) * step_s / users)


# --- together --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Lever:
    """What one lever, or all of them, makes of the chip: share of its arithmetic that writes tokens, 0 to 1."""

    name: str
    predicted: float
    measured: float | None = None  # None: on paper


def at_work(shape: Shape, tokens_per_s: float, flop_per_s: float) -> float:
    """Share of the arithmetic that wrote tokens: two FLOP for each weight and token; work thrown away is none."""
    return 2 * shape.read_parameters * tokens_per_s / flop_per_s


def on_paper(shape: Shape, chip: Chip, count: int, context: int, accepted: float, k: int) -> list[Lever]:
    """The levers on so many H100-like chips with 16-bit arithmetic; batches are as large as the memory allows."""
    flop_per_s, bytes_per_s = count * chip.flop_per_s["bf16"], count * chip.read_bytes_per_s

    def share(users: int, rows: int, width: float) -> float:
        modules = forward_pass(shape, users, rows, context, width, width, 2, all_logits=rows > 1)
        seconds = predict(modules, flop_per_s, bytes_per_s).seconds
        tokens = users * (expected_tokens(accepted, k) if rows > 1 else 1)
        return at_work(shape, tokens / seconds, flop_per_s)

    def crowd(width: float) -> int:
        return users_that_fit(shape, context, count * chip.memory_bytes, width, width)

    return [
        Lever("one user, 2 bytes", share(1, 1, 2)),
        Lever("1 byte a number", share(1, 1, 1)),
        Lever(f"{k} guesses a pass", share(1, k + 1, 2)),
        Lever(f"{crowd(2):,} users: all that fit", share(crowd(2), 1, 2)),
        Lever(f"all three, {crowd(1):,} users", share(crowd(1), k + 1, 1)),
    ]


def time_together(model: Decoder, small: Decoder, users: int, k: int, context: int, budget_s: float = 2.0):
    """Passes with no lever, with each, and with all, timed in turns: {name: Timing}; `small` has one-byte weights."""

    def call(model: Decoder, users: int, rows: int) -> Callable[[], None]:
        return ready(model, users, rows, context, all_logits=True)

    calls = {
        "none": call(model, 1, 1),
        "bytes": call(small, 1, 1),
        "guesses": call(model, 1, k + 1),
        "users": call(model, users, 1),
        "all": call(small, users, k + 1),
    }
    return interleave(calls, device_of(model), budget_s, least=3)


def here_at_work(
    shape: Shape, speeds: Speeds, timings: Mapping[str, Timing], users: int, k: int, accepted: float, context: int
) -> list[Lever]:
    """The levers on this machine, predicted and measured; guesses count as often as they are right."""
    yields = expected_tokens(accepted, k)
    rows = {  # name, tokens of a pass, its foretold seconds
        "none": ("one user", 1, foretell(shape, speeds, 1, 1, context)),
        "bytes": ("1 byte a weight", 1, good_kernel_s(shape, speeds, 1, context=context)),
        "guesses": (f"{k} guesses a pass", yields, foretell(shape, speeds, 1, k + 1, context, all_logits=True)),
        "users": (f"{users} users", users, foretell(shape, speeds, users, 1, context)),
        "all": ("all three", users * yields, good_kernel_s(shape, speeds, 1, users, k + 1, context)),
    }
    return [
        Lever(name, *(at_work(shape, tokens / s, speeds.flop_per_s) for s in (foretold_s, timings[key].median_s)))
        for key, (name, tokens, foretold_s) in rows.items()
    ]


# --- verdicts: what the notebook says of the numbers just measured ---------------------------------------------------


def more_in_all(few: Timing, many: Timing, times_users: float, by: float = 2) -> bool:
    """Whether many users together get over `by` times the tokens a second of few."""
    return times_users / ratio(many, few) > by


def each_waits_longer(few: Timing, many: Timing, by: float = 1.1) -> bool:
    """Whether a step for many takes clearly longer than one for few: what each of them pays."""
    return ratio(many, few) > by


def memory_ends_first(shape: Shape, chip: Chip, count: int, context: int) -> bool:
    """Whether fewer users fit than the matrix products need to reach the ridge (16-bit weights and cache)."""
    return users_that_fit(shape, context, count * chip.memory_bytes) < chip.ridge("bf16")


def same_text(model: Decoder, prompt: Sequence[int], one: Sequence[int], other: Sequence[int]) -> bool:
    """Whether two texts are the same, or part where the model is in two minds."""
    gap = parting(model, prompt, one, other)
    return gap is None or gap < TIE


def guesses_pay(race: Race, by: float = 1.2) -> bool:
    """Whether the text was written clearly faster with guesses than step by step."""
    return race.gain > by


def more_kept(one: Race, other: Race) -> bool:
    """Whether more guesses were right in the one text than in the other."""
    kept, fewer = (sum(p.kept for p in race.written.passes) for race in (one, other))
    return kept > fewer


def rows_ride(timings: Mapping[int, Timing]) -> bool:
    """Whether a pass of the most rows took less than half of what single passes would."""
    return ratio(timings[max(timings)], timings[1]) < max(timings) / 2


def wrong_guesses_gain_nothing(timings: Mapping[int, Timing], by: float = 1.1) -> bool:
    """Whether a pass of the most rows, all guesses in it wrong, took no less than a step of one row."""
    return ratio(timings[max(timings)], timings[1]) > 1 / by


def a_width_pays(timings: Mapping[str, Timing], by: float = 1.1) -> bool:
    """Whether weights of two bytes or of one made the step clearly shorter than four."""
    return max(ratio(timings[FOUR], timings[name]) for name in (TWO, ONE)) > by


def decoder_stalls(stalls: Stalls, by: float = 2) -> bool:
    """Whether every prompt that was read in between made the gap over `by` times as long as usual."""
    return min(stalls.gaps_s[i] for i in stalls.at) > by * stalls.quiet_s


def all_beat_none(timings: Mapping[str, Timing], users: int, tokens: float) -> bool:
    """Whether all levers together write over twice the tokens a second of no lever.

    `tokens`: what one user gets out of a pass with guesses.
    """
    return users * tokens / ratio(timings["all"], timings["none"]) > 2
