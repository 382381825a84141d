"""What the loop needs to know of a task: sums and counts.

A loss is a sum over items divided by how many there are. A task gives both apart, and the counts before anything is
computed. The loop adds up the counts of all micro-batches (and processes) that make one update, so that 32×1, 8×4 and
1×32 give the same gradient by construction, whatever the lengths and however short the last window is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol, TypeVar

from torch import Tensor, nn

Micro = TypeVar("Micro", contravariant=True)


class Task(Protocol[Micro]):
    """A way to learn from micro-batches of one kind. Names of losses are the same in both methods."""

    def counts(self, batch: Micro) -> Mapping[str, int]:
        """How many items each loss of this micro-batch is a sum over."""

    def sums(self, model: nn.Module, batch: Micro) -> Mapping[str, Tensor]:
        """Each loss summed over its items, as scalars that carry gradients."""


class Source(Protocol):
    """Micro-batches by number, each a function of its number alone: what makes a resumed run equal an unbroken one."""

    def __getitem__(self, number: int) -> object:
        """The micro-batch with this number, the same whenever and by whomever it is asked for."""


def total_counts(counts: Sequence[Mapping[str, int]]) -> dict[str, int]:
    """Counts of several micro-batches added up."""
    total: dict[str, int] = {}
    for one in counts:
        for name, count in one.items():
            total[name] = total.get(name, 0) + count
    return total
