"""Wrong labels: does label smoothing help where labels are wrong at random, do class weights where two labels are?"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import numpy as np
import torch
from torch import Tensor

from unmask.lab.entry import Conclusion, Part, Plan, Record, Trial, Verdict
from unmask.lab.kit.classify import Examples, batches_of, classifier_settings, logits
from unmask.lab.kit.effects import named, sided
from unmask.lab.kit.fitting import Fit, fit, seeded
from unmask.lab.kit.labelled import Labelled, labelled
from unmask.lab.kit.pairing import conclude_arm, conclude_bars, conclude_paired
from unmask.lab.words import Text
from unmask.metrics.classes import class_scores
from unmask.models.bert import Bert
from unmask.models.init import build_model, start_as_sinusoids
from unmask.train.losses import cross_entropy, weight_of

SPOILT = ("sports", "game")
NOISE = (0.0, 0.2, 0.4)
ARMS = ("plain", "smoothing")
WEIGHTS = ("plain", "weights")
_WRONG = 0.4  # of the headlines of the other classes get one of the spoilt labels


def uniform_noise(labels: list[int], classes: int, share: float, seed: int) -> list[int]:
    """A share of the labels replaced by one of all classes, drawn at random; it may be the right one again."""
    rng = np.random.default_rng(seed)
    replaced = rng.random(len(labels)) < share
    drawn = rng.integers(classes, size=len(labels))
    return [int(new) if flag else old for old, new, flag in zip(labels, drawn, replaced, strict=True)]


def two_labels_noise(labels: list[int], spoilt: list[int], seed: int) -> list[int]:
    """Two labels given to a share of the examples of all other classes."""
    rng = np.random.default_rng(seed)
    replaced = rng.random(len(labels)) < _WRONG
    drawn = rng.integers(len(spoilt), size=len(labels))
    return [
        spoilt[int(new)] if flag and old not in spoilt else old
        for old, new, flag in zip(labels, drawn, replaced, strict=True)
    ]


def right_shares(given: list[int], gold: list[int], classes: int) -> list[float]:
    """For each label, how many of the examples that have it have it rightly."""
    found = []
    for label in range(classes):
        own = [true for one, true in zip(given, gold, strict=True) if one == label]
        found.append(sum(true == label for true in own) / len(own) if own else 1.0)
    return found


def learned(
    data: Labelled, given: Examples, updates: int, seed: int, smoothing: float = 0.0, weights: Tensor | None = None
) -> Bert:
    """A small classifier trained on labels of which some are wrong."""
    generator = seeded(seed)
    model = build_model(classifier_settings(data.vocab, len(data.labels), {}), seed=seed)
    assert isinstance(model, Bert)
    start_as_sinusoids(model)
    draw = batches_of(given, 32)

    def loss(number: int) -> Tensor:
        some = draw(number, generator)
        targets = torch.tensor(some.labels)
        return cross_entropy(logits(model, some), targets, smoothing, weights) / weight_of(targets, weights)

    fit(model, loss, Fit(updates))
    return model


@torch.inference_mode()
def predicted(model: Bert, examples: Examples) -> list[int]:
    """The best label of each."""
    found: list[int] = []
    for first in range(0, len(examples), 128):
        part = examples.some(list(range(first, min(first + 128, len(examples)))))
        found += logits(model, part).argmax(-1).tolist()
    return found


def _some(data: Labelled, count: int) -> Examples:
    return data.train.some(list(range(min(count, len(data.train)))))


def smoothing_trial(noise: float, arm: str, sizes: tuple[int, int], seed: int) -> Record:
    """Uniform noise, with or without smoothing by its share (by 0.1 where there is none)."""
    count, updates = sizes
    data = labelled("thucnews-10k")
    clean = _some(data, count)
    labels = uniform_noise(clean.labels, len(data.labels), noise, seed)
    model = learned(data, Examples(clean.sequences, labels), updates, seed, (noise or 0.1) * (arm == "smoothing"))
    wrong = [number for number, (one, gold) in enumerate(zip(labels, clean.labels, strict=True)) if one != gold]
    repeated = predicted(model, clean.some(wrong)) if wrong else []
    scores = class_scores(data.test.labels, predicted(model, data.test), len(data.labels))
    return {
        "accuracy": scores.accuracy,
        "wrong": len(wrong) / len(clean),
        "repeated": sum(one == labels[n] for one, n in zip(repeated, wrong, strict=True)) / len(wrong)
        if wrong
        else None,
    }


def weights_trial(arm: str, sizes: tuple[int, int], seed: int) -> Record:
    """Two labels often wrong, with or without weights that say how often each label is right."""
    count, updates = sizes
    data = labelled("thucnews-10k")
    clean = _some(data, count)
    spoilt = [data.labels.index(label) for label in SPOILT]
    labels = two_labels_noise(clean.labels, spoilt, seed)
    shares = right_shares(labels, clean.labels, len(data.labels))
    model = learned(
        data,
        Examples(clean.sequences, labels),
        updates,
        seed,
        weights=torch.tensor(shares) if arm == "weights" else None,
    )
    scores = class_scores(data.test.labels, predicted(model, data.test), len(data.labels))
    two = [scores.table[label] for label in spoilt]
    return {
        "accuracy": scores.accuracy,
        "macro_f1": scores.table.macro.f1,
        "precision": sum(one.precision for one in two) / len(two),
        "recall": sum(one.recall for one in two) / len(two),
        "right_share": sum(shares[label] for label in spoilt) / len(spoilt),
    }


def _sizes(plan: Plan) -> tuple[int, int]:
    count, epochs = plan.at(320, 7000), plan.at(1, 4)
    return count, epochs * -(-count // 32)


def _name(noise: float, arm: str) -> str:
    return f"{100 * noise:.0f} % replaced, {arm}"


def _smoothing_trials(plan: Plan) -> list[Trial]:
    sizes = _sizes(plan)
    return [
        Trial(
            named(_name(noise, arm), seed),
            partial(smoothing_trial, noise, arm, sizes, seed),
            {"noise": noise, "arm": arm, "examples": sizes[0], "updates": sizes[1], "seed": seed},
        )
        for seed in range(plan.seeds)
        for noise in NOISE
        for arm in ARMS
    ]


def _weights_trials(plan: Plan) -> list[Trial]:
    sizes = _sizes(plan)
    return [
        Trial(
            named(arm, seed),
            partial(weights_trial, arm, sizes, seed),
            {"arm": arm, "examples": sizes[0], "updates": sizes[1], "seed": seed},
        )
        for seed in range(plan.seeds)
        for arm in WEIGHTS
    ]


def conclude_smoothing(records: Mapping[str, Record]) -> Conclusion:
    """Smoothing must help at both shares of noise."""
    effects = {n: conclude_paired(records, _name(n, "smoothing"), _name(n, "plain"), "accuracy") for n in NOISE}
    sides = {sided(effects[noise]) for noise in NOISE if noise}
    verdict = sides.pop() if len(sides) == 1 else Verdict.DEPENDS
    plain = {noise: conclude_arm(records, _name(noise, "plain"), "accuracy", 0.01) for noise in NOISE}
    points = {n: conclude_gain(effect) for n, effect in effects.items()}
    repeated = {arm: conclude_arm(records, _name(NOISE[-1], arm), "repeated", 0.01).mean for arm in ARMS}
    says = Text(
        f"Plain cross-entropy reaches {', '.join(f'{plain[n].mean:.1f} %' for n in NOISE)} of the clean test set with "
        f"{', '.join(f'{100 * n:.0f} %' for n in NOISE)} of the training labels replaced. Smoothing changes that by "
        f"{', '.join(points[n] for n in NOISE)} points. {conclude_lead(verdict).en} At {100 * NOISE[-1]:.0f} % the "
        f"plain model repeats {repeated['plain']:.1f} % of the wrong labels it was shown, the smoothed one "
        f"{repeated['smoothing']:.1f} %.",
        f"训练标签被替换 {'、'.join(f'{100 * n:.0f} %' for n in NOISE)} 时，普通交叉熵在干净测试集上的准确率为 "
        f"{'、'.join(f'{plain[n].mean:.1f} %' for n in NOISE)}；加平滑后变化 "
        f"{'、'.join(points[n] for n in NOISE)} 个百分点。{conclude_lead(verdict).zh}替换 {100 * NOISE[-1]:.0f} % 时，"
        f"普通模型会重复训练中 {repeated['plain']:.1f} % 的错标签，平滑后为 {repeated['smoothing']:.1f} %。",
    )
    picture = conclude_bars(
        Text("Test accuracy by share of replaced labels", "标签替换比例与测试准确率"),
        Text("accuracy on clean labels (%)", "干净标签上的准确率（%）"),
        [Text(f"{100 * noise:.0f} % replaced", f"替换 {100 * noise:.0f} %") for noise in NOISE],
        {
            Text(arm, {"plain": "普通", "smoothing": "平滑"}[arm]): [
                conclude_arm(records, _name(noise, arm), "accuracy", 0.01) for noise in NOISE
            ]
            for arm in ARMS
        },
        Text(
            "Compare the two bars of a pair; whiskers are 95 % intervals over seeds.",
            "比较每对柱子；误差线为种子间的 95 % 区间。",
        ),
    )
    return Conclusion(verdict, says, (picture,))


def conclude_gain(effect: tuple[float, float, float]) -> str:
    """A difference of shares in points of percent."""
    mean, low, high = (100 * value for value in effect)
    return f"{mean:+.1f} ({low:+.1f} – {high:+.1f})"


def conclude_lead(verdict: Verdict) -> Text:
    """What that means for the claim."""
    return {
        Verdict.SUPPORTED: Text("It helps at both shares of noise.", "两种噪声比例下都有帮助。"),
        Verdict.NOT_SUPPORTED: Text("It harms at both shares of noise.", "两种噪声比例下都有害。"),
        Verdict.NOT_VISIBLE: Text("With noise, neither interval excludes 0.", "有噪声时，两个区间都包含 0。"),
    }.get(verdict, Text("With noise, the two shares do not say the same.", "有噪声时，两种比例的结果不一致。"))


def conclude_weights(records: Mapping[str, Record]) -> Conclusion:
    """Weights must raise macro-F1, and not at the cost of accuracy."""
    f1, accuracy = (conclude_paired(records, "weights", "plain", value) for value in ("macro_f1", "accuracy"))
    sides = sided(f1), sided(accuracy)
    against = {Verdict.SUPPORTED, Verdict.NOT_SUPPORTED}
    verdict = Verdict.DEPENDS if set(sides) == against else sides[0]
    found = {
        (arm, value): conclude_arm(records, arm, value, 0.01)
        for arm in WEIGHTS
        for value in ("macro_f1", "accuracy", "precision", "recall")
    }
    share = 100 * conclude_arm(records, "plain", "right_share").mean
    changed = {
        value: f"{found['plain', value].mean:.1f} % → {found['weights', value].mean:.1f} %"
        for value in ("precision", "recall")
    }
    says = Text(
        f"Only {share:.0f} % of the examples labelled {' or '.join(SPOILT)} are that. Weights by the share of right "
        f"labels change macro-F1 by {conclude_gain(f1)} points and accuracy by {conclude_gain(accuracy)} "
        f"(from {found['plain', 'macro_f1'].mean:.1f} and {found['plain', 'accuracy'].mean:.1f}). Of the two spoilt "
        f"labels, precision goes {changed['precision']}, recall {changed['recall']}.",
        f"标为 {'、'.join(SPOILT)} 的样本只有 {share:.0f} % 标对。按“标签正确的比例”加权，宏 F1 变化 "
        f"{conclude_gain(f1)} 个百分点，准确率变化 {conclude_gain(accuracy)}（原为 "
        f"{found['plain', 'macro_f1'].mean:.1f} 与 {found['plain', 'accuracy'].mean:.1f}）。"
        f"两个被污染的标签：精确率 {changed['precision']}，召回率 {changed['recall']}。",
    )
    names = {
        "macro_f1": Text("macro-F1", "宏 F1"),
        "accuracy": Text("accuracy", "准确率"),
        "precision": Text("precision of spoilt", "被污染标签 精确率"),
        "recall": Text("recall of spoilt", "被污染标签 召回率"),
    }
    picture = conclude_bars(
        Text("With and without class weights", "有无类别权重"),
        Text("score on clean labels (%)", "干净标签上的得分（%）"),
        tuple(names.values()),
        {
            Text(arm, {"plain": "普通", "weights": "加权"}[arm]): [found[arm, value] for value in names]
            for arm in WEIGHTS
        },
        Text(
            "Compare the two bars of a pair; whiskers are 95 % intervals over seeds.",
            "比较每对柱子；误差线为种子间的 95 % 区间。",
        ),
    )
    return Conclusion(verdict, says, (picture,))


PARTS = (
    Part("smoothing", _smoothing_trials, conclude_smoothing),
    Part("class-weights", _weights_trials, conclude_weights),
)
