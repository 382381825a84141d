"""Seconds, honestly: several things in turn, the best of several rounds each."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence

from unmask.train.seeds import summary


def interleaved(runs: Mapping[str, Callable[[], object]], rounds: int = 5) -> dict[str, list[float]]:
    """Seconds of each, round by round; all run in turn, so that a busy machine hurts all alike."""
    for run in runs.values():
        run()
    found: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(rounds):
        for name, run in runs.items():
            began = time.perf_counter()
            run()
            found[name].append(time.perf_counter() - began)
    return found


def exponent(sizes: Sequence[float], seconds: Sequence[Sequence[float]]) -> tuple[float, float, float]:
    """p in seconds ∝ size^p, by least squares on logarithms, round by round, with its 95 % interval."""
    logs = [math.log(size) for size in sizes]
    middle = sum(logs) / len(logs)
    slopes = []
    for number in range(min(map(len, seconds))):
        heights = [math.log(one[number]) for one in seconds]
        level = sum(heights) / len(heights)
        slopes.append(
            sum((x - middle) * (y - level) for x, y in zip(logs, heights, strict=True))
            / sum((x - middle) ** 2 for x in logs)
        )
    found = summary(slopes)
    low, high = found.low, found.high
    return found.mean, found.mean if low is None else low, found.mean if high is None else high
