"""A Transformer and an LSTM with as many parameters: the time of an update, and what they learn."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import cache, partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unmask.lab.entry import Conclusion, Part, Plan, Record, Trial, Verdict
from unmask.lab.kit.bars import text_and_topics
from unmask.lab.kit.classify import batches_of
from unmask.lab.kit.daily import VOCAB
from unmask.lab.kit.effects import by_seed, named, paired, sided, spread
from unmask.lab.kit.fitting import Fit, fit, seeded
from unmask.lab.kit.headlines import DATA, MEASURED, headlines, updates_of
from unmask.lab.kit.labelled import labelled
from unmask.lab.kit.newspaper import CHOOSING, LeftToRight, best_rate, causal, short_run, trial
from unmask.lab.kit.speeds import Quartiles, quartiles, timed
from unmask.lab.pictures import Lines, Series
from unmask.lab.words import Text, both
from unmask.models.bert import num_parameters
from unmask.models.init import initialise
from unmask.models.recurrent import LstmStack
from unmask.nn.batch import Batch
from unmask.nn.block import EncoderStack
from unmask.nn.build import build_encoder
from unmask.nn.embeddings import Embeddings
from unmask.nn.heads import pool
from unmask.nn.layout import Layout
from unmask.nn.plan import AttentionPlan
from unmask.nn.positions.base import NoPositions
from unmask.nn.table import vector_table

HIDDEN, LAYERS = 128, 2
ARMS, RATES = {"transformer": "Transformer", "lstm": "LSTM"}, (1e-3, 3e-3)
LENGTHS, FROM = (16, 32, 64, 128, 256, 512), 32
TOKENS = 4096
#: Texts a batch: as many as make so many tokens, or one.
BATCHES = {
    "4,096 tokens": Text("4,096 tokens a batch", "每批 4,096 个 token"),
    "one text": Text("one text", "单段文本"),
}


def stacks() -> tuple[EncoderStack, LstmStack]:
    """A Transformer's layers, and those of the LSTM that is nearest to it in parameters."""
    torch.manual_seed(0)
    settings = causal({"hidden_size": HIDDEN, "num_layers": LAYERS, "ffn_size": 4 * HIDDEN})
    transformer = build_encoder(settings, settings.shapes, causal=True)
    return transformer, LstmStack(width_of(False), LAYERS, bidirectional=False, dropout=0.0)


def seconds(one_text: bool, rounds: int) -> Record:
    """Forward and backward, at each length."""
    transformer, lstm = stacks()
    width, found = lstm.lstm.hidden_size, {}
    for length in LENGTHS:
        texts = 1 if one_text else TOKENS // length
        layout = Layout.ragged([length] * texts)
        plan = AttentionPlan.between(layout, layout, causal=True)
        rows = {size: torch.randn(texts * length, size) for size in (HIDDEN, width)}
        runs: dict[str, Callable[[], object]] = {
            "transformer": partial(_update_transformer, transformer, rows[HIDDEN], plan),
            "lstm": partial(_update_lstm, lstm, rows[width], layout),
        }
        found[str(length)] = {"texts": texts, **timed(runs, rounds)}
    return {
        "seconds": found,
        "threads": torch.get_num_threads(),
        "parameters": [num_parameters(transformer), num_parameters(lstm)],
        "width": width,
    }


def _update_transformer(stack: EncoderStack, rows: Tensor, plan: AttentionPlan) -> None:
    stack(rows, plan).square().mean().backward()


def _update_lstm(stack: LstmStack, rows: Tensor, layout: Layout) -> None:
    stack(rows, layout)[0].square().mean().backward()


class Reader(nn.Module):
    """An LSTM with a table of vectors: the next token's logits, read from left to right, or a text's label."""

    def __init__(self, vocab: int, width: int, labels: int = 0) -> None:
        super().__init__()
        self.embeddings = Embeddings(vector_table(vocab, width), NoPositions(), scaled=True)
        self.stack = LstmStack(width, LAYERS, bidirectional=labels > 0, dropout=0.0)
        self.label = nn.Linear(width, labels) if labels else None

    def forward(self, batch: Batch) -> Tensor:
        """(R, V), or (B, labels)."""
        rows, _ = self.stack(self.embeddings(batch), batch.layout)
        if self.label is None:
            return rows @ self.embeddings.token.weight.T
        return self.label(pool(rows, batch.layout, "mean"))


def reader(vocab: int, labels: int, seed: int) -> Reader:
    """As wide as makes its layers equal in parameters, with first values as the Transformer's."""
    with torch.random.fork_rng(devices=[]):
        model = Reader(vocab, width_of(labels > 0), labels)
    initialise(model, causal({}), torch.Generator().manual_seed(seed))
    return model


@cache
def width_of(bidirectional: bool) -> int:
    """Of the LSTM whose layers have as many parameters as the Transformer's, nearly."""
    settings = causal({"hidden_size": HIDDEN, "num_layers": LAYERS, "ffn_size": 4 * HIDDEN})
    with torch.device("meta"):
        wanted = num_parameters(build_encoder(settings, settings.shapes, causal=True))

        def away(width: int) -> int:
            return abs(num_parameters(LstmStack(width, LAYERS, bidirectional=bidirectional, dropout=0.0)) - wanted)

        return min(range(HIDDEN, 2 * HIDDEN, 2 if bidirectional else 1), key=away)


def text(arm: str, updates: int, seed: int) -> Record:
    """Left to right on newspaper text."""
    build = partial(reader, VOCAB, 0) if arm == "lstm" else None
    short, changes = max(2, updates // 4), {"hidden_size": HIDDEN, "ffn_size": 4 * HIDDEN}
    runs = {rate: partial(short_run, LeftToRight(Fit(short, rate), changes), build) for rate in RATES}
    return trial(LeftToRight(Fit(updates, _chosen(f"text, {arm}", short, runs)), changes), seed, build)


def topics(arm: str, percent: int, seed: int) -> Record:
    """Three epochs of headlines; the mean over tokens is classified."""
    epochs = 3 * percent / 100
    runs = {rate: partial(_short_topics, arm, epochs / 4, rate) for rate in RATES}
    rate = _chosen(f"headlines, {arm}", percent, runs)
    began = time.perf_counter()
    found = _topics(arm, epochs, rate, seed)
    return {"accuracy": found, "rate": rate, "train_seconds": round(time.perf_counter() - began, 2)}


def _short_topics(arm: str, epochs: float, rate: float) -> float:
    return -_topics(arm, epochs, rate, CHOOSING)


def _topics(arm: str, epochs: float, rate: float, seed: int) -> float:
    if arm == "transformer":
        changes = {"hidden_size": HIDDEN, "ffn_size": 4 * HIDDEN, "heads": [_MEAN]}
        return float(headlines(changes, 64, epochs, rate, seed)["accuracy"])
    data, generator = labelled(DATA), seeded(seed)
    model, draw = reader(data.vocab, len(data.labels), seed), batches_of(data.train, 64)

    def loss(number: int) -> Tensor:
        examples = draw(number, generator)
        return F.cross_entropy(model(Batch.of(examples.sequences)), torch.tensor(examples.labels))

    fit(model, loss, Fit(updates_of(epochs, 64), rate))
    measured = data.dev if seed == CHOOSING else data.test.some(list(range(MEASURED)))
    with torch.inference_mode():
        found = model(Batch.of(measured.sequences)).argmax(-1)
    return float((found == torch.tensor(measured.labels)).float().mean())


_MEAN = {"kind": "classify", "labels": [str(number) for number in range(10)], "pooling": "mean", "dropout": 0.0}
_rates: dict[tuple[str, int], float] = {}


def _chosen(what: str, size: int, runs: Mapping[float, Callable[[], float]]) -> float:
    """The better rate, found once a process."""
    if (what, size) not in _rates:
        _rates[what, size] = best_rate(runs)
    return _rates[what, size]


def _equal_trials(plan: Plan) -> list[Trial]:
    updates, percent = plan.at(4, 150), plan.at(3, 100)
    trials = []
    for seed in range(plan.seeds):
        for arm in ARMS:
            trials.append(Trial(named(f"{arm}, text", seed), partial(text, arm, updates, seed), {"updates": updates}))
            job = partial(topics, arm, percent, seed)
            trials.append(Trial(named(f"{arm}, headlines", seed), job, {"percent": percent}))
    return trials


def conclude_equal(records: Mapping[str, Record]) -> Conclusion:
    """Loss on text and accuracy on headlines, both better with the Transformer is positive."""
    loss = {arm: by_seed(records, f"{arm}, text", "loss") for arm in ARMS}
    right = {arm: by_seed(records, f"{arm}, headlines", "accuracy") for arm in ARMS}
    on_text, on_topics = paired(loss["lstm"], loss["transformer"]), paired(right["transformer"], right["lstm"])
    found = {sided(on_text), sided(on_topics)}
    verdict = found.pop() if len(found) == 1 else Verdict.DEPENDS
    english = {
        Verdict.SUPPORTED: "With equal parameters the Transformer learns more in both tasks.",
        Verdict.NOT_SUPPORTED: "With equal parameters the LSTM learns more in both tasks.",
        Verdict.DEPENDS: "The tasks do not agree.",
        Verdict.NOT_VISIBLE: "No difference can be told from zero.",
    }[verdict]
    chinese = {
        Verdict.SUPPORTED: "参数相等时，两个任务上都是 Transformer 学得更好。",
        Verdict.NOT_SUPPORTED: "参数相等时，两个任务上都是 LSTM 学得更好。",
        Verdict.DEPENDS: "两个任务结论不一致。",
        Verdict.NOT_VISIBLE: "看不出差别。",
    }[verdict]
    seconds = {
        (arm, task): spread(by_seed(records, f"{arm}, {task}", "train_seconds")).mean
        for arm in ARMS
        for task in ("text", "headlines")
    }
    spent, spent_zh = (
        comma.join(f"{ARMS[arm]} {seconds[arm, 'text']:.0f} + {seconds[arm, 'headlines']:.0f} s" for arm in ARMS)
        for comma in (", ", "，")
    )
    says = Text(
        f"{english} The LSTM's held-out loss on text minus the Transformer's: {on_text.signed()}; the Transformer's "
        f"accuracy on headlines minus the LSTM's: {on_topics.signed()}. Training took, text + headlines: {spent}.",
        f"{chinese}文本留出损失 LSTM 减 Transformer：{on_text.signed()}；标题准确率 Transformer 减 LSTM："
        f"{on_topics.signed()}。训练用时（文本 + 标题）：{spent_zh}。",
    )
    return Conclusion(verdict, says, text_and_topics({arm: both(name) for arm, name in ARMS.items()}, loss, right))


def _time_trials(plan: Plan) -> list[Trial]:
    rounds = plan.at(2, 7)
    return [Trial(name, partial(seconds, name == "one text", rounds), {"rounds": rounds}) for name in BATCHES]


def conclude_time(records: Mapping[str, Record]) -> Conclusion:
    """Who is faster, at each length and in both kinds of batch."""
    cells = {(name, length): _cell(records[name], length) for name in BATCHES for length in LENGTHS}
    faster = {where: cell["transformer"].below(cell["lstm"]) for where, cell in cells.items()}
    slower = {where: cell["lstm"].below(cell["transformer"]) for where, cell in cells.items()}
    if all(found for (_, length), found in faster.items() if length >= FROM):
        verdict = Verdict.SUPPORTED
    elif all(slower.values()):
        verdict = Verdict.NOT_SUPPORTED
    elif sum(faster.values()) + sum(slower.values()) < len(cells) / 2:
        verdict = Verdict.NOT_VISIBLE
    else:
        verdict = Verdict.DEPENDS
    ratio = {where: cell["lstm"].median / cell["transformer"].median for where, cell in cells.items()}
    first = next(iter(records.values()))
    ours, theirs = first["parameters"]
    english, chinese = zip(*(_range(name, ratio) for name in BATCHES), strict=True)
    says = Text(
        f"The Transformer ({ours:,} parameters) is clearly faster in {sum(faster.values())} of {len(cells)} cases, the "
        f"LSTM ({theirs:,}, width {first['width']}) in {sum(slower.values())}; {first['threads']} threads. "
        f"{' '.join(english)}",
        f"{len(cells)} 种情况中，Transformer（{ours:,} 个参数）明显更快的有 {sum(faster.values())} 种，LSTM"
        f"（{theirs:,} 个参数，宽 {first['width']}）明显更快的有 {sum(slower.values())} 种；{first['threads']} 个线程。"
        f"{''.join(chinese)}",
    )
    return Conclusion(verdict, says, tuple(_picture(name, cells) for name in BATCHES))


def _cell(record: Record, length: int) -> dict[str, Quartiles]:
    found = record["seconds"][str(length)]
    return {name: quartiles(found[name], found["texts"] * length * 1e-6) for name in ("transformer", "lstm")}


def _range(name: str, ratio: Mapping[tuple[str, int], float]) -> tuple[str, str]:
    found = [ratio[name, length] for length in LENGTHS]
    low, high, last = min(found), max(found), found[-1]
    return (
        f"With {BATCHES[name].en} the LSTM takes {low:.2f} to {high:.2f} times as long a token ({last:.2f} at "
        f"{LENGTHS[-1]} tokens a text).",
        f"{BATCHES[name].zh}：LSTM 每个 token 的时间是 Transformer 的 {low:.2f} 到 {high:.2f} 倍（每段 "
        f"{LENGTHS[-1]} 个 "
        f"token 时为 {last:.2f} 倍）。",
    )


def _picture(name: str, cells: Mapping[tuple[str, int], Mapping[str, Quartiles]]) -> Lines:
    series = tuple(
        Series(both(title), tuple(cells[name, length][kind].point(length) for length in LENGTHS))
        for kind, title in (("transformer", "Transformer"), ("lstm", "LSTM"))
    )
    return Lines(
        Text(f"Training time a token, {BATCHES[name].en}", f"每个 token 的训练时间，{BATCHES[name].zh}"),
        Text("tokens a text", "每段 token 数"),
        both("µs"),
        series,
        Text("The lower line is the faster model.", "线越低越快。"),
        log_x=True,
        log_y=True,
    )


PARTS = (
    Part("time", _time_trials, conclude_time),
    Part("equal-parameters", _equal_trials, conclude_equal),
)
