"""Texts too long for one pass are read in windows; here the rows of windows become the rows of texts.

W windows belong to B texts; `owners` (W,) says to which. They lie end to end in any order, without padding.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

Join = Literal["mean", "max"]


@dataclass(frozen=True)
class Windows:
    """How many windows each text has, one text after another, and how they join where no layer has learned to."""

    counts: tuple[int, ...]
    join: Join = "mean"

    def __len__(self) -> int:
        return len(self.counts)

    def owners(self, device: torch.device) -> Tensor:
        """(W,) the text each window belongs to."""
        return torch.arange(len(self.counts)).repeat_interleave(torch.tensor(self.counts)).to(device)


def join_rows(rows: Tensor, owners: Tensor, num_texts: int, how: Join, weights: Tensor | None = None) -> Tensor:
    """One row a window (W, H) → one row a text (B, H): their mean or their maximum.

    Each window has one voice in the mean, unless `weights` (W,) say otherwise: all windows of a text have the same
    length, or nearly so, hence their lengths as weights would change next to nothing.
    """
    if how == "max":
        lowest = rows.new_full((num_texts, rows.shape[1]), float("-inf"))
        return lowest.scatter_reduce(0, owners[:, None].expand_as(rows), rows, "amax", include_self=False)
    voices = rows.new_ones(len(rows)) if weights is None else weights.to(rows)
    share = voices / voices.new_zeros(num_texts).index_add(0, owners, voices)[owners]
    return _added(rows, share, owners, num_texts)


class WindowAttention(nn.Module):
    """Learns which windows of a text count: softmax over its windows of v · tanh(W h). One window counts alone."""

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.dense = nn.Linear(hidden_size, hidden_size)
        self.score = nn.Linear(hidden_size, 1, bias=False)

    def forward(self, rows: Tensor, owners: Tensor, num_texts: int) -> Tensor:
        """One row a window (W, H) → one row a text (B, H)."""
        return _added(rows, self.weights(rows, owners, num_texts), owners, num_texts)

    def weights(self, rows: Tensor, owners: Tensor, num_texts: int) -> Tensor:
        """(W,) how much each window counts, which is 1 in sum for each text."""
        scores = self.score(torch.tanh(self.dense(rows))).squeeze(1)
        lowest = scores.new_full((num_texts,), float("-inf"))
        highest = lowest.scatter_reduce(0, owners, scores.detach(), "amax")
        raised = (scores - highest[owners]).exp()
        return raised / raised.new_zeros(num_texts).index_add(0, owners, raised)[owners]


def _added(rows: Tensor, shares: Tensor, owners: Tensor, num_texts: int) -> Tensor:
    """Rows times their shares (W,), added up by text."""
    return rows.new_zeros(num_texts, rows.shape[1]).index_add(0, owners, rows * shares[:, None])
