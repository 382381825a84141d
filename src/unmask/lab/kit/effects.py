"""What differences over seeds say."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from unmask.lab.entry import Record, Verdict
from unmask.lab.pictures import Point
from unmask.train.seeds import summary


class Effect(NamedTuple):
    """A mean over seeds with its 95 % interval (Student's t)."""

    mean: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.mean:.3f} ({self.low:.3f} – {self.high:.3f})"

    def signed(self, digits: int = 3) -> str:
        """A difference, with its sign."""
        return f"{self.mean:+.{digits}f} ({self.low:+.{digits}f} – {self.high:+.{digits}f})"

    def point(self, x: float) -> Point:
        """For a picture."""
        return Point(x, self.mean, self.low, self.high)


def spread(values: Iterable[float]) -> Effect:
    """Mean and interval of values, one a seed."""
    found = summary(list(values))
    low, high = found.low, found.high
    return Effect(found.mean, found.mean if low is None else low, found.mean if high is None else high)


def paired(first: Sequence[float], second: Sequence[float]) -> Effect:
    """How much more the first is than the second, seed by seed."""
    return spread(a - b for a, b in zip(first, second, strict=True))


def sided(effect: Effect, margin: float = 0.0) -> Verdict:
    """On the claim that an effect is positive, by more than a margin."""
    if effect.low > margin:
        return Verdict.SUPPORTED
    return Verdict.NOT_SUPPORTED if effect.high < margin else Verdict.NOT_VISIBLE


def by_seed(records: Mapping[str, Record], arm: str, value: str) -> list[float]:
    """A value of an arm's trials, in the order of their seeds; trials are named "arm, seed 0"."""
    found = []
    for seed in range(len(records)):
        record = records.get(named(arm, seed))
        if record is None:
            break
        found.append(float(record[value]))
    return found


def named(arm: str, seed: int) -> str:
    """The name of an arm's trial."""
    return f"{arm}, seed {seed}"
