"""Many heads: how many learn best, whether they look in different places, and whether each is needed."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from itertools import combinations
from statistics import fmean

import numpy as np
import torch
from torch import Tensor

from unmask.lab.entry import Conclusion, Part, Plan, Record, Trial, Verdict
from unmask.lab.kit.effects import by_seed, paired, sided, spread
from unmask.lab.kit.looking import (
    MODELS,
    bert_of,
    bundle_of,
    guessed,
    interval,
    labelled_texts,
    masked,
    per_token,
    stretches,
    weights_of,
)
from unmask.lab.kit.short_mlm import short_trials
from unmask.lab.kit.telling import conclude_compared, conclude_lost, conclude_table
from unmask.lab.pictures import Heat, Lines, Point, Series
from unmask.lab.words import Text, both
from unmask.models.bert import Bert
from unmask.models.init import build_model

HEADS = (1, 2, 4, 8, 16)
ARMS = {f"{heads} heads": {"num_heads": heads} for heads in HEADS}
LABELS = {arm: Text(arm, f"{arm.partition(' ')[0]} 头") for arm in ARMS}
KINDS = {
    "heads": Text("between heads", "头与头之间"),
    "random": Text("between heads, random weights", "头与头之间，随机权重"),
    "neighbours": Text("one head, neighbouring tokens", "同一个头，相邻的词"),
}
SAME = 0.05  # bits: a pair below is a double
POINT = 0.01


def diversity(name: str, count: int) -> Record:
    """Jensen–Shannon divergence between heads, in a trained model and in one of random weights."""
    bundle, model = bundle_of(name), bert_of(name)
    texts = labelled_texts("movie-reviews", count) if name == "minilm" else stretches(count, 64)
    random = build_model(model.settings, seed=0)
    assert isinstance(random, Bert)
    values: dict[str, list[list[float]]] = {kind: [] for kind in KINDS}
    pairs: list[list[list[float]]] = []
    for layers in weights_of(bundle, model, texts):
        apart = [_between_heads(layer) for layer in layers]
        pairs.append([layer.tolist() for layer in apart])
        values["heads"].append([float(layer.mean()) for layer in apart])
        values["neighbours"].append([float(divergence(layer[:, :-1], layer[:, 1:]).mean()) for layer in layers])
    for layers in weights_of(bundle, random.eval(), texts):
        values["random"].append([float(_between_heads(layer).mean()) for layer in layers])
    by_pair = np.array(pairs).mean(0)  # (layers, pairs)
    return {
        **{kind: [fmean(layer) for layer in zip(*rows, strict=True)] for kind, rows in values.items()},
        **{f"{kind} mean": interval([fmean(row) for row in rows]) for kind, rows in values.items()},
        "doubles": int((by_pair < SAME).sum()),
        "pairs": int(by_pair.size),
    }


def divergence(p: Tensor, q: Tensor) -> Tensor:
    """Of shares in the last axis, in bits: 0 for the same, 1 for nothing in common."""
    mixed = (p + q) / 2
    return (_entropy(mixed) - (_entropy(p) + _entropy(q)) / 2).clamp(min=0)


def _entropy(shares: Tensor) -> Tensor:
    return -(shares * shares.clamp(min=1e-30).log2()).sum(-1)


def _between_heads(weights: Tensor) -> Tensor:
    """(pairs,) of the heads of one layer (N, T, T), averaged over tokens."""
    first, second = torch.tensor(list(combinations(range(len(weights)), 2))).T
    return divergence(weights[first], weights[second]).mean(-1)


def removal(count: int, others: int) -> Record:
    """mini-zh with heads silenced: one at a time, then one after another."""
    bundle, model = bundle_of("mini-zh"), bert_of("mini-zh")
    asked = masked(bundle, stretches(count, 62), seed=1)
    chosen_on = masked(bundle, stretches(others, 62, seed=54321), seed=2)
    names = [f"encoder.stack.blocks.{layer}.self_attention" for layer in range(model.settings.num_layers)]
    gates = {name: [1.0] * model.settings.num_heads for name in names}

    def without(layer: int, head: int) -> dict[str, list[float]]:
        left = {name: list(gate) for name, gate in gates.items()}
        left[names[layer]][head] = 0.0
        return left

    every = [(layer, head) for layer in range(len(names)) for head in range(model.settings.num_heads)]
    whole = guessed(model, asked, gates)
    single = {}
    for layer, head in every:
        found = per_token(guessed(model, asked, without(layer, head))[:, 0] - whole[:, 0], whole[:, 2])
        single[f"{layer} {head}"] = [found.value, found.low, found.high]
    steps = []
    while True:
        open_ones = [(a, b) for a, b in every if gates[names[a]][b] and sum(gates[names[a]]) > 1]
        if not open_ones:
            break
        layer, head = min(open_ones, key=lambda one: guessed(model, chosen_on, without(*one))[:, 0].sum())
        gates = without(layer, head)
        found = guessed(model, asked, gates).sum(0)
        steps.append({"layer": layer, "head": head, "loss": found[0] / found[2], "accuracy": found[1] / found[2]})
    total = whole.sum(0)
    return {"loss": total[0] / total[2], "accuracy": total[1] / total[2], "single": single, "steps": steps}


def _number_trials(plan: Plan) -> list[Trial]:
    return short_trials(plan, ARMS)


def _diversity_trials(plan: Plan) -> list[Trial]:
    count = plan.at(5, 200)
    return [Trial(name, partial(diversity, name, count), {"model": name, "texts": count}) for name in MODELS]


def _removal_trials(plan: Plan) -> list[Trial]:
    count, others = plan.at(10, 500), plan.at(5, 100)
    return [Trial("mini-zh", partial(removal, count, others), {"texts": count, "chosen_on": others})]


def conclude_number(records: Mapping[str, Record]) -> Conclusion:
    """One head against two and more, at equal parameters."""
    one = by_seed(records, "1 heads", "score")
    effects = {heads: paired(one, by_seed(records, f"{heads} heads", "score")) for heads in HEADS[1:]}
    sides = [sided(effect) for effect in effects.values()]
    better, worse = (sides.count(side) for side in (Verdict.SUPPORTED, Verdict.NOT_SUPPORTED))
    if better and worse:
        verdict = Verdict.DEPENDS
    elif better >= 2:
        verdict = Verdict.SUPPORTED
    else:
        verdict = Verdict.NOT_SUPPORTED if worse else Verdict.NOT_VISIBLE
    means = {heads: spread(by_seed(records, f"{heads} heads", "score")).mean for heads in HEADS}
    best = min(means, key=lambda heads: means[heads])
    lost = conclude_lost(records)
    told = {heads: conclude_compared(effect) for heads, effect in effects.items()}
    says = Text(
        f"At equal parameters the held-out loss of one head, in nats, is "
        f"{'; '.join(f'{text.en} than that of {heads}' for heads, text in told.items())}. {better} of {len(effects)} "
        "are better "
        f"than one head and {worse} worse with their whole interval; the lowest mean is that of {best} "
        f"({means[best]:.3f}).{lost.en}",
        f"参数量相等时，单头的留出集损失（nat）："
        f"{'；'.join(f'比 {heads} 头{text.zh}' for heads, text in told.items())}。{len(effects)} "
        f"组中整个区间优于单头的有 {better} 组，"
        f"劣于单头的有 {worse} 组；平均损失最低的是 {best} 头（{means[best]:.3f}）。{lost.zh}",
    )
    picture = Lines(
        Text("Held-out loss over the number of heads", "留出集损失随头数的变化"),
        Text("heads, of width 128/m", "头数，每头宽 128/m"),
        Text("nats", "nat"),
        (
            Series(
                Text("mean over seeds", "各种子的平均"),
                tuple(spread(by_seed(records, f"{heads} heads", "score")).point(heads) for heads in HEADS),
            ),
        ),
        Text("Lower is better; whiskers are 95 % intervals over seeds.", "越低越好；须线为各种子的 95 % 区间。"),
        log_x=True,
    )
    columns = {
        "score": Text("loss", "损失"),
        "accuracy": Text("accuracy", "准确率"),
        "parameters": Text("parameters", "参数"),
    }
    return Conclusion(verdict, says, (picture,), conclude_table(records, LABELS, "1 heads", columns))


def conclude_diversity(records: Mapping[str, Record]) -> Conclusion:
    """Heads look in different places if they differ more than those of a random model."""
    above, below = [], []
    for name in MODELS:
        trained, random = records[name]["heads mean"], records[name]["random mean"]
        above.append(trained[0] >= 0.1 and trained[1] > random[2])
        below.append(trained[0] < random[0])
    verdict = Verdict.SUPPORTED if all(above) else Verdict.NOT_SUPPORTED if all(below) else Verdict.DEPENDS

    def told(name: str) -> Text:
        one = records[name]
        values = {kind: "{:.2f} ({:.2f} – {:.2f})".format(*one[f"{kind} mean"]) for kind in KINDS}
        return Text(
            f"{name} {values['heads']} bits between heads of a layer, {values['random']} with random weights, "
            f"{values['neighbours']} between neighbouring tokens of one head, {one['doubles']} of {one['pairs']} "
            "pairs doubles",
            f"{name} 同层各头之间 {values['heads']} 比特，随机权重 {values['random']}，同一个头相邻两词之间 "
            f"{values['neighbours']}，"
            f"{one['pairs']} 对中有 {one['doubles']} 对重复",
        )

    first, second = (told(name) for name in MODELS)
    judged = {
        Verdict.SUPPORTED: Text("Heads look in different places.", "各头看的地方不同。"),
        Verdict.NOT_SUPPORTED: Text("Heads differ less than by chance.", "各头的差别比随机权重还小。"),
        Verdict.DEPENDS: Text("The two models do not agree.", "两个模型不一致。"),
    }[verdict]
    says = Text(
        f"{judged.en} Jensen–Shannon divergence, from 0 to 1: {first.en}; {second.en}.",
        f"{judged.zh}Jensen–Shannon 散度（0 到 1）：{first.zh}；{second.zh}。",
    )
    pictures = tuple(
        Lines(
            Text(f"How different heads are: {name}", f"各头有多不同：{name}"),
            Text("layer", "层"),
            Text("divergence, bits", "散度（比特）"),
            tuple(
                Series(label, tuple(Point(layer + 1, value) for layer, value in enumerate(records[name][kind])))
                for kind, label in KINDS.items()
            ),
            Text("0 means the same places, 1 nothing in common.", "0 表示看同样的地方，1 表示毫无重合。"),
        )
        for name in MODELS
    )
    return Conclusion(verdict, says, pictures)


def conclude_removal(records: Mapping[str, Record]) -> Conclusion:
    """How many heads can go within one point of accuracy, and whether each single one is missed."""
    one = records["mini-zh"]
    single, steps = one["single"], one["steps"]
    missed = [head for head, (_, low, _) in single.items() if low > 0]
    free = 0
    for step in steps:
        if one["accuracy"] - step["accuracy"] > POINT:
            break
        free += 1
    dearest = max(single, key=lambda head: single[head][0])
    if len(missed) == len(single):
        verdict = Verdict.NOT_SUPPORTED if free < len(single) / 2 else Verdict.DEPENDS
    else:
        verdict = Verdict.SUPPORTED if free >= len(single) / 2 else Verdict.DEPENDS
    value, low, high = single[dearest]
    layer, head = (int(number) + 1 for number in dearest.split())
    says = Text(
        f"Of {len(single)} heads of mini-zh, silencing {len(missed)} alone raises the loss with the whole 95 % "
        "interval; the dearest "
        f"is head {head} of layer {layer}: {value:+.3f} nats ({low:+.3f} – {high:+.3f}) on {one['loss']:.3f}. "
        "Silenced one after "
        f"another, {free} can go before accuracy falls by more than one point from {one['accuracy']:.1%}; with one "
        "head left in "
        f"each layer it is {steps[-1]['accuracy']:.1%}.",
        f"mini-zh 的 {len(single)} 个头中，单独关闭时损失上升的 95 % 区间完全大于 0 的有 {len(missed)} 个；"
        f"代价最大的是第 {layer} 层第 "
        f"{head} 个头：{value:+.3f} nat（{low:+.3f} – {high:+.3f}），原损失为 {one['loss']:.3f}。逐个关闭，准确率从 "
        f"{one['accuracy']:.1%} "
        f"下降超过一个百分点之前能去掉 {free} 个；每层只剩一个头时为 {steps[-1]['accuracy']:.1%}。",
    )
    pictures = conclude_silenced(one)
    return Conclusion(verdict, says, pictures)


def conclude_silenced(one: Record) -> tuple[Heat, Lines]:
    """What each head costs, and what is left as they go."""
    single, steps = one["single"], one["steps"]
    layers = sorted({int(key.split()[0]) for key in single})
    heads = sorted({int(key.split()[1]) for key in single})
    heat = Heat(
        Text("What silencing one head costs", "关闭一个头的代价"),
        tuple(str(n + 1) for n in layers),
        tuple(str(n + 1) for n in heads),
        tuple(tuple(single[f"{a} {b}"][0] for b in heads) for a in layers),
        Text("Dark heads are missed most.", "颜色越深，越不可少。"),
        Text("head", "头"),
        Text("layer", "层"),
        Text("nats of loss", "损失（nat）"),
    )
    curve = Lines(
        Text("Heads silenced one after another", "逐个关闭头"),
        Text("heads silenced", "关闭的头数"),
        Text("accuracy", "准确率"),
        (
            Series(
                both("mini-zh"),
                (Point(0, one["accuracy"]), *(Point(n + 1, step["accuracy"]) for n, step in enumerate(steps))),
            ),
        ),
        Text("The cheapest go first; the end is one head a layer.", "先去掉代价最小的；最后每层只剩一个头。"),
    )
    return heat, curve


PARTS = (
    Part("number", _number_trials, conclude_number),
    Part("diversity", _diversity_trials, conclude_diversity),
    Part("removal", _removal_trials, conclude_removal),
)
