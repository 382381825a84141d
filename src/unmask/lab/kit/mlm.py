"""A small Chinese BERT, pre-trained for a minute."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from unmask.data.masking import MaskingSettings
from unmask.lab.entry import Record
from unmask.lab.kit.daily import VOCAB, Hidden, daily, hidden, windows
from unmask.lab.kit.fitting import Fit, fit, seeded
from unmask.models.bert import Bert
from unmask.models.init import build_model, start_as_sinusoids
from unmask.models.settings import BertSettings

#: What every model is measured by, however it was trained: BERT's masking.
MEASURED = MaskingSettings()


@dataclass(frozen=True)
class MlmRun:
    """What makes a run: the model's settings, its masking, its length."""

    fit: Fit = field(default_factory=lambda: Fit(400))
    masking: MaskingSettings = field(default_factory=MaskingSettings)
    length: int = 62  # characters a text
    batch: int = 32
    model: Mapping[str, Any] = field(default_factory=dict)


def settings_of(changes: Mapping[str, Any]) -> BertSettings:
    """Two layers of 128, and what is to be different."""
    sizes = {"vocab_size": VOCAB, "hidden_size": 128, "num_layers": 2, "num_heads": 4, "ffn_size": 512}
    rest = {"max_length": 128, "dropout": {"embedding": 0.0, "residual": 0.0, "attention": 0.0}}
    return BertSettings.parse({**sizes, **rest, "heads": [{"kind": "mlm"}], **changes})


def pretrained(run: MlmRun, seed: int) -> tuple[Bert, list[float]]:
    """A model and its losses."""
    seeded(seed)
    settings = settings_of(run.model)
    model = build_model(settings, seed=seed)
    assert isinstance(model, Bert)
    if settings.positions.kind == "learned":
        start_as_sinusoids(model)  # from random values so short a run learns no order at all
    rng = np.random.default_rng(seed)

    def loss(_: int) -> Tensor:
        texts = windows(daily().learned, run.length, run.batch, rng)
        return mlm_loss(model, hidden(texts, run.masking, rng))

    return model, fit(model, loss, run.fit)


def mlm_loss(model: Bert, batch: Hidden) -> Tensor:
    """The mean loss of hidden characters."""
    rows = model(batch.batch).sequence.index_select(0, batch.rows)
    return model.masked_token_loss(rows, batch.targets) / max(1, len(batch.targets))


@torch.inference_mode()
def held_out(model: Bert, texts: int = 512, length: int = 62, masking: MaskingSettings = MEASURED) -> Record:
    """Loss and accuracy on articles that nobody learned from: always the same texts and the same masks."""
    rng = np.random.default_rng(12345)
    losses, right, total = 0.0, 0, 0
    for _ in range(0, texts, 64):
        batch = hidden(windows(daily().held_out, length, 64, rng), masking, rng)
        logits = model.masked_token_logits(model(batch.batch).sequence.index_select(0, batch.rows))
        losses += float(F.cross_entropy(logits, batch.targets, reduction="sum"))
        right += int((logits.argmax(-1) == batch.targets).sum())
        total += len(batch.targets)
    return {"loss": losses / total, "accuracy": right / total, "hidden": total}


def trial(run: MlmRun, seed: int) -> Record:
    """Pre-train, and measure on held-out text; the losses on the way are kept too, thinned out."""
    model, losses = pretrained(run, seed)
    return {**held_out(model), "losses": [round(value, 4) for value in losses[:: max(1, len(losses) // 50)]]}
