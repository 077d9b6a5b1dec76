"""The copy for a class: outputs and worked answers are gone, and nothing else is changed."""

import difflib
import json
import re
from pathlib import Path

import nbformat
import pytest

from chapter01 import clean_copy

ROOT = Path(__file__).resolve().parent.parent
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


@pytest.fixture(scope="module")
def copies(tmp_path_factory) -> dict[str, Path]:
    clean, kept = clean_copy.write(folder=tmp_path_factory.mktemp("course") / "copy")
    assert kept == []
    return {file.name: file for file in clean}


def test_every_notebook_is_copied(copies):
    assert list(copies) == [file.name for file in NOTEBOOKS] != []


@pytest.mark.parametrize("file", NOTEBOOKS, ids=lambda file: file.stem)
def test_the_copy_is_a_valid_notebook_that_was_never_run(copies, file):
    notebook = json.loads(copies[file.name].read_text(encoding="utf-8"))
    nbformat.validate(notebook)
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in code)


@pytest.mark.parametrize("file", NOTEBOOKS, ids=lambda file: file.stem)
def test_no_answer_is_left_and_there_is_one_place_for_each(copies, file):
    """For an exercise the code cell is the place, for a questionnaire an empty one."""
    original, copy = (path.read_text(encoding="utf-8") for path in (file, copies[file.name]))
    summaries = re.findall(r"<summary>(.*?)</summary>", original)
    answers = [text for text in summaries if "nswer" in text]
    exercises = copy.count("exercises.check(")
    assert exercises >= 3 and answers.count("Worked answer") == exercises
    assert len(answers) > exercises and copy.count(clean_copy.PLACE) == answers.count("Answers")
    assert re.findall(r"<summary>(.*?)</summary>", copy) == [text for text in summaries if "nswer" not in text]


@pytest.mark.parametrize("file", NOTEBOOKS, ids=lambda file: file.stem)
def test_nothing_else_is_changed(copies, file):
    """Line by line: what the copy lacks are outputs, counts and answers; what it has more are empty places."""
    original, copy = (nbformat.read(path, as_version=4) for path in (file, copies[file.name]))
    assert original.metadata == copy.metadata
    assert (original.nbformat, original.nbformat_minor) == (copy.nbformat, copy.nbformat_minor)
    left = {cell.id for cell in copy.cells}
    gone = [cell.source for cell in original.cells if cell.id not in left]
    assert all(re.fullmatch(r"<details>((?!</details>).)*</details>\s*", text, re.DOTALL) for text in gone)
    for before, after in zip((c for c in original.cells if c.id in left), copy.cells, strict=True):
        assert (before.id, before.cell_type, before.metadata) == (after.id, after.cell_type, after.metadata)
        if before.cell_type == "code":
            assert before.source == after.source
            continue
        changes = difflib.ndiff(before.source.splitlines(), after.source.splitlines())
        lost = [line[2:] for line in changes if line.startswith("- ")]
        kept = after.source.replace(clean_copy.PLACE, "").split("\n")
        assert set(kept) - {""} <= set(before.source.split("\n"))
        assert not lost or lost[0].startswith("<details>")
        worked = sum("<summary>Worked answer" in line for line in lost)
        assert sum("<details>" in line for line in lost) == worked + after.source.count(clean_copy.PLACE)


@pytest.mark.parametrize("file", NOTEBOOKS, ids=lambda file: file.stem)
def test_a_copy_of_the_copy_is_the_same_text_as_the_course_writes(copies, file):
    text = copies[file.name].read_text(encoding="utf-8")
    assert nbformat.writes(nbformat.reads(text, as_version=4)) + "\n" in (text, text + "\n")


def test_the_links_lead_to_the_same_files_from_the_folder_beside_the_notebooks(copies):
    assert clean_copy.FOLDER.parent == ROOT
    for copy in copies.values():
        cells = json.loads(copy.read_text(encoding="utf-8"))["cells"]
        prose = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")
        for link in re.findall(r"\]\((?!https?:|#)([^)#]+)", prose):
            assert link.startswith("../") or link in copies, f"{copy.name}: {link}"
            assert (ROOT / "notebooks" / link).exists(), f"{copy.name}: {link}"


def test_details_that_hold_no_answer_stay():
    cell = {"cell_type": "markdown", "source": ["<details><summary>More on this</summary>\n", "\n", "x</details>"]}
    assert clean_copy.cleaned({"cells": [cell]}) == {"cells": [cell]}


def test_the_folder_is_not_part_of_the_repository():
    assert f"{clean_copy.FOLDER.name}/" in (ROOT / ".gitignore").read_text().splitlines()


def test_a_copy_that_somebody_worked_in_is_never_written_over(tmp_path):
    clean_copy.write(folder=tmp_path)
    mine, away = tmp_path / NOTEBOOKS[0].name, tmp_path / NOTEBOOKS[1].name
    mine.write_text("my answers")
    away.unlink()
    clean, kept = clean_copy.write(folder=tmp_path)
    assert kept == [mine] and mine.read_text() == "my answers"
    assert away in clean and away.exists()
