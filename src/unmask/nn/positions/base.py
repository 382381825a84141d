"""The hooks at which a positional scheme can act.

    embed   on the token embeddings, before the first block          learned, sinusoidal, complex-valued
    rotate  on queries and keys, before they are compared            rotary
    bias    on the scores, after queries and keys were compared      ALiBi, T5 buckets, Transformer-XL, Shaw's keys
    mix     on the output, with the attention weights                Shaw's values

Each does nothing by default, a scheme overrides what it needs, and callers call them all without asking.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Positions(nn.Module):
    """A positional scheme; this one does nothing at any hook."""

    #: Sequences longer than this cannot be represented; None where there is no such limit.
    limit: int | None = None
    #: True when `mix` does something, which needs the attention weights themselves.
    mixes = False

    def embed(self, x: Tensor, ids: Tensor, positions: Tensor, length: int) -> Tensor:
        """Embeddings (R, H) of tokens `ids` (R,) that stand at `positions` (R,), all of them below `length`."""
        return x

    def rotate(self, x: Tensor, first: int) -> Tensor:
        """Queries or keys (B, N, T, D), the first of which stands at position `first`."""
        return x

    def bias(self, q: Tensor, k: Tensor, scale: float) -> Tensor | None:
        """What is added to the scores: broadcastable to (B, N, T, S). The last query stands at the last key."""
        return None

    def mix(self, weights: Tensor) -> Tensor | float:
        """What is added to the output (B, N, T, D), given the weights (B, N, T, S)."""
        return 0.0


class NoPositions(Positions):
    """Order unknown: a sentence is a bag of tokens."""


def distances(queries: int, keys: int, device: torch.device) -> Tensor:
    """(T, S) key position minus query position, the last query standing at the last key."""
    key = torch.arange(keys, device=device)
    query = torch.arange(keys - queries, keys, device=device)
    return key[None, :] - query[:, None]
