"""Pairs of sentences as numbered batches, for a model that reads one side and writes the other."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from unmask.nn.batch import Batch
from unmask.nn.layout import Layout

Ids = npt.NDArray[np.int32]

#: Pairs are sorted by length within stretches of so many batches: alike enough to be quick, mixed enough to be random.
_STRETCH = 64


@dataclass(frozen=True)
class TranslationBatch:
    """Sources with an end token, targets with a start token, and what follows each target row."""

    source: Batch
    target: Batch
    labels: Tensor  # (R,) of the target's rows

    @property
    def num_tokens(self) -> int:
        """Tokens to be learned, the end tokens too."""
        return len(self.labels)

    def to(self, device: torch.device) -> TranslationBatch:
        """The same on another device."""
        return TranslationBatch(self.source.to(device), self.target.to(device), self.labels.to(device))


class Sequences:
    """Many lists of ids in one array, without special tokens."""

    def __init__(self, lists: Iterable[Sequence[int] | Ids]) -> None:
        bounds, parts = [0], []
        for ids in lists:
            parts.append(np.asarray(ids, dtype=np.int32))
            bounds.append(bounds[-1] + len(ids))
        self.ids: Ids = np.concatenate(parts) if parts else np.empty(0, dtype=np.int32)
        self.bounds = np.array(bounds, dtype=np.int64)

    def __len__(self) -> int:
        return len(self.bounds) - 1

    def __getitem__(self, number: int) -> Ids:
        return self.ids[self.bounds[number] : self.bounds[number + 1]]

    @property
    def lengths(self) -> npt.NDArray[np.int64]:
        """How many ids each has."""
        return np.diff(self.bounds)


@dataclass(frozen=True)
class Frame:
    """The special tokens around a sentence."""

    start: int  # before the first target token
    end: int  # after the last target token
    source_end: int  # after the last source token


class Added(NamedTuple):
    """What is put to the beginning or the end of a pair's sides."""

    first: bool
    source: Ids
    target: Ids


@dataclass(frozen=True)
class Kept:
    """An unknown character, which stands at the same end of both sides in a share of the pairs."""

    share: float
    source: Sequence[int]
    target: Sequence[int]

    def drawn(self, count: int, rng: np.random.Generator) -> dict[int, Added]:
        """Which of so many pairs get one, and where."""
        chosen = np.flatnonzero(rng.random(count) < self.share).tolist()
        sides = np.asarray(self.source, dtype=np.int32), np.asarray(self.target, dtype=np.int32)
        return {place: Added(bool(rng.integers(2)), *sides) for place in chosen}


@dataclass(frozen=True)
class EncodedPairs:
    """Sources and their translations as ids."""

    sources: Sequences
    targets: Sequences
    frame: Frame

    def __len__(self) -> int:
        return len(self.sources)

    def batch(self, numbers: Sequence[int], added: Mapping[int, Added] | None = None) -> TranslationBatch:
        """Some pairs, in the order given; `added` says what is put to the ends of some, by their place."""
        frame = self.frame
        sources = [self.sources[number] for number in numbers]
        targets = [self.targets[number] for number in numbers]
        for place, (first, source, target) in (added or {}).items():
            sources[place] = _joined(sources[place], source, first)
            targets[place] = _joined(targets[place], target, first)
        return TranslationBatch(
            _batch([*((ids, frame.source_end) for ids in sources)]),
            _batch([*((frame.start, ids) for ids in targets)]),
            _batch([*((ids, frame.end) for ids in targets)]).ids,
        )


def _joined(ids: Ids, more: Ids, first: bool) -> Ids:
    return np.concatenate([more, ids] if first else [ids, more])


def _batch(parts: Sequence[tuple[Ids | int, Ids | int]]) -> Batch:
    """Sequences of ids, each with a special token at one of its ends."""
    lengths = [sum(1 if isinstance(part, int) else len(part) for part in both) for both in parts]
    flat = np.concatenate([np.atleast_1d(part) for both in parts for part in both]).astype(np.int64)
    ids = torch.from_numpy(flat)
    return Batch(ids, torch.zeros_like(ids), Layout.ragged(lengths))


class PairBatches:
    """Numbered batches of at most `tokens` tokens on their longer side, without end: epoch after epoch.

    In an epoch every pair comes once. Neighbours are of like length, which keeps attention's rectangles full; which
    pairs are neighbours, and the order of the batches, is random, and a function of the seed and the epoch alone.
    With `kept`, some pairs get an unknown character on both sides.
    """

    def __init__(self, pairs: EncodedPairs, tokens: int, seed: int = 0, kept: Kept | None = None) -> None:
        self.pairs, self.tokens, self.seed, self.kept = pairs, tokens, seed, kept
        self._sizes = np.maximum(pairs.sources.lengths, pairs.targets.lengths) + 1
        self._before = [0]  # batches before each epoch, as far as they were counted
        self._planned: tuple[int, list[npt.NDArray[np.int64]]] | None = None

    def __getitem__(self, number: int) -> TranslationBatch:
        """The batch with this number, the same whenever and by whomever it is asked for."""
        numbers = self.numbers(number).tolist()
        if self.kept is None:
            return self.pairs.batch(numbers)
        rng = np.random.default_rng([self.seed % 2**63, number, 1])
        return self.pairs.batch(numbers, self.kept.drawn(len(numbers), rng))

    def numbers(self, number: int) -> npt.NDArray[np.int64]:
        """Which pairs a batch is made of, sorted by length."""
        while self._before[-1] <= number:
            self._before.append(self._before[-1] + len(self._plan(len(self._before) - 1)))
        epoch = bisect_right(self._before, number) - 1
        return self._plan(epoch)[number - self._before[epoch]]

    def batches_of_epoch(self, epoch: int = 0) -> int:
        """How many batches an epoch has."""
        return len(self._plan(epoch))

    def _plan(self, epoch: int) -> list[npt.NDArray[np.int64]]:
        if self._planned is None or self._planned[0] != epoch:
            rng = np.random.default_rng([self.seed % 2**63, epoch])
            order = rng.permutation(len(self.pairs))
            batches = [batch for some in self._stretches(order) for batch in self._cut(some)]
            self._planned = (epoch, [batches[place] for place in rng.permutation(len(batches))])
        return self._planned[1]

    def _stretches(self, order: npt.NDArray[np.int64]) -> list[npt.NDArray[np.int64]]:
        """The pairs in parts, each sorted by the length of target and source."""
        count = max(1, round(int(self._sizes.sum()) / (self.tokens * _STRETCH)))
        sources, targets = self.pairs.sources.lengths, self.pairs.targets.lengths
        return [part[np.lexsort((sources[part], targets[part]))] for part in np.array_split(order, count)]

    def _cut(self, part: npt.NDArray[np.int64]) -> list[npt.NDArray[np.int64]]:
        batches, first, held = [], 0, 0
        for place, size in enumerate(self._sizes[part].tolist()):
            if held + size > self.tokens and place > first:
                batches.append(part[first:place])
                first, held = place, 0
            held += size
        batches.append(part[first:])
        return batches
