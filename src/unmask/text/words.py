"""Words in Chinese, English and mixed text, for masking or marking whole words."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Sequence
from functools import cache, lru_cache

from unmask.text.encoding import Encoding
from unmask.text.scripts import is_han

Span = tuple[int, int]


def segment(text: str) -> list[Span]:
    """The spans of the words of a text, in order; every character but spaces is in exactly one.

    Chinese words are found by a dictionary and a statistical model; letters and digits of other scripts that
    stand together are one word; other characters are words by themselves or as the dictionary has them.
    """
    spans: list[Span] = []
    end = 0
    for word in _cutter()(text):
        start, end = end, end + len(word)
        if word.isspace():
            continue
        # The segmenter breaks words at letters it does not know, as in "na-ï-ve".
        if spans and spans[-1][1] == start and _in_word(text[start - 1]) and _in_word(text[start]):
            spans[-1] = (spans[-1][0], end)
        else:
            spans.append((start, end))
    return spans


def whole_words(encoding: Encoding, spans: Sequence[Span], pair_spans: Sequence[Span] = ()) -> list[int | None]:
    """For each token the number of the word it belongs to; None for special tokens and those in no word.

    The words of the second text of a pair are numbered on after those of the first. A token that reaches over
    several words joins them, so tokens with the same number always cover whole words of the text.
    """
    found: list[int | None] = []
    walks = (_Walk(spans, 0), _Walk(pair_spans, len(spans)))
    for owner, (start, end) in zip(encoding.texts, encoding.offsets, strict=True):
        found.append(None if owner is None else walks[owner].word_at(start, end))
    return found


class _Walk:
    """Goes along the words of one text while its tokens go by."""

    def __init__(self, spans: Sequence[Span], first: int) -> None:
        self._spans = spans
        self._first = first
        self._next = 0
        self._number = -1
        self._reached = 0  # end of the words that the current number covers

    def word_at(self, start: int, end: int) -> int | None:
        if start < self._reached:
            self._take(end)
            return self._first + self._number
        while self._next < len(self._spans) and self._spans[self._next][1] <= start:
            self._next += 1
        if start == end or self._next == len(self._spans) or self._spans[self._next][0] >= end:
            return None
        self._number = self._next
        self._take(end)
        return self._first + self._number

    def _take(self, end: int) -> None:
        """Take in every word that starts before `end`."""
        while self._next < len(self._spans) and self._spans[self._next][0] < end:
            self._reached = max(self._reached, self._spans[self._next][1])
            self._next += 1


@cache
def _cutter() -> Callable[[str], list[str]]:
    import rjieba  # reads its dictionary when imported, so only when a word is asked for

    cut: Callable[[str], list[str]] = rjieba.cut
    return cut


@lru_cache(maxsize=65536)
def _in_word(character: str) -> bool:
    """Whether a character continues a word that is not Chinese: a letter, a digit or an accent on one."""
    if character.isalnum():
        return not is_han(character)
    return unicodedata.category(character).startswith("M")
