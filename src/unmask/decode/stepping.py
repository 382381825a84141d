"""What decoding needs of a model, and the rows that it keeps under way.

Results must not depend on what else is in a batch. Products of matrices add up in one order from sixteen rows on and
in others below, so there are never fewer rows than that; sources are encoded sorted by length, where attention needs
no padding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, Self

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
        self.count, self.total = -1, len(filled)  # sources that are meant, and with those that fill up
        self.reorder([[source] for source in range(len(sources))], list(range(len(sources))))

    def step(self, tokens: Tensor) -> Tensor:
        """One token a row (B, K) → log probabilities of the next (B, K, V), free to be changed."""
        count, width = tokens.shape
        missing = self.total - count
        ids = torch.cat([tokens, tokens[:1].expand(missing, -1)]) if missing else tokens
        logits, self.state = self.model.step(ids.flatten(), self.state)
        return logits[: count * width].float().log_softmax(-1).view(count, width, -1)

    def reorder(self, rows: Sequence[Sequence[int]], sources: Sequence[int]) -> None:
        """Go on with these sources, and of each with these rows, by their numbers until now."""
        missing = max(0, -(-FEWEST_ROWS // len(rows[0])) - len(rows))
        chosen = [row for group in (*rows, *[rows[0]] * missing) for row in group]
        same = list(sources) == list(range(self.count)) and len(rows) + missing == self.total
        memory = None if same else torch.tensor([*sources, *[sources[0]] * missing], device=self.device)
        if not same or chosen != list(range(len(chosen))):
            self.state = self.state.reorder(torch.tensor(chosen, device=self.device), memory)
        self.count, self.total = len(sources), len(rows) + missing
