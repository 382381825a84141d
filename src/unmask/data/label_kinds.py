"""What labels are: one of several, several at once, or numbers; recognised from all of them."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from typing import Any, Literal

Problem = Literal["single", "multi", "regression"]
"""One label of several, any number of them, or a number."""
SEPARATORS = ("|", ";", ",")
_NOT_FINITE = re.compile(r"[+-]?(nan|inf|infinity)", re.IGNORECASE)


def natural(label: str) -> tuple[Any, ...]:
    """What to sort labels by: 2 before 10, and a2 before a10."""
    if re.fullmatch(r"[+-]?\d+(\.\d+)?", label):
        return (0, float(label), label)
    parts = re.split(r"(\d+)", label)
    return (1, [(int(part), "") if part.isdecimal() else (-1, part) for part in parts], label)


def as_word(label: Any) -> str | tuple[str, ...]:
    """A label as a word."""
    if isinstance(label, list):
        return tuple(str(as_word(part)) for part in label)
    if isinstance(label, bool):
        return str(label).lower()
    return str(label).strip()


def recognise_problem(
    values: Sequence[Any],
    problem: Problem | Literal["auto"],
    separator: str | None,
    said: list[str],
) -> tuple[Problem, str | None]:
    """Which problem it is, unless that is said already, and what separates labels; adds to `said` what was found."""
    if problem in ("auto", "multi") and any(isinstance(value, list | tuple) for value in values):
        return "multi", None
    if separator is not None and problem in ("auto", "multi"):
        return "multi", separator
    words = Counter(str(as_word(value)) for value in values)
    found = next((mark for mark in SEPARATORS if _separates(mark, words)), None)
    if problem == "multi" or (problem == "auto" and found is not None):
        maybe = next((mark for mark in SEPARATORS if any(mark in word for word in words)), None)
        if found is not None:
            said.append(f"a text may have several labels, separated by {found!r}")
        elif maybe is not None:
            said.append(f"labels contain {maybe!r} and are taken whole; say --separator {maybe!r} if it parts them")
        return "multi", found
    if problem == "regression" or (problem == "auto" and _mostly_fractions(words)):
        if problem == "auto":
            said.append("labels are numbers, and not all whole: a regression (say problem single if they are classes)")
        return "regression", None
    maybe = next((mark for mark in SEPARATORS[:2] if any(mark in word for word in words)), None)
    if maybe is not None and problem == "auto":
        said.append(f"labels contain {maybe!r} and are taken whole; say --separator {maybe!r} if a text has several")
    return "single", None


def _separates(mark: str, words: Counter[str]) -> bool:
    """Whether each part of a label with `mark` in it also occurs in another label: only then are they several."""
    if not any(mark in word for word in words):
        return False
    used: Counter[str] = Counter()
    for word in words:
        used.update({part.strip() for part in word.split(mark)})
    parts = {part.strip() for word in words if mark in word for part in word.split(mark)}
    return all(part and len(part) <= 40 and used[part] > 1 for part in parts)


def _mostly_fractions(words: Counter[str]) -> bool:
    """Whether nearly all labels are numbers, and at least a tenth of them not whole; NaN is a number that is wrong."""
    numbers = fractions = 0
    for word, count in words.items():
        value = as_number(word)
        if value is None and _NOT_FINITE.fullmatch(word):
            numbers += count
        if value is not None:
            numbers += count
            fractions += count * (value != int(value))
    return numbers >= 0.9 * words.total() and fractions >= 0.1 * words.total()


def as_number(word: str) -> float | None:
    """A number that is one; None for other words, NaN and infinity."""
    try:
        value = float(word)
    except ValueError:
        return None
    return value if math.isfinite(value) else None
