"""Batches for pre-training, made from a corpus while the model learns: new pairs and new masks in every epoch.

A batch is a function of the seed and its number alone. Documents are shuffled once an epoch and cut into pages; a page
is turned into batches by itself, so that going on from any number costs only the counting of the pages before it.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Annotated, Literal, Self

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field, model_validator
from torch import Tensor

from unmask.config import Settings
from unmask.data.corpus.store import Corpus, DocumentSpan
from unmask.data.masking import MaskingSettings, MaskVocabulary, mask_tokens
from unmask.data.pairs import Example, PairSettings, examples_of
from unmask.errors import DataError
from unmask.nn.batch import Batch
from unmask.nn.layout import Layout
from unmask.text.tokenizer import Tokenizer

#: Documents that are turned into batches together: enough that the last, smaller batch of a page hardly matters.
PAGE = 1024
#: What random numbers are drawn for, so that no two purposes share them.
_ORDER, _PAIRS, _MASKS = 1, 2, 3

PartName = Literal["training", "held_out"]


class ExampleSettings(Settings):
    """How examples are made of a corpus."""

    length: Annotated[int, Field(ge=8)] = 128
    """Tokens of an example, special ones included."""
    batch_tokens: Annotated[int, Field(ge=8)] = 4096
    """Tokens of a batch, at most."""
    pairs: PairSettings = PairSettings()
    masking: MaskingSettings = MaskingSettings()
    seed: int = 0
    held_out: Annotated[int, Field(ge=0)] = 100
    """One document in so many is kept for evaluation; 0: none."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.batch_tokens < self.length:
            raise ValueError(
                f"batch_tokens {self.batch_tokens} cannot hold an example of length {self.length}; "
                f"use at least {self.length}"
            )
        return self


@dataclass(frozen=True)
class PretrainBatch:
    """Sequences with tokens hidden, and what they were."""

    batch: Batch
    masked_rows: Tensor  # (M,) rows of the batch
    targets: Tensor  # (M,) what stood there
    pair_labels: Tensor | None  # (B,) 0: the second text follows; None where there are no pairs

    def to(self, device: torch.device | str) -> PretrainBatch:
        """The same batch on another device."""
        labels = None if self.pair_labels is None else self.pair_labels.to(device)
        return PretrainBatch(self.batch.to(device), self.masked_rows.to(device), self.targets.to(device), labels)

    @property
    def num_tokens(self) -> int:
        """How many tokens there are; there is no padding."""
        return self.batch.layout.num_tokens


@dataclass(frozen=True)
class SpecialIds:
    """What frames the texts of an example, and hides its tokens."""

    cls_id: int
    sep_id: int
    mask_id: int
    all: frozenset[int]

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> SpecialIds:
        """A tokenizer's; a sentence if it lacks one."""
        cls_id, sep_id, mask_id = tokenizer.cls_id, tokenizer.sep_id, tokenizer.mask_id
        if cls_id is None or sep_id is None or mask_id is None:
            raise DataError("the tokenizer has no [CLS], [SEP] or [MASK] token, which pre-training needs")
        return cls(cls_id, sep_id, mask_id, frozenset(tokenizer.special_ids))


class Examples:
    """Numbered batches of a corpus, without end: after the last of an epoch comes the first of the next."""

    def __init__(self, corpus: Corpus, settings: ExampleSettings, part: PartName = "training") -> None:
        """Batches of the documents that are for training, or of those held out."""
        self.corpus = corpus
        self.settings = settings
        self.part = part
        self.documents = _part(corpus, settings, part)
        self.special = SpecialIds.of(corpus.load_tokenizer())
        self.vocabulary = MaskVocabulary.of(corpus.vocab_size, self.special.mask_id, self.special.all)
        self._may_choose = np.ones(corpus.vocab_size, dtype=np.bool_)
        self._may_choose[sorted(self.special.all)] = False
        self._before = [0]  # batches before each page, over all epochs, as far as they were counted
        self._pages = -(-len(self.documents) // PAGE)
        self._page: tuple[int, list[list[Example]]] | None = None
        self._order: tuple[int, NDArray[np.int64]] | None = None

    def __reduce__(self) -> tuple[object, ...]:
        # How a process that makes batches gets it where processes are not forked: opened again, not copied.
        return _opened, (self.corpus.folder, self.settings, self.part)

    def __getitem__(self, number: int) -> PretrainBatch:
        """The batch with this number, the same whenever and by whomever it is asked for."""
        return self.batch(self.examples(number), np.random.default_rng(self._entropy(_MASKS, number)))

    def examples(self, number: int) -> list[Example]:
        """What the batch with this number is made of, shortest first, which attention likes."""
        while self._before[-1] <= number:
            self._count_page()
        page = bisect_right(self._before, number) - 1
        return self._planned(page)[number - self._before[page]]

    def batches_of_epoch(self, epoch: int) -> int:
        """How many batches an epoch has."""
        last = (epoch + 1) * self._pages
        while len(self._before) <= last:
            self._count_page()
        return self._before[last] - self._before[epoch * self._pages]

    def batch(self, examples: list[Example], rng: np.random.Generator) -> PretrainBatch:
        """Read the tokens of some examples and hide some."""
        lengths = [example.length for example in examples]
        bounds = np.cumsum([0, *lengths])
        ids, words, segments = self._framed(examples, bounds)
        may, settings = self._may_choose[ids], self.settings.masking
        masked = [
            mask_tokens(ids[start:end], may[start:end], words[start:end], self.vocabulary, settings, rng)
            for start, end in pairwise(bounds.tolist())
        ]
        rows = np.concatenate([start + one.places for start, one in zip(bounds[:-1], masked, strict=True)])
        seen = torch.from_numpy(np.concatenate([one.ids for one in masked]))
        paired = self.settings.pairs.objective != "none"
        return PretrainBatch(
            Batch(seen, torch.from_numpy(segments), Layout.ragged(lengths)),
            torch.from_numpy(rows),
            torch.from_numpy(ids[rows]),
            torch.tensor([example.label for example in examples]) if paired else None,
        )

    def _framed(
        self, examples: list[Example], bounds: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.bool_], NDArray[np.int64]]:
        """[CLS] first [SEP] second [SEP], one example after another: ids, where words begin, segments."""
        ids = np.full(bounds[-1], self.special.sep_id, dtype=np.int64)
        words = np.ones(bounds[-1], dtype=np.bool_)
        segments = np.zeros(bounds[-1], dtype=np.int64)
        ids[bounds[:-1]] = self.special.cls_id
        for example, (start, end) in zip(examples, pairwise(bounds.tolist()), strict=True):
            place = start + 1 + example.first.length
            ids[start + 1 : place], words[start + 1 : place] = self.corpus.stretch(*example.first)
            if example.second is not None:
                ids[place + 1 : end - 1], words[place + 1 : end - 1] = self.corpus.stretch(*example.second)
                segments[place + 1 : end] = 1
        return ids, words, segments

    def _count_page(self) -> None:
        """Count the batches of one page more."""
        page = len(self._before) - 1
        counted = self._before[-1] + len(self._planned(page))
        if page == self._pages - 1 and not counted:
            raise DataError(
                f"all {len(self.documents)} documents for {self.part.replace('_', ' ')} have a single token, of which "
                "no pair can be made; add text, or use the objective none",
                file=self.corpus.folder,
            )
        self._before.append(counted)

    def _planned(self, page: int) -> list[list[Example]]:
        """The examples of each batch of a page; the newest page is remembered."""
        if self._page is None or self._page[0] != page:
            self._page = page, self._plan(page)
        return self._page[1]

    def _plan(self, page: int) -> list[list[Example]]:
        epoch, place = divmod(page, self._pages)
        rng = Random(str(self._entropy(_PAIRS, page)))
        settings = self.settings
        examples: list[Example] = []
        for document in self._epoch_order(epoch)[place * PAGE : (place + 1) * PAGE].tolist():
            elsewhere = partial(self._elsewhere, document, rng)
            examples += examples_of(self.corpus.span(document), settings.length, settings.pairs, elsewhere, rng)
        rng.shuffle(examples)
        return _packed(examples, settings.batch_tokens)

    def _elsewhere(self, document: int, rng: Random) -> DocumentSpan:
        """A random document of the same part that is not `document`: the last one stands in for that."""
        other = int(self.documents[int(rng.random() * (len(self.documents) - 1))])
        return self.corpus.span(int(self.documents[-1]) if other == document else other)

    def _epoch_order(self, epoch: int) -> NDArray[np.int64]:
        if self._order is None or self._order[0] != epoch:
            rng = np.random.default_rng(self._entropy(_ORDER, epoch))
            self._order = epoch, rng.permutation(self.documents)
        return self._order[1]

    def _entropy(self, purpose: int, number: int) -> list[int]:
        """What the random numbers for one purpose are drawn from."""
        part = 0 if self.part == "training" else 1
        return [self.settings.seed % 2**64, self.settings.length, part, purpose, number]


def _opened(folder: Path, settings: ExampleSettings, part: PartName) -> Examples:
    return Examples(Corpus.open(folder), settings, part)


def _packed(examples: list[Example], most: int) -> list[list[Example]]:
    """Examples in batches of as many tokens as fit, each sorted by length."""
    batches: list[list[Example]] = []
    tokens = most
    for example in examples:
        tokens += example.length
        if tokens > most:
            batches.append([])
            tokens = example.length
        batches[-1].append(example)
    return [sorted(batch, key=lambda example: example.length) for batch in batches]


def _part(corpus: Corpus, settings: ExampleSettings, part: PartName) -> NDArray[np.int64]:
    """The documents of one part, and a sentence if they are too few."""
    every = np.arange(corpus.num_documents)
    kept = every % settings.held_out == settings.held_out - 1 if settings.held_out else every < 0
    chosen = every[kept if part == "held_out" else ~kept]
    needed = 2 if settings.pairs.objective == "nsp" else 1
    if len(chosen) < needed:
        raise DataError(
            f"has {len(chosen)} documents for {part.replace('_', ' ')} but at least {needed} are needed; "
            "add text, separate documents by blank lines, or change held_out or the objective",
            file=corpus.folder,
        )
    return chosen
