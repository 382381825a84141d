"""Associative recall: places with a key and a value each, and a key whose value is asked for."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from unmask.lab.entry import Record
from unmask.lab.kit.fitting import Fit, fit, seeded
from unmask.models.bert import Bert
from unmask.models.init import build_model
from unmask.models.settings import BertSettings
from unmask.nn.batch import Batch
from unmask.nn.layout import Layout

PLACES, SYMBOLS = 16, 32
#: What somebody who knows nothing loses.
CHANCE = math.log(SYMBOLS)


def examples(count: int, generator: torch.Generator) -> tuple[Batch, Tensor]:
    """Each place is the sum of a key's embedding (as its token) and a value's (as its segment; 0 is none).

    The first row is the key that is asked for, without a value; its answer is read there.
    """
    keys = torch.rand(count, SYMBOLS, generator=generator).argsort(1)[:, :PLACES]
    values = torch.randint(SYMBOLS, (count, PLACES), generator=generator)
    asked = torch.randint(PLACES, (count, 1), generator=generator)
    ids = torch.cat([keys.gather(1, asked), keys], 1).flatten()
    segments = torch.cat([torch.zeros(count, 1, dtype=torch.long), values + 1], 1).flatten()
    return Batch(ids, segments, Layout.ragged([PLACES + 1] * count)), values.gather(1, asked)[:, 0]


def settings_of(score: str, width: int) -> BertSettings:
    """Two layers of hidden 64 with one head, no positions, Xavier's first values."""
    sizes = {"vocab_size": SYMBOLS, "hidden_size": 64, "num_layers": 2, "num_heads": 1, "head_size": width}
    head = {"kind": "classify", "labels": [str(n) for n in range(SYMBOLS)], "pooling": "cls", "dropout": 0.0}
    rest = {"ffn_size": 128, "num_segments": SYMBOLS + 1, "pooler": False, "positions": {"kind": "none"}}
    dropout = {"embedding": 0.0, "residual": 0.0, "attention": 0.0}
    return BertSettings.parse({**sizes, **rest, "score": score, "init": "xavier", "dropout": dropout, "heads": [head]})


def recall_trial(score: str, width: int, updates: int, seed: int) -> Record:
    """Learn it; how fast (the mean loss of all updates), and how well."""
    generator = seeded(seed)
    model = build_model(settings_of(score, width), seed=seed)
    assert isinstance(model, Bert)

    def loss(_: int) -> Tensor:
        batch, answers = examples(64, generator)
        return F.cross_entropy(model.class_logits(model(batch)), answers)

    losses = fit(model, loss, Fit(updates, 2e-3))
    kept = [value for value in losses if math.isfinite(value)]
    kept += [CHANCE] * (updates - len(kept))  # of a run that diverged
    with torch.inference_mode():
        batch, answers = examples(2000, torch.Generator().manual_seed(12345))
        right = (model.class_logits(model(batch)).argmax(-1) == answers).double().mean()
    return {
        "score": sum(kept) / updates,
        "accuracy": float(right),
        "diverged": not all(map(math.isfinite, losses)),
        "losses": [round(value, 4) for value in kept[:: max(1, updates // 50)]],
    }
