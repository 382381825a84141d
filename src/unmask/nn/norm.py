"""Normalisation, and the Add & Norm that stands around each sub-layer."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

from unmask.nn.dropout import Dropout


class AddNorm(nn.Module):
    """What stands around a sub-layer: a residual connection, dropout, and a norm at a place that subclasses choose."""

    def __init__(self, norm: nn.Module, dropout: float, *, residual: bool = True) -> None:
        super().__init__()
        self.norm = norm
        self.dropout = Dropout(dropout)
        self.residual = residual

    def add(self, x: Tensor, out: Tensor) -> Tensor:
        """What the sub-layer said, dropped out, and x again where there is a residual connection."""
        out = self.dropout(out)
        return x + out if self.residual else out

    def seen(self, x: Tensor) -> Tensor:
        """What the sub-layer sees of x."""
        raise NotImplementedError


class PostNorm(AddNorm):
    """norm(x + dropout(sublayer(x))): the papers'."""

    def seen(self, x: Tensor) -> Tensor:
        """What the sub-layer sees of x: x itself."""
        return x

    def forward(self, x: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        """Run the sub-layer on rows (R, H) and normalise what comes out."""
        return self.norm(self.add(x, sublayer(x)))


class PreNorm(AddNorm):
    """x + dropout(sublayer(norm(x))): gradients reach every depth, and the stack needs a norm at its end."""

    def seen(self, x: Tensor) -> Tensor:
        """What the sub-layer sees of x: x normalised."""
        return self.norm(x)

    def forward(self, x: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        """Normalise rows (R, H) and run the sub-layer on them."""
        return self.add(x, sublayer(self.norm(x)))


class RowBatchNorm(nn.BatchNorm1d):
    """BatchNorm over rows: statistics come from all rows of the batch, whatever sentence they stand in.

    In a ragged batch these are the tokens; in a padded one the padding counts too, so in training the layouts differ.
    """
