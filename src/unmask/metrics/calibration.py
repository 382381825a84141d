"""Whether a model is right as often as it says: reliability, expected calibration error, Brier's score."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from unmask.errors import DataError
from unmask.metrics.scores import Counts, Floats

Equal = Literal["width", "mass"]


@dataclass(frozen=True)
class Reliability:
    """Examples in bins of like confidence; bins that hold nothing are left out."""

    low: Floats  # (bins,): above this …
    high: Floats  # … up to and including this
    confidence: Floats  # the mean of what the model said
    accuracy: Floats  # the share that was right
    count: Counts

    @property
    def ece(self) -> float:
        """Expected calibration error: the mean gap between confidence and accuracy, each bin weighing its examples."""
        return float(np.average(np.abs(self.confidence - self.accuracy), weights=self.count))

    @property
    def largest_gap(self) -> float:
        """The largest gap of any bin (maximum calibration error)."""
        return float(np.abs(self.confidence - self.accuracy).max())

    def as_json(self) -> dict[str, Any]:
        """The same as plain data."""
        names = ("low", "high", "confidence", "accuracy", "count")
        columns = (self.low, self.high, self.confidence, self.accuracy, self.count)
        rows = zip(*(column.tolist() for column in columns), strict=True)
        return {
            "ece": self.ece,
            "largest_gap": self.largest_gap,
            "bins": [dict(zip(names, row, strict=True)) for row in rows],
        }


def reliability(confidence: ArrayLike, right: ArrayLike, bins: int = 15, equal: Equal = "width") -> Reliability:
    """Put (n,) confidences, and whether the model was right, into bins of equal width or with equally many examples.

    A confidence on an edge belongs to the bin below. Equal confidences are never parted, so that bins of equal mass may
    be uneven or fewer than asked for where many examples share one.
    """
    confidence, right = _checked(confidence, right)
    if bins < 1 or equal not in ("width", "mass"):
        raise ValueError(f"bins must be at least 1 and equal be width or mass, not {bins} and {equal!r}")
    if equal == "width":
        edges = np.linspace(0.0, 1.0, bins + 1)
    else:
        places = np.ceil(np.arange(1, bins) * len(confidence) / bins).astype(np.int64) - 1
        edges = np.concatenate([[0.0], np.sort(confidence)[np.maximum(places, 0)], [1.0]])
    which = np.searchsorted(edges[1:-1], confidence, side="left")
    count = np.bincount(which, minlength=bins)
    full = count > 0
    means = [np.bincount(which, weights=values, minlength=bins)[full] / count[full] for values in (confidence, right)]
    return Reliability(edges[:-1][full], edges[1:][full], means[0], means[1], count[full].astype(np.int64))


def expected_calibration_error(
    confidence: ArrayLike,
    right: ArrayLike,
    bins: int = 15,
    equal: Equal = "width",
) -> float:
    """The mean gap between confidence and accuracy."""
    return reliability(confidence, right, bins, equal).ece


def brier(probabilities: ArrayLike, gold: ArrayLike) -> float:
    """The mean squared distance between what was said and what is, 0 best.

    (n,) probabilities of yes against 0 and 1: between 0 and 1. (n, L) probabilities of labels against labels: the sum
    over labels, as Brier defined it, between 0 and 2; for two labels it is twice the former.
    """
    said, labels = np.asarray(probabilities, dtype=np.float64), np.asarray(gold)
    if said.ndim == 1:
        said, labels = _checked(said, labels)
        return float(np.mean((said - labels) ** 2))
    if said.ndim != 2 or labels.shape != said.shape[:1]:
        raise ValueError(f"probabilities are (n,) or (n, L) and gold (n,); given {said.shape} and {labels.shape}")
    if not len(said):
        raise DataError("there is nothing to score: there are no examples")
    if not (np.abs(said.sum(axis=1) - 1) < 1e-3).all() or (said < 0).any():
        raise ValueError("the probabilities of an example are not negative and add up to 1; apply softmax first")
    if labels.dtype.kind not in "iu" or not ((labels >= 0) & (labels < said.shape[1])).all():
        raise ValueError(f"gold labels are integers from 0 to {said.shape[1] - 1}")
    truth = np.eye(said.shape[1])[labels]
    return float(np.mean(((said - truth) ** 2).sum(axis=1)))


def _checked(confidence: ArrayLike, right: ArrayLike) -> tuple[Floats, Floats]:
    confidence, right = np.asarray(confidence, dtype=np.float64), np.asarray(right, dtype=np.float64)
    if confidence.shape != right.shape or confidence.ndim != 1:
        raise ValueError(f"confidence {confidence.shape} and right {right.shape} must have one shape (n,)")
    if not len(confidence):
        raise DataError("there is nothing to score: there are no examples")
    if not ((confidence >= 0) & (confidence <= 1)).all():
        raise ValueError("confidences are probabilities from 0 to 1; apply softmax first")
    if not np.isin(right, (0, 1)).all():
        raise ValueError("whether an answer is right is said by booleans, or 0 and 1")
    return confidence, right
