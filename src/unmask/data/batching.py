"""From encodings to batches of a bounded number of tokens."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from unmask.nn.batch import Batch
from unmask.nn.modes import OwnThreads
from unmask.text.encoding import Encoding

#: Enough rows to keep a CPU's matrix products busy, few enough to stay in its cache. See benchmarks/encoder.py.
TOKEN_BUDGET = 2048


def budget_of(model: nn.Module) -> int:
    """How many tokens a model is given at once."""
    own = (module.token_budget for module in model.modules() if isinstance(module, OwnThreads))
    return next(own, TOKEN_BUDGET)


def token_budget_batches(lengths: Sequence[int], budget: int = TOKEN_BUDGET) -> list[list[int]]:
    """Sequence numbers, shortest first, in batches of at most `budget` tokens; a longer sequence stands alone.

    Sorted by length, so that neighbours in a batch form rectangles without padding where attention needs them.
    """
    batches: list[list[int]] = []
    tokens = budget + 1
    for number in sorted(range(len(lengths)), key=lengths.__getitem__):
        if tokens + lengths[number] > budget:
            batches.append([])
            tokens = 0
        batches[-1].append(number)
        tokens += lengths[number]
    return batches


def collate(encodings: Sequence[Encoding]) -> Batch:
    """A ragged batch of encodings, in their order."""
    return Batch.of([encoding.ids for encoding in encodings], [encoding.segments for encoding in encodings])
