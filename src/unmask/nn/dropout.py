"""Dropout that is quick on a CPU, where drawing random numbers costs more than anything done with them.

torch draws a float for every element. Here 16 random bits decide, four elements for each draw of 64: the probability
is rounded to a multiple of 1/65,536, and kept elements are divided by the share that is kept, so the mean is right.
On other devices torch's own dropout, which is quick there, is used.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

#: Of so many equally likely outcomes some drop an element.
STEPS = 1 << 16


def drop_steps(probability: float) -> int:
    """How many of 65,536 equally likely outcomes drop an element; at least one is left that keeps it."""
    return min(round(probability * STEPS), STEPS - 1)


def random_bits(shape: tuple[int, ...]) -> Tensor:
    """16 random bits for each element, from torch's generator, as whole numbers around 0."""
    count = math.prod(shape)
    # The lower end of the range must be said, for without it the sign bit would never be set.
    bits = torch.empty(-(-count // 4), dtype=torch.int64).random_(-(2**63), None)
    return bits.view(torch.int16)[:count].view(shape)


def factors(x: Tensor, probability: float) -> Tensor:
    """On the CPU: what each element of x is multiplied with, 0 or one over the share kept; from torch's generator."""
    steps = drop_steps(probability)
    # Straight into numbers of the kind wanted: by way of a tensor of truth values it takes three times as long.
    found = torch.empty(x.shape, dtype=x.dtype)
    torch.ge(random_bits(x.shape), steps - STEPS // 2, out=found)
    return found.mul_(STEPS / (STEPS - steps))


def dropout(x: Tensor, probability: float) -> Tensor:
    """x with each element dropped with this probability, the others scaled up so that the mean stays."""
    if probability == 0.0:
        return x
    if x.device.type != "cpu" or probability == 1.0:
        return F.dropout(x, probability)
    return x * factors(x, probability)


class Dropout(nn.Module):
    """Drops elements in training, none in evaluation."""

    def __init__(self, probability: float) -> None:
        super().__init__()
        self.p = probability

    def forward(self, x: Tensor) -> Tensor:
        """x, some of its elements dropped."""
        return dropout(x, self.p) if self.training else x

    def extra_repr(self) -> str:
        """Shown when a model is printed."""
        return f"p={self.p}"


class DroppedAttention(torch.autograd.Function):
    """dropout(softmax(scale · q kᵀ + bias)) v on the CPU: torch's fused kernel knows no dropout there.

    Everything that has the size of the weights is done in place where it can be; kept for the way back are the weights
    and their factors. `bias` is added to the scores, -inf where a key may not be seen. Within autocast the products are
    narrower than what is given, and on the way back, where there is no autocast, they must be so again.
    """

    @staticmethod
    def forward(  # noqa: D102
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, scale: float, probability: float
    ) -> Tensor:
        q, k, v = q.contiguous(), k.contiguous(), v.contiguous()  # once, and not in every product
        scores = torch.matmul(q, k.transpose(-1, -2)).mul_(scale)
        if bias is not None:
            scores.add_(bias)
        weights = torch.softmax(scores, -1, out=scores)
        factor = factors(weights, probability)
        ctx.save_for_backward(q, k, v, weights, factor)
        ctx.scale, ctx.bias_shape = scale, None if bias is None else bias.shape
        return torch.matmul(weights * factor, v)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:  # noqa: D102
        *given, weights, factor = ctx.saved_tensors
        q, k, v = (tensor.to(weights.dtype) for tensor in given)
        out = gradients[0].contiguous()
        grad_v = torch.matmul((weights * factor).transpose(-1, -2), out)
        slope = torch.matmul(out, v.transpose(-1, -2)).mul_(factor)
        scores = torch._softmax_backward_data(slope, weights, -1, weights.dtype)
        grad_bias = scores.sum_to_size(ctx.bias_shape) if ctx.needs_input_grad[3] else None
        scores = scores * ctx.scale if grad_bias is not None else scores.mul_(ctx.scale)
        return torch.matmul(scores, k), torch.matmul(scores.transpose(-1, -2), q), grad_v, grad_bias, None, None
