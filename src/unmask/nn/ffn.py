"""The position-wise feed-forward network."""

from __future__ import annotations

from collections.abc import Callable

import torch.nn.functional as F
from torch import Tensor, nn

from unmask.nn.dropout import Dropout

Activation = Callable[[Tensor], Tensor]


class FeedForward(nn.Module):
    """W_2 · dropout(activation(W_1 x)); gated: W_2 · dropout(activation(W_g x) ⊙ W_1 x)."""

    def __init__(
        self,
        hidden_size: int,
        ffn_size: int,
        activation: Activation = F.gelu,
        *,
        gated: bool = False,
        bias: bool = True,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.inner = nn.Linear(hidden_size, ffn_size, bias=bias)
        self.gate = nn.Linear(hidden_size, ffn_size, bias=bias) if gated else None
        self.outer = nn.Linear(ffn_size, hidden_size, bias=bias)
        self.activation = activation
        self.dropout = Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Rows (R, H) → rows (R, H)."""
        inner = self.inner(x)
        inner = self.activation(inner) if self.gate is None else self.activation(self.gate(x)) * inner
        return self.outer(self.dropout(inner))


def identity(x: Tensor) -> Tensor:
    """The activation that is none, for the question what the others are for."""
    return x


def gelu_tanh(x: Tensor) -> Tensor:
    """GELU by its tanh approximation, as in Google's code and GPT-2."""
    return F.gelu(x, approximate="tanh")
