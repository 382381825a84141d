"""What may be lost: figures against counts by hand, the point of refusal, and what is drawn."""

from __future__ import annotations

import pytest

from unmask.compress.contract import judge
from unmask.compress.report import front
from unmask.compress.settings import Contract
from unmask.metrics.compare import mcnemar
from unmask.report.outcome import Score, TextOutcome
from unmask.tasks.scoring import Scored
from unmask.tasks.usage import Usage


def scored(right: list[int]) -> Scored:
    outcomes = tuple(
        TextOutcome(text=f"text {number}", gold="a", predicted="a" if one else "b") for number, one in enumerate(right)
    )
    share = sum(right) / len(right)
    return Scored("single", Usage(task="classify"), {"accuracy": Score(share, 0.0, 1.0, len(right))}, outcomes=outcomes)


BEFORE = scored([1] * 90 + [0] * 10)
AFTER = scored([1] * 86 + [0] * 4 + [1] * 2 + [0] * 8)  # four lost, two won


def test_figures_by_hand() -> None:
    found = judge(BEFORE, AFTER, Contract(max_drop=2.0))
    assert found.metric == "accuracy"
    assert found.drop == pytest.approx(2.0)
    assert found.comparison.p == pytest.approx(mcnemar([1] * 4 + [0] * 2, [0] * 4 + [1] * 2))
    low, high = found.interval
    assert low < 0 < 2.0 < high < 10
    assert found.kept  # two points lost, two allowed
    assert "loses 2.00 points of accuracy (90.00 → 88.00; 95 % interval of the loss" in found.sentence
    assert found.sentence.endswith("at most 2 allowed: kept")
    assert found.as_json()["drop"] == pytest.approx(2.0)


@pytest.mark.parametrize(("allowed", "sure", "kept"), [(1.9, False, False), (2.0, True, False), (10.0, True, True)])
def test_refused_beyond_what_is_allowed(allowed: float, sure: bool, kept: bool) -> None:
    found = judge(BEFORE, AFTER, Contract(max_drop=allowed, sure=sure))
    assert found.kept == kept
    assert ("refused" in found.sentence) == (not kept)
    assert ("surely" in found.sentence) == sure


def test_what_gains_is_kept() -> None:
    found = judge(AFTER, BEFORE, Contract(max_drop=0.0))
    assert found.kept
    assert "gains 2.00 points" in found.sentence


def test_the_line_joins_what_nothing_beats() -> None:
    points = [(5.0, 90.0), (4.0, 91.0), (2.0, 88.0), (3.0, 85.0), (9.0, 91.0)]
    assert front(points, least=True) == [(2.0, 88.0), (4.0, 91.0)]
    assert front(points, least=False) == [(9.0, 91.0)]
