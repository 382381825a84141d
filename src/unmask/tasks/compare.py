"""Do two models differ, or was it chance? A paired test on the same examples."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from unmask.errors import UserError
from unmask.metrics.compare import Comparison, paired_test
from unmask.metrics.scores import Floats, f1_of
from unmask.report.outcome import Evaluation, Outcome, QuestionOutcome, TaggedOutcome, TextOutcome
from unmask.tasks.scoring import Scored

SumScore = Callable[[Floats], Floats]


def compare(first: Scored | Evaluation, second: Scored | Evaluation, names: tuple[str, str]) -> tuple[str, Comparison]:
    """The score that is compared, and what the test says of it."""
    if first.problem != second.problem:
        raise UserError(f"{names[0]} and {names[1]} do different things ({first.problem} and {second.problem})")
    if len(first.outcomes) != len(second.outcomes) or any(
        _asked(a) != _asked(b) for a, b in zip(first.outcomes, second.outcomes, strict=True)
    ):
        raise UserError(
            f"{names[0]} and {names[1]} were measured on different examples; measure both on one file: add --data FILE"
        )
    name, a, score = _sums(first)
    _, b, _ = _sums(second)
    return name, paired_test(a, b, score, names=names)


def _asked(outcome: Outcome) -> tuple[object, ...]:
    match outcome:
        case TextOutcome():
            return outcome.text, outcome.pair, outcome.gold
        case TaggedOutcome():
            return outcome.text, outcome.gold
        case QuestionOutcome():
            return outcome.id, outcome.question


def _sums(found: Scored | Evaluation) -> tuple[str, Floats, SumScore | None]:
    """A score, what it is made of for each example, and how it is made of their sums (None: their mean)."""
    outcomes = found.outcomes
    match found.problem:
        case "single":
            return "accuracy", np.array([float(outcome.right) for outcome in outcomes]), None
        case "multi" | "entities" | "tags":
            return "f1", np.array([_counts(outcome) for outcome in outcomes], dtype=float), f1_of
        case "regression":
            rows = [(outcome.gold, outcome.predicted) for outcome in outcomes if isinstance(outcome, TextOutcome)]
            x, y = np.array(rows, dtype=float).T
            return "pearson", np.stack([np.ones_like(x), x, y, x * x, y * y, x * y], axis=1), _pearson
        case _:
            return "f1", np.array([outcome.f1 for outcome in outcomes if isinstance(outcome, QuestionOutcome)]), None


def _counts(outcome: Outcome) -> tuple[int, int, int]:
    assert isinstance(outcome, TextOutcome | TaggedOutcome)
    gold, said = set(outcome.gold or ()), set(outcome.predicted or ())  # type: ignore[arg-type]
    return len(gold & said), len(said), len(gold)


def _pearson(sums: Floats) -> Floats:
    n, x, y, xx, yy, xy = np.moveaxis(sums, -1, 0)
    spread = np.sqrt(np.maximum((xx - x * x / n) * (yy - y * y / n), 1e-300))
    return np.asarray((xy - x * y / n) / spread)
