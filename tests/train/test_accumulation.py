"""32×1 = 8×4 = 1×32: however the examples of an update are split into micro-batches, its gradient is the same."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unmask.data.corpus.build import build_corpus
from unmask.data.pretraining import Examples, ExampleSettings
from unmask.models.init import build_model
from unmask.models.settings import (
    BertSettings,
    ClassifySettings,
    MaskedTokenSettings,
    NextSentenceSettings,
    TransformerSettings,
)
from unmask.nn.batch import Batch
from unmask.nn.settings import DropoutSettings
from unmask.tasks.pretrain import Pretraining
from unmask.text import Tokenizer
from unmask.train.step import backward
from unmask.train.task import Task

SIZE = 32
LETTERS = "abcdefghijklmnopqrstuvwxyz"
SMALL = {"hidden_size": 24, "num_heads": 3, "ffn_size": 40, "init_std": 0.2, "dropout": DropoutSettings.everywhere(0.0)}
#: How many examples each micro-batch has; the last of a window may be short.
SPLITS = {"32x1": [1] * 32, "8x4": [4] * 8, "short last": [5] * 6 + [2], "uneven": [1, 20, 3, 8]}


@dataclass(frozen=True)
class Labelled:
    """Texts with a class each, or with a target text each."""

    batch: Batch
    labels: Tensor | None = None
    target: Batch | None = None
    following: Tensor | None = None

    @property
    def num_tokens(self) -> int:
        return self.batch.layout.num_tokens

    def to(self, device: torch.device) -> Labelled:
        return self


class Classify:
    def counts(self, batch: Labelled) -> dict[str, float]:
        return {"class": len(batch.batch)}

    def sums(self, model: Any, batch: Labelled) -> dict[str, Tensor]:
        assert batch.labels is not None
        return {"class": F.cross_entropy(model.class_logits(model(batch.batch)), batch.labels, reduction="sum")}


class Translate:
    """Over target tokens, of which every sequence has another number."""

    def counts(self, batch: Labelled) -> dict[str, float]:
        assert batch.following is not None
        return {"token": len(batch.following)}

    def sums(self, model: Any, batch: Labelled) -> dict[str, Tensor]:
        assert batch.following is not None
        logits = model(batch.batch, batch.target)
        return {"token": F.cross_entropy(logits, batch.following, label_smoothing=0.1, reduction="sum")}


Window = Callable[[Sequence[int]], list[Any]]


def pretraining(folder: Path) -> tuple[nn.Module, Task[Any], Window]:
    draw = Random(0)
    documents = [
        "\n".join(" ".join(draw.choices(LETTERS, k=draw.randint(2, 14))) for _ in range(draw.randint(2, 6)))
        for _ in range(40)
    ]
    (folder / "text.txt").write_text("\n\n".join(documents), encoding="utf-8")
    tokenizer = Tokenizer.from_vocab(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *LETTERS])
    corpus = build_corpus([folder / "text.txt"], tokenizer, folder / "corpus", workers=1)
    source = Examples(corpus, ExampleSettings(length=40, held_out=0))
    made = source.examples(0)[:SIZE]
    assert len(made) == SIZE
    heads = (MaskedTokenSettings(), NextSentenceSettings())
    settings = BertSettings(vocab_size=corpus.vocab_size, num_layers=2, max_length=40, heads=heads, **SMALL)

    def window(sizes: Sequence[int]) -> list[Any]:
        rng = np.random.default_rng(0)  # goes on from one micro-batch to the next, so the masks are the same
        return [source.batch(part, rng) for part in parts(made, sizes)]

    return build_model(settings, seed=1), Pretraining("nsp"), window


def classification(folder: Path) -> tuple[nn.Module, Task[Any], Window]:
    draw = Random(1)
    texts = [[draw.randrange(5, 31) for _ in range(draw.randint(1, 20))] for _ in range(SIZE)]
    labels = [draw.randrange(3) for _ in range(SIZE)]
    head = ClassifySettings(labels=("a", "b", "c"), dropout=0.0)
    settings = BertSettings(vocab_size=31, num_layers=2, max_length=20, heads=(head,), **SMALL)

    def window(sizes: Sequence[int]) -> list[Any]:
        return [
            Labelled(Batch.of(some), torch.tensor(right))
            for some, right in zip(parts(texts, sizes), parts(labels, sizes), strict=True)
        ]

    return build_model(settings, seed=1), Classify(), window


def translation(folder: Path) -> tuple[nn.Module, Task[Any], Window]:
    draw = Random(2)
    texts = [[draw.randrange(5, 31) for _ in range(draw.randint(1, 20))] for _ in range(SIZE)]
    settings = TransformerSettings(
        source_vocab_size=31, target_vocab_size=31, num_encoder_layers=2, num_decoder_layers=2, max_length=32, **SMALL
    )

    def window(sizes: Sequence[int]) -> list[Any]:
        made = []
        for some in parts(texts, sizes):
            back = [text[::-1][: 1 + len(text) // 2] for text in some]
            following = torch.tensor([token for text in back for token in [*text, 1]])
            made.append(Labelled(Batch.of(some), None, Batch.of([[0, *text] for text in back]), following))
        return made

    return build_model(settings, seed=1), Translate(), window


def parts(items: Sequence[Any], sizes: Sequence[int]) -> list[Any]:
    ends = np.cumsum([0, *sizes]).tolist()
    assert ends[-1] == len(items)
    return [items[start:end] for start, end in pairwise(ends)]


def gradients(model: nn.Module, task: Task[Any], window: list[Any]) -> tuple[dict[str, float], dict[str, Tensor]]:
    model.zero_grad(set_to_none=True)
    means = backward(model, task, window)
    return means, {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def difference(one: dict[str, Tensor], two: dict[str, Tensor]) -> tuple[float, float]:
    """Of all gradients together, and the greatest of one tensor; each relative to its own norm."""
    whole = float(torch.stack([gradient.norm() for gradient in one.values()]).norm())
    apart = {name: float((gradient - two[name]).norm()) for name, gradient in one.items()}
    worst = max(
        apart[name] / float(gradient.norm())
        for name, gradient in one.items()
        if gradient.norm() > 1e-6 * whole  # a key's bias has no gradient but rounding
    )
    return sum(value**2 for value in apart.values()) ** 0.5 / whole, worst


@pytest.mark.parametrize("make", [pretraining, classification, translation])
def test_the_split_does_not_matter(make: Callable[[Path], Any], tmp_path: Path) -> None:
    model, task, window = make(tmp_path)
    model.train()
    means, expected = gradients(model, task, window([SIZE]))
    losses, exact = gradients(model.double(), task, window([SIZE]))
    model.float()
    assert len(expected) == len(list(model.parameters()))
    for name, sizes in SPLITS.items():
        found, split = gradients(model.float(), task, window(sizes))
        assert found == pytest.approx(means, rel=1e-6)
        whole, worst = difference(expected, split)
        # 3e-7 was measured over all numbers, and 1.04e-6 for the worst tensor: that is rounding, as the doubles show.
        assert whole <= 1e-6, (name, whole)
        assert worst <= 3e-6, (name, worst)
        found, split = gradients(model.double(), task, window(sizes))
        assert found == pytest.approx(losses, rel=1e-12)
        _, worst = difference(exact, split)
        assert worst <= 1e-12, (name, worst)


def test_a_mean_of_means_would_be_noticed(tmp_path: Path) -> None:
    model, task, window = pretraining(tmp_path)
    _, expected = gradients(model.double(), task, window([SIZE]))
    model.zero_grad(set_to_none=True)
    micro = window(SPLITS["8x4"])
    for batch in micro:
        counts = task.counts(batch)
        (sum(value / counts[name] for name, value in task.sums(model, batch).items()) / len(micro)).backward()
    wrong = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    assert difference(expected, wrong)[0] > 1e-3
