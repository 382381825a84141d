"""Fine-tuning for a minute, and a probe that leaves the model alone."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unmask.lab.kit.fitting import Fit, fit, seeded
from unmask.models.bert import Bert
from unmask.models.fetch import fetch
from unmask.models.init import build_model
from unmask.models.settings import ClassifySettings
from unmask.nn.batch import Batch
from unmask.nn.heads import pool


@dataclass(frozen=True)
class Marked:
    """Texts, or pairs of texts, as ids and segments, with their labels."""

    ids: list[list[int]]
    segments: list[list[int]]
    labels: list[int]

    def __len__(self) -> int:
        return len(self.labels)

    def batch(self, numbers: list[int]) -> Batch:
        """Some of them."""
        return Batch.of([self.ids[n] for n in numbers], [self.segments[n] for n in numbers])

    def answers(self, numbers: list[int]) -> Tensor:
        """Their labels."""
        return torch.tensor([self.labels[n] for n in numbers])


@dataclass(frozen=True)
class Tuning:
    """How a classifier is made of a pre-trained model."""

    epochs: int = 2
    rate: float = 5e-4
    batch: int = 32
    pooling: str = "mean"


@cache
def headlines(part: str, count: int) -> tuple[list[str], list[int]]:
    """Headlines of thucnews-10k drawn once for all, and the numbers of their labels."""
    with open(fetch("thucnews-10k") / f"{part}.csv", encoding="utf-8", newline="") as file:
        rows = [(row["text"], row["label"]) for row in csv.DictReader(file)]
    names = sorted({label for _, label in rows})
    chosen = np.random.default_rng(0).permutation(len(rows))[:count]
    return [rows[n][0] for n in chosen], [names.index(rows[n][1]) for n in chosen]


def tuned(model: Bert, learned: Marked, asked: Marked, how: Tuning, seed: int) -> float:
    """Accuracy after fine-tuning a copy of a model."""
    generator = seeded(seed)
    classes = max(*learned.labels, *asked.labels) + 1
    head = ClassifySettings(labels=tuple(map(str, range(classes))), pooling=how.pooling, dropout=0.0)
    copy = build_model(model.settings.replace(heads=(head,)), seed=seed)
    assert isinstance(copy, Bert)
    copy.encoder.load_state_dict(model.encoder.state_dict())
    order: list[int] = []

    def loss(_: int) -> Tensor:
        while len(order) < how.batch:
            order.extend(torch.randperm(len(learned), generator=generator).tolist())
        chosen, order[:] = order[: how.batch], order[how.batch :]
        return F.cross_entropy(copy.class_logits(copy(learned.batch(chosen))), learned.answers(chosen))

    fit(copy, loss, Fit(how.epochs * len(learned) // how.batch, how.rate))
    right = 0
    with torch.inference_mode():
        for chosen in _pieces(len(asked)):
            right += int((copy.class_logits(copy(asked.batch(chosen))).argmax(-1) == asked.answers(chosen)).sum())
    return right / len(asked)


def probed(model: Bert, learned: Marked, asked: Marked) -> float:
    """Accuracy of a logistic regression on mean vectors of a model that stays as it is."""
    vectors = [_means(model, one) for one in (learned, asked)]
    middle, size = vectors[0].mean(0), vectors[0].std(0) + 1e-6
    x, new = ((one - middle) / size for one in vectors)
    answers = torch.tensor(learned.labels)
    layer = nn.Linear(x.shape[1], max(learned.labels) + 1).double()
    nn.init.zeros_(layer.weight)
    nn.init.zeros_(layer.bias)
    optimizer = torch.optim.LBFGS(layer.parameters(), max_iter=100, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(layer(x), answers) + 1e-3 * layer.weight.square().sum()
        loss.backward()
        return loss

    optimizer.step(closure)
    return float((layer(new).argmax(-1) == torch.tensor(asked.labels)).double().mean())


@torch.no_grad()
def _means(model: Bert, texts: Marked) -> Tensor:
    pieces = []
    for chosen in _pieces(len(texts)):
        encoded = model(texts.batch(chosen))
        pieces.append(pool(encoded.sequence, encoded.layout, "mean"))
    return torch.cat(pieces).double().nan_to_num()


def _pieces(count: int) -> list[list[int]]:
    return [list(range(start, min(start + 128, count))) for start in range(0, count, 128)]
