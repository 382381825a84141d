"""Questions on BERT's parts, its rivals and its training: exact evidence against numbers known otherwise, and every
verdict that a conclusion can give."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from functools import cache

import pytest
import torch

from unmask.lab.catalogue import entry_of, parts_of
from unmask.lab.draw import draw
from unmask.lab.entry import Conclusion, Part, Plan, Record, Verdict
from unmask.lab.kit import gaps as gaps_of
from unmask.lab.kit import senses, watching
from unmask.lab.kit.daily import CLS, MASK, SEP
from unmask.lab.kit.effects import Effect, named
from unmask.lab.kit.gaps import Gap, cloze, guesses, next_of
from unmask.lab.kit.pairing import conclude_lost, conclude_paired, conclude_points, conclude_than
from unmask.lab.kit.recoded import pairs
from unmask.lab.pictures import Heat
from unmask.lab.questions import (
    bert_parts,
    bert_vs_cbow,
    bidirectional,
    dropout_places,
    label_noise,
    warmup,
    weight_tying,
)
from unmask.nn.layout import Layout

SUPPORTED, NOT, DEPENDS, HIDDEN = (
    Verdict.SUPPORTED,
    Verdict.NOT_SUPPORTED,
    Verdict.DEPENDS,
    Verdict.NOT_VISIBLE,
)


def part(question: str, name: str) -> Part:
    return parts_of(entry_of(question))[name]


@cache
def exact(question: str, name: str) -> dict[str, Record]:
    return {trial.name: trial.job() for trial in part(question, name).trials(Plan("small", 2))}


def concluded(question: str, name: str, records: Mapping[str, Record]) -> Conclusion:
    """A conclusion, whole: both languages, pictures that can be drawn."""
    found = part(question, name).conclude(records)
    assert len(found.says.en) > 80
    assert len(found.says.zh) > 40
    for picture in found.pictures:
        assert picture.title.en
        assert picture.title.zh
        assert picture.reading.en
        assert picture.reading.zh
        assert "nan" not in draw(picture, "en")
        if not isinstance(picture, Heat):
            points = [value for series in picture.series for point in series.points for value in point]
            assert all(value is None or math.isfinite(value) for value in points)
    for row in found.table.rows if found.table else ():
        assert found.table is not None
        assert len(row) == len(found.table.columns)
    return found


def seeds(arms: Mapping[str, Iterable[Record]]) -> dict[str, Record]:
    """Records of arms, one a seed."""
    return {named(arm, seed): record for arm, records in arms.items() for seed, record in enumerate(records)}


def around(mean: float) -> list[float]:
    return [mean - 0.01, mean, mean + 0.012]


def first_small(question: str, name: str) -> dict[str, Record]:
    """One small trial really run, its record under the names of all: every effect is then exactly zero."""
    trials = part(question, name).trials(Plan("small", 3))
    record = trials[0].job()
    return {trial.name: record for trial in trials}


# exact ----------------------------------------------------------------------------------------------------------------


def test_bert_depends_on_both_sides_everywhere_and_a_bilstm_layer_on_one() -> None:
    records = exact("bidirectional", "gradients")
    assert concluded("bidirectional", "gradients", records).verdict == SUPPORTED
    for name, layers in (("BERT", 2), ("mini-zh", 4)):
        assert len(records[name]["layers"]) == layers
        assert all(layer["zero_numbers"] == 0 and layer["both"] == 1 for layer in records[name]["layers"])
    first, second = records["BiLSTM of 2"]["layers"]
    assert (first["both"], first["left_only"], first["right_only"]) == (0, 0.5, 0.5)
    assert second["both"] == 1
    for layer in records["GPT"]["layers"]:
        assert layer["zero"] == {"left": 0, "on": 0, "right": 1}


def test_gradients_are_those_of_torchs_jacobian() -> None:
    vectors, layers = bidirectional.reader("GPT")
    whole = torch.autograd.functional.jacobian(
        lambda rows: layers(rows, Layout.ragged([len(rows)]))[1], vectors.detach()
    )
    table = torch.tensor(exact("bidirectional", "gradients")["GPT"]["layers"][1]["table"], dtype=torch.float64)
    assert torch.allclose(whole.abs().amax((1, 3)), table, atol=1e-12)


def test_a_bert_with_a_blind_spot_would_not_be_supported() -> None:
    records = exact("bidirectional", "gradients")
    blind = {**records["BERT"]["layers"][0], "zero_numbers": 0.1, "both": 0.9}
    changed = {**records, "BERT": {**records["BERT"], "layers": [blind, records["BERT"]["layers"][1]]}}
    assert concluded("bidirectional", "gradients", changed).verdict == NOT
    half = {**records["BiLSTM of 2"]["layers"][1], "both": 0.5}
    changed = {**records, "BiLSTM of 2": {**records["BiLSTM of 2"], "layers": [half, half]}}
    found = concluded("bidirectional", "gradients", changed)
    assert found.verdict == SUPPORTED
    assert "In its second layer 50 % do" in found.says.en


def test_gpt_hides_what_follows_and_its_mask_does_it() -> None:
    records = exact("bert-vs-gpt", "causal-mask")
    found = concluded("bert-vs-gpt", "causal-mask", records)
    assert found.verdict == NOT
    masked, bare = records["GPT with a causal mask"], records["GPT without a causal mask"]
    assert masked["later"] == masked["zero_later"] == 2 * 4 * 120, "2 layers, 4 heads, 120 pairs"
    assert masked["zero_other"] == 0
    assert masked["from_library"] == 0
    assert "in 0 of 120 pairs" in found.says.en
    assert "15 of 15" in found.says.en
    assert records["BERT without a causal mask"]["zero_later"] == 0

    useless = {**records, "GPT without a causal mask": masked}
    assert concluded("bert-vs-gpt", "causal-mask", useless).verdict == SUPPORTED
    leaky = {**records, "GPT with a causal mask": bare}
    found = concluded("bert-vs-gpt", "causal-mask", leaky)
    assert found.verdict == DEPENDS
    assert "So GPT lacks" not in found.says.en


def test_parameters_agree_with_publication_and_files() -> None:
    records = exact("bert-parts", "parameter-table")
    found = concluded("bert-parts", "parameter-table", records)
    assert found.verdict == SUPPORTED
    assert (records["BERT-base"]["encoder"], records["BERT-base"]["everything"]) == (109_482_240, 110_106_428)
    assert (records["BERT-large"]["encoder"], records["BERT-large"]["everything"]) == (335_141_888, 336_226_108)
    assert records["BERT-base, Chinese"]["encoder"] == 102_267_648
    assert records["minilm"]["everything"] == records["minilm"]["file"] == 22_713_216
    assert records["mini-zh"]["everything"] == records["mini-zh"]["file"]
    one_more = {**records["BERT-base"], "encoder": 109_482_241}
    found = concluded("bert-parts", "parameter-table", {**records, "BERT-base": one_more})
    assert found.verdict == NOT
    assert "BERT-base: encoder" in found.says.en
    eleven = {**records["BERT-base"], "layers": 11}
    assert concluded("bert-parts", "parameter-table", {**records, "BERT-base": eleven}).verdict == NOT


def test_s1_draws_parts_of_the_transformer_and_calls_them_bert() -> None:
    records = exact("bert-parts", "not-bert")
    assert concluded("bert-parts", "not-bert", records).verdict == DEPENDS
    only_there = {"sinusoids", "ReLU", "causal decoder", "cross-attention"}
    assert {name for name in bert_parts.LOOKED_FOR if not records["BERT-base"][name]} == only_there
    assert all(records["Transformer-base"][name] for name in only_there)
    assert not records["Transformer-base"]["segment embeddings"]
    for name in ("BERT-base", "minilm", "mini-zh"):
        assert records[name]["learned positions"]
        assert records[name]["GELU"]
    assert not records["minilm"]["output over the vocabulary"], "it was published without its head"
    assert records["mini-zh"]["output over the vocabulary"]
    everything = dict.fromkeys(bert_parts.LOOKED_FOR, True)
    assert concluded("bert-parts", "not-bert", {**records, "BERT-base": everything}).verdict == SUPPORTED
    nothing = dict.fromkeys(bert_parts.LOOKED_FOR, False)
    assert concluded("bert-parts", "not-bert", {**records, "BERT-base": nothing}).verdict == NOT


def test_dropout_is_found_where_s4_says() -> None:
    records = exact("dropout-places", "places")
    found = concluded("dropout-places", "places", records)
    assert found.verdict == SUPPORTED
    drops = {name: {place: one["drops"] for place, one in record["places"].items()} for name, record in records.items()}
    four = {"embedding": "sum", "residual": "linear", "attention": "weights", "activation": "relu"}
    assert drops["Transformer"] == four
    assert drops["BERT"] == {**four, "embedding": "norm", "activation": "gelu"}
    assert drops["GPT"] == {**four, "activation": "gelu_tanh"}
    assert records["BERT"]["head"]["module"] == "heads.classify.dropout"
    assert records["BERT"]["places"]["residual"]["module"] == "encoder.stack.blocks.*.around_attention.dropout"
    assert not any(record["nowhere"]["differs"] for record in records.values())
    assert "BERT drops embeddings after their norm" in found.says.en

    ours = records["Transformer"]
    random = {**ours, "nowhere": {**ours["nowhere"], "differs": True}}
    assert concluded("dropout-places", "places", {**records, "Transformer": random}).verdict == NOT


def test_layers_are_counted_as_by_hand() -> None:
    records = exact("dropout-places", "layer-counts")
    bert, transformer = records["BERT-base"], records["Transformer-base"]
    # Of a BERT layer: Q K V O and two of the feed-forward network; two residual dropouts and the weights'; two norms.
    assert (bert["linear_separate"], bert["linear"]) == (12 * 6 + 2, 12 * 4 + 2)
    assert (bert["dropout"], bert["norm"], bert["attention"], bert["embedding"]) == (1 + 12 * 3 + 1, 1 + 12 * 2, 12, 3)
    # An encoder and a decoder layer of the Transformer; keys and values of the memory are one product.
    assert (transformer["linear_separate"], transformer["linear"]) == (6 * 6 + 6 * 10 + 1, 6 * 4 + 6 * 7 + 1)
    assert (transformer["dropout"], transformer["norm"], transformer["attention"]) == (2 + 6 * 4 + 6 * 6, 6 * 5, 18)
    assert concluded("dropout-places", "layer-counts", records).verdict == NOT
    many = {**bert, "dropout": 60}
    assert concluded("dropout-places", "layer-counts", {**records, "BERT-base": many}).verdict == DEPENDS
    most = {name: {**record, "dropout": 200} for name, record in records.items()}
    assert concluded("dropout-places", "layer-counts", most).verdict == SUPPORTED


def test_each_tie_saves_one_table() -> None:
    records = exact("weight-tying", "count-and-shape")
    assert concluded("weight-tying", "count-and-shape", records).verdict == SUPPORTED
    totals = [records[f"tie {tie}"]["parameters"] for tie in ("none", "target", "all")]
    # Six encoder layers of 3,152,384 and six decoder layers of 4,204,032, and one to three tables.
    assert totals == [6 * 3_152_384 + 6 * 4_204_032 + tables * 18_944_000 for tables in (3, 2, 1)]
    assert records["one tensor"]["gradient"] > 0.01
    wrong = {**records["one tensor"], "gradient_error": 1e-3}
    found = concluded("weight-tying", "count-and-shape", {**records, "one tensor": wrong})
    assert found.verdict == NOT
    assert "What fails: gradient" in found.says.en


def test_the_nearest_row_wins_among_equals_only() -> None:
    records = exact("weight-tying", "nearest-row")
    assert concluded("weight-tying", "nearest-row", records).verdict == DEPENDS
    assert records["equal lengths"]["wins"] == 1000
    assert records["lengths from 0.5 to 2"]["wins"] < 1000
    assert records["lengths from 0.5 to 2"]["by_length"][-1] == 1, "nobody is longer than the longest"
    all_win = {name: {**record, "wins": 1000} for name, record in records.items()}
    assert concluded("weight-tying", "nearest-row", all_win).verdict == SUPPORTED
    none = {**records, "equal lengths": {**records["equal lengths"], "wins": 999}}
    assert concluded("weight-tying", "nearest-row", none).verdict == NOT


# ablations: made-up records -------------------------------------------------------------------------------------------


def noisy(good: float, bad: float) -> Callable[[float], list[float]]:
    return lambda share: around(good if share else bad)


@pytest.mark.parametrize(
    ("one", "two", "verdict"),
    [
        ((5.0, 4.0, 4.0), (5.0, 4.0, 4.0), SUPPORTED),
        ((4.0, 5.0, 5.0), (4.0, 5.0, 5.0), NOT),
        ((5.0, 4.0, 4.0), (5.0, 5.0, 5.0), DEPENDS),
        ((5.0, 5.0, 5.0), (5.0, 5.0, 5.0), HIDDEN),
        ((5.0, 4.0, 6.0), (5.0, 4.0, 6.0), DEPENDS),
        ((5.0, 4.0, 5.0), (5.0, 4.0, 5.0), HIDDEN),
    ],
)
def test_tying_is_judged_half_way_and_by_alphabet(
    one: tuple[float, ...], two: tuple[float, ...], verdict: Verdict
) -> None:
    arms = {}
    for alphabet, losses in (("one alphabet", one), ("two alphabets", two)):
        for tie, loss in zip(weight_tying.TIES, losses, strict=True):
            noise = (0.0, 0.1, -0.1) if loss == losses[0] and tie != "none" else (0.0, 0.01, 0.02)
            arms[f"{alphabet}, tie {tie}"] = [
                {
                    "parameters": 9,
                    **{
                        f"{time}_{what}": loss + extra
                        for time in ("quarter", "half", "end")
                        for what in ("loss", "right")
                    },
                }
                for extra in noise
            ]
    assert concluded("weight-tying", "convergence", seeds(arms)).verdict == verdict


def test_ties_that_change_sides_depend_on_the_time() -> None:
    def arm(half: float, end: float) -> list[Record]:
        rest = {"parameters": 9, "quarter_loss": 7.0, "quarter_right": 0.1, "half_right": 0.1, "end_right": 0.2}
        return [{**rest, "half_loss": half + extra, "end_loss": end + extra} for extra in (0.0, 0.01, 0.02)]

    arms = {
        f"{alphabet}, tie {tie}": arm(6.0, 5.0) if tie == "none" else arm(5.0 + 0.1 * place, 5.5 + 0.1 * place)
        for alphabet in ("one alphabet", "two alphabets")
        for place, tie in enumerate(weight_tying.TIES)
    }
    arms = {
        name: [{**one, "half_loss": one["half_loss"] + 0.001 * n} for n, one in enumerate(records)]
        for name, records in arms.items()
    }
    assert concluded("weight-tying", "convergence", seeds(arms)).verdict == DEPENDS


@pytest.mark.parametrize(
    ("losses", "verdict"),
    [
        ([0.5, 0.6, 0.7, 0.8, 0.4], SUPPORTED),
        ([1.5, 1.6, 1.7, 1.8, 1.4], NOT),
        ([0.5, 1.6, 0.7, 1.8, 0.4], DEPENDS),
        ([0.5, None, 0.7, 0.8, 0.4], DEPENDS),
        ([1.0, 1.0, 1.0, 1.0, 1.0], HIDDEN),
    ],
)
def test_every_place_of_dropout_must_help(losses: list[float | None], verdict: Verdict) -> None:
    def arm(loss: float | None, wild: float) -> list[Record]:
        rest = {"train_loss": 0.1, "train_right": 1.0, "test_right": 0.8}
        return [{**rest, "test_loss": None if loss is None else loss + wild * extra} for extra in (0.0, 0.1, -0.09)]

    arms = {"none": arm(1.0, 0.0)}
    arms |= {
        name: arm(loss, 1.0 if loss == 1.0 else 0.1)
        for name, loss in zip([one for one in dropout_places.ARMS if one != "none"], losses, strict=True)
    }
    found = concluded("dropout-places", "by-place", seeds(arms))
    assert found.verdict == verdict
    if None in losses:
        assert "3 of 18 runs ended without a number" in found.says.en
        assert "3 次没有得到数值" in found.says.zh


def warm(effects: Mapping[tuple[str, str], float | None]) -> dict[str, Record]:
    """Records whose loss without warm-up is so much higher; None: uncertain."""
    arms: dict[str, list[Record]] = {}
    for (stack, rate), effect in effects.items():
        for arm in warmup.WARMUPS:
            extra = (0.0, 0.01, 0.02) if effect is not None else (0.3, -0.3, 0.01) if arm == "none" else (0.0, 0.0, 0.0)
            add = effect if effect is not None and arm == "none" else 0.0
            arms[warmup.arm_of(stack, rate, arm)] = [
                {
                    "loss": 6.0 + add + (one if arm == "none" else 0.0),
                    "diverged": False,
                    "highest_early": 8.5,
                    "losses": [8.0, 7.0],
                    "every": 5,
                    "frequencies": 6.6,
                }
                for one in extra
            ]
    return seeds(arms)


@pytest.mark.parametrize(
    ("post", "pre", "verdict"),
    [
        ((0.5, 0.5), (None, None), SUPPORTED),
        ((0.5, 0.5), (0.3, 0.3), SUPPORTED),
        ((0.5, 0.5), (None, -0.3), DEPENDS),
        ((-0.5, -0.5), (None, None), NOT),
        ((-0.5, 0.5), (None, None), DEPENDS),
        ((None, 0.5), (None, None), DEPENDS),
        ((None, None), (None, 0.2), DEPENDS),
        ((None, None), (None, None), HIDDEN),
    ],
)
def test_warm_up_must_help_post_norm_at_both_rates(
    post: tuple[float | None, float | None], pre: tuple[float | None, float | None], verdict: Verdict
) -> None:
    effects = dict(zip(warmup.CELLS, (*post, *pre), strict=True))
    assert concluded("warmup", "with-and-without", warm(effects)).verdict == verdict


def test_diverged_runs_are_counted_and_drawn_as_far_as_they_went() -> None:
    records = warm(dict.fromkeys(warmup.CELLS))
    name = named(warmup.arm_of("post-norm", "4e-3", "none"), 1)
    records[name] = {
        "loss": warmup.UNIFORM,
        "diverged": True,
        "highest_early": None,
        "losses": [],
        "every": 5,
        "frequencies": 6.6,
    }
    found = concluded("warmup", "with-and-without", records)
    assert "1 of 12 runs without warm-up, 0 of 12 with it" in found.says.en
    assert "无 warm-up 的 12 次中 1 次" in found.says.zh


@pytest.mark.parametrize(
    ("gains", "verdict"),
    [
        ((0.05, 0.05), SUPPORTED),
        ((-0.05, -0.05), NOT),
        ((0.05, -0.05), DEPENDS),
        ((0.05, 0), DEPENDS),
        ((0, 0), HIDDEN),
    ],
)
def test_smoothing_must_help_at_both_shares_of_noise(gains: tuple[float, float], verdict: Verdict) -> None:
    arms = {}
    for noise, gain in zip(label_noise.NOISE, (0.2, *gains), strict=True):
        for arm in label_noise.ARMS:
            extra = (0.0, 0.002, 0.004) if gain else (0.0, 0.05, -0.04)
            shift = [gain + one if arm == "smoothing" else 0.0 for one in extra]
            repeated = 0.3 if noise else None
            arms[f"{100 * noise:.0f} % replaced, {arm}"] = [
                {"accuracy": 0.8 + one, "wrong": noise, "repeated": repeated} for one in shift
            ]
    assert concluded("label-noise", "smoothing", seeds(arms)).verdict == verdict


@pytest.mark.parametrize(
    ("f1", "accuracy", "verdict"),
    [(0.05, 0.05, SUPPORTED), (-0.05, 0, NOT), (0.05, -0.05, DEPENDS), (0.05, 0, SUPPORTED), (0, 0.05, HIDDEN)],
)
def test_weights_must_raise_macro_f1(f1: float, accuracy: float, verdict: Verdict) -> None:
    def arm(weighted: bool) -> list[Record]:
        return [
            {
                "macro_f1": 0.7 + weighted * (f1 + (0.1 if f1 else 2.0) * extra),
                "accuracy": 0.7 + weighted * (accuracy + (0.1 if accuracy else 2.0) * extra),
                "precision": 0.5,
                "recall": 0.9,
                "right_share": 0.39,
            }
            for extra in (0.0, 0.03, -0.02)
        ]

    records = seeds({"plain": arm(False), "weights": arm(True)})
    assert concluded("label-noise", "class-weights", records).verdict == verdict


@pytest.mark.parametrize(
    ("gap", "following", "verdict"),
    [(0.5, 0.5, SUPPORTED), (-0.5, -0.5, NOT), (0.5, -0.5, DEPENDS), (0.5, None, DEPENDS), (None, None, HIDDEN)],
)
def test_each_must_win_what_it_was_trained_for(gap: float | None, following: float | None, verdict: Verdict) -> None:
    def scores(bert: bool) -> list[Record]:
        records = []
        for extra in (0.0, 0.02, -0.01):
            shift_gap = extra * 50 if gap is None else gap + extra
            shift_next = extra * 50 if following is None else following + extra
            records.append(
                {
                    "cloze_log": -6.0 + bert * shift_gap,
                    "next_log": -6.0 + (not bert) * shift_next,
                    "run_log": -6.0 + (not bert) * shift_next,
                    **dict.fromkeys(("cloze_right", "next_right", "run_right"), 0.1),
                }
            )
        return records

    records = seeds({"BERT": scores(True), "GPT": scores(False)})
    assert concluded("bert-vs-gpt", "cloze-and-generation", records).verdict == verdict
    records[named("GPT", 0)].update(cloze_log=None, next_log=None, run_log=None)
    records[named("GPT", 1)].update(cloze_log=None, next_log=None, run_log=None)
    found = concluded("bert-vs-gpt", "cloze-and-generation", records)
    assert found.verdict == HIDDEN, "one pair of seeds is no evidence"
    assert "2 of 6 runs" in found.says.en


def separate(auc: float, across: float, words: int) -> Record:
    return {
        "words": {
            str(word): {"uses": 8, "auc": [0.5, auc + 0.01 * word], "across": [0.5, across + 0.01 * word]}
            for word in range(words)
        }
    }


@pytest.mark.parametrize(
    ("zh", "across", "en", "verdict"),
    [
        (0.8, 0.7, 0.9, SUPPORTED),
        (0.8, 0.48, 0.9, DEPENDS),
        (0.8, 0.7, 0.49, DEPENDS),
        (0.48, 0.48, 0.49, HIDDEN),
        (0.3, 0.3, 0.3, NOT),
    ],
)
def test_senses_must_be_told_apart_in_both_models(zh: float, across: float, en: float, verdict: Verdict) -> None:
    timed = {"updates": 10, "train_seconds": 60.0, "gaps": 2000, "gap_log": -6.0, "gap_right": 0.1}
    records = {
        "mini-zh": separate(zh, across, 5),
        "minilm": separate(en, en, 4),
        **seeds({"CBOW": [{**timed, "auc": [0.5], "largest": 0.0}] * 2, "BERT": [timed] * 2}),
    }
    assert concluded("bert-vs-cbow", "two-senses", records).verdict == verdict
    records[named("CBOW", 0)] = {**timed, "auc": [0.5, 0.6], "largest": 0.1}
    assert concluded("bert-vs-cbow", "two-senses", records).verdict == NOT, "a table has one vector a word"


# small trials, really run ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("question", "name"),
    [
        ("weight-tying", "convergence"),
        ("dropout-places", "by-place"),
        ("warmup", "with-and-without"),
        ("label-noise", "smoothing"),
        ("label-noise", "class-weights"),
        ("bert-vs-gpt", "cloze-and-generation"),
    ],
)
def test_a_small_trial_gives_what_its_conclusion_needs(question: str, name: str) -> None:
    assert concluded(question, name, first_small(question, name)).verdict == HIDDEN


def test_senses_and_one_vector_a_word_on_few_sentences() -> None:
    records = {name: bert_vs_cbow.separated(name, 2) for name in ("mini-zh", "minilm")}
    cbow = bert_vs_cbow.cbow_trial(0.0, 2, 64, 0)
    assert cbow["auc"] == [0.5]
    assert cbow["largest"] == 0
    assert records["minilm"]["words"]["bank"]["uses"] == 12
    assert records["minilm"]["words"]["light"]["auc"][-1] > 0.9
    assert concluded("bert-vs-cbow", "two-senses", {**records, "CBOW, seed 0": cbow, "BERT, seed 0": cbow})


# the kit --------------------------------------------------------------------------------------------------------------


def test_gaps_show_both_sides_or_the_left_alone() -> None:
    gap = Gap(tuple(range(10, 42)), 12)
    asked = cloze(gap)
    assert asked.sequence == [CLS, *range(10, 22), MASK, *range(23, 42), SEP]
    assert asked.sequence[asked.place] == MASK
    assert asked.answer == 22
    following = next_of(gap, 2)
    assert following.sequence == [CLS, *range(10, 24), MASK, SEP]
    assert following.sequence[following.place] == MASK
    assert following.answer == 24
    assert gap.answers == tuple(range(22, 30))


def test_guesses_are_log_probabilities_of_the_answers() -> None:
    asked = [cloze(gap) for gap in gaps_of.gaps(3)]
    answers = torch.tensor([one.answer for one in asked])

    def logits(batch: object, rows: torch.Tensor) -> torch.Tensor:
        found = torch.zeros(len(rows), 4000)
        found[torch.arange(len(rows)), answers] = math.log(3999.0)  # as likely as all others together
        return found

    found = guesses(logits, asked)
    assert torch.allclose(found[:, 0], torch.full((3,), math.log(0.5), dtype=torch.float64), atol=1e-6)
    assert found[:, 1].tolist() == [1, 1, 1]


def test_compounds_are_found_where_they_are_words() -> None:
    both = ("银行", "行业")
    assert senses.alone("行", both, "他去银行取钱。") == {"银行": 3}
    assert senses.alone("行", both, "银行业的发展。") == {}
    assert senses.alone("行", both, "银行业的银行") == {"银行": 5}
    mayor = senses.CHINESE["长"][0][1]
    assert senses.alone("长", (mayor,), "合肥市长江路") == {}
    assert senses.alone("长", (mayor,), "副市长讲话") == {mayor: 2}
    assert senses.alone("花", (senses.CHINESE["花"][1][1],), "对水仙花了解") == {}
    uses = senses.chinese(2)
    assert all(use.sentence[use.place] == use.word for use in uses)
    assert len(uses) == 5 * 4 * 2


def test_separation_is_the_area_under_the_curve() -> None:
    uses = [senses.Use("x", sense, compound, "", 0) for sense, compound in ((0, "a"), (0, "a"), (0, "b"), (1, "c"))]
    apart = torch.tensor([[0, 1, 3, 2], [1, 0, 4, 5], [3, 4, 0, 3], [2, 5, 3, 0]], dtype=torch.float64)
    # Same sense: 1, 3, 4; different: 2, 5, 3. Nine comparisons: 3 + 1.5 + 1.
    assert senses.separation(apart, uses, senses.same_sense) == pytest.approx(5.5 / 9)
    # Across compounds: 3 and 4 alone.
    assert senses.separation(apart, uses, senses.across_compounds) == pytest.approx(2.5 / 6)


def test_cosine_distances_are_exact_for_equal_vectors() -> None:
    vectors = torch.randn(1, 7, dtype=torch.float64).repeat(3, 1)
    assert senses.distances(vectors).abs().max() == 0
    two = torch.tensor([[1.0, 0.0], [1.0, 1.0]], dtype=torch.float64)
    assert float(senses.distances(two)[0, 1]) == pytest.approx(1 - math.sqrt(0.5))


def test_made_up_translations_share_all_letters_or_none() -> None:
    import numpy as np

    text = np.arange(100, 120)
    ((source, target),) = pairs([text], "one alphabet", np.random.default_rng(0))
    assert target == text.tolist()
    assert {one for one, other in zip(source, target, strict=True) if one != other} <= {MASK}
    ((_, other),) = pairs([text], "two alphabets", np.random.default_rng(0))
    assert other == (text + 4000).tolist()


def test_noise_replaces_the_share_it_says() -> None:
    gold = [n % 10 for n in range(20_000)]
    given = label_noise.uniform_noise(gold, 10, 0.4, seed=0)
    assert sum(a != b for a, b in zip(given, gold, strict=True)) / len(gold) == pytest.approx(0.36, abs=0.01)
    given = label_noise.two_labels_noise(gold, [3, 7], seed=0)
    assert all(a == b for a, b in zip(given, gold, strict=True) if b in (3, 7))
    shares = label_noise.right_shares(given, gold, 10)
    assert shares[0] == 1
    assert shares[3] == pytest.approx(1 / (1 + 8 * 0.4 / 2), abs=0.02)


def test_pairs_without_a_number_are_left_out() -> None:
    records = seeds({"a": [{"x": 1.0}, {"x": None}, {"x": 3.0}], "b": [{"x": 0.5}, {"x": 0.0}, {"x": 2.0}]})
    effect = conclude_paired(records, "a", "b", "x")
    assert effect.mean == pytest.approx(0.75)
    assert conclude_lost(records, "x").en == " 1 of 6 runs ended without a number and are left out."
    alone = conclude_paired(seeds({"a": [{"x": 1.0}], "b": [{"x": None}]}), "a", "b", "x")
    assert math.isnan(alone.low)
    assert conclude_points([alone, Effect(1.0, math.nan, math.nan)])[0][:2] == (1, 1.0)
    assert conclude_than(alone).en == "not told apart from"


def test_calls_are_counted_whoever_makes_them() -> None:
    layer = torch.nn.Linear(2, 2)
    with watching.Calls() as found:
        torch.nn.functional.dropout(layer(torch.ones(1, 2)), 0.5)
    assert dict(found.counts) == {"linear": 1, "dropout": 1}
