"""Which tokens a masked language model must guess, and what it sees in their place.

Choices are drawn so that the expected share of chosen tokens is the rate exactly, whatever the length of a sequence:
numbers are rounded up or down at random in proportion, and the last word or span is taken with the probability that
makes it so. Randomness is an argument.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Annotated, Literal, Self

import numpy as np
import numpy.typing as npt
from pydantic import Field, model_validator

from unmask.config import Settings

Ids = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
Share = Annotated[float, Field(ge=0.0, le=1.0)]


class MaskingSettings(Settings):
    """How tokens are masked. Defaults are BERT's."""

    rate: Annotated[float, Field(gt=0.0, lt=1.0)] = 0.15  # of the tokens that may be chosen
    mask: Share = 0.8  # of the chosen: replaced by [MASK]
    random: Share = 0.1  # replaced by another token of the vocabulary
    keep: Share = 0.1  # left as they are
    unit: Literal["token", "word", "span"] = "token"  # what is chosen as a whole
    span_length: Annotated[float, Field(ge=1.0)] = 3.8  # of spans: mean number of words, at most ten (SpanBERT)

    @model_validator(mode="after")
    def _check(self) -> Self:
        if abs(self.mask + self.random + self.keep - 1) > 1e-9:
            raise ValueError(f"mask, random and keep must add up to 1, given {self.mask}, {self.random}, {self.keep}")
        return self


@dataclass(frozen=True)
class MaskVocabulary:
    """What masking needs to know of a vocabulary."""

    mask_id: int
    ordinary: Ids  # the ids that may stand in for another: all but the special ones

    @classmethod
    def of(cls, vocab_size: int, mask_id: int, special_ids: Collection[int]) -> MaskVocabulary:
        """From a tokenizer's numbers."""
        return cls(mask_id, np.setdiff1d(np.arange(vocab_size), np.array(sorted(special_ids), dtype=np.int64)))


@dataclass(frozen=True)
class Masked:
    """A sequence with some tokens hidden."""

    ids: Ids  # what the model sees
    places: Ids  # the tokens it must guess, in order
    targets: Ids  # what they were


def mask_tokens(
    ids: Ids,
    may_choose: Flags,
    word_starts: Flags,
    vocabulary: MaskVocabulary,
    settings: MaskingSettings,
    rng: np.random.Generator,
) -> Masked:
    """Hide some of the tokens for which `may_choose` is True; special tokens are the caller's to leave out.

    `word_starts` is True where a token begins a word; a word is chosen whole unless the unit is the token.
    """
    candidates = np.flatnonzero(may_choose)
    wanted = _rounded(settings.rate * len(candidates), rng)
    match settings.unit:
        case "token":
            chosen = rng.choice(candidates, wanted, replace=False)
        case "word" | "span":
            words = _words(candidates, word_starts)
            runs = _spans(len(words), settings, rng) if settings.unit == "span" else None
            chosen = _whole_words(words, runs, wanted, rng)
    places = np.sort(chosen).astype(np.int64)
    seen = ids.copy()
    fate = rng.random(len(places))
    seen[places[fate < settings.mask]] = vocabulary.mask_id
    replaced = places[(fate >= settings.mask) & (fate < settings.mask + settings.random)]
    seen[replaced] = rng.choice(vocabulary.ordinary, len(replaced))
    return Masked(seen, places, ids[places])


def _rounded(number: float, rng: np.random.Generator) -> int:
    """A whole number whose mean is `number`."""
    return int(number) + int(rng.random() < number - int(number))


def _words(candidates: Ids, word_starts: Flags) -> list[Ids]:
    """The candidates in words: a word ends where another begins, or where a token may not be chosen."""
    if not len(candidates):
        return []
    cuts = np.flatnonzero(word_starts[candidates[1:]] | (np.diff(candidates) > 1)) + 1
    return np.split(candidates, cuts)


def _spans(num_words: int, settings: MaskingSettings, rng: np.random.Generator) -> list[range]:
    """Runs of words that together are all words, in the order of the text, of geometric lengths of at most ten."""
    runs: list[range] = []
    start = 0
    while start < num_words:
        length = min(int(rng.geometric(1 / settings.span_length)), 10, num_words - start)
        runs.append(range(start, start + length))
        start += length
    return runs


def _whole_words(words: list[Ids], runs: list[range] | None, wanted: int, rng: np.random.Generator) -> Ids:
    """Words, or runs of words, in random order until there are enough tokens.

    The one that would exceed the number is taken with the probability that keeps the mean where it belongs.
    """
    units = words if runs is None else [np.concatenate([words[i] for i in run]) for run in runs]
    chosen: list[Ids] = []
    missing = wanted
    for number in rng.permutation(len(units)):
        if missing <= 0:
            break
        unit = units[number]
        if len(unit) <= missing or rng.random() < missing / len(unit):
            chosen.append(unit)
        missing -= len(unit)
    return np.concatenate(chosen) if chosen else np.empty(0, dtype=np.int64)
