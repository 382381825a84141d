"""Cross-entropy over a vocabulary, without ever holding the logits of all rows.

The logits are the largest tensor of a small language model: with 600 rows and 21,128 tokens, 50 MB that torch writes
and reads a dozen times. Here a few rows at a time go all the way, loss and gradients both, while they are in the cache.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

#: Numbers of one slice. Smaller ones stay nearer to the core, but the products of matrices get worse.
_SLICE = 1 << 22


def vocabulary_loss(rows: Tensor, weight: Tensor, bias: Tensor, targets: Tensor) -> Tensor:
    """Cross-entropy of logits rows (M, H) · weight (V, H) + bias (V,) with targets (M,), summed over the rows."""
    if rows.device.type != "cpu" or torch.is_autocast_enabled(rows.device.type):
        return F.cross_entropy(F.linear(rows, weight, bias), targets, reduction="sum")
    return _VocabularyLoss.apply(rows, weight, bias, targets)  # type: ignore[no-untyped-call]


class _VocabularyLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, weight: Tensor, bias: Tensor, targets: Tensor) -> Tensor:
        wanted = any(ctx.needs_input_grad[:3])
        grad_rows = torch.empty_like(rows) if wanted else None
        grad_weight, grad_bias = (torch.zeros_like(weight), torch.zeros_like(bias)) if wanted else (None, None)
        total = torch.zeros((), dtype=torch.float64 if rows.dtype == torch.float64 else torch.float32)
        size = max(16, _SLICE // weight.shape[0])
        for start in range(0, len(rows), size):
            some, right = rows[start : start + size], targets[start : start + size, None]
            logits = torch.addmm(bias, some, weight.t())
            torch.log_softmax(logits, -1, out=logits)
            total -= logits.gather(1, right).sum()
            if grad_rows is None or grad_weight is None or grad_bias is None:
                continue
            slope = logits.exp_()  # probabilities; minus 1 at the right one
            slope.scatter_add_(1, right, slope.new_full(right.shape, -1.0))
            torch.mm(slope, weight, out=grad_rows[start : start + size])
            grad_weight.addmm_(slope.t(), some)
            grad_bias += slope.sum(0)
        if wanted:
            ctx.save_for_backward(grad_rows, grad_weight, grad_bias)
        return total.to(rows.dtype)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        return (*(found * gradients[0] for found in ctx.saved_tensors), None)
