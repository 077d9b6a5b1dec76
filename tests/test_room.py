"""A class's runs: what counts, what is passed over and why, what holds for all, and what the figures show of them."""

import copy
import json
import re
from pathlib import Path

import numpy as np
import pytest

from chapter01 import measure, room, room_figures
from utils import plots

PHASES = {  # of a machine that reads 20 GB/s and does 400 GFLOP/s
    "prefill": {"flop": 1.2e11, "bytes": 2e9, "predicted_s": 0.4, "time_s": 0.5},
    "decode": {"flop": 3e8, "bytes": 6e8, "predicted_s": 0.033, "time_s": 0.04},
}


def report(**changes) -> dict:
    """The parts of a run that count; a change is given by the path of its keys, joined by two underscores."""
    made = {
        "date": "2026-05-04T10:00:00+00:00",
        "versions": {"python": "3.12.1", "torch": "2.9.0"},
        "device": {"name": "A laptop"},
        "dtype": "float32",
        "ceilings": {"read_how": "sum"},
        "read_bytes_per_s": 20e9,
        "flop_per_s": 400e9,
        "model": {"name": "SmolLM2-135M-Instruct"},
        "phases": copy.deepcopy(PHASES),
        "errors_of_measurement": [],
    }
    for path, value in changes.items():
        *keys, last = path.split("__")
        part = made
        for key in keys:
            part = part[key]
        part[last] = value
    for phase in made["phases"].values():
        if isinstance(phase.get("time_s"), float) and phase["time_s"] > 0 and "idle_share" not in phase:
            phase["idle_share"] = max(0.0, 1 - phase["flop"] / phase["time_s"] / made["flop_per_s"])
    return made


@pytest.fixture
def class_of(tmp_path):
    """Writes the files of a class, given by name, and reads their folder."""

    def read(**files) -> tuple[list[room.Run], dict[str, str]]:
        for name, content in files.items():
            text = content if isinstance(content, str | bytes) else json.dumps(content)
            (tmp_path / f"{name}.json").write_bytes(text if isinstance(text, bytes) else text.encode())
        return room.read_folder(tmp_path)

    return read


# --- what counts -----------------------------------------------------------------------------------------------------


def test_the_runs_are_sorted_by_ridge_and_say_what_their_files_say(class_of):
    large = report(device__name="A large GPU", flop_per_s=8e12)
    runs, passed_over = class_of(a=large, b=report())
    assert passed_over == {} and [run.device for run in runs] == ["A laptop", "A large GPU"]
    laptop = runs[0]
    assert laptop.ridge == 20
    assert laptop.used == pytest.approx(3e8 / 0.04 / 400e9)
    assert laptop.used_at_most == pytest.approx(0.5 / 20)


def test_what_the_command_measure_writes_today_counts():
    """Names of the fields as chapter01/measure.py gives them, in the run that ships with the course."""
    runs, passed_over = room.read_folder(room.RECORDINGS)
    assert runs and passed_over == {}
    for run in runs:
        written = json.loads((room.RECORDINGS / run.file).read_text(encoding="utf-8"))
        assert written["ridge_flop_per_byte"] == pytest.approx(run.ridge)
        assert written["phases"]["decode"]["idle_share"] == pytest.approx(1 - run.used)
        assert set(written["phases"]["decode"]) == set(measure.Phase.__dataclass_fields__)


def test_recordings_hold_nothing_personal():
    for file in room.RECORDINGS.glob("*"):
        text = file.read_text(encoding="utf-8")
        assert not re.search(r"/home/|/Users/|/root|/tmp|user_?name|\buser\b|host|@", text, re.IGNORECASE), file.name


# --- what is passed over ---------------------------------------------------------------------------------------------


def without(path: str) -> dict:
    made = report()
    *keys, last = path.split("__")
    part = made
    for key in keys:
        part = part[key]
    del part[last]
    return made


BAD = {
    "cut short": (json.dumps(report())[:-40], "broken: not JSON, or cut short"),
    "empty": ("", "broken: not JSON, or cut short"),
    "bytes": (b"\xff\xfe\x00PNG", "broken: not JSON, or cut short"),
    "deep": ("[" * 100_000, "broken: not JSON, or cut short"),
    "a list": ("[1, 2]", "foreign: not a run of this course"),
    "another program's": ({"scores": [1, 2]}, "foreign: not a run of this course"),
    "old": (without("phases__decode__predicted_s"), "old: it lacks phases / decode / predicted_s"),
    "older": (without("phases"), "old: it lacks phases / prefill / flop"),
    "NaN": (json.dumps(report()).replace("20000000000.0", "NaN"), "broken: it holds NaN"),
    "negative": (report(phases__decode__time_s=-1.0, phases__decode__idle_share=1), "is not a number above zero"),
    "zero": (report(read_bytes_per_s=0), "broken: read_bytes_per_s is not a number above zero"),
    "text for a number": (report(read_bytes_per_s="20e9"), "is not a number above zero"),
    "true for a number": (report(read_bytes_per_s=True), "is not a number above zero"),
    "number for a text": (report(device__name=3), "broken: device / name is not a text"),
    "contradiction": (report(phases__decode__idle_share=0.5), "its numbers contradict each other"),
    "flagged": (report(errors_of_measurement=["decode reached 140 %"]), "it reports an error of measurement"),
    "huge": ('{"a": "' + "x" * room.MOST_BYTES + '"}', "too large for a run of this course"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_file_is_named_with_its_reason_and_the_others_count(class_of, name):
    content, reason = BAD[name]
    runs, passed_over = class_of(**{name: content, "good": report()})
    assert [run.file for run in runs] == ["good.json"]
    assert list(passed_over) == [f"{name}.json"] and reason in passed_over[f"{name}.json"]


def test_the_same_run_twice_counts_once(class_of):
    runs, passed_over = class_of(a=report(), copy=report(), later=report(date="2026-05-05T10:00:00+00:00"))
    assert [run.file for run in runs] == ["a.json", "later.json"]
    assert passed_over == {"copy.json": "the same run as a.json"}


def test_a_file_that_cannot_be_opened_and_one_of_another_kind(class_of, tmp_path):
    (tmp_path / "folder.json").mkdir()
    (tmp_path / "notes.txt").write_text("not looked at")
    runs, passed_over = class_of(good=report())
    assert len(runs) == 1 and list(passed_over) == ["folder.json"]
    assert room.accounted_for(tmp_path, runs, passed_over)
    assert not room.accounted_for(tmp_path, runs, {})


def test_without_a_single_run_it_says_how_to_make_one(tmp_path):
    with pytest.raises(ValueError, match=r"there is no \.json file.*measure --json FILE"):
        room.read_folder(tmp_path)
    with pytest.raises(ValueError, match=r"there is no folder .*absent"):
        room.read_folder(tmp_path / "absent")
    (tmp_path / "x.json").write_text("{")
    with pytest.raises(ValueError, match=r"x\.json: broken"):
        room.read_folder(tmp_path)


def test_a_name_from_elsewhere_obeys_the_page(class_of):
    (run,), _ = class_of(a=report(device__name="\x1b[31mA $\\frac{1}{0}$\n" + "long " * 30))
    assert run.device.isprintable() and "$" not in run.device and len(run.device) <= room.NAME_LENGTH
    fig, ax = plots.figure("A title")
    room_figures.draw_roofs(ax, [run])
    plots.png(fig)


# --- what holds for all ----------------------------------------------------------------------------------------------


def test_each_verdict_turns_when_one_machine_breaks_it(class_of):
    runs, _ = class_of(a=report(), b=report(flop_per_s=8e12, date="2026-05-05"), c=report(date="2026-05-06"))
    assert room.offers_more_than_asked(runs) and room.law_holds(runs)
    assert room.prompt_uses_more(runs) and room.foretold_in_proportion(runs)

    def odd(**changes) -> room.Run:
        return next(r for r in class_of(odd=report(date="odd", **changes))[0] if r.date == "odd")

    assert not room.offers_more_than_asked([*runs, odd(flop_per_s=9e9)])
    assert not room.law_holds([*runs, odd(phases__decode__time_s=0.02)])  # 30 GB/s, where 20 can be read
    assert not room.prompt_uses_more([*runs, odd(phases__prefill__time_s=10.0)])


def test_the_prediction_is_judged_by_most_passes(class_of):
    late = {"phases__prefill__time_s": 2.0, "phases__decode__time_s": 0.2}
    runs, _ = class_of(a=report(), b=report(date="2"), c=report(date="3", **late))
    assert room.foretold_in_proportion(runs)
    runs, _ = class_of(a=report(), b=report(date="2", **late), c=report(date="3", **late))
    assert not room.foretold_in_proportion(runs)


# --- the table and the figures ---------------------------------------------------------------------------------------


def test_the_table_has_a_line_for_each_machine_with_its_idle_share(class_of):
    runs, _ = class_of(a=report(), b=report(device__name="Other", date="2"))
    first, *lines = room.table(runs).splitlines()
    assert "ridge" in first and len(lines) == 2
    assert "20 GB/s" in lines[0] and "400 GFLOP/s" in lines[0] and "98.12%" in lines[0]


def dots(ax, role: str) -> np.ndarray:
    """Places of the measured dots of a role [dots, 2], sorted."""
    found = [line for line in ax.lines if line.get_marker() == "o" and line.get_color() == plots.PALETTE[role]]
    return np.array(sorted(tuple(place) for line in found for place in zip(*line.get_data(), strict=True)))


@pytest.fixture
def three(class_of) -> list[room.Run]:
    gpu = report(device__name="GPU", dtype="bfloat16", flop_per_s=8e12, phases__decode__bytes=3e8, date="2")
    return class_of(a=report(), b=gpu, c=report(device__name="Third", flop_per_s=1e12, date="3"))[0]


def test_the_picture_of_the_class_has_every_machine_under_its_roof(three):
    _, ax = plots.figure("A title")
    room_figures.draw_roofs(ax, three)
    roofs = [line for line in ax.lines if line.get_linestyle() == "-" and len(line.get_xdata()) > 100]
    assert sorted(line.get_ydata().max() for line in roofs) == pytest.approx([4e11, 1e12, 8e12])
    assert dots(ax, "bandwidth") == pytest.approx(np.array(sorted((r.decode.intensity, 7.5e9) for r in three)))
    diamonds = next(line for line in ax.lines if line.get_marker() == "D")
    assert sorted(diamonds.get_xdata()) == pytest.approx([20, 50, 400])
    for name in ("decode", "prefill"):  # each dot tells whose it is, those in one place together
        texts = [t.get_text() for t in ax.texts if t.xy[0] in {getattr(run, name).intensity for run in three}]
        assert {number for text in texts for number in re.findall(r"\d+", text.replace("-", ", 2, "))} == {
            "1",
            "2",
            "3",
        }


def test_the_law_is_drawn_for_each_width_of_numbers_and_dots_stand_at_what_is_used(three):
    _, ax = plots.figure("A title")
    room_figures.draw_law(ax, three)
    lines = [line for line in ax.lines if line.get_linestyle() == "-" and len(line.get_xdata()) > 50]
    products = sorted(float(np.median(line.get_xdata() * line.get_ydata())) for line in lines)
    assert products == pytest.approx([0.5, 1.0])  # used times ridge is what one token asks for
    assert dots(ax, "measured") == pytest.approx(np.array(sorted((run.ridge, run.used) for run in three)))
    low, high = ax.get_ylim()
    assert low > high, "more idle is up"


def test_every_pass_is_drawn_against_what_was_foretold(three):
    _, ax = plots.figure("A title")
    room_figures.draw_foretold(ax, three)
    assert dots(ax, "bandwidth") == pytest.approx(np.array([(0.033, 0.04)] * 3))
    assert dots(ax, "compute") == pytest.approx(np.array([(0.4, 0.5)] * 3))


def test_numbers_of_machines_that_lie_on_each_other_are_written_once(class_of):
    _, ax = plots.figure("A title")
    runs, _ = class_of(**{f"m{i}": report(date=str(i)) for i in range(9)})
    room_figures.draw_law(ax, runs)
    texts = [text.get_text() for text in ax.texts]
    assert "1-9" in texts


def test_a_folder_may_be_given_by_its_name(monkeypatch):
    monkeypatch.chdir(room.RECORDINGS.parent)
    assert room.read_folder("recordings") == room.read_folder(room.RECORDINGS)
    assert room.accounted_for("recordings", *room.read_folder("recordings"))


def test_the_recordings_folder_is_beside_the_notebooks():
    assert Path(room.RECORDINGS).parent.name == "notebooks" and room.RECORDINGS.is_dir()
