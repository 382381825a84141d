"""What is exact is run in full, and compared with numbers that come from elsewhere: by hand, numpy, scipy."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from scipy.special import softmax
from scipy.stats import binom

from unmask.lab.catalogue import entry_of, parts_of
from unmask.lab.entry import Conclusion, Plan, Record, Verdict
from unmask.lab.questions import many_heads, multi_head_cost, nsp_needed, padding_mask


@cache
def found(question: str, part: str) -> tuple[dict[str, Record], Conclusion]:
    """Every trial of a part, as it is run for the results that are shipped."""
    chosen = parts_of(entry_of(question))[part]
    records = {trial.name: trial.job() for trial in chosen.trials(Plan())}
    return records, chosen.conclude(records)


def test_the_variance_of_a_score_is_its_width() -> None:
    records, conclusion = found("scale-sqrt-dk", "variance")
    assert conclusion.verdict == Verdict.SUPPORTED
    for width in (1, 4, 16, 64, 256, 1024):
        one = records[f"d_k {width}"]
        assert one["signs_variance"] == pytest.approx(4 * binom(width, 0.5).var(), rel=1e-12)
        assert one["signs_mean"] == 0
        assert one["low"] < 1 < one["high"]
        assert one["correlated_mean"] == pytest.approx(width / 2, rel=0.05)


def test_the_softmax_saturates() -> None:
    records, conclusion = found("scale-sqrt-dk", "softmax")
    assert conclusion.verdict == Verdict.SUPPORTED
    curve = records["example"]["curve"]
    for a in (1, 10, 100):
        assert curve[a] == pytest.approx(float(softmax([a, a, 2 * a])[2]), abs=1e-15)
    share = 1 / (1 + 2 * math.exp(-10))
    assert records["example"]["largest"]["10"] == pytest.approx(share * (1 - share), rel=1e-9)
    assert records["example"]["largest"]["100"] == pytest.approx(math.exp(-100), rel=1e-9)
    scores = np.random.default_rng(0).normal(size=(1000, 64)) * 64
    shares = softmax(scores, axis=1)
    norms = [np.linalg.norm(np.diag(row) - np.outer(row, row)) for row in shares]
    assert records["d_k 4096"]["plain"]["small"] == pytest.approx(np.mean(np.array(norms) < 0.01), abs=0.05)
    assert records["d_k 4096"]["scaled"]["small"] == 0


def test_minus_thousand_hides_padding() -> None:
    records, conclusion = found("padding-mask", "leak")
    assert conclusion.verdict == Verdict.SUPPORTED
    assert len(records) == 9
    for one in records.values():
        assert one["-1000 set"]["weight"] == one["-1000 added"]["weight"] == 0
        assert one["-1000 set"]["as_infinity"]
    small = records["float32, deviation 1"]["-10 set"]
    real, padded = np.zeros(24), np.full(40, -10.0)
    assert small["weight"] < 10 * float(softmax([*real, *padded])[24:].sum())
    assert small["weight"] > 0


def test_minus_thousand_fails_at_the_edges() -> None:
    records, conclusion = found("padding-mask", "edges")
    assert conclusion.verdict == Verdict.DEPENDS
    one = records["float32"]
    assert one["alone"]["-1000 set"] == [0.125] * 8
    assert one["alone"]["-inf"] is None
    assert one["low"]["-950"]["-1000"] == pytest.approx(40 * math.exp(-50) / 24, rel=1e-3)
    assert one["low"]["-1050"]["-1000"] == pytest.approx(1, abs=1e-6)
    assert [records[name]["twice"]["-40000"]["finite"] for name in records] == [True, True, False]
    assert not records["float16"]["large"]["finite"]
    assert "overflow" in records["float16"]["large"]["told"]
    for record in records.values():
        assert all(back == {"nan": False, "most": 0.0} for back in record["library"].values())
    assert "0 and no NaN" in conclusion.says.en


def test_a_set_mask_forgets_the_scores_and_an_added_one_does_not() -> None:
    scores = torch.arange(64, dtype=torch.float64)[None]
    assert padding_mask.hidden(scores, -5.0, "set")[0, 24:].unique().tolist() == [-5.0]
    assert padding_mask.hidden(scores, -5.0, "added")[0, 24:].tolist() == [n - 5.0 for n in range(24, 64)]


def test_attention_costs_what_the_formula_says() -> None:
    records, conclusion = found("attention-cost", "operations")
    assert conclusion.verdict == Verdict.SUPPORTED
    assert records["512 × 768"]["scores"] == 402_653_184
    assert records["64 × 256"] == {"scores": 2_097_152, "mean": 2_097_152, "projections": 33_554_432, "softmax": 20_480}
    block = records["block 512"]
    assert block["total"] == 4 * 512**2 * 768 + 24 * 512 * 768**2
    assert block["square"] / block["total"] == pytest.approx(0.1)
    assert "4,608" in conclusion.says.en
    assert "4,608" in conclusion.says.zh


def test_heads_do_not_multiply_the_cost() -> None:
    records, conclusion = found("multi-head-cost", "operations")
    assert conclusion.verdict == Verdict.SUPPORTED
    assert {one["scores"] + one["mean"] for one in records.values()} == {50_331_648}
    assert {one["parameters"] for one in records.values()} == {4 * 768**2}
    assert records["48 heads"]["contraction"] == 48 * records["48 heads"]["scores"]
    assert max(one["diagonal_apart"] for one in records.values()) < 1e-10


def test_the_limits_are_two_tables() -> None:
    records, conclusion = found("limit-512", "positions")
    assert conclusion.verdict == Verdict.SUPPORTED
    assert [records["learned"][length]["runs"] for length in ("511", "512", "513")] == [True, True, False]
    assert "513 tokens" in records["learned"]["513"]["said"]
    for way in ("random", "repeated", "hierarchical"):
        one = records[f"mini-zh, {way}"]
        assert one["apart"] == 0
        assert one["longest"] <= 512
        assert not one["before"]["runs"]
        assert one["513"]["runs"]
        assert one["1024"]["runs"]
    records, conclusion = found("limit-512", "segments")
    assert conclusion.verdict == Verdict.SUPPORTED
    assert [records["BERT-base"][most]["runs"] for most in ("0", "1", "2")] == [True, True, False]
    assert records["mini-zh, three rows"]["apart"] == 0


def test_a_shared_matrix_makes_scores_symmetric_and_weights_not() -> None:
    records, conclusion = found("qk-shared", "symmetry")
    assert conclusion.verdict == Verdict.DEPENDS
    scores = np.array(records["shared"]["score_rows"])
    assert np.abs(scores - scores.T).max() <= 1e-12
    weights = softmax(scores, axis=1)
    np.testing.assert_allclose(weights, records["shared"]["weight_rows"], atol=1e-12)
    assert records["shared"]["weights"] >= np.abs(weights - weights.T).max() - 1e-12 > 1e-3
    assert records["separate"]["scores"] > 1
    assert records["shared"]["own"] >= -1e-12 > records["separate"]["own"]
    assert max(one["by_hand"] for one in records.values()) < 1e-12
    assert records["shared"]["cross_rows"] == 5


def test_full_width_costs_twelve_times_as_much() -> None:
    records, conclusion = found("head-dim", "counts")
    assert conclusion.verdict == Verdict.SUPPORTED
    assert records["12×64"]["parameters"] == 4 * 768**2
    assert records["12×768"]["parameters"] == 12 * 4 * 768**2
    assert records["12×768"]["scores"] == 12 * 2 * 128**2 * 768
    assert [one["rank"] for one in records.values()] == [64, 768, 768]


def test_a_layer_norm_alone_does_not_scale() -> None:
    records, conclusion = found("qk-layernorm", "variance")
    assert conclusion.verdict == Verdict.DEPENDS
    for width in (16, 64, 256):
        rng = np.random.default_rng(width)
        q, k = (rng.normal(size=(20_000, width)) for _ in range(2))
        q, k = ((x - x.mean(1, keepdims=True)) / x.std(1, keepdims=True) for x in (q, k))
        one = records[f"d_k {width}, deviation 10"]
        assert one["gains_1"] == pytest.approx((q * k).sum(1).var(), rel=0.05)
        assert one["gain"] == pytest.approx(width**-0.25)
        assert one["gains_root"] == pytest.approx(one["gains_1"] / width, rel=1e-4)
        assert one["largest"] <= width


def test_divergence_of_heads_by_hand() -> None:
    p, q = torch.tensor([1.0, 0.0]), torch.tensor([0.0, 1.0])
    assert float(many_heads.divergence(p, q)) == pytest.approx(1)
    assert float(many_heads.divergence(p, p)) == 0
    half = torch.tensor([0.5, 0.5])
    mixed = -(0.75 * math.log2(0.75) + 0.25 * math.log2(0.25))
    assert float(many_heads.divergence(p, half)) == pytest.approx(mixed - 0.5, rel=1e-5)


def test_the_judge_counts_characters_that_both_texts_have() -> None:
    pair: Any = (np.array([7, 8, 8, 9]), np.array([9, 8, 11, 12]))
    assert nsp_needed.common(pair) == 2


@pytest.mark.parametrize("heads", multi_head_cost.TIMED_HEADS)
def test_products_are_timed_with_ordinary_numbers(heads: int) -> None:
    # Numbers below the least normal one take many times as long, and one head would look slower than sixteen.
    weights = multi_head_cost.timed_inputs(heads)[-1].softmax(-1)
    assert float(weights.min()) > torch.finfo(torch.float32).tiny
