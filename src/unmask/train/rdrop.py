"""R-Drop: the same batch goes through the model twice, and both answers should agree (Liang et al. 2021)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Generic, Protocol, TypeVar

import torch
from torch import Tensor, nn

from unmask.train.task import Task

#: The name of the loss that R-Drop adds.
NAME = "r_drop"

Micro = TypeVar("Micro", contravariant=True)


class Scored(Task[Micro], Protocol[Micro]):
    """A task whose losses are made of one row of logits an item."""

    def rows(self, batch: Micro) -> int:
        """How many rows the logits of this micro-batch have."""

    def logits(self, model: nn.Module, batch: Micro) -> Tensor:
        """Rows of finite logits (rows, classes), by one forward pass."""

    def loss(self, logits: Tensor, batch: Micro) -> Mapping[str, Tensor]:
        """What `sums` gives, made of these logits."""


class RDrop(Generic[Micro]):
    """A task that trains another with R-Drop.

    Each batch has two forward passes, which differ by dropout. A loss is the mean of the two passes. The loss `r_drop`
    is added: alpha · (KL(p‖q) + KL(q‖p)) / 2 for each row. This is the authors' code. The formula of their paper adds
    up the losses of the passes instead of taking the mean, so its alpha is twice this one.
    """

    def __init__(self, task: Scored[Micro], alpha: float) -> None:
        self.task = task
        self.alpha = alpha
        self.weights: Mapping[str, float] = getattr(task, "weights", {})

    def counts(self, batch: Micro) -> Mapping[str, float]:
        """The counts of the task, and one for each row of logits."""
        return {**self.task.counts(batch), NAME: self.task.rows(batch)}

    def sums(self, model: nn.Module, batch: Micro) -> Mapping[str, Tensor]:
        """The mean losses of two passes, and how much they disagree."""
        one, two = self.task.logits(model, batch), self.task.logits(model, batch)
        first, second = self.task.loss(one, batch), self.task.loss(two, batch)
        losses = {name: (first[name] + second[name]) / 2 for name in first}
        return {**losses, NAME: self.alpha * disagreement(one, two)}


def disagreement(one: Tensor, two: Tensor) -> Tensor:
    """(KL(p‖q) + KL(q‖p)) / 2 of rows of logits, summed over rows."""
    # In 32 bits at least: small differences of probabilities are all there is.
    wide = torch.promote_types(one.dtype, torch.float32)
    log_p, log_q = one.to(wide).log_softmax(-1), two.to(wide).log_softmax(-1)
    # Σ p (log p - log q) + Σ q (log q - log p)
    return ((log_p.exp() - log_q.exp()) * (log_p - log_q)).sum() / 2
