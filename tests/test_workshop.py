"""The instructor's page: clock times that add up, sections that exist, and cells that run when others are left out."""

import ast
import builtins
import re
from pathlib import Path

import nbformat
import pytest
from IPython.core.inputtransformer2 import TransformerManager

ROOT = Path(__file__).resolve().parent.parent
PAGE = (ROOT / "notebooks" / "WORKSHOP.md").read_text(encoding="utf-8")
NOTEBOOKS = {file.stem[:2]: file for file in sorted((ROOT / "notebooks").glob("*.ipynb"))}


def rows(heading: str) -> list[list[str]]:
    """Cells of the rows of the first table below a heading, without its head."""
    lines = PAGE.split(f"\n## {heading}\n")[1].split("\n## ")[0].splitlines()
    table = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")]
    return table[2:]


def stated_minutes(number: str) -> int:
    """What the notebook's first cell says."""
    return int(re.search(r"(\d+) minutes", nbformat.read(NOTEBOOKS[number], as_version=4).cells[0].source)[1])


def sections(text: str) -> list[str]:
    """The numbers in "sections 1, 2, 3"."""
    return re.findall(r"\d+", (re.search(r"sections? ([\d, ]+)", text) or [""])[0])


@pytest.mark.parametrize(("heading", "minutes"), [("Ninety minutes", 90), ("Half a day", 240)])
def test_the_clock_goes_on_by_the_minutes_of_each_part(heading, minutes):
    now = 0
    for clock, lasts, *_ in rows(heading):
        assert clock == f"{now // 60}:{now % 60:02}"
        now += int(lasts)
    assert now == minutes


def test_what_is_left_out_is_named_for_each_notebook_and_its_own_minutes_too():
    parts = [row for row in rows("Ninety minutes") if row[2].startswith("[0")]
    assert [row[2][1:3] for row in parts] == ["00", "01", "02", "03"]
    for _, minutes, part, teach, leave_out in parts:
        number = part[1:3]
        text = "\n".join(
            cell.source for cell in nbformat.read(NOTEBOOKS[number], as_version=4).cells if cell.cell_type == "markdown"
        )
        there = re.findall(r"^## (\d+)\.", text, re.MULTILINE)
        assert sorted(sections(teach) + sections(leave_out.split("(")[0])) == there
        assert f"states {stated_minutes(number)} minutes" in leave_out and int(minutes) < stated_minutes(number)


def test_half_a_day_takes_the_minutes_that_the_notebooks_state():
    found = {row[2][:2]: int(row[1]) for row in rows("Half a day") if row[2][:1] == "0"}
    assert found == {number: stated_minutes(number) for number in NOTEBOOKS}


def code_by_section(number: str) -> list[tuple[str, nbformat.NotebookNode]]:
    """Each code cell of a notebook with its section: "" before the first, "1", "2", ..., "Exercises"."""
    found, section = [], ""
    for cell in nbformat.read(NOTEBOOKS[number], as_version=4).cells:
        if cell.cell_type == "code":
            found.append((section, cell))
        for heading in re.findall(r"^## (\d+|\w+)", cell.source, re.MULTILINE):
            section = heading if cell.cell_type == "markdown" else section
    return found


def taught() -> dict[str, list[str]]:
    """Sections of the ninety minutes, by the number of their notebook."""
    return {row[2][1:3]: sections(row[3]) for row in rows("Ninety minutes") if row[2].startswith("[0")}


def test_every_section_that_measures_has_its_question_with_three_wrong_answers():
    asked = rows("What to ask before each measurement, and what they will say")
    found = {(where[:2], where[-1]) for where, _, _ in asked}
    measured = {
        (number, section)
        for number, listed in taught().items()
        for section, cell in code_by_section(number)
        if section in listed and cell.metadata.get("tags")
    }
    assert measured <= found <= {(number, section) for number, listed in taught().items() for section in listed}
    assert all(answers.count('"') >= 6 for _, _, answers in asked)


def test_the_cells_of_the_plan_run_without_those_that_are_left_out():
    """Every name that a cell uses comes from a cell that is run: of a section taught, or named on the page."""
    extra = set(re.findall(r"`((?:machine|loop|phases|idle)-[\w-]+)`", PAGE))
    for number, listed in taught().items():
        known = set(dir(builtins))
        for section, cell in code_by_section(number):
            if section in ["", *listed] or cell.id in extra:
                nodes = list(ast.walk(ast.parse(TransformerManager().transform_cell(cell.source))))
                names = [node for node in nodes if isinstance(node, ast.Name)]
                known |= {node.id for node in names if not isinstance(node.ctx, ast.Load)}
                known |= {node.name for node in nodes if isinstance(node, ast.FunctionDef)}
                known |= {node.arg for node in nodes if isinstance(node, ast.arg)}
                aliases = [node for node in nodes if isinstance(node, ast.alias)]
                known |= {(node.asname or node.name).split(".")[0] for node in aliases}
                missing = {node.id for node in names} - known
                assert not missing, f"{cell.id} of notebook {number} needs {missing}"
