"""Which tokens may come next, and which of them are best."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from unmask.errors import TaskError

#: Vocabularies are looked through in pieces of so many: a maximum of each piece is quick, and few pieces can win.
_PIECE = 64


def top(values: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The best of each row (R, V) → values and ids (R, count), best first, equal ones by the lower id."""
    count = min(count, values.shape[1])
    if count == 1:
        best, ids = values.max(-1, keepdim=True)  # of equal ones torch gives the first
        return _numbers(best), ids
    best, ids = _some_top(values, min(count + 1, values.shape[1]))
    _numbers(best)
    ids, order = ids.sort(-1)
    best, order = best.gather(1, order).sort(dim=-1, descending=True, stable=True)
    ids = ids.gather(1, order)
    if best.shape[1] > count:
        # Where the last that is in equals the first that is out, nobody knows which of their equals torch has chosen.
        unsure = (best[:, count - 1] == best[:, count]) & (best[:, count] > float("-inf"))
        if unsure.any():
            sorted_values, sorted_ids = values[unsure].sort(dim=-1, descending=True, stable=True)
            best[unsure, :count], ids[unsure, :count] = sorted_values[:, :count], sorted_ids[:, :count]
    return best[:, :count], ids[:, :count]


def _some_top(values: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """What torch.topk gives, several times quicker for large vocabularies."""
    size = values.shape[1]
    pieces = size // _PIECE
    if pieces < 4 * count:
        return values.topk(count)
    whole = values[:, : pieces * _PIECE].unflatten(1, (pieces, _PIECE))
    # Any one among the best stands in a piece whose maximum is among the best maxima.
    chosen = whole.amax(-1).topk(count).indices  # (R, count)
    inside = whole.gather(1, chosen[:, :, None].expand(-1, -1, _PIECE)).flatten(1)
    rest = values[:, pieces * _PIECE :]
    best, places = torch.cat([inside, rest], dim=1).topk(count)
    piece = chosen.gather(1, (places // _PIECE).clamp(max=count - 1))
    ids = torch.where(
        places < inside.shape[1], piece * _PIECE + places % _PIECE, places - inside.shape[1] + size - rest.shape[1]
    )
    return best, ids


def _numbers(best: Tensor) -> Tensor:
    """What was found, if it is numbers at all; NaN counts as the greatest, so it cannot hide."""
    if best.isnan().any():
        raise TaskError(
            "the model's output is not a number (NaN), so there is no best token; "
            "its training probably went wrong: use an earlier checkpoint"
        )
    return best


def repeated(ids: Sequence[int], size: int) -> set[int]:
    """The tokens that would make the last `size` tokens a repetition of earlier ones."""
    if len(ids) < size:
        return set()
    last = tuple(ids[len(ids) - size + 1 :])
    return {
        ids[place + size - 1] for place in range(len(ids) - size + 1) if tuple(ids[place : place + size - 1]) == last
    }
