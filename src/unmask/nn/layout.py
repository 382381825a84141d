"""Which rows of a tensor belong to which sequence.

A batch is ragged: the tokens of all its sequences lie end to end, so that everything except attention
works on R rows and spends nothing on padding. A padded layout, in which every sequence takes as many rows
as the longest, exists for comparison; all modules take either.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

import torch
from torch import Tensor


@dataclass(frozen=True)
class Layout:
    """Lengths of the sequences that share a tensor's first axis.

    `width` is None for ragged rows; otherwise each sequence occupies `width` rows, its own tokens first.
    """

    lengths: tuple[int, ...]
    width: int | None = None

    def __post_init__(self) -> None:
        if not self.lengths or min(self.lengths) < 1:
            raise ValueError(f"a layout needs at least one sequence of at least one token, got {self.lengths}")
        if self.width is not None and self.width < max(self.lengths):
            raise ValueError(f"width {self.width} is below the longest sequence, {max(self.lengths)}")

    @classmethod
    def ragged(cls, lengths: Iterable[int]) -> Layout:
        """Sequences end to end."""
        return cls(tuple(lengths))

    @classmethod
    def padded(cls, lengths: Iterable[int]) -> Layout:
        """Every sequence filled up to the longest."""
        lengths = tuple(lengths)
        return cls(lengths, max(lengths, default=0))

    @property
    def num_sequences(self) -> int:
        """How many sequences there are (B)."""
        return len(self.lengths)

    @cached_property
    def num_tokens(self) -> int:
        """How many tokens there are, padding not counted."""
        return sum(self.lengths)

    @cached_property
    def num_rows(self) -> int:
        """How many rows a tensor of this layout has (R)."""
        return self.num_tokens if self.width is None else self.width * self.num_sequences

    @cached_property
    def max_length(self) -> int:
        """Length of the longest sequence."""
        return max(self.lengths)

    @cached_property
    def starts(self) -> tuple[int, ...]:
        """Row of each sequence's first token."""
        if self.width is not None:
            return tuple(range(0, self.num_rows, self.width))
        return tuple(accumulate(self.lengths[:-1], initial=0))

    def of_rows(self, rows: Tensor) -> Layout:
        """The ragged layout of some of the rows, given in order; every sequence must have one among them."""
        owners = self.row_sequences(rows.device)[rows]
        return Layout.ragged(torch.bincount(owners, minlength=self.num_sequences).tolist())

    def first_rows(self, device: torch.device) -> Tensor:
        """(B,) row of each sequence's first token, where BERT puts [CLS]."""
        return torch.tensor(self.starts, device=device)

    def row_positions(self, device: torch.device) -> Tensor:
        """(R,) position of each row within its sequence, from 0."""
        if self.width is not None:
            return torch.arange(self.width, device=device).repeat(self.num_sequences)
        starts, lengths = torch.tensor(self.starts), torch.tensor(self.lengths)
        return (torch.arange(self.num_rows) - starts.repeat_interleave(lengths)).to(device)

    def row_sequences(self, device: torch.device) -> Tensor:
        """(R,) index of the sequence each row belongs to."""
        rows = torch.tensor(self.lengths if self.width is None else [self.width] * self.num_sequences)
        return torch.arange(self.num_sequences).repeat_interleave(rows).to(device)

    def token_rows(self, device: torch.device) -> Tensor:
        """Rows that hold tokens, in order; all of them when ragged."""
        if self.width is None:
            return torch.arange(self.num_rows, device=device)
        return self.key_mask(device).flatten().nonzero().squeeze(1)

    def key_mask(self, device: torch.device) -> Tensor:
        """(B, S) True where a sequence has a token, for rows laid out as a rectangle."""
        lengths = torch.tensor(self.lengths, device=device)
        return torch.arange(self.width or self.max_length, device=device) < lengths[:, None]

    def pad(self, rows: Tensor, value: float = 0.0) -> Tensor:
        """(R, …) → (B, S, …), missing places filled with `value`."""
        if self.width is not None:
            return rows.view(self.num_sequences, self.width, *rows.shape[1:])
        dense = rows.new_full((self.num_sequences, self.max_length, *rows.shape[1:]), value)
        dense[self.key_mask(rows.device)] = rows
        return dense

    def split(self, rows: Tensor) -> list[Tensor]:
        """(R, …) → one (length, …) tensor a sequence."""
        pairs = zip(self.starts, self.lengths, strict=True)
        return [rows[start : start + length] for start, length in pairs]
