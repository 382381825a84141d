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


def vocabulary_loss(
    rows: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, smoothing: float = 0.0
) -> Tensor:
    """Cross-entropy of logits rows (M, H) · weight (V, H) + bias (V,) with targets (M,), summed over the rows.

    With `smoothing` that share of each answer is spread over the whole vocabulary.
    """
    if rows.device.type != "cpu" or torch.is_autocast_enabled(rows.device.type):
        logits = F.linear(rows, weight, bias)
        return F.cross_entropy(logits, targets, reduction="sum", label_smoothing=smoothing)
    return _VocabularyLoss.apply(rows, weight, bias, targets, smoothing)  # type: ignore[no-untyped-call]


class _VocabularyLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, rows: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, smoothing: float
    ) -> Tensor:
        wanted = any(ctx.needs_input_grad[:3])
        grad_rows = torch.empty_like(rows) if wanted else None
        grad_weight = torch.zeros_like(weight) if wanted else None
        grad_bias = torch.zeros_like(bias) if wanted and bias is not None else None
        total = torch.zeros((), dtype=torch.float64 if rows.dtype == torch.float64 else torch.float32)
        sure, spread = 1.0 - smoothing, smoothing / weight.shape[0]
        size = max(16, _SLICE // weight.shape[0])
        for start in range(0, len(rows), size):
            some, right = rows[start : start + size], targets[start : start + size, None]
            logits = some @ weight.t() if bias is None else torch.addmm(bias, some, weight.t())
            torch.log_softmax(logits, -1, out=logits)
            total -= sure * logits.gather(1, right).sum()
            if spread:
                total -= spread * logits.sum()
            if grad_rows is None or grad_weight is None:
                continue
            slope = logits.exp_()  # probabilities; minus what the answer says
            if spread:
                slope -= spread
            slope.scatter_add_(1, right, slope.new_full(right.shape, -sure))
            torch.mm(slope, weight, out=grad_rows[start : start + size])
            grad_weight.addmm_(slope.t(), some)
            if grad_bias is not None:
                grad_bias += slope.sum(0)
        if wanted:
            ctx.save_for_backward(grad_rows, grad_weight, grad_bias)
        return total.to(rows.dtype)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        found = (None if one is None else one * gradients[0] for one in ctx.saved_tensors)
        return (*found, None, None)


def agreeing_loss(
    rows: tuple[Tensor, Tensor], output: tuple[Tensor, Tensor | None], targets: Tensor, smoothing: float, alpha: float
) -> tuple[Tensor, Tensor]:
    """R-Drop over a vocabulary: the loss of two passes over the same tokens, and how much they disagree; summed.

    The first is the mean of both passes' cross-entropy, and is what to differentiate: its gradient is that of the
    whole, mean + alpha · (KL(p‖q) + KL(q‖p)) / 2. The second, alpha included, is a figure to show and has none.
    """
    both = torch.stack(rows, 1)  # (M, 2, H): the two passes of a token side by side
    return _AgreeingLoss.apply(both, *output, targets, smoothing, alpha)  # type: ignore[no-untyped-call]


class _AgreeingLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        both: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        smoothing: float,
        alpha: float,
    ) -> tuple[Tensor, Tensor]:
        grad_rows, grad_weight = torch.empty_like(both), torch.zeros_like(weight)
        grad_bias = None if bias is None else torch.zeros_like(bias)
        wide = torch.promote_types(both.dtype, torch.float32)
        total, apart = (torch.zeros((), dtype=wide, device=both.device) for _ in range(2))
        sure, spread = 1.0 - smoothing, smoothing / weight.shape[0]
        size = max(8, _SLICE // (2 * weight.shape[0]))
        for start in range(0, len(both), size):
            some, right = both[start : start + size].flatten(0, 1), targets[start : start + size, None, None]
            logits = some @ weight.t() if bias is None else torch.addmm(bias, some, weight.t())
            logs = torch.log_softmax(logits, -1, dtype=wide).unflatten(0, (-1, 2))
            right = right.expand(-1, 2, 1)
            total -= (sure * logs.gather(2, right).sum() + spread * logs.sum()) / 2
            shares = logs.exp()
            between, gap = logs[:, 0] - logs[:, 1], shares[:, 0] - shares[:, 1]
            apart += (gap * between).sum() * (alpha / 2)
            slope = shares - spread
            slope.scatter_add_(2, right, slope.new_full(right.shape, -sure))
            # d/dz₁ of Σ (p - q)(log p - log q) is g - p Σ g with g = p (log p - log q) + p - q, and Σ g = KL(p‖q).
            for number, sign in ((0, 1.0), (1, -1.0)):
                pull = shares[:, number] * between
                toward = torch.addcmul(pull + gap, shares[:, number], pull.sum(-1, keepdim=True), value=-1.0)
                slope[:, number].add_(toward, alpha=sign * alpha)
            slope = slope.flatten(0, 1).div_(2).to(weight.dtype)
            grad_rows[start : start + size] = (slope @ weight).unflatten(0, (-1, 2))
            grad_weight.addmm_(slope.t(), some.to(weight.dtype))  # rows are narrower within autocast
            if grad_bias is not None:
                grad_bias += slope.sum(0)
        ctx.save_for_backward(grad_rows, grad_weight, grad_bias)
        ctx.mark_non_differentiable(apart)
        return total, apart

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        found = (None if one is None else one * gradients[0] for one in ctx.saved_tensors)
        return (*found, None, None, None)
