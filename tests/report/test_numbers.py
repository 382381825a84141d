from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest

import report_samples as samples
from unmask.data.examples import Entity
from unmask.report.numbers import (
    FEW,
    by_confidence,
    by_length,
    called,
    confidences,
    is_share,
    mean,
    parts_of,
    span,
    written,
)
from unmask.report.outcome import QuestionOutcome, TaggedOutcome, TextOutcome


def test_a_share_has_wilsons_interval() -> None:
    # Brown, Cai and DasGupta's formula by hand for 8 of 10: centre (8 + z²/2)/(10 + z²).
    z = 1.959964
    centre = (8 + z * z / 2) / (10 + z * z)
    half = z * math.sqrt(10) / (10 + z * z) * math.sqrt(0.16 + z * z / 40)
    found = mean([1] * 8 + [0] * 2)
    assert (found.value, found.n) == (0.8, 10)
    assert found.low == pytest.approx(centre - half, abs=1e-6)
    assert found.high == pytest.approx(centre + half, abs=1e-6)
    assert 0.5 < mean([1.0] * 10).low < 1  # all right says little of ten


def test_a_mean_of_other_numbers_is_resampled() -> None:
    generator = np.random.default_rng(0)
    values = generator.normal(5, 2, 400)
    found = mean(values)
    error = 1.96 * 2 / math.sqrt(400)
    assert found.value == pytest.approx(values.mean())
    assert found.value - found.low == pytest.approx(error, rel=0.2)
    assert found.high - found.value == pytest.approx(error, rel=0.2)


def test_nothing_below_the_line_is_known_to_be_anything() -> None:
    assert mean([0.0, 0.0], [0.0, 0.0]) == (0.0, 0.0, 1.0, 2)


def test_what_each_example_adds() -> None:
    one, two, three = Entity(0, 1, "a"), Entity(2, 3, "a"), Entity(2, 3, "b")
    assert parts_of(TaggedOutcome("abcd", (one, two), (one, three))) == (2.0, 4.0)
    assert parts_of(TaggedOutcome("abcd")) == (0.0, 0.0)
    assert parts_of(QuestionOutcome("q", "c", f1=0.25)) == (0.25, 1.0)
    assert parts_of(TextOutcome("t", gold=1.5, predicted=-1.0)) == (2.5, 1.0)
    assert parts_of(TextOutcome("t", gold="a", predicted="a")) == (1.0, 1.0)
    assert parts_of(TextOutcome("t", gold=None, predicted="a")) is None
    assert parts_of(TextOutcome("t", gold=1.0, predicted=None)) is None


@pytest.mark.parametrize("name", ["single", "topics", "regression", "entities", "questions", "multi"])
def test_bins_of_length_hold_every_text_once(name: str) -> None:
    outcomes = samples.ALL[name]().outcomes
    bins = by_length(outcomes)
    assert sum(bin.score.n for bin in bins) == len(outcomes)
    assert all(bin.score.n >= FEW for bin in bins)
    assert all(before.high == after.low for before, after in pairwise(bins))
    for bin in bins:  # slowly, from the definition
        inside = [outcome for outcome in outcomes if bin.low < outcome.tokens <= bin.high]
        pairs = [parts for outcome in inside if (parts := parts_of(outcome)) is not None]
        assert bin.score.value == pytest.approx(sum(a for a, _ in pairs) / sum(b for _, b in pairs))
        assert bin.coverage == pytest.approx(np.mean([outcome.coverage for outcome in inside]))
        assert bin.score.low <= bin.score.value <= bin.score.high


def test_lengths_at_the_bounds() -> None:
    texts = [TextOutcome("t", gold="a", predicted="a", tokens=tokens) for tokens in (16, 17, 32, 33) for _ in range(10)]
    assert [(bin.low, bin.high, bin.score.n) for bin in by_length(texts)] == [(0, 16, 10), (16, 32, 20), (32, 64, 10)]
    lonely = [*texts, TextOutcome("t", gold="a", predicted="a", tokens=50_000)]
    assert [(bin.low, bin.high) for bin in by_length(lonely)][-1] == (32, 65_536)
    assert by_length([TextOutcome("t", gold="a", predicted="a")]) == []


def test_confidence_of_every_stretch_and_none_that_is_no_number() -> None:
    one, two = Entity(0, 1, "a"), Entity(2, 3, "a")
    tagged = TaggedOutcome("abcd", (one,), (one, two), (0.9, 0.4))
    texts = [TextOutcome("t", gold="a", predicted="a", confidence=value) for value in (0.5, None, math.nan, 1.0000002)]
    sure, right = confidences([tagged, *texts])
    assert sure.tolist() == [0.9, 0.4, 0.5, 1.0]
    assert right.tolist() == [1, 0, 1, 1]


def test_bins_of_confidence() -> None:
    sure, right = np.array([0.95, 0.97, 0.99, 0.5]), np.array([1.0, 0.0, 1.0, 0.0])
    low, high = by_confidence(sure, right)
    assert (low.score.n, low.score.value, low.middle) == (1, 0.0, 0.5)
    assert (high.score.n, high.score.value, high.middle) == (3, pytest.approx(2 / 3), pytest.approx(0.97))
    assert high.score.low < 2 / 3 < high.score.high


def test_how_numbers_are_written() -> None:
    assert written("accuracy", 0.9234) == "92.3\u00a0%"
    assert written("pearson", 0.9234) == "0.923"
    assert written("mse", 12345.6) == "12,346"
    assert written("f1", None) == "–"
    assert span("f1", 0.5, 1.0) == "50.0 – 100.0\u00a0%"
    assert span("mcc", -0.1, 0.25) == "-0.100 – 0.250"
    assert span("f1", None, 0.5) == "–"
    assert called("macro_f1") == "macro F1"
    assert called("exact") == "exact match"
    assert is_share("micro_f1")
    assert not is_share("dev_loss")
    assert not is_share("score", 3.5)
