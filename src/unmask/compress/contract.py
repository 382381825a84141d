"""The contract: what a smaller model may lose at most, measured on the user's own examples by a paired test."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from unmask.compress.settings import Contract
from unmask.metrics.compare import Comparison
from unmask.tasks.compare import compare
from unmask.tasks.scoring import Scored


@dataclass(frozen=True)
class Verdict:
    """Whether a smaller model keeps the contract."""

    metric: str
    before: float
    after: float
    comparison: Comparison  # how much higher the model scored before
    contract: Contract

    @property
    def drop(self) -> float:
        """Points of the score that were lost; negative: gained."""
        return 100 * self.comparison.difference

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % interval of that loss."""
        return 100 * self.comparison.low, 100 * self.comparison.high

    @property
    def kept(self) -> bool:
        """Whether no more was lost than may be; a hair of rounding is forgiven."""
        worst = self.interval[1] if self.contract.sure else self.drop
        return worst <= self.contract.max_drop + 1e-9

    @property
    def sentence(self) -> str:
        """The result in one sentence."""
        low, high = self.interval
        lost = f"{'loses' if self.drop > 0 else 'gains'} {abs(self.drop):.2f} points"
        allowed = f"{self.contract.max_drop:g}"
        what = "surely at most" if self.contract.sure else "at most"
        p = "< 0.0001" if self.comparison.p < 0.0001 else f"= {self.comparison.p:.3f}"
        return (
            f"{lost} of {self.metric} ({100 * self.before:.2f} → {100 * self.after:.2f}; 95 % interval of the loss "
            f"{low:+.2f} to {high:+.2f}, p {p}), {what} {allowed} allowed: {'kept' if self.kept else 'refused'}"
        )

    def as_json(self) -> dict[str, Any]:
        """Plain data, in points."""
        low, high = self.interval
        return {
            "metric": self.metric,
            "before": 100 * self.before,
            "after": 100 * self.after,
            "drop": self.drop,
            "drop_low": low,
            "drop_high": high,
            "p": self.comparison.p,
            "test": self.comparison.test,
            "max_drop": self.contract.max_drop,
            "sure": self.contract.sure,
            "kept": self.kept,
        }


def judge(before: Scored, after: Scored, contract: Contract) -> Verdict:
    """Compare what two models said of the same examples."""
    _, found = compare(before, after, ("the model as it was", "the smaller one"))
    metric = next(iter(before.scores))
    values = [next(iter(scored.scores.values())).value or 0.0 for scored in (before, after)]
    return Verdict(metric, values[0], values[1], found, contract)
