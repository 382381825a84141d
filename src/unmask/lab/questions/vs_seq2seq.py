"""A state of fixed size, attention to it, or no recurrence at all: three models write strings backwards."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from unmask.lab.entry import Conclusion, Part, Plan, Record, Trial, Verdict
from unmask.lab.kit.effects import by_seed, named, paired, sided, spread
from unmask.lab.kit.fitting import Fit, fit, seeded
from unmask.lab.pictures import Lines, Series
from unmask.lab.words import Text, both
from unmask.models.bert import num_parameters
from unmask.models.init import build_model
from unmask.models.recurrent import LstmSeq2Seq, lstm_like
from unmask.models.settings import LstmSettings, TransformerSettings
from unmask.models.transformer import Transformer
from unmask.nn.batch import Batch

ARMS = {
    "lstm": Text("LSTM without attention", "无注意力的 LSTM"),
    "attention": Text("LSTM with attention", "有注意力的 LSTM"),
    "transformer": both("Transformer"),
}
START, SYMBOLS = 0, 20
GROUPS = ((4, 8), (9, 16), (17, 24))
TESTED = 300
Strings = list[list[int]]


def settings_of(arm: str) -> TransformerSettings | LstmSettings:
    """A Transformer of 2 + 2 layers, or the LSTM that is nearest to it in parameters."""
    sizes = {"hidden_size": 64, "num_heads": 4, "ffn_size": 256, "num_encoder_layers": 2, "num_decoder_layers": 2}
    vocabularies = {"source_vocab_size": SYMBOLS + 1, "target_vocab_size": SYMBOLS + 1}
    dropout = {"embedding": 0.0, "residual": 0.0, "attention": 0.0}
    settings = TransformerSettings.parse({**sizes, **vocabularies, "dropout": dropout})
    return settings if arm == "transformer" else lstm_like(settings, attention=arm == "attention")


def strings(count: int, shortest: int, longest: int, generator: torch.Generator) -> Strings:
    """Random symbols."""
    lengths = torch.randint(shortest, longest + 1, (count,), generator=generator).tolist()
    return [(torch.randint(SYMBOLS, (length,), generator=generator) + 1).tolist() for length in lengths]


def reverse(arm: str, updates: int, seed: int) -> Record:
    """Learn to write strings backwards, then write new ones."""
    generator = seeded(seed)
    model = build_model(settings_of(arm), seed=seed)
    assert isinstance(model, Transformer | LstmSeq2Seq)

    def loss(_: int) -> Tensor:
        some = strings(128, GROUPS[0][0], GROUPS[-1][1], generator)
        target = Batch.of([[START, *one[:0:-1]] for one in some])
        told = torch.tensor([symbol for one in some for symbol in reversed(one)])
        return F.cross_entropy(model(Batch.of(some), target), told)

    losses = fit(model, loss, Fit(updates, rate=2e-3))
    fresh = torch.Generator().manual_seed(12345)
    found = {_group(group): written(model, strings(TESTED, *group, fresh)) for group in GROUPS}
    return {**found, "parameters": num_parameters(model), "last_loss": losses[-1] if losses[-1] < 1e9 else 1e9}


@torch.inference_mode()
def written(model: Transformer | LstmSeq2Seq, some: Strings) -> float:
    """The share of right symbols in greedy output, each string as long as it should be."""
    longest = max(map(len, some))
    wanted = torch.tensor([[*reversed(one), *[-1] * (longest - len(one))] for one in some])
    ids, right = torch.full((len(some),), START), 0
    source = Batch.of(some)
    state = model.start(model.encode(source))  # type: ignore[arg-type]
    for place in range(longest):
        logits, state = model.step(ids, state)  # type: ignore[arg-type]
        ids = logits.argmax(-1)
        right += int((ids == wanted[:, place]).sum())
    return right / sum(map(len, some))


def _group(group: tuple[int, int]) -> str:
    return f"{group[0]}–{group[1]}"


def _trials(plan: Plan) -> list[Trial]:
    updates = plan.at(5, 300, 1500)
    return [
        Trial(named(arm, seed), partial(reverse, arm, updates, seed), {"updates": updates})
        for seed in range(plan.seeds)
        for arm in ARMS
    ]


def conclude_reverse(records: Mapping[str, Record]) -> Conclusion:
    """Does attention keep the LSTM from falling with length?"""
    short, long = _group(GROUPS[0]), _group(GROUPS[-1])
    found = {(arm, _group(group)): by_seed(records, arm, _group(group)) for arm in ARMS for group in GROUPS}
    falls = {arm: [a - b for a, b in zip(found[arm, short], found[arm, long], strict=True)] for arm in ARMS}
    effect = paired(falls["lstm"], falls["attention"])
    best = max(spread(found[arm, short]).mean for arm in ARMS)
    verdict = sided(effect) if best > 0.3 else Verdict.NOT_VISIBLE
    english = {
        Verdict.SUPPORTED: "The bottleneck shows: without attention the LSTM falls further with length.",
        Verdict.NOT_SUPPORTED: "The LSTM falls further with length when it has attention.",
        Verdict.NOT_VISIBLE: "No bottleneck can be told at this scale.",
    }[verdict]
    chinese = {
        Verdict.SUPPORTED: "瓶颈看得出来：没有注意力的 LSTM 随长度下降得更多。",
        Verdict.NOT_SUPPORTED: "有注意力的 LSTM 随长度反而下降得更多。",
        Verdict.NOT_VISIBLE: "此规模下看不出瓶颈。",
    }[verdict]
    change = {arm: f"{_percent(found[arm, short])} → {_percent(found[arm, long])}" for arm in ARMS}
    shown = "; ".join(f"{ARMS[arm].en} {change[arm]}" for arm in ARMS)
    shown_zh = "；".join(f"{ARMS[arm].zh} {change[arm]}" for arm in ARMS)
    counts = [records[named(arm, 0)]["parameters"] for arm in ARMS]
    says = Text(
        f"{english} Symbols right, from strings of {short} to strings of {long}: {shown}. The LSTM's fall without "
        f"attention minus that with it: {effect.signed()}. Parameters: {', '.join(f'{count:,}' for count in counts)}.",
        f"{chinese}写对的符号，从长度 {short} 到 {long}：{shown_zh}。无注意力时的下降减去有注意力时的下降："
        f"{effect.signed()}。参数量：{'、'.join(f'{count:,}' for count in counts)}。",
    )
    middle = [sum(group) / 2 for group in GROUPS]
    picture = Lines(
        Text("Strings written backwards", "倒写字符串"),
        Text("symbols a string (middle of each group)", "每串符号数（各组中点）"),
        Text("symbols right", "写对的符号"),
        tuple(
            Series(
                name,
                tuple(spread(found[arm, _group(g)]).point(x) for g, x in zip(GROUPS, middle, strict=True)),
            )
            for arm, name in ARMS.items()
        ),
        Text(
            "A line that falls with length shows a model that cannot carry a long string through.",
            "随长度下降的线，说明模型传不过长串。",
        ),
    )
    return Conclusion(verdict, says, (picture,))


def _percent(shares: list[float]) -> str:
    return f"{100 * spread(shares).mean:.1f} %"


PARTS = (Part("reverse", _trials, conclude_reverse),)
