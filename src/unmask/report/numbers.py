"""The numbers behind the charts: bins of confidence and of length, with intervals; and how numbers are written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from unmask.metrics.calibration import reliability
from unmask.metrics.intervals import bootstrap_sums, share_interval
from unmask.report.outcome import Evaluation, Outcome, QuestionOutcome, TaggedOutcome, TextOutcome

Numbers = npt.NDArray[np.float64]

FEW = 10  # texts that a bin of lengths should have
_SPACE = "\u00a0"

#: Parts of the names of scores that are no shares: written as they are, not in per cent.
_PLAIN = ("pearson", "spearman", "mcc", "matthews", "corr", "error", "mse", "mae", "loss", "ece", "brier", "perplex")
#: Parts of the names of scores of which less is better.
_LESS = ("error", "mse", "mae", "loss", "ece", "brier", "perplex")

_CALLED = {"f1": "F1", "mcc": "MCC", "mse": "MSE", "rmse": "RMSE", "mae": "MAE", "em": "EM", "exact": "exact match"}
_CALLED |= {"pearson": "Pearson", "spearman": "Spearman"}


class Mean(NamedTuple):
    """A mean with its 95 % interval, and how many it is of."""

    value: float
    low: float
    high: float
    n: int


@dataclass(frozen=True)
class Bin:
    """The examples between two bounds."""

    low: float
    high: float
    #: Where they lie between the bounds.
    middle: float
    score: Mean
    #: The share of their text that was read.
    coverage: float = 1.0


def mean(parts: Sequence[float] | Numbers, wholes: Sequence[float] | Numbers | None = None) -> Mean:
    """The sum of parts over the sum of wholes (by default 1 each), as accuracy is, and F1.

    Wilson's interval for zeros and ones, which stays honest when all are right; else a bootstrap over examples.
    """
    above = np.asarray(parts, dtype=np.float64)
    below = np.ones_like(above) if wholes is None else np.asarray(wholes, dtype=np.float64)
    if not below.sum():
        return Mean(0.0, 0.0, 1.0, len(above))
    if np.all(below == 1) and np.isin(above, (0, 1)).all():
        return _share(int(above.sum()), len(above))
    found = bootstrap_sums(np.stack([above, below], axis=1), _ratio)
    return Mean(found.value, min(found.low, found.value), max(found.high, found.value), len(above))


def _ratio(sums: Numbers) -> Numbers:
    """Part of whole for each row; 0 where a resample has drawn nothing."""
    return np.divide(sums[:, 0], sums[:, 1], out=np.zeros(len(sums)), where=sums[:, 1] > 0)


def confidences(outcomes: Sequence[Outcome]) -> tuple[Numbers, Numbers]:
    """How sure the model was of each thing it said, and whether it was right; of stretches, each counts."""
    sure: list[float] = []
    right: list[bool] = []
    for outcome in outcomes:
        if isinstance(outcome, TaggedOutcome):
            gold = set(outcome.gold)
            for entity, confidence in zip(outcome.predicted, outcome.confidences, strict=False):
                sure.append(confidence)
                right.append(entity in gold)
        elif outcome.confidence is not None:
            sure.append(outcome.confidence)
            right.append(outcome.right)
    said, hits = np.array(sure, dtype=np.float64), np.array(right, dtype=np.float64)
    known = np.isfinite(said)
    return np.clip(said[known], 0, 1), hits[known]  # a probability may exceed 1 by the last bit


def by_confidence(sure: Numbers, right: Numbers) -> list[Bin]:
    """How often the model is right when it is so sure."""
    found = reliability(sure, right)
    columns = (found.low, found.high, found.confidence, np.rint(found.accuracy * found.count), found.count)
    rows = zip(*(column.tolist() for column in columns), strict=True)
    return [Bin(low, high, middle, _share(int(hits), count)) for low, high, middle, hits, count in rows]


def _share(hits: int, n: int) -> Mean:
    found = share_interval(hits, n)
    return Mean(found.value, found.low, found.high, n)


def by_length(outcomes: Sequence[Outcome]) -> list[Bin]:
    """Scores by the number of tokens: bounds are powers of two, and a bin with few texts joins its neighbour."""
    known = [outcome for outcome in outcomes if outcome.tokens > 0 and parts_of(outcome) is not None]
    if not known:
        return []
    tokens = np.array([outcome.tokens for outcome in known])
    bounds = [0, *(2**power for power in range(4, 40) if 2**power < 2 * max(16, int(tokens.max())))]
    groups: list[tuple[int, int, npt.NDArray[np.bool_]]] = []
    for low, high in pairwise(bounds):
        inside = (tokens > low) & (tokens <= high)
        if groups and (groups[-1][2].sum() < FEW or inside.sum() < FEW):
            low, inside = groups[-1][0], groups.pop()[2] | inside
        groups.append((low, high, inside))
    found = []
    for low, high, inside in groups:
        chosen = [known[index] for index in np.flatnonzero(inside)]
        pairs = [parts for outcome in chosen if (parts := parts_of(outcome)) is not None]
        above, below = [part for part, _ in pairs], [whole for _, whole in pairs]
        score = mean(above, below)
        coverage = float(np.mean([outcome.coverage for outcome in chosen]))
        found.append(Bin(low, high, float(tokens[inside].mean()), score, coverage))
    return found


def parts_of(outcome: Outcome) -> tuple[float, float] | None:
    """What one example adds to a score, above and below the line: accuracy, F1, or the mean absolute error."""
    match outcome:
        case TaggedOutcome():
            common = len(set(outcome.gold) & set(outcome.predicted))
            return 2.0 * common, float(len(set(outcome.gold)) + len(set(outcome.predicted)))
        case QuestionOutcome():
            return outcome.f1, 1.0
        case TextOutcome(gold=float() | int(), predicted=float() | int()):
            return abs(numbers_of(outcome)[0] - numbers_of(outcome)[1]), 1.0
        case TextOutcome(gold=None) | TextOutcome(predicted=None):
            return None
        case _:
            return float(outcome.right), 1.0


def numbers_of(outcome: TextOutcome) -> tuple[float, float]:
    """What the file says and what the model said, as numbers; nan where it is none."""
    gold, predicted = (
        float(value) if isinstance(value, float | int) else float("nan") for value in (outcome.gold, outcome.predicted)
    )
    return gold, predicted


def score_name(evaluation: Evaluation) -> str:
    """What `parts_of` adds up to."""
    match evaluation.problem:
        case "single":
            return "accuracy"
        case "multi":
            return "texts with all labels right"
        case "regression":
            return "mean absolute error"
        case _:
            return "F1"


def is_share(name: str, value: float | None = None) -> bool:
    """Whether a score is a share, to be written in per cent."""
    return not any(part in name.lower() for part in _PLAIN) and (value is None or -1e-9 <= value <= 1 + 1e-9)


def called(name: str) -> str:
    """The name of a score for readers: `macro F1` for `macro_f1`."""
    words = name.replace("_", " ").split(" ")
    return " ".join(_CALLED.get(word, word) for word in words)


def less_is_better(name: str) -> bool:
    """Whether a score is an error of some kind."""
    return any(part in name.lower() for part in _LESS)


def percent(value: float, digits: int = 1) -> str:
    """A share in per cent."""
    return f"{100 * value:.{digits}f}{_SPACE}%"


def written(name: str, value: float | None) -> str:
    """A score as a reader wants it: a share in per cent, another number with a few digits."""
    if value is None:
        return "–"
    return percent(value) if is_share(name, value) else f"{value:.3f}" if abs(value) < 100 else f"{value:,.0f}"


def span(name: str, low: float | None, high: float | None) -> str:
    """An interval, written like its score."""
    if low is None or high is None:
        return "–"
    unit = f"{_SPACE}%" if is_share(name, high) else ""
    return f"{written(name, low).removesuffix(unit) if unit else written(name, low)} – {written(name, high)}"
