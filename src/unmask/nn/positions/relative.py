"""Schemes that act inside attention: rotary, ALiBi, T5 buckets, Shaw, Transformer-XL."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from unmask.nn.positions.absolute import sinusoids
from unmask.nn.positions.base import Positions, distances
from unmask.nn.table import vector_table


class RotaryPositions(Positions):
    """Queries and keys are turned by their position, so that q·k depends on their distance (Su et al. 2021).

    Dimension i is paired with i + D/2, as most published checkpoints do.
    """

    def __init__(self, head_size: int, base: float = 10000.0) -> None:
        super().__init__()
        self.head_size, self.base = head_size, base

    def rotate(self, x: Tensor, first: int) -> Tensor:
        """Each pair of dimensions turned by position · base^(-2i/D)."""
        length, half = x.shape[-2], self.head_size // 2
        index = torch.arange(half, device=x.device, dtype=torch.float32)
        frequencies = torch.exp(index * (-math.log(self.base) / half))
        where = torch.arange(first, first + length, device=x.device, dtype=torch.float32)
        angle = where[:, None] * frequencies
        sin, cos = angle.sin().to(x.dtype), angle.cos().to(x.dtype)
        left, right = x.chunk(2, dim=-1)
        return torch.cat([left * cos - right * sin, right * cos + left * sin], dim=-1)

    def extra_repr(self) -> str:
        """Shown when a model is printed."""
        return f"{self.head_size}, base={self.base}"


class AlibiPositions(Positions):
    """A penalty proportional to the distance, steeper in some heads than in others (Press et al. 2022)."""

    def __init__(self, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads

    def bias(self, q: Tensor, k: Tensor, scale: float) -> Tensor | None:
        """−slope · |distance|, the same whatever the tokens say."""
        away = distances(q.shape[2], k.shape[2], q.device).abs()
        slopes = alibi_slopes(self.num_heads).to(q.device)
        return (-slopes[:, None, None] * away).to(q.dtype)[None]


class BucketPositions(Positions):
    """One learned number a head and bucket of distances, near ones exact, far ones in logarithmic steps (T5)."""

    def __init__(self, num_heads: int, num_buckets: int, max_distance: int, *, causal: bool) -> None:
        super().__init__()
        self.num_buckets, self.max_distance, self.causal = num_buckets, max_distance, causal
        self.table = vector_table(num_buckets, num_heads)

    def bias(self, q: Tensor, k: Tensor, scale: float) -> Tensor | None:
        """The number of the bucket the distance falls in."""
        bucket = self.bucket(distances(q.shape[2], k.shape[2], q.device))
        found: Tensor = self.table(bucket)
        return found.permute(2, 0, 1)[None].to(q.dtype)

    def bucket(self, distance: Tensor) -> Tensor:
        """Bucket of key position minus query position."""
        buckets = self.num_buckets
        offset = torch.zeros_like(distance)
        if self.causal:
            away = (-distance).clamp(min=0)
        else:
            # Half of the buckets for keys before the query, half for those after it.
            buckets //= 2
            offset = (distance > 0).long() * buckets
            away = distance.abs()
        exact = buckets // 2
        ratio = torch.log(away.float().clamp(min=1) / exact) / math.log(self.max_distance / exact)
        far = exact + (ratio * (buckets - exact)).long()
        return offset + torch.where(away < exact, away, far.clamp(max=buckets - 1))


class ShawPositions(Positions):
    """Learned vectors for each clipped distance, added to keys and to values (Shaw et al. 2018).

    Shared by the heads, as in the paper.
    """

    mixes = True

    def __init__(self, head_size: int, max_distance: int) -> None:
        super().__init__()
        self.max_distance = max_distance
        self.keys = vector_table(2 * max_distance + 1, head_size)
        self.values = vector_table(2 * max_distance + 1, head_size)

    def bias(self, q: Tensor, k: Tensor, scale: float) -> Tensor | None:
        """q · a^K of the distance: the part that the relative keys add to the score."""
        relative = self.keys(self._index(q.shape[2], k.shape[2], q.device))
        return torch.einsum("bntd,tsd->bnts", q, relative) * scale

    def mix(self, weights: Tensor) -> Tensor | float:
        """The weighted a^V of the distances."""
        relative = self.values(self._index(weights.shape[2], weights.shape[3], weights.device))
        return torch.einsum("bnts,tsd->bntd", weights, relative)

    def _index(self, queries: int, keys: int, device: torch.device) -> Tensor:
        return distances(queries, keys, device).clamp(-self.max_distance, self.max_distance) + self.max_distance


class TransformerXLPositions(Positions):
    """Absolute positions rewritten relative to the query (Dai et al. 2019).

    score = (q + u)·k + (q + v)·W_r R(distance), with R the sinusoids, and u, v learned for each head.
    """

    def __init__(self, num_heads: int, head_size: int, hidden_size: int) -> None:
        super().__init__()
        self.num_heads, self.head_size, self.hidden_size = num_heads, head_size, hidden_size
        self.relative = nn.Linear(hidden_size, num_heads * head_size, bias=False)
        self.content_bias = nn.Parameter(torch.zeros(num_heads, head_size))
        self.position_bias = nn.Parameter(torch.zeros(num_heads, head_size))

    def initialise(self, generator: torch.Generator) -> None:
        """No head prefers any content or distance at first."""
        nn.init.zeros_(self.content_bias)
        nn.init.zeros_(self.position_bias)

    def bias(self, q: Tensor, k: Tensor, scale: float) -> Tensor | None:
        """u·k + (q + v)·r: what is missing when q·k is already there."""
        queries, keys = q.shape[2], k.shape[2]
        # Query minus key, every value that occurs: from the last query and first key down to the reverse.
        reach = torch.arange(keys - 1, -queries, -1)
        waves = sinusoids(reach, self.hidden_size).to(q)  # made on the CPU: not every device has double precision
        relative = self.relative(waves).view(-1, self.num_heads, self.head_size).permute(1, 2, 0)
        by_reach = (q + self.position_bias[:, None]) @ relative  # (B, N, T, reach)
        index = (keys - 1) + distances(queries, keys, q.device)
        position = by_reach.gather(-1, index.expand(*by_reach.shape[:2], queries, keys))
        content = torch.einsum("nd,bnsd->bns", self.content_bias, k)[:, :, None]
        return (content + position) * scale


def alibi_slopes(num_heads: int) -> Tensor:
    """(N,) the paper's geometric slopes; between powers of two, every second slope of the next power is added."""
    power = 2 ** math.floor(math.log2(num_heads))
    slopes = [2 ** (-8 * (i + 1) / power) for i in range(power)]
    extra = [2 ** (-8 * (i + 1) / (2 * power)) for i in range(0, 2 * (num_heads - power), 2)]
    return torch.tensor(slopes + extra)
