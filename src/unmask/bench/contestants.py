"""Who is measured: each reads tokenized texts and gives the vector of every token."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch

from unmask.bundle import Bundle, load
from unmask.data.batching import budget_of, token_budget_batches
from unmask.nn.batch import Batch
from unmask.nn.modes import evaluating

Rows = npt.NDArray[np.float32]
Ids = Sequence[Sequence[int]]


class Contestant(Protocol):
    """Somebody who encodes."""

    name: str

    @property
    def note(self) -> str:
        """How it was set up."""

    def vectors(self, ids: Ids) -> list[Rows]:
        """(tokens, hidden) for each text, in their order."""


class Ours:
    """Unmask with one of its engines."""

    def __init__(self, folder: str, engine: str) -> None:
        self.bundle: Bundle = load(folder, engine=engine)  # type: ignore[arg-type]
        self.name = f"unmask {self.bundle.engine.engine}"
        self.note = self.bundle.engine.why or "ragged batches"

    @torch.inference_mode()
    def vectors(self, ids: Ids) -> list[Rows]:
        """By batches of a number of tokens, without padding."""
        encoder = self.bundle.encoder
        found: dict[int, Rows] = {}
        with evaluating(encoder):
            for numbers in token_budget_batches([len(one) for one in ids], budget_of(encoder)):
                encoded = encoder(Batch.of([ids[number] for number in numbers]))
                rows = encoded.layout.split(encoded.sequence)
                found.update(zip(numbers, (row.numpy() for row in rows), strict=True))
        return [found[number] for number in range(len(ids))]


#: (B, S) ids and mask → (B, S, H).
Padded = Callable[[npt.NDArray[np.int64], npt.NDArray[np.int64]], Rows]


class Peer:
    """Somebody who pads: texts sorted by length, in batches of a fixed number."""

    def __init__(self, name: str, run: Padded, batch_size: int = 32) -> None:
        self.name, self.run, self.batch_size = name, run, batch_size

    @property
    def note(self) -> str:
        """How it was set up."""
        return f"sorted, batches of {self.batch_size}"

    def vectors(self, ids: Ids) -> list[Rows]:
        """By batches of neighbours in length."""
        order = sorted(range(len(ids)), key=lambda number: len(ids[number]))
        found: dict[int, Rows] = {}
        for start in range(0, len(order), self.batch_size):
            numbers = order[start : start + self.batch_size]
            longest = len(ids[numbers[-1]])
            given, mask = (np.zeros((len(numbers), longest), dtype=np.int64) for _ in range(2))
            for row, number in enumerate(numbers):
                given[row, : len(ids[number])], mask[row, : len(ids[number])] = ids[number], 1
            vectors = self.run(given, mask)
            found.update((number, vectors[row, : len(ids[number])]) for row, number in enumerate(numbers))
        return [found[number] for number in range(len(ids))]
