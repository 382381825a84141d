"""Where words begin when Chinese words are taken as one."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from unmask.text.scripts import HAN
from unmask.text.words import segment


class Placed(Protocol):
    """Tokens that know their places in the text and where the tokenizer's own words begin."""

    @property
    def begins_word(self) -> NDArray[np.bool_]:
        """True where a token begins a word of the tokenizer."""

    @property
    def starts(self) -> NDArray[np.int64]:
        """Where each token starts in the text."""

    @property
    def ends(self) -> NDArray[np.int64]:
        """Where each token ends in the text."""


def join_chinese_words(tokens: Placed, text: str, sentences: Sequence[str]) -> NDArray[np.bool_]:
    """Where words begin, when the tokens of a Chinese word (one with a Chinese character in it) are one word.

    Other words stay as the tokenizer has them, so that "3.14" is three words in Chinese as it is in English.
    No word of the tokenizer and no Chinese word is ever cut. `text` is the sentences joined by line ends.
    """
    begins = tokens.begins_word
    marks = _marks(text, sentences)
    if marks is None or not len(begins):
        return begins
    numbers = np.cumsum(marks) - 1  # of the word that each character lies in
    codes = np.frombuffer(text.encode("utf-32-le"), dtype="<u4")
    chinese = np.zeros(int(numbers[-1]) + 1, dtype=np.bool_)
    chinese[numbers[_is_chinese()[codes]]] = True
    here, before = numbers[tokens.starts[1:]], numbers[tokens.ends[:-1] - 1]
    joined = np.zeros(len(begins), dtype=np.bool_)
    joined[1:] = (here == before) & chinese[here]
    return begins & ~joined


def _marks(text: str, sentences: Sequence[str]) -> NDArray[np.bool_] | None:
    """True at each character where a sentence, or a word of a Chinese one, begins; None if nothing is Chinese."""
    begin: list[int] = []
    place = found = 0
    for sentence in sentences:
        begin.append(place)
        if HAN.search(sentence):
            begin += [place + start for start, _ in segment(sentence)]
            found += 1
        place += len(sentence) + 1
    if not found:
        return None
    marks = np.zeros(len(text) + 1, dtype=np.bool_)  # the last sentence may be empty, and begin at the end
    marks[begin] = True
    return marks[:-1]


@cache
def _is_chinese() -> NDArray[np.bool_]:
    """For every code point whether BERT calls it Chinese."""
    table = np.zeros(0x110000, dtype=np.bool_)
    everything = np.arange(len(table), dtype="<u4").tobytes().decode("utf-32-le", "surrogatepass")
    table[[match.start() for match in HAN.finditer(everything)]] = True
    return table
