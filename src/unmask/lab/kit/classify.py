"""Small classifiers: sequences of ids in, one label out; on made-up tasks or on real texts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from unmask.lab.kit.fitting import Fit, fit, seeded
from unmask.models.bert import Bert
from unmask.models.init import build_model, start_as_sinusoids
from unmask.models.settings import BertSettings
from unmask.nn.batch import Batch


@dataclass(frozen=True)
class Examples:
    """Sequences and their labels."""

    sequences: list[list[int]]
    labels: list[int]

    def some(self, numbers: list[int]) -> Examples:
        """Those of some numbers."""
        return Examples([self.sequences[n] for n in numbers], [self.labels[n] for n in numbers])

    def __len__(self) -> int:
        return len(self.labels)


#: Batch n of a training, drawn with the generator given.
Draw = Callable[[int, torch.Generator], Examples]


def classifier_settings(vocab: int, labels: int, changes: Mapping[str, Any]) -> BertSettings:
    """Two layers of 64 that read [CLS] without a pooler, and what is to be different."""
    sizes = {"vocab_size": vocab, "hidden_size": 64, "num_layers": 2, "num_heads": 4, "ffn_size": 128}
    dropout = {"embedding": 0.0, "residual": 0.0, "attention": 0.0}
    rest = {"max_length": 512, "pooler": False, "num_segments": 0, "dropout": dropout}
    head = {"kind": "classify", "labels": [str(number) for number in range(labels)], "pooling": "cls", "dropout": 0.0}
    return BertSettings.parse({**sizes, **rest, "heads": [head], **changes})


def learned(settings: BertSettings, draw: Draw, how: Fit, seed: int) -> tuple[Bert, list[float]]:
    """A classifier trained on what `draw` gives, and its losses."""
    generator = seeded(seed)
    model = build_model(settings, seed=seed)
    assert isinstance(model, Bert)
    if settings.positions.kind == "learned":
        start_as_sinusoids(model)

    def loss(number: int) -> Tensor:
        examples = draw(number, generator)
        return F.cross_entropy(logits(model, examples), torch.tensor(examples.labels))

    return model, fit(model, loss, how)


def logits(model: Bert, examples: Examples) -> Tensor:
    """(B, labels)."""
    return model.class_logits(model(Batch.of(examples.sequences)))


@torch.inference_mode()
def accuracy(model: Bert, examples: Examples, batch: int = 128) -> float:
    """The share of right answers."""
    right = 0
    for first in range(0, len(examples), batch):
        part = examples.some(list(range(first, min(first + batch, len(examples)))))
        right += int((logits(model, part).argmax(-1) == torch.tensor(part.labels)).sum())
    return right / len(examples)


def batches_of(examples: Examples, size: int) -> Draw:
    """Batches of a fixed set, in an order drawn anew each time round."""
    order: list[int] = []

    def draw(_: int, generator: torch.Generator) -> Examples:
        while len(order) < size:
            order.extend(torch.randperm(len(examples), generator=generator).tolist())
        chosen, order[:] = order[:size], order[size:]
        return examples.some(chosen)

    return draw
