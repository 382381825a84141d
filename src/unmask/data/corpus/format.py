"""What a corpus folder is made of: names, number types, and the records in `corpus.json`."""

from __future__ import annotations

import math
from itertools import zip_longest
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from unmask.config import Settings
from unmask.text.files import TextEncoding

#: Raised when a reader of today could not read the folder; older formats stay readable.
FORMAT = 1
MANIFEST = "corpus.json"
TOKENIZER = "tokenizer"
#: Starts are 32-bit: a shard, which holds whole documents, can have no more tokens than they can count.
MAX_SHARD_TOKENS = 2**32 - 1

Count = Annotated[int, Field(ge=0)]
Part = Literal["tokens", "sentences", "documents", "words"]
PARTS: tuple[Part, ...] = ("tokens", "sentences", "documents", "words")
TokenType = Literal["uint16", "uint32"]


class CorpusSettings(Settings):
    """How text becomes a corpus."""

    format: Literal["sentences", "paragraphs"] = "sentences"
    """What a line is: one sentence, or a paragraph still to be split into sentences."""
    field: str = Field(default="text", min_length=1)
    """The field of a JSON line, or the column of a Parquet file, that has the text."""
    words: bool = True
    """Whether Chinese words are looked for, so that their characters can be masked together."""
    shard_tokens: int = Field(default=1 << 24, ge=1, le=1 << 31)
    """A shard is closed at the end of the document that reaches so many tokens."""
    encoding: TextEncoding = "utf-8"
    """How the text files are written."""


class Statistics(Settings):
    """What was counted while a corpus, or one shard of it, was built."""

    documents: Count = 0
    sentences: Count = 0
    tokens: Count = 0
    characters: Count = 0
    words: Count = 0
    unknown_tokens: Count = 0
    special_tokens: Count = 0
    """Special tokens that were written out in the text, such as a literal [MASK]; none is added."""
    empty_documents: Count = 0
    """Documents in which no token was found; they are left out."""
    empty_sentences: Count = 0
    duplicate_documents: Count = 0
    """Documents with the same sentences as an earlier one; they are counted, and kept."""
    longest_sentence: Count = 0
    longest_document: Count = 0
    sentence_lengths: tuple[Count, ...] = ()
    """Item k: how many sentences have 2^k to 2^(k+1) - 1 tokens."""
    document_lengths: tuple[Count, ...] = ()
    """Item k: how many documents have 2^k to 2^(k+1) - 1 tokens."""

    @property
    def unknown_rate(self) -> float:
        """The share of unknown tokens."""
        return self.unknown_tokens / self.tokens if self.tokens else 0.0

    def plus(self, other: Statistics) -> Statistics:
        """The counts of both together."""
        values: dict[str, object] = {}
        for name in type(self).model_fields:
            one, two = getattr(self, name), getattr(other, name)
            if isinstance(one, tuple):
                values[name] = tuple(a + b for a, b in zip_longest(one, two, fillvalue=0))
            else:
                values[name] = max(one, two) if name.startswith("longest") else one + two
        return Statistics.model_validate(values)


class TokenizerRecord(Settings):
    """Which tokenizer made the tokens; it lies beside them."""

    sha256: str
    vocab_size: int = Field(ge=1)
    kind: str


class InputRecord(Settings):
    """A file that was read."""

    name: str
    bytes: Count


class ShardRecord(Settings):
    """One shard. The sizes of its files follow from its counts."""

    documents: int = Field(ge=1)
    sentences: int = Field(ge=1)
    tokens: int = Field(ge=1, le=MAX_SHARD_TOKENS)
    sha256: dict[Part, str]

    def size(self, part: Part, token_type: TokenType) -> int:
        """How many bytes one of its files has."""
        match part:
            case "tokens":
                return self.tokens * np.dtype(token_type).itemsize
            case "sentences":
                return 4 * (self.sentences + 1)
            case "documents":
                return 4 * (self.documents + 1)
            case "words":
                return -(-self.tokens // 8)


class Manifest(Settings):
    """The content of `corpus.json`."""

    format: int
    tokenizer: TokenizerRecord
    token_type: TokenType
    settings: CorpusSettings
    inputs: tuple[InputRecord, ...]
    statistics: Statistics
    shards: tuple[ShardRecord, ...]


def shard_file(folder: Path, number: int, part: Part) -> Path:
    """Where one array of a shard lies; names are made here and never read from a file."""
    return folder / f"{number:05d}.{part}"


def token_type_for(vocab_size: int) -> TokenType:
    """The smallest number type that holds every id."""
    return "uint16" if vocab_size <= 2**16 else "uint32"


def histogram(lengths: NDArray[np.integer]) -> tuple[int, ...]:
    """How many of these lengths, all at least 1, lie in each power of two."""
    if not len(lengths):
        return ()
    # frexp is exact for integers below 2^53: 2^k = 0.5 * 2^(k+1).
    return tuple(int(count) for count in np.bincount(np.frexp(lengths.astype(np.float64))[1] - 1))


def histogram_labels(counts: tuple[int, ...]) -> list[tuple[str, int]]:
    """A histogram with the range of lengths of each item, without the empty ones at both ends."""
    rows = [(f"{2**k}–{2 ** (k + 1) - 1}" if k else "1", count) for k, count in enumerate(counts)]
    filled = [k for k, count in enumerate(counts) if count]
    return rows[filled[0] : filled[-1] + 1] if filled else []


def percentage(part: int, whole: int) -> str:
    """A share for people, with enough digits that something is never shown as nothing."""
    if not part or not whole:
        return "0%"
    digits = max(2, -math.floor(math.log10(100 * part / whole)))
    return f"{100 * part / whole:.{digits}f}%"
