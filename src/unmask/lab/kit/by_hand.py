"""A block's arithmetic written out from its weights: another way to the numbers that the library computes."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from unmask.nn.attention import MultiHeadAttention
from unmask.nn.ffn import FeedForward


def plain_linear(x: Tensor, layer: nn.Linear) -> Tensor:
    """x Wᵀ + b."""
    product = x @ layer.weight.detach().T
    return product if layer.bias is None else product + layer.bias.detach()


def heads_of(rows: Tensor, heads: int) -> Tensor:
    """(…, R, N·D) → (…, N, R, D)."""
    return rows.unflatten(-1, (heads, -1)).transpose(-3, -2)


def side_by_side(heads: Tensor) -> Tensor:
    """(…, N, R, D) → (…, R, N·D)."""
    return heads.transpose(-3, -2).flatten(-2)


def _softmax(scores: Tensor) -> Tensor:
    """exp / Σ exp, the largest score taken away first."""
    powers = torch.exp(scores - scores.max(-1, keepdim=True).values)
    return powers / powers.sum(-1, keepdim=True)


def plain_weights(queries: Tensor, keys: Tensor) -> Tensor:
    """(…, N, T, S) of heads (…, N, T, D) and (…, N, S, D)."""
    return _softmax(queries @ keys.transpose(-2, -1) / math.sqrt(queries.shape[-1]))


def plain_attention(module: MultiHeadAttention, rows: Tensor, memory: Tensor) -> Tensor:
    """Rows (…, T, H) look at all rows (…, S, H) of `memory`: (…, T, H)."""
    made, count = module.projections, module.num_heads
    q, k, v = (
        heads_of(plain_linear(given, layer), count)
        for given, layer in ((rows, made.query), (memory, made.key), (memory, made.value))
    )
    return plain_linear(side_by_side(plain_weights(q, k) @ v), module.output)


def plain_gelu(x: Tensor) -> Tensor:
    """x·Φ(x)."""
    return x * (1 + torch.erf(x / math.sqrt(2))) / 2


def plain_ffn(module: nn.Module, rows: Tensor) -> Tensor:
    """W_2 plain_gelu(W_1 x)."""
    assert isinstance(module, FeedForward)
    return plain_linear(plain_gelu(plain_linear(rows, module.inner)), module.outer)


def plain_norm(module: nn.Module, rows: Tensor) -> Tensor:
    """(x − mean) / deviation, times a gain, plus a shift."""
    assert isinstance(module, nn.LayerNorm)
    centred = rows - rows.mean(-1, keepdim=True)
    scaled = centred / torch.sqrt((centred**2).mean(-1, keepdim=True) + module.eps)
    return scaled * module.weight.detach() + module.bias.detach()


def difference(one: Tensor, other: Tensor) -> float:
    """The largest absolute difference."""
    return float((one - other).abs().max())
