from __future__ import annotations

import json

import numpy as np
import pytest
from sklearn.calibration import calibration_curve
from sklearn.metrics import brier_score_loss

from unmask.errors import DataError
from unmask.metrics import brier, expected_calibration_error, reliability


@pytest.mark.parametrize("bins", [1, 2, 7, 15])
def test_bins_of_equal_width_are_those_of_scikit_learn(bins: int) -> None:
    draw = np.random.default_rng(bins)
    confidence = draw.beta(5, 2, 400)
    right = draw.random(400) < confidence**2
    found = reliability(confidence, right, bins)
    accuracy, mean = calibration_curve(right, confidence, n_bins=bins, strategy="uniform")
    assert found.accuracy == pytest.approx(accuracy)
    assert found.confidence == pytest.approx(mean)
    assert found.count.sum() == 400
    assert found.ece == pytest.approx(np.sum(found.count * np.abs(accuracy - mean)) / 400)
    assert found.largest_gap == pytest.approx(np.abs(accuracy - mean).max())
    assert expected_calibration_error(confidence, right, bins) == found.ece


def test_bins_of_equal_mass() -> None:
    draw = np.random.default_rng(0)
    confidence = draw.beta(8, 1, 100)
    right = draw.random(100) < 0.7
    found = reliability(confidence, right, 10, "mass")
    assert found.count.tolist() == [10] * 10
    order = np.argsort(confidence)
    assert found.confidence == pytest.approx(confidence[order].reshape(10, 10).mean(axis=1))
    assert found.accuracy == pytest.approx(right[order].reshape(10, 10).mean(axis=1))
    assert (found.low < found.confidence).all()
    assert (found.confidence <= found.high).all()


def test_equal_confidences_stay_together() -> None:
    confidence, right = np.array([0.2] + [0.9] * 8 + [0.95]), np.array([0] + [1, 0] * 4 + [1])
    first = reliability(confidence, right, 5, "mass")
    again = reliability(confidence[::-1], right[::-1], 5, "mass")
    assert first.count.tolist() == again.count.tolist() == [9, 1]
    assert first.ece == again.ece


def test_edges() -> None:
    found = reliability([0.0, 0.5, 0.50001, 1.0], [0, 1, 1, 1], 2)
    assert found.count.tolist() == [2, 2]
    assert found.low.tolist() == [0.0, 0.5]
    assert found.high.tolist() == [0.5, 1.0]
    assert reliability([0.9], [1], 10).count.tolist() == [1]
    assert reliability([0.3, 0.6], [1, 0], 7, "mass").count.tolist() == [1, 1]


def test_by_hand() -> None:
    found = reliability([0.9, 0.9, 0.9, 0.9, 0.6, 0.6], [1, 1, 0, 0, 1, 1], 10)
    assert found.ece == pytest.approx((4 * 0.4 + 2 * 0.4) / 6)
    data = json.loads(json.dumps(found.as_json()))
    assert data["largest_gap"] == pytest.approx(0.4)
    assert [row["count"] for row in data["bins"]] == [2, 4]


@pytest.mark.parametrize("equal", ["width", "mass"])
def test_a_calibrated_model_has_little_error(equal: str) -> None:
    draw = np.random.default_rng(0)
    confidence = draw.random(50_000)
    right = draw.random(50_000) < confidence
    assert expected_calibration_error(confidence, right, 15, equal) < 0.01  # type: ignore[arg-type]
    assert expected_calibration_error(np.sqrt(confidence), right, 15, equal) == pytest.approx(  # type: ignore[arg-type]
        np.mean(np.sqrt(confidence) - confidence), abs=0.01
    )


def test_brier_is_that_of_scikit_learn() -> None:
    draw = np.random.default_rng(0)
    yes, truth = draw.random(200), draw.integers(0, 2, 200)
    assert brier(yes, truth) == pytest.approx(brier_score_loss(truth, yes))
    assert brier(np.stack([1 - yes, yes], axis=1), truth) == pytest.approx(2 * brier(yes, truth))
    said, labels = draw.dirichlet([1, 2, 3, 4], 200), draw.integers(0, 4, 200)
    theirs = brier_score_loss(labels, said, labels=[0, 1, 2, 3], scale_by_half=False)
    assert brier(said, labels) == pytest.approx(theirs)
    assert brier(np.eye(4)[labels], labels) == 0.0
    assert brier(np.eye(4)[(labels + 1) % 4], labels) == 2.0


def test_what_cannot_be_scored() -> None:
    with pytest.raises(ValueError, match="probabilities from 0 to 1; apply softmax first"):
        reliability([2.3], [1])
    with pytest.raises(ValueError, match="booleans, or 0 and 1"):
        reliability([0.3], [2])
    with pytest.raises(ValueError, match="bins must be at least 1"):
        reliability([0.3], [1], 0)
    with pytest.raises(ValueError, match="width or mass, not 3 and 'size'"):
        reliability([0.3], [1], 3, "size")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="add up to 1; apply softmax first"):
        brier([[1.0, 2.0]], [0])
    with pytest.raises(ValueError, match="integers from 0 to 1"):
        brier([[0.5, 0.5]], [2])
    with pytest.raises(ValueError, match=r"given \(1, 2\) and \(2,\)"):
        brier([[0.5, 0.5]], [0, 1])
    with pytest.raises(DataError, match="nothing to score"):
        reliability([], [])
    with pytest.raises(DataError, match="nothing to score"):
        brier(np.zeros((0, 2)), np.zeros(0, dtype=np.int64))
