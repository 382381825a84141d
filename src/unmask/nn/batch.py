"""What a model is given: token ids, segment ids and the layout that says whose they are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from unmask.nn.layout import Layout


@dataclass(frozen=True)
class Batch:
    """Token ids of several sequences, end to end."""

    ids: Tensor  # (R,) int64
    segments: Tensor  # (R,) int64, 0 for the first text and 1 for the second
    layout: Layout

    @classmethod
    def of(cls, ids: Sequence[Sequence[int]], segments: Sequence[Sequence[int]] | None = None) -> Batch:
        """A ragged batch from one list of ids a sequence."""
        layout = Layout.ragged(len(sequence) for sequence in ids)
        flat = torch.tensor([token for sequence in ids for token in sequence])
        if segments is None:
            return cls(flat, torch.zeros_like(flat), layout)
        if [len(sequence) for sequence in segments] != list(layout.lengths):
            raise ValueError("segments must have the lengths of ids")
        return cls(flat, torch.tensor([segment for sequence in segments for segment in sequence]), layout)

    def padded(self, padding_id: int = 0) -> Batch:
        """The same batch with every sequence filled up to the longest, for comparison with padded code."""
        if self.layout.width is not None:
            return self
        layout = Layout.padded(self.layout.lengths)
        ids = self.layout.pad(self.ids, padding_id).flatten()
        return Batch(ids, self.layout.pad(self.segments).flatten(), layout)

    def to(self, device: torch.device | str) -> Batch:
        """The same batch on another device."""
        return Batch(self.ids.to(device), self.segments.to(device), self.layout)

    def __len__(self) -> int:
        return self.layout.num_sequences
