"""Remember the first symbol over 8, 32 and 128 places: attention against an LSTM."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unmask.lab.baselines import LstmEncoder
from unmask.lab.entry import Conclusion, Part, Plan, Record, Trial, Verdict
from unmask.lab.kit.classify import Examples
from unmask.lab.kit.effects import by_seed, named, paired, sided, spread
from unmask.lab.kit.fitting import Fit, fit, seeded
from unmask.lab.kit.synthetic import ORDINARY, copy_far, fixed
from unmask.lab.kit.telling import conclude_compared, conclude_lost
from unmask.lab.pictures import Lines, Series
from unmask.lab.words import Text
from unmask.models.bert import Bert, BertEncoder, num_parameters
from unmask.models.init import build_model, initialise, start_as_sinusoids
from unmask.models.settings import BertSettings, LstmSettings
from unmask.nn.batch import Batch
from unmask.nn.plan import AttentionPlan

DISTANCES, SYMBOLS, HIDDEN, BATCH = (8, 32, 128), 16, 64, 32
ARMS = {"attention": Text("attention", "注意力"), "LSTM": Text("LSTM", "LSTM")}
VOCAB = ORDINARY + 2 * SYMBOLS


class Reader(nn.Module):
    """Rows of embeddings, what reads them, and an answer at the last place."""

    def __init__(self, arm: str, seed: int) -> None:
        super().__init__()
        self.arm = arm
        self.answer = nn.Linear(HIDDEN, SYMBOLS)
        generator = torch.Generator().manual_seed(seed)
        if arm == "LSTM":
            settings = LstmSettings(source_vocab_size=VOCAB, target_vocab_size=VOCAB, hidden_size=HIDDEN)
            self.body: LstmEncoder | BertEncoder = LstmEncoder(VOCAB, HIDDEN, 2, bidirectional=False)
            initialise(self, settings, generator)
            return
        sizes = {"vocab_size": VOCAB, "hidden_size": HIDDEN, "num_layers": 2, "num_heads": 4, "ffn_size": 128}
        rest = {"max_length": max(DISTANCES) + 1, "num_segments": 0, "pooler": False}
        dropout = {"embedding": 0.0, "residual": 0.0, "attention": 0.0}
        encoder = BertSettings.parse({**sizes, **rest, "dropout": dropout})
        model = build_model(encoder, seed=seed)
        assert isinstance(model, Bert)
        start_as_sinusoids(model)
        self.body = model.encoder
        initialise(self.answer, encoder, generator)

    def embedded(self, batch: Batch) -> Tensor:
        """(R, H)."""
        if isinstance(self.body, LstmEncoder):
            return self.body.embedding(batch.ids)
        return self.body.embeddings(batch)

    def forward(self, rows: Tensor, batch: Batch) -> Tensor:
        """(B, symbols)."""
        layout = batch.layout
        if isinstance(self.body, LstmEncoder):
            read, _ = self.body.stack(rows, layout)
        else:
            read = self.body.stack(rows, AttentionPlan.between(layout, layout))
        last = torch.tensor(layout.starts) + torch.tensor(layout.lengths) - 1
        return self.answer(read[last])


def batch_of(examples: Examples) -> Batch:
    """Strings that begin with the symbol that is asked for."""
    return Batch.of([sequence[1:] for sequence in examples.sequences])


def trial(arm: str, distance: int, updates: int, seed: int) -> Record:
    """Learn it; accuracy, and the gradient that reached the first symbol at first."""
    generator = seeded(seed)
    model, draw = Reader(arm, seed), copy_far(distance - 1, SYMBOLS, BATCH)
    kept: list[Tensor] = []

    def loss(number: int) -> Tensor:
        examples = draw(number, generator)
        batch = batch_of(examples)
        rows = model.embedded(batch)
        if not number:
            rows.retain_grad()
            kept.append(rows)
        return F.cross_entropy(model(rows, batch), torch.tensor(examples.labels))

    losses = fit(model, loss, Fit(updates, 2e-3))
    gradient = kept[0].grad
    assert gradient is not None
    reached = float(gradient[torch.arange(BATCH) * (distance + 1)].norm())
    asked, right = fixed(draw, 1000), 0
    with torch.inference_mode():
        for first in range(0, 1000, 100):
            some = asked.some(list(range(first, first + 100)))
            batch = batch_of(some)
            right += int((model(model.embedded(batch), batch).argmax(-1) == torch.tensor(some.labels)).sum())
    return {
        "score": right / 1000,
        "gradient": reached if math.isfinite(reached) else 0.0,
        "parameters": num_parameters(model),
        "diverged": not all(map(math.isfinite, losses)),
    }


def _trials(plan: Plan) -> list[Trial]:
    updates = plan.at(3, 300)
    return [
        Trial(
            named(_arm(arm, distance), seed),
            partial(trial, arm, distance, updates, seed),
            {"arm": arm, "distance": distance, "updates": updates, "seed": seed},
        )
        for distance in DISTANCES
        for arm in ARMS
        for seed in range(plan.seeds)
    ]


def _arm(arm: str, distance: int) -> str:
    return f"{arm}, distance {distance}"


def conclude_distance(records: Mapping[str, Record]) -> Conclusion:
    """Ahead at 128, and further ahead than at 8."""

    def values(arm: str, distance: int, what: str = "score") -> list[float]:
        return by_seed(records, _arm(arm, distance), what)

    def gaps(distance: int) -> list[float]:
        return [a - b for a, b in zip(values("attention", distance), values("LSTM", distance), strict=True)]

    far, growth = spread(gaps(128)), paired(gaps(128), gaps(8))
    at, more = sided(far), sided(growth)
    verdict = at if at in (more, Verdict.NOT_SUPPORTED) else Verdict.DEPENDS
    means = {(arm, n): spread(values(arm, n)).mean for arm in ARMS for n in DISTANCES}
    reached = {arm: spread(values(arm, 128, "gradient")).mean for arm in ARMS}
    sizes = {arm: int(values(arm, 8, "parameters")[0]) for arm in ARMS}
    told, grown, lost = conclude_compared(far), conclude_compared(growth), conclude_lost(records)
    figures = {arm: ", ".join(f"{means[arm, n]:.2f}" for n in DISTANCES) for arm in ARMS}
    says = Text(
        f"Accuracy at distances 8, 32, 128: attention {figures['attention']} ({sizes['attention']:,} parameters), LSTM "
        f"{figures['LSTM']} ({sizes['LSTM']:,}). At 128 attention is {told.en} than the LSTM; from 8 to 128 the gap is "
        f"{grown.en}. At the first update the gradient that reaches the first symbol over 128 places has norm "
        f"{reached['attention']:.1e} for attention and {reached['LSTM']:.1e} for the LSTM.{lost.en}",
        f"距离 8、32、128 时的准确率：注意力 {figures['attention']}（{sizes['attention']:,} 个参数），LSTM "
        f"{figures['LSTM']}"
        f"（{sizes['LSTM']:,} 个）。距离 128 时注意力比 LSTM {told.zh}；从 8 到 128，差距{grown.zh}。第一次更新时，"
        "隔 128 个位置到达首个符号的"
        f"梯度范数，注意力为 {reached['attention']:.1e}，LSTM 为 {reached['LSTM']:.1e}。{lost.zh}",
    )
    pictures = conclude_lines(records)
    return Conclusion(verdict, says, pictures)


def conclude_lines(records: Mapping[str, Record]) -> tuple[Lines, ...]:
    """Accuracy and first gradient over the distance."""
    return tuple(
        Lines(
            title,
            Text("distance", "距离"),
            unit,
            tuple(
                Series(label, tuple(spread(by_seed(records, _arm(arm, n), what)).point(n) for n in DISTANCES))
                for arm, label in ARMS.items()
            ),
            reading,
            log_x=True,
        )
        for what, title, unit, reading in (
            (
                "score",
                Text("Remembering the first symbol", "记住第一个符号"),
                Text("accuracy", "准确率"),
                Text("Chance is 0.0625.", "随机猜测为 0.0625。"),
            ),
            (
                "gradient",
                Text("Gradient at the first symbol, first update", "首次更新时到达首个符号的梯度"),
                Text("norm", "范数"),
                Text("What does not arrive cannot teach.", "到不了的梯度教不了什么。"),
            ),
        )
    )


PARTS = (Part("copy-over-distance", _trials, conclude_distance),)
