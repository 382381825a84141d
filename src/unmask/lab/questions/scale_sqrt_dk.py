"""Why scores are divided by √d_k: variance, softmax, and what it does to training."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial

import torch

from unmask.lab.entry import Conclusion, Part, Plan, Record, Table, Trial, Verdict
from unmask.lab.kit.associative import recall_trial
from unmask.lab.kit.effects import Effect, by_seed, named, paired, sided
from unmask.lab.kit.short_mlm import short_trials
from unmask.lab.kit.telling import conclude_compared, conclude_gaps, conclude_lost
from unmask.lab.pictures import Lines, Point, Series
from unmask.lab.words import Text, both

WIDTHS = (1, 4, 16, 64, 256, 1024)
JACOBIAN_WIDTHS = (4, 16, 64, 256, 1024, 4096)
#: S3's numbers for the third entry of softmax([a, a, 2a]).
GIVEN = {1: 0.5761168847658291, 10: 0.9999092083843412, 100: 1.0}
PAIRS, ROWS, KEYS = 100_000, 1000, 64
RECALL_WIDTHS = (8, 64, 256)
STARTS = {"Xavier": {"init": "xavier"}, "0.02": {}}
SCORES = {"scaled": "scaled_dot", "plain": "dot"}


def variance(width: int) -> Record:
    """Of q·k: exactly for components ±1, and as sampled for normal ones, independent and not."""
    chances = [math.comb(width, differing) for differing in range(width + 1)]
    mean = sum(chance * (width - 2 * differing) for differing, chance in enumerate(chances)) / 2**width
    second = sum(chance * (width - 2 * differing) ** 2 for differing, chance in enumerate(chances)) / 2**width
    generator = torch.Generator().manual_seed(width)
    independent, correlated = [], []
    for _ in range(0, PAIRS, 5000):
        q, other = (torch.randn(5000, width, generator=generator) for _ in range(2))
        independent.append((q * other).sum(1, dtype=torch.float64))
        correlated.append((q * (0.5 * q + math.sqrt(0.75) * other)).sum(1, dtype=torch.float64))
    products = torch.cat(independent)
    centred = products - products.mean()
    sampled = float(centred.square().mean()) * PAIRS / (PAIRS - 1)
    error = math.sqrt((float(centred.pow(4).mean()) - sampled**2) / PAIRS)  # of a variance, whatever the distribution
    return {
        "signs_mean": mean,
        "signs_variance": second - mean**2,
        "sampled": sampled / width,
        "low": (sampled - 1.96 * error) / width,
        "high": (sampled + 1.96 * error) / width,
        "correlated_mean": float(torch.cat(correlated).mean()),
    }


def example(until: int = 100) -> Record:
    """softmax([a, a, 2a]) and its Jacobian."""
    curve, largest, apart = [], {}, 0.0
    for a in range(until + 1):
        scores = torch.tensor([a, a, 2 * a], dtype=torch.float64)
        shares = scores.softmax(0)
        curve.append(float(shares[2]))
        if a in GIVEN:
            formula = shares.diag() - shares.outer(shares)
            automatic = torch.autograd.functional.jacobian(lambda x: x.softmax(0), scores)
            apart = max(apart, float((formula - automatic).abs().max()))
            largest[str(a)] = float(formula.abs().max())
    return {"curve": curve, "largest": largest, "formula_from_autograd": apart}


def jacobians(width: int) -> Record:
    """Norms of the softmax's Jacobian for random scores of deviation √d_k, and of deviation 1."""
    normal = torch.randn(ROWS, KEYS, generator=torch.Generator().manual_seed(width), dtype=torch.float64)
    found: Record = {}
    for name, deviation in (("plain", math.sqrt(width)), ("scaled", 1.0)):
        shares = (normal * deviation).softmax(-1)
        norms = (torch.diag_embed(shares) - shares[:, :, None] * shares[:, None]).flatten(1).norm(dim=1)
        found[name] = {"median": float(norms.median()), "small": float((norms < 0.01).double().mean())}
    return found


def _variance_trials(plan: Plan) -> list[Trial]:
    return [Trial(f"d_k {width}", partial(variance, width), {"d_k": width}) for width in WIDTHS]


def _softmax_trials(plan: Plan) -> list[Trial]:
    rows = [Trial(f"d_k {width}", partial(jacobians, width), {"d_k": width}) for width in JACOBIAN_WIDTHS]
    return [Trial("example", example), *rows]


def _training_trials(plan: Plan) -> list[Trial]:
    updates = plan.at(10, 300)
    trials = []
    for width in RECALL_WIDTHS:
        for name, score in SCORES.items():
            for seed in range(plan.seeds):
                settings = {"d_k": width, "score": score, "seed": seed, "updates": updates}
                job = partial(recall_trial, score, width, updates, seed)
                trials.append(Trial(named(f"recall, d_k {width}, {name}", seed), job, settings))
    arms = {
        f"MLM, {start}, {name}": {"num_heads": 1, "score": score, **first}
        for start, first in STARTS.items()
        for name, score in SCORES.items()
    }
    return trials + short_trials(plan, arms)


def conclude_variance(records: Mapping[str, Record]) -> Conclusion:
    """The variance is d_k if q and k are independent."""
    by_width = {width: records[f"d_k {width}"] for width in WIDTHS}
    exact = max(abs(one["signs_variance"] / width - 1) for width, one in by_width.items())
    missed = [width for width, one in by_width.items() if not one["low"] <= 1 <= one["high"]]
    right = exact <= 1e-9 and not missed
    last, widest = by_width[WIDTHS[-1]], WIDTHS[-1]
    sampled = (
        Text("has 1 in its interval at every width", "在每个宽度下区间都包含 1")
        if not missed
        else Text(f"misses 1 at d_k = {missed}", f"在 d_k = {missed} 时不含 1")
    )
    says = Text(
        f"With components ±1, q·k has variance d_k: the largest relative error over d_k = 1 … {widest:,} is "
        f"{exact:.0g}, "
        f"so that it is 1 after dividing by √d_k. With {PAIRS:,} pairs of normal vectors, variance/d_k {sampled.en} "
        f"({last['sampled']:.4f}, {last['low']:.4f} – {last['high']:.4f} at {widest:,}). Independence is needed: with "
        f"correlation 0.5 the mean is {last['correlated_mean']:.1f} instead of 0 at d_k = {widest:,}.",
        f"分量为 ±1 时，q·k 的方差等于 d_k：d_k = 1 … {widest:,} 的最大相对误差为 {exact:.0g}，除以 √d_k 后就是 1。"
        f"{PAIRS:,} 对正态向量的 方差/d_k {sampled.zh}（{widest:,} 维时为 {last['sampled']:.4f}，"
        f"{last['low']:.4f} – {last['high']:.4f}）。独立性是必需的：相关系数为 0.5 时，d_k = {widest:,} 的均值是 "
        f"{last['correlated_mean']:.1f} 而不是 0。",
    )
    plain = tuple(
        Point(width, one["sampled"] * width, one["low"] * width, one["high"] * width) for width, one in by_width.items()
    )
    scaled = tuple(Point(width, one["sampled"], one["low"], one["high"]) for width, one in by_width.items())
    picture = Lines(
        Text("Variance of a score", "得分的方差"),
        both("d_k"),
        Text("variance", "方差"),
        (Series(both("q·k"), plain), Series(both("q·k / √d_k"), scaled)),
        Text(
            "A line with slope 1 grows as d_k does; a level one does not depend on it.",
            "斜率为 1 表示与 d_k 同步增长，水平表示与 d_k 无关。",
        ),
        log_x=True,
        log_y=True,
    )
    return Conclusion(Verdict.SUPPORTED if right else Verdict.NOT_SUPPORTED, says, (picture,))


def conclude_softmax(records: Mapping[str, Record]) -> Conclusion:
    """Large scores push the softmax to where nothing is learned."""
    one = records["example"]
    apart = max(abs(one["curve"][a] - given) for a, given in GIVEN.items())
    largest = one["largest"]
    small = {kind: [records[f"d_k {width}"][kind]["small"] for width in JACOBIAN_WIDTHS] for kind in SCORES}
    grows = all(a <= b for a, b in zip(small["plain"], small["plain"][1:], strict=False)) and small["plain"][-1] > 0.5
    right = (
        apart <= 1e-15
        and one["formula_from_autograd"] <= 1e-12
        and largest["10"] < 1e-4
        and largest["100"] < 1e-40
        and grows
        and not any(small["scaled"])
    )
    says = Text(
        f"The third entry of softmax([a, a, 2a]) is {one['curve'][1]:.4f}, {one['curve'][10]:.5f} and "
        f"{one['curve'][100]:.1f} for a = 1, 10, 100 (S3's numbers to {apart:.0e}), and the largest entry of the "
        "Jacobian "
        f"falls from {largest['1']:.2f} to {largest['10']:.1e} and {largest['100']:.1e} (formula and automatic "
        f"differentiation agree to {one['formula_from_autograd']:.0e}). Of rows of {KEYS} random scores, the share "
        "whose "
        f"Jacobian is below 0.01 goes from {small['plain'][0]:.1%} at d_k = 4 to {small['plain'][-1]:.1%} at 4,096 "
        f"without scaling; with it, it is at most {max(small['scaled']):.1%}.",
        f"softmax([a, a, 2a]) 的第三个分量在 a = 1、10、100 时为 {one['curve'][1]:.4f}、{one['curve'][10]:.5f}、"
        f"{one['curve'][100]:.1f}（与 S3 的数相差 {apart:.0e}），雅可比矩阵的最大元素从 {largest['1']:.2f} 降到 "
        f"{largest['10']:.1e} 和 {largest['100']:.1e}（公式与自动微分相差 {one['formula_from_autograd']:.0e}）。"
        f"每行 {KEYS} 个随机得分，雅可比矩阵范数低于 0.01 的行，不缩放时从 d_k = 4 的 {small['plain'][0]:.1%} 变为 "
        "4,096 的 "
        f"{small['plain'][-1]:.1%}；缩放后至多 {max(small['scaled']):.1%}。",
    )
    pictures, table = conclude_dead_rows(records, small)
    verdict = Verdict.SUPPORTED if right else Verdict.NOT_SUPPORTED
    return Conclusion(verdict, says, pictures, table)


def conclude_dead_rows(
    records: Mapping[str, Record], small: Mapping[str, list[float]]
) -> tuple[tuple[Lines, ...], Table]:
    """The curve of the example, and rows that pass no gradient."""
    one = records["example"]
    curve = Lines(
        Text("The third share of softmax([a, a, 2a])", "softmax([a, a, 2a]) 的第三个分量"),
        both("a"),
        Text("share", "份额"),
        (Series(both("softmax"), tuple(Point(a, share) for a, share in enumerate(one["curve"][:21]))),),
        Text(f"At a = 5 one entry has {one['curve'][5]:.1%} already.", f"a = 5 时一个分量已占 {one['curve'][5]:.1%}。"),
    )
    labels = {"plain": Text("deviation √d_k", "标准差 √d_k"), "scaled": Text("deviation 1", "标准差 1")}
    dead = Lines(
        Text("Rows that can hardly learn", "几乎学不动的行"),
        both("d_k"),
        Text("share of rows with a Jacobian below 0.01", "雅可比范数低于 0.01 的行的比例"),
        tuple(
            Series(labels[kind], tuple(map(Point, map(float, JACOBIAN_WIDTHS), shares)))
            for kind, shares in small.items()
        ),
        Text(
            f"At d_k = 4,096 it is {small['plain'][-1]:.0%} without scaling and {small['scaled'][-1]:.0%} with it.",
            f"d_k = 4,096 时，不缩放为 {small['plain'][-1]:.0%}，缩放后为 {small['scaled'][-1]:.0%}。",
        ),
        log_x=True,
    )
    rows = tuple(
        (
            f"{width:,}",
            *(f"{records[f'd_k {width}'][kind][what]:.3g}" for kind in SCORES for what in ("median", "small")),
        )
        for width in JACOBIAN_WIDTHS
    )
    columns = tuple(
        Text(f"{label.en}: {what.en}", f"{label.zh}：{what.zh}")
        for label in (labels["scaled"], labels["plain"])
        for what in (Text("median norm", "范数中位数"), Text("share below 0.01", "低于 0.01 的比例"))
    )
    return (curve, dead), Table((both("d_k"), *columns), rows)


def conclude_training(records: Mapping[str, Record]) -> Conclusion:
    """What leaving the scale out costs a small model."""

    def effect(arm: str) -> Effect:
        return paired(*(by_seed(records, f"{arm}, {name}", "score") for name in ("plain", "scaled")))

    gaps = {width: effect(f"recall, d_k {width}") for width in RECALL_WIDTHS}
    starts = {start: effect(f"MLM, {start}") for start in STARTS}
    recall = {width: (sided(gap), conclude_compared(gap)) for width, gap in gaps.items()}
    mlm = {start: (sided(gap), conclude_compared(gap)) for start, gap in starts.items()}
    deciding = (recall[256][0], mlm["Xavier"][0])
    others = {mlm["0.02"][0]}
    if {*deciding, *others} == {Verdict.NOT_VISIBLE}:
        verdict = Verdict.NOT_VISIBLE
    elif deciding[0] == deciding[1] != Verdict.NOT_VISIBLE and others <= {deciding[0], Verdict.NOT_VISIBLE}:
        verdict = deciding[0]
    else:
        verdict = Verdict.DEPENDS
    lost = conclude_lost(records)
    says = Text(
        "Plain minus scaled. Associative recall, mean training loss without the scale: at d_k = 8 "
        f"{recall[8][1].en}, at "
        f"64 {recall[64][1].en}, at 256 {recall[256][1].en}. MLM, one head of 128, held-out loss: with Xavier's first "
        f"values {mlm['Xavier'][1].en}, with BERT's (0.02) {mlm['0.02'][1].en}.{lost.en}",
        f"普通点积减缩放点积。联想回忆，不缩放时的平均训练损失：d_k = 8 时{recall[8][1].zh}，64 时{recall[64][1].zh}，"
        f"256 时{recall[256][1].zh}。MLM，一个宽 128 的头，留出集损失：Xavier 初始化{mlm['Xavier'][1].zh}，BERT 的 "
        "0.02 "
        f"初始化{mlm['0.02'][1].zh}。{lost.zh}",
    )
    pictures = (
        conclude_gaps(
            {str(width): gap for width, gap in gaps.items()},
            {str(width): both(f"d_k {width}") for width in RECALL_WIDTHS},
            Text("Associative recall: loss plain − scaled", "联想回忆：损失 普通 − 缩放"),
            Text("nats", "nat"),
        ),
        conclude_gaps(
            starts,
            {"Xavier": both("Xavier"), "0.02": Text("BERT's 0.02", "BERT 的 0.02")},
            Text("Masked characters: loss plain − scaled", "遮盖字预测：损失 普通 − 缩放"),
            Text("nats", "nat"),
        ),
    )
    return Conclusion(verdict, says, pictures)


PARTS = (
    Part("variance", _variance_trials, conclude_variance),
    Part("softmax", _softmax_trials, conclude_softmax),
    Part("training", _training_trials, conclude_training),
)
