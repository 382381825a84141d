"""Sentences → tokens and where words begin, fast.

BERT's pipeline treats every Chinese character and every punctuation mark as a word by itself, so what a text becomes
is the pieces between them one after another. Here they are looked up, all at once, in a table of characters and in a
memory of words; only what was never seen goes through the tokenizer. Other pipelines go through it whole. Both ways
give the tokens that `Tokenizer.encode` gives.
"""

from __future__ import annotations

import itertools
import string
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unmask.config import read_json
from unmask.data.corpus.words import join_chinese_words
from unmask.text.encoding import Encoding
from unmask.text.scripts import is_han
from unmask.text.tokenizer import Tokenizer

Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]

# What a character is to the table. Everything that is not surely a word by itself or a space stays part of a piece,
# and what happens inside a piece is the tokenizer's affair.
_UNSEEN, _PIECE, _ALONE, _SPACE = range(4)
_SPACES = " \t\n\r\u3000\xa0"
# A new memory of words is begun when it has grown to this; it holds the frequent ones again soon after.
_MAX_WORDS = 100_000
_MAX_LETTERS = 4_000_000
# Encodings with offsets are large, so the slow way takes few characters at a time.
_SLOW_CHARACTERS = 1 << 16


@dataclass(frozen=True)
class Tokens:
    """Tokens of several sentences end to end; starts and ends are places in the sentences joined by line ends."""

    ids: Ints
    begins_word: Flags
    starts: Ints
    ends: Ints
    lengths: Ints
    """How many tokens each sentence has."""


class SentenceEncoder:
    """Turns batches of sentences into tokens, without special tokens, and marks where words begin."""

    def __init__(self, folder: Path, *, words: bool) -> None:
        """Use the tokenizer of a folder; `words` joins the characters of Chinese words."""
        self._tokenizer = Tokenizer.from_folder(folder)
        self._words = words
        plan = read_json(folder / "tokenizer.json")
        self._table = _Table(self._tokenizer, plan) if _is_bert(plan) else None
        self._literal = [token["content"] for token in plan.get("added_tokens", ())]

    def encode(self, sentences: Sequence[str]) -> Tokens:
        """The tokens of sentences that have no line ends in them."""
        text = "\n".join(sentences)
        if self._table is None or any(token in text for token in self._literal):
            tokens = encode_slowly(self._tokenizer, sentences)
        else:
            tokens = self._table.encode(text, sentences)
        if not self._words:
            return tokens
        begins = join_chinese_words(tokens, text, sentences)
        return Tokens(tokens.ids, begins, tokens.starts, tokens.ends, tokens.lengths)


def encode_slowly(tokenizer: Tokenizer, sentences: Sequence[str]) -> Tokens:
    """The tokens of sentences from the tokenizer itself, whatever its kind."""
    parts: list[Tokens] = []
    place = first = size = 0
    for number, sentence in enumerate(sentences):
        size += len(sentence) + 1
        if size >= _SLOW_CHARACTERS or number == len(sentences) - 1:
            batch = sentences[first : number + 1]
            parts.append(_flat(tokenizer.encode_batch(batch, special_tokens=False, offsets=True), batch, place))
            place, first, size = place + size, number + 1, 0
    if not parts:
        return _flat([], [], 0)
    names = ("ids", "begins_word", "starts", "ends", "lengths")
    return Tokens(*(np.concatenate([getattr(part, name) for part in parts]) for name in names))


def _flat(encodings: Sequence[Encoding], sentences: Sequence[str], place: int) -> Tokens:
    lengths = _ints(map(len, encodings))
    chained = itertools.chain.from_iterable
    offsets = _ints(chained(chained(encoding.offsets for encoding in encodings))).reshape(-1, 2)
    words = _ints(chained([-1 if word is None else word for word in encoding.words] for encoding in encodings))
    begins = np.ones(len(words), dtype=np.bool_)
    begins[1:] = (words[1:] != words[:-1]) | (words[1:] < 0)
    begins[(np.cumsum(lengths) - lengths)[lengths > 0]] = True
    sizes = _ints(len(sentence) + 1 for sentence in sentences)
    shift = np.repeat(place + np.cumsum(sizes) - sizes, lengths)
    ids = _ints(chained(encoding.ids for encoding in encodings))
    return Tokens(ids, begins, offsets[:, 0] + shift, offsets[:, 1] + shift, lengths)


def _is_bert(plan: dict[str, Any]) -> bool:
    """Whether the steps are BERT's, so that a text is the sum of its pieces."""
    types = [(plan.get(step) or {}).get("type") for step in ("normalizer", "pre_tokenizer", "model")]
    # A token that is looked for in cleaned text could lie anywhere; one that is not can be seen in the text itself.
    plain = all(token.get("normalized") is False for token in plan.get("added_tokens", ()))
    return plain and types == ["BertNormalizer", "BertPreTokenizer", "WordPiece"]


class _Table:
    """What each character is, and the tokens of the pieces that were met before."""

    def __init__(self, tokenizer: Tokenizer, plan: dict[str, Any]) -> None:
        self._tokenizer = tokenizer
        self._splits_chinese = plan["normalizer"].get("handle_chinese_chars") is True
        self._kinds = np.zeros(0x110000, dtype=np.uint8)
        self._ids = np.zeros(0x110000, dtype=np.int64)
        self._memory = _Memory(tokenizer)

    def encode(self, text: str, sentences: Sequence[str]) -> Tokens:
        """The tokens of `text`, which is the sentences joined by line ends."""
        codes = np.frombuffer(text.encode("utf-32-le"), dtype="<u4")
        kinds = self._kinds[codes]
        if not kinds.all():
            self._learn(np.unique(codes[kinds == _UNSEEN]).tolist())
            kinds = self._kinds[codes]
        in_piece = np.zeros(len(codes) + 2, dtype=np.int8)
        in_piece[1:-1] = kinds == _PIECE
        edges = np.diff(in_piece)
        pieces, piece_ends = np.flatnonzero(edges == 1), np.flatnonzero(edges == -1)
        alone = np.flatnonzero(kinds == _ALONE)
        if self._memory.is_full:
            self._memory = _Memory(self._tokenizer)
        numbers = self._memory.numbers(text, pieces, piece_ends)
        # Units, pieces and characters alone, in the order of the text.
        units = np.concatenate([alone, pieces])
        counts = np.concatenate([np.ones(len(alone), dtype=np.int64), self._memory.counts[numbers]])
        order = np.argsort(units, kind="stable")
        ends = np.cumsum(counts[order])
        first = np.empty(len(units), dtype=np.int64)  # where each unit's tokens go
        first[order] = ends - counts[order]
        tokens = self._assemble(codes, alone, first[: len(alone)], int(ends[-1]) if len(ends) else 0)
        self._memory.insert(tokens, pieces, first[len(alone) :], numbers)
        sizes = _ints(len(sentence) + 1 for sentence in sentences)
        before = np.searchsorted(units[order], np.cumsum(sizes))  # units before the end of each sentence
        reached = np.concatenate([[0], ends])[before]
        return Tokens(tokens.ids, tokens.begins_word, tokens.starts, tokens.ends, np.diff(reached, prepend=0))

    def _assemble(self, codes: NDArray[np.uint32], alone: Ints, places: Ints, total: int) -> Tokens:
        """Room for all tokens, with those of the characters alone in their places."""
        ids, starts, ends = (np.empty(total, dtype=np.int64) for _ in range(3))
        begins = np.ones(total, dtype=np.bool_)
        ids[places] = self._ids[codes[alone]]
        starts[places] = alone
        ends[places] = alone + 1
        return Tokens(ids, begins, starts, ends, np.empty(0, dtype=np.int64))

    def _learn(self, codes: list[int]) -> None:
        """Find out what characters are that were not seen before."""
        self._kinds[codes] = _PIECE
        self._kinds[[ord(space) for space in _SPACES]] = _SPACE
        likely = [code for code in codes if self._may_stand_alone(chr(code))]
        # The tokenizer has the last word: its tables of Unicode may be of another year than Python's.
        for code, encoding in zip(likely, self._between_letters(likely), strict=True):
            if encoding.words == [0, 1, 2] and encoding.offsets == [(0, 1), (1, 2), (2, 3)]:
                self._kinds[code] = _ALONE
                self._ids[code] = encoding.ids[1]

    def _between_letters(self, codes: list[int]) -> list[Encoding]:
        probes = [f"a{chr(code)}a" for code in codes]
        return self._tokenizer.encode_batch(probes, special_tokens=False, offsets=True)

    def _may_stand_alone(self, character: str) -> bool:
        if is_han(character):
            return self._splits_chinese
        return unicodedata.category(character).startswith("P") or character in string.punctuation


class _Memory:
    """The tokens of pieces that were met before, end to end."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._known: dict[str, int] = {}
        self._letters = 0
        nothing = np.empty(0, dtype=np.int64)
        self._firsts, self.counts = nothing, nothing
        self._tokens = Tokens(nothing, np.empty(0, dtype=np.bool_), nothing, nothing, nothing)

    @property
    def is_full(self) -> bool:
        """Whether it is time to begin a new one."""
        return len(self._known) > _MAX_WORDS or self._letters > _MAX_LETTERS

    def numbers(self, text: str, pieces: Ints, piece_ends: Ints) -> Ints:
        """The number of each piece here, where new ones are put first."""
        words = [text[start:end] for start, end in zip(pieces.tolist(), piece_ends.tolist(), strict=True)]
        new = [word for word in dict.fromkeys(words) if word not in self._known]
        if new:
            self._add(new)
        return _ints(map(self._known.__getitem__, words))

    def insert(self, tokens: Tokens, pieces: Ints, places: Ints, numbers: Ints) -> None:
        """Put the tokens of pieces into their places."""
        counts = self.counts[numbers]
        within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        source = np.repeat(self._firsts[numbers], counts) + within
        target = np.repeat(places, counts) + within
        shift = np.repeat(pieces, counts)
        tokens.ids[target] = self._tokens.ids[source]
        tokens.begins_word[target] = self._tokens.begins_word[source]
        tokens.starts[target] = self._tokens.starts[source] + shift
        tokens.ends[target] = self._tokens.ends[source] + shift

    def _add(self, words: list[str]) -> None:
        found = encode_slowly(self._tokenizer, words)
        sizes = _ints(len(word) + 1 for word in words)
        shift = np.repeat(np.cumsum(sizes) - sizes, found.lengths)
        old = self._tokens
        self._firsts = np.concatenate([self._firsts, len(old.ids) + np.cumsum(found.lengths) - found.lengths])
        self.counts = np.concatenate([self.counts, found.lengths])
        self._tokens = Tokens(
            np.concatenate([old.ids, found.ids]),
            np.concatenate([old.begins_word, found.begins_word]),
            np.concatenate([old.starts, found.starts - shift]),
            np.concatenate([old.ends, found.ends - shift]),
            old.lengths,
        )
        self._letters += int(sizes.sum())
        self._known.update(zip(words, itertools.count(len(self._known))))


def _ints(values: Iterable[int]) -> Ints:
    return np.fromiter(values, dtype=np.int64)
