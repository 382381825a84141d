"""Precision, recall and F1 from three counts, the arithmetic that classes, label sets and entities share.

Every score of this room is a share between 0 and 1 (correlations: −1 and 1); whoever shows it makes percentages of it.
A share of nothing is 0: the precision of a class that was never predicted, the recall of one that never occurs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]
Counts = NDArray[np.int64]


@dataclass(frozen=True)
class Score:
    """How well one class was found, or several on average."""

    precision: float
    recall: float
    f1: float
    support: int  # how many there are in the gold standard

    def as_json(self) -> dict[str, Any]:
        """The same as plain data."""
        return {"precision": self.precision, "recall": self.recall, "f1": self.f1, "support": self.support}


@dataclass(frozen=True)
class ScoreTable:
    """Precision, recall and F1 of C classes, one row each, and their averages."""

    counts: Counts  # (C, 3): correct, predicted, gold

    def __len__(self) -> int:
        return len(self.counts)

    def __getitem__(self, row: int) -> Score:
        values = self._values[row]
        return Score(float(values[0]), float(values[1]), float(values[2]), int(self.counts[row, 2]))

    @property
    def support(self) -> int:
        """How many there are in the gold standard, all classes together."""
        return int(self.counts[:, 2].sum())

    @property
    def micro(self) -> Score:
        """All classes counted together, so that frequent ones decide."""
        return ScoreTable(self.counts.sum(axis=0, keepdims=True))[0]

    @property
    def macro(self) -> Score:
        """The plain mean over classes, so that each counts the same."""
        return self._averaged(np.ones(len(self)))

    @property
    def weighted(self) -> Score:
        """The mean over classes, each weighing as much as it has gold members."""
        return self._averaged(self.counts[:, 2].astype(np.float64))

    @property
    def _values(self) -> Floats:
        correct, predicted, gold = self.counts.T
        return np.stack([ratio(correct, predicted), ratio(correct, gold), f1_of(self.counts)], axis=1)

    def _averaged(self, weights: Floats) -> Score:
        if not weights.sum():
            return Score(0.0, 0.0, 0.0, self.support)
        precision, recall, f1 = (float(value) for value in np.average(self._values, axis=0, weights=weights))
        return Score(precision, recall, f1, self.support)


def ratio(part: ArrayLike, whole: ArrayLike) -> Floats:
    """part / whole, and 0 where there is nothing to take a share of."""
    part, whole = np.asarray(part, dtype=np.float64), np.asarray(whole, dtype=np.float64)
    return np.divide(part, whole, out=np.zeros(np.broadcast(part, whole).shape), where=whole != 0)


def f1_of(counts: ArrayLike) -> Floats:
    """F1 from (…, 3) counts of correct, predicted and gold; with sums over documents this is the micro average."""
    counts = np.asarray(counts)
    return ratio(2 * counts[..., 0], counts[..., 1] + counts[..., 2])


def macro_f1_of(counts: ArrayLike) -> Floats:
    """The mean F1 of C classes from (…, 3 · C) counts: correct, predicted, gold of the first class, then the next."""
    counts = np.asarray(counts)
    return np.asarray(f1_of(counts.reshape(*counts.shape[:-1], -1, 3)).mean(axis=-1))


def macro_f1_within(whole: ArrayLike) -> Callable[[ArrayLike], Floats]:
    """Macro F1 for samples of a set that has these counts (3 · C): as `macro_f1_of` for the set itself.

    A rare class that a sample happens not to draw says nothing there: counted as 0 it would pull an interval down.
    """
    there = np.asarray(whole).reshape(-1, 3).any(axis=-1)

    def score(counts: ArrayLike) -> Floats:
        counts = np.asarray(counts)
        classes = counts.reshape(*counts.shape[:-1], -1, 3)
        return ratio(f1_of(classes).sum(-1), (classes.any(axis=-1) | ~there).sum(-1))

    return score
