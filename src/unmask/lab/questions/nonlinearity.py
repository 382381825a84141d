"""Which parts of BERT are not affine, and what the activation is worth."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from unmask.lab.entry import Conclusion, Part, Plan, Record, Trial, Verdict
from unmask.lab.kit.bars import text_and_topics
from unmask.lab.kit.by_hand import (
    difference,
    heads_of,
    plain_attention,
    plain_gelu,
    plain_linear,
    plain_norm,
    plain_weights,
    side_by_side,
)
from unmask.lab.kit.daily import daily
from unmask.lab.kit.effects import by_seed, named, paired, sided
from unmask.lab.kit.fitting import Fit
from unmask.lab.kit.headlines import headlines
from unmask.lab.kit.newspaper import LeftToRight, trial
from unmask.lab.pictures import Bars, Point, Series
from unmask.lab.words import Text
from unmask.models.bert import Bert
from unmask.models.fetch import fetch
from unmask.models.folder import load_model
from unmask.nn.attention import MultiHeadAttention
from unmask.nn.batch import Batch
from unmask.nn.block import EncoderBlock
from unmask.nn.ffn import FeedForward
from unmask.nn.layout import Layout
from unmask.nn.norm import AddNorm
from unmask.nn.plan import AttentionPlan
from unmask.text import Tokenizer

TOKENS, PAIRS = 12, 100
AFFINE, NOT_AFFINE = 1e-10, 1e-3
PARTS_OF = {
    "linear": Text("linear layer", "线性层"),
    "gelu": Text("GELU", "GELU"),
    "attention": Text("self-attention", "自注意力"),
    "norm": Text("LayerNorm", "LayerNorm"),
    "tanh": Text("tanh", "tanh"),
}
#: What of an encoder stays in action; the rest is frozen or replaced by identity.
ACTIVE = {
    "all": frozenset({"gelu", "attention", "norm"}),
    "gelu": frozenset({"gelu"}),
    "attention": frozenset({"attention"}),
    "norm": frozenset({"norm"}),
    "none": frozenset[str](),
}
ACTIVATIONS = {"gelu": Text("GELU", "GELU"), "relu": Text("ReLU", "ReLU"), "identity": Text("identity", "恒等")}
Map = Callable[[Tensor], Tensor]


@dataclass
class ByHand:
    """An encoder written out, parts of which can be frozen: they then do to any input what they did to the first."""

    blocks: list[EncoderBlock]
    active: frozenset[str]
    kept: dict[str, Tensor] = field(default_factory=dict)

    def __call__(self, x: Tensor) -> Tensor:
        """Rows (…, T, H) → rows (…, T, H)."""
        for number, block in enumerate(self.blocks):
            second = block.around_ffn
            assert isinstance(second, AddNorm)
            x = self._norm(f"{number}a", block.around_attention.norm, x + self._attend(f"{number}", block, x))
            x = self._norm(f"{number}b", second.norm, x + self._ffn(block, x))
        return x

    def _held(self, part: str, name: str, value: Tensor) -> Tensor:
        """The value, or what it was for the first input."""
        return value if part in self.active else self.kept.setdefault(name, value)

    def _attend(self, name: str, block: EncoderBlock, x: Tensor) -> Tensor:
        attention = block.self_attention
        made = attention.projections
        q, k, v = (heads_of(plain_linear(x, one), attention.num_heads) for one in (made.query, made.key, made.value))
        mixed = self._held("attention", name, plain_weights(q, k)) @ v
        return plain_linear(side_by_side(mixed), attention.output)

    def _norm(self, name: str, norm: nn.Module, x: Tensor) -> Tensor:
        assert isinstance(norm, nn.LayerNorm)
        mean = self._held("norm", f"{name} mean", x.mean(-1, keepdim=True))
        deviation = torch.sqrt(((x - mean) ** 2).mean(-1, keepdim=True) + norm.eps)
        deviation = self._held("norm", f"{name} deviation", deviation)
        return (x - mean) / deviation * norm.weight.detach() + norm.bias.detach()

    def _ffn(self, block: EncoderBlock, x: Tensor) -> Tensor:
        ffn = block.ffn
        assert isinstance(ffn, FeedForward)
        inner = plain_linear(x, ffn.inner)
        return plain_linear(plain_gelu(inner) if "gelu" in self.active else inner, ffn.outer)


def rows_of(model: Bert, count: int) -> list[Tensor]:
    """Embedded stretches of newspaper text, 12 tokens each."""
    tokenizer = Tokenizer.from_folder(fetch("mini-zh"))
    rng, found = np.random.default_rng(0), list[Tensor]()
    articles, characters = daily().held_out, daily().characters
    while len(found) < count:
        article = articles[int(rng.integers(len(articles)))]
        start = int(rng.integers(len(article) - TOKENS))
        text = "".join(characters[number] for number in article[start : start + TOKENS - 2])
        ids = tokenizer.encode(text).ids
        if len(ids) == TOKENS:  # numbers and letters make fewer tokens than characters
            found.append(model.encoder.embeddings(Batch.of([ids])))
    return found


@torch.no_grad()
def sources() -> Record:
    """Median relative errors of f(x+y) − f(x) − f(y) + f(0): of each part alone, and of the encoder."""
    model = load_model(fetch("mini-zh"))[0]
    assert isinstance(model, Bert)
    model.double().eval()
    x, y = torch.stack(rows_of(model, 2 * PAIRS)).split(PAIRS)
    blocks = [block for block in model.encoder.stack.blocks if isinstance(block, EncoderBlock)]
    layout = Layout.ragged([TOKENS] * PAIRS)
    library = model.encoder.stack(x.flatten(0, 1), AttentionPlan.between(layout, layout)).view_as(x)
    encoders = {name: ByHand(blocks, active) for name, active in ACTIVE.items()}
    for encoder in encoders.values():
        encoder(x)  # what is frozen, is frozen here
    return {
        "alone": {name: error(one, x, y) for name, one in _parts(blocks[0]).items()},
        "encoder": {name: error(one, x, y) for name, one in encoders.items()},
        "from_library": difference(encoders["all"](x), library),
    }


def _parts(block: EncoderBlock) -> dict[str, Map]:
    attention: MultiHeadAttention = block.self_attention
    return {
        "linear": partial(plain_linear, layer=attention.projections.query),
        "gelu": plain_gelu,
        "attention": lambda rows: plain_attention(attention, rows, rows),
        "norm": partial(plain_norm, block.around_attention.norm),
        "tanh": torch.tanh,
    }


def error(one: Map, x: Tensor, y: Tensor) -> float:
    """Zero for an affine map, relative to the size of what it gives; the median over pairs."""
    both = one(x + y)
    left = both - one(x) - one(y) + one(torch.zeros_like(x))
    return float((torch.linalg.norm(left, dim=(1, 2)) / torch.linalg.norm(both, dim=(1, 2))).median())


def _source_trials(plan: Plan) -> list[Trial]:
    return [Trial("mini-zh", sources)]


def conclude_sources(records: Mapping[str, Record]) -> Conclusion:
    """GELU and self-attention, and whether that is all."""
    (record,) = records.values()
    alone, encoder = record["alone"], record["encoder"]
    claimed = min(alone["gelu"], alone["attention"], encoder["gelu"], encoder["attention"])
    overlooked = encoder["none"] > AFFINE
    if claimed < NOT_AFFINE:
        verdict = Verdict.NOT_SUPPORTED
    else:
        verdict = Verdict.SUPPORTED if encoder["norm"] <= AFFINE else Verdict.DEPENDS
    english = {
        Verdict.SUPPORTED: "GELU and self-attention are the only sources, as S0-7 says.",
        Verdict.DEPENDS: "S0-7 names two of three sources: GELU and self-attention are not affine, but neither is "
        "LayerNorm, which it leaves out.",
        Verdict.NOT_SUPPORTED: "GELU or self-attention comes out affine, against S0-7.",
    }[verdict]
    chinese = {
        Verdict.SUPPORTED: "来源只有 GELU 和自注意力，如 S0-7 所说。",
        Verdict.DEPENDS: "三个来源 S0-7 只说了两个：GELU 和自注意力不是仿射的，被遗漏的 LayerNorm 也不是。",
        Verdict.NOT_SUPPORTED: "GELU 或自注意力是仿射的，与 S0-7 相反。",
    }[verdict]
    rest = (
        (
            " Even with all three out of action it is not affine: a source was overlooked.",
            "三者都停掉后仍不是仿射：还有来源没找到。",
        )
        if overlooked
        else ("", "")
    )
    says = Text(
        f"{english} Relative errors alone: GELU {alone['gelu']:.2g}, self-attention {alone['attention']:.2g}, "
        f"LayerNorm {alone['norm']:.2g}, tanh {alone['tanh']:.2g}, a linear layer {alone['linear']:.0e}. The whole "
        f"encoder: {encoder['gelu']:.2g} with GELU alone in action, {encoder['attention']:.2g} with self-attention, "
        f"{encoder['norm']:.2g} with LayerNorm, {encoder['none']:.0e} with none of them.{rest[0]}",
        f"{chinese}单独的相对误差：GELU {alone['gelu']:.2g}，自注意力 {alone['attention']:.2g}，LayerNorm "
        f"{alone['norm']:.2g}，tanh {alone['tanh']:.2g}，线性层 {alone['linear']:.0e}。整个编码器：只留 GELU 时 "
        f"{encoder['gelu']:.2g}，只留自注意力 {encoder['attention']:.2g}，只留 LayerNorm {encoder['norm']:.2g}，"
        f"三者都停掉 {encoder['none']:.0e}。{rest[1]}",
    )
    picture = Bars(
        Text("How far from affine each part is", "各部件离仿射有多远"),
        Text("relative error", "相对误差"),
        tuple(PARTS_OF.values()),
        (Series(Text("alone", "单独"), tuple(Point(number, alone[name]) for number, name in enumerate(PARTS_OF))),),
        Text("A bar of height zero is an affine part.", "高度为零的是仿射部件。"),
    )
    return Conclusion(verdict, says, (picture,))


def activation(name: str, updates: int, percent: int, seed: int) -> Record:
    """Left to right on text, then headlines, with one activation."""
    changes: dict[str, Any] = {"activation": name, "hidden_size": 96, "ffn_size": 384}
    text = trial(LeftToRight(Fit(updates, rate=2e-3), changes), seed)
    topics = headlines(changes, 64, 2 * percent / 100, 1e-3, seed)
    return {"loss": text["loss"], "failed": text["failed"], "accuracy": topics["accuracy"]}


def _activation_trials(plan: Plan) -> list[Trial]:
    sizes = plan.at(4, 120), plan.at(5, 100)
    return [
        Trial(
            named(name, seed),
            partial(activation, name, *sizes, seed),
            {"updates": sizes[0], "percent": sizes[1]},
        )
        for seed in range(plan.seeds)
        for name in ACTIVATIONS
    ]


def conclude_activation(records: Mapping[str, Record]) -> Conclusion:
    """Identity against GELU in both tasks; ReLU beside it."""
    loss, right = ({name: by_seed(records, name, kind) for name in ACTIVATIONS} for kind in ("loss", "accuracy"))
    text = {name: paired(loss[name], loss["gelu"]) for name in ("identity", "relu")}
    topics = {name: paired(right["gelu"], right[name]) for name in ("identity", "relu")}
    found = {sided(text["identity"]), sided(topics["identity"])}
    verdict = found.pop() if len(found) == 1 else Verdict.DEPENDS
    english = {
        Verdict.SUPPORTED: "GELU's non-linearity matters: identity is worse in both tasks.",
        Verdict.NOT_SUPPORTED: "Identity is better than GELU in both tasks.",
        Verdict.DEPENDS: "The tasks do not agree on identity against GELU.",
        Verdict.NOT_VISIBLE: "Identity and GELU cannot be told apart at this scale.",
    }[verdict]
    chinese = {
        Verdict.SUPPORTED: "GELU 的非线性有作用：两个任务上恒等激活都更差。",
        Verdict.NOT_SUPPORTED: "两个任务上恒等激活都比 GELU 好。",
        Verdict.DEPENDS: "恒等激活与 GELU 相比，两个任务结论不一致。",
        Verdict.NOT_VISIBLE: "此规模下分不出恒等激活和 GELU。",
    }[verdict]
    failed = sum(bool(record["failed"]) for record in records.values())
    says = Text(
        f"{english} Identity loses {text['identity'].signed()} a character on text and "
        f"{topics['identity'].signed()} of accuracy on headlines; ReLU {text['relu'].signed()} and "
        f"{topics['relu'].signed()}. Runs that failed: {failed}.",
        f"{chinese}恒等激活在文本上每字损失多 {text['identity'].signed()}，标题准确率少 {topics['identity'].signed()}；"
        f"ReLU 分别为 {text['relu'].signed()} 和 {topics['relu'].signed()}。失败的训练：{failed} 次。",
    )
    return Conclusion(verdict, says, text_and_topics(ACTIVATIONS, loss, right))


PARTS = (
    Part("sources", _source_trials, conclude_sources),
    Part("activation", _activation_trials, conclude_activation),
)
