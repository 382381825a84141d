"""Positions, embeddings, pre-training, fine-tuning and long texts: exact parts in full, conclusions in every branch."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

from unmask.lab.draw import draw
from unmask.lab.entry import Conclusion, Part, Plan, Record, Verdict
from unmask.lab.kit.effects import named
from unmask.lab.kit.shown import conclude_diverged
from unmask.lab.questions import (
    chinese_characters,
    embedding_scale,
    embeddings_sum,
    fine_tune_grid,
    long_text,
    nlu_not_nlg,
    positions_needed,
    positions_sinusoid,
    pretrain_losses,
    pretraining_helps,
    write_attention,
)

S, N, D, V = Verdict.SUPPORTED, Verdict.NOT_SUPPORTED, Verdict.DEPENDS, Verdict.NOT_VISIBLE
_HAN = re.compile("[\u4e00-\u9fff]")
SEEDS = 3
Records = dict[str, Record]


def found(part: Part) -> Records:
    return {trial.name: trial.job() for trial in part.trials(Plan())}


def told(conclusion: Conclusion, verdict: Verdict) -> str:
    """A conclusion says what it should, in both languages, and can be drawn; gives its English."""
    assert conclusion.verdict == verdict
    english, chinese = conclusion.says
    assert len(english) > 60
    assert len(_HAN.findall(chinese)) > 10
    assert not _HAN.search(english)
    for text in (english, chinese):
        assert "nan" not in text
        assert "Text(" not in text
    for picture in conclusion.pictures:
        assert picture.reading.en
        assert _HAN.search(picture.reading.zh)
        for language in ("en", "zh"):
            assert "<svg" in draw(picture, language)  # type: ignore[arg-type]
    if conclusion.table is not None:
        assert all(len(row) == len(conclusion.table.columns) for row in conclusion.table.rows)
    return english


def arms(values: Mapping[str, Mapping[str, Any]], wide: float = 1.0) -> Records:
    """Records of three seeds: each number of an arm, a little different for each seed."""
    records: Records = {}
    for number, (arm, record) in enumerate(values.items()):
        for seed, shift in enumerate(wide * 0.001 * np.random.default_rng(number).standard_normal(SEEDS)):
            records[named(arm, seed)] = {
                name: value + float(shift) if isinstance(value, float) else value for name, value in record.items()
            }
    return records


def one(values: Mapping[str, float], name: str, wide: float = 1.0) -> Records:
    return arms({arm: {name: value} for arm, value in values.items()}, wide)


# positions-needed


def test_without_positions_an_encoder_sees_a_bag_and_a_causal_stack_does_not() -> None:
    records = found(positions_needed.PARTS[0])
    assert all(records[name]["difference"] < 1e-12 for name in ("1 layers", "2 layers", "6 layers"))
    assert records["mini-zh without positions"]["difference"] < 1e-12
    assert records["mini-zh without positions"]["largest_value"] > 1
    assert records["mini-zh"]["difference"] > 1
    assert records["causal stack"]["difference"] > 1
    assert "encoders only" in told(positions_needed.conclude_permutation(records), S)
    records["6 layers"] = {**records["6 layers"], "difference": 1e-6}
    records["causal stack"] = {**records["causal stack"], "difference": 1e-6}
    assert "does not tell places apart" in told(positions_needed.conclude_permutation(records), N)


@pytest.mark.parametrize(
    ("verdict", "order", "headlines", "causal", "wide"),
    [
        (S, (0.5, 0.99), (0.7, 0.8), 0.6, 1.0),
        (D, (0.5, 0.99), (0.8, 0.8), 0.6, 1.0),
        (D, (0.5, 0.99), (0.7, 0.8), 0.95, 1.0),
        (V, (0.5, 0.501), (0.7, 0.8), 0.6, 5.0),
        (N, (0.6, 0.5), (0.7, 0.8), 0.6, 1.0),
    ],
)
def test_what_order_is_worth(
    verdict: Verdict, order: tuple[float, float], headlines: tuple[float, float], causal: float, wide: float
) -> None:
    values = {"order, none": order[0], "order, learned": order[1] - 0.2, "order, sinusoidal": order[1]}
    values |= {"order, causal without positions": causal}
    values |= {"headlines, none": headlines[0], "headlines, learned": headlines[1]}
    records = one(values, "accuracy", wide)
    records["choose learned, seed 1000"] = {"accuracy": 0.6}
    records["choose sinusoidal, seed 1000"] = {"accuracy": 0.9}
    assert "sinusoidal" in told(positions_needed.conclude_tasks(records), verdict)


# positions-sinusoid


def test_a_step_is_a_rotation() -> None:
    records = found(positions_sinusoid.PARTS[0])
    worst = max(value for size in (64, 768) for k in records[f"d = {size}"].values() for value in k.values())
    assert worst < 1e-11
    assert records["least squares, sinusoid"]["largest"] < 1e-11
    assert 0.05 < records["least squares, mini-zh"]["relative"] < records["least squares, mini-zh"]["standing_still"]
    told(positions_sinusoid.conclude_matrix(records), S)
    records["d = 64"]["7"]["shift"] = 1e-8
    assert "NOT" in told(positions_sinusoid.conclude_matrix(records), N)


def test_products_tell_the_distance_and_places_are_apart() -> None:
    records = found(positions_sinusoid.PARTS[1])
    products = records["products, d = 512"]
    assert products["spread"] < 1e-10
    omega = 10000.0 ** (-np.arange(0, 512, 2) / 512)
    assert products["products"][5] == pytest.approx(np.cos(40 * omega).sum(), abs=1e-5)
    curve = np.cos(np.arange(513)[:, None] * omega).sum(1)
    assert products["rises"] == int((np.diff(curve) > 0).sum())
    four = records["nearest, d = 4"]
    steps = np.arange(1, 10_000)
    apart = np.sqrt((2 - 2 * np.cos(steps)) + (2 - 2 * np.cos(steps / 100)))
    assert (four["step"], four["distance"]) == (int(apart.argmin()) + 1, pytest.approx(apart.min(), abs=1e-9))
    assert records["nearest, d = 512"]["by_table"] == pytest.approx(3.71427, abs=1e-5)
    told(positions_sinusoid.conclude_distance(records), S)
    records["nearest, d = 512"]["distance"] = 0.05
    told(positions_sinusoid.conclude_distance(records), D)
    products["rises"] = 0
    assert "every one of 512" in told(positions_sinusoid.conclude_distance(records), D)
    products["spread"] = 1e-3
    told(positions_sinusoid.conclude_distance(records), N)


# embeddings-sum


def test_a_sum_is_one_matrix_but_not_every_table_is_a_sum() -> None:
    identity, combinations, _ = embeddings_sum.PARTS
    records = found(identity)
    assert [record["width"] for record in records.values()] == [9, 21_642]
    told(identity.conclude(records), S)
    records["4, 3, 2 rows"]["difference"] = 1e-6
    told(identity.conclude(records), N)
    table = found(combinations)["4 · 3 · 2"]
    assert table["rank"] == 4 + 3 + 2 - 2
    # a random table lies in all 24 directions alike, and a sum reaches 7 of them
    assert table["errors"][1] == pytest.approx(math.sqrt(17 / 24), abs=0.005)
    told(combinations.conclude({"4 · 3 · 2": table}), N)
    told(combinations.conclude({"4 · 3 · 2": {**table, "errors": [0.01, 0.02, 0.05]}}), D)
    told(combinations.conclude({"4 · 3 · 2": {**table, "rank": 24, "errors": [0.0, 0.0, 0.0]}}), S)


@pytest.mark.parametrize(
    ("verdict", "loss", "accuracy", "wide"),
    [
        (S, (6.0, 6.0), (0.9, 0.9), 1.0),
        (S, (5.5, 6.0), (0.99, 0.9), 1.0),
        (N, (6.5, 6.0), (0.5, 0.9), 1.0),
        (N, (6.5, 6.0), (0.88, 0.9), 1.0),
        (D, (6.5, 6.0), (0.9, 0.9), 1.0),
        (V, (6.05, 6.0), (0.9, 0.9), 30.0),
        (V, (6.0, 6.0), (0.3, 0.3), 1.0),
    ],
)
def test_sum_or_project(
    verdict: Verdict, loss: tuple[float, float], accuracy: tuple[float, float], wide: float
) -> None:
    records = one({"mlm, sum": loss[0], "mlm, project": loss[1]}, "loss", wide)
    records |= one({"markers, sum": accuracy[0], "markers, project": accuracy[1]}, "accuracy")
    told(embeddings_sum.conclude_arms(records), verdict)


def test_runs_that_broke_down_are_counted() -> None:
    records = one({"mlm, sum": 99.0, "mlm, project": 6.0}, "loss") | one(
        {"markers, sum": 0.9, "markers, project": 0.9}, "accuracy"
    )
    records["mlm, sum, seed 1"]["diverged"] = True
    assert "1 of 12 runs broke down (mlm, sum, seed 1)" in told(embeddings_sum.conclude_arms(records), D)
    assert conclude_diverged({}) == ("", "")


# embedding-scale


def test_variances_of_first_values() -> None:
    records = found(embedding_scale.PARTS[0])
    for size in (64, 128, 512, 1024):
        record = records[f"d = {size}"]
        assert record["entries"] * size == pytest.approx(1, rel=0.02)
        assert record["ratio"] == pytest.approx(size / 2, rel=0.02)
        assert record["logits_normal"] == pytest.approx(size, rel=0.02)
        # Xavier's W has variance 2/(d + d); words of mean square 1 and waves of 1/2 add up
        assert record["queries_words"] == pytest.approx(1.0, rel=0.05)
        assert record["keys_sums"] == pytest.approx(1.5, rel=0.05)
    assert "S4-1 holds only where no positions" in told(embedding_scale.conclude_variance(records), S)
    records["d = 128"]["logits"] = 1.2
    assert "logits, d = 128" in told(embedding_scale.conclude_variance(records), N)
    for record in records.values():
        record |= {"queries_sums": 1.0, "keys_sums": 1.0}
    assert "as S4-1 says" in told(embedding_scale.conclude_variance(records), N)


@pytest.mark.parametrize(
    ("verdict", "tied", "untied", "wide"),
    [
        (S, (5.0, 6.0), (5.0, 5.1), 1.0),
        (D, (5.0, 6.0), (5.0, 6.0), 1.0),
        (D, (5.0, 6.0), (5.0, 6.5), 1.0),
        (N, (6.0, 5.0), (5.0, 5.0), 1.0),
        (V, (5.0, 5.01), (5.0, 5.0), 20.0),
    ],
)
def test_tied_and_scaled(verdict: Verdict, tied: tuple[float, float], untied: tuple[float, float], wide: float) -> None:
    ends = dict(zip(embedding_scale.ARMS.values(), (*tied, *untied), strict=True))
    records = one(ends, "loss", wide)
    for record in records.values():
        record |= {"losses": [6.3, 6.0, record["loss"]], "moments": [75, 150, 300], "diverged": False}
    told(embedding_scale.conclude_arms(records), verdict)


# pretrain-losses


def test_the_losses_by_hand() -> None:
    records = found(pretrain_losses.PARTS[0])
    library = records["by hand"]["library"]
    assert library["mlm"] == pytest.approx(0.581575, abs=5e-7)
    assert library["nsp"] == pytest.approx(0.287682, abs=5e-7)
    assert sum(library.values()) == pytest.approx(0.869257, abs=5e-7)
    two = records["batch of two"]
    tokens = two["of_tokens"]
    assert two["library"]["mlm"] == pytest.approx(sum(tokens) / 4, abs=1e-12)
    assert abs(two["library"]["mlm"] - (tokens[0] + sum(tokens[1:]) / 3) / 2) > 0.1
    assert two["largest_gradient"] > 0.1, "gradients of nothing would agree with everything"
    told(pretrain_losses.conclude_by_hand(records), S)
    records["batch of two"]["accumulated"] = 1e-9
    assert "accumulated" in told(pretrain_losses.conclude_by_hand(records), N)


# write-attention


def test_attention_in_a_few_lines() -> None:
    records = found(write_attention.PARTS[0])
    for case in write_attention.CASES:
        for name in ("library, reference", "library, fast", "nn.MultiheadAttention", "scaled_dot_product_attention"):
            assert records[case][name]["outputs"] < 1e-12
            assert records[case][name]["gradients"] < 1e-12
        assert records[case]["largest_output"] > 1
    assert records["cross-attention"]["gradients"] == 10
    assert records["one line"]["split"] < 1e-12 < 1 < records["one line"]["unsplit"]
    errors = records["slips"]["error"]
    assert min(errors.values()) > 0.05
    assert records["slips"]["right"] < 1e-12
    conclusion = write_attention.conclude_attention(records)
    assert "9 lines" in told(conclusion, D)
    assert conclusion.table is not None
    assert len(conclusion.table.rows) <= 10
    assert "softmax" in "".join(row[0] for row in conclusion.table.rows)
    whole = {**records, "one line": {**records["one line"], "unsplit": 0.0, "layer": 0.0}}
    told(write_attention.conclude_attention(whole), S)
    wrong = {**records, "causal": {**records["causal"], "library, fast": {"outputs": 1e-3, "gradients": 0.0}}}
    assert "NOT" in told(write_attention.conclude_attention(wrong), N)


# long-text


def test_what_each_way_keeps_of_a_long_text() -> None:
    records = found(long_text.PARTS[0])
    ends = records["head_tail"]
    assert ends["800"]["windows"] == [[[0, 128], [418, 800]]]
    assert ends["801"]["windows"] == [[[0, 256], [547, 801]]]
    assert records["tail"]["2000"]["windows"] == [[[1490, 2000]]]
    # 510 − 128 = 382 new tokens a window: 0, 382, 764, 1146, and the last 510
    assert [one[0][0] for one in records["windows"]["2000"]["windows"]] == [0, 382, 764, 1146, 1490]
    assert records["windows"]["2000"]["products"] == 5 * 512**2
    assert records["head"]["5000"] == {"windows": [[[0, 510]]], "kept": 510, "passes": 1, "products": 262_144}
    told(long_text.conclude_kept(records), S)
    records["windows"]["5000"]["kept"] = 4999
    assert "windows lose none" in told(long_text.conclude_kept(records), N)


def test_reviews_are_cut_in_the_published_proportions() -> None:
    text = [1, *range(100, 197)]  # [CLS] and 97 tokens
    short, long = long_text.windows_of(text, "head_tail"), long_text.windows_of([*text, 9], "head_tail")
    assert short == [[1, *range(100, 116), *range(151, 197), 0]]
    assert long == [[1, *range(100, 131), *range(167, 197), 9, 0]]
    assert [len(one) for one in long_text.windows_of(text, "windows")] == [64, 64]


@pytest.mark.parametrize(
    ("verdict", "windows", "by_length", "wide"),
    [
        (S, 0.80, (0.80, 0.80, 0.80), 1.0),
        (S, 0.70, (0.70, 0.70, 0.70), 1.0),
        (N, 0.90, (0.90, 0.90, 0.90), 1.0),
        (D, 0.85, (0.80, 0.85, 0.90), 1.0),
        (V, 0.82, (0.82, 0.82, 0.82), 20.0),
    ],
)
def test_long_reviews(verdict: Verdict, windows: float, by_length: tuple[float, ...], wide: float) -> None:
    values: dict[str, dict[str, Any]] = {}
    for arm in long_text.ARMS:
        reads_all = arm.startswith("windows")
        groups = dict(zip(long_text.GROUPS, by_length if reads_all else (0.8, 0.8, 0.8), strict=True))
        values[arm] = {"accuracy": windows if reads_all else 0.8, "seconds": 30.0, "windows": 3.0, **groups}
    values["tail"]["accuracy"] = 0.85
    assert "more at the end" in told(long_text.conclude_reviews(arms(values, wide)), verdict)


# chinese-characters


@pytest.mark.parametrize(("verdict", "known"), [(S, 600), (N, 50), (D, 300)])
def test_unknown_characters(verdict: Verdict, known: int) -> None:
    counts = {"tokens": 10_000, "unknown": 20, "lost": 25, "texts_with": 12, "not_restored": 0}
    clean = {**counts, "tokens": 10_100, "unknown": 0, "lost": 0, "texts_with": 0}
    seconds = {"plain": [1.0, 1.1, 1.2], "fallback": [1.1, 1.2, 1.3]}
    records: Records = {
        name: {
            "texts": 100,
            "characters": 9000,
            "mini-zh": counts,
            "plain": counts,
            "fallback": clean,
            "seconds": seconds,
        }
        for name in chinese_characters.TEXTS
    }
    records["unseen words"] = {"words": 1000, "mini-zh": 10, "plain": known, "fallback": 0, "examples": []}
    assert "not one character is lost" in told(chinese_characters.conclude_unknown(records), verdict)
    records["zh-reviews"] = {**records["zh-reviews"], "fallback": {**clean, "not_restored": 3}}
    assert "does NOT restore 3" in told(chinese_characters.conclude_unknown(records), verdict)


@pytest.mark.parametrize(
    ("verdict", "task", "single", "whole"),
    [
        (S, 0.05, -0.02, 0.02),
        (N, -0.05, -0.02, 0.02),
        (D, 0.0, -0.02, 0.02),
        (V, 0.0, 0.0, 0.02),
    ],
)
def test_whole_words(verdict: Verdict, task: float, single: float, whole: float) -> None:
    token = {"headlines": 0.5, "guessed_token": 0.2, "guessed_word": 0.2}
    word = {"headlines": 0.5 + task, "guessed_token": 0.2 + single, "guessed_word": 0.2 + whole}
    told(chinese_characters.conclude_masking(arms({"token": token, "word": word})), verdict)


def test_whole_words_are_hidden_whole() -> None:
    begins = chinese_characters._BEGINS
    ids = np.arange(100, 132)
    marked = ids + begins * (ids % 2 == 0)  # words of two characters
    settings = chinese_characters.MaskingSettings(unit="word", mask=1.0, random=0.0, keep=0.0)
    hidden = chinese_characters.hidden([marked] * 50, settings, np.random.default_rng(0))
    rows, length = hidden.rows.numpy(), 34
    chosen = {(row // length, row % length) for row in rows.tolist()}
    assert len(chosen) > 100
    for text, place in chosen:  # [CLS] is at 0, so words lie at 1–2, 3–4, …
        assert (text, place + 1 if place % 2 else place - 1) in chosen
    assert (hidden.batch.ids[hidden.rows] == chinese_characters.MASK).all()
    assert hidden.targets.tolist() == [100 + row % length - 1 for row in rows.tolist()]


# nlu-not-nlg


@pytest.mark.parametrize(
    ("verdict", "near", "far"), [(S, 1.0, 0.1), (D, 1.0, 1.0), (D, 1.0, 2.0), (N, -1.0, 0.1), (V, 0.0, 0.0)]
)
def test_two_masks(verdict: Verdict, near: float, far: float) -> None:
    def record(gain: float, orders: float) -> Record:
        noise = [0.3 * math.sin(7 * n) for n in range(50)]
        right = [float(n % 3 == 0) for n in range(50)]
        gains = [gain + one for one in noise]
        return {"sentences": 50, "gain": gains, "orders": [orders] * 50, "alone": right, "together": right}

    told(nlu_not_nlg.conclude_masks({"near": record(near, 0.5), "far": record(far, 0.2)}), verdict)
    calm = {"near": record(near, 0.01), "far": record(far, 0.02)}
    assert "might come from one distribution" in told(nlu_not_nlg.conclude_masks(calm), verdict)


def test_gaps_are_filled_by_the_chain_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model of two gaps whose joint distribution is known: joint is exact, the product of the margins is not."""
    torch = nlu_not_nlg.torch
    joint = torch.full((30, 30), 1e-3).double()
    joint[10, 11], joint[20, 21], joint[10, 21] = 0.5, 0.3, 0.1
    joint /= joint.sum()
    mask = 29

    def said(sequences: list[list[int]], places: list[tuple[int, ...]]) -> Any:
        rows = []
        for ids, some in zip(sequences, places, strict=True):
            for place in some:
                other = ids[3 - place]  # gaps are at 1 and 2
                table = joint if place == 1 else joint.T
                rows.append((table.sum(1) if other == mask else table[:, other] / table[:, other].sum()).log())
        return torch.stack(rows)

    monkeypatch.setattr(nlu_not_nlg, "_said", said)
    monkeypatch.setattr(nlu_not_nlg, "mini_zh", lambda: (None, None, mask))
    gaps = nlu_not_nlg.Gaps([0, 20, 21, 5], (1, 2), (1, 2))
    values = nlu_not_nlg._chunk([gaps], [(1, 2)])
    margins = joint.sum(1)[20] * joint.sum(0)[21]
    assert values["gain"][0] == pytest.approx(float(joint[20, 21].log() - margins.log()), abs=1e-5)
    assert values["orders"][0] == pytest.approx(0, abs=1e-5), "one distribution: both orders give the same"
    assert (values["alone"], values["together"]) == ([0.0], [0.0])
    best = nlu_not_nlg._chunk([nlu_not_nlg.Gaps([0, 10, 11, 5], (1, 2), (1, 2))], [(1, 2)])
    assert best["together"] == [1.0]


# fine-tune-grid


def grid(score: Callable[[int, float, int], float], wide: float = 1.0) -> Records:
    cells = {fine_tune_grid.cell(*one): score(*one) for one in fine_tune_grid._cells()}
    return arms({name: {"dev": value, "test": value} for name, value in cells.items()}, wide)


@pytest.mark.parametrize(
    ("verdict", "score", "wide"),
    [
        (S, lambda batch, rate, epochs: 0.8 - (rate > 6e-5) * 0.1, 1.0),
        (S, lambda batch, rate, epochs: 0.8, 0.5),
        (N, lambda batch, rate, epochs: 0.5 + (rate > 6e-5) * 0.1, 1.0),
        (D, lambda batch, rate, epochs: 0.75 if rate > 6e-5 else 0.8 if batch == 16 else 0.6, 1.0),
        (V, lambda batch, rate, epochs: 0.8 + (rate > 6e-5) * 0.01, 20.0),
    ],
)
def test_the_grid(verdict: Verdict, score: Callable[[int, float, int], float], wide: float) -> None:
    told(fine_tune_grid.conclude_grid(grid(score, wide)), verdict)


def test_variance_goes_to_what_makes_it() -> None:
    records = grid(lambda batch, rate, epochs: 0.5 + 1000 * rate + (batch == 16) * 0.03, 0.0)
    shares = fine_tune_grid.conclude_variance(records)
    rates = np.array([0.05, 0.03, 0.02])
    by_rate, by_batch = rates.var(), 0.015**2
    assert shares["rate"] == pytest.approx(by_rate / (by_rate + by_batch))
    assert shares["batch"] == pytest.approx(by_batch / (by_rate + by_batch))
    assert shares["epochs"] == pytest.approx(0)
    assert shares["seed"] == pytest.approx(0)


# pretraining-helps


@pytest.mark.parametrize(
    ("verdict", "gains", "less", "wide"),
    [
        (S, (0.3, 0.2, 0.1), "less labelled data is needed", 1.0),
        (N, (-0.3, -0.2, -0.1), "does not save that much", 1.0),
        (D, (0.3, 0.1, -0.2), "less labelled data is needed", 1.0),
        (V, (0.0, 0.0, 0.0), "decides nothing", 50.0),
    ],
)
def test_over_training_size(verdict: Verdict, gains: tuple[float, ...], less: str, wide: float) -> None:
    values: dict[str, dict[str, Any]] = {}
    for size, gain, base in zip(pretraining_helps.SIZES, gains, (0.3, 0.4, 0.45), strict=True):
        values[f"fine-tuned, {size}"] = {"test": base + gain}
        values[f"from nothing, {size}"] = {"test": base}
    records = arms(values, wide)
    for arm in pretraining_helps.CHOSEN:
        for rate in pretraining_helps.RATES:
            chosen = rate == pretraining_helps.CHOSEN[arm]
            records[named(f"choose {arm}, rate {rate:.0e}", 1000)] = {"dev": 0.6 if chosen else 0.5}
    english = told(pretraining_helps.conclude_sizes(records), verdict)
    assert less in english
    assert "its own best rate" in english
    records["choose fine-tuned, rate 1e-04, seed 1000"]["dev"] = 0.9
    assert "chosen anew here, they would be 1e-04" in told(pretraining_helps.conclude_sizes(records), verdict)


def test_smaller_sets_lie_within_larger() -> None:
    small, large = (pretraining_helps.some_headlines(size, 3) for size in (100, 300))
    assert large.sequences[:100] == small.sequences
    assert pretraining_helps.some_headlines(100, 4).sequences != small.sequences
    assert len(set(large.labels)) == 10
