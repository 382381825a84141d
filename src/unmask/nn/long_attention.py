"""Attention with dropout over long sequences on the CPU, a few heads at a time.

The weights of sixteen texts of 512 tokens and twelve heads are 50 million numbers. Held all at once they come fresh
from the system at every step and pass through memory again and again. Here they exist for as many heads as fit into a
core's cache: made, used and overwritten. Kept for the way back are the sum of each row and the random bits; the weights
are computed again. The same bits decide as in `DroppedAttention`, in the same order.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from unmask.nn.dropout import STEPS, DroppedAttention, drop_steps, random_bits

#: Weights of so many numbers or more are done by blocks: from 32 MB on, memory comes fresh from the system each time.
LARGE = 1 << 23
#: Weights held at once: three such buffers stay near a core.
BLOCK = 1 << 18


def dropped_attention(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, scale: float, probability: float) -> Tensor:
    """dropout(softmax(scale · q kᵀ + bias)) v on the CPU, by the way that is quicker for this size."""
    large = q.shape[:-1].numel() * k.shape[-2] >= LARGE
    learned = bias is not None and bias.requires_grad
    function = LongAttention if large and not learned and not torch.is_autocast_enabled("cpu") else DroppedAttention
    return function.apply(q, k, v, bias, scale, probability)  # type: ignore[no-untyped-call]


class LongAttention(torch.autograd.Function):
    """As `DroppedAttention`, by blocks; `bias` has no gradient."""

    @staticmethod
    def forward(  # noqa: D102
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, scale: float, probability: float
    ) -> Tensor:
        q, k, v = q.contiguous(), k.contiguous(), v.contiguous()
        shape = (*q.shape[:-1], k.shape[-2])
        bits = random_bits(shape)
        out, sums = (
            torch.empty((*q.shape[:-1], v.shape[-1]), dtype=q.dtype),
            torch.empty((*q.shape[:-1], 1), dtype=q.dtype),
        )
        steps = drop_steps(probability)
        ctx.scale, ctx.least, ctx.up = scale, steps - STEPS // 2, STEPS / (STEPS - steps)
        weights, kept = (torch.empty(_heads(shape), *shape[2:], dtype=q.dtype) for _ in range(2))
        for at in _blocks(shape):
            w, f = weights[: bits[at].shape[0]], kept[: bits[at].shape[0]]
            _scores(q[at], k[at], scale, None if bias is None else bias.expand(shape)[at], w)
            top = w.amax(-1, keepdim=True)
            total = w.sub_(top).exp_().sum(-1, keepdim=True)
            sums[at] = total.log() + top
            w.mul_(torch.ge(bits[at], ctx.least, out=f))
            torch.bmm(w, v[at], out=out[at]).mul_(ctx.up / total)
        ctx.save_for_backward(q, k, v, bias, bits, sums, out)
        return out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:  # noqa: D102
        q, k, v, bias, bits, sums, out = ctx.saved_tensors
        given = gradients[0].contiguous()
        grads = tuple(torch.empty_like(tensor) for tensor in (q, k, v))
        # The mean slope of a row, by which the softmax's way back lowers all of them, is that of what came out.
        means = (given * out).sum(-1, keepdim=True)
        weights, kept, slopes = (torch.empty(_heads(bits.shape), *bits.shape[2:], dtype=q.dtype) for _ in range(3))
        for at in _blocks(bits.shape):
            w, f, s = (buffer[: bits[at].shape[0]] for buffer in (weights, kept, slopes))
            _scores(q[at], k[at], ctx.scale, None if bias is None else bias.expand(bits.shape)[at], w)
            w.sub_(sums[at]).exp_()
            torch.ge(bits[at], ctx.least, out=f).mul_(ctx.up)
            torch.bmm(given[at], v[at].transpose(1, 2), out=s).mul_(f).sub_(means[at]).mul_(w).mul_(ctx.scale)
            torch.bmm(s, k[at], out=grads[0][at])
            torch.bmm(s.transpose(1, 2), q[at], out=grads[1][at])
            torch.bmm(f.mul_(w).transpose(1, 2), given[at], out=grads[2][at])
        return *grads, None, None, None


def _heads(shape: tuple[int, ...]) -> int:
    """How many heads of one sequence are done at once."""
    return max(1, min(shape[1], BLOCK // (shape[2] * shape[3])))


def _blocks(shape: tuple[int, ...]) -> Iterator[tuple[int, slice]]:
    """The places of all blocks: a sequence, and some of its heads."""
    heads = _heads(shape)
    for sequence in range(shape[0]):
        for first in range(0, shape[1], heads):
            yield sequence, slice(first, first + heads)


def _scores(q: Tensor, k: Tensor, scale: float, bias: Tensor | None, out: Tensor) -> None:
    torch.baddbmm(out, q, k.transpose(1, 2), beta=0, alpha=scale, out=out)
    if bias is not None:
        out.add_(bias)
