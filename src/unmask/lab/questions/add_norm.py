"""Residual connections and norms: what reaches the first layer, what leaves the last, and what is learned."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import torch
from torch import Tensor

from unmask.lab.entry import Conclusion, Part, Plan, Record, Trial, Verdict
from unmask.lab.kit.daily import daily, windows
from unmask.lab.kit.effects import Effect, by_seed, named, paired, spread
from unmask.lab.kit.fitting import Fit
from unmask.lab.kit.newspaper import LeftToRight, loss_of, rate_for, transformer, trial
from unmask.lab.pictures import Bars, Lines, Point, Series
from unmask.lab.words import Text
from unmask.nn.block import EncoderBlock

DEPTHS, DEEPEST = (2, 6, 12, 24), "24"
TRAINED, RATES = (2, 8), (3e-4, 2e-3)
SEEDS = 3  # one is enough to see a factor of ten; three show that it is no accident
ARMS: dict[str, dict[str, Any]] = {
    "neither": {"residual": False, "norm": "none"},
    "residual": {"residual": True, "norm": "none"},
    "norm": {"residual": False, "norm": "layer"},
    "both": {"residual": True, "norm": "layer"},
}
NAMES = {
    "neither": Text("neither", "都没有"),
    "residual": Text("residual only", "只有残差"),
    "norm": Text("norm only", "只有归一化"),
    "both": Text("both", "两者都有"),
}
RULES: dict[str, dict[str, Any]] = {"Xavier": {"init": "xavier"}, "BERT": {"init": "truncated_normal"}}


def gradients(arm: str, rule: str) -> Record:
    """Of an untrained model of each depth and seed, layer by layer."""
    return {
        str(depth): [
            layers({**ARMS[arm], **RULES[rule], "num_layers": depth, "norm_place": "post"}, seed)
            for seed in range(SEEDS)
        ]
        for depth in DEPTHS
    }


def layers(changes: Mapping[str, Any], seed: int) -> dict[str, list[float]]:
    """In double precision, in which even what has all but vanished is still a number."""
    model = transformer(changes, seed).double()
    texts = windows(daily().learned, 64, 32, np.random.default_rng(seed))
    left: list[Tensor] = []

    def keep(_: object, __: object, out: Tensor) -> None:
        out.retain_grad()
        left.append(out)

    blocks = [block for block in model.stack.blocks if isinstance(block, EncoderBlock)]
    handles = [block.register_forward_hook(keep) for block in blocks]
    loss_of(model, texts).backward()
    for handle in handles:
        handle.remove()
    values = [block.self_attention.projections.value.weight.grad for block in blocks]
    return {
        "gradient": [float(torch.linalg.norm(rows.grad)) for rows in left if rows.grad is not None],
        "rows": [float(rows.detach().square().mean().sqrt()) for rows in left],
        "value": [float(torch.linalg.norm(grad)) for grad in values if grad is not None],
    }


def _gradient_trials(plan: Plan) -> list[Trial]:
    return [
        Trial(_name(arm, rule), partial(gradients, arm, rule), {"arm": arm, "rule": rule})
        for arm, rule in product(ARMS, RULES)
    ]


def _name(arm: str, rule: str) -> str:
    return f"{arm}, {rule}"


def conclude_gradients(records: Mapping[str, Record]) -> Conclusion:
    """First layer's gradient over last layer's, and last layer's rows over first layer's, at 24 layers."""
    verdicts, parts = [], []
    for rule in RULES:
        gradient, rows = (
            {arm: ratio(records[_name(arm, rule)], kind) for arm in ARMS} for kind in ("gradient", "rows")
        )
        kept = all(0.01 <= one["both"] <= 100 for one in (gradient, rows))
        rescued = gradient["neither"] * 10 <= gradient["residual"]
        grown = not 0.5 <= rows["residual"] <= 2
        nothing = (
            _factor(gradient["neither"], gradient["residual"]) <= 2 and _factor(rows["residual"], rows["both"]) <= 2
        )
        verdicts.append((kept and rescued and grown, nothing))
        parts.append((rule, gradient, rows))
    if all(right for right, _ in verdicts):
        verdict = Verdict.SUPPORTED
    else:
        verdict = Verdict.NOT_SUPPORTED if all(nothing for _, nothing in verdicts) else Verdict.DEPENDS
    english, chinese = zip(*(_sentence(*part) for part in parts), strict=True)
    says = Text(
        f"At {DEEPEST} layers, medians of {SEEDS} seeds. {' '.join(english)}",
        f"{DEEPEST} 层，{SEEDS} 个种子的中位数。{''.join(chinese)}",
    )
    return Conclusion(verdict, says, tuple(_picture(records, rule, kind) for rule in RULES for kind in _KINDS))


def ratio(record: Record, kind: str) -> float:
    """At the greatest depth: first over last of gradients, last over first of rows."""
    found = []
    for one in record[DEEPEST]:
        first, last = one[kind][0], one[kind][-1]
        above, below = (first, last) if kind == "gradient" else (last, first)
        found.append(above / below if below else math.inf)
    return statistics.median(found)


def _factor(one: float, other: float) -> float:
    """How many times the larger is the smaller."""
    low, high = sorted((one, other))
    return high / low if low else math.inf


def _sentence(rule: str, gradient: Mapping[str, float], rows: Mapping[str, float]) -> tuple[str, str]:
    return (
        f"{rule}'s weights: the first layer's gradient is {gradient['neither']:.1e} times the last layer's with "
        f"neither, {gradient['residual']:.2g} with the residual only, {gradient['norm']:.2g} with the norm only, "
        f"{gradient['both']:.2g} with both; rows grow from first to last layer by {rows['residual']:.2g} with the "
        f"residual only and by {rows['both']:.2g} with both.",
        f"{rule} 初始化：首层梯度与末层梯度之比，都没有时为 {gradient['neither']:.1e}，只有残差时 "
        f"{gradient['residual']:.2g}，只有归一化时 {gradient['norm']:.2g}，两者都有时 {gradient['both']:.2g}；"
        f"从首层到末层，行向量只有残差时变为 {rows['residual']:.2g} 倍，两者都有时 {rows['both']:.2g} 倍。",
    )


_KINDS = {
    "gradient": (Text("Gradient by layer", "各层的梯度"), Text("norm of the loss gradient", "损失梯度的范数")),
    "rows": (Text("Size of rows by layer", "各层输出的大小"), Text("root mean square", "均方根")),
}


def _picture(records: Mapping[str, Record], rule: str, kind: str) -> Lines:
    title, unit = _KINDS[kind]
    series = []
    for arm, name in NAMES.items():
        found = records[_name(arm, rule)][DEEPEST]
        points = []
        for layer in range(len(found[0][kind])):
            value = statistics.median(one[kind][layer] for one in found)
            if value > 0:  # a logarithm cannot show what is gone
                points.append(Point(layer + 1, value))
        series.append(Series(name, tuple(points)))
    return Lines(
        Text(f"{title.en}, {DEEPEST} layers, {rule}'s weights", f"{title.zh}，{DEEPEST} 层，{rule} 初始化"),
        Text("layer", "层"),
        unit,
        tuple(one for one in series if one.points),
        Text(
            "A level line is what a deep stack needs; a steep one vanishes or explodes with depth.",
            "深层网络需要的是平的线；陡的线随深度消失或爆炸。",
        ),
        log_y=True,
    )


def depth(arm: str, layers: int, updates: int, seed: int) -> Record:
    """Left to right on text."""
    changes = {**ARMS[arm], "num_layers": layers}
    rate = rate_for(tuple(changes.items()), max(2, updates // 4), RATES)
    return trial(LeftToRight(Fit(updates, rate, warmup=0.2), changes), seed)


def _depth_trials(plan: Plan) -> list[Trial]:
    updates = plan.at(4, 120)
    return [
        Trial(named(_deep(arm, layers), seed), partial(depth, arm, layers, updates, seed), {"updates": updates})
        for seed in range(plan.seeds)
        for arm, layers in product(ARMS, TRAINED)
    ]


def _deep(arm: str, layers: int) -> str:
    return f"{arm}, {layers} layers"


def conclude_depth(records: Mapping[str, Record]) -> Conclusion:
    """What is lost without one of the two, at either depth."""
    loss = {(arm, n): by_seed(records, _deep(arm, n), "loss") for arm, n in product(ARMS, TRAINED)}
    residual = {n: paired(loss["norm", n], loss["both", n]) for n in TRAINED}
    norm = {n: paired(loss["residual", n], loss["both", n]) for n in TRAINED}
    verdict = verdict_of(residual, norm)
    english = {
        Verdict.SUPPORTED: "Both are needed at 8 layers.",
        Verdict.NOT_SUPPORTED: "One of the two does harm at 8 layers.",
        Verdict.DEPENDS: "The two do not matter alike, or not at both depths.",
        Verdict.NOT_VISIBLE: "Neither makes a difference that can be told from zero.",
    }[verdict]
    chinese = {
        Verdict.SUPPORTED: "8 层时两者都需要。",
        Verdict.NOT_SUPPORTED: "8 层时两者之一有害。",
        Verdict.DEPENDS: "两者的作用不一致，或在两种深度下不一致。",
        Verdict.NOT_VISIBLE: "两者都没有看得出的差别。",
    }[verdict]
    failed = {arm: sum(bool(records[name]["failed"]) for name in records if name.startswith(f"{arm},")) for arm in ARMS}
    lost = ", ".join(f"{NAMES[arm].en} {count}" for arm, count in failed.items())
    lost_zh = "，".join(f"{NAMES[arm].zh} {count}" for arm, count in failed.items())
    says = Text(
        f"{english} Without the residual, held-out loss rises by {residual[2].signed()} at 2 layers and "
        f"{residual[8].signed()} at 8; without the norm by {norm[2].signed()} and {norm[8].signed()}. Runs that "
        f"failed: {lost}.",
        f"{chinese}去掉残差，留出损失在 2 层时增加 {residual[2].signed()}，8 层时 {residual[8].signed()}；去掉归一化，"
        f"分别增加 {norm[2].signed()} 和 {norm[8].signed()}。失败的训练：{lost_zh}。",
    )
    picture = Bars(
        Text("Loss after training", "训练后的损失"),
        Text("held-out loss a character", "留出集每字损失"),
        tuple(NAMES.values()),
        tuple(
            Series(Text(f"{n} layers", f"{n} 层"), tuple(spread(loss[arm, n]).point(k) for k, arm in enumerate(ARMS)))
            for n in TRAINED
        ),
        Text("Lower is better; a part that is needed shows where it is missing.", "越低越好；缺了需要的部件就会变高。"),
    )
    return Conclusion(verdict, says, (picture,))


def verdict_of(residual: Mapping[int, Effect], norm: Mapping[int, Effect]) -> Verdict:
    """By the method's rule."""
    deep = residual[8], norm[8]
    turned = any(
        (one[2].low > 0 and one[8].high < 0) or (one[2].high < 0 and one[8].low > 0) for one in (residual, norm)
    )
    if turned:
        return Verdict.DEPENDS
    if any(effect.high < 0 for effect in deep):
        return Verdict.NOT_SUPPORTED
    above = [effect.low > 0 for effect in deep]
    return Verdict.SUPPORTED if all(above) else Verdict.DEPENDS if any(above) else Verdict.NOT_VISIBLE


PARTS = (
    Part("gradients", _gradient_trials, conclude_gradients),
    Part("depth", _depth_trials, conclude_depth),
)
