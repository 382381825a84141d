"""Normalisation, and the Add & Norm that stands around each sub-layer."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn


class PostNorm(nn.Module):
    """norm(x + dropout(sublayer(x))): the papers'."""

    def __init__(self, norm: nn.Module, dropout: float, *, residual: bool = True) -> None:
        super().__init__()
        self.norm = norm
        self.dropout = nn.Dropout(dropout)
        self.residual = residual

    def forward(self, x: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        """Run the sub-layer on rows (R, H) and normalise what comes out."""
        out = self.dropout(sublayer(x))
        return self.norm(x + out if self.residual else out)


class PreNorm(nn.Module):
    """x + dropout(sublayer(norm(x))): gradients reach every depth, and the stack needs a norm at its end."""

    def __init__(self, norm: nn.Module, dropout: float, *, residual: bool = True) -> None:
        super().__init__()
        self.norm = norm
        self.dropout = nn.Dropout(dropout)
        self.residual = residual

    def forward(self, x: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        """Normalise rows (R, H) and run the sub-layer on them."""
        out: Tensor = self.dropout(sublayer(self.norm(x)))
        return x + out if self.residual else out


AddNorm = PostNorm | PreNorm


class RowBatchNorm(nn.BatchNorm1d):
    """BatchNorm over rows: statistics come from all tokens of the batch, whatever sentence they stand in."""
