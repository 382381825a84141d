"""Heads of d/m dimensions against heads of full width: what they cost, and what they learn."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import torch

from unmask.lab.entry import Conclusion, Part, Plan, Record, Table, Trial, Verdict
from unmask.lab.kit.costs import attention_of, matrix_parameters, operations
from unmask.lab.kit.effects import by_seed, paired, sided
from unmask.lab.kit.short_mlm import short_trials
from unmask.lab.kit.telling import conclude_compared, conclude_gaps, conclude_lost, conclude_table, conclude_together
from unmask.lab.words import Text, both

WIDTH, TOKENS = 768, 128
SHAPES = {"12×64": (12, 64), "12×768": (12, 768), "1×768": (1, 768)}
ARMS = {
    "4×32": {},
    "4×128": {"head_size": 128},
    "16×32": {"num_heads": 16, "head_size": 32},
    "4×32, ffn 1280": {"ffn_size": 1280},
}
LABELS = {arm: both(arm) for arm in ARMS}


def counts(shape: str) -> Record:
    """Parameters, operations, and the rank of one head's W_Q W_Kᵀ."""
    heads, size = SHAPES[shape]
    attention = attention_of(WIDTH, heads, size)
    generator = torch.Generator().manual_seed(0)
    query, key = (torch.randn(WIDTH, size, generator=generator, dtype=torch.float64) for _ in range(2))
    return {
        "parameters": matrix_parameters(attention),
        **operations(attention, TOKENS),
        "rank": int(torch.linalg.matrix_rank(query @ key.T)),
    }


def _count_trials(plan: Plan) -> list[Trial]:
    return [
        Trial(shape, partial(counts, shape), {"heads": SHAPES[shape][0], "size": SHAPES[shape][1]}) for shape in SHAPES
    ]


def _training_trials(plan: Plan) -> list[Trial]:
    return short_trials(plan, ARMS)


def conclude_counts(records: Mapping[str, Record]) -> Conclusion:
    """Twelve times as many of everything, if heads are not made narrower."""
    usual, wide, single = (records[shape] for shape in SHAPES)
    ratios = {what: wide[what] / usual[what] for what in ("parameters", "projections", "scores", "mean")}
    right = all(ratio == SHAPES["12×64"][0] for ratio in ratios.values())
    alike = all(single[what] == usual[what] for what in ratios)
    told = Text(
        "exactly 12 times as many" if right else "not exactly 12 times as many",
        "恰好都是 12 倍" if right else "并不都恰好是 12 倍",
    )
    factors = ", ".join(f"{what} {ratio:g}" for what, ratio in ratios.items())
    says = Text(
        f"Twelve heads of width 768 instead of 64 need {told.en} numbers in matrices and operations ({factors}): "
        f"{wide['parameters']:,} parameters against {usual['parameters']:,}. One head of width 768 costs "
        f"{'the same as' if alike else 'something else than'} twelve of width 64. The width bounds the rank of "
        f"W_Q W_Kᵀ: {usual['rank']} for a head of 64, {wide['rank']} for one of 768.",
        f"12 个头的宽度从 64 增到 768，矩阵参数和运算次数{told.zh}（{factors}）：参数 {wide['parameters']:,} 对 "
        f"{usual['parameters']:,}。"
        f"一个宽 768 的头与 12 个宽 64 的头代价{'相同' if alike else '不同'}。宽度限制了 W_Q W_Kᵀ 的秩：宽 64 的头为 "
        f"{usual['rank']}，"
        f"宽 768 的头为 {wide['rank']}。",
    )
    names = {
        "parameters": Text("matrix parameters", "矩阵参数"),
        "projections": Text("operations: projections", "运算：投影"),
        "scores": Text("operations: scores", "运算：得分"),
        "mean": Text("operations: mean", "运算：加权平均"),
        "rank": Text("rank of W_Q W_Kᵀ", "W_Q W_Kᵀ 的秩"),
    }
    rows = tuple((shape, *(f"{records[shape][what]:,}" for what in names)) for shape in SHAPES)
    table = Table((Text("heads × width", "头数 × 宽度"), *names.values()), rows)
    return Conclusion(Verdict.SUPPORTED if right else Verdict.NOT_SUPPORTED, says, (), table)


def conclude_training(records: Mapping[str, Record]) -> Conclusion:
    """Wide heads against two arms of as many parameters."""
    wide = by_seed(records, "4×128", "score")
    many, feed, usual = (paired(wide, by_seed(records, arm, "score")) for arm in ("16×32", "4×32, ffn 1280", "4×32"))
    verdict = conclude_together([sided(many), sided(feed)])
    lost = conclude_lost(records)
    says = Text(
        "At equal parameters, four heads of full width 128 have a held-out loss that is "
        f"{conclude_compared(many).en} nats "
        f"against sixteen heads of 32, and {conclude_compared(feed).en} against four heads of 32 with a wider "
        "feed-forward "
        f"network. Against the usual 4×32, which is smaller, it is {conclude_compared(usual).en}.{lost.en}",
        f"参数量相等时，4 个全宽 128 的头与 16 个宽 32 的头相比，留出集损失{conclude_compared(many).zh} nat；与 4 "
        "个宽 32 的头加宽前馈相比，"
        f"{conclude_compared(feed).zh}。与较小的通常做法 4×32 相比，{conclude_compared(usual).zh}。{lost.zh}",
    )
    title = Text("Held-out loss of 4×128 − that of others", "4×128 的留出集损失 − 其他组的损失")
    gaps = {"16×32": many, "4×32, ffn 1280": feed, "4×32": usual}
    picture = conclude_gaps(gaps, LABELS, title, Text("nats", "nat"))
    columns = {
        "score": Text("loss", "损失"),
        "parameters": Text("parameters", "参数"),
        "seconds": Text("seconds", "秒"),
    }
    return Conclusion(verdict, says, (picture,), conclude_table(records, LABELS, "4×128", columns))


PARTS = (Part("counts", _count_trials, conclude_counts), Part("training", _training_trials, conclude_training))
