"""Predictions beside what is right: scores with intervals, and what a report shows of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from unmask.data.examples import Entity, QuestionExample, TextExample
from unmask.metrics.classes import class_scores, label_set_scores, matthews
from unmask.metrics.entities import entity_counts, entity_scores
from unmask.metrics.intervals import Interval, bootstrap, bootstrap_sums, share_interval
from unmask.metrics.numbers import pearson, spearman
from unmask.metrics.scores import ScoreTable, f1_of, macro_f1_within
from unmask.models.settings import ClassifySettings
from unmask.report.outcome import LabelScore, Outcome, Problem, QuestionOutcome, Score, TaggedOutcome, TextOutcome
from unmask.tasks.answer import AnswerPrediction, marked
from unmask.tasks.classify import ClassPrediction
from unmask.tasks.tag import TagPrediction
from unmask.tasks.tag_texts import TagText
from unmask.tasks.usage import Usage

_AROUND = 200  # characters of a context shown on each side of an answer


@dataclass(frozen=True)
class Scored:
    """What came of measuring a model on a file."""

    problem: Problem
    usage: Usage
    #: The first one is what the model is judged by.
    scores: Mapping[str, Score]
    labels: tuple[str, ...] = ()
    confusion: tuple[tuple[int, ...], ...] | None = None
    table: tuple[LabelScore, ...] = ()
    outcomes: tuple[Outcome, ...] = ()
    #: For each example how right the answer is, between 0 and 1: what two models are compared by.
    marks: tuple[float, ...] = ()


def score_classes(
    head: ClassifySettings, usage: Usage, examples: Sequence[TextExample], said: Sequence[ClassPrediction]
) -> Scored:
    """Scores of labels, of several labels, or of numbers."""
    outcomes = tuple(_text_outcome(*pair) for pair in zip(examples, said, strict=True))
    match head.problem:
        case "single":
            return _single(head, usage, outcomes)
        case "multi":
            return _multi(head, usage, outcomes)
        case _:
            return _numbers(usage, outcomes)


def _text_outcome(example: TextExample, said: ClassPrediction) -> TextOutcome:
    likely = tuple(list(said.probabilities.items())[:3])
    sure = said.probabilities[said.label] if isinstance(said.label, str) else None
    if isinstance(said.label, tuple):  # as sure as of the label it is least sure of
        sure = min(share if label in said.label else 1 - share for label, share in said.probabilities.items())
    return TextOutcome(
        text=example.text,
        pair=example.pair,
        gold=example.label,
        predicted=said.label,
        confidence=sure,
        likely=likely,
        tokens=said.tokens,
        coverage=said.coverage,
        windows=said.windows,
        line=example.line,
    )


def _single(head: ClassifySettings, usage: Usage, outcomes: tuple[TextOutcome, ...]) -> Scored:
    numbers = {label: number for number, label in enumerate(head.labels)}
    gold = np.array([numbers[str(outcome.gold)] for outcome in outcomes])
    found = np.array([numbers[str(outcome.predicted)] for outcome in outcomes])
    n, size = len(gold), len(head.labels)
    table = class_scores(gold, found, size)
    right = gold == found

    def resampled(score: Callable[[np.ndarray], float]) -> Interval:
        def of(chosen: np.ndarray) -> float:
            counts = np.bincount(gold[chosen] * size + found[chosen], minlength=size * size)
            return score(counts.reshape(size, size))

        return bootstrap(of, n)

    macro_f1 = macro_f1_within(_class_counts(table.confusion))
    scores = {
        "accuracy": _as_score(share_interval(int(right.sum()), n), n),
        "macro_f1": _as_score(resampled(lambda confusion: float(macro_f1(_class_counts(confusion)))), n),
        "mcc": _as_score(resampled(matthews), n),
    }
    confusion = tuple(tuple(row) for row in table.confusion.tolist())
    return Scored(
        "single",
        usage,
        scores,
        head.labels,
        confusion,
        _label_scores(head.labels, table.table),
        outcomes,
        tuple(right.astype(float).tolist()),
    )


def _class_counts(confusion: np.ndarray) -> np.ndarray:
    """Right, found and wanted of each class, end to end."""
    return np.stack([np.diag(confusion), confusion.sum(0), confusion.sum(1)], axis=1).ravel()


def _macro_score(counts: np.ndarray) -> Score:
    """Macro F1 and its interval from (n, 3 · C) counts of examples."""
    return _as_score(bootstrap_sums(counts, macro_f1_within(counts.sum(0))), len(counts))


def _multi(head: ClassifySettings, usage: Usage, outcomes: tuple[TextOutcome, ...]) -> Scored:
    numbers = {label: number for number, label in enumerate(head.labels)}
    gold, found = np.zeros((2, len(outcomes), len(head.labels)), dtype=np.int64)
    for row, outcome in enumerate(outcomes):
        gold[row, [numbers[label] for label in outcome.gold or ()]] = 1  # type: ignore[union-attr]
        found[row, [numbers[label] for label in outcome.predicted or ()]] = 1  # type: ignore[union-attr]
    table = label_set_scores(gold, found)
    counts = np.stack([gold & found, found, gold], axis=2)  # right, found, wanted: (n, labels, 3)
    right = (gold == found).all(1)
    n = len(outcomes)
    scores = {
        "micro_f1": _as_score(bootstrap_sums(counts.sum(1), f1_of), n),
        "macro_f1": _macro_score(counts.reshape(n, -1)),
        "all_right": _as_score(share_interval(int(right.sum()), n), n),
    }
    rows = _label_scores(head.labels, table.table)
    return Scored("multi", usage, scores, head.labels, None, rows, outcomes, tuple(right.astype(float).tolist()))


def _numbers(usage: Usage, outcomes: tuple[TextOutcome, ...]) -> Scored:
    gold = np.array([outcome.gold for outcome in outcomes], dtype=float)
    found = np.array([outcome.predicted for outcome in outcomes], dtype=float)
    n = len(gold)
    scores = {
        name: _as_score(bootstrap(lambda chosen, how=how: how(gold[chosen], found[chosen]) or 0.0, n), n)  # type: ignore[misc]
        for name, how in (("pearson", pearson), ("spearman", spearman))
    }
    error = (gold - found) ** 2
    scores["mean_squared_error"] = _as_score(bootstrap_sums(error), n)
    return Scored("regression", usage, scores, outcomes=outcomes, marks=tuple((-error).tolist()))


def score_tags(usage: Usage, texts: Sequence[str], right: Sequence[TagText], said: Sequence[TagPrediction]) -> Scored:
    """Scores of stretches as seqeval counts them, or of each word's tag."""
    outcomes = tuple(_tagged_outcome(*three) for three in zip(texts, right, said, strict=True))
    words_right = [
        sum(tag == gold for (_, _, tag), gold in zip(one.words, text.tags, strict=True))
        for one, text in zip(said, right, strict=True)
    ]
    pairs = np.array([words_right, [len(text.words) for text in right]], dtype=float).T
    n = len(texts)
    accuracy = _as_score(bootstrap_sums(pairs, lambda sums: sums[:, 0] / np.maximum(sums[:, 1], 1)), n)
    gold, found = [outcome.gold for outcome in outcomes], [outcome.predicted for outcome in outcomes]
    types, counts = entity_counts(gold, found)
    table = _label_scores(types, entity_scores(gold, found).table)
    marks = tuple(2 * row[0] / (row[1] + row[2]) if row[1] + row[2] else 1.0 for row in counts.sum(1).tolist())
    if usage.scheme is None:
        marks = tuple((pairs[:, 0] / np.maximum(pairs[:, 1], 1)).tolist())
        return Scored("tags", usage, {"accuracy": accuracy}, types, None, table, outcomes, marks)
    scores = {
        "f1": _as_score(bootstrap_sums(counts.sum(1), f1_of), n),
        "precision": _as_score(bootstrap_sums(counts.sum(1), lambda sums: sums[:, 0] / np.maximum(sums[:, 1], 1)), n),
        "recall": _as_score(bootstrap_sums(counts.sum(1), lambda sums: sums[:, 0] / np.maximum(sums[:, 2], 1)), n),
        "macro_f1": _macro_score(counts.reshape(n, -1) if types else counts.sum(1)),
        "accuracy": accuracy,
    }
    return Scored("entities", usage, scores, types, None, table, outcomes, marks)


def _tagged_outcome(text: str, right: TagText, said: TagPrediction) -> TaggedOutcome:
    return TaggedOutcome(
        text=text,
        gold=right.gold,
        predicted=tuple(Entity(*entity[:3]) for entity in said.entities),
        confidences=tuple(entity.probability for entity in said.entities),
        tokens=said.tokens,
        coverage=said.coverage,
        windows=said.windows,
    )


def score_answers(
    usage: Usage, examples: Sequence[QuestionExample], said: Sequence[AnswerPrediction], *, tune: bool = False
) -> Scored:
    """Exact match and F1 as the official scorers give them; with `tune` the no-answer threshold is chosen here."""
    given = [one.answer for one in said]
    if tune and usage.no_answer is not None:
        threshold = _threshold(usage, examples, said)
        usage = usage.replace(no_answer=threshold)
        given = ["" if one.doubt > threshold else one.best for one in said]
    pairs = [marked(example, one, usage) for example, one in zip(examples, given, strict=True)]
    exact, f1 = np.array(pairs).T
    n = len(pairs)
    scores = {"f1": _as_score(bootstrap_sums(f1), n), "exact": _as_score(bootstrap_sums(exact), n)}
    outcomes = tuple(_question_outcome(*four) for four in zip(examples, said, given, pairs, strict=True))
    return Scored("answers", usage, scores, outcomes=outcomes, marks=tuple(f1.tolist()))


def _threshold(usage: Usage, examples: Sequence[QuestionExample], said: Sequence[AnswerPrediction]) -> float:
    """The doubt above which no answer is given, chosen so that F1, as this task counts it, is best.

    Halfway from the last question that is answered to the first that is not: every place between them scores the same
    here, and at the edge, which the official script of SQuAD takes, a question that is as clear as the others but for a
    hair would get no answer. Below all doubts where silence is best.
    """
    assert usage.no_answer is not None
    by_doubt = sorted((one.doubt, place) for place, one in enumerate(said) if math.isfinite(one.doubt))
    if not by_doubt:
        return usage.no_answer
    best, threshold, total = 0.0, by_doubt[0][0] - 1.0, 0.0
    for number, (doubt, place) in enumerate(by_doubt):
        total += marked(examples[place], said[place].best, usage)[1] - marked(examples[place], "", usage)[1]
        following = by_doubt[number + 1][0] if number + 1 < len(by_doubt) else doubt
        if total > best and (following > doubt or number + 1 == len(by_doubt)):  # no threshold parts equal doubts
            best, threshold = total, (doubt + following) / 2
    return threshold


def _question_outcome(
    example: QuestionExample, said: AnswerPrediction, given: str, pair: tuple[float, float]
) -> QuestionOutcome:
    answers = tuple(dict.fromkeys(answer.text for answer in example.answers))
    middle = example.answers[0].start if example.answers else said.start
    around = example.context[max(0, middle - _AROUND) : middle + _AROUND]
    return QuestionOutcome(
        question=example.question,
        context=around,
        answers=answers,
        predicted=given,
        confidence=_confidence(said, given),
        exact=pair[0],
        f1=pair[1],
        tokens=said.tokens,
        coverage=said.coverage,
        windows=said.windows,
        line=example.line,
        id=example.id,
    )


def _confidence(said: AnswerPrediction, given: str) -> float:
    """The probability of what is given; where the threshold has moved since, that of the other of the two."""
    if bool(given) == bool(said.answer):
        return said.probability
    return min(1.0, said.probability * math.exp(-said.doubt if given else said.doubt))


def _as_score(found: Interval, n: int) -> Score:
    return Score(found.value, found.low, found.high, n)


def _label_scores(labels: Sequence[str], table: ScoreTable) -> tuple[LabelScore, ...]:
    rows = []
    for number, label in enumerate(labels):
        one = table[number]
        rows.append(LabelScore(label, one.precision, one.recall, one.f1, one.support))
    return tuple(rows)
