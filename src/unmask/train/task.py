"""What the loop needs to know of a task: sums and counts.

A loss is a sum over items divided by how many there are. A task gives both apart, and the counts before anything is
computed. The loop adds up the counts of all micro-batches (and processes) that make one update, so that 32×1, 8×4 and
1×32 give the same gradient by construction, whatever the lengths and however short the last window is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, Self, TypeVar

import torch
from torch import Tensor, nn


class MicroBatch(Protocol):
    """What one forward pass is given."""

    @property
    def num_tokens(self) -> int:
        """How many tokens, padding not counted."""

    def to(self, device: torch.device) -> Self:
        """The same on another device."""


Micro = TypeVar("Micro", contravariant=True)


class Task(Protocol[Micro]):
    """A way to learn from micro-batches of one kind. Names of losses are the same in both methods.

    A task may also have `weights: Mapping[str, float]`: how much each loss counts in what is minimised, 1 if not named.
    """

    def counts(self, batch: Micro) -> Mapping[str, float]:
        """How many items each loss of this micro-batch is a sum over (or the sum of their weights)."""

    def sums(self, model: nn.Module, batch: Micro) -> Mapping[str, Tensor]:
        """Each loss summed over its items, as scalars that carry gradients to every parameter that learns."""


class Source(Protocol):
    """Micro-batches by number, each a function of its number alone: what makes a resumed run equal an unbroken one."""

    def __getitem__(self, number: int) -> Any:
        """The micro-batch with this number, the same whenever and by whomever it is asked for."""


class Evaluator(Protocol):
    """Looks at a model now and then. Its batches may be dealt out to several processes, each to one of them."""

    score: str
    """The value by which models are compared."""
    lower_is_better: bool

    def __len__(self) -> int:
        """How many batches there are."""

    def measure(self, model: nn.Module, number: int) -> Mapping[str, float]:
        """Sums over one batch; the model is in evaluation mode and no gradient is kept."""

    def conclude(self, results: Sequence[Mapping[str, float]]) -> Mapping[str, float]:
        """What all batches together, in their order, say."""

    def remarks(self, model: nn.Module) -> Sequence[str]:
        """Lines that let a person see how the model is doing; may be none."""


def total_counts(counts: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Counts of several micro-batches added up."""
    total: dict[str, float] = {}
    for one in counts:
        for name, count in one.items():
            total[name] = total.get(name, 0) + count
    return total
