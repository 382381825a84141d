from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from sklearn import metrics as sklearn

from unmask.errors import DataError
from unmask.metrics import accuracy, class_scores, confusion_matrix, label_set_scores, matthews
from unmask.metrics.scores import Score

Labels = NDArray[np.int64]


@st.composite
def labelled(draw: st.DrawFn) -> tuple[Labels, Labels, int]:
    """Small, so that labels without gold or predicted members are frequent."""
    num_labels = draw(st.integers(2, 6))
    label = st.integers(0, num_labels - 1)
    pairs = draw(st.lists(st.tuples(label, label), min_size=1, max_size=25))
    both = np.array(pairs, dtype=np.int64)
    return both[:, 0], both[:, 1], num_labels


def close(ours: Score, theirs: tuple[float, float, float, object]) -> None:
    assert (ours.precision, ours.recall, ours.f1) == pytest.approx(theirs[:3], abs=1e-12)


@given(labelled())
@settings(max_examples=200)
def test_single_labels_agree_with_scikit_learn(given_labels: tuple[Labels, Labels, int]) -> None:
    gold, predicted, num_labels = given_labels
    found = class_scores(gold, predicted, num_labels)
    labels = list(range(num_labels))
    assert found.total == len(gold)
    assert found.accuracy == accuracy(gold, predicted) == pytest.approx(sklearn.accuracy_score(gold, predicted))
    assert (found.confusion == sklearn.confusion_matrix(gold, predicted, labels=labels)).all()
    for name in ("micro", "macro", "weighted"):
        theirs = sklearn.precision_recall_fscore_support(gold, predicted, labels=labels, average=name, zero_division=0)
        close(getattr(found.table, name), theirs)
    each = sklearn.precision_recall_fscore_support(gold, predicted, labels=labels, zero_division=0)
    for label, row in enumerate(zip(*each, strict=True)):
        close(found.table[label], row)
        assert found.table[label].support == row[3]
    # scikit-learn warns, or gives nan, where one class is all there is.
    if len(set(gold)) > 1 and len(set(predicted)) > 1:
        assert found.mcc == pytest.approx(sklearn.matthews_corrcoef(gold, predicted), abs=1e-12)
    else:
        assert found.mcc == 0.0


@given(st.integers(1, 5), st.integers(1, 12), st.integers(0, 2**32 - 1), st.sampled_from([0.05, 0.3, 0.7]))
@settings(max_examples=200)
def test_label_sets_agree_with_scikit_learn(num_labels: int, n: int, seed: int, share: float) -> None:
    draw = np.random.default_rng(seed)
    gold, predicted = (draw.random((n, num_labels)) < share for _ in range(2))
    found = label_set_scores(gold, predicted)
    if num_labels > 1:  # with one column scikit-learn takes the labels for classes
        assert found.subset_accuracy == pytest.approx(sklearn.accuracy_score(gold, predicted))
        assert found.sample_f1 == pytest.approx(
            sklearn.f1_score(gold, predicted, average="samples", zero_division=0), abs=1e-12
        )
        for name in ("micro", "macro", "weighted"):
            theirs = sklearn.precision_recall_fscore_support(gold, predicted, average=name, zero_division=0)
            close(getattr(found.table, name), theirs)
    else:
        theirs = sklearn.precision_recall_fscore_support(
            gold[:, 0], predicted[:, 0], labels=[True], average="micro", zero_division=0
        )
        close(found.micro, theirs)
        close(found.macro, theirs)


def test_by_hand() -> None:
    #         gold a a a b b c        c is never predicted, d never occurs
    found = class_scores([0, 0, 0, 1, 1, 2], [0, 0, 1, 1, 3, 0], 4)
    assert found.accuracy == 0.5
    assert found.table[0] == Score(2 / 3, 2 / 3, 2 / 3, 3)
    assert found.table[2] == Score(0.0, 0.0, 0.0, 1)
    assert found.table[3] == Score(0.0, 0.0, 0.0, 0)
    assert found.table.macro.f1 == pytest.approx((2 / 3 + 1 / 2) / 4)
    assert found.confusion[0].tolist() == [2, 1, 0, 0]
    assert found.confusion[1].tolist() == [0, 1, 0, 1]


def test_an_absent_label_lowers_the_macro_average() -> None:
    assert class_scores([0, 1], [0, 1], 2).table.macro.f1 == 1.0
    assert class_scores([0, 1], [0, 1], 4).table.macro.f1 == 0.5


def test_matthews_of_a_large_set_does_not_overflow() -> None:
    small = np.array([[40, 10, 3], [5, 30, 2], [1, 1, 8]], dtype=np.int64)
    assert matthews(small * 10**8) == pytest.approx(matthews(small), abs=1e-12)


def test_booleans_are_labels() -> None:
    assert class_scores([True, False], [True, True], 2).accuracy == 0.5


def test_they_can_be_saved() -> None:
    found = json.loads(json.dumps(class_scores([0, 1, 1], [0, 1, 0], 2).as_json(), allow_nan=False))
    assert found["accuracy"] == pytest.approx(2 / 3)
    assert found["classes"][1]["support"] == 2
    sets = json.loads(json.dumps(label_set_scores([[1, 0], [0, 0]], [[1, 1], [0, 0]]).as_json(), allow_nan=False))
    assert sets["subset_accuracy"] == 0.5
    assert sets["sample_f1"] == pytest.approx(1 / 3)


def test_what_cannot_be_scored() -> None:
    with pytest.raises(ValueError, match="predicted label 2 of example 1 is not in 0 … 1"):
        confusion_matrix([0, 1], [0, 2], 2)
    with pytest.raises(ValueError, match="gold label -100 of example 0"):
        class_scores([-100, 1], [0, 1], 2)
    with pytest.raises(ValueError, match=r"gold \(2,\) and predicted \(3,\)"):
        accuracy([0, 1], [0, 1, 1])
    with pytest.raises(ValueError, match="integers; given float64"):
        class_scores([0.0], [1.0], 2)
    with pytest.raises(ValueError, match="cut probabilities at a threshold"):
        label_set_scores([[1, 0]], [[0.3, 0.9]])
    with pytest.raises(DataError, match="nothing to score"):
        class_scores(np.array([], dtype=np.int64), np.array([], dtype=np.int64), 2)
