"""Is attention linear, and what is lost without the feed-forward network?"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from unmask.lab.entry import Conclusion, Part, Plan, Record, Table, Trial, Verdict
from unmask.lab.kit.by_hand import difference, heads_of, plain_linear, plain_weights, side_by_side
from unmask.lab.kit.effects import by_seed, named, paired, spread
from unmask.lab.kit.fitting import Fit
from unmask.lab.kit.newspaper import LeftToRight, rate_for, trial
from unmask.lab.pictures import Bars, Series
from unmask.lab.words import Text
from unmask.models.bert import Bert
from unmask.models.fetch import fetch
from unmask.models.folder import load_model
from unmask.models.init import build_model
from unmask.models.settings import BertSettings
from unmask.nn.attention import MultiHeadAttention
from unmask.nn.block import EncoderBlock
from unmask.nn.ffn import FeedForward
from unmask.nn.layout import Layout
from unmask.nn.plan import AttentionPlan

TOKENS, PAIRS = 10, 100
LINEAR, NOT_LINEAR = 1e-12, 1e-3
MAPS = {
    "attention": Text("self-attention", "自注意力"),
    "frozen": Text("the same, weights frozen", "同上，权重冻结"),
    "gelu": Text("feed-forward, GELU", "前馈，GELU"),
    "identity": Text("feed-forward, identity", "前馈，恒等激活"),
}
RATES = (1e-3, 3e-3)
ARMS: dict[str, dict[str, Any]] = {
    "a": {"num_layers": 2, "ffn_size": 384},
    "b": {"num_layers": 2, "ffn_size": 384, "activation": "identity"},
    "c": {"num_layers": 2, "ffn": False},
    "d": {"num_layers": 6, "ffn": False},
}
NAMES = {
    "a": Text("(a) GELU", "(a) GELU"),
    "b": Text("(b) identity", "(b) 恒等"),
    "c": Text("(c) none", "(c) 没有"),
    "d": Text("(d) none, 6 layers", "(d) 没有，6 层"),
}
Map = Callable[[Tensor], Tensor]


def block_of(weights: str) -> EncoderBlock:
    """A block without biases in double precision."""
    if weights == "mini-zh":
        model = load_model(fetch("mini-zh"))[0]
    else:
        sizes = {"vocab_size": 10, "hidden_size": 64, "num_layers": 1, "num_heads": 4, "ffn_size": 256}
        model = build_model(BertSettings.parse({**sizes, "init": "xavier"}), seed=0)
    assert isinstance(model, Bert)
    block = model.double().eval().encoder.stack.blocks[0]
    assert isinstance(block, EncoderBlock)
    for module in block.modules():
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)
    return block


def frozen(attention: MultiHeadAttention, x: Tensor) -> Map:
    """Attention whose weights stay those of x, whatever it is given."""
    made, heads = attention.projections, attention.num_heads
    queries, keys = (heads_of(plain_linear(x, one), heads) for one in (made.query, made.key))
    weights = plain_weights(queries, keys)

    def attend(rows: Tensor) -> Tensor:
        mixed = weights @ heads_of(plain_linear(rows, made.value), heads)
        return plain_linear(side_by_side(mixed), attention.output)

    return attend


@torch.no_grad()
def linearity(weights: str) -> Record:
    """Median relative errors of superposition and of scaling, all pairs in one batch."""
    block, layout = block_of(weights), Layout.ragged([TOKENS] * PAIRS)
    plan, generator = AttentionPlan.between(layout, layout), torch.Generator().manual_seed(0)
    attention, ffn = block.self_attention, block.ffn
    assert isinstance(ffn, FeedForward)
    shape = 2, PAIRS, TOKENS, attention.output.out_features
    x, y = torch.randn(shape, generator=generator, dtype=torch.float64).unbind(0)
    maps: dict[str, Map] = {
        "attention": lambda rows: attention(rows.flatten(0, 1), plan).view_as(rows),
        "frozen": frozen(attention, x),
        "gelu": ffn,
        "identity": lambda rows: ffn.outer(ffn.inner(rows)),
    }
    superposition, scaling = {}, {}
    for name, one in maps.items():
        both, twice = one(x + y), 2 * one(x)
        superposition[name] = _share(both - one(x) - one(y), both)
        scaling[name] = _share(one(2 * x) - twice, twice)
    by_hand = difference(maps["attention"](x), maps["frozen"](x))  # at x itself the two are one
    return {"superposition": superposition, "scaling": scaling, "by_hand": by_hand}


def _share(error: Tensor, whole: Tensor) -> float:
    """The median over pairs of an error's size, relative to that of the whole."""
    return float((torch.linalg.norm(error, dim=(1, 2)) / torch.linalg.norm(whole, dim=(1, 2))).median())


def _linearity_trials(plan: Plan) -> list[Trial]:
    return [Trial(f"{one} weights", partial(linearity, one), {"weights": one}) for one in ("random", "mini-zh")]


def conclude_linearity(records: Mapping[str, Record]) -> Conclusion:
    """On S2-34, that all of self-attention is linear."""
    found = [is_linear(record, "attention") for record in records.values()]
    if all(one is True for one in found):
        verdict = Verdict.SUPPORTED
    else:
        verdict = Verdict.NOT_SUPPORTED if all(one is False for one in found) else Verdict.DEPENDS
    shown = ", ".join(f"{100 * record['superposition']['attention']:.1f} %" for record in records.values())
    scaled = ", ".join(f"{100 * record['scaling']['attention']:.1f} %" for record in records.values())
    rest = {name: _most(records, name) for name in MAPS if name != "attention"}
    english = {
        Verdict.SUPPORTED: "Self-attention comes out linear, as S2-34 says.",
        Verdict.NOT_SUPPORTED: "Self-attention is not linear: S2-34 is wrong, S0-7 right.",
        Verdict.DEPENDS: "Self-attention comes out linear with one set of weights and not with the other.",
    }[verdict]
    chinese = {
        Verdict.SUPPORTED: "自注意力是线性的，如 S2-34 所说。",
        Verdict.NOT_SUPPORTED: "自注意力不是线性的：S2-34 错，S0-7 对。",
        Verdict.DEPENDS: "一组权重下自注意力是线性的，另一组下不是。",
    }[verdict]
    names = ", ".join(records)
    names_zh = names.replace("random weights", "随机权重").replace("mini-zh weights", "mini-zh 的权重")
    says = Text(
        f"{english} A(x + y) differs from A(x) + A(y) by {shown} of its size ({names}; medians of {PAIRS} pairs), and "
        f"A(2x) from 2A(x) by {scaled}. With its weights frozen the error is at most {rest['frozen']:.0e}: only the "
        f"sum of values is linear. The feed-forward network errs by up to {100 * rest['gelu']:.1f} % with GELU and "
        f"{rest['identity']:.0e} without.",
        f"{chinese}A(x + y) 与 A(x) + A(y) 相差其大小的 {shown}（{names_zh}；{PAIRS} 对输入的中位数），A(2x) 与 "
        "2A(x) 相差 "
        f"{scaled}。把权重冻结后误差最多 {rest['frozen']:.0e}：线性的只是对值求和这一步。前馈网络用 GELU 时误差最多 "
        f"{100 * rest['gelu']:.1f} %，不用激活时 {rest['identity']:.0e}。",
    )
    columns = (
        Text("median relative error", "相对误差的中位数"),
        *(Text(f"{name}, {kind}", f"{name}，{zh}") for name in records for kind, zh in _KINDS.items()),
    )
    rows = tuple(
        (name, *(f"{record[kind][name]:.1e}" for record in records.values() for kind in _KINDS)) for name in MAPS
    )
    return Conclusion(verdict, says, (), Table(columns, rows))


_KINDS = {"superposition": "叠加", "scaling": "缩放"}


def is_linear(record: Record, name: str) -> bool | None:
    """True or False by the method's thresholds; None between them."""
    worst = max(record[kind][name] for kind in _KINDS)
    return True if worst <= LINEAR else False if worst >= NOT_LINEAR else None


def _most(records: Mapping[str, Record], name: str) -> float:
    return max(float(record[kind][name]) for record in records.values() for kind in _KINDS)


def without(arm: str, updates: int, seed: int) -> Record:
    """Left to right on text."""
    changes = {**ARMS[arm], "hidden_size": 96}
    rate = rate_for(tuple(changes.items()), max(2, updates // 5), RATES)
    return trial(LeftToRight(Fit(updates, rate), changes), seed)


def _without_trials(plan: Plan) -> list[Trial]:
    updates = plan.at(4, 150)
    return [
        Trial(named(arm, seed), partial(without, arm, updates, seed), {"updates": updates})
        for seed in range(plan.seeds)
        for arm in ARMS
    ]


def conclude_without(records: Mapping[str, Record]) -> Conclusion:
    """What is lost without the feed-forward network, at equal depth and at equal weights."""
    loss = {arm: by_seed(records, arm, "loss") for arm in ARMS}
    effects = {arm: paired(loss[arm], loss["a"]) for arm in "bcd"}
    rest = paired(loss["b"], loss["c"])
    depth, weights = effects["c"], effects["d"]
    if weights.high < 0:
        verdict = Verdict.NOT_SUPPORTED
    elif depth.low > 0:
        verdict = Verdict.SUPPORTED if weights.low > 0 else Verdict.DEPENDS
    else:
        verdict = Verdict.DEPENDS if weights.low > 0 else Verdict.NOT_VISIBLE
    english = {
        Verdict.SUPPORTED: "The feed-forward network is needed here: without it more is lost, at equal depth and at "
        "equal weights.",
        Verdict.NOT_SUPPORTED: "The feed-forward network is not needed here: the same weights in attention do better.",
        Verdict.DEPENDS: "It depends on what is held equal, depth or weights.",
        Verdict.NOT_VISIBLE: "No difference can be told at this scale.",
    }[verdict]
    chinese = {
        Verdict.SUPPORTED: "这里需要前馈网络：去掉它，深度相等或参数相等时都更差。",
        Verdict.NOT_SUPPORTED: "这里不需要前馈网络：同样多的参数用在注意力上更好。",
        Verdict.DEPENDS: "取决于让什么相等：深度还是参数。",
        Verdict.NOT_VISIBLE: "此规模下看不出差别。",
    }[verdict]
    failed = sum(bool(record["failed"]) for record in records.values())
    says = Text(
        f"{english} Held-out loss above that of (a), two layers with GELU: {effects['c'].signed()} without (c), "
        f"{effects['d'].signed()} with six layers without (d), {effects['b'].signed()} with identity (b). (b) minus "
        f"(c), what is left of it without non-linearity: {rest.signed()}. Runs that failed: {failed}.",
        f"{chinese}比 (a)（两层，GELU 前馈）多的留出损失：没有前馈 (c) {effects['c'].signed()}，六层没有前馈 (d) "
        f"{effects['d'].signed()}，恒等激活 (b) {effects['b'].signed()}。(b) 减 (c)，即没有非线性时还剩的作用："
        f"{rest.signed()}。失败的训练：{failed} 次。",
    )
    picture = Bars(
        Text("With and without a feed-forward network", "有无前馈网络"),
        Text("held-out loss a character", "留出集每字损失"),
        tuple(NAMES.values()),
        (Series(Text("mean of seeds", "种子平均"), tuple(spread(loss[arm]).point(n) for n, arm in enumerate(ARMS))),),
        Text("Lower is better.", "越低越好。"),
    )
    return Conclusion(verdict, says, (picture,))


PARTS = (
    Part("linearity", _linearity_trials, conclude_linearity),
    Part("without", _without_trials, conclude_without),
)
