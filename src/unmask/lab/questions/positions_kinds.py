"""Nine ways to tell positions: an exact distance, and text; at the trained length, and past it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache, partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from unmask.lab.entry import Conclusion, Part, Plan, Record, Table, Trial, Verdict
from unmask.lab.kit.daily import daily, windows
from unmask.lab.kit.effects import Effect, by_seed, named, paired, spread
from unmask.lab.kit.fitting import Fit, fit, seeded
from unmask.lab.kit.newspaper import LeftToRight, frequencies_loss, held_out, learned, pairs, transformer
from unmask.lab.pictures import Bars, Series
from unmask.lab.words import Text
from unmask.models.bert import Bert
from unmask.models.gpt import Gpt
from unmask.models.init import build_model, start_as_sinusoids
from unmask.models.settings import BertSettings
from unmask.nn.batch import Batch

KINDS = {
    "none": Text("none", "无"),
    "learned": Text("learned", "可学习"),
    "sinusoidal": Text("sinusoidal", "正弦"),
    "complex": Text("complex", "复数"),
    "shaw": Text("Shaw", "Shaw"),
    "transformer_xl": Text("Transformer-XL", "Transformer-XL"),
    "buckets": Text("buckets (T5)", "分桶（T5）"),
    "alibi": Text("ALiBi", "ALiBi"),
    "rotary": Text("rotary", "旋转"),
}
#: Those that S2-15 names.
NOTED = ("sinusoidal", "complex", "shaw", "transformer_xl")
TRAINED, LENGTHS = 32, (32, 64, 128)
SYMBOLS, BACK = 16, 5
#: In points: a kind whose accuracy falls by less, from the trained length to four times it, is said to extrapolate.
FALL = 0.05


def settings_of(kind: str) -> BertSettings:
    """Two layers of 64 that answer each token; the learned table ends where training does."""
    sizes = {"vocab_size": SYMBOLS, "hidden_size": 64, "num_layers": 2, "num_heads": 4, "ffn_size": 256}
    start = {"init": "xavier", "scale_embeddings": True, "pooler": False, "num_segments": 0}
    dropout = {"embedding": 0.0, "residual": 0.0, "attention": 0.0}
    head = {"kind": "tag", "labels": [str(number) for number in range(SYMBOLS)], "dropout": 0.0}
    length = TRAINED if kind == "learned" else 512
    rest = {"max_length": length, "dropout": dropout, "heads": [head], "positions": {"kind": kind}}
    return BertSettings.parse({**sizes, **start, **rest})


def answers(model: Bert, ids: Tensor) -> Tensor:
    """(B, S − 5, symbols): for every token with one five places before it."""
    logits = model.tag_logits(model(Batch.of(ids.tolist())))
    return logits.view(*ids.shape, SYMBOLS)[:, BACK:]


def exact_distance(kind: str, updates: int, seed: int) -> Record:
    """Learn to name the token five places before; accuracy at each length, None where there are no positions."""
    generator = seeded(seed)
    model = build_model(settings_of(kind), seed=seed)
    assert isinstance(model, Bert)
    if kind == "learned":
        start_as_sinusoids(model)  # from random values so short a run learns no order at all

    def loss(_: int) -> Tensor:
        ids = torch.randint(SYMBOLS, (64, TRAINED), generator=generator)
        return F.cross_entropy(answers(model, ids).flatten(0, 1), ids[:, :-BACK].flatten())

    fit(model, loss, Fit(updates, rate=2e-3))
    found: dict[str, float | None] = {}
    for length in LENGTHS:
        possible = kind != "learned" or length <= TRAINED
        found[f"accuracy_{length}"] = _accuracy(model, length) if possible else None
    return found


@torch.inference_mode()
def _accuracy(model: Bert, length: int) -> float:
    ids = torch.randint(SYMBOLS, (128, length), generator=torch.Generator().manual_seed(12345))
    return float((answers(model, ids).argmax(-1) == ids[:, :-BACK]).float().mean())


def text(kind: str, updates: int, seed: int) -> Record:
    """Left to right on newspaper text; past the trained length, and the same characters read in short pieces."""
    changes: dict[str, Any] = {"positions": {"kind": kind}, "max_length": TRAINED if kind == "learned" else 512}
    run = LeftToRight(Fit(updates, rate=2e-3), changes, length=TRAINED, batch=64)
    model, _ = learned(run, seed, partial(_started, changes))
    plain = frequencies_loss(TRAINED)
    pieces, longer = past_training(model, whole=kind != "learned")
    return {
        "loss": _number(held_out(model, TRAINED), plain),
        "pieces": _number(pieces, plain),
        "longer": None if longer is None else _number(longer, plain),
        "frequencies": plain,
    }


def _started(changes: Mapping[str, Any], seed: int) -> Gpt:
    model = transformer(changes, seed)
    if changes["positions"]["kind"] == "learned":
        start_as_sinusoids(model)
    return model


@cache
def _long_texts() -> list[np.ndarray]:
    rng = np.random.default_rng(54321)
    return windows(tuple(one for one in daily().held_out if len(one) >= LENGTHS[-1]), LENGTHS[-1], 128, rng)


@torch.inference_mode()
def past_training(model: torch.nn.Module, whole: bool = True) -> tuple[float, float | None]:
    """The loss of characters 33 to 128 of held-out texts: read in pieces of the trained length, and in the whole."""
    texts = _long_texts()
    pieces = [text[start : start + TRAINED] for text in texts for start in range(TRAINED, LENGTHS[-1], TRAINED)]
    short = _losses(model, pieces).mean()
    if not whole:
        return float(short), None
    return float(short), float(_losses(model, texts).view(len(texts), -1)[:, TRAINED:].mean())


def _losses(model: torch.nn.Module, texts: list[np.ndarray]) -> Tensor:
    batch, targets = pairs(texts)
    return F.cross_entropy(model(batch), targets, reduction="none")


def _number(loss: float, plain: float) -> float:
    """A loss that can be written down: a run that diverged counts as one above frequencies."""
    return loss if loss < plain + 1 else plain + 1


def _trials(plan: Plan, job: Any, updates: int) -> list[Trial]:
    return [
        Trial(named(kind, seed), partial(job, kind, updates, seed), {"updates": updates})
        for seed in range(plan.seeds)
        for kind in KINDS
    ]


def _distance_trials(plan: Plan) -> list[Trial]:
    return _trials(plan, exact_distance, plan.at(4, 250, 1000))


def _text_trials(plan: Plan) -> list[Trial]:
    return _trials(plan, text, plan.at(3, 120, 500))


def conclude_distance(records: Mapping[str, Record]) -> Conclusion:
    """Each kind against none at the trained length, and how far it falls past it."""
    found = {kind: by_seed(records, kind, f"accuracy_{TRAINED}") for kind in KINDS}
    gains = {kind: paired(found[kind], found["none"]) for kind in KINDS if kind != "none"}
    beats = {kind: paired(found[kind], found["learned"]) for kind in KINDS if kind not in ("none", "learned")}
    falls = {
        kind: paired(found[kind], by_seed(records, kind, f"accuracy_{LENGTHS[-1]}"))
        for kind in KINDS
        if kind != "learned"
    }
    best = max(spread(values).mean for kind, values in found.items() if kind != "none")
    verdict = verdict_of([gains[kind] for kind in NOTED]) if best > 0.5 else Verdict.NOT_VISIBLE
    able = [kind for kind in falls if spread(found[kind]).mean > 0.5 and falls[kind].high < FALL]
    weak = [kind for kind in NOTED if gains[kind].low <= 0]
    english = {
        Verdict.SUPPORTED: "Every kind that S2-15 names tells positions: each beats none.",
        Verdict.NOT_SUPPORTED: "A kind that S2-15 names does worse than none.",
        Verdict.DEPENDS: "Not every kind that S2-15 names beats none in so short a training.",
        Verdict.NOT_VISIBLE: "No kind passes 50 % in so short a training."
        if best <= 0.5
        else "No difference can be told.",
    }[verdict]
    chinese = {
        Verdict.SUPPORTED: "S2-15 所列各种都能表达位置：每一种都优于“无”。",
        Verdict.NOT_SUPPORTED: "S2-15 所列中有一种不如“无”。",
        Verdict.DEPENDS: "训练这么短，S2-15 所列并非每一种都优于“无”。",
        Verdict.NOT_VISIBLE: "训练这么短，各种与“无”分不出高下，或没有一种超过 50 %。",
    }[verdict]
    gained = "; ".join(f"{KINDS[kind].en} {gains[kind].signed(2)}" for kind in NOTED)
    gained_zh = "；".join(f"{KINDS[kind].zh} {gains[kind].signed(2)}" for kind in NOTED)
    says = Text(
        f"{english} Accuracy above none at length {TRAINED}: {gained}."
        f"{_list(' Not above none with certainty: ', weak, 'en')} From {TRAINED} to {LENGTHS[-1]} tokens, the fall is "
        f"surely below {100 * FALL:.0f} points{_list(' for ', able, 'en') or ' for no kind.'}",
        f"{chinese}长度 {TRAINED} 时比“无”高：{gained_zh}。{_list('不能肯定优于“无”的：', weak, 'zh')}"
        f"从 {TRAINED} 到 {LENGTHS[-1]} 个 token，下降肯定低于 {100 * FALL:.0f} 个百分点的："
        f"{_list('', able, 'zh') or '没有。'}",
    )
    longer = {kind: by_seed(records, kind, f"accuracy_{LENGTHS[-1]}") for kind in falls}
    return Conclusion(verdict, says, (_bars(found, longer),), _table(falls, beats, found))


def _bars(found: Mapping[str, list[float]], longer: Mapping[str, list[float]]) -> Bars:
    return Bars(
        Text("The token five places before", "前面第 5 个 token"),
        Text("accuracy", "准确率"),
        tuple(KINDS.values()),
        (
            Series(Text(f"length {TRAINED}, as trained", f"长度 {TRAINED}（训练长度）"), _points(found)),
            Series(
                Text(f"length {LENGTHS[-1]}", f"长度 {LENGTHS[-1]}"),
                _points(longer),
            ),
        ),
        Text(
            "The second bar shows what is left at four times the trained length; a learned table has none there.",
            "第二根柱子是四倍训练长度时还剩多少；可学习的表在那里没有位置。",
        ),
    )


def verdict_of(gains: list[Effect]) -> Verdict:
    """On the claim that all of them are above zero."""
    if all(gain.low > 0 for gain in gains):
        return Verdict.SUPPORTED
    if any(gain.high < 0 for gain in gains):
        return Verdict.NOT_SUPPORTED
    return Verdict.DEPENDS if any(gain.low > 0 for gain in gains) else Verdict.NOT_VISIBLE


def _list(before: str, kinds: list[str], language: Any) -> str:
    if not kinds:
        return ""
    joint, end = (", ", ".") if language == "en" else ("、", "。")
    return f"{before}{joint.join(KINDS[kind].said(language) for kind in kinds)}{end}"


def _points(found: Mapping[str, list[float]]) -> tuple[Any, ...]:
    return tuple(spread(found[kind]).point(number) for number, kind in enumerate(KINDS) if kind in found)


def _table(falls: Mapping[str, Effect], beats: Mapping[str, Effect], found: Mapping[str, list[float]]) -> Table:
    columns = (
        Text("kind", "种类"),
        Text(f"at {TRAINED}", f"长度 {TRAINED}"),
        Text("against learned", "相对可学习"),
        Text(f"change from {TRAINED} to {LENGTHS[-1]}", f"从 {TRAINED} 到 {LENGTHS[-1]} 的变化"),
    )
    rows = []
    for kind, name in KINDS.items():
        fall, beat = falls.get(kind), beats.get(kind)
        change = "–" if fall is None else Effect(-fall.mean, -fall.high, -fall.low).signed(3)
        rows.append((name.en, str(spread(found[kind])), "–" if beat is None else beat.signed(3), change))
    return Table(columns, tuple(rows))


def conclude_text(records: Mapping[str, Record]) -> Conclusion:
    """Loss below none at the trained length, and past it."""
    found = {kind: by_seed(records, kind, "loss") for kind in KINDS}
    gains = {kind: paired(found["none"], found[kind]) for kind in KINDS if kind != "none"}
    longer = {kind: by_seed(records, kind, "longer") for kind in KINDS if kind != "learned"}
    pieces = {kind: by_seed(records, kind, "pieces") for kind in longer}
    rises = {kind: paired(longer[kind], pieces[kind]) for kind in longer}
    verdict = verdict_of([gains[kind] for kind in NOTED])
    zero = [kind for kind in gains if gains[kind].low <= 0 <= gains[kind].high]
    if verdict is Verdict.DEPENDS and 2 * len(zero) > len(gains):
        verdict = Verdict.NOT_VISIBLE
    english = {
        Verdict.SUPPORTED: "Every kind that S2-15 names beats none on text.",
        Verdict.NOT_SUPPORTED: "A kind that S2-15 names does worse than none on text.",
        Verdict.DEPENDS: "Some kinds that S2-15 names beat none on text, some do not.",
        Verdict.NOT_VISIBLE: "On text most differences from none cannot be told from zero.",
    }[verdict]
    chinese = {
        Verdict.SUPPORTED: "在文本上，S2-15 所列每一种都优于“无”。",
        Verdict.NOT_SUPPORTED: "在文本上，S2-15 所列中有一种不如“无”。",
        Verdict.DEPENDS: "在文本上，S2-15 所列有的优于“无”，有的不是。",
        Verdict.NOT_VISIBLE: "在文本上，多数与“无”的差别看不出来。",
    }[verdict]
    best, worst = (choose(rises, key=lambda kind: rises[kind].mean) for choose in (min, max))
    top = max(gains, key=lambda kind: gains[kind].mean)
    says = Text(
        f"{english} The largest gain over none at {TRAINED} characters is that of {KINDS[top].en}: "
        f"{gains[top].signed()}. Characters {TRAINED + 1} to {LENGTHS[-1]} of longer texts, read in the whole instead "
        f"of in pieces of {TRAINED}, change the loss least favourably with {KINDS[worst].en}, "
        f"{rises[worst].signed()}, and most favourably with {KINDS[best].en}, {rises[best].signed()}.",
        f"{chinese}长度 {TRAINED} 时比“无”改进最多的是{KINDS[top].zh}：{gains[top].signed()}。较长文本的第 "
        f"{TRAINED + 1} 到 {LENGTHS[-1]} 字，整段读与每 {TRAINED} 字一段地读相比，"
        f"损失变化最不利的是{KINDS[worst].zh}，{rises[worst].signed()}；"
        f"最有利的是{KINDS[best].zh}，{rises[best].signed()}。",
    )
    picture = Bars(
        Text("Text from left to right", "从左到右的文本"),
        Text("held-out loss a character, nats", "留出集每字损失（nat）"),
        tuple(KINDS.values()),
        (
            Series(Text(f"in pieces of {TRAINED}", f"每 {TRAINED} 字一段"), _points(pieces)),
            Series(Text(f"in texts of {LENGTHS[-1]}", f"{LENGTHS[-1]} 字整段"), _points(longer)),
        ),
        Text(
            "The same characters; lower is better. A second bar above the first: the kind does not carry on.",
            "同样的字，越低越好。第二根高于第一根，说明这种位置超出训练长度后变差。",
        ),
    )
    return Conclusion(verdict, says, (picture,), _table_of_losses(found, gains, rises))


def _table_of_losses(
    found: Mapping[str, list[float]], gains: Mapping[str, Effect], rises: Mapping[str, Effect]
) -> Table:
    columns = (
        Text("kind", "种类"),
        Text(f"loss at {TRAINED}", f"长度 {TRAINED} 的损失"),
        Text("below none", "比“无”低"),
        Text("change past training length", "超出训练长度后的变化"),
    )
    rows = tuple(
        (
            name.en,
            str(spread(found[kind])),
            gains[kind].signed() if kind in gains else "–",
            rises[kind].signed() if kind in rises else "–",
        )
        for kind, name in KINDS.items()
    )
    return Table(columns, rows)


PARTS = (
    Part("exact-distance", _distance_trials, conclude_distance),
    Part("text", _text_trials, conclude_text),
)
