"""Answers to questions against gold answers, as the official scripts of SQuAD 1.1, SQuAD 2.0 and CMRC 2018 score them.

Gold is a table of question → accepted answers (none: it has no answer), predictions one of question → answer. The best
of the accepted answers counts. A question without a prediction counts as wrong and is reported as missing (the script
of SQuAD 2.0 stops there). Scores are shares; the scripts print percentages.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from unmask.errors import DataError
from unmask.metrics.scores import Floats
from unmask.metrics.words import split_words

Gold = Mapping[str, Sequence[str]]
Predicted = Mapping[str, str]
Mark = Callable[[str, str], float]  # gold answer, predicted answer → 0 … 1

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)

#: What the script of CMRC 2018 removes. It lists …… as well, which no single character is equal to: … stays.
_CMRC_PUNCTUATION = str.maketrans("", "", "-:_*^/\\~`+=，。：？！“”；’《》·、「」（）－～『』")
_CMRC_PIECES = re.compile("[\u4e00-\u9fa5]|[^\u4e00-\u9fa5]+")


@dataclass(frozen=True)
class AnswerScores:
    """How many questions were answered right, and how much of each answer was."""

    exact: float
    f1: float
    total: int
    missing: int = 0  # questions without a prediction

    def as_json(self) -> dict[str, Any]:
        """The same as plain data."""
        return {"exact": self.exact, "f1": self.f1, "total": self.total, "missing": self.missing}


@dataclass(frozen=True)
class AnswerMarks:
    """The marks of each question, in the order of the gold table: what an interval resamples."""

    exact: Floats  # (n,)
    f1: Floats  # (n,)
    missing: int

    def scores(self) -> AnswerScores:
        """Their means."""
        return AnswerScores(float(self.exact.mean()), float(self.f1.mean()), len(self.exact), self.missing)


def squad_scores(gold: Gold, predicted: Predicted) -> AnswerScores:
    """Exact match and F1 of SQuAD 1.1, where every question has an answer."""
    return squad_marks(gold, predicted).scores()


def squad_marks(gold: Gold, predicted: Predicted) -> AnswerMarks:
    """The marks of each question as SQuAD 1.1 gives them."""
    _check_answered(gold)
    return _marks(gold, predicted, exact_match, word_f1)


def cmrc_scores(gold: Gold, predicted: Predicted) -> AnswerScores:
    """Exact match and F1 of CMRC 2018: Chinese by characters, the rest by words, F1 by the longest common stretch."""
    return cmrc_marks(gold, predicted).scores()


def cmrc_marks(gold: Gold, predicted: Predicted) -> AnswerMarks:
    """The marks of each question as CMRC 2018 gives them."""
    _check_answered(gold)
    return _marks(gold, predicted, cmrc_exact_match, cmrc_f1)


def normalise_answer(text: str) -> str:
    """What SQuAD compares: lower case, no ASCII punctuation, no a, an, the, single spaces."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_NO_PUNCTUATION)).split())


def exact_match(gold: str, predicted: str) -> float:
    """1 if two answers are the same but for case, punctuation, articles and spaces."""
    return float(normalise_answer(gold) == normalise_answer(predicted))


def word_f1(gold: str, predicted: str) -> float:
    """F1 of the words of two answers, each as often as it occurs; 0 if nothing is left of either."""
    right, found = normalise_answer(gold).split(), normalise_answer(predicted).split()
    return _f1(sum((Counter(right) & Counter(found)).values()), len(found), len(right))


def cmrc_exact_match(gold: str, predicted: str) -> float:
    """1 if two answers are the same but for case and the punctuation of CMRC 2018; spaces inside count."""
    first, second = (text.lower().strip().translate(_CMRC_PUNCTUATION) for text in (gold, predicted))
    return float(first == second)


def cmrc_f1(gold: str, predicted: str) -> float:
    """F1 of the longest run of tokens that two answers have in common."""
    right, found = cmrc_tokens(gold), cmrc_tokens(predicted)
    return _f1(_longest_common_run(right, found), len(found), len(right))


def cmrc_tokens(text: str) -> list[str]:
    """The tokens of CMRC 2018: punctuation removed, then each Chinese character alone and the rest in words."""
    pieces = _CMRC_PIECES.findall(text.lower().strip().translate(_CMRC_PUNCTUATION))
    return [token for piece in pieces for token in ([piece] if "\u4e00" <= piece <= "\u9fa5" else split_words(piece))]


def _marks(gold: Gold, predicted: Predicted, exact: Mark, f1: Mark) -> AnswerMarks:
    if not gold:
        raise DataError("there is nothing to score: there are no questions")
    marks = np.zeros((2, len(gold)))
    for number, (question, answers) in enumerate(gold.items()):
        if question in predicted:
            for row, mark in enumerate((exact, f1)):
                marks[row, number] = max(mark(answer, predicted[question]) for answer in answers)
    return AnswerMarks(marks[0], marks[1], sum(question not in predicted for question in gold))


def _check_answered(gold: Gold) -> None:
    for question, answers in gold.items():
        if not answers:
            raise DataError(f"question {question!r} has no gold answer; score such data as SQuAD 2.0")


def _f1(common: int, found: int, right: int) -> float:
    # Written as the scripts do: 2 · common / (found + right) is equal only up to rounding.
    if not common:
        return 0.0
    precision, recall = common / found, common / right
    return 2 * precision * recall / (precision + recall)


def _longest_common_run(first: Sequence[str], second: Sequence[str]) -> int:
    longest, before = 0, [0] * (len(second) + 1)
    for one in first:
        row = [0, *(length + 1 if one == other else 0 for length, other in zip(before, second, strict=False))]
        longest, before = max(longest, *row), row
    return longest
