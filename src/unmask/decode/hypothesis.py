"""A decoded sequence, and the score by which those of one source are compared."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import assert_never

from torch import Tensor

from unmask.decode.settings import DecodeSettings

#: A source token that nobody looked at at all would cost infinitely much; no attention is known better than this.
_LEAST_COVERAGE = 1e-10


@dataclass(frozen=True)
class Hypothesis:
    """A decoded sequence, without its start and end tokens, and the sum of its log probabilities.

    `score` is what outputs are ranked by; `finished` is false where the length limit cut it off before its end token.
    """

    ids: list[int]
    log_probability: float
    score: float = 0.0
    finished: bool = True

    @property
    def rank(self) -> tuple[bool, float, list[int]]:
        """Sorts the best first: finished ones before others, then by score, and equal ones by their ids."""
        return (not self.finished, -self.score, self.ids)


def length_divisor(length: int, settings: DecodeSettings) -> float:
    """What the log probability of `length` tokens is divided by; grows with the length."""
    match settings.length_formula:
        case "gnmt":
            return ((5 + length) / 6) ** settings.length_penalty
        case "plain":
            return length**settings.length_penalty
        case _:
            assert_never(settings.length_formula)


def score(log_probability: float, length: int, settings: DecodeSettings, coverage: Tensor | None = None) -> float:
    """The score of a hypothesis of `length` tokens; `coverage` (S,) is how much each source token was looked at."""
    found = log_probability / length_divisor(length, settings)
    if coverage is None:
        return found
    seen = coverage.double().clamp(_LEAST_COVERAGE, 1.0)
    return found + settings.coverage_penalty * math.fsum(seen.log().tolist())


def best_possible(log_probability: float, limit: int, settings: DecodeSettings) -> float:
    """The best score that a hypothesis under way can still reach, if all its further tokens were certain.

    A log probability is negative and only falls, so the greatest divisor is the kindest, which is that of the limit;
    coverage can rise to 1 everywhere, where it costs nothing.
    """
    return log_probability / length_divisor(limit, settings)
