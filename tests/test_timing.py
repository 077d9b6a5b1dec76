"""The timer waits for the device, warms up, keeps to a budget and says when it is noisy."""

import math
import time
from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from utils import timing
from utils.timing import Timing, interleave, ratio, time_call

CPU = torch.device("cpu")
seconds = st.floats(1e-7, 1e3)


class Clock:
    """Time that passes only when somebody works or waits, so that no busy machine decides a test."""

    def __init__(self, monkeypatch):
        self.now = 100.0
        monkeypatch.setattr(timing, "perf_counter", lambda: self.now)

    def work(self, seconds):
        self.now += seconds


@pytest.fixture
def clock(monkeypatch):
    return Clock(monkeypatch)


class Queue:
    """A device that takes work at once and does it later, as a GPU does; waiting for it takes real time."""

    done_at = 0.0

    def give(self, work_s):
        self.done_at = max(self.done_at, time.perf_counter()) + work_s

    def wait(self, device):
        time.sleep(max(0.0, self.done_at - time.perf_counter()))


# --- waiting for the device ---------------------------------------------------------------------------


def test_the_work_is_timed_and_not_only_its_launch(monkeypatch):
    queue = Queue()
    monkeypatch.setattr(timing, "synchronize", queue.wait)
    timed = time_call(lambda: queue.give(0.02), CPU, budget_s=0.1, least=3)
    assert min(timed.samples_s) >= 0.019
    # The same timer without the waiting sees nothing but launches.
    monkeypatch.setattr(timing, "synchronize", lambda device: None)
    assert time_call(lambda: queue.give(0.02), CPU, budget_s=0.01).median_s < 0.01


def test_work_given_earlier_is_not_counted(monkeypatch):
    queue, earlier = Queue(), Counter()
    monkeypatch.setattr(timing, "synchronize", queue.wait)

    def before():
        earlier["n"] += 1
        queue.give(0.05)

    timed = interleave({"a": lambda: queue.give(0.002)}, CPU, budget_s=0.01, before=before)["a"]
    assert min(timed.samples_s) < 0.05
    assert earlier["n"] == len(timed.samples_s) == 5


class Event:
    """Stands in for a CUDA event: keeps the time at which the stream reached it, in ms."""

    def __init__(self, enable_timing):
        assert enable_timing

    def record(self, stream):
        stream.append(self)
        self.at = len(stream)

    def elapsed_time(self, other):
        return (other.at - self.at) * 7.0


def test_cuda_is_timed_by_events_around_the_call(monkeypatch):
    stream, waited = [], []
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: stream)
    monkeypatch.setattr(timing, "synchronize", lambda device: waited.append(len(stream)))
    second = timing._sample_s(lambda: stream.append("work"), torch.device("cuda:0"))
    assert second == pytest.approx(0.014)  # two places further on the stream, 7 ms each
    assert waited == [0, 3]  # at rest before the first event, and after the last


# --- warm-up and budget -------------------------------------------------------------------------------


def test_slow_first_calls_are_discarded(clock):
    slow = [0.5, 0.125, 0.0625]
    timed = time_call(lambda: clock.work(slow.pop(0) if slow else 1 / 32), CPU, budget_s=1)
    assert timed.samples_s == pytest.approx([1 / 32] * 32)


def test_warming_up_ends_even_if_no_two_timings_agree(clock):
    calls = Counter()

    def restless():
        calls["n"] += 1
        clock.work(0.001 * 2 ** (calls["n"] % 3))

    timed = time_call(restless, CPU, budget_s=1)
    assert calls["n"] - len(timed.samples_s) == timing.WARM_UP_RUNS
    assert timed.noisy and "noisy" in str(timed)


def test_warming_up_keeps_to_the_budget(clock):
    calls = Counter()

    def long():
        calls["n"] += 1
        clock.work(10 / calls["n"])

    assert len(time_call(long, CPU, budget_s=1, least=2).samples_s) == calls["n"] - 1 == 2


def test_a_short_call_is_repeated_to_the_budget_and_a_long_one_a_few_times(clock):
    assert len(time_call(lambda: clock.work(1 / 1024), CPU, budget_s=0.25, least=3).samples_s) == 256
    assert len(time_call(lambda: clock.work(60), CPU, budget_s=0.2, least=3).samples_s) == 3


@pytest.mark.parametrize(("factor", "runs"), [(2, 512), (0.5, 128), (1e-6, 3)])
def test_all_budgets_can_be_stretched_and_the_least_runs_stay(clock, monkeypatch, factor, runs):
    monkeypatch.setattr(timing, "_stretched", {})  # back to what it was, when the test ends
    timing.stretch(factor)
    assert len(time_call(lambda: clock.work(1 / 1024), CPU, budget_s=0.25, least=3).samples_s) == runs


@pytest.mark.parametrize("factor", [0, -1, math.nan, math.inf, "2", None])
def test_a_factor_that_is_no_positive_number_is_refused(factor):
    with pytest.raises(ValueError, match=r"must be a positive number, such as 0\.5 or 2, not"):
        timing.stretch(factor)


@pytest.mark.parametrize(("budget_s", "least"), [(0, 5), (-1, 5), (math.nan, 5), (1, 0)])
def test_a_budget_or_count_that_is_not_positive_is_refused(budget_s, least):
    with pytest.raises(ValueError, match="must be positive"):
        time_call(lambda: None, CPU, budget_s, least)


def test_an_interrupted_measurement_leaves_nothing_behind(clock):
    calls = Counter()

    def interrupted():
        calls["n"] += 1
        clock.work(0.01)
        if calls["n"] == 4:
            raise KeyboardInterrupt

    both = {"a": interrupted, "b": lambda: clock.work(0.02)}
    with pytest.raises(KeyboardInterrupt):
        interleave(both, CPU, budget_s=0.05)
    again = interleave(both, CPU, budget_s=0.05)
    assert again["a"].samples_s == pytest.approx([0.01] * 5)
    assert again["b"].samples_s == pytest.approx([0.02] * 5)


# --- taking turns -------------------------------------------------------------------------------------


def test_calls_take_turns_and_samples_belong_to_rounds():
    order = []
    timed = interleave({n: lambda n=n: order.append(n) for n in "abc"}, CPU, budget_s=1e-6, least=4)
    assert order[-12:] == list("abc") * 4
    assert {len(t.samples_s) for t in timed.values()} == {4}
    assert interleave({}, CPU) == {}


def test_a_busy_moment_does_not_decide_a_ratio(clock):
    busy_until = clock.now + 0.6

    def work(units):
        clock.work(0.01 * units * (4 if clock.now < busy_until else 1))

    def taken_apart(units):
        return time_call(lambda: work(units), CPU, budget_s=0.5)

    turns = interleave({"two": lambda: work(2), "one": lambda: work(1)}, CPU, budget_s=1)
    assert ratio(turns["two"], turns["one"]) == pytest.approx(2, rel=0.05)
    assert ratio(turns["one"], turns["two"]) == pytest.approx(0.5, rel=0.05)
    busy_until = clock.now + 0.6  # one after the other, the same busy moment falls on the first alone
    assert taken_apart(2).median_s / taken_apart(1).median_s == pytest.approx(8, rel=0.05)


@given(st.lists(seconds, min_size=1, max_size=9), st.floats(0.1, 10))
def test_the_ratio_pairs_rounds(times, factor):
    a, b = Timing(tuple(t * factor for t in times)), Timing(tuple(times))
    assert ratio(a, b) == pytest.approx(factor)


def test_the_ratio_is_paired_and_not_one_of_medians():
    assert ratio(Timing((2.0, 40.0, 3.0)), Timing((1.0, 10.0, 9.0))) == 2.0  # of medians: 3 / 9
    with pytest.raises(ValueError, match="2 and 1 rounds"):
        ratio(Timing((1.0, 2.0)), Timing((1.0,)))


# --- what a timing says -------------------------------------------------------------------------------


@settings(deadline=None)  # the first use of torch's quantile is slow
@given(st.lists(seconds, min_size=1, max_size=50))
def test_median_and_quartiles_are_those_of_torch(times):
    timed = Timing(tuple(times))
    expected = torch.tensor(times, dtype=torch.float64).quantile(torch.tensor([0.25, 0.5, 0.75], dtype=torch.float64))
    torch.testing.assert_close(torch.tensor([timed.q1_s, timed.median_s, timed.q3_s], dtype=torch.float64), expected)
    assert timed.noisy == (timed.spread > 0.2)


@pytest.mark.parametrize(
    ("samples_s", "said"),
    [
        ((0.0243, 0.0239, 0.0250), "24.3 ms (24.1 to 24.6, 3 runs)"),
        ((1.5,), "1.50 s (1.50 to 1.50, 1 run)"),
        ((3.2e-5,) * 8, "32.0 us (32.0 to 32.0, 8 runs)"),
        ((0.12345,) * 2, "123 ms (123 to 123, 2 runs)"),
        ((0.01, 0.02, 0.03), "20.0 ms (15.0 to 25.0, 3 runs, noisy)"),
    ],
)
def test_a_timing_reads_well(samples_s, said):
    assert str(Timing(samples_s)) == said


def test_nothing_is_not_a_timing():
    with pytest.raises(ValueError, match="at least one sample"):
        Timing(())
    assert Timing((0.0, 0.0)).noisy  # the clock was too coarse to see the call
