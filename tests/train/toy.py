"""A small masked-token run with dropout on, as a library for tests and as a program to be killed.

python toy.py RUN UPDATES ACCUMULATE WORKERS
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unmask.models.init import build_model
from unmask.models.settings import BertSettings, MaskedTokenSettings
from unmask.nn.batch import Batch
from unmask.nn.settings import DropoutSettings
from unmask.train.loop import fit
from unmask.train.optimizer import OptimizerSettings
from unmask.train.schedule import ScheduleSettings
from unmask.train.settings import TrainSettings

VOCAB, MASK = 29, 4


class MaskedBatch:
    def __init__(self, batch: Batch, rows: Tensor, targets: Tensor) -> None:
        self.batch, self.rows, self.targets = batch, rows, targets

    @property
    def num_tokens(self) -> int:
        return self.batch.layout.num_tokens

    def to(self, device: torch.device) -> MaskedBatch:
        return MaskedBatch(self.batch.to(device), self.rows.to(device), self.targets.to(device))


class Sentences:
    """Counting modulo the vocabulary, in sentences of unequal length, with other masks in every batch."""

    def __init__(self, size: int = 4) -> None:
        self.size = size

    def __getitem__(self, number: int) -> MaskedBatch:
        ids: list[list[int]] = []
        for place in range(number * self.size, (number + 1) * self.size):
            generator = torch.Generator().manual_seed(place)
            first, length = torch.randint(5, VOCAB, (2,), generator=generator).tolist()
            ids.append([5 + (first + step) % (VOCAB - 5) for step in range(3 + length % 9)])
        batch = Batch.of(ids)
        chosen = []
        for place, (start, length) in enumerate(zip(batch.layout.starts, batch.layout.lengths, strict=True)):
            generator = torch.Generator().manual_seed(10**6 + number * self.size + place)
            chosen.append(start + int(torch.randint(0, length, (1,), generator=generator)))
        rows = torch.tensor(chosen)
        hidden = batch.ids.clone()
        hidden[rows] = MASK
        return MaskedBatch(Batch(hidden, batch.segments, batch.layout), rows, batch.ids[rows])


class GuessMasks:
    def counts(self, batch: MaskedBatch) -> dict[str, int]:
        return {"masked": len(batch.rows), "length": len(batch.batch)}

    def sums(self, model: nn.Module, batch: MaskedBatch) -> dict[str, Tensor]:
        encoded = model(batch.batch)
        logits = model.masked_token_logits(encoded.sequence[batch.rows])
        lengths = torch.tensor(batch.batch.layout.lengths, dtype=torch.float32)
        guess = encoded.pooled[:, 0] * 3
        return {
            "masked": F.cross_entropy(logits, batch.targets, reduction="sum"),
            "length": (guess - lengths / 11).square().sum(),
        }


def model(dropout: float = 0.1) -> nn.Module:
    settings = BertSettings(
        vocab_size=VOCAB,
        num_layers=2,
        hidden_size=24,
        num_heads=3,
        ffn_size=40,
        max_length=16,
        heads=(MaskedTokenSettings(),),
        dropout=DropoutSettings(embedding=dropout, residual=dropout, attention=dropout, activation=dropout),
    )
    return build_model(settings, seed=1)


def settings(updates: int, accumulate: int = 2, workers: int = 0) -> TrainSettings:
    return TrainSettings(
        updates=updates,
        accumulate=accumulate,
        workers=workers,
        seed=3,
        log_every=1,
        save_every=5,
        optimizer=OptimizerSettings(learning_rate=3e-3, layer_decay=0.9),
        schedule=ScheduleSettings(warmup=3),
    )


if __name__ == "__main__":
    run, updates, accumulate, workers = sys.argv[1], *map(int, sys.argv[2:])
    torch.set_num_threads(1)
    fit(model(), GuessMasks(), Sentences(), settings(updates, accumulate, workers), Path(run))
