"""How long a fine-tuning run will take and how much memory it needs, before it begins: a guess that says it is one."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

import torch

from unmask.models.settings import BertSettings

#: The share of a plain matrix product's speed that training reaches; see benchmarks/finetune.py.
_EFFICIENCY = 0.45


@dataclass(frozen=True)
class Estimate:
    """A guess."""

    minutes: float
    memory: float  # bytes

    def __str__(self) -> str:
        time = f"{self.minutes:.0f} minutes" if self.minutes >= 2 else f"{max(2, round(60 * self.minutes))} seconds"
        return f"about {time} of training on this machine as busy as it is now, and {self.memory / 1e9:.1f} GB"

    def as_rows(self) -> Mapping[str, str]:
        """For a table."""
        return {"minutes of training, about": f"{self.minutes:.1f}", "memory, about": f"{self.memory / 1e9:.1f} GB"}


def estimate(model: BertSettings, tokens: float, longest: int, batch_tokens: float) -> Estimate:
    """For so many tokens in all epochs together, windows up to `longest`, and micro-batches of `batch_tokens`."""
    layers, hidden, ffn = model.num_layers, model.hidden_size, model.ffn_size
    weights = layers * (4 * hidden * hidden + 2 * hidden * ffn)
    attention = 2 * layers * hidden * min(longest, model.max_length)
    operations = 3 * 2 * tokens * (weights + attention)  # forward once, backward twice
    parameters = weights + (model.vocab_size + model.max_length) * hidden
    # What backward needs of a token: about ten rows of the hidden size and three of the inner one a layer, and its
    # shares of attention.
    kept = layers * (10 * hidden + 3 * ffn + 2 * model.num_heads * min(longest, model.max_length))
    memory = 16.0 * parameters + 4.0 * kept * batch_tokens + 4e8  # weights, gradients, Adam; activations; the rest
    return Estimate(operations / (_EFFICIENCY * speed()) / 60, memory)


@cache
def speed() -> float:
    """Operations a second of a matrix product of this process, measured in a moment."""
    one, two = torch.ones(1024, 512), torch.ones(512, 2048)
    torch.mm(one, two)
    best = float("inf")
    for _ in range(5):
        began = time.perf_counter()
        torch.mm(one, two)
        best = min(best, time.perf_counter() - began)
    return 2.0 * 1024 * 512 * 2048 / best
