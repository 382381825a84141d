"""Conclusions follow from records alone: whatever the numbers, the verdict is the method's, and it is told in words."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import pytest

from unmask.lab.catalogue import entry_of, parts_of
from unmask.lab.draw import draw
from unmask.lab.entry import Conclusion, Plan, Record, Verdict
from unmask.lab.kit.effects import named

_HAN = re.compile("[\u4e00-\u9fff]")
UP, DOWN, BOTH, HIDDEN = Verdict.SUPPORTED, Verdict.NOT_SUPPORTED, Verdict.DEPENDS, Verdict.NOT_VISIBLE
Arms = Mapping[str, Mapping[str, float]]


def told(question: str, part: str, records: Mapping[str, Record], verdict: Verdict) -> Conclusion:
    """The conclusion, which must have the verdict, be told in both languages and be drawn without a fault."""
    conclusion = parts_of(entry_of(question))[part].conclude(records)
    assert conclusion.verdict == verdict, conclusion.says.en
    assert len(conclusion.says.en) > 40
    assert not _HAN.search(conclusion.says.en)
    assert _HAN.search(conclusion.says.zh)
    for picture in conclusion.pictures:
        assert picture.reading.en
        assert _HAN.search(picture.reading.zh)
        assert all("<svg" in draw(picture, language) for language in ("en", "zh"))
    if conclusion.table is not None:
        assert {len(row) for row in conclusion.table.rows} == {len(conclusion.table.columns)}
    return conclusion


def seeds(arms: Arms, loose: Sequence[str] = ()) -> dict[str, Record]:
    """Three seeds of each arm: alike but for a common part, and with much chance in the loose ones."""
    records: dict[str, Record] = {}
    for arm, values in arms.items():
        for seed, (common, chance) in enumerate(zip((0.0, 0.02, -0.02), (0.3, -0.3, 0.1), strict=True)):
            shift = common + (chance if arm in loose else 0.0)
            records[named(arm, seed)] = {name: value + shift for name, value in values.items()}
    return records


def scores(values: Mapping[str, float], more: Mapping[str, float] | None = None) -> dict[str, dict[str, float]]:
    """Arms with one score each, and what all have beside it."""
    rest = {"parameters": 9.0, "accuracy": 0.5, "seconds": 1.0, **(more or {})}
    return {arm: {"score": value, **rest} for arm, value in values.items()}


def _scale(recall: float, xavier: float, bert: float) -> Arms:
    plain = {f"recall, d_k {width}": recall for width in (8, 64, 256)}
    plain |= {"MLM, Xavier": xavier, "MLM, 0.02": bert}
    return scores(
        {f"{arm}, {kind}": 3 + (kind == "plain") * gap for arm, gap in plain.items() for kind in ("plain", "scaled")}
    )


@pytest.mark.parametrize(
    ("gaps", "verdict"),
    [((1, 1, 0), UP), ((1, 1, 1), UP), ((1, 1, -1), BOTH), ((-1, -1, 0), DOWN), ((1, -1, 0), BOTH), ((1, 0, 0), BOTH)],
)
def test_scale(gaps: tuple[float, float, float], verdict: Verdict) -> None:
    told("scale-sqrt-dk", "training", seeds(_scale(*gaps)), verdict)


def test_scale_where_nothing_is_seen_and_where_runs_diverge() -> None:
    arms = _scale(0.01, 0.01, 0.01)
    records = seeds(arms, [arm for arm in arms if arm.endswith("plain")])
    told("scale-sqrt-dk", "training", records, HIDDEN)
    first = next(iter(records.values()))
    first["diverged"] = True
    assert "1 of 30 runs diverged" in told("scale-sqrt-dk", "training", records, HIDDEN).says.en


@pytest.mark.parametrize(
    ("question", "arms", "base"),
    [
        ("no-projections", ("none", "none, wider"), "separate"),
        ("head-dim", ("16×32", "4×32, ffn 1280"), "4×128"),
    ],
)
def test_two_arms_against_one(question: str, arms: tuple[str, str], base: str) -> None:
    sign = 1 if question == "no-projections" else -1  # of head-dim the base is the one that is judged
    every = {"4×32": 5.0} if question == "head-dim" else {}
    for first, second, verdict in ((1, 1, UP), (-1, -1, DOWN), (1, -1, BOTH), (1, 0, BOTH), (0, 0, HIDDEN)):
        values = {base: 5.0, arms[0]: 5 + sign * first, arms[1]: 5 + sign * second}
        told(question, "training", seeds(scores({**every, **values}, {"mass": 0.3})), verdict)
    values = {base: 5.0, arms[0]: 5.1, arms[1]: 5.1}
    told(question, "training", seeds(scores({**every, **values}, {"mass": 0.3}), arms), HIDDEN)


@pytest.mark.parametrize(
    ("gaps", "verdict"),
    [((1, 1, 1), UP), ((-1, -1, -1), DOWN), ((1, 1, -1), BOTH), ((0, 0, 0), HIDDEN), ((1, 0, 0), BOTH)],
)
def test_shared_matrices(gaps: tuple[int, int, int], verdict: Verdict) -> None:
    same, wider, left = gaps
    values = {"MLM, separate": 5.0, "MLM, shared": 5.0 + same, "MLM, shared, wider": 5.0 + wider}
    values |= {"left, separate": 2.0 + left, "left, shared": 2.0}
    told("qk-shared", "training", seeds(scores(values)), verdict)


@pytest.mark.parametrize(
    ("far", "near", "verdict"), [(1, 0, UP), (-1, 0, DOWN), (1, 1, BOTH), (0, 0, HIDDEN), (1, 2, BOTH), (-1, -2, DOWN)]
)
def test_what_grows_with_width_or_distance(far: float, near: float, verdict: Verdict) -> None:
    gap = {8: near, 64: 0.5, 256: far}
    values = {f"{name}, d_k {w}": 2 + (name == "dot") * gap[w] for name in ("dot", "scaled", "additive") for w in gap}
    told("dot-vs-additive", "width", seeds(scores(values)), verdict)
    gap = {8: near, 32: 0.5, 128: far}
    values = {
        f"{name}, distance {n}": 3 + (name == "attention") * gap[n] for name in ("attention", "LSTM") for n in gap
    }
    told("self-attention-reach", "copy-over-distance", seeds(scores(values, {"gradient": 0.1})), verdict)


@pytest.mark.parametrize(
    ("root", "one", "verdict"),
    [(0.0, 0.0, UP), (0.2, 0.2, DOWN), (0.0, 0.2, BOTH), (-0.3, -0.3, UP), (0.2, 0.0, BOTH)],
)
def test_layer_norm_in_place_of_the_scale(root: float, one: float, verdict: Verdict) -> None:
    values = {"scaled": 5.0, "plain": 5.5, "norm, gains 1": 5 + one, "norm, gains d^-1/4": 5 + root}
    told("qk-layernorm", "training", seeds(scores(values, {"largest": 20.0})), verdict)


def test_layer_norm_where_nothing_is_seen() -> None:
    values = {"scaled": 5.0, "plain": 5.5, "norm, gains 1": 5.0, "norm, gains d^-1/4": 5.0}
    records = seeds(scores(values, {"largest": 20.0}), ["norm, gains d^-1/4", "norm, gains 1"])
    told("qk-layernorm", "training", records, HIDDEN)


@pytest.mark.parametrize(
    ("losses", "verdict"),
    [
        ((5, 4, 4, 4, 4), UP),
        ((5, 5, 4, 4, 5), UP),
        ((5, 5, 5, 5, 4), HIDDEN),
        ((5, 5, 5, 5, 6), DOWN),
        ((5, 4, 4, 4, 6), BOTH),
        ((5, 5, 5, 5, 5), HIDDEN),
    ],
)
def test_number_of_heads(losses: tuple[int, ...], verdict: Verdict) -> None:
    values = {f"{heads} heads": float(loss) for heads, loss in zip((1, 2, 4, 8, 16), losses, strict=True)}
    told("many-heads", "number", seeds(scores(values)), verdict)


def _rates(score: Mapping[int, float], single: Mapping[int, float]) -> Arms:
    return {
        f"{rate} %": {"score": 5 + score.get(rate, 0), "single": 4 + single.get(rate, 0)}
        for rate in (5, 10, 15, 20, 30, 50)
    }


@pytest.mark.parametrize(
    ("score", "single", "verdict"),
    [
        ({5: 1, 30: 1, 50: 1}, {5: 1, 50: 1}, UP),
        ({50: -1}, {30: -1}, DOWN),
        ({10: 0.2}, {20: 0.2}, DOWN),
        ({5: 1}, {50: -1}, BOTH),
        ({}, {}, HIDDEN),
    ],
)
def test_mask_rate(score: Mapping[int, float], single: Mapping[int, float], verdict: Verdict) -> None:
    told("mask-rate", "rates", seeds(_rates(score, single)), verdict)
    loose = seeds(_rates(score, single), ["5 %", "10 %", "20 %", "30 %", "50 %"])
    if verdict == HIDDEN:
        told("mask-rate", "rates", loose, HIDDEN)


@pytest.mark.parametrize(
    ("probe", "tuned", "verdict"),
    [
        ((1, 1), (1, 1), UP),
        ((-1, 0), (0, -1), DOWN),
        ((1, 1), (-1, -1), BOTH),
        ((0, 0), (0, 0), HIDDEN),
        ((1, 1), (0, 0), BOTH),
    ],
)
def test_mask_shares(probe: tuple[int, int], tuned: tuple[int, int], verdict: Verdict) -> None:
    gaps = {"100/0/0": (probe[0], tuned[0]), "80/0/20": (probe[1], tuned[1])}
    arms = {}
    for arm in ("100/0/0", "80/10/10", "80/0/20", "0/0/100"):
        first, second = gaps.get(arm, (0, 0))
        arms[arm] = {"probe": 5.0 - first, "tuned": 5.0 - second, "at_masks": 5.0, "copied": 0.5 + (arm == "0/0/100")}
    conclusion = told("mask-80-10-10", "shares", seeds(arms), verdict)
    assert "more by 0/0/100." in conclusion.says.en


@pytest.mark.parametrize(("pairs", "titles", "verdict"), [(0, 0, UP), (-0.2, 0, UP), (0.2, 0, DOWN), (0.2, 0.2, DOWN)])
def test_nsp(pairs: float, titles: float, verdict: Verdict) -> None:
    told("nsp-needed", "objectives", seeds(_nsp(pairs, titles)), verdict)


def _nsp(pairs: float, titles: float) -> Arms:
    base = {"pairs": 0.7, "headlines": 0.6, "loss": 6.0}
    return {"MLM": base, "MLM + NSP": {**base, "pairs": 0.7 + pairs, "headlines": 0.6 + titles}, "MLM + SOP": base}


def test_nsp_where_chance_is_large() -> None:
    records = seeds(_nsp(0, 0), ["MLM + NSP"])
    told("nsp-needed", "objectives", records, HIDDEN)
    for seed in range(3):
        records[named("MLM + NSP", seed)]["headlines"] = records[named("MLM", seed)]["headlines"]
    told("nsp-needed", "objectives", records, BOTH)


def test_nsp_on_a_task_that_nobody_learned() -> None:
    arms = {arm: {**values, "pairs": 0.5} for arm, values in _nsp(0, 0).items()}
    told("nsp-needed", "objectives", seeds(arms), BOTH)
    told("nsp-needed", "objectives", seeds({arm: {**one, "headlines": 0.1} for arm, one in arms.items()}), HIDDEN)


@pytest.mark.parametrize(
    ("half", "end", "verdict"), [(1, 1, UP), (-1, -1, DOWN), (1, -1, BOTH), (1, 0, BOTH), (0, 0, HIDDEN)]
)
def test_equal_tokens(half: float, end: float, verdict: Verdict) -> None:
    base = {"quarter": 7.0, "half": 6.5, "end": 6.0, "seconds_an_update": 0.1}
    arms = {"MLM": {**base, "half": 6.5 + half, "end": 6 + end}, "left-to-right": base, "left-to-right, 15 %": base}
    told("mlm-vs-left-to-right", "equal-tokens", seeds(arms), verdict)


@pytest.mark.parametrize(
    ("first", "mean", "verdict"),
    [
        ((1, 1), (0, 0), UP),
        ((-1, -1), (0, 0), DOWN),
        ((1, 1), (-1, -1), DOWN),
        ((1, -1), (0, 0), BOTH),
        ((0, 0), (0, 0), HIDDEN),
    ],
)
def test_pooling(first: tuple[int, int], mean: tuple[int, int], verdict: Verdict) -> None:
    values: dict[str, float] = {}
    for number, start in enumerate(("mini-zh", "new")):
        arms = {"cls": 5.0, "mean": 5.0 - mean[number], "max": 5.0, "first": 5.0 - first[number]}
        values |= {f"{start}, {arm}": value for arm, value in arms.items()}
    told("cls-token", "pooling", seeds(scores(values)), verdict)


def _look(even: float, own: float) -> Record:
    layers = {name: [[0.5, 0.4, 0.6]] * 2 for name in ("cls_even", "word_even", "cls_self", "word_self", "into_cls")}
    gaps = {"even_gap": [even, even, even], "self_gap": [own, own, own], "received": [2.0, 1.9, 2.1]}
    return {**layers, **gaps, "texts": 3, "layers": 2}


@pytest.mark.parametrize(
    ("minilm", "minizh", "verdict"),
    [((1, -1), (1, -1), UP), ((-1, 1), (-1, -1), DOWN), ((1, -1), (-1, -1), BOTH), ((1, 1), (1, -1), BOTH)],
)
def test_how_cls_looks(minilm: tuple[float, float], minizh: tuple[float, float], verdict: Verdict) -> None:
    told("cls-token", "attention", {"minilm": _look(*minilm), "mini-zh": _look(*minizh)}, verdict)


@pytest.mark.parametrize(
    ("slices", "full", "verdict"), [(0.8, 0.9, UP), (0.15, 0.1, DOWN), (0.3, 0.9, BOTH), (0.45, 0.45, BOTH)]
)
def test_diagonal_mass(slices: float, full: float, verdict: Verdict) -> None:
    masses = {"trained": 0.1, "slices": slices, "full": full}
    one: Record = {way: [mass] * 4 for way, mass in masses.items()} | {"even": 0.02, "texts": 3}
    one |= {f"{way} mean": [mass, mass, mass] for way, mass in masses.items()}
    told("no-projections", "diagonal-mass", {"minilm": one, "mini-zh": one}, verdict)


@pytest.mark.parametrize(("heads", "verdict"), [(0.5, UP), (0.01, DOWN), (0.08, BOTH)])
def test_diversity(heads: float, verdict: Verdict) -> None:
    values = {"heads": heads, "random": 0.05, "neighbours": 0.2}
    one: Record = {kind: [value] * 4 for kind, value in values.items()} | {"doubles": 1, "pairs": 24}
    one |= {f"{kind} mean": [value, value - 0.01, value + 0.01] for kind, value in values.items()}
    told("many-heads", "diversity", {"minilm": one, "mini-zh": one}, verdict)


@pytest.mark.parametrize(
    ("low", "drop", "verdict"), [(0.1, 0.05, DOWN), (-0.1, 0.0001, UP), (-0.1, 0.05, BOTH), (0.1, 0.0001, BOTH)]
)
def test_removal(low: float, drop: float, verdict: Verdict) -> None:
    single = {f"{layer} {head}": [0.2, low, 0.3] for layer in range(4) for head in range(4)}
    steps = [{"layer": 0, "head": 0, "loss": 5.0, "accuracy": 0.3 - drop * n} for n in range(1, 13)]
    record = {"loss": 4.0, "accuracy": 0.3, "single": single, "steps": steps}
    told("many-heads", "removal", {"mini-zh": record}, verdict)


@pytest.mark.parametrize(("right", "verdict"), [(1950, UP), (1800, HIDDEN), (900, HIDDEN)])
def test_nsp_accuracy(right: int, verdict: Verdict) -> None:
    record = {"pairs": 2000, "right": right, "judged": 1400, "threshold": 4, "false": 1000}
    told("nsp-needed", "nsp-accuracy", {"mini-zh": record}, verdict)


def _times(seconds: dict[str, float]) -> Record:
    noisy = {name: [value * noise for noise in (1.0, 1.001, 0.999)] for name, value in seconds.items()}
    return {"seconds": noisy, "largest": 2048, "added_parameters": 256, "bytes": dict.fromkeys(seconds, 2**20)}


@pytest.mark.parametrize(("n_power", "verdict"), [(2.0, UP), (1.0, DOWN), (1.7, BOTH)])
def test_time_of_attention(n_power: float, verdict: Verdict) -> None:
    seconds: dict[str, float] = {}
    sizes = [*((n, 256) for n in (256, 512, 1024, 2048)), *((1024, d) for d in (64, 128, 256, 512, 1024))]
    for n, d in sizes:
        seconds |= {f"{step} {n} × {d}": n**n_power * d * 1e-9 for step in ("scores", "mean", "whole")}
        seconds[f"softmax {n} × {d}"] = n**n_power * 1e-9
    told("attention-cost", "time", {"times": _times(seconds)}, verdict)


@pytest.mark.parametrize(("power", "verdict"), [(0.0, UP), (1.0, DOWN), (0.5, BOTH)])
def test_time_of_heads(power: float, verdict: Verdict) -> None:
    seconds = {
        f"{kind} {m}": m**power for kind in ("products", "softmax", "whole", "fused") for m in (1, 2, 4, 8, 12, 16)
    }
    told("multi-head-cost", "time", {"times": _times(seconds)}, verdict)


@pytest.mark.parametrize(("ratio", "verdict"), [(5.0, UP), (0.5, DOWN), (1.0, BOTH)])
def test_speed_of_addition(ratio: float, verdict: Verdict) -> None:
    sizes = [(32, 32), (64, 32), (128, 32), (256, 32), (128, 16), (128, 64), (128, 128)]
    seconds = {
        f"{kind} {n} × {d}": n * n * (ratio if kind == "additive" else 1)
        for kind in ("dot", "additive")
        for n, d in sizes
    }
    told("dot-vs-additive", "speed", {"times": _times(seconds)}, verdict)


@pytest.mark.parametrize(
    ("short", "long", "verdict"), [(1.2, 1.3, UP), (0.9, 0.8, DOWN), (1, 1, HIDDEN), (1.2, 1, BOTH)]
)
def test_cost_of_layer_norm(short: float, long: float, verdict: Verdict) -> None:
    seconds = {
        f"{place}, {n}, {way}, {score}": {128: short, 512: long}[n] if score == "normed_dot" else 1.0
        for place in ("attention", "block")
        for n in (128, 512)
        for way in ("forward", "both")
        for score in ("scaled_dot", "normed_dot")
    }
    told("qk-layernorm", "cost", {"times": _times(seconds)}, verdict)


def test_exact_parts_can_fail() -> None:
    """Records that are not what theory says give another verdict."""
    lengths = {str(n): {"runs": True, "said": ""} for n in (511, 512, 513, 1024)}
    wrong = dict.fromkeys(("learned", "sinusoidal", "rotary"), lengths)
    longer = {
        f"mini-zh, {way}": {**lengths, "apart": 0.0, "longest": 500} for way in ("random", "repeated", "hierarchical")
    }
    told("limit-512", "positions", {**wrong, **longer}, DOWN)
    counts = {"parameters": 10, "projections": 10, "scores": 10, "mean": 10, "rank": 4}
    told("head-dim", "counts", dict.fromkeys(("12×64", "12×768", "1×768"), counts), DOWN)


def test_every_part_of_these_questions_is_there() -> None:
    names = """scale-sqrt-dk padding-mask attention-cost multi-head-cost limit-512 qk-shared head-dim no-projections
    dot-vs-additive qk-layernorm cls-token many-heads mask-rate mask-80-10-10 nsp-needed mlm-vs-left-to-right
    self-attention-reach"""
    for name in names.split():
        entry = entry_of(name)
        assert set(parts_of(entry)) == {method.name for method in entry.parts}
        for method in entry.parts:
            if method.kind == "ablation":
                trials = parts_of(entry)[method.name].trials(Plan(seeds=3))
                assert len(trials) % 3 == 0
                assert sum(trial.name.endswith("seed 2") for trial in trials) == len(trials) // 3
