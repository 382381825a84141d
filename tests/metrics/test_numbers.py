from __future__ import annotations

import json

import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import metrics as sklearn

from unmask.errors import DataError
from unmask.metrics import mean_absolute_error, mean_squared_error, number_scores, pearson, spearman
from unmask.metrics.numbers import ranks


@given(st.lists(st.tuples(st.integers(-4, 4), st.integers(-4, 4)), min_size=2, max_size=30))
@settings(max_examples=200)
def test_they_agree_with_scipy_and_scikit_learn(pairs: list[tuple[int, int]]) -> None:
    gold, predicted = np.array(pairs).T / 2  # few values, so that there are many ties
    found = number_scores(gold, predicted)
    assert ranks(gold).tolist() == scipy.stats.rankdata(gold).tolist()
    assert found.mean_squared_error == pytest.approx(sklearn.mean_squared_error(gold, predicted), abs=1e-12)
    assert found.mean_absolute_error == pytest.approx(sklearn.mean_absolute_error(gold, predicted), abs=1e-12)
    if len(set(gold)) > 1 and len(set(predicted)) > 1:
        assert found.pearson == pytest.approx(scipy.stats.pearsonr(gold, predicted).statistic, abs=1e-12)
        assert found.spearman == pytest.approx(scipy.stats.spearmanr(gold, predicted).statistic, abs=1e-12)
    else:
        assert found.pearson is None
        assert found.spearman is None


def test_a_constant_has_no_correlation() -> None:
    # The mean of many 0.1 is not 0.1, so that deviations from it are not 0.
    same, other = np.full(1001, 0.1), np.arange(1001.0)
    assert (same - same.mean()).any()
    for first, second in ((same, other), (other, same), (same, same)):
        assert pearson(first, second) is None
        assert spearman(first, second) is None
    assert mean_squared_error(same, same) == 0.0
    assert json.dumps(number_scores(same, other).as_json()).count("null") == 2


def test_one_number_has_no_correlation() -> None:
    assert number_scores([3.0], [5.0]).pearson is None
    assert mean_absolute_error([3.0], [5.0]) == 2.0
    assert mean_squared_error([3.0], [5.0]) == 4.0


@pytest.mark.parametrize("scale", [1e-200, 1e-3, 1.0, 1e200])
def test_scale_and_shift_do_not_matter(scale: float) -> None:
    draw = np.random.default_rng(0)
    gold = draw.normal(size=50)
    predicted = gold + draw.normal(size=50)
    expected = scipy.stats.pearsonr(gold, predicted).statistic
    assert pearson(gold, predicted * scale) == pytest.approx(expected, abs=1e-12)
    assert pearson(gold, -3.0 * predicted + 2.0) == pytest.approx(-expected, abs=1e-12)
    assert spearman(gold, np.exp(predicted)) == pytest.approx(scipy.stats.spearmanr(gold, predicted).statistic)


def test_a_perfect_correlation_is_not_above_one() -> None:
    draw = np.random.default_rng(0)
    for _ in range(100):
        values = draw.normal(size=7)
        assert pearson(values, values * 3 + 1) == pytest.approx(1.0)
        assert (pearson(values, values) or 0.0) <= 1.0


def test_what_cannot_be_scored() -> None:
    with pytest.raises(ValueError, match="predicted value nan of example 1"):
        pearson([1.0, 2.0], [1.0, float("nan")])
    with pytest.raises(ValueError, match=r"gold \(2,\) and predicted \(1,\)"):
        spearman([1.0, 2.0], [1.0])
    with pytest.raises(DataError, match="nothing to score"):
        mean_squared_error([], [])
