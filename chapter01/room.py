"""The experiment of notebook 05: the runs of many machines, read from a folder, and what holds for all of them.

A run is the file that `python -m chapter01 measure --json FILE` writes. Files come from many hands, so each is checked
before it counts: one that is broken, old or foreign is named with the reason, and passed over.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from chapter01 import ROOT
from utils.plots import in_units

RECORDINGS = ROOT / "notebooks" / "recordings"  # runs that come with the course, each really measured
MOST_BYTES = 1_000_000  # a run has a few thousand
NAME_LENGTH = 40


# --- one machine -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Pass:
    """One forward pass: what it had to do, how long that was foretold to take, and how long it took."""

    flop: float
    bytes: float
    predicted_s: float
    time_s: float

    @property
    def intensity(self) -> float:
        """FLOP for each byte."""
        return self.flop / self.bytes

    @property
    def flop_per_s(self) -> float:
        """Achieved."""
        return self.flop / self.time_s


@dataclass(frozen=True)
class Run:
    """One machine: its measured ceilings, and its two passes."""

    file: str
    device: str
    date: str
    torch: str
    dtype: str
    model: str
    read_bytes_per_s: float
    flop_per_s: float
    prefill: Pass
    decode: Pass

    @property
    def ridge(self) -> float:
        """FLOP for each byte at which both ceilings are reached together."""
        return self.flop_per_s / self.read_bytes_per_s

    @property
    def used(self) -> float:
        """Share of the arithmetic that decode uses."""
        return self.decode.flop_per_s / self.flop_per_s

    @property
    def used_at_most(self) -> float:
        """The law: what decode would use if reading its bytes at the full bandwidth were all that took time."""
        return min(1.0, self.decode.intensity / self.ridge)

    @property
    def used_by_prefill(self) -> float:
        """Share of the arithmetic that prefill uses."""
        return self.prefill.flop_per_s / self.flop_per_s


# --- a folder of them ------------------------------------------------------------------------------------------------


def read_folder(folder: Path | str) -> tuple[list[Run], dict[str, str]]:
    """The runs in the folder's `.json` files, by their ridge; and for each file passed over, the reason.

    Raises:
        ValueError: there is no such folder, or no run in it.
    """
    files = _files(folder)
    runs: list[Run] = []
    passed_over: dict[str, str] = {}
    for file in files:
        try:
            run = read(file)
        except ValueError as error:
            passed_over[_printable(file.name)] = str(error)
            continue
        twin = next((r for r in runs if _content(r) == _content(run)), None)
        if twin:
            passed_over[run.file] = f"the same run as {twin.file}"
        else:
            runs.append(run)
    if not runs:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in passed_over.items()) or "there is no .json file"
        raise ValueError(
            f"no run in the folder {Path(folder).name!r} ({reasons}): make one with "
            '"python -m chapter01 measure --json FILE", and put it there'
        )
    return sorted(runs, key=lambda run: run.ridge), passed_over


def _files(folder: Path | str) -> list[Path]:
    folder = Path(folder).expanduser()
    if not folder.is_dir():
        raise ValueError(f"there is no folder {str(folder)!r}, seen from the folder {Path.cwd().name!r}")
    return sorted(folder.glob("*.json"))


def _content(run: Run) -> tuple:
    return run.date, run.read_bytes_per_s, run.flop_per_s, run.decode


def read(file: Path) -> Run:
    """The run in a file.

    Raises:
        ValueError: why the file does not count, in a few words.
    """
    try:
        if file.stat().st_size > MOST_BYTES:
            raise ValueError("too large for a run of this course")
        report = json.loads(file.read_text(encoding="utf-8"), parse_constant=_not_a_number)
    except OSError as error:
        raise ValueError(f"cannot be read ({error.strerror})") from None
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError):
        raise ValueError("broken: not JSON, or cut short") from None
    if not isinstance(report, dict) or not {"ceilings", "device"} <= report.keys():
        raise ValueError("foreign: not a run of this course")
    run = Run(
        file=_printable(file.name),
        device=_text(report, "device", "name"),
        date=_text(report, "date"),
        torch=_text(report, "versions", "torch"),
        dtype=_text(report, "dtype"),
        model=_text(report, "model", "name"),
        read_bytes_per_s=_number(report, "read_bytes_per_s"),
        flop_per_s=_number(report, "flop_per_s"),
        prefill=_pass(report, "prefill"),
        decode=_pass(report, "decode"),
    )
    said = _look_up(report, "phases", "decode", "idle_share")
    if not isinstance(said, float | int) or abs(said - max(0.0, 1 - run.used)) > 1e-6:
        raise ValueError("broken: its numbers contradict each other")
    if _look_up(report, "errors_of_measurement"):
        raise ValueError("it reports an error of measurement: measure again")
    return run


def _not_a_number(name: str) -> None:
    raise ValueError(f"broken: it holds {name}")


def _pass(report: dict, name: str) -> Pass:
    return Pass(*(_number(report, "phases", name, key) for key in ("flop", "bytes", "predicted_s", "time_s")))


def _look_up(report: dict, *keys: str):
    """What the report says there."""
    for key in keys:
        if not isinstance(report, dict) or key not in report:
            raise ValueError(f"old: it lacks {' / '.join(keys)}; measure again with the present course")
        report = report[key]
    return report


def _number(report: dict, *keys: str) -> float:
    value = _look_up(report, *keys)
    if isinstance(value, bool) or not isinstance(value, float | int) or not 0 < value < math.inf:
        raise ValueError(f"broken: {' / '.join(keys)} is not a number above zero")
    return float(value)


def _text(report: dict, *keys: str) -> str:
    value = _look_up(report, *keys)
    if not isinstance(value, str):
        raise ValueError(f"broken: {' / '.join(keys)} is not a text")
    return _printable(value)


def _printable(text: str) -> str:
    """On one line, without what a terminal or a figure would obey."""
    one_line = " ".join("".join(c if c.isprintable() else " " for c in text).replace("$", "").split())
    return one_line if len(one_line) <= NAME_LENGTH else one_line[: NAME_LENGTH - 3] + "..."


# --- in words --------------------------------------------------------------------------------------------------------


def table(runs: Sequence[Run]) -> str:
    """One line a machine: its number in the figures, its ceilings and ridge, its idle arithmetic."""
    lines = [
        f"{'':3} {'device':{NAME_LENGTH}} {'numbers':8} {'reads':>10} {'calculates':>14} {'ridge':>10} {'idle':>8}"
    ]
    for number, run in enumerate(runs, 1):
        lines.append(
            f"{number:3} {run.device:{NAME_LENGTH}} {run.dtype:8} {in_units(run.read_bytes_per_s, 'B/s'):>10} "
            f"{in_units(run.flop_per_s, 'FLOP/s'):>14} {run.ridge:>4.3g} FLOP/B {1 - run.used:>8.2%}"
        )
    return "\n".join(lines)


# --- verdicts: what the notebook says of the runs --------------------------------------------------------------------


def accounted_for(folder: Path | str, runs: Sequence[Run], passed_over: dict[str, str]) -> bool:
    """Whether every `.json` file of the folder is among the runs or named as passed over."""
    return len(_files(folder)) == len(runs) + len(passed_over)


def offers_more_than_asked(runs: Sequence[Run]) -> bool:
    """Whether every machine could do more with each byte than one token asks for."""
    return all(run.ridge > run.decode.intensity for run in runs)


def law_holds(runs: Sequence[Run], tolerance: float = 0.05) -> bool:
    """Whether no machine uses more of its arithmetic for one token than its ridge allows."""
    return all(run.used <= (1 + tolerance) * run.used_at_most for run in runs)


def prompt_uses_more(runs: Sequence[Run], by: float = 2.0) -> bool:
    """Whether on every machine a whole prompt uses more than `by` times the arithmetic that one token uses."""
    return all(run.used_by_prefill > by * run.used for run in runs)


def foretold_in_proportion(runs: Sequence[Run], within: float = 2.0) -> bool:
    """Whether most passes of all machines took what was foretold, within a factor."""
    passes = [p for run in runs for p in (run.prefill, run.decode)]
    good = sum(1 / within <= p.time_s / p.predicted_s <= within for p in passes)
    return good > len(passes) / 2
