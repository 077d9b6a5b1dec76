"""The two ceilings: measured from memory and not from a cache, and no result above them passes unseen."""

import gc
import itertools
import time
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from utils import ceilings, timing
from utils.ceilings import cache_label, drift, drift_in_words, measure, share_of_ceiling
from utils.timing import Timing, time_call

CPU = torch.device("cpu")
META = torch.device("meta")  # tensors of any size, without memory or work
GIB = 1 << 30
FP32, BF16, FP16 = torch.float32, torch.bfloat16, torch.float16


@pytest.fixture(autouse=True)
def forget(monkeypatch):
    monkeypatch.setattr(ceilings, "_measured", {})


@pytest.fixture
def brief(monkeypatch):
    """Real measurements, too short and too small to be right."""
    for budget in ("READ_S", "SIZE_S", "BEST_S", "CALL_S", "NEXT_SIZE_S"):
        monkeypatch.setattr(ceilings, budget, 0.005)
    monkeypatch.setattr(ceilings, "LEAST_BYTES", 1 << 20)
    monkeypatch.setattr(ceilings, "LEAST_CACHES", 0)


def machine(monkeypatch, cache=None, free=1000 * GIB):
    monkeypatch.setattr(ceilings.devices, "cache_bytes", lambda device: cache)
    monkeypatch.setattr(ceilings.devices, "free_bytes", lambda device: free)


# --- rule 4: the working set --------------------------------------------------------------------------


def rate_with_cache(cache, fast=100e9, slow=20e9):
    """Bytes/s of going through n bytes again and again when a part of them stays in a cache."""
    return lambda n: n / (min(n, cache) / fast + max(0, n - cache) / slow)


@given(st.integers(1, 1 << 40), st.integers(1 << 20, 1 << 34), st.integers(1 << 20, 1 << 44))
def test_the_working_set_grows_until_a_cache_plays_no_part(cache, least, most):
    rate = rate_with_cache(cache)
    nbytes, settled = ceilings.settle(least, most, lambda n: rate(2 * n) / rate(n) - 1)
    assert nbytes <= max(least, most)
    if settled:
        assert nbytes >= least
        assert rate(2 * nbytes) == pytest.approx(rate(nbytes), rel=0.05)
        assert nbytes == least or abs(rate(nbytes) / rate(nbytes / 2) - 1) > 0.05
    else:
        assert 2 * nbytes > most or nbytes == most


def test_a_rate_that_still_rises_with_the_size_has_not_settled_either():
    rate = rate_with_cache(0)  # waiting for a device takes a millisecond a pass
    change = lambda n: (2 * n / (2 * n / rate(n) + 1e-3)) / (n / (n / rate(n) + 1e-3)) - 1  # noqa: E731
    nbytes, settled = ceilings.settle(1 << 22, GIB, change)
    assert settled and nbytes > 1 << 26


@pytest.mark.parametrize(
    ("cache", "expected"), [(None, GIB), (48 << 20, GIB), (512 << 20, 2 * GIB), (3 * GIB, 12 * GIB)]
)
def test_the_working_set_is_a_gigabyte_and_four_caches_at_least(monkeypatch, cache, expected):
    machine(monkeypatch, cache)
    monkeypatch.setattr(ceilings, "_doubling_changes_rate", lambda device, nbytes: 0.0)
    assert ceilings._working_set_bytes(CPU) == (expected, "")


def test_the_change_is_that_of_the_rate(monkeypatch):
    rate = rate_with_cache(100 << 20)

    def by_size(calls, device, budget_s):
        sizes = {name: call.__self__.nbytes for name, call in calls.items()}
        return {name: Timing((n / rate(n),)) for name, n in sizes.items()}

    monkeypatch.setattr(ceilings, "interleave", by_size)
    change = ceilings._doubling_changes_rate(CPU, 128 << 20)
    assert change == pytest.approx(rate(256 << 20) / rate(128 << 20) - 1)
    assert change < -0.3


@pytest.mark.parametrize(
    ("free", "nbytes", "said"),
    [(GIB, GIB // 2, "working set of 0.54 GB only"), (3 * GIB, GIB, "stayed at 1.07 GB")],
)
def test_a_working_set_capped_by_memory_is_said(monkeypatch, free, nbytes, said):
    machine(monkeypatch, cache=48 << 20, free=free)
    found, note = ceilings._working_set_bytes(CPU)
    assert found == nbytes
    assert said in note and "free memory" in note


def test_data_in_a_cache_are_labelled():
    cache = 48 << 20
    labels = [cache_label(n << 20, cache) for n in (1, 47, 48, 191, 192, 5000)]
    assert labels == ["in cache"] * 2 + ["partly in cache"] * 2 + ["in memory"] * 2
    assert cache_label(1, None) == "cache size unknown"


# --- rule 4b: the roof is the best of several kernels -------------------------------------------------


def fake_rates(monkeypatch, reads, products, noisy=False):
    """A machine with these rates: bytes/s by kernel, FLOP/s by dtype."""

    def time_reads(device, dtype, memory, budget_s):
        name = ceilings.dtype_name(dtype)
        own = {how: rate for how, rate in reads.items() if name in how or ("," not in how and dtype == FP32)}
        times = (1.0, 2.0, 3.0) if noisy else (1.0,)
        return {how: ceilings.Read(rate, Timing(times)) for how, rate in own.items()}

    machine(monkeypatch)
    monkeypatch.setattr(ceilings, "_doubling_changes_rate", lambda device, nbytes: 0.0)
    monkeypatch.setattr(ceilings, "_time_reads", time_reads)
    monkeypatch.setattr(
        ceilings,
        "_best_product",
        lambda device, dtype: ceilings.Product(512, Timing((2 * 512**3 / products[dtype],))),
    )


READS = {
    "sum": 20e9,
    "copy": 21e9,
    "one row, float32": 25e9,
    "one row, float32, transposed": 24e9,
    "one row, bfloat16": 12e9,
    "one row, bfloat16, transposed": 23e9,
    "one row, float16": 11e9,
}
PRODUCTS = {FP32: 200e9, BF16: 30e9, FP16: 8e9}


@pytest.mark.parametrize("best", READS)
def test_the_roof_is_the_best_of_all_kernels_dtypes_and_layouts(monkeypatch, best):
    fake_rates(monkeypatch, READS | {best: 30e9}, PRODUCTS)
    found = measure(CPU)
    assert (found.read_bytes_per_s, found.read_how) == (30e9, best)
    assert all(not share_of_ceiling(r, 30e9).error for r in found.one_row_bytes_per_s.values())


def test_what_is_measured_is_reported_by_dtype(monkeypatch):
    fake_rates(monkeypatch, READS, PRODUCTS)
    found = measure(CPU)
    assert found.one_row_bytes_per_s == {"float32": 25e9, "bfloat16": 12e9, "float16": 11e9}
    assert found.flop_per_s == pytest.approx({"float32": 200e9, "bfloat16": 30e9, "float16": 8e9})
    assert found.flop_size == dict.fromkeys(found.flop_per_s, 512)
    assert found.working_set_bytes == GIB and found.notes == ()
    assert found.device_name == ceilings.devices.name(CPU)


def captured_calls(monkeypatch, device=CPU, dtype=FP32):
    """The calls that would be timed for the bandwidth roof, their bytes, and what runs before each."""
    seen = SimpleNamespace()

    def capture(calls, device, budget_s, least, before):
        seen.calls, seen.before = calls, before
        return {name: Timing((1.0,)) for name in calls}

    monkeypatch.setattr(ceilings, "interleave", capture)
    memory = ceilings.room(device, 64 << 20)
    seen.moved = {k: read.moved_bytes for k, read in ceilings._time_reads(device, dtype, memory, 0.01).items()}
    return seen


def test_a_copy_counts_both_directions_and_a_product_its_weights(brief, monkeypatch):
    seen = captured_calls(monkeypatch)
    nbytes = 64 << 20
    assert seen.moved["sum"] == seen.calls["sum"].__self__.nbytes == nbytes
    data = seen.calls["sum"].__self__
    assert seen.moved["copy"] == nbytes  # half of it read, half of it written
    data[: len(data) // 2] = 0
    seen.calls["copy"]()
    assert data[: len(data) // 2].std() > 0.9 and torch.equal(*data.chunk(2))

    read = []
    monkeypatch.setattr(ceilings, "multiply", lambda x, w: read.append(w.nbytes))
    seen.calls["one row, float32"]()
    assert seen.moved["one row, float32"] == sum(read) > 0


@pytest.mark.parametrize("dtype", [FP32, BF16])
def test_both_layouts_are_real_products_of_one_row(brief, monkeypatch, dtype):
    name, made = ceilings.dtype_name(dtype), []
    multiply, matmul = ceilings.multiply, torch.Tensor.__matmul__
    monkeypatch.setattr(ceilings, "CALL_S", 10.0)
    seen = captured_calls(monkeypatch, dtype=dtype)
    monkeypatch.setattr(ceilings, "multiply", lambda x, w: made.append((x, w, multiply(x, w))))
    monkeypatch.setattr(torch.Tensor, "__matmul__", lambda x, w: made.append((x, w.T, matmul(x, w))))
    seen.calls[f"one row, {name}"]()
    seen.calls[f"one row, {name}, transposed"]()
    (x, w, y), (xt, wt, yt) = made[0], made[-1]
    assert w.is_contiguous() and wt.T.is_contiguous() and wt.shape == w.shape
    for row, weights, out in ((x, w, y), (xt, wt, yt)):
        assert out.shape == (1, len(weights)) and out.dtype == dtype
        torch.testing.assert_close(
            out.double(), torch.mm(row.double(), weights.double().T), atol=0.5, rtol=0.02 if dtype == BF16 else 1e-3
        )


@pytest.mark.parametrize(("product_s", "expected"), [(1e-6, 7), (0.02, 2), (0.2, 0)])
def test_weights_come_again_only_when_all_others_have_been_read(monkeypatch, product_s, expected):
    def probed(call, device, budget_s, least):
        call()
        return Timing((product_s * rows.pop() / 16,))

    monkeypatch.setattr(ceilings, "time_call", probed)
    weights, rows, read = torch.randn(7, 16, 8), [], []
    call, count = ceilings._in_turn(lambda w: (rows.append(len(w)), read.append(w.data_ptr())), weights, CPU)
    assert count == expected
    del read[:]
    for _ in range(10):
        call()
    each = max(1, count)  # no call is empty
    assert read == list(itertools.islice(itertools.cycle(w.data_ptr() for w in weights), 10 * each))


def test_a_layout_without_a_fast_kernel_costs_no_time_but_the_decoders_own_is_measured(brief, monkeypatch):
    in_turn = ceilings._in_turn
    monkeypatch.setattr(ceilings, "_in_turn", lambda *what: (in_turn(*what)[0], 0))
    seen = captured_calls(monkeypatch, dtype=BF16)
    assert set(seen.calls) == {"one row, bfloat16"}
    assert seen.moved["one row, bfloat16"] == 2048 * 2048 * 2


# --- rule 3: no zeros ---------------------------------------------------------------------------------


def test_everything_that_is_multiplied_or_read_is_random_normal(brief, monkeypatch):
    seen, linear = [], torch.nn.functional.linear

    def watched(x, w):
        seen.append((x, w[:64]))
        return linear(x, w)

    # (whether a dtype runs at all is tried on ones)
    monkeypatch.setattr(ceilings, "_runs", lambda device, dtype: dtype == FP32)
    monkeypatch.setattr(torch.nn.functional, "linear", watched)
    measure(CPU)
    assert len(seen) > 10
    for x, w in seen:
        for t in (x, w):
            assert 0.8 < t.std() < 1.2 and abs(t.mean()) < 0.3
            assert (t == 0).float().mean() < 0.001
    memory = ceilings.room(CPU, 100 << 20)
    for dtype in (FP32, BF16, FP16):  # one after the other in the same memory, all of it
        data = ceilings.normals(memory, dtype)
        assert data.dtype == dtype and data.data_ptr() == memory.data_ptr() and data.nbytes == memory.nbytes
        for part in data.chunk(8):
            assert 0.99 < part.float().std() < 1.01


@pytest.mark.parametrize(("asked", "given"), [(1, 64 << 20), (100 << 20, 96 << 20), (1e9, 60 << 24)])
def test_memory_for_a_measurement_comes_in_blocks_four_at_least(asked, given):
    assert ceilings.room(META, asked).nbytes == given


# --- rule 2: noise is said ----------------------------------------------------------------------------


def test_a_noisy_roof_is_said(monkeypatch):
    fake_rates(monkeypatch, READS, PRODUCTS, noisy=True)
    (note,) = measure(CPU).notes
    assert "busy" in note and "noisy" in note and "one row, float32" in note


def test_a_noisy_product_is_said(monkeypatch):
    fake_rates(monkeypatch, READS, PRODUCTS)
    noisy = ceilings.Product(512, Timing((1.0, 2.0, 3.0)))
    monkeypatch.setattr(ceilings, "_best_product", lambda *what: noisy)
    notes = measure(CPU).notes
    assert len(notes) == 3 and "bfloat16" in notes[1] and all("noisy" in note for note in notes)


def test_the_roof_is_taken_from_the_faster_runs(monkeypatch):
    fake_rates(monkeypatch, READS, PRODUCTS, noisy=True)  # 1, 2 and 3 s: a quarter of the runs under 1.5 s
    assert measure(CPU).read_bytes_per_s == pytest.approx(25e9 / 1.5)


# --- rule 6: the dtype by measurement -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("machine", "one_row", "flops", "best"),
    [
        ("a CPU that converts bfloat16 at length", (25, 12, 11), (200, 30, 8), FP32),
        ("a CPU where it gains a little", (31, 18, 17), (200, 60, 8), FP32),
        ("a CPU with bfloat16 no slower than its bytes", (25, 23, 11), (200, 190, 8), BF16),
        ("a CPU that reads bfloat16 as it comes, and converts it for products", (25, 23, 11), (200, 30, 8), FP32),
        ("a CPU without fast kernels of one row, but for the float16 it emulates", (15, 13, 17), (141, 363, 28), BF16),
        ("a T4, which emulates bfloat16 products", (250, 240, 245), (8, 3, 50), FP16),
        ("an A100: the same rates for both", (1700, 1680, 1700), (19, 260, 262), BF16),
        ("every dtype as fast as every other", (20, 10, 5), (100, 100, 100), FP32),
    ],
)
def test_the_dtype_with_the_best_measured_decode_is_picked(machine, one_row, flops, best):
    by_dtype = (dict(zip(ceilings.DTYPES, rates, strict=True)) for rates in (one_row, flops))
    assert ceilings._best_dtype(*by_dtype) == best


def test_a_dtype_that_does_not_run_is_left_out_and_said(monkeypatch):
    linear = torch.nn.functional.linear

    def no_bfloat16(x, w):
        if w.dtype == BF16:
            raise RuntimeError("not implemented for 'BFloat16'")
        return linear(x, w)

    monkeypatch.setattr(torch.nn.functional, "linear", no_bfloat16)
    fake_rates(monkeypatch, READS, PRODUCTS)
    found = measure(CPU)
    assert set(found.flop_per_s) == set(found.one_row_bytes_per_s) == {"float32", "float16"}
    assert found.notes == ("bfloat16 does not run on this device",)


# --- rule 7: nothing is faster than the fastest -------------------------------------------------------


@pytest.mark.parametrize(("achieved", "error"), [(0, False), (99, False), (105, False), (106, True)])
def test_a_share_over_the_ceiling_is_an_error_of_measurement(achieved, error):
    share = share_of_ceiling(achieved, 100)
    assert share == achieved / 100 and share.error is error
    assert ("error of measurement" in str(share)) is ("error of measurement" in f"{share}") is error
    assert f"{share:.0%}" == f"{achieved}%"


@pytest.mark.parametrize("bad", [(-1, 2), (1, 0), (1, -2), (float("nan"), 1), (1, float("nan")), (1, float("inf"))])
def test_a_share_of_nonsense_is_refused(bad):
    with pytest.raises(ValueError, match="positive ceiling"):
        share_of_ceiling(*bad)


def test_a_timer_that_does_not_wait_breaks_the_ceiling(monkeypatch):
    done_at = 0.0

    def give():  # 1 MB in 10 ms, by a device that works on while the caller goes on
        nonlocal done_at
        done_at = max(done_at, time.perf_counter()) + 0.01

    wait = lambda device: time.sleep(max(0.0, done_at - time.perf_counter()))  # noqa: E731
    monkeypatch.setattr(timing, "synchronize", wait)
    roof = 1e6 / time_call(give, CPU, budget_s=0.1).q1_s
    assert not share_of_ceiling(1e6 / time_call(give, CPU, budget_s=0.1).median_s, 1.5 * roof).error
    monkeypatch.setattr(timing, "synchronize", lambda device: None)
    assert share_of_ceiling(1e6 / time_call(give, CPU, budget_s=0.01).median_s, 1.5 * roof).error


def test_a_rate_from_the_cache_breaks_the_ceiling():
    rate = rate_with_cache(48 << 20)
    assert share_of_ceiling(rate(32 << 20), rate(GIB)).error
    assert not share_of_ceiling(rate(2 * GIB), rate(GIB)).error


def test_the_peak_of_another_dtype_is_seen(monkeypatch):
    fake_rates(monkeypatch, READS, PRODUCTS)
    peaks = measure(CPU).flop_per_s
    assert not share_of_ceiling(190e9, peaks["float32"]).error
    assert share_of_ceiling(190e9, peaks["bfloat16"]).error
    with pytest.raises(KeyError):
        peaks["tf32"]  # nothing measured, nothing guessed


# --- FLOP per second ----------------------------------------------------------------------------------


def fake_products(monkeypatch, rate_of, free=1000 * GIB):
    """time_call as a machine would answer whose square products run at rate_of(n); what was tried is kept."""
    tried, shapes = [], []

    def by_size(call, device, budget_s, least):
        call()
        n, k = shapes.pop()
        assert n == k
        tried.append((n, budget_s))
        return Timing((2 * n**3 / rate_of(n),))

    machine(monkeypatch, free=free)
    monkeypatch.setattr(torch.nn.functional, "linear", lambda a, b: shapes.append(a.shape))
    monkeypatch.setattr(ceilings, "time_call", by_size)
    return tried


def test_the_best_product_is_kept_with_its_size_and_timed_anew(monkeypatch):
    tried = fake_products(monkeypatch, lambda n: {1024: 240e9, 2048: 210e9}.get(n, 100e9))
    best = ceilings._best_product(META, FP32)
    assert (best.n, best.per_s) == (1024, pytest.approx(240e9))
    short, long = ceilings.SIZE_S, ceilings.BEST_S
    # 4096 would take over a quarter of a second
    assert tried == [(256, short), (512, short), (1024, short), (2048, short), (1024, long)] and short < long


@pytest.mark.parametrize(
    ("rate_of", "n"), [(lambda n: 1e15 * n, 16384), (lambda n: 1e8, 256), (lambda n: 1e18 / n, 256)]
)
def test_fast_devices_get_large_products_and_slow_ones_small(monkeypatch, rate_of, n):
    tried = fake_products(monkeypatch, rate_of)
    assert ceilings._best_product(META, BF16).n == tried[-1][0] == n
    assert max(tried)[0] == (256 if rate_of(1) == 1e8 else 16384)


def test_products_fit_into_half_of_the_free_memory(monkeypatch):
    tried = fake_products(monkeypatch, lambda n: 1e15, free=2 * 3 * 2048**2 * 4)
    ceilings._best_product(META, FP32)
    assert max(tried)[0] == 2048


@pytest.mark.parametrize("disturbed", [True, False], ids=["second", "first"])
def test_of_two_looks_the_undisturbed_one_counts(monkeypatch, disturbed):
    fake_rates(monkeypatch, READS, PRODUCTS)
    now = []

    def slowed(it):  # half as fast while a neighbour is at work: in all of one of the two looks
        slow = now[-1].endswith("again") is disturbed
        return it._replace(timing=Timing((it.timing.median_s * (1 + slow),)))

    time_reads, best_product = ceilings._time_reads, ceilings._best_product
    monkeypatch.setattr(
        ceilings, "_time_reads", lambda *what: {how: slowed(read) for how, read in time_reads(*what).items()}
    )
    monkeypatch.setattr(ceilings, "_best_product", lambda *what: slowed(best_product(*what)))
    found = measure(CPU, now.append)
    assert found.read_bytes_per_s == pytest.approx(25e9)
    assert found.flop_per_s["bfloat16"] == pytest.approx(30e9)


def test_a_size_that_only_looked_best_in_a_busy_moment_is_not_kept(monkeypatch):
    best_product = ceilings._best_product
    fake_rates(monkeypatch, READS, PRODUCTS)
    monkeypatch.setattr(ceilings, "_best_product", best_product)
    now, rates = [], {256: 190e9, 2048: 430e9}
    monkeypatch.setattr(ceilings, "_best_size", lambda *what: 2048 if now[-1].endswith("again") else 256)
    timed = {n: ceilings.Product(n, Timing((2 * n**3 / rate,))) for n, rate in rates.items()}
    monkeypatch.setattr(ceilings, "_time_product", lambda device, dtype, n, budget_s: timed[n])
    found = measure(CPU, now.append)
    assert found.flop_size["bfloat16"] == 2048 and found.flop_per_s["bfloat16"] == pytest.approx(430e9)


# --- CUDA: warm clocks and an empty L2 ----------------------------------------------------------------


def test_the_l2_cache_of_a_gpu_is_flushed_by_reading(monkeypatch):
    machine(monkeypatch, cache=50 << 20)
    made = []
    ones = torch.ones
    monkeypatch.setattr(torch, "ones", lambda n, device: made.append((n, device)) or ones(n))
    flush = ceilings._flush(torch.device("cuda:1"))
    assert made == [(50 << 20, torch.device("cuda:1"))]  # floats: four times the bytes of the cache
    assert flush() == 50 << 20
    assert ceilings._flush(CPU) is None
    machine(monkeypatch, cache=None)
    assert ceilings._flush(torch.device("cuda")) is None


def test_the_flush_runs_before_each_sample(brief, monkeypatch):
    marker = lambda: None  # noqa: E731
    monkeypatch.setattr(ceilings, "_flush", lambda device: marker)
    assert captured_calls(monkeypatch).before is marker


def test_clocks_of_an_accelerator_are_warmed(monkeypatch):
    budgets = []
    monkeypatch.setattr(ceilings, "time_call", lambda call, device, budget_s: budgets.append(budget_s))
    ceilings._warm_clocks(CPU)
    assert not budgets
    ceilings._warm_clocks(META)
    assert budgets == [1.0]


# --- drift, caching, interruption ---------------------------------------------------------------------


@pytest.mark.parametrize("how", ["sum", "one row, bfloat16, transposed"])
def test_drift_is_that_of_the_same_kernel(monkeypatch, how):
    fake_rates(monkeypatch, READS | {how: 30e9}, PRODUCTS)
    found = measure(CPU)
    fake_rates(monkeypatch, READS | {how: 24e9}, PRODUCTS)
    assert drift(found, CPU) == pytest.approx(-0.2)


@pytest.mark.parametrize(
    ("moved", "said"), [(-0.2, "moved by -20%"), (0.11, "moved by +11%"), (-0.09, "held: -9%"), (0, "held: +0%")]
)
def test_a_drift_over_a_tenth_is_said(moved, said):
    assert said in drift_in_words(moved)


def test_ceilings_are_measured_once_for_each_number_of_threads(monkeypatch):
    made = []
    monkeypatch.setattr(ceilings, "_measure", lambda *what: made.append(what) or len(made))
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    assert measure(CPU) == measure(CPU) == 1
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    assert measure(CPU) == 2


def large_tensors():
    gc.collect()
    return [t for t in gc.get_objects() if type(t) is torch.Tensor and t.nbytes >= 64 << 20]


def test_an_interrupted_measurement_keeps_no_memory_and_no_result(brief, monkeypatch):
    before, emptied = len(large_tensors()), []
    monkeypatch.setattr(ceilings.devices, "empty_cache", emptied.append)

    def interrupted(*args, **kwargs):
        assert len(large_tensors()) > before
        raise KeyboardInterrupt

    monkeypatch.setattr(ceilings, "interleave", interrupted)
    with pytest.raises(KeyboardInterrupt) as kept:  # a notebook keeps the traceback, as `kept` does
        measure(CPU)
    assert kept.tb is not None
    assert len(large_tensors()) == before
    assert not ceilings._measured and emptied == [CPU]


def test_a_brief_measurement_of_this_machine_is_whole(brief):
    parts = []
    found = measure(CPU, parts.append)
    assert measure(CPU, parts.append) is found
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ceilings, "stretched", lambda: 2.0)
        assert measure(CPU) is not found, "other budgets are another measurement"
    assert parts[0] == "size of the working set" and len(parts) == len(set(parts)) == ceilings.PARTS
    assert found.best_dtype in found.flop_per_s
    assert found.read_bytes_per_s >= max(found.one_row_bytes_per_s.values()) > 0
    assert min(found.flop_per_s.values()) > 0 and set(found.flop_size.values()) <= {256, 512, 1024}
    assert drift(found, CPU) > -1
