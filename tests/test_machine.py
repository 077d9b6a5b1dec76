"""What notebook 00 says of a machine: found, picked, compared, drawn; and what turns each of its verdicts to "no"."""

import json
import math
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.backends.backend_agg import FigureCanvasAgg

from chapter01 import machine, machine_figures
from utils import ceilings, chips, device, plots
from utils.ceilings import Ceilings
from utils.timing import Timing

NOTEBOOK = Path(__file__).parent.parent / "notebooks" / "00_your_machine.ipynb"
CPU = torch.device("cpu")


def roofs(read=30e9, one_row=(30e9, 14e9, 2e9), flops=(400e9, 50e9, 5e9), best="float32", **more) -> Ceilings:
    names = ("float32", "bfloat16", "float16")
    values = {
        "device_name": "a laptop",
        "read_bytes_per_s": read,
        "read_how": "sum",
        "working_set_bytes": 2**30,
        "one_row_bytes_per_s": dict(zip(names, one_row, strict=True)),
        "flop_per_s": dict(zip(names, flops, strict=True)),
        "flop_size": dict.fromkeys(names, 64),
        "best_dtype": best,
        "notes": (),
    }
    return Ceilings(**(values | more))


def laptop(**more) -> machine.Found:
    values = {
        "name": "A CPU",
        "kind": "cpu",
        "missing": ("cuda", "mps"),
        "threads": 4,
        "host_threads": 8,
        "free_bytes": 6 * 10**9,
        "total_bytes": 8 * 10**9,
        "host_bytes": 16 * 10**9,
        "cache_bytes": 32 * 10**6,
        "chips": (),
    }
    return machine.Found(**(values | more))


def timing(*seconds: float) -> Timing:
    return Timing(seconds)


# --- what is here ----------------------------------------------------------------------------------------------------


def test_what_this_process_may_use_and_what_the_machine_has_are_both_said():
    text = machine.in_words(laptop())
    assert "4 for this process, of 8 in the machine" in text
    assert "6.0 GB free for this process, of 8.0 GB it could have and 16.0 GB in the machine" in text
    assert "32 MB" in text


def test_what_was_not_found_is_said_too():
    text = machine.in_words(laptop(cache_bytes=None))
    assert "an NVIDIA GPU (CUDA), an Apple GPU (MPS)" in text
    assert "this system does not tell" in text
    assert "not in the catalogue" in text


def test_a_known_gpu_shows_its_datasheet_and_no_other(monkeypatch):
    monkeypatch.setattr(device, "name", lambda d: "NVIDIA H100 80GB HBM3")
    known = machine.known_chips(torch.device("cuda"))
    assert [chip.name for chip in known] == ["H100 SXM"]
    text = machine.vendor_peak(known)
    assert "3.35 TB/s" in text and "989 TFLOP/s in bf16" in text and "67 TFLOP/s in fp32" in text


def test_bins_that_share_a_name_are_all_named(monkeypatch):
    monkeypatch.setattr(device, "name", lambda d: "Apple M3 Max")
    text = machine.vendor_peak(machine.known_chips(torch.device("mps")))
    assert "300 GB/s" in text and "400 GB/s" in text


def test_an_apple_cpu_is_not_given_the_rate_of_its_gpu(monkeypatch):
    monkeypatch.setattr(device, "name", lambda d: "Apple M1")
    assert machine.known_chips(CPU) == ()
    assert len(machine.known_chips(torch.device("mps"))) == 1


def test_the_real_machine_is_looked_at():
    found = machine.look(CPU)
    assert found.name == device.name(CPU) and found.threads == device.threads()
    assert machine.no_more_than_the_machine(found)


def test_shares_of_the_vendors_peak():
    h100 = chips.find("H100 SXM")
    text = machine.against_vendor(roofs(read=2.68e12, flops=(51e12, 791.5e12, 791.5e12)), (h100,))
    assert text == "80% of the vendor's bandwidth, 76% of its float32 peak, 80% of its bfloat16 peak, " \
                   "80% of its float16 peak"  # fmt: skip
    t4 = chips.find("T4")
    assert "no bfloat16 peak in the catalogue" in machine.against_vendor(roofs(), (t4,))
    assert machine.against_vendor(roofs(), ()) == "vendor peak: not in the catalogue"
    assert "one of several" in machine.against_vendor(roofs(), (h100, t4))


# --- the dtype -------------------------------------------------------------------------------------------------------


def test_rates_of_each_dtype_by_hand():
    rows = {row.dtype: row for row in machine.widths(roofs())}
    assert rows["float32"].parameters_per_s == 7.5e9
    assert rows["bfloat16"].parameters_per_s == 7e9
    assert rows["float16"].share == pytest.approx(2 / 30)
    table = machine.widths_table(list(rows.values()), "float32")
    (picked,) = [line for line in table.splitlines() if line.startswith("->")]
    assert "float32" in picked and "7.5 G/s" in picked and "400 GFLOP/s" in picked and "100%" in picked


def test_a_dtype_that_does_not_run_is_left_out():
    few = replace(roofs(), one_row_bytes_per_s={"float32": 3e10}, flop_per_s={"float32": 4e11})
    assert [row.dtype for row in machine.widths(few)] == ["float32"]


rate = st.floats(1e9, 1e13)


@given(st.tuples(rate, rate, rate), st.tuples(rate, rate, rate))
def test_the_reason_given_names_the_dtype_that_the_rule_picks(one_row, flops):
    rates, products = (dict(zip(ceilings.DTYPES, values, strict=True)) for values in (one_row, flops))
    best = ceilings.dtype_name(ceilings._best_dtype(rates, products))
    measured = roofs(max(one_row), one_row, flops, best)
    rows = machine.widths(measured)
    why = machine.why_picked(rows, best)
    assert why.startswith(f"{best}: ")
    own = [row for row in rows if row.flop_per_s >= 0.8 * flops[0]]
    for row in rows:
        assert (f"\n{row.dtype} is left out" in why) == (row not in own)
    tied = [r for r in own if r.parameters_per_s >= 0.8 * max(row.parameters_per_s for row in own)]
    assert ("equally fast" in why) == (len(tied) > 1)
    if "and its square products are the fastest" in why:
        assert max(tied, key=lambda row: row.flop_per_s).dtype == best


def test_a_dtype_that_is_emulated_is_not_asked_how_fast_it_decodes():
    amd = machine.widths(roofs(30e9, (15e9, 13e9, 17e9), (141e9, 363e9, 28e9), "bfloat16"))
    assert [row.dtype for row in machine.own_formats(amd)] == ["float32", "bfloat16"]


# --- the ridge and the map -------------------------------------------------------------------------------------------


def test_the_ridge_of_the_worked_checks():
    places = machine.catalogue()
    assert round(places["H100 SXM"].ridge) == 295
    assert round(places["B200"].ridge) == 281
    assert machine.ridge_in_words(295.3) == "To keep the arithmetic busy, each byte read must feed 295 operations."
    assert machine.foretold_busy(295.3, 2) == pytest.approx(0.00339, rel=2e-3)  # 99.66 % idle
    assert machine.foretold_busy(10, 4) == 0.05  # a CPU in float32
    assert machine.foretold_busy(10, 4, rows=1000) == 1


def test_chips_without_a_verified_rate_are_not_on_the_map():
    places = machine.catalogue()
    assert len(places) == sum(bool(chip.flop_per_s) for chip in chips.CHIPS)
    assert all(math.isfinite(place.ridge) for place in places.values())
    assert "Apple M3 Max 300 GB/s" not in places
    assert min(place.ridge for place in places.values()) > 10  # the figure's title says so


def test_a_comparison_says_both_directions():
    here = machine.Place("this machine, float32", 30e9, 400e9)
    text = machine.compared(machine.catalogue()["H100 SXM"], here)
    assert text == (
        "H100 SXM, bf16: 110 times this machine's bytes/s, 2,500 times its FLOP/s; "
        "each byte must feed 295 operations, here 13.3"
    )
    large = machine.Place("this machine, bfloat16", 6.8e12, 2.6e12)
    assert "1/100 of this machine's bytes/s, about its FLOP/s" in machine.compared(
        machine.catalogue()["Apple M1"], large
    )


def drawn(place: machine.Place, chosen: str | None = None):
    fig, ax = plots.figure("A title", size=(9, 5.6))
    machine_figures.draw_map(ax, place, machine.catalogue(), chosen)
    FigureCanvasAgg(fig).draw()
    return fig, ax


MACHINES = {
    "small board": (5e9, 20e9),
    "laptop": (22e9, 150e9),
    "server": (32e9, 2.8e12),
    "like an M1": (60e9, 2.2e12),
    "like a T4": (250e9, 25e12),
    "like an H200": (4.3e12, 720e12),
    "beyond all": (30e12, 9e15),
}


@pytest.mark.parametrize("chosen", [None, "Apple M1", "H100 SXM", "L4"])
@pytest.mark.parametrize("rates", MACHINES.values(), ids=MACHINES)
def test_no_text_of_the_map_lies_on_another_or_outside(rates, chosen):
    fig, ax = drawn(machine.Place("this machine, bfloat16", *rates), chosen)
    boxes = {text.get_text(): text.get_window_extent() for text in ax.texts}
    for box in boxes.values():
        assert box.x0 >= 0 and box.x1 <= fig.bbox.x1 and box.y0 >= 0 and box.y1 <= fig.bbox.y1
    large = ("this machine, bfloat16", chosen and machine.catalogue()[chosen].name)
    names = {text: box for text, box in boxes.items() if "FLOP/B" not in text}
    close = {"like an M1": "Apple M1", "like a T4": "L4"}  # two large dots side by side
    for (a, one), (b, other) in combinations(names.items(), 2):
        if {a, b} == set(large) and chosen in close.values():
            continue
        assert not one.overlaps(other), f"{a} on {b}"
    for line in (line for line in ax.lines if line.get_linestyle() == "--"):
        (x0, y0), (x1, y1) = ax.transData.transform(line.get_xydata())
        points = [(x0 + part * (x1 - x0), y0 + part * (y1 - y0)) for part in np.linspace(0, 1, 500)]
        struck = [text for text, box in names.items() if any(box.contains(*at) for at in points)]
        assert not set(struck) - set(large), f"a dashed line goes through {struck}"


def test_the_map_shows_every_chip_and_this_machine_larger():
    place = machine.Place("this machine, float32", 22e9, 150e9)
    _, ax = drawn(place)
    dots = {line.get_label(): line for line in ax.lines if line.get_marker() == "o"}
    assert len(dots["chips"].get_xdata()) == len(machine.catalogue())
    mine = dots["this machine, float32"]
    assert (mine.get_xdata()[0], mine.get_ydata()[0]) == (22e9, 150e9)
    assert mine.get_markersize() > 2 * dots["chips"].get_markersize()


def test_along_a_slanted_line_the_ridge_is_the_one_written_on_it():
    _, ax = drawn(machine.Place("this machine, float32", 22e9, 150e9), "L4")
    slanted = [line for line in ax.lines if line.get_marker() == "None"]
    ridges = [line.get_ydata() / line.get_xdata() for line in slanted]
    assert all(r[0] == pytest.approx(r[1]) for r in ridges)
    assert sorted(round(r[0], 3) for r in ridges) == sorted([1, 10, 100, 1000, 6.818, 403.333])
    for text in ax.texts:
        if "FLOP/B" in text.get_text():
            ridge = float(text.get_text().replace(",", "").split()[0])
            assert text.xy[1] / text.xy[0] == pytest.approx(ridge)


def test_the_dtypes_are_drawn_where_they_were_measured():
    _, axes = plots.figure("A title", widths=(1, 1, 1))
    rows = machine.widths(roofs())
    machine_figures.draw_widths(axes, rows, 30e9, "float32")
    for ax, values in zip(axes, ([30e9, 14e9, 2e9], [7.5e9, 7e9, 1e9], [400e9, 50e9, 5e9]), strict=True):
        dots = next(line for line in ax.lines if line.get_marker() == "o")
        assert list(dots.get_xdata()) == values


# --- measuring -------------------------------------------------------------------------------------------------------


def test_the_ceilings_are_measured_behind_a_bar(monkeypatch, capsys):
    def measured(where, told):
        for i in range(ceilings.PARTS):
            told(f"part {i}")
        return roofs()

    monkeypatch.setattr(machine, "measure", measured)
    assert machine.measure_ceilings(CPU) == roofs()
    err = capsys.readouterr().err
    assert "part 12" in err and err.rstrip(" ").endswith("\r")  # the bar is gone


def test_one_row_and_square_product_are_timed_with_their_own_flops(monkeypatch):
    monkeypatch.setattr(device, "cache_bytes", lambda d: None)
    monkeypatch.setattr(device, "free_bytes", lambda d: 3 << 26)
    seen = {}

    def interleaved(calls, where, budget_s):
        for call in calls.values():
            call()
        seen.update(calls)
        return {"one row": timing(2.0, 4.0), "square": timing(0.5, 1.0)}

    monkeypatch.setattr(machine, "interleave", interleaved)
    taken = machine.time_extremes(CPU, roofs())
    assert taken.one_row_flops == 2 * 4096 * 4096 and taken.square_flops == 2 * 64**3
    assert taken.one_row_busy == pytest.approx(taken.one_row_flops / taken.square_flops / 4)
    assert set(seen) == {"one row", "square"}


# --- the verdicts, turned to "no" ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "wrong",
    [{"threads": 9}, {"threads": 0}, {"free_bytes": 9 * 10**9}, {"free_bytes": 0}, {"total_bytes": 17 * 10**9}],
    ids=str,
)
def test_limits_that_were_not_seen_are_noticed(wrong):
    assert machine.no_more_than_the_machine(laptop())
    assert not machine.no_more_than_the_machine(laptop(**wrong))


def test_a_block_inside_the_cache_is_noticed():
    assert machine.larger_than_the_cache(roofs(), laptop())
    assert not machine.larger_than_the_cache(roofs(), laptop(cache_bytes=2 * 10**9))


@pytest.mark.parametrize(
    ("half_s", "all_s", "holds"),
    [(1.0, 2.0, True), (1.0, 1.9, True), (1.0, 1.1, False), (1.0, 4.0, False)],
    ids=["memory", "nearly", "a fixed cost", "half of it was cached"],
)
def test_a_cache_or_a_fixed_cost_is_noticed(half_s, all_s, holds):
    busy = [1.0, 3.0, 1.0, 1.0, 2.0]  # slows both of a round
    timings = {"half": timing(*(half_s * b for b in busy)), "all": timing(*(all_s * b for b in busy))}
    assert machine.twice_takes_twice(timings) is holds


def test_arithmetic_slower_than_the_memory_is_noticed():
    assert machine.outruns_the_memory(roofs())
    assert not machine.outruns_the_memory(roofs(read=500e9))


def test_a_one_row_product_as_good_as_a_square_one_is_noticed():
    slow = machine.Extremes(timing(1.0, 1.1), 10**9, timing(1.0, 1.0), 10**11)
    assert machine.square_does_more(slow)
    assert not machine.square_does_more(replace(slow, one_row_flops=10**11))


def test_a_timer_that_does_not_wait_is_noticed():
    not_waited = machine.Extremes(timing(1e-5, 1e-5), 10**9, timing(1.0, 1.0), 10**11)
    assert not machine.square_does_more(not_waited)


def test_a_pick_that_takes_a_row_slower_is_noticed():
    again = {"float32": timing(1.0, 3.0), "bfloat16": timing(0.6, 1.8)}  # a busy moment slows both of a round
    assert machine.none_clearly_faster(again, "bfloat16")
    assert not machine.none_clearly_faster(again, "float32")
    assert machine.none_clearly_faster({"float32": timing(1.0), "bfloat16": timing(0.9)}, "float32")  # a tie


def test_formats_are_timed_again_by_the_parameter(monkeypatch):
    monkeypatch.setattr(device, "cache_bytes", lambda d: None)
    monkeypatch.setattr(device, "free_bytes", lambda d: 3 << 28)
    met = []
    monkeypatch.setattr(machine, "multiply", lambda x, w: met.append((x.dtype, w.numel())))

    def interleaved(calls, where, budget_s):
        for call in calls.values():
            call()
        return {name: timing(2.0) for name in calls}

    monkeypatch.setattr(machine, "interleave", interleaved)
    again = machine.time_formats(CPU, roofs(flops=(200e9, 400e9, 20e9)))  # float16 is emulated
    assert set(again) == {"float32", "bfloat16"}
    for name, seconds in again.items():
        parameters = sum(n for dtype, n in met if dtype == getattr(torch, name))
        assert seconds.median_s == 2.0 / parameters


def test_a_dtype_above_the_roof_is_called_an_error():
    assert "error of measurement" in str(machine.widths(roofs(read=20e9))[0].share)


@pytest.mark.parametrize(("moved", "holds"), [(0.0, True), (-0.5, True), (0.9, True), (-0.7, False), (2.5, False)])
def test_a_bandwidth_of_another_order_is_noticed(moved, holds):
    assert ceilings.still_the_same(moved) is holds


def test_the_notebook_shows_each_verdict_tested_here():
    cells = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    source = "".join(line for cell in cells if cell["cell_type"] == "code" for line in cell["source"])
    for predicate in (
        "no_more_than_the_machine", "larger_than_the_cache", "twice_takes_twice", "outruns_the_memory",
        "square_does_more", "none_clearly_faster",
    ):  # fmt: skip
        assert f"machine.{predicate}(" in source
    assert "ceilings.still_the_same(" in source
