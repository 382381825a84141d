"""Schemes that act on the embeddings: learned, sinusoidal, complex-valued."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

from unmask.nn.positions.base import Positions
from unmask.nn.table import vector_table

Order = Literal["interleaved", "concatenated"]
Spacing = Literal["paper", "tensor2tensor"]


class LearnedPositions(Positions):
    """One learned vector a position, added to the embedding: BERT's. Knows no position past its table."""

    def __init__(self, max_length: int, hidden_size: int) -> None:
        super().__init__()
        self.limit = max_length
        self.table = vector_table(max_length, hidden_size)

    def embed(self, x: Tensor, ids: Tensor, positions: Tensor, length: int) -> Tensor:
        """x + P[position]."""
        return x + self.table(positions)


class SinusoidalPositions(Positions):
    """Fixed sines and cosines, added to the embedding: the Transformer's. Any length."""

    def __init__(
        self, hidden_size: int, order: Order = "interleaved", spacing: Spacing = "paper", start: int = 0
    ) -> None:
        super().__init__()
        self.hidden_size, self.order, self.spacing, self.start = hidden_size, order, spacing, start
        # Grown when a longer sequence comes. Not a buffer: it can be computed, so it is never stored or moved.
        self._table = torch.empty(0, hidden_size)

    def embed(self, x: Tensor, ids: Tensor, positions: Tensor, length: int) -> Tensor:
        """x + P[position]."""
        table = self._table  # one look: another thread may put a shorter one there
        if length > table.shape[0] or table.device != x.device or table.dtype != x.dtype:
            where = torch.arange(self.start, self.start + max(length, 2 * table.shape[0], 64))
            table = sinusoids(where, self.hidden_size, self.order, self.spacing).to(x)
            self._table = table
        return x + table[positions]

    def extra_repr(self) -> str:
        """Shown when a model is printed."""
        return f"{self.hidden_size}, order={self.order}, spacing={self.spacing}, start={self.start}"


class ComplexPositions(Positions):
    """Word-order embeddings in the complex plane (Wang et al. 2019).

    A word j at position p is r_j · exp(i(ω_j p + θ_j)): each word turns with the position at frequencies of its
    own. The token embedding holds r_j exp(iθ_j) as real parts then imaginary parts, so this hook multiplies it by
    exp(iω_j p) and hands the real network both parts side by side.
    """

    def __init__(self, vocab_size: int, hidden_size: int) -> None:
        super().__init__()
        self.frequencies = vector_table(vocab_size, hidden_size // 2)

    def initialise(self, generator: torch.Generator) -> None:
        """Every word starts with the sinusoid's frequencies."""
        half = self.frequencies.embedding_dim
        with torch.no_grad():
            self.frequencies.weight.copy_(_frequencies(2 * half, "paper").expand_as(self.frequencies.weight))

    def embed(self, x: Tensor, ids: Tensor, positions: Tensor, length: int) -> Tensor:
        """x turned by the word's own frequencies times the position."""
        angle = self.frequencies(ids) * positions[:, None]
        real, imaginary = x.chunk(2, dim=-1)
        sin, cos = angle.sin(), angle.cos()
        return torch.cat([real * cos - imaginary * sin, real * sin + imaginary * cos], dim=-1)


def sinusoids(positions: Tensor, size: int, order: Order = "interleaved", spacing: Spacing = "paper") -> Tensor:
    """(P,) positions on the CPU, any sign → (P, size) sines and cosines, in double precision."""
    angle = positions.double()[:, None] * _frequencies(size, spacing)
    pair = [angle.sin(), angle.cos()]
    return torch.stack(pair, dim=-1).flatten(1) if order == "interleaved" else torch.cat(pair, dim=-1)


def _frequencies(size: int, spacing: Spacing) -> Tensor:
    """(size/2,) angular frequencies from 1 down to 1/10000.

    The paper never quite reaches 1/10000 (2i/size < 1); tensor2tensor's code, and models trained with it, do.
    """
    steps = size // 2 if spacing == "paper" else max(size // 2 - 1, 1)
    return torch.exp(torch.arange(size // 2, dtype=torch.float64) * (-math.log(10000.0) / steps))
