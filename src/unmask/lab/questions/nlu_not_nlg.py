"""Two gaps in a text: what is lost by filling each for itself, and whether the order of filling matters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial

import numpy as np
import torch
from torch import Tensor

from unmask.data.sentences import split_sentences
from unmask.lab.entry import Conclusion, Part, Plan, Record, Trial, Verdict
from unmask.lab.kit.effects import Effect, paired, sided, spread
from unmask.lab.kit.shown import conclude_bars, conclude_shares
from unmask.lab.pictures import Bars
from unmask.lab.words import Text
from unmask.models.bert import Bert
from unmask.models.fetch import fetch
from unmask.models.folder import load_model
from unmask.nn.batch import Batch
from unmask.text import Tokenizer
from unmask.text.scripts import HAN
from unmask.text.words import segment

CANDIDATES = 20
FAR = 8  # characters apart, at least
DISTANCES = ("near", "far")
#: Sentences that are looked at together.
_CHUNK = 10


@dataclass(frozen=True)
class Gaps:
    """The ids of a sentence, and two places of it."""

    ids: list[int]
    near: tuple[int, int]  # a word of two characters
    far: tuple[int, int]

    def hidden(self, places: Sequence[int], mask: int) -> list[int]:
        """The ids with some of them hidden."""
        return [mask if place in places else id for place, id in enumerate(self.ids)]


@cache
def mini_zh() -> tuple[Bert, Tokenizer, int]:
    """The model, its tokenizer and the id of [MASK]."""
    folder = fetch("mini-zh")
    model, _ = load_model(folder)
    tokenizer = Tokenizer.from_folder(folder)
    assert isinstance(model, Bert)
    assert tokenizer.mask_id is not None
    return model, tokenizer, tokenizer.mask_id


@cache
def sentences(count: int) -> tuple[Gaps, ...]:
    """Sentences of the newspaper with a word of two known characters, and two known characters far apart."""
    text = (fetch("people-daily") / "text.txt").read_text(encoding="utf-8")
    found = [one for line in text.split("\n") for one in split_sentences(line) if 16 <= len(one) <= 60]
    rng = np.random.default_rng(1)
    gaps = []
    for number in rng.permutation(len(found)):
        if (one := _gaps(found[number], rng)) is not None:
            gaps.append(one)
        if len(gaps) == count:
            break
    return tuple(gaps)


def _gaps(text: str, rng: np.random.Generator) -> Gaps | None:
    _, tokenizer, _ = mini_zh()
    encoding = tokenizer.encode(text)
    known = {  # place in the text → place among the tokens
        start: row
        for row, (id, (start, end)) in enumerate(zip(encoding.ids, encoding.offsets, strict=True))
        if end - start == 1 and id != tokenizer.unk_id and HAN.match(text[start])
    }
    words = [start for start, end in segment(text) if end - start == 2 and start in known and start + 1 in known]
    places = sorted(known)
    apart = [(a, b) for a in places for b in places if b - a >= FAR]
    if not words or not apart:
        return None
    start = words[rng.integers(len(words))]
    first, second = apart[rng.integers(len(apart))]
    return Gaps(encoding.ids, (known[start], known[start + 1]), (known[first], known[second]))


def _said(sequences: Sequence[Sequence[int]], places: Sequence[Sequence[int]]) -> Tensor:
    """(P, V) log-probabilities at places of sequences, in their order."""
    model, _, _ = mini_zh()
    batch = Batch.of(sequences)
    starts = batch.layout.starts
    wanted = [start + place for start, some in zip(starts, places, strict=True) for place in some]
    asked = torch.tensor(sorted({*starts, *wanted}))
    rows = model(batch, asked).sequence[torch.searchsorted(asked, torch.tensor(wanted))]
    return model.masked_token_logits(rows).log_softmax(-1)


@torch.inference_mode()
def two_masks(distance: str, count: int) -> Record:
    """Independent and joint fillings of two gaps, sentence by sentence."""
    values: dict[str, list[float]] = {"gain": [], "orders": [], "alone": [], "together": []}
    everything = sentences(count)
    for first in range(0, len(everything), _CHUNK):
        some = everything[first : first + _CHUNK]
        for name, numbers in _chunk(some, [getattr(one, distance) for one in some]).items():
            values[name] += numbers
    return {"sentences": len(everything), **values}


def _chunk(some: Sequence[Gaps], places: Sequence[tuple[int, int]]) -> dict[str, list[float]]:
    _, _, mask = mini_zh()
    both = _said([one.hidden(at, mask) for one, at in zip(some, places, strict=True)], places).unflatten(0, (-1, 2))
    best = both.topk(CANDIDATES, -1)  # (sentences, 2, candidates)
    found: dict[str, list[float]] = {"gain": [], "orders": [], "alone": [], "together": []}
    for number, (one, at) in enumerate(zip(some, places, strict=True)):
        truth = [one.ids[place] for place in at]
        alone = [float(both[number, gap, truth[gap]]) for gap in (0, 1)]
        joint, right = [], []
        for gap in (0, 1):  # the gap that is filled first
            fillings = [truth[gap], *best.indices[number, gap].tolist()]
            given = [one.hidden([at[1 - gap]], mask) for _ in fillings]
            for ids, filling in zip(given, fillings, strict=True):
                ids[at[gap]] = filling
            after = _said(given, [[at[1 - gap]]] * len(given))
            joint.append(alone[gap] + float(after[0, truth[1 - gap]]))
            other, which = after[1:].max(-1)
            chosen = int((best.values[number, gap] + other).argmax())
            right.append(fillings[1 + chosen] == truth[gap] and int(which[chosen]) == truth[1 - gap])
        found["gain"].append(round(sum(joint) / 2 - sum(alone), 5))
        found["orders"].append(round(abs(joint[0] - joint[1]), 5))
        found["alone"].append(float(best.indices[number, :, 0].tolist() == truth))
        found["together"].append(sum(right) / 2)
    return found


def _trials(plan: Plan) -> list[Trial]:
    count = plan.at(10, 600)
    return [Trial(distance, partial(two_masks, distance, count), {"sentences": count}) for distance in DISTANCES]


def conclude_masks(records: Mapping[str, Record]) -> Conclusion:
    """Is independence a loss where gaps depend on each other, and is there one distribution at all?"""
    gains = {distance: spread(records[distance]["gain"]) for distance in DISTANCES}
    more = paired(records["near"]["gain"], records["far"]["gain"])
    verdict = sided(gains["near"])
    if verdict == Verdict.SUPPORTED and sided(more) != Verdict.SUPPORTED:
        verdict = Verdict.DEPENDS
    orders = {distance: spread(records[distance]["orders"]) for distance in DISTANCES}
    alone = {distance: spread(records[distance]["alone"]) for distance in DISTANCES}
    together = {distance: spread(records[distance]["together"]) for distance in DISTANCES}
    head = {
        Verdict.SUPPORTED: Text(
            "Independence is a loss where the gaps belong together", "两个空相关时，独立预测确有损失"
        ),
        Verdict.NOT_SUPPORTED: Text("Independence is no loss", "独立预测并没有损失"),
        Verdict.DEPENDS: Text("Far gaps gain as much as near ones", "远处的空与近处的空增益相当"),
    }.get(verdict, Text("No loss by independence can be seen", "看不出独立预测的损失"))
    density = (
        Text("so there is no single distribution behind them", "可见背后没有唯一的分布")
        if max(one.mean for one in orders.values()) > 0.1
        else Text("so they might come from one distribution", "可能来自同一个分布")
    )
    says = Text(
        f"{head.en}: the true two characters of a word are {gains['near'].signed(2)} nats more probable when the "
        f"second gap is filled knowing the first; characters {FAR} or more apart {gains['far'].signed(2)}. Both gaps "
        f"of a word are right in {alone['near'].mean:.1%} of {records['near']['sentences']} sentences if each takes "
        f"its own best, in {together['near'].mean:.1%} if the pair is searched for. The two orders of filling "
        f"differ by {orders['near'].mean:.2f} nats (far: {orders['far'].mean:.2f}), {density.en}.",
        f"{head.zh}：知道第一个字再填第二个，双字词真实字对的对数概率变化 {gains['near'].signed(2)} 奈特；"
        f"相距 {FAR} 字以上的为 {gains['far'].signed(2)}。{records['near']['sentences']} 个句子中，"
        f"两个空各取最好的字，全对的占 {alone['near'].mean:.1%}；按字对搜索则为 {together['near'].mean:.1%}。"
        f"两种填写顺序平均相差 {orders['near'].mean:.2f} 奈特（远：{orders['far'].mean:.2f}），{density.zh}。",
    )
    return Conclusion(verdict, says, conclude_pictures(gains, alone, together))


def conclude_pictures(
    gains: Mapping[str, Effect], alone: Mapping[str, Effect], together: Mapping[str, Effect]
) -> tuple[Bars, Bars]:
    """What is gained, and how often both are right."""
    near, far = Text("near: one word", "近：同一个词"), Text(f"far: {FAR} or more apart", f"远：相距 {FAR} 字以上")
    gain = conclude_bars(
        Text("What knowing the other gap gives", "知道另一个空的好处"),
        Text("log p joint − log p independent, nats", "联合 − 独立，奈特"),
        [(near, gains["near"]), (far, gains["far"])],
        Text("Above 0, filling each gap for itself loses something.", "大于 0 说明各填各的会有损失。"),
    )
    pairs: list[tuple[Text, Effect]] = [
        (Text("near, each alone", "近，各填各的"), alone["near"]),
        (Text("near, as a pair", "近，成对填"), together["near"]),
        (Text("far, each alone", "远，各填各的"), alone["far"]),
        (Text("far, as a pair", "远，成对填"), together["far"]),
    ]
    right = conclude_shares(
        Text("Both gaps right", "两个空都填对"),
        Text("sentences, %", "句子，%"),
        pairs,
        Text(
            f"As a pair: the best of {CANDIDATES} fillings of one gap, each completed by the best of the other.",
            f"成对填：一个空取 {CANDIDATES} 个候选，逐一补全另一个空，取最好的一对。",
        ),
    )
    return gain, right


PARTS = (Part("two-masks", _trials, conclude_masks),)
