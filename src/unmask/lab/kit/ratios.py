"""How many times as long one thing takes as another, from rounds in which both took turns."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from unmask.lab.entry import Verdict
from unmask.lab.kit.effects import Effect
from unmask.metrics.intervals import bootstrap


def ratio_of(seconds: Sequence[float], base: Sequence[float]) -> Effect:
    """The median of one divided by that of the other, with a 95 % interval: rounds are drawn anew, both together."""
    some, other = np.asarray(seconds), np.asarray(base)

    def ratio(rounds: NDArray[np.int64]) -> float:
        return float(np.median(some[rounds]) / np.median(other[rounds]))

    found = bootstrap(ratio, len(some))
    return Effect(found.value, found.low, found.high)


def conclude_faster(ratio: Effect) -> Verdict:
    """On the claim that the first takes less time."""
    if ratio.high < 1:
        return Verdict.SUPPORTED
    return Verdict.NOT_SUPPORTED if ratio.low > 1 else Verdict.NOT_VISIBLE
