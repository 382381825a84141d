"""Do two systems differ? Asked on the same examples, so that what is hard for both does not blur the answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from unmask.metrics.intervals import SumScore, as_columns, check, chunks, interval, mean_of, resampled_sums
from unmask.metrics.scores import Floats

#: With so few examples that differ, all ways to swap them are tried.
_ALL_SWAPS = 14


@dataclass(frozen=True)
class Comparison:
    """How much higher the first system scores than the second, and how likely so much is by chance."""

    difference: float
    low: float
    high: float
    p: float  # two-sided
    level: float
    test: str  # how p was found
    names: tuple[str, str] = ("the first", "the second")

    @property
    def differs(self) -> bool:
        """Whether p and the interval both say so."""
        return self.p < 1 - self.level and not self.low <= 0 <= self.high

    @property
    def verdict(self) -> str:
        """The result in one sentence."""
        first, second = self.names
        numbers = (
            f"{self.difference:+.4f}, {self.level:.0%} interval {self.low:+.4f} to {self.high:+.4f}, "
            f"{_p_value(self.p)}, {self.test}"
        )
        if self.differs:
            word = "higher" if self.difference > 0 else "lower"
            return f"{_capital(first)} scores {word} than {second} ({numbers})."
        if self.p < 1 - self.level or not self.low <= 0 <= self.high:
            return f"It is undecided whether {first} and {second} differ: test and interval disagree ({numbers})."
        return f"No difference between {first} and {second} is shown ({numbers})."

    def as_json(self) -> dict[str, Any]:
        """The same as plain data."""
        return {
            "difference": self.difference,
            "low": self.low,
            "high": self.high,
            "p": self.p,
            "level": self.level,
            "test": self.test,
            "verdict": self.verdict,
        }


def paired_test(
    a: ArrayLike,
    b: ArrayLike,
    score: SumScore | None = None,
    *,
    resamples: int = 10_000,
    seed: int = 0,
    level: float = 0.95,
    names: tuple[str, str] = ("the first", "the second"),
) -> Comparison:
    """Compare what two systems got on the same n examples: (n,) marks, or (n, K) values and a score of their sums.

    The interval is that of the difference in samples drawn with replacement. p is the share of differences at least as
    large when, for each example, chance decides which result is whose: all ways if few examples differ, else
    `resamples` of them. For marks that are right or wrong it is McNemar's exact test, which is the same in closed form.
    """
    first, second = as_columns(a), as_columns(b)
    if first.shape != second.shape:
        raise ValueError(f"both systems need results on the same examples; given {first.shape} and {second.shape}")
    if score is None and first.shape[1] != 1:
        raise ValueError(f"{first.shape[1]} values an example need a score of their sums, such as f1_of")
    n = len(first)
    check(n, resamples, level)
    right_or_wrong = score is None and bool(np.isin(np.stack([first, second]), (0, 1)).all())
    score = mean_of(n) if score is None else score
    width = first.shape[1]
    sums = resampled_sums(np.concatenate([first, second], axis=1), resamples, seed)
    total = np.concatenate([first, second], axis=1).sum(axis=0, keepdims=True)
    difference = float(_difference(score, total, width)[0])
    found = interval(difference, _difference(score, sums, width), level)
    if right_or_wrong:
        p, test = mcnemar(first[:, 0], second[:, 0]), "McNemar's exact test"
    else:
        p, test = _swap_test(first, second, score, resamples, seed + 1)
    return Comparison(difference, found.low, found.high, p, level, test, names)


def mcnemar(a: ArrayLike, b: ArrayLike) -> float:
    """The exact two-sided p of McNemar's test: of the examples that only one system got right, who got how many."""
    from scipy.stats import binom

    first, second = np.asarray(a, dtype=np.bool_), np.asarray(b, dtype=np.bool_)
    only_first, only_second = int((first & ~second).sum()), int((second & ~first).sum())
    either = only_first + only_second
    return min(1.0, 2 * float(binom.cdf(min(only_first, only_second), either, 0.5))) if either else 1.0


def _swap_test(first: Floats, second: Floats, score: SumScore, resamples: int, seed: int) -> tuple[float, str]:
    """The share of ways to swap results between systems that part them at least as much, and the name of the test."""
    # Where both systems got the same, a swap changes nothing.
    unlike = (first != second).any(axis=1)
    change = (second - first)[unlike]
    few = len(change) <= _ALL_SWAPS
    total = np.concatenate([first, second], axis=1).sum(axis=0)
    width = first.shape[1]
    observed = abs(float(_difference(score, total[None], width)[0]))
    # The same difference, summed in another order, must count as the same.
    slack = 1e-9 * observed + 1e-12 * float(np.abs(score(total.reshape(2, width))).max())
    draw = np.random.default_rng(seed)
    as_large, tried = 0, 2 ** len(change) if few else resamples
    for rows in [tried] if few else chunks(resamples, len(change)):
        swaps = _all_swaps(len(change)) if few else draw.integers(0, 2, (rows, len(change)), dtype=np.int8)
        moved = swaps.astype(np.float64) @ change
        found = np.abs(_difference(score, total + np.concatenate([moved, -moved], axis=1), width))
        as_large += int((found >= observed - slack).sum())
    if few:
        return as_large / tried, "exact permutation test"
    return (as_large + 1) / (tried + 1), f"permutation test of {tried:,} draws"


def _all_swaps(n: int) -> Floats:
    """Every row of n zeros and ones, (2ⁿ, n)."""
    return ((np.arange(2**n)[:, None] >> np.arange(n)) & 1).astype(np.float64)


def _difference(score: SumScore, sums: Floats, width: int) -> Floats:
    """The first system's score less the second's, from (R, 2 · K) sums of both."""
    return score(sums[:, :width]) - score(sums[:, width:])


def _p_value(p: float) -> str:
    return "p < 0.0001" if p < 0.0001 else f"p = {p:.4f}"


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:] if text.startswith("the ") else text
