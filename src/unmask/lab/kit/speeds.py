"""Several ways to do one thing, timed in turn: medians and quartiles."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from unmask.lab.kit.timing import interleaved
from unmask.lab.pictures import Point


class Quartiles(NamedTuple):
    """The middle of several rounds, and where the middle half of them lies."""

    median: float
    low: float
    high: float

    def point(self, x: float) -> Point:
        """For a picture."""
        return Point(x, self.median, self.low, self.high)

    def below(self, other: Quartiles) -> bool:
        """Whether the middle halves do not touch, this one being the smaller."""
        return self.high < other.low


def quartiles(values: Sequence[float], unit: float = 1.0) -> Quartiles:
    """Of values, each divided by a unit."""
    scaled = [value / unit for value in values]
    if len(scaled) < 2:
        return Quartiles(scaled[0], scaled[0], scaled[0])
    low, median, high = statistics.quantiles(scaled, n=4, method="inclusive")
    return Quartiles(median, low, high)


def timed(runs: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, list[float]]:
    """Seconds of each, round by round, after two rounds that do not count."""
    for run in runs.values():
        run()
    return {name: [round(value, 7) for value in found] for name, found in interleaved(runs, rounds).items()}
