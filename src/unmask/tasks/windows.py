"""Texts in windows through a model, by token budget and in any number; answers come back in order."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from unmask.data.batching import budget_of, token_budget_batches
from unmask.longtext.encoding import LongEncoding
from unmask.models.bert import Bert, Encoded, device_of
from unmask.nn.batch import Batch
from unmask.nn.layout import Layout
from unmask.nn.modes import evaluating

#: Texts, and characters, that are tokenized and sorted by length together.
CHUNK_TEXTS = 2048
CHUNK_CHARACTERS = 4_000_000

Ids = npt.NDArray[np.int32]
Answer = TypeVar("Answer")
Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class Ready:
    """One window, ready for a batch: its ids, and where its second text begins (0: there is none)."""

    ids: Ids
    second: int

    @classmethod
    def all_of(cls, encoding: LongEncoding) -> tuple[Ready, ...]:
        """The windows of a text."""
        made = []
        for window in encoding.windows:
            segments = window.segments
            made.append(cls(np.array(window.ids, dtype=np.int32), segments.index(1) if 1 in segments else 0))
        return tuple(made)

    def __len__(self) -> int:
        return len(self.ids)


def batch_of(windows: Sequence[Ready]) -> Batch:
    """A ragged batch of windows."""
    ids = torch.from_numpy(np.concatenate([window.ids for window in windows]).astype(np.int64))
    segments = np.zeros(len(ids), dtype=np.int64)
    start = 0
    for window in windows:
        if window.second:
            segments[start + window.second : start + len(window)] = 1
        start += len(window)
    return Batch(ids, torch.from_numpy(segments), Layout.ragged(len(window) for window in windows))


@torch.inference_mode()
def run_windows(
    model: Bert,
    windows: Sequence[Ready],
    read: Callable[[Encoded], Sequence[Answer]],
    *,
    firsts: bool = False,
    budget: int | None = None,
) -> list[Answer]:
    """What `read` makes of each window, in their order, whatever batches they were read in.

    With `firsts` only the first row of each window is computed in the last block.
    """
    answers: dict[int, Answer] = {}
    device = device_of(model)
    with evaluating(model):
        for numbers in token_budget_batches([len(window) for window in windows], budget or budget_of(model)):
            batch = batch_of([windows[number] for number in numbers]).to(device)
            asked = batch.layout.first_rows(device) if firsts else None
            answers.update(zip(numbers, read(model(batch, asked)), strict=True))
    return [answers[number] for number in range(len(windows))]


def by_text(found: Sequence[Answer], counts: Iterable[int]) -> Iterator[Sequence[Answer]]:
    """What was found for each window → for each text, which has so many windows."""
    start = 0
    for count in counts:
        yield found[start : start + count]
        start += count


def chunked(items: Iterable[Item], size: Callable[[Item], int]) -> Iterator[list[Item]]:
    """Items in lists of a bounded number and of a bounded size together, so that memory does not grow with them."""
    chunk: list[Item] = []
    total = 0
    for item in items:
        chunk.append(item)
        total += size(item)
        if len(chunk) == CHUNK_TEXTS or total >= CHUNK_CHARACTERS:
            yield chunk
            chunk, total = [], 0
    if chunk:
        yield chunk


class Epochs(Generic[Item]):
    """Micro-batches of a list of examples: every epoch holds each of them once, in an order of its own.

    An epoch has as many updates as whole batches fit into it. What is left over makes some updates larger by one
    example instead of the last one much smaller, so none counts for more than it is worth.
    """

    def __init__(
        self,
        items: Sequence[Item],
        collate: Callable[[Sequence[Item]], object],
        batch_size: int,
        accumulate: int = 1,
        seed: int = 0,
    ) -> None:
        self.items, self.collate = items, collate
        self.accumulate, self.seed = accumulate, seed
        self.updates_of_epoch = max(1, len(items) // batch_size)
        self._order: tuple[int, npt.NDArray[np.int64]] | None = None

    def __getitem__(self, number: int) -> object:
        """Micro-batch `number` of the run."""
        update, part = divmod(number, self.accumulate)
        epoch, place = divmod(update, self.updates_of_epoch)
        chosen = _share(_share(self._shuffled(epoch), place, self.updates_of_epoch), part, self.accumulate)
        return self.collate([self.items[index] for index in chosen])

    def _shuffled(self, epoch: int) -> npt.NDArray[np.int64]:
        if self._order is None or self._order[0] != epoch:
            self._order = (epoch, np.random.default_rng([self.seed % 2**63, epoch]).permutation(len(self.items)))
        return self._order[1]


def _share(whole: npt.NDArray[np.int64], place: int, parts: int) -> npt.NDArray[np.int64]:
    """One of `parts` shares whose sizes differ by at most one."""
    return whole[place * len(whole) // parts : (place + 1) * len(whole) // parts]


def with_marks(text: str, end: int) -> int:
    """Where a stretch that ends at `end` ends with the marks of its last character, as accents, that have no token."""
    while end < len(text) and unicodedata.category(text[end])[0] == "M":
        end += 1
    return end


class InParts(Generic[Item]):
    """Of an evaluator: texts in parts of one forward pass each, for engines whose processes must do equally many."""

    lower_is_better = False

    def __init__(self, texts: Sequence[Item]) -> None:
        lengths = [sum(map(len, windows_in(text))) for text in texts]
        self.parts = [[texts[number] for number in numbers] for numbers in token_budget_batches(lengths)]

    def __len__(self) -> int:
        return len(self.parts)

    def remarks(self, model: nn.Module) -> list[str]:
        """None: the report shows examples."""
        return []


def windows_in(item: Any) -> tuple[Ready, ...]:
    """The windows of an example, whatever its task."""
    return (item.ready,) if hasattr(item, "ready") else item.windows


def rows_of(encoded: Encoded, rows: Tensor) -> list[Tensor]:
    """(R, …) → one tensor a window."""
    return encoded.layout.split(rows)
