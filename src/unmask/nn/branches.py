"""The past of a decoder's steps as a tree.

Of each source, K targets are under way and change places at every step: some go on twice, others are given up. Their
keys and values are not moved for that. A step writes K cells, one a target, behind all earlier ones, and a table says
which cells are a target's own past; only the table is reordered. Queries of one source look at the cells of all its
targets, those of the others masked, which is one product where there would be K.

Axes: B sources, K targets of each, R ≤ B·K rows that are computed, C cells, N heads, D head size.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

from unmask.nn.masks import Mask

#: Keys are looked at in whole vector registers. Masked ones in them add exact zeros, so that a sentence's numbers do
#: not depend on how many keys the others of its batch have.
REGISTER = 16
#: After so many steps, cells in nobody's past are thrown away. Counted in steps, whatever is in the batch.
_STEPS_BETWEEN = 16


@dataclass(frozen=True)
class StepMask(Mask):
    """What the few queries of a step may see, each of them something: also as numbers to add to the scores."""

    _numbers: dict[tuple[int, int, torch.dtype], Tensor] = field(default_factory=dict, compare=False, repr=False)

    def numbers(self, q: Tensor) -> Tensor:
        """For queries (B, N, K, D), (B·N, K, S): 0 for what may be seen and -inf for the rest; made once for all."""
        assert self.allowed is not None  # a sentence must not be computed otherwise where it has no masked keys
        kind = (q.shape[1], q.shape[2], q.dtype)
        if kind not in self._numbers:
            numbers = q.new_zeros(*q.shape[:3], self.allowed.shape[-1])
            self._numbers[kind] = numbers.masked_fill_(~self.allowed, float("-inf")).flatten(0, 1)
        return self._numbers[kind]


@dataclass
class Cells:
    """Keys and values of one layer's steps; those not written yet are zero.

    Keys lie with their cells side by side, as products of few queries with them like it: three times as quick.
    """

    keys: Tensor  # (B, N, D, capacity)
    values: Tensor  # (B, N, capacity, D)
    used: int = 0

    @classmethod
    def empty(cls, like: Tensor, cells: int) -> Cells:
        """Room for so many, for keys (B, N, ·, D) like these."""
        sources, heads, _, size = like.shape
        return cls(like.new_zeros(sources, heads, size, cells), like.new_zeros(sources, heads, cells, size))

    def written(self, keys: Tensor, values: Tensor, first: int) -> Cells:
        """With K more cells (B, N, K, D) from number `first` on. Who holds fewer of them sees no difference."""
        end, cells = first + keys.shape[2], self
        # Somebody who went on from the same past may have written there already.
        if self.used != first or end > self.values.shape[2] or keys.requires_grad:
            cells = Cells.empty(keys, whole_registers(first + _STEPS_BETWEEN * keys.shape[2]))
            cells.keys[:, :, :, :first] = self.keys[:, :, :, :first]
            cells.values[:, :, :first] = self.values[:, :, :first]
        cells.keys[:, :, :, first:end] = keys.transpose(2, 3)
        cells.values[:, :, first:end] = values
        cells.used = end
        return cells

    def first(self, count: int) -> tuple[Tensor, Tensor]:
        """The first keys and values, (B, N, count, D) each, as views."""
        return self.keys[:, :, :, :count].transpose(2, 3), self.values[:, :, :count]

    def select(self, sources: Tensor) -> Cells:
        """Those of some sources, in the order given."""
        return Cells(self.keys.index_select(0, sources), self.values.index_select(0, sources), self.used)

    def gather(self, places: Tensor) -> Cells:
        """Of each source the cells at its places (B, C'), in the order given."""
        _, heads, size, _ = self.keys.shape
        keys = self.keys.gather(3, places[:, None, None].expand(-1, heads, size, -1))
        values = self.values.gather(2, places[:, None, :, None].expand(-1, heads, -1, size))
        return Cells(keys, values, places.shape[1])


@dataclass(frozen=True)
class Tree:
    """Which cells are the past of which target."""

    seen: Tensor  # (B, K, C) True for a target's own past
    steps: int = 0

    @classmethod
    def start(cls, sources: int, device: torch.device) -> Tree:
        """One target a source, none of them begun."""
        return cls(torch.empty(sources, 1, 0, dtype=torch.bool, device=device))

    def grown(self) -> Tree:
        """One step later: each target sees a cell of its own too."""
        batch, width, _ = self.seen.shape
        own = torch.eye(width, dtype=torch.bool, device=self.seen.device).expand(batch, -1, -1)
        return Tree(torch.cat([self.seen, own], dim=2), self.steps + 1)

    def mask(self) -> StepMask:
        """The same for queries (B, N, K, D) and whole registers of keys."""
        cells = self.seen.shape[2]
        return StepMask(F.pad(self.seen, (0, whole_registers(cells) - cells))[:, None])

    def reorder(self, rows: Tensor, sources: int) -> Tree:
        """Other targets: each row goes on from a row (by its number until now) of the same source."""
        return Tree(self.seen.flatten(0, 1).index_select(0, rows).unflatten(0, (sources, -1)), self.steps)

    def packed(self) -> tuple[Tree, Tensor] | None:
        """Now and then: a tree of the cells that are somebody's past, and their places until now (B, C')."""
        if self.seen.shape[1] == 1 or not self.steps or self.steps % _STEPS_BETWEEN:
            return None
        used = self.seen.any(1)
        count = whole_registers(int(used.sum(-1).max()))
        spare = F.pad(used, (0, max(0, count - used.shape[1])))  # whole registers, even where there are fewer cells
        places = spare.byte().sort(dim=-1, descending=True, stable=True).indices[:, :count]
        places = places.clamp(max=used.shape[1] - 1)
        there = torch.arange(count, device=used.device) < used.sum(-1, keepdim=True)
        seen = self.seen.gather(2, places[:, None].expand(-1, self.seen.shape[1], -1)) & there[:, None]
        return Tree(seen, self.steps), places


@dataclass(frozen=True)
class StepPlan:
    """One step for all layers: which rows are computed, where they stand, and what they may see."""

    shape: tuple[int, int]  # B, K
    position: int
    cells: int
    own: StepMask
    sources: Mask
    rows: Tensor | None = None  # (R,) the targets that are computed; None: all
    places: Tensor | None = None  # (B·K,) the row of each target, any one where it is not computed

    @classmethod
    def of(cls, tree: Tree, sources: Mask, rows: Tensor | None) -> StepPlan:
        """The step that made the tree what it is."""
        batch, width, cells = tree.seen.shape
        places = None
        if rows is not None:
            places = rows.new_zeros(batch * width)
            places[rows] = torch.arange(len(rows), device=rows.device)
        return cls((batch, width), tree.steps - 1, cells, tree.mask(), sources, rows, places)

    @property
    def first(self) -> int:
        """The number of the first cell that this step writes."""
        return self.cells - self.shape[1]

    def rectangle(self, x: Tensor) -> Tensor:
        """Rows (R, …) → all targets (B, K, …)."""
        return (x if self.places is None else x.index_select(0, self.places)).unflatten(0, self.shape)

    def flat(self, x: Tensor) -> Tensor:
        """All targets (B, K, …) → rows (R, …)."""
        x = x.flatten(0, 1)
        return x if self.rows is None else x.index_select(0, self.rows)


def whole_registers(count: int) -> int:
    """At least so many, rounded up."""
    return -(-count // REGISTER) * REGISTER
