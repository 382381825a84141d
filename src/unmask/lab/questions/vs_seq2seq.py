"""A state of fixed size, attention to it, or no recurrence at all: three models translate, and write backwards."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from unmask.lab.entry import Conclusion, Part, Plan, Record, Trial, Verdict
from unmask.lab.kit.effects import Effect, by_seed, named, paired, sided, spread
from unmask.lab.kit.fitting import Fit, fit, seeded
from unmask.lab.kit.french import Translating, bleu, french, new_model, right_tokens, taught, translator
from unmask.lab.kit.telling import conclude_compared, conclude_table
from unmask.lab.pictures import Lines, Series
from unmask.lab.words import Text, both
from unmask.models.bert import num_parameters
from unmask.models.init import build_model
from unmask.models.recurrent import lstm_like
from unmask.models.settings import LstmSettings, TransformerSettings
from unmask.nn.batch import Batch
from unmask.tasks.translate_settings import Arch

ARMS = {
    "lstm": Text("LSTM without attention", "无注意力的 LSTM"),
    "attention": Text("LSTM with attention", "有注意力的 LSTM"),
    "transformer": both("Transformer"),
}
ARCHES: Mapping[str, Arch] = {"lstm": "lstm", "attention": "lstm-attention", "transformer": "transformer"}
#: Fewest and most words of a source.
LENGTHS = {"short": (1, 5), "middle": (6, 9), "long": (10, 1000)}
START, SYMBOLS = 0, 20
GROUPS = ((4, 8), (9, 16), (17, 24))
TESTED = 300
Strings = list[list[int]]


def translate(arm: str, updates: int, tested: int, seed: int) -> Record:
    """Learn to translate, then translate so many held-out sources of each length."""
    model, began = new_model(translator(ARCHES[arm]), seed), time.perf_counter()
    losses = taught(model, updates, seed)
    record = {"seconds": round(time.perf_counter() - began, 2), "parameters": num_parameters(model)}
    learned = math.isfinite(losses[-1])  # a run that broke off translates nothing
    for name, (fewest, most) in LENGTHS.items():
        asked = [pair for pair in french().asked if fewest <= len(pair.source.split()) <= most][:tested]
        record[f"words, {name}"] = sum(len(pair.source.split()) for pair in asked) / len(asked)
        record[f"bleu, {name}"] = bleu(model, asked) if learned else 0.0
        record[f"accuracy, {name}"] = right_tokens(model, asked) if learned else 0.0
    return record


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
    assert isinstance(model, Translating)

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
def written(model: Translating, some: Strings) -> float:
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


def _translate_trials(plan: Plan) -> list[Trial]:
    updates, tested = plan.at(4, 300, 1500), plan.at(8, TESTED)
    return [
        Trial(named(arm, seed), partial(translate, arm, updates, tested, seed), {"updates": updates, "tested": tested})
        for seed in range(plan.seeds)
        for arm in ARMS
    ]


def _trials(plan: Plan) -> list[Trial]:
    updates = plan.at(5, 300, 1500)
    return [
        Trial(named(arm, seed), partial(reverse, arm, updates, seed), {"updates": updates})
        for seed in range(plan.seeds)
        for arm in ARMS
    ]


def conclude_translate(records: Mapping[str, Record]) -> Conclusion:
    """Does attention help the LSTM more with long sources, and is the Transformer above the LSTM without it there?"""
    found = {(arm, name): by_seed(records, arm, f"bleu, {name}") for arm in ARMS for name in LENGTHS}
    gains = {
        name: [a - b for a, b in zip(found["attention", name], found["lstm", name], strict=True)] for name in LENGTHS
    }
    more = paired(gains["long"], gains["short"])
    above = paired(found["transformer", "long"], found["lstm", "long"])
    beside = paired(found["transformer", "long"], found["attention", "long"])
    verdict = conclude_both(more, above)
    english = {
        Verdict.SUPPORTED: "Both effects show: attention helps the LSTM most where sources are long, and there the "
        "Transformer is above the LSTM without it.",
        Verdict.NOT_SUPPORTED: "What is said of long sources does not hold for these models.",
        Verdict.DEPENDS: "Only one of the two effects that are claimed shows.",
        Verdict.NOT_VISIBLE: "Neither effect can be told at this scale.",
    }[verdict]
    chinese = {
        Verdict.SUPPORTED: "两个效应都看得出：源句长，注意力对 LSTM 帮助更大；长句上 Transformer 高于无注意力的 LSTM。",
        Verdict.NOT_SUPPORTED: "关于长句的说法在这些模型上不成立。",
        Verdict.DEPENDS: "所说的两个效应只看得出一个。",
        Verdict.NOT_VISIBLE: "此规模下两个效应都看不出。",
    }[verdict]
    change = {arm: " / ".join(f"{spread(found[arm, name]).mean:.1f}" for name in LENGTHS) for arm in ARMS}
    seconds = {arm: f"{spread(by_seed(records, arm, 'seconds')).mean:.0f}" for arm in ARMS}
    than = conclude_compared(beside, 2)
    says = Text(
        f"{english} BLEU for short, middle and long sources: "
        f"{'; '.join(f'{ARMS[arm].en} {change[arm]}' for arm in ARMS)}. Attention gives the LSTM {more.signed(2)} more "
        f"BLEU on long sources than on short ones; on long ones the Transformer has {above.signed(2)} more than the "
        f"LSTM without attention, and beside the LSTM with attention it is {than.en}. Seconds of training: "
        f"{', '.join(seconds.values())}.",
        f"{chinese}短、中、长句的 BLEU：{'；'.join(f'{ARMS[arm].zh} {change[arm]}' for arm in ARMS)}。"
        f"注意力给 LSTM 增加的 BLEU，长句比短句多 {more.signed(2)}；长句上 Transformer 比无注意力的 LSTM 多 "
        f"{above.signed(2)}，与有注意力的 LSTM 相比{than.zh}。训练秒数：{'、'.join(seconds.values())}。",
    )
    values = {
        "bleu, long": Text("BLEU, long sources", "BLEU，长句"),
        "accuracy, short": Text("tokens right given those before, short", "给定前文的 token 准确率，短句"),
        "accuracy, long": Text("the same, long", "同上，长句"),
        "parameters": Text("parameters", "参数量"),
    }
    table = conclude_table(records, ARMS, "lstm", values)
    return Conclusion(verdict, says, (conclude_by_length(records, found),), table)


def conclude_by_length(records: Mapping[str, Record], found: Mapping[tuple[str, str], list[float]]) -> Lines:
    """BLEU over the words of a source."""
    words = records[named("lstm", 0)]
    return Lines(
        Text("Translations by the length of the source", "按源句长度看译文"),
        Text("words a source (mean of each group)", "每句源词数（各组平均）"),
        both("BLEU"),
        tuple(
            Series(label, tuple(spread(found[arm, name]).point(round(words[f"words, {name}"], 1)) for name in LENGTHS))
            for arm, label in ARMS.items()
        ),
        Text(
            "A line that falls further than another shows a model that loses more of long sentences.",
            "比别的线下降更多，说明该模型在长句上丢得更多。",
        ),
    )


def conclude_both(more: Effect, above: Effect) -> Verdict:
    """By the method's rule: both effects above zero."""
    sides = {sided(more), sided(above)}
    if Verdict.NOT_SUPPORTED in sides:
        return Verdict.NOT_SUPPORTED
    return sides.pop() if len(sides) == 1 else Verdict.DEPENDS


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


PARTS = (
    Part("translate", _translate_trials, conclude_translate),
    Part("reverse", _trials, conclude_reverse),
)
