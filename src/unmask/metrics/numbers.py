"""Predicted numbers against gold ones: how alike they are ordered, and how far they are apart."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from unmask.errors import DataError
from unmask.metrics.scores import Floats


@dataclass(frozen=True)
class NumberScores:
    """All that is said of numbers. A correlation is None where gold or prediction is the same everywhere."""

    total: int
    pearson: float | None
    spearman: float | None
    mean_squared_error: float
    mean_absolute_error: float

    def as_json(self) -> dict[str, Any]:
        """The same as plain data."""
        return {
            "total": self.total,
            "pearson": self.pearson,
            "spearman": self.spearman,
            "mean_squared_error": self.mean_squared_error,
            "mean_absolute_error": self.mean_absolute_error,
        }


def number_scores(gold: ArrayLike, predicted: ArrayLike) -> NumberScores:
    """Both correlations and both errors of (n,) numbers."""
    return NumberScores(
        total=len(np.asarray(gold)),
        pearson=pearson(gold, predicted),
        spearman=spearman(gold, predicted),
        mean_squared_error=mean_squared_error(gold, predicted),
        mean_absolute_error=mean_absolute_error(gold, predicted),
    )


def pearson(gold: ArrayLike, predicted: ArrayLike) -> float | None:
    """The linear correlation; None where either is the same everywhere.

    It is then undefined, and a 0 would say that something was measured. None is null in JSON and makes callers choose.
    """
    gold, predicted = _same(gold, predicted)
    first, second = _direction(gold), _direction(predicted)
    if first is None or second is None:
        return None
    return float(np.clip(first @ second, -1.0, 1.0))


def spearman(gold: ArrayLike, predicted: ArrayLike) -> float | None:
    """The correlation of ranks, equal values sharing their mean rank; None where either is the same everywhere."""
    gold, predicted = _same(gold, predicted)
    return pearson(ranks(gold), ranks(predicted))


def mean_squared_error(gold: ArrayLike, predicted: ArrayLike) -> float:
    """The mean of squared differences."""
    gold, predicted = _same(gold, predicted)
    return float(np.mean((gold - predicted) ** 2))


def mean_absolute_error(gold: ArrayLike, predicted: ArrayLike) -> float:
    """The mean of absolute differences."""
    gold, predicted = _same(gold, predicted)
    return float(np.mean(np.abs(gold - predicted)))


def ranks(values: ArrayLike) -> Floats:
    """The rank of each value, from 1; equal values get the mean of the ranks that they take up."""
    _, which, counts = np.unique(np.asarray(values), return_inverse=True, return_counts=True)
    return np.asarray((np.cumsum(counts) - (counts - 1) / 2)[which])


def _direction(values: Floats) -> Floats | None:
    """Deviations from the mean as a vector of length 1; None if there are none."""
    # Asked of the values and not of the deviations, which rounding keeps from being exactly 0.
    if values.min() == values.max():
        return None
    values = values / np.abs(values).max()  # squares of very large or small numbers would leave the range of floats
    deviations = values - values.mean()
    length = np.linalg.norm(deviations)
    return deviations / length if length else None


def _same(gold: ArrayLike, predicted: ArrayLike) -> tuple[Floats, Floats]:
    """Both as arrays, of one length, finite and not empty."""
    gold, predicted = np.asarray(gold, dtype=np.float64), np.asarray(predicted, dtype=np.float64)
    if gold.shape != predicted.shape or gold.ndim != 1:
        raise ValueError(f"gold {gold.shape} and predicted {predicted.shape} must have one shape (n,)")
    if not len(gold):
        raise DataError("there is nothing to score: no example has a gold value")
    for name, values in (("gold", gold), ("predicted", predicted)):
        wrong = np.flatnonzero(~np.isfinite(values))
        if len(wrong):
            raise ValueError(f"{name} value {values[wrong[0]]} of example {wrong[0]} is no finite number")
    return gold, predicted
