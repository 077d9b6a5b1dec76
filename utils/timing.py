"""Time a call honestly: warm it up, wait for the device on both sides, repeat to a time budget."""

import math
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter

import torch

from utils.device import synchronize
from utils.turns import turn

WARM_UP_RUNS = 20  # at most; two are enough for a call that is warm already
AGREEMENT = 0.10  # two successive timings this close mean that the call is warm
NOISY_SPREAD = 0.20  # a wider middle half is said in words

_stretched = {"factor": 1.0}  # what a whole notebook may set, once


@dataclass(frozen=True)
class Timing:
    """What the runs of one call took, in seconds, in the order of the runs."""

    samples_s: tuple[float, ...]

    def __post_init__(self) -> None:
        """Refuse an empty measurement: it has no median."""
        if not self.samples_s:
            raise ValueError("A timing needs at least one sample, and got none.")

    @property
    def median_s(self) -> float:
        """Half of the runs took less, in seconds."""
        return statistics.median(self.samples_s)

    @property
    def q1_s(self) -> float:
        """A quarter of the runs took less, in seconds."""
        return self._quartile_s(0)

    @property
    def q3_s(self) -> float:
        """A quarter of the runs took more, in seconds."""
        return self._quartile_s(2)

    @property
    def spread(self) -> float:
        """Width of the middle half of the runs, as a share of the median."""
        return (self.q3_s - self.q1_s) / self.median_s if self.median_s else math.inf

    @property
    def noisy(self) -> bool:
        """Whether the spread is too wide to trust the median to 20 %."""
        return self.spread > NOISY_SPREAD

    def _quartile_s(self, which: int) -> float:
        if len(self.samples_s) == 1:
            return self.samples_s[0]
        return statistics.quantiles(self.samples_s, n=4, method="inclusive")[which]

    def __str__(self) -> str:
        """Median and quartiles for a reader, e.g. "24.3 ms (23.9 to 25.0, 41 runs)"."""
        unit, per_s = next((u for u in (("s", 1), ("ms", 1e3)) if self.median_s * u[1] >= 1), ("us", 1e6))
        median, q1, q3 = (_three_digits(s * per_s) for s in (self.median_s, self.q1_s, self.q3_s))
        runs = f"{len(self.samples_s)} run{'s' * (len(self.samples_s) > 1)}"
        return f"{median} {unit} ({q1} to {q3}, {runs}{', noisy' if self.noisy else ''})"


def _three_digits(value: float) -> str:
    return f"{value:.0f}" if value >= 99.95 else f"{value:.1f}" if value >= 9.995 else f"{value:.2f}"


def stretch(factor: float) -> None:
    """Multiply the time budget of every later measurement: 2 for steadier figures, 0.3 for quicker ones.

    The least number of runs of a measurement stays, and so does the time of one that needs longer for them.
    Raises ValueError for a factor that is not a positive, finite number.
    """
    if not isinstance(factor, int | float) or not 0 < factor < math.inf:
        raise ValueError(f"The factor on time budgets must be a positive number, such as 0.5 or 2, not {factor!r}.")
    _stretched["factor"] = float(factor)


def stretched() -> float:
    """The factor that `stretch` set last."""
    return _stretched["factor"]


def time_call(call: Callable[[], object], device: torch.device, budget_s: float = 0.5, least: int = 5) -> Timing:
    """Time one call, as `interleave` does.

    A call shorter than about 100 us is best repeated inside `call`: waiting for a GPU takes some 10 us.
    """
    return interleave({"call": call}, device, budget_s, least)["call"]


def interleave(
    calls: dict[str, Callable[[], object]],
    device: torch.device,
    budget_s: float = 1.0,
    least: int = 5,
    before: Callable[[], object] | None = None,
) -> dict[str, Timing]:
    """Time several calls in turns (a, b, c, a, b, c, ...), so that a busy moment hits all of them alike.

    Runs `least` rounds, then further ones until `budget_s` seconds, times the factor of `stretch`, are spent
    on all calls together; warm-up comes on top and is discarded. Sample i of every call belongs to round i.
    `before` runs untimed ahead of every sample (to empty a cache, say). Kernels of this machine take turns with
    whole calls of this function (`utils/turns.py`). Raises ValueError for a budget or a count that is not positive.
    """
    if not budget_s > 0 or least < 1:
        raise ValueError(f"A time budget and a count must be positive, not {budget_s} s and {least} runs.")
    budget_s *= stretched()
    with turn():
        for call in calls.values():
            _warm_up(call, device, budget_s)
        samples: dict[str, list[float]] = {name: [] for name in calls}
        start, rounds = perf_counter(), 0
        while calls and (rounds < least or perf_counter() - start < budget_s):
            for name, call in calls.items():
                if before is not None:
                    before()
                samples[name].append(_sample_s(call, device))
            rounds += 1
    return {name: Timing(tuple(times)) for name, times in samples.items()}


def ratio(a: Timing, b: Timing) -> float:
    """How many times longer a took than b: the median over rounds, for two timings of one `interleave`.

    Raises ValueError if the two have different numbers of samples: they were not taken in turns.
    """
    if len(a.samples_s) != len(b.samples_s):
        raise ValueError(f"Timings of {len(a.samples_s)} and {len(b.samples_s)} rounds cannot be paired.")
    return statistics.median(x / y for x, y in zip(a.samples_s, b.samples_s, strict=True))


def _warm_up(call: Callable[[], object], device: torch.device, budget_s: float) -> None:
    """Run until two successive timings agree: first calls compile, allocate, and find clocks at rest."""
    start, last_s = perf_counter(), math.inf
    for _ in range(WARM_UP_RUNS):
        now_s = _sample_s(call, device)
        if abs(now_s - last_s) <= AGREEMENT * last_s < math.inf or perf_counter() - start > budget_s:
            return
        last_s = now_s


def _sample_s(call: Callable[[], object], device: torch.device) -> float:
    """Seconds for one call, from a device at rest to a device at rest."""
    synchronize(device)
    if device.type == "cuda":
        # The GPU's own clock leaves out the time that the CPU takes to notice that it has finished.
        stream = torch.cuda.current_stream(device)
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record(stream)
        call()
        end.record(stream)
        synchronize(device)
        return start.elapsed_time(end) / 1e3
    start_s = perf_counter()
    call()
    synchronize(device)
    return perf_counter() - start_s
