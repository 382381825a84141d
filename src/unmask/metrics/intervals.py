"""How sure a score is, and whether two systems differ: resampling of whole examples or documents, never of tokens.

Tokens of a sentence and entities of a document depend on each other; to draw them one by one would make every interval
too narrow. Most scores are made of sums over examples: a mean, or F1 of counts. Then all resamples are one product of
matrices, and 1,000 of 10,000 examples take a fraction of a second. Any other score is computed anew for each resample.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from unmask.errors import DataError
from unmask.metrics.scores import Floats

#: A score of sums over examples: (R, K) sums → (R,) scores, as `f1_of` is.
SumScore = Callable[[Floats], Floats]

_CELLS = 4_000_000  # how many random numbers are held at once


@dataclass(frozen=True)
class Interval:
    """A score and its interval; of intervals made so, from other samples, a share of `level` holds the true score."""

    value: float
    low: float
    high: float
    level: float = 0.95

    def __str__(self) -> str:
        return f"{self.value:.4f} ({self.level:.0%} interval {self.low:.4f} to {self.high:.4f})"

    def as_json(self) -> dict[str, Any]:
        """The same as plain data."""
        return {"value": self.value, "low": self.low, "high": self.high, "level": self.level}


def bootstrap(
    score: Callable[[NDArray[np.int64]], float],
    n: int,
    *,
    resamples: int = 1000,
    seed: int = 0,
    level: float = 0.95,
) -> Interval:
    """The percentile interval of any score: `score(indices)` is asked about n examples drawn with replacement."""
    check(n, resamples, level)
    draw = np.random.default_rng(seed)
    found = np.array([score(draw.integers(0, n, n)) for _ in range(resamples)], dtype=np.float64)
    return interval(score(np.arange(n)), found, level)


def bootstrap_sums(
    values: ArrayLike,
    score: SumScore | None = None,
    *,
    resamples: int = 1000,
    seed: int = 0,
    level: float = 0.95,
) -> Interval:
    """The percentile interval of a mean of (n,) values, or of a score of the sums of (n, K) values, quickly.

    `bootstrap_sums(right)` for accuracy, `bootstrap_sums(counts, f1_of)` for F1 from (n, 3) counts of documents. Where
    all values are the same the interval has no width, which says that the sample is too small to tell and not that the
    score is sure; for a share of right answers `share_interval` knows better.
    """
    values = as_columns(values)
    check(len(values), resamples, level)
    score = mean_of(len(values)) if score is None else score
    found = score(resampled_sums(values, resamples, seed))
    return interval(float(score(values.sum(axis=0, keepdims=True))[0]), found, level)


def share_interval(right: int, total: int, level: float = 0.95) -> Interval:
    """Wilson's interval of a share, which has a width also where all answers are right or all are wrong."""
    from statistics import NormalDist

    check(total, 1, level)
    if not 0 <= right <= total:
        raise ValueError(f"{right} of {total} is no share")
    z, share = NormalDist().inv_cdf((1 + level) / 2), right / total
    scale = 1 + z * z / total
    middle = (share + z * z / (2 * total)) / scale
    half = z / scale * math.sqrt(share * (1 - share) / total + z * z / (4 * total * total))
    low = 0.0 if not right else max(0.0, middle - half)
    high = 1.0 if right == total else min(1.0, middle + half)
    return Interval(share, low, high, level)


def resampled_sums(values: Floats, resamples: int, seed: int) -> Floats:
    """The sums of `resamples` samples of all n rows of (n, K) values, drawn with replacement, (resamples, K)."""
    draw, n = np.random.default_rng(seed), len(values)
    parts = []
    for rows in chunks(resamples, n):
        drawn = draw.integers(0, n, (rows, n), dtype=np.int32 if n < 2**31 else np.int64)
        # How often each example was drawn: bincount over all resamples at once, each with its own range of numbers.
        drawn = drawn.astype(np.int64) + n * np.arange(rows)[:, None]
        parts.append(np.bincount(drawn.ravel(), minlength=rows * n).reshape(rows, n).astype(np.float64) @ values)
    return np.concatenate(parts)


def mean_of(n: int) -> SumScore:
    """The score that is the mean of n values."""
    return lambda sums: sums[:, 0] / n


def as_columns(values: ArrayLike) -> Floats:
    """(n,) or (n, K) values as (n, K) floats."""
    values = np.asarray(values, dtype=np.float64)
    values = values[:, None] if values.ndim == 1 else values
    if values.ndim != 2:
        raise ValueError(f"values are (n,), or (n, K) to be summed; given {values.shape}")
    if not np.isfinite(values).all():
        raise ValueError("values must be finite numbers")
    return values


def interval(value: float, found: Floats, level: float) -> Interval:
    """The middle `level` of what resamples gave."""
    if not np.isfinite(found).all():
        raise ValueError("the score of a resample is no finite number; let the score give one for every sample")
    low, high = np.quantile(found, [(1 - level) / 2, (1 + level) / 2])
    return Interval(float(value), float(low), float(high), level)


def chunks(rows: int, width: int) -> Iterator[int]:
    """`rows` in parts that fit into memory, each row being `width` wide."""
    size = max(1, _CELLS // max(1, width))
    while rows > 0:
        yield min(size, rows)
        rows -= size


def check(n: int, resamples: int, level: float) -> None:
    """What every resampling needs."""
    if n < 1:
        raise DataError("there is nothing to resample: there are no examples")
    if resamples < 1 or not 0 < level < 1:
        raise ValueError(f"at least one resample and a level between 0 and 1 are needed, not {resamples} and {level}")
