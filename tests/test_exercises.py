"""The exercises: each cell asks for its own answer, takes the worked one, and meets usual mistakes with a hint."""

import json
import math
import re
from pathlib import Path

import pytest

from chapter01 import levers
from chapter01.exercises import EXERCISES, check
from utils.models import find

NOTEBOOKS = sorted((Path(__file__).parent.parent / "notebooks").glob("*.ipynb"))

# By hand, as the worked answers in the notebooks give them.
WORKED = {
    "machine-1": 8, "machine-2": 117, "machine-3": "L40S", "machine-4": 120,
    "loop-1": 12.74, "loop-2": 6950, "loop-3": 2.89, "loop-4": 2.95,
    "phases-1": 62.1, "phases-2": 310, "phases-3": 1.37, "phases-4": "overhead",
    "idle-1": 34.3, "idle-2": 1.31, "idle-3": 447, "idle-4": 70,
    "levers-1": 60, "levers-2": 1.92, "levers-3": 40, "levers-4": 148,
    "room-1": 96.7, "room-2": 8, "room-3": 40,
}  # fmt: skip


def said(capsys, exercise, answer) -> str:
    check(exercise, answer)
    return capsys.readouterr().out


def test_every_exercise_of_the_notebooks_has_an_answer_and_no_other_has():
    text = "".join(file.read_text(encoding="utf-8") for file in NOTEBOOKS)
    assert sorted(re.findall(r'exercises\.check\(\\"([\w-]+)\\"', text)) == sorted(EXERCISES) == sorted(WORKED)


@pytest.mark.parametrize("file", NOTEBOOKS, ids=lambda file: file.stem)
def test_every_notebook_says_how_to_answer(file):
    assert "## Exercises" in (text := file.read_text(encoding="utf-8"))
    assert "Put your answer in place of the dots" in text and "three digits or more" in text


@pytest.mark.parametrize("exercise", WORKED)
def test_the_worked_answer_is_right(capsys, exercise):
    assert said(capsys, exercise, WORKED[exercise]).startswith("Right")


@pytest.mark.parametrize("exercise", WORKED)
def test_the_worked_answer_stands_in_the_notebook(exercise):
    topic, number = exercise.split("-")
    cells = [cell for file in NOTEBOOKS for cell in json.loads(file.read_text(encoding="utf-8"))["cells"]]
    (answer,) = ("".join(c["source"]) for c in cells if c["id"] == f"{topic}-exercise-{number}-answer")
    worked = answer.partition("</details>")[0].replace(",", "")
    assert re.search(rf"(?<![\d.]){re.escape(str(WORKED[exercise]))}(?!\d)", worked)


@pytest.mark.parametrize(("exercise", "wrong"), [(e, wrong) for e in EXERCISES for wrong in EXERCISES[e]["hints"]])
def test_a_usual_mistake_gets_its_hint(capsys, exercise, wrong):
    answer = said(capsys, exercise, wrong)
    assert answer.startswith("Not yet") and answer.strip().endswith(EXERCISES[exercise]["hints"][wrong])


def test_what_the_course_calculates_agrees():
    assert levers.users_that_fit(find("Llama-3.1-8B"), 8000, 80e9) == EXERCISES["levers-1"]["expected"]
    assert math.isclose(levers.expected_tokens(0.6, 4) / 1.2, EXERCISES["levers-2"]["expected"])
