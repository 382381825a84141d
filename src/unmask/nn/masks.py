"""Who may attend to whom. True means *may attend*."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Mask:
    """A condition on (query, key) pairs.

    `allowed` broadcasts to (B, N, T, S). `causal` adds that a query sees no key after itself; the last query
    stands at the last key, so T < S describes decoding with the earlier keys kept.
    """

    allowed: Tensor | None = None
    causal: bool = False

    def __post_init__(self) -> None:
        if self.allowed is not None and (self.allowed.dim() < 2 or self.allowed.dtype != torch.bool):
            raise ValueError(f"a mask is boolean, at least (T, S); given {self.allowed.dtype} {self.allowed.shape}")

    def __and__(self, other: Mask) -> Mask:
        """Allowed by both."""
        if self.allowed is None or other.allowed is None:
            allowed = other.allowed if self.allowed is None else self.allowed
        else:
            allowed = self.allowed & other.allowed
        return Mask(allowed, self.causal or other.causal)

    def dense(self, queries: int, keys: int, device: torch.device) -> Tensor | None:
        """The condition as one tensor, broadcastable to (B, N, T, S); None when everything is allowed."""
        if not self.causal:
            return self.allowed
        triangle = torch.ones(queries, keys, dtype=torch.bool, device=device).tril(keys - queries)
        return triangle if self.allowed is None else self.allowed & triangle


EVERYTHING = Mask()
CAUSAL = Mask(causal=True)


def padding_mask(lengths: Sequence[int] | Tensor, width: int | None = None) -> Mask:
    """Keys up to each sequence's length, for a rectangle of `width` keys (the longest by default)."""
    lengths = torch.as_tensor(lengths)
    width = int(lengths.max()) if width is None else width
    return Mask((torch.arange(width, device=lengths.device) < lengths[:, None])[:, None, None, :])


def packed_mask(documents: Tensor) -> Mask:
    """(B, S) document numbers → each token sees only its own document, for several documents in one row."""
    return Mask((documents[:, :, None] == documents[:, None, :])[:, None])
