"""What decoding needs of a model, and the rows that it keeps under way.

Results must not depend on what else is in a batch. Products of matrices add up in one order from sixteen rows on and
in others below, so there are never fewer rows than that; sources are encoded sorted by length, where attention needs
no padding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, Self, runtime_checkable

import torch
from torch import Tensor

from unmask.nn.batch import Batch

#: With fewer rows, matrix products take other paths, whose last bits differ.
FEWEST_ROWS = 16


class StepState(Protocol):
    """What a model keeps between two steps, for B sources of K rows each, side by side."""

    def reorder(self, rows: Tensor, sources: Tensor | None = None) -> Self:
        """What belongs to some rows, and to some sources (None: to all), each in the order given."""


class StepModel(Protocol):
    """A model that can be asked for one token after another."""

    @property
    def target_limit(self) -> int | None:
        """How many steps it can take; None: as many as one likes."""

    def encode(self, source: Batch) -> Any:
        """Read the sources."""

    def start(self, memory: Any) -> Any:
        """The state before the first step, one row a source, from what `encode` gave."""

    def step(self, ids: Tensor, state: Any) -> tuple[Tensor, Any]:
        """One token a row (B·K,) → logits of the next (B·K, V), and the state after it."""


@runtime_checkable
class SkippingModel(Protocol):
    """A `StepModel` that need not compute rows that nobody will ask about again."""

    def step_some(self, ids: Tensor, state: Any, rows: Tensor | None) -> tuple[Tensor, Any]:
        """One token a row (B·K,), and which rows (R,) are wanted → their logits (R, V), and the state after it."""


@dataclass(frozen=True)
class TargetIds:
    """The ids of a target vocabulary that decoding must know, and those that never belong into an output."""

    start: int
    end: int
    unknown: int | None = None
    never: tuple[int, ...] = ()


class Rows:
    """A model's state for B sources of K rows each. Rows that only fill up stay in here."""

    def __init__(self, model: StepModel, sources: Sequence[Sequence[int]], device: torch.device) -> None:
        """One row a source to begin with; `sources` sorted by length."""
        self.model = model
        self.device = device
        filled = [*sources]
        while sum(map(len, filled)) < FEWEST_ROWS:
            filled.append(sources[-1])
        self.state = model.start(model.encode(Batch.of(filled).to(device)))
        self.total = len(filled)  # sources, with those that only fill up
        numbers = torch.arange(len(sources), device=device)
        self.reorder(numbers[:, None], numbers)

    def step(self, tokens: Tensor, wanted: Tensor | None = None) -> Tensor:
        """One token a row (B, K), and which rows (R,) are wanted → logits of the next (R, V), free to be changed.

        None wants all rows. Those that are not wanted must never be again.
        """
        count, width = tokens.shape
        ids = torch.cat([tokens, tokens[:1].expand(self.total - count, -1)]) if self.total > count else tokens
        wanted = None if wanted is None or len(wanted) == ids.numel() else wanted
        if wanted is None or not isinstance(self.model, SkippingModel):
            logits, self.state = self.model.step(ids.flatten(), self.state)
            return _exact(logits[: count * width] if wanted is None else logits.index_select(0, wanted))
        missing = max(0, FEWEST_ROWS - len(wanted))
        some = torch.cat(
            [wanted[:1].expand(missing), wanted]
        )  # what is meant comes last, and counts where one is twice
        logits, self.state = self.model.step_some(ids.flatten(), self.state, some)
        return _exact(logits[missing:])

    def reorder(self, rows: Tensor, sources: Tensor | None = None) -> None:
        """Go on with these sources (None: all), and of each with these rows (B, K), by their numbers until now."""
        count, width = rows.shape
        total = max(count, -(-FEWEST_ROWS // width))
        chosen = torch.cat([rows, rows[:1].expand(total - count, -1)]) if total > count else rows
        if sources is None and total != self.total:
            sources = torch.arange(count, device=self.device)
        if sources is not None and total > count:
            sources = torch.cat([sources, sources[:1].expand(total - count)])
        self.state = self.state.reorder(chosen.flatten(), sources)
        self.total = total


def _exact(logits: Tensor) -> Tensor:
    """In single precision at least."""
    return logits.to(torch.promote_types(logits.dtype, torch.float32))
