"""Lines that a notebook prints about a result: verdicts on claims, and answers to exercises.

A verdict's text is the same on every healthy machine, so it is compared when the notebooks are tested; the
numbers behind it are not. An exercise is committed unanswered, and then prints a fixed line too.
"""

import math
from collections.abc import Mapping
from typing import Any

UNANSWERED = "No answer yet: put yours in place of the ... and run this cell again."

# Factors by which answers are usually off, and the slip behind each. The first match within 1 % is told.
SLIPS = {
    1e3: "one prefix of the unit (milli, kilo, mega, giga, ...)",
    1e6: "two prefixes of the unit, or a price a token against a price a million",
    1e9: "three prefixes of the unit (a plain unit against giga or nano)",
    1e12: "four prefixes of the unit (a plain unit against tera or pico)",
    1024: "one prefix of the unit, with 1,024 where 1,000 is meant",
    100: "per cent against a fraction",
    3600: "hours against seconds",
    60: "minutes against seconds",
    8: "bits against bytes",
    4: "a factor of two, counted twice",
    2: "the bytes of each number, or the two operations (multiply and add) of each weight",
    1.024**3: "GiB (1,024 cubed) against GB (1,000 cubed)",
}


ROUNDED = 5e-3  # a usual mistake is recognised to two or three digits, even where the right answer must be exact


def verdict(claim: str, holds: bool) -> None:
    """Print "claim: yes" or "claim: no".

    `holds` is a comparison of numbers just measured: a bool, or one of numpy or torch. Raises TypeError for
    anything else: NaN and most numbers would pass for true.
    """
    if not _is_bool(holds):
        raise TypeError(f"a verdict needs True or False, not {holds!r}: compare it with something first")
    print(f"{claim}: {'yes' if holds else 'no'}")


def against_guess(guess: Any, measured: float, unit: str) -> None:
    """Print how a guess made before a measurement compares with it; a missing guess is no mistake."""
    if guess is None or guess is ...:
        print("no guess was made")
        return
    value = _number(guess)
    if isinstance(value, str) or value <= 0:
        print(f"a guess is one number above 0, not {guess!r}")
        return
    factor = max(value, measured) / min(value, measured)
    side = "too high" if value > measured else "too low"
    how = "very close" if factor < 1.25 else f"{side} by a factor of {factor:.2g}"
    print(f"you guessed {_digits(value)} {unit}, measured {measured:.3g} {unit}: {how}")


def check(
    answer: Any,
    expected: float | str,
    unit: str = "",
    tolerance: float = 0.02,
    hints: Mapping[float | str, str] | None = None,
) -> None:
    """Print what there is to say about an answer to an exercise; whatever the answer is, nothing is raised.

    `expected` is a number in `unit`, right within the relative `tolerance` (0 for exact counts), or a word
    (letter case does not matter). `hints` maps wrong answers to what probably went wrong.
    """
    print(_reply(answer, expected, unit, tolerance, hints or {}))


def _reply(answer, expected, unit, tolerance, hints) -> str:
    if answer is None or answer is ... or (isinstance(answer, str) and answer.strip() in ("", "...")):
        return UNANSWERED
    if isinstance(expected, str):
        return _reply_to_word(answer, expected, hints)
    value = _number(answer)
    if isinstance(value, str):
        return value
    told = f"{_digits(value)} {unit}".strip()
    if _close(value, expected, tolerance):
        return f"Right: {told}."
    mistakes = [wrong for wrong in hints if _close(value, wrong, max(tolerance, ROUNDED))]
    nearest = min([expected, *mistakes], key=lambda number: abs(value - number))
    if nearest in hints:
        return f"Not yet: {told}. {hints[nearest]}"
    return f"Not yet: {told} {_distance(value, expected, exact=tolerance == 0)}"


def _reply_to_word(answer: Any, expected: str, hints: Mapping) -> str:
    if not isinstance(answer, str):
        return f"A word in quotes is asked for, not a value of type {type(answer).__name__}."
    word = " ".join(answer.split()).strip(".'\"").casefold()
    if word == expected.casefold():
        return f"Right: {expected}."
    hint = next((text for wrong, text in hints.items() if str(wrong).casefold() == word), "Think again.")
    return f"Not yet. {hint}"


def _is_bool(value: Any) -> bool:
    """Whether it is True or False, of Python, numpy or torch."""
    return "bool" in str(getattr(value, "dtype", type(value).__name__))


def _number(answer: Any) -> float | str:
    """The answer as a finite number, or a sentence that says why it is none."""
    if isinstance(answer, str):
        return "Write a number without quotes; arithmetic such as 140 / 3.35 is fine."
    if _is_bool(answer):
        return "One number is asked for, not True or False: look for a comparison."
    if isinstance(answer, tuple):
        return "One number is asked for, without commas: 12.7, not 12,7, and 6950, not 6,950."
    try:
        value = float(answer)
    except OverflowError:
        value = math.inf
    except Exception:  # the answer is anything a reader may type; a traceback would teach nothing
        return f"One number is asked for, not a value of type {type(answer).__name__}."
    if not math.isfinite(value):
        return "A finite number is asked for: look for a division by zero."
    return value


def _close(value: float, target: Any, tolerance: float) -> bool:
    return not isinstance(target, str) and abs(value - target) <= tolerance * abs(target)


def _distance(value: float, expected: float, exact: bool = False) -> str:
    """How the value misses: sign, a telling factor, or too small or large by how much."""
    if not value or not expected:
        return "is not it."
    ratio = value / expected
    if ratio < 0:
        return "has the wrong sign."
    side, factor = ("large", ratio) if ratio > 1 else ("small", 1 / ratio)
    slip = next((f for f in SLIPS if abs(factor / f - 1) < 0.01), None)
    if slip:
        return f"is too {side} by a factor of {_digits(slip)}. Is it {SLIPS[slip]}?"
    if factor < 1.1 and exact and value != round(value):
        return f"is close, but a little too {side}: what is counted here comes whole. Which way must it be rounded?"
    if factor < 1.1 and exact:
        return f"is close, but a little too {side}: it must be exact. Is one left out, or counted twice?"
    if factor < 1.1:
        return f"is close, but a little too {side}: keep more digits, or look for a small term left out."
    about = float(f"{factor:.2g}")
    return f"is too {side} by a factor of about {_digits(about)}."


def _digits(value: float) -> str:
    """Four digits, and every digit of a thousand and more: a rounded echo would look like another answer."""
    if 1e3 <= abs(value) < 1e15 and value == round(value):
        return f"{value:,.0f}"
    return f"{value:,.10g}" if 1e3 <= abs(value) < 1e9 else f"{value:.4g}"
