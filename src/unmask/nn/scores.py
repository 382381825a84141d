"""How well a key answers a query: the score functions the papers and their critics discuss.

Each score first prepares queries and keys (so that a decoder can keep prepared keys), then compares them.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn


class Score(nn.Module):
    """A way to compare queries (B, N, T, D) with keys (B, N, S, D)."""

    #: True when the score is a plain product of prepared queries and keys times `scale`: fused kernels then apply.
    is_dot = True
    scale = 1.0

    def prepare_queries(self, q: Tensor) -> Tensor:
        """What is done to queries before they meet a key."""
        return q

    def prepare_keys(self, k: Tensor) -> Tensor:
        """What is done to keys before they meet a query."""
        return k

    def forward(self, q: Tensor, k: Tensor) -> Tensor:
        """Scores (B, N, T, S) of prepared queries and keys."""
        return q @ k.transpose(-2, -1) * self.scale


class Dot(Score):
    """q·k, which grows with D until softmax saturates."""


class ScaledDot(Score):
    """q·k / sqrt(D): the Transformer's."""

    def __init__(self, head_size: int) -> None:
        super().__init__()
        self.scale = 1 / math.sqrt(head_size)


class NormedDot(Score):
    """LayerNorm on queries and keys instead of the scale.

    The gains start at D^(-1/4), so that the score of two random vectors starts with variance 1, as when scaled.
    """

    def __init__(self, head_size: int) -> None:
        super().__init__()
        self.query_norm = nn.LayerNorm(head_size)
        self.key_norm = nn.LayerNorm(head_size)

    def initialise(self, generator: torch.Generator) -> None:
        """Gains that make up for the missing scale."""
        for norm in (self.query_norm, self.key_norm):
            nn.init.constant_(norm.weight, norm.normalized_shape[0] ** -0.25)
            nn.init.zeros_(norm.bias)

    def prepare_queries(self, q: Tensor) -> Tensor:
        """Normalise each head's query."""
        return self.query_norm(q)

    def prepare_keys(self, k: Tensor) -> Tensor:
        """Normalise each head's key."""
        return self.key_norm(k)


class Additive(Score):
    """wᵀ tanh(W_q q + W_k k): Bahdanau's score, a small network instead of a product."""

    is_dot = False

    def __init__(self, head_size: int) -> None:
        super().__init__()
        self.query = nn.Linear(head_size, head_size, bias=False)
        self.key = nn.Linear(head_size, head_size, bias=False)
        self.weight = nn.Parameter(torch.ones(head_size))

    def initialise(self, generator: torch.Generator) -> None:
        """A weight that keeps the score's variance near 1."""
        nn.init.normal_(self.weight, std=self.weight.numel() ** -0.5, generator=generator)

    def prepare_queries(self, q: Tensor) -> Tensor:
        """W_q q."""
        return self.query(q)

    def prepare_keys(self, k: Tensor) -> Tensor:
        """W_k k."""
        return self.key(k)

    def forward(self, q: Tensor, k: Tensor) -> Tensor:
        """Scores (B, N, T, S); needs B·N·T·S·D memory, which is why nobody trains large models with it."""
        return torch.tanh(q[:, :, :, None] + k[:, :, None]) @ self.weight
