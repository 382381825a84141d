"""Attention: one function, with a readable backend and a fast one.

Both compute softmax(score(q, k) + bias) v over the keys a mask allows. The reference follows the formula and can
hand out the weights; the fast one uses torch's fused kernel where the score is a product, and the formula where
it is not. They agree in train and eval mode, dropout included. torch's kernel has no second derivative; the reference
backend has.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unmask.nn.branches import StepMask
from unmask.nn.dropout import dropout as dropped
from unmask.nn.long_attention import dropped_attention
from unmask.nn.masks import EVERYTHING, Mask
from unmask.nn.positions.base import Positions
from unmask.nn.scores import Score

Backend = Literal["reference", "fast"]


class Attend(nn.Module):
    """Queries look at keys and take home a mixture of values. Works on dense groups (B, N, T or S, D)."""

    def __init__(self, score: Score, positions: Positions, dropout: float = 0.0) -> None:
        super().__init__()
        self.score = score
        self.positions = positions
        self.dropout = dropout
        self.backend: Backend = "fast"

    def prepare_queries(self, q: Tensor, first: int = 0) -> Tensor:
        """Queries ready to be compared; the first stands at position `first`."""
        return self.positions.rotate(self.score.prepare_queries(q), first)

    def prepare_keys(self, k: Tensor, first: int = 0) -> Tensor:
        """Keys ready to be compared; the first stands at position `first`."""
        return self.positions.rotate(self.score.prepare_keys(k), first)

    def weights(self, q: Tensor, k: Tensor, mask: Mask = EVERYTHING) -> Tensor:
        """Attention weights (B, N, T, S) of prepared queries and keys, each row summing to 1."""
        bias = self.positions.bias(q, k, self.score.scale)
        return _weights(self.score(q, k) if bias is None else self.score(q, k) + bias, mask)

    def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask = EVERYTHING) -> Tensor:
        """(B, N, T, D) mixtures of values for prepared queries and keys; the last query is at the last key."""
        dropout = self.dropout if self.training else 0.0
        if self.backend == "fast" and self.score.is_dot and not self.positions.mixes:
            if isinstance(mask, StepMask) and not self.biased and not dropout:
                return self._few(q, k, v, mask)
            return self._fast(q, k, v, mask, dropout)
        return self._reference(q, k, v, mask, dropout)

    def _reference(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, dropout: float) -> Tensor:
        weights = dropped(self.weights(q, k, mask), dropout)
        return weights @ v + self.positions.mix(weights)

    def _fast(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, dropout: float) -> Tensor:
        bias = self.positions.bias(q, k, self.score.scale)
        queries, keys = q.shape[2], k.shape[2]
        if dropout and q.device.type == "cpu":
            return self._dropped(q, k, v, mask, bias, dropout)
        # The kernel's own causal flag counts from the first key, ours from the last: equal only for a square.
        if mask.causal and mask.allowed is None and bias is None and queries == keys:
            return F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=dropout, scale=self.score.scale)
        allowed = None if queries == 1 and mask.allowed is None else mask.dense(queries, keys, q.device)
        if bias is not None and allowed is not None:
            allowed = bias.masked_fill(~allowed, float("-inf"))
        attn_mask = bias if allowed is None else allowed
        return F.scaled_dot_product_attention(q, k, v, attn_mask=attn_mask, dropout_p=dropout, scale=self.score.scale)

    def _few(self, q: Tensor, k: Tensor, v: Tensor, mask: StepMask) -> Tensor:
        """For the few queries of a step, plain products: the fused kernel prepares itself anew for every head."""
        shape, numbers = q.shape, mask.numbers(q)
        q, k, v = (tensor.flatten(0, 1) for tensor in (q, k, v))  # (B·N, K or S, D)
        scores = torch.baddbmm(numbers, q, k.transpose(1, 2), alpha=self.score.scale)
        return torch.bmm(scores.softmax(-1), v).view(shape)

    @property
    def biased(self) -> bool:
        """Whether something is added to the scores that depends on where queries and keys stand."""
        return type(self.positions).bias is not Positions.bias or self.positions.mixes

    def _dropped(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, bias: Tensor | None, dropout: float) -> Tensor:
        """torch's kernel knows no dropout on the CPU and falls back to one operation after another."""
        allowed = mask.dense(q.shape[2], k.shape[2], q.device)
        if allowed is not None:
            if not allowed.any(-1).all():
                return self._reference(q, k, v, mask, dropout)  # a query that sees nothing
            forbidden = torch.where(allowed, 0.0, float("-inf")).to(q.dtype)
            bias = forbidden if bias is None else bias + forbidden
        return dropped_attention(q, k, v, bias, self.score.scale, dropout)

    def extra_repr(self) -> str:
        """Shown when a model is printed."""
        return f"dropout={self.dropout}, backend={self.backend}"


def _weights(scores: Tensor, mask: Mask) -> Tensor:
    allowed = mask.dense(scores.shape[-2], scores.shape[-1], scores.device)
    if allowed is None:
        return scores.softmax(-1)
    weights = scores.masked_fill(~allowed, float("-inf")).softmax(-1)
    # A query that may see nothing at all takes nothing home, instead of NaN.
    return weights.masked_fill(~allowed.any(-1, keepdim=True), 0.0)


@contextmanager
def attention_backend(model: nn.Module, backend: Backend) -> Iterator[None]:
    """Within the block, every attention of `model` computes with `backend`."""
    modules = [module for module in model.modules() if isinstance(module, Attend)]
    before = [module.backend for module in modules]
    try:
        for module in modules:
            module.backend = backend
        yield
    finally:
        for module, previous in zip(modules, before, strict=True):
            module.backend = previous
