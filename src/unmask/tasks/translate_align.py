"""From where a decoder looked to which word became which: alignments of words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from unmask.text.encoding import Encoding
from unmask.text.pipelines import PREFIX, SPACE_MARK
from unmask.text.scripts import is_han
from unmask.text.tokenizer import Tokenizer


class Link(NamedTuple):
    """A target word and the source word that was looked at most while it was written."""

    source: int
    target: int
    weight: float


@dataclass(frozen=True)
class WordAlignment:
    """Words of both sides, and how much each source word was looked at while each target word was written."""

    source: tuple[str, ...]
    spans: tuple[tuple[int, int], ...]  # of the source words in their text
    target: tuple[str, ...]
    weights: Tensor  # (T, S); what is missing to 1 went to the end token

    @property
    def links(self) -> list[Link]:
        """For each target word the source word that was looked at most."""
        if not self.source:
            return []
        best = self.weights.argmax(1).tolist()
        return [Link(place, row, round(float(self.weights[row, place]), 4)) for row, place in enumerate(best)]


def word_alignment(
    text: str, source: Encoding, ids: Sequence[int], tokenizer: Tokenizer, look: Tensor
) -> WordAlignment:
    """Words from tokens: looks at the tokens of a source word are added up, those of a target word averaged."""
    columns = _groups(source.words)
    spans = tuple(_trimmed(text, source.offsets[group[0]][0], source.offsets[group[-1]][1]) for group in columns)
    rows = _target_words(tokenizer.tokens(ids))
    weights = torch.zeros(len(rows), len(columns))
    for row, group in enumerate(rows):
        mean = look[group].mean(0)
        for column, places in enumerate(columns):
            weights[row, column] = mean[places].sum()
    words = tuple(tokenizer.decode([ids[place] for place in group]).strip() for group in rows)
    return WordAlignment(tuple(text[start:end] for start, end in spans), spans, words, weights)


def _trimmed(text: str, start: int, end: int) -> tuple[int, int]:
    """A word without the space before it, which belongs to its first token."""
    while start < end and text[start].isspace():
        start += 1
    return start, end


def _groups(words: Sequence[int | None]) -> list[list[int]]:
    """Places of tokens that belong to one word."""
    groups: list[list[int]] = []
    for place, word in enumerate(words):
        if place and word is not None and word == words[place - 1]:
            groups[-1].append(place)
        else:
            groups.append([place])
    return groups


def _target_words(tokens: Sequence[str]) -> list[list[int]]:
    """The same for tokens that a model wrote, by how they are spelled."""
    groups: list[list[int]] = []
    for place, token in enumerate(tokens):
        before = tokens[place - 1] if place else ""
        if groups and _goes_on(before, token):
            groups[-1].append(place)
        else:
            groups.append([place])
    return groups


def _goes_on(before: str, token: str) -> bool:
    """Whether a token goes on with the word of the one before it."""
    if token.startswith(PREFIX):
        return True
    if token.startswith(SPACE_MARK) or not token:
        return False
    if before == SPACE_MARK:  # a space that stands alone belongs to what follows
        return True
    return token[0].isalnum() and before[-1:].isalnum() and not (is_han(token[0]) or is_han(before[-1]))
