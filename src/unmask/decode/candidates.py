"""Which tokens may come next, and which of them are best."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from unmask.errors import TaskError

#: Vocabularies are looked through in pieces of so many: a maximum of each piece is quick, and few pieces can win.
_PIECE = 64
#: Between these, exponentials of a row's logits can be summed as they are; beyond them its greatest is taken off first.
_LEAST, _GREATEST = -40.0, 70.0

_NONE = float("-inf")

NOT_A_NUMBER = (
    "the model's output is not a number (NaN), so there is no best token; "
    "its training probably went wrong: use an earlier checkpoint"
)


def normaliser(logits: Tensor) -> Tensor:
    """(R, V) → (R,) in double precision: what is taken off each logit to make it a log probability."""
    greatest = logits.amax(-1)
    found = torch.exp(logits).sum(-1).double().log()
    # Row by row, so that no row's numbers depend on another's.
    unsafe = ~((greatest > _LEAST) & (greatest < _GREATEST))
    if unsafe.any():
        if not greatest[unsafe].isfinite().all():
            raise TaskError(NOT_A_NUMBER)
        found[unsafe] = logits[unsafe].double().logsumexp(-1)
    return found


@dataclass(frozen=True)
class Beginnings:
    """What is under way, a row each, and what the model says of it."""

    logits: Tensor  # (R, V) of the next token, -inf where it may not come
    off: Tensor  # (R,) what makes a log probability of them
    scores: Tensor  # (R,) float64 log probability so far
    slots: Tensor  # (R,) its place among B · K

    def totals(self, logits: Tensor, rows: Tensor) -> Tensor:
        """Log probabilities (…) of some continuations with these logits (…), which belong to these rows (…)."""
        gained = (logits.double() - self.off[rows]).clamp_(max=0.0)  # whatever the last bit says
        return gained.add_(self.scores[rows])

    def best(self, shape: tuple[int, int], count: int) -> tuple[Tensor, Tensor, Tensor]:
        """Of B sentences with K places each the best continuations (B, count): their log probabilities, the places
        they go on from, and their tokens. Best first; equal ones by place, then by id.
        """
        (batch, width), (rows, size) = shape, self.logits.shape
        maxima = _maxima(self.logits)
        pieces = maxima.shape[1]
        every = torch.arange(rows, device=maxima.device)
        table = self.scores.new_full((batch * width, pieces), _NONE)
        table[self.slots] = self.totals(maxima, every[:, None])
        table = table.view(batch, width * pieces)
        # Any one among the best stands in a piece whose maximum is among the best maxima.
        chosen = table.topk(min(count + 1, table.shape[1]), sorted=False).indices.sort(dim=-1).values
        row_of = every.new_zeros(batch * width)
        row_of[self.slots] = every
        first = torch.arange(0, batch * width, width, device=maxima.device)[:, None]
        row = row_of[first + chosen // pieces][:, :, None]
        ids = (chosen % pieces * _PIECE)[:, :, None] + torch.arange(_PIECE, device=maxima.device)
        found = self.totals(self.logits.take(row * size + ids.clamp(max=size - 1)), row)
        found = found.masked_fill_((ids >= size) | (table.gather(1, chosen) == _NONE)[:, :, None], _NONE).flatten(1)
        totals, places = top(found, min(count + 1, found.shape[1]))
        parents = (chosen // pieces).gather(1, places // _PIECE)
        tokens = ids.flatten(1).gather(1, places).clamp_(max=size - 1)
        if totals.shape[1] > count:
            unsure = (totals[:, count - 1] == totals[:, count]) & (totals[:, count] > _NONE)
            for number in unsure.nonzero()[:, 0].tolist():  # some that equal the last may be in other pieces
                totals[number, :count], parents[number, :count], tokens[number, :count] = self._sorted(
                    number, width, count
                )
        return totals[:, :count], parents[:, :count], tokens[:, :count]

    def _sorted(self, number: int, width: int, count: int) -> tuple[Tensor, Tensor, Tensor]:
        """The same for one sentence, by sorting all there is."""
        rows = (self.slots // width == number).nonzero()[:, 0]
        totals = self.totals(self.logits[rows], rows[:, None])
        found, places = totals.flatten().sort(descending=True, stable=True)
        size = self.logits.shape[1]
        return found[:count], (self.slots[rows] % width)[places[:count] // size], places[:count] % size


def _maxima(values: Tensor) -> Tensor:
    """(R, V) → the greatest of each piece, (R, V / 64 rounded up)."""
    pieces = values.shape[1] // _PIECE
    whole = values[:, : pieces * _PIECE].unflatten(1, (pieces, _PIECE)).amax(-1)
    rest = values[:, pieces * _PIECE :]
    return torch.cat([whole, rest.amax(-1, keepdim=True)], dim=1) if rest.shape[1] else whole


def top(values: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The best of each row (R, V) → values and ids (R, count), best first, equal ones by the lower id."""
    count = min(count, values.shape[1])
    best, ids = values.topk(min(count + 1, values.shape[1]))
    ids, order = ids.sort(dim=-1)
    best, order = best.gather(1, order).sort(dim=-1, descending=True, stable=True)
    ids = ids.gather(1, order)
    if best.shape[1] > count:
        # Where the last that is in equals the first that is out, nobody knows which of their equals torch has chosen.
        unsure = (best[:, count - 1] == best[:, count]) & (best[:, count] > _NONE)
        if unsure.any():
            sorted_values, sorted_ids = values[unsure].sort(dim=-1, descending=True, stable=True)
            best[unsure, :count], ids[unsure, :count] = sorted_values[:, :count], sorted_ids[:, :count]
    return best[:, :count], ids[:, :count]


def repeated(ids: Sequence[int], size: int) -> set[int]:
    """The tokens that would make the last `size` tokens a repetition of earlier ones."""
    if len(ids) < size:
        return set()
    last = tuple(ids[len(ids) - size + 1 :])
    return {
        ids[place + size - 1] for place in range(len(ids) - size + 1) if tuple(ids[place : place + size - 1]) == last
    }
