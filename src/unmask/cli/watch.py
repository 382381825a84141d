"""What can be told of embedding while it runs and after it: how far it is, and what the model could not read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import nn

from unmask.cli.console import NO_TEXTS
from unmask.nn.batch import Batch
from unmask.text import Tokenizer

#: Above this share, unknown tokens are worth a remark.
_WORTH_SAYING = 0.01


class Tally:
    """Counts texts as they are read and tokens as they go through the encoder, so that nothing is tokenized twice."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.texts = self.blank = 0  # read so far
        self.done = 0  # texts that went through the encoder; a long one counts with its first window
        self.tokens = self.unknown = 0
        self._unknown_id = -1 if tokenizer.unk_id is None else tokenizer.unk_id
        self._special = torch.tensor(sorted(tokenizer.special_ids - {self._unknown_id}))

    def read(self, texts: Iterable[str]) -> Iterator[str]:
        """The same texts, counted."""
        for text in texts:
            self.texts += 1
            self.blank += not text.strip()
            yield text

    def add(self, batch: Batch) -> None:
        """Count what was encoded."""
        ids = batch.ids.cpu()
        self.done = min(self.done + len(batch), self.texts)
        self.tokens += len(ids) - int(torch.isin(ids, self._special).sum())
        self.unknown += int((ids == self._unknown_id).sum())

    def remarks(self) -> Iterator[str]:
        """What the user should know, a sentence each."""
        if not self.texts:
            yield NO_TEXTS
        if self.blank:
            yield f"{self.blank:,} of {self.texts:,} texts {'is' if self.blank == 1 else 'are'} empty"
        if self.tokens and self.unknown / self.tokens > _WORTH_SAYING:
            share = f"{100 * self.unknown / self.tokens:.0f} %"
            yield f"{share} of the tokens are unknown to this model's vocabulary; was it made for this language?"


@contextmanager
def watching(encoder: nn.Module, tally: Tally, report: Callable[[int], None]) -> Iterator[None]:
    """Count every batch that goes through the encoder inside the block, and report how many texts are done."""

    def count(module: nn.Module, given: tuple[object, ...], found: object) -> None:
        if given and isinstance(given[0], Batch):
            tally.add(given[0])
            report(tally.done)

    handle = encoder.register_forward_hook(count)
    try:
        yield
    finally:
        handle.remove()
