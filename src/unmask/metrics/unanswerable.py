"""SQuAD 2.0: questions that the text may not answer, where the right prediction is to say nothing.

A prediction of "" says that there is no answer. A model may also give, for each question, how sure it is that there is
none; above a threshold its answer is replaced by "". The best threshold for the data at hand is found as the official
script finds it, and belongs to that data: chosen on the set that is reported, it flatters.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unmask.errors import DataError
from unmask.metrics.answers import (
    AnswerMarks,
    AnswerScores,
    Gold,
    Mark,
    Predicted,
    exact_match,
    normalise_answer,
    word_f1,
)
from unmask.metrics.scores import Floats


@dataclass(frozen=True)
class Best:
    """The best score that a threshold gives, and that threshold."""

    score: float
    threshold: float


@dataclass(frozen=True)
class Squad2Scores:
    """All that the official script of SQuAD 2.0 says of predictions."""

    all: AnswerScores
    has_answer: AnswerScores | None  # None where there are no such questions
    no_answer: AnswerScores | None
    best_exact: Best | None  # None where the model does not say how sure it is
    best_f1: Best | None

    def as_json(self) -> dict[str, Any]:
        """The same as plain data."""
        found: dict[str, Any] = {"all": self.all.as_json()}
        for name, part in (("has_answer", self.has_answer), ("no_answer", self.no_answer)):
            found[name] = None if part is None else part.as_json()
        for name, best in (("best_exact", self.best_exact), ("best_f1", self.best_f1)):
            found[name] = None if best is None else {"score": best.score, "threshold": best.threshold}
        return found


def squad2_scores(
    gold: Gold,
    predicted: Predicted,
    no_answer: Mapping[str, float] | None = None,
    threshold: float = 1.0,
) -> Squad2Scores:
    """Exact match and F1 of SQuAD 2.0. `no_answer` says for each question how sure the model is that it has none."""
    marks = squad2_marks(gold, predicted, no_answer, threshold)
    answerable = np.array([bool(answers) for answers in gold.values()])
    given = np.array([question in predicted for question in gold])
    best_exact = best_f1 = None
    if no_answer is not None:
        raw = squad2_marks(gold, predicted)
        answered = np.array([bool(predicted.get(question)) for question in gold])
        doubt = _doubt(gold, predicted, no_answer)[given]
        silent = int((~answerable & given).sum())
        best_exact, best_f1 = (
            _best(np.where(answerable, mark, -1.0 * answered)[given], doubt, silent, len(gold))
            for mark in (raw.exact, raw.f1)
        )
    return Squad2Scores(
        all=marks.scores(),
        has_answer=_part(marks, answerable, given),
        no_answer=_part(marks, ~answerable, given),
        best_exact=best_exact,
        best_f1=best_f1,
    )


def squad2_marks(
    gold: Gold,
    predicted: Predicted,
    no_answer: Mapping[str, float] | None = None,
    threshold: float = 1.0,
) -> AnswerMarks:
    """The marks of each question as SQuAD 2.0 gives them, answers above the threshold replaced by none."""
    if not gold:
        raise DataError("there is nothing to score: there are no questions")
    given = np.array([question in predicted for question in gold])
    marks = np.array([squad2_mark(answers, predicted.get(question)) for question, answers in gold.items()])
    if no_answer is not None:
        silent = given & (_doubt(gold, predicted, no_answer) > threshold)
        marks[silent] = np.array([[not answers] for answers in gold.values()], dtype=np.float64)[silent]
    return AnswerMarks(marks[:, 0], marks[:, 1], int((~given).sum()))


def word_f1_or_none(gold: str, predicted: str) -> float:
    """F1 of words, where two answers of which nothing is left agree."""
    if not normalise_answer(gold) or not normalise_answer(predicted):
        return exact_match(gold, predicted)
    return word_f1(gold, predicted)


def squad2_mark(answers: Sequence[str], predicted: str | None) -> tuple[float, float]:
    """Exact match and F1 with the best of the accepted answers; those of which nothing is left do not count."""
    if predicted is None:
        return 0.0, 0.0
    accepted = [answer for answer in answers if normalise_answer(answer)] or [""]
    marks: tuple[Mark, Mark] = (exact_match, word_f1_or_none)
    exact, f1 = (max(mark(answer, predicted) for answer in accepted) for mark in marks)
    return exact, f1


def _doubt(gold: Gold, predicted: Predicted, no_answer: Mapping[str, float]) -> Floats:
    for question in gold:
        if question in predicted and question not in no_answer:
            raise DataError(f"question {question!r} has a prediction but no probability that it has no answer")
    return np.array([no_answer.get(question, 0.0) for question in gold], dtype=np.float64)


def _part(marks: AnswerMarks, which: NDArray[np.bool_], given: NDArray[np.bool_]) -> AnswerScores | None:
    if not which.any():
        return None
    return AnswerMarks(marks.exact[which], marks.f1[which], int((which & ~given).sum())).scores()


def _best(gains: Floats, doubt: Floats, silent: int, total: int) -> Best:
    """The highest score when questions get their answers one after another, the surest first.

    `gains` is what an answer adds to the sum, `silent` the sum without any. As in the official script, questions of
    equal doubt come one by one (in the order of the gold table), though no threshold parts them: with many ties the
    best score may be one that no threshold gives.
    """
    order = np.argsort(doubt, kind="stable")
    sums = silent + np.cumsum(gains[order])
    if not len(sums) or sums.max() <= silent:
        return Best(silent / total, 0.0)
    place = int(np.argmax(sums))
    return Best(float(sums[place]) / total, float(doubt[order[place]]))
