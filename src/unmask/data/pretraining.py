"""Batches for pre-training, made from a corpus while the model learns: new pairs and new masks in every epoch.

A batch is a function of the seed and its number alone. Documents are shuffled once an epoch and cut into pages; a page
is turned into batches by itself, so that going on from any number costs only the counting of the pages before it.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from unmask.config import Settings
from unmask.data.corpus.store import Corpus, DocumentSpan
from unmask.data.masking import Masked, MaskingSettings, MaskVocabulary, mask_tokens
from unmask.data.pairs import Example, PairSettings, Stretch, examples_of
from unmask.errors import DataError
from unmask.nn.batch import Batch
from unmask.nn.layout import Layout
from unmask.text.tokenizer import Tokenizer

#: Documents that are turned into batches together: enough that the last, smaller batch of a page hardly matters.
PAGE = 1024
#: What random numbers are drawn for, so that no two purposes share them.
_ORDER, _PAIRS, _MASKS = 1, 2, 3


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

    def __init__(
        self, corpus: Corpus, settings: ExampleSettings, part: Literal["training", "held_out"] = "training"
    ) -> None:
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

    def __getitem__(self, number: int) -> PretrainBatch:
        """The batch with this number, the same whenever and by whomever it is asked for."""
        while self._before[-1] <= number:
            self._before.append(self._before[-1] + len(self._planned(len(self._before) - 1)))
        page = bisect_right(self._before, number) - 1
        examples = self._planned(page)[number - self._before[page]]
        return self.batch(examples, self._rng(_MASKS, number))

    def batches_of_epoch(self, epoch: int) -> int:
        """How many batches an epoch has."""
        last = (epoch + 1) * self._pages
        while len(self._before) <= last:
            self._before.append(self._before[-1] + len(self._planned(len(self._before) - 1)))
        return self._before[last] - self._before[epoch * self._pages]

    def batch(self, examples: list[Example], rng: np.random.Generator) -> PretrainBatch:
        """Read the tokens of some examples and hide some."""
        framed = [self._framed(example) for example in examples]
        masked = [self._masked(ids, starts, rng) for ids, starts, _ in framed]
        lengths = [len(ids) for ids, _, _ in framed]
        starts = np.cumsum([0, *lengths[:-1]])
        rows = np.concatenate([start + one.places for start, one in zip(starts, masked, strict=True)])
        batch = Batch(
            torch.from_numpy(np.concatenate([one.ids for one in masked])),
            torch.from_numpy(np.concatenate([segments for _, _, segments in framed])),
            Layout.ragged(lengths),
        )
        paired = self.settings.pairs.objective != "none"
        labels = torch.tensor([example.label for example in examples]) if paired else None
        targets = np.concatenate([one.targets for one in masked])
        return PretrainBatch(batch, torch.from_numpy(rows), torch.from_numpy(targets), labels)

    def _framed(self, example: Example) -> tuple[NDArray[np.int64], NDArray[np.bool_], NDArray[np.int64]]:
        """[CLS] first [SEP] second [SEP]: ids, where words begin, segments."""
        ids = np.full(example.length, self.special.sep_id, dtype=np.int64)
        starts = np.ones(example.length, dtype=np.bool_)
        segments = np.zeros(example.length, dtype=np.int64)
        ids[0] = self.special.cls_id
        place = self._fill(ids, starts, 1, example.first)
        if example.second is not None:
            segments[place + 1 :] = 1
            self._fill(ids, starts, place + 1, example.second)
        return ids, starts, segments

    def _fill(self, ids: NDArray[np.int64], starts: NDArray[np.bool_], place: int, text: Stretch) -> int:
        end = place + text.length
        ids[place:end], starts[place:end] = self.corpus.stretch(*text)
        return end

    def _masked(self, ids: NDArray[np.int64], starts: NDArray[np.bool_], rng: np.random.Generator) -> Masked:
        return mask_tokens(ids, self._may_choose[ids], starts, self.vocabulary, self.settings.masking, rng)

    def _planned(self, page: int) -> list[list[Example]]:
        """The examples of each batch of a page; the newest page is remembered."""
        if self._page is None or self._page[0] != page:
            self._page = page, self._plan(page)
        return self._page[1]

    def _plan(self, page: int) -> list[list[Example]]:
        epoch, place = divmod(page, self._pages)
        rng = self._rng(_PAIRS, page)
        examples: list[Example] = []
        for document in self._epoch_order(epoch)[place * PAGE : (place + 1) * PAGE].tolist():
            examples += examples_of(
                self.corpus.span(document),
                self.settings.length,
                self.settings.pairs,
                lambda document=document: self._elsewhere(document, rng),  # type: ignore[misc]
                rng,
            )
        return self._packed([examples[i] for i in rng.permutation(len(examples))])

    def _packed(self, examples: list[Example]) -> list[list[Example]]:
        """Examples in batches of as many tokens as fit, each sorted by length, which attention likes."""
        batches: list[list[Example]] = []
        tokens = self.settings.batch_tokens
        for example in examples:
            tokens += example.length
            if tokens > self.settings.batch_tokens:
                batches.append([])
                tokens = example.length
            batches[-1].append(example)
        return [sorted(batch, key=lambda example: example.length) for batch in batches]

    def _elsewhere(self, document: int, rng: np.random.Generator) -> DocumentSpan:
        """A random document of the same part that is not `document`."""
        place = int(rng.integers(0, len(self.documents) - 1))
        other = int(self.documents[place])
        return self.corpus.span(int(self.documents[-1]) if other == document else other)

    def _epoch_order(self, epoch: int) -> NDArray[np.int64]:
        if self._order is None or self._order[0] != epoch:
            self._order = epoch, self._rng(_ORDER, epoch).permutation(self.documents)
        return self._order[1]

    def _rng(self, purpose: int, number: int) -> np.random.Generator:
        part = 0 if self.part == "training" else 1
        return np.random.default_rng([self.settings.seed, self.settings.length, part, purpose, number])


def _part(corpus: Corpus, settings: ExampleSettings, part: Literal["training", "held_out"]) -> NDArray[np.int64]:
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
