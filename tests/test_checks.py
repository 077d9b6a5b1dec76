"""What a notebook prints about a claim or an answer: one line, the same on every machine, and helpful."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from utils.checks import SLIPS, UNANSWERED, _distance, check, verdict


class Awkward:
    def __float__(self):
        raise RuntimeError

    __repr__ = __str__ = __float__


def said(capsys, *args, **kwargs) -> str:
    assert check(*args, **kwargs) is None, "a returned value would be displayed below the line"
    text = capsys.readouterr().out
    assert text.count("\n") == 1
    return text.strip()


@pytest.mark.parametrize("true", [True, np.bool_(True), torch.tensor(True), np.float64(2) > 1])
def test_a_verdict_is_one_line(capsys, true):
    verdict("the chip idles", true)
    verdict("the chip idles", not true)
    assert capsys.readouterr().out == "the chip idles: yes\nthe chip idles: no\n"


@pytest.mark.parametrize("no_truth", [math.nan, 0.98, 1, None, "no", [False], np.array(0.9)])
def test_a_verdict_on_what_is_not_a_comparison_is_refused(no_truth):
    with pytest.raises(TypeError, match="compare it"):
        verdict("the chip idles", no_truth)


@pytest.mark.parametrize("answer", [None, ..., "", " ... "])
@pytest.mark.parametrize("expected", [23.93, "bandwidth"])
def test_an_unanswered_exercise_prints_the_same_line_whatever_is_asked(capsys, answer, expected):
    assert said(capsys, answer, expected, "tok/s") == UNANSWERED


@pytest.mark.parametrize("answer", [23.93, 24, 23.5, np.float32(23.9), torch.tensor(23.9), np.array(23.9)])
def test_a_right_answer(capsys, answer):
    assert said(capsys, answer, 23.93, "tok/s").startswith("Right: 2")


def test_an_exact_count_allows_nothing_beside_it(capsys):
    assert said(capsys, 295, 295, tolerance=0) == "Right: 295."
    assert said(capsys, 296, 295, tolerance=0).startswith("Not yet")
    assert said(capsys, 0, 0).startswith("Right")
    assert said(capsys, 1e-9, 0).startswith("Not yet")
    hints = {69.65: "Users come in whole numbers."}
    assert said(capsys, 69.6, 70, tolerance=0, hints=hints).endswith("Users come in whole numbers.")
    assert "whole" not in said(capsys, 69, 70, tolerance=0, hints=hints)
    assert said(capsys, 71, 70, tolerance=0, hints=hints).endswith("left out, or counted twice?")


def test_the_nearest_of_the_usual_mistakes_is_told_and_none_if_the_right_answer_is_nearer(capsys):
    hints = {12.78: "One step fewer.", 12.83: "Two steps fewer."}
    assert said(capsys, 12.8, 12.738, "s", tolerance=0.001, hints=hints).endswith("One step fewer.")
    assert said(capsys, 12.82, 12.738, "s", tolerance=0.001, hints=hints).endswith("Two steps fewer.")
    assert "keep more digits" in said(capsys, 12.754, 12.738, "s", tolerance=0.001, hints=hints)


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (23930, "too large by a factor of 1,000. Is it one prefix"),
        (0.02393, "too small by a factor of 1,000. Is it one prefix"),
        (2393, "per cent"),
        (23.93 * 8, "bits against bytes"),
        (23.93 / 2, "two operations"),
        (23.93 * 3600, "hours against seconds"),
        (23.93 * 1.024**3, "GiB"),
        (25, "a little too large"),
        (-23.93, "wrong sign"),
        (0, "not it"),
        (23.93 * 31, "about 31"),
        (47.86, "One byte a weight"),
    ],
)
def test_a_wrong_answer_is_told_how_it_is_wrong(capsys, answer, says):
    hints = {47.86: "One byte a weight would give this."}
    text = said(capsys, answer, 23.93, "tok/s", hints=hints)
    assert text.startswith("Not yet") and says in text


NONSENSE = ["24", math.nan, math.inf, True, np.bool_(True), [1, 2], np.ones(3), 1j, Awkward(), 10**400, {}]


@pytest.mark.parametrize("nonsense", NONSENSE)
def test_nonsense_is_answered_and_nothing_is_raised(capsys, nonsense):
    text = said(capsys, nonsense, 23.93)
    assert "number is asked for" in text or "without quotes" in text
    assert not said(capsys, nonsense, "bandwidth").startswith("Right")


def test_a_comparison_and_a_comma_for_decimals_are_told_as_such(capsys):
    assert "a comparison" in said(capsys, 2 > 1, 23.93)
    assert "12.7, not 12,7" in said(capsys, (12, 74), 12.74)


def test_a_count_that_is_close_is_told_whether_it_is_not_whole_or_another_one(capsys):
    assert "comes whole" in said(capsys, 446.6, 447, tolerance=0)
    assert "left out, or counted twice" in said(capsys, 445, 447, tolerance=0)


def test_the_answer_is_echoed_with_all_its_digits(capsys):
    assert "6,950.5 tok/s" in said(capsys, 6950.5, 6900, "tok/s", tolerance=0)
    assert "1,000,000 tok/s" in said(capsys, 1e6, 6900, "tok/s")


def test_a_word(capsys):
    hints = {"compute": "One row does not fill a tile."}
    assert said(capsys, " Bandwidth", "bandwidth", hints=hints) == "Right: bandwidth."
    assert said(capsys, "compute", "bandwidth", hints=hints).endswith("One row does not fill a tile.")
    assert said(capsys, "overhead", "bandwidth", hints=hints) == "Not yet. Think again."


@given(expected=st.floats(1e-9, 1e12), slip=st.sampled_from(list(SLIPS)), larger=st.booleans())
def test_every_usual_slip_is_recognised(expected, slip, larger):
    text = _distance(expected * slip if larger else expected / slip, expected)
    assert SLIPS[slip] in text and ("large" if larger else "small") in text
