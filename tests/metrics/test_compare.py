from __future__ import annotations

import itertools
import json

import numpy as np
import pytest
import scipy.stats

from unmask.metrics import f1_of, mcnemar, paired_test
from unmask.metrics.compare import Comparison


def test_mcnemar_is_a_binomial_test() -> None:
    draw = np.random.default_rng(0)
    for n in (1, 5, 40, 300):
        a, b = draw.random((2, n)) < 0.7
        only = [int((a & ~b).sum()), int((b & ~a).sum())]
        expected = scipy.stats.binomtest(only[0], sum(only), 0.5).pvalue if sum(only) else 1.0
        assert mcnemar(a, b) == pytest.approx(expected)
        assert paired_test(a, b, resamples=50).p == mcnemar(a, b)


def test_few_differences_are_permuted_in_every_way() -> None:
    draw = np.random.default_rng(0)
    for n in (3, 6, 10):
        a, b = draw.normal(size=(2, n))
        found = paired_test(a, b, resamples=100)
        theirs = scipy.stats.permutation_test(
            (a, b), lambda x, y: np.mean(x - y), permutation_type="samples", n_resamples=np.inf
        )
        assert found.p == pytest.approx(theirs.pvalue)
        assert found.test == "exact permutation test"
        assert found.difference == pytest.approx(a.mean() - b.mean())


def test_many_differences_are_permuted_at_random() -> None:
    draw = np.random.default_rng(1)
    a = draw.normal(size=60)
    b = a + draw.normal(-0.25, 1.0, 60)
    found = paired_test(a, b)
    assert found.p == pytest.approx(scipy.stats.ttest_rel(a, b).pvalue, abs=0.015)
    assert found.test == "permutation test of 10,000 draws"


def test_f1_is_permuted_by_documents() -> None:
    draw = np.random.default_rng(0)
    gold = draw.integers(1, 4, 8)
    sides = []
    for _ in range(2):
        predicted = draw.integers(1, 4, 8)
        sides.append(np.stack([draw.integers(0, np.minimum(gold, predicted) + 1), predicted, gold], axis=1))
    found = paired_test(sides[0], sides[1], f1_of, resamples=200)
    differences = []
    for swap in itertools.product([0, 1], repeat=8):
        first = sum(sides[side][document] for document, side in enumerate(swap))
        second = sum(sides[1 - side][document] for document, side in enumerate(swap))
        differences.append(float(f1_of(first) - f1_of(second)))
    assert found.difference == pytest.approx(differences[0])
    assert found.p == pytest.approx(np.mean(np.abs(differences) >= abs(differences[0]) - 1e-12))


def test_p_is_uniform_where_systems_are_alike() -> None:
    draw = np.random.default_rng(0)
    means, rights, counted = [], [], []
    for seed in range(300):
        hard = draw.random(60)
        a, b = hard + draw.normal(0, 0.3, (2, 60))
        means.append(paired_test(a, b, resamples=300, seed=seed).p)
        rights.append(mcnemar(*(draw.random((2, 200)) < 0.3 + 0.6 * draw.random(200))))
        gold = draw.integers(1, 5, 40)
        x, y = (np.stack([draw.binomial(gold, 0.6), gold, gold], axis=1) for _ in range(2))
        counted.append(paired_test(x, y, f1_of, resamples=300, seed=seed).p)
    assert scipy.stats.kstest(means, "uniform").pvalue > 0.01
    # Counts have ties, so that p is only never too small: below any α no more often than α, within 3 errors.
    for p in (rights, counted):
        for alpha in (0.05, 0.2, 0.5):
            assert np.mean(np.array(p) <= alpha) <= alpha + 3 * np.sqrt(alpha * (1 - alpha) / 300)
    assert np.mean(np.array(counted) <= 0.5) > 0.35


def test_95_of_100_intervals_of_the_difference_hold_the_truth() -> None:
    draw = np.random.default_rng(0)
    held = 0
    for seed in range(300):
        hard = draw.normal(0, 2.0, 80)
        found = paired_test(hard + draw.normal(0.3, 1, 80), hard + draw.normal(0, 1, 80), resamples=400, seed=seed)
        held += found.low <= 0.3 <= found.high
    assert 270 <= held <= 296, held


def test_what_is_hard_for_both_does_not_blur() -> None:
    draw = np.random.default_rng(0)
    hard = draw.normal(0, 10.0, 200)
    a, b = hard + 0.5 + draw.normal(0, 0.5, 200), hard + draw.normal(0, 0.5, 200)
    assert paired_test(a, b, resamples=1000).differs
    assert not paired_test(a, draw.permutation(b), resamples=1000).differs


def test_the_verdict() -> None:
    draw = np.random.default_rng(0)
    bad, good = draw.random((2, 500)) < np.array([[0.6], [0.8]])
    found = paired_test(good, bad, names=("CRF", "softmax"))
    assert found.differs
    assert found.verdict.startswith("CRF scores higher than softmax (+0.")
    assert "95% interval +0." in found.verdict
    assert found.verdict.endswith("p < 0.0001, McNemar's exact test).")
    assert paired_test(bad, good).verdict.startswith("The first scores lower than the second (-0.")
    same = paired_test(good, good)
    assert (same.difference, same.low, same.high, same.p) == (0.0, 0.0, 0.0, 1.0)
    assert same.verdict.startswith("No difference between the first and the second is shown (+0.0000")
    torn = Comparison(0.1, 0.01, 0.2, 0.06, 0.95, "some test")
    assert not torn.differs
    assert torn.verdict.startswith("It is undecided whether the first and the second differ")
    assert json.loads(json.dumps(found.as_json()))["verdict"] == found.verdict


def test_equal_marks_that_are_no_right_or_wrong() -> None:
    values = np.full(30, 0.3)
    assert paired_test(values, values).p == 1.0


@pytest.mark.parametrize("scale", [1e-12, 1.0, 1e9])
def test_the_unit_does_not_matter(scale: float) -> None:
    a, b = np.random.default_rng(0).normal(size=(2, 30))
    assert paired_test(a * scale, b * scale, resamples=500).p == paired_test(a, b, resamples=500).p


def test_what_cannot_be_compared() -> None:
    with pytest.raises(ValueError, match=r"same examples; given \(3, 1\) and \(2, 1\)"):
        paired_test([1, 0, 1], [1, 0])
    with pytest.raises(ValueError, match="3 values an example need a score of their sums, such as f1_of"):
        paired_test(np.zeros((2, 3)), np.zeros((2, 3)))
