from __future__ import annotations

import numpy as np
import pytest
import scipy.stats
from sklearn.metrics import f1_score

from unmask.errors import DataError
from unmask.metrics import Interval, bootstrap, bootstrap_sums, f1_of, macro_f1_of, macro_f1_within, share_interval
from unmask.metrics.intervals import resampled_sums


def test_the_quick_way_has_the_interval_of_the_slow_one() -> None:
    draw = np.random.default_rng(0)
    values = draw.normal(size=300)
    quick = bootstrap_sums(values, resamples=4000)
    slow = bootstrap(lambda which: float(values[which].mean()), 300, resamples=4000, seed=1)
    assert quick.value == pytest.approx(slow.value) == pytest.approx(values.mean())
    error = values.std() / np.sqrt(300)
    assert (quick.low, quick.high) == pytest.approx((slow.low, slow.high), abs=0.12 * error)
    # What theory says of a mean.
    assert (quick.low, quick.high) == pytest.approx(
        (values.mean() - 1.96 * error, values.mean() + 1.96 * error), abs=0.12 * error
    )


def test_the_interval_of_scipy() -> None:
    values = np.random.default_rng(3).exponential(size=80)
    ours = bootstrap_sums(values, resamples=5000, level=0.9)
    theirs = scipy.stats.bootstrap(
        (values,), np.mean, n_resamples=5000, confidence_level=0.9, method="percentile", rng=np.random.default_rng(1)
    ).confidence_interval
    assert (ours.low, ours.high) == pytest.approx((theirs.low, theirs.high), abs=0.02)


def test_f1_of_documents() -> None:
    draw = np.random.default_rng(0)
    gold, predicted = draw.integers(0, 3, (2, 120, 9))
    counts = np.stack([(gold == 1) & (predicted == 1), predicted == 1, gold == 1], axis=2).sum(axis=1)
    quick = bootstrap_sums(counts, f1_of, resamples=2000)
    slow = bootstrap(
        lambda rows: float(f1_score(gold[rows].ravel() == 1, predicted[rows].ravel() == 1)), 120, resamples=300
    )
    assert quick.value == pytest.approx(slow.value)
    assert (quick.low, quick.high) == pytest.approx((slow.low, slow.high), abs=0.015)


def test_documents_are_drawn_and_not_tokens() -> None:
    """Documents of which all is right or all is wrong: a hundred tokens say no more than one."""
    right = np.random.default_rng(0).random(60) < 0.7
    counts = np.stack([right * 100, np.full(60, 100), np.full(60, 100)], axis=1)
    whole, tokens = bootstrap_sums(counts, f1_of), bootstrap_sums(np.repeat(right, 100))
    assert whole.value == pytest.approx(tokens.value)
    assert whole.high - whole.low > 5 * (tokens.high - tokens.low)


def test_macro_f1() -> None:
    counts = np.random.default_rng(0).integers(0, 4, (50, 2, 2, 3)).sum(axis=1)
    counts[..., 0] = counts.min(axis=-1)
    found = bootstrap_sums(counts.reshape(50, 6), macro_f1_of)
    sums = counts.sum(axis=0)
    assert found.value == pytest.approx(np.mean(2 * sums[:, 0] / (sums[:, 1] + sums[:, 2])))
    assert found.low < found.value < found.high


def test_a_class_that_a_sample_lacks_does_not_lower_it() -> None:
    kinds = np.array([0] * 30 + [1])  # the second class is missing from about a third of all samples
    counts = np.repeat(np.eye(3, dtype=np.int64)[kinds][:, :, None], 3, axis=2).reshape(31, 9)  # all right; no third
    found = bootstrap_sums(counts, macro_f1_within(counts.sum(0)))
    assert found.value == pytest.approx(2 / 3)  # the third class, which nobody has, counts as it does in scikit-learn
    assert found.low == pytest.approx(1 / 2)
    assert found.high == pytest.approx(2 / 3)
    assert float(macro_f1_of(counts.sum(0))) == pytest.approx(found.value)
    both = counts[:, :6]
    sure = bootstrap_sums(both, macro_f1_within(both.sum(0)))
    assert (sure.low, sure.value, sure.high) == (1, 1, 1)
    assert bootstrap_sums(both, macro_f1_of).low == pytest.approx(1 / 2)


def test_95_of_100_intervals_hold_the_truth() -> None:
    draw = np.random.default_rng(0)
    held = {"share": 0, "wilson": 0, "mean": 0, "f1": 0}
    truth = 2 * 0.4 / (0.5 + 0.6)
    for seed in range(400):
        right = draw.random(150) < 0.8
        found = bootstrap_sums(right, resamples=400, seed=seed)
        held["share"] += found.low <= 0.8 <= found.high
        wilson = share_interval(int(right.sum()), 150)
        held["wilson"] += wilson.low <= 0.8 <= wilson.high
        found = bootstrap_sums(draw.normal(5.0, 2.0, 80), resamples=400, seed=seed)
        held["mean"] += found.low <= 5.0 <= found.high
        # Of each token: right, only predicted, only gold; tokens of a document are alike.
        alike = np.array([0.4, 0.1, 0.2, 0.3]) * 8
        kinds = draw.dirichlet(alike, 100)
        tokens = np.array([draw.multinomial(10, kind) for kind in kinds])
        counts = np.stack([tokens[:, 0], tokens[:, 0] + tokens[:, 1], tokens[:, 0] + tokens[:, 2]], axis=1)
        found = bootstrap_sums(counts, f1_of, resamples=400, seed=seed)
        held["f1"] += found.low <= truth <= found.high
    # Of 400 at 95 %, 380 ± 4.4; the percentile interval is known to be a little narrow in small samples.
    assert all(364 <= count <= 394 for count in held.values()), held


def test_wilson_as_scipy_has_it() -> None:
    for right, total in ((0, 10), (3, 10), (10, 10), (862, 1000), (1, 1)):
        for level in (0.8, 0.95):
            theirs = scipy.stats.binomtest(right, total).proportion_ci(level, method="wilson")
            ours = share_interval(right, total, level)
            assert (ours.low, ours.high) == pytest.approx((theirs.low, theirs.high), abs=1e-12)
    assert bootstrap_sums(np.ones(10)) == Interval(1.0, 1.0, 1.0)
    assert share_interval(10, 10).low < 0.75


def test_the_seed_decides_and_the_level_widens() -> None:
    values = np.random.default_rng(0).random(100)
    first = bootstrap_sums(values, seed=4)
    assert first == bootstrap_sums(values, seed=4)
    assert first != bootstrap_sums(values, seed=5)
    wide = bootstrap_sums(values, seed=4, level=0.99)
    assert wide.low < first.low < first.high < wide.high
    assert str(first).startswith(f"{values.mean():.4f} (95% interval ")
    assert wide.as_json()["level"] == 0.99


def test_samples_are_as_large_as_the_data_however_they_are_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    values = np.stack([np.ones(7), np.arange(7.0)], axis=1)
    for cells in (1, 20, 10**6):
        monkeypatch.setattr("unmask.metrics.intervals._CELLS", cells)
        sums = resampled_sums(values, 11, 0)
        assert sums.shape == (11, 2)
        assert (sums[:, 0] == 7).all()
        assert len(set(sums[:, 1])) > 5


def test_what_cannot_be_resampled() -> None:
    with pytest.raises(DataError, match="nothing to resample"):
        bootstrap_sums([])
    with pytest.raises(ValueError, match="not 0 and 0.95"):
        bootstrap_sums([1.0], resamples=0)
    with pytest.raises(ValueError, match="level between 0 and 1"):
        bootstrap(lambda which: 0.0, 3, level=95)
    with pytest.raises(ValueError, match="finite numbers"):
        bootstrap_sums([1.0, float("nan")])
    with pytest.raises(ValueError, match="score of a resample"):
        bootstrap(lambda which: float("nan"), 3)
    with pytest.raises(ValueError, match=r"given \(2, 2, 2\)"):
        bootstrap_sums(np.zeros((2, 2, 2)))
    with pytest.raises(ValueError, match="11 of 10 is no share"):
        share_interval(11, 10)
