"""Fine-tuning mini-zh, the Chinese BERT that comes with the library, or the same model from random weights."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor

from unmask.lab.kit.classify import Examples, accuracy, batches_of, logits
from unmask.lab.kit.fitting import Fit, fit, seeded
from unmask.models.bert import Bert
from unmask.models.fetch import fetch
from unmask.models.folder import load_model
from unmask.models.init import build_model, start_as_sinusoids
from unmask.models.settings import ClassifySettings
from unmask.tasks.finetune import with_dropout
from unmask.text import Tokenizer

#: Tokens of a headline, special ones included; hardly one has more.
LENGTH = 40


@cache
def headlines(part: str) -> tuple[Examples, tuple[str, ...]]:
    """The headlines of a part (train, dev, test) of thucnews-10k in mini-zh's tokens, in an order without meaning."""
    with open(fetch("thucnews-10k") / f"{part}.csv", encoding="utf-8", newline="") as file:
        rows = [(row["text"], row["label"]) for row in csv.DictReader(file)]
    labels = tuple(sorted({label for _, label in rows}))
    encoded = tokenizer().encode_batch([text for text, _ in rows], max_length=LENGTH)
    examples = Examples([one.ids for one in encoded], [labels.index(label) for _, label in rows])
    return examples.some(torch.randperm(len(rows), generator=torch.Generator().manual_seed(12345)).tolist()), labels


@cache
def tokenizer() -> Tokenizer:
    """Of mini-zh."""
    return Tokenizer.from_folder(fetch("mini-zh"))


@dataclass(frozen=True)
class Tuning:
    """How a classifier of headlines is trained."""

    fit: Fit
    batch: int
    pretrained: bool = True
    dropout: float = 0.1


def start(tuning: Tuning, seed: int) -> Bert:
    """mini-zh with a new head, or the same model from random weights (but for positions, which start as waves)."""
    head = ClassifySettings(labels=headlines("train")[1], dropout=tuning.dropout)
    model, _ = load_model(fetch("mini-zh"), heads=[head], seed=seed)
    if not tuning.pretrained:
        model = build_model(model.settings, seed)
        start_as_sinusoids(model)
    assert isinstance(model, Bert)
    return with_dropout(model, tuning.dropout)


def tuned(examples: Examples, tuning: Tuning, seed: int) -> Bert:
    """A classifier that has learned from examples."""
    generator = seeded(seed)
    model, draw = start(tuning, seed), batches_of(examples, tuning.batch)

    def loss(number: int) -> Tensor:
        some = draw(number, generator)
        return F.cross_entropy(logits(model, some), torch.tensor(some.labels))

    fit(model, loss, tuning.fit)
    return model


def scores(model: Bert, dev: int, test: int) -> dict[str, float]:
    """Accuracy on the first so many headlines of each part."""
    sizes = {"dev": dev, "test": test}
    return {
        part: accuracy(model, headlines(part)[0].some(list(range(min(size, len(headlines(part)[0]))))))
        for part, size in sizes.items()
    }
