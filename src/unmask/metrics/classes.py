"""Predicted classes against gold ones: one label an example, or a set of labels.

All values agree with scikit-learn's, called with labels=range(num_labels) and zero_division=0. So the macro average
runs over every label of the task, also over one that the data at hand never shows (its F1 is 0), and scores of
different samples of a task can be compared.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from unmask.errors import DataError
from unmask.metrics.scores import Counts, Score, ScoreTable, f1_of


@dataclass(frozen=True)
class ClassScores:
    """All that is said of single labels."""

    confusion: Counts  # (L, L): row is gold, column is predicted
    table: ScoreTable

    @property
    def total(self) -> int:
        """How many examples there are."""
        return int(self.confusion.sum())

    @property
    def accuracy(self) -> float:
        """The share of right answers; with one label an example, micro F1 is the same."""
        return float(np.trace(self.confusion) / self.total)

    @property
    def mcc(self) -> float:
        """Matthews' correlation, for any number of classes; 0 where gold or prediction knows only one class."""
        return matthews(self.confusion)

    def as_json(self) -> dict[str, Any]:
        """The same as plain data."""
        return {
            "total": self.total,
            "accuracy": self.accuracy,
            "mcc": self.mcc,
            "micro": self.table.micro.as_json(),
            "macro": self.table.macro.as_json(),
            "weighted": self.table.weighted.as_json(),
            "classes": [self.table[label].as_json() for label in range(len(self.table))],
            "confusion": self.confusion.tolist(),
        }


@dataclass(frozen=True)
class LabelSetScores:
    """All that is said of sets of labels."""

    total: int
    subset_accuracy: float  # the share of examples whose whole set is right
    sample_f1: float  # the mean of each example's own F1
    table: ScoreTable

    @property
    def micro(self) -> Score:
        """All pairs of example and label counted together."""
        return self.table.micro

    @property
    def macro(self) -> Score:
        """The mean over labels."""
        return self.table.macro

    def as_json(self) -> dict[str, Any]:
        """The same as plain data."""
        return {
            "total": self.total,
            "subset_accuracy": self.subset_accuracy,
            "sample_f1": self.sample_f1,
            "micro": self.micro.as_json(),
            "macro": self.macro.as_json(),
            "weighted": self.table.weighted.as_json(),
            "classes": [self.table[label].as_json() for label in range(len(self.table))],
        }


def class_scores(gold: ArrayLike, predicted: ArrayLike, num_labels: int) -> ClassScores:
    """Accuracy, Matthews' correlation, precision, recall and F1 of (n,) labels from 0 to num_labels − 1."""
    confusion = confusion_matrix(gold, predicted, num_labels)
    table = ScoreTable(np.stack([confusion.diagonal(), confusion.sum(axis=0), confusion.sum(axis=1)], axis=1))
    return ClassScores(confusion, table)


def accuracy(gold: ArrayLike, predicted: ArrayLike) -> float:
    """The share of right answers."""
    gold, predicted = _same(gold, predicted, 1)
    return float(np.mean(gold == predicted))


def confusion_matrix(gold: ArrayLike, predicted: ArrayLike, num_labels: int) -> Counts:
    """How often each gold label (row) was answered by each label (column), (L, L)."""
    gold, predicted = _same(gold, predicted, 1)
    for name, labels in (("gold", gold), ("predicted", predicted)):
        if labels.dtype.kind not in "iub":
            raise ValueError(f"{name} labels are integers; given {labels.dtype}")
        # Not `gold * L + predicted` on whatever comes: a label outside would be counted as another one.
        wrong = np.flatnonzero((labels < 0) | (labels >= num_labels))
        if len(wrong):
            raise ValueError(f"{name} label {labels[wrong[0]]} of example {wrong[0]} is not in 0 … {num_labels - 1}")
    cells = gold.astype(np.int64) * num_labels + predicted.astype(np.int64)
    return np.bincount(cells, minlength=num_labels**2).astype(np.int64).reshape(num_labels, num_labels)


def matthews(confusion: Counts) -> float:
    """Matthews' correlation of a confusion matrix; 0 where gold or prediction knows only one class."""
    # Python's integers: products of counts of large sets do not fit into 64 bits.
    gold, predicted = ([int(count) for count in confusion.sum(axis=axis)] for axis in (1, 0))
    total, right = sum(gold), int(np.trace(confusion))
    expected = sum(a * b for a, b in zip(gold, predicted, strict=True))
    spread = (total**2 - sum(a * a for a in gold)) * (total**2 - sum(b * b for b in predicted))
    return (right * total - expected) / math.sqrt(spread) if spread else 0.0


def label_set_scores(gold: ArrayLike, predicted: ArrayLike) -> LabelSetScores:
    """Scores of sets of labels, given as (n, L) booleans: whether an example has a label.

    An example whose gold and predicted sets are both empty is right as a set but has a sample F1 of 0, as in
    scikit-learn.
    """
    gold, predicted = _same(gold, predicted, 2)
    for name, labels in (("gold", gold), ("predicted", predicted)):
        if labels.dtype != np.bool_ and not np.isin(labels, (0, 1)).all():
            raise ValueError(f"{name} label sets are booleans, or 0 and 1; cut probabilities at a threshold first")
    gold, predicted = gold.astype(np.bool_), predicted.astype(np.bool_)
    cells = np.stack([gold & predicted, predicted, gold], axis=2)  # (n, L, 3)
    return LabelSetScores(
        total=len(gold),
        subset_accuracy=float((gold == predicted).all(axis=1).mean()),
        sample_f1=float(f1_of(cells.sum(axis=1)).mean()),
        table=ScoreTable(cells.sum(axis=0)),
    )


def _same(gold: ArrayLike, predicted: ArrayLike, axes: int) -> tuple[np.ndarray, np.ndarray]:
    """Both as arrays, of one shape and not empty."""
    gold, predicted = np.asarray(gold), np.asarray(predicted)
    if gold.shape != predicted.shape or gold.ndim != axes:
        raise ValueError(f"gold {gold.shape} and predicted {predicted.shape} must have one shape of {axes} axes")
    if not len(gold):
        raise DataError("there is nothing to score: no example has a gold label")
    return gold, predicted
