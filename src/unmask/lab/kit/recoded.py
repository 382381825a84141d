"""Newspaper text written once more, in its own letters or in others: a translation that can be made up.

Of the source some characters are hidden, so that there is something to guess beside something to copy. Two languages
that share all their pieces, or none: real pairs of languages lie between.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from unmask.lab.entry import Record
from unmask.lab.kit.daily import CLS, MASK, SEP, VOCAB, daily, windows
from unmask.lab.kit.fitting import Fit, fit, seeded
from unmask.models.bert import num_parameters
from unmask.models.init import build_model
from unmask.models.settings import Tie, TransformerSettings
from unmask.models.transformer import Transformer
from unmask.nn.batch import Batch
from unmask.nn.vocabulary import vocabulary_loss

LENGTH, TEXTS = 20, 64  # characters a text, texts a batch
ALPHABETS = {"one alphabet": 0, "two alphabets": VOCAB}  # added to the ids of a target
TIMES, SHARES = ("quarter", "half", "end"), (25, 50, 100)
Pair = tuple[list[int], list[int]]


def pairs(texts: Sequence[np.ndarray], alphabet: str, rng: np.random.Generator) -> list[Pair]:
    """A text with three characters in twenty hidden, and the text itself, in its own letters or in others."""
    found = []
    for text in texts:
        source = np.where(rng.random(len(text)) < 0.15, MASK, text)
        found.append((source.tolist(), (text + ALPHABETS[alphabet]).tolist()))
    return found


def batches(some: Sequence[Pair]) -> tuple[Batch, Batch, Tensor]:
    """Sources, targets as the decoder reads them, and what it has to say."""
    source = Batch.of([source for source, _ in some])
    target = Batch.of([[CLS, *target] for _, target in some])
    return source, target, torch.tensor([token for _, target in some for token in (*target, SEP)])


def trial(alphabet: str, tie: Tie, sizes: tuple[int, int], seed: int) -> Record:
    """Train for so many updates, and look at so many batches held out after a quarter, a half, and all of them."""
    updates, held = sizes
    seeded(seed)
    rng, vocab = np.random.default_rng(seed), VOCAB + ALPHABETS[alphabet]
    shape = {"hidden_size": 128, "num_heads": 4, "ffn_size": 256, "num_encoder_layers": 2, "num_decoder_layers": 2}
    rest = {"dropout": dict.fromkeys(("embedding", "residual", "attention"), 0.0), "tie": tie}
    vocabularies = {"source_vocab_size": vocab, "target_vocab_size": vocab}
    model = build_model(TransformerSettings.parse({**shape, **rest, **vocabularies}), seed=seed)
    assert isinstance(model, Transformer)
    found: Record = {"parameters": num_parameters(model)}
    found |= {f"{time}_{what}": None for time in TIMES for what in ("loss", "right")}  # where training breaks off

    def loss(number: int) -> Tensor:
        if number in (updates // 4, updates // 2):
            found.update(held_out(model, alphabet, TIMES[number // (updates // 4) - 1], held))
        source, target, answers = batches(pairs(windows(daily().learned, LENGTH, TEXTS, rng), alphabet, rng))
        rows = model.decode(target, model.encode(source))
        return vocabulary_loss(rows, *model.output_layer, answers) / len(answers)

    fit(model, loss, Fit(updates, rate=2e-3))
    return {**found, **held_out(model, alphabet, TIMES[-1], held)}


@torch.inference_mode()
def held_out(model: Transformer, alphabet: str, name: str, count: int) -> Record:
    """Loss a target token under teacher forcing, and right guesses, on articles that nobody learned from."""
    rng, loss, right, total = np.random.default_rng(12345), 0.0, 0, 0
    for _ in range(count):
        source, target, answers = batches(pairs(windows(daily().held_out, LENGTH, 64, rng), alphabet, rng))
        logits = model(source, target)
        loss += float(F.cross_entropy(logits, answers, reduction="sum"))
        right, total = right + int((logits.argmax(-1) == answers).sum()), total + len(answers)
    return {f"{name}_loss": loss / total if math.isfinite(loss) else None, f"{name}_right": right / total}
