"""A short training, with the library's own optimizer and schedule."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from unmask.train.optimizer import OptimizerSettings, build_optimizer, set_rate
from unmask.train.schedule import linear


@dataclass(frozen=True)
class Fit:
    """How long and how fast."""

    updates: int
    rate: float = 1e-3
    warmup: float = 0.1  # of the updates
    decay: float = 0.01
    clip: float | None = 1.0


def fit(model: nn.Module, loss: Callable[[int], Tensor], settings: Fit) -> list[float]:
    """Train a model; `loss(n)` is the mean loss of batch n. The losses, until one is no number: then it stops."""
    schedule = linear(round(settings.warmup * settings.updates), settings.updates)
    optimizer = build_optimizer(model, OptimizerSettings(learning_rate=settings.rate, weight_decay=settings.decay))
    losses: list[float] = []
    model.train()
    for update in range(settings.updates):
        set_rate(optimizer, settings.rate * schedule(update))
        value = loss(update)
        losses.append(float(value.detach()))
        if not math.isfinite(losses[-1]):
            break
        value.backward()
        if settings.clip is not None:
            nn.utils.clip_grad_norm_(model.parameters(), settings.clip)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    model.eval()
    return losses


def seeded(seed: int) -> torch.Generator:
    """Dropout follows the global generator, batches one of their own: both from the seed."""
    torch.manual_seed(seed)
    return torch.Generator().manual_seed(seed)
