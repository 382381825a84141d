"""A corpus: documents, sentences and tokens in memory-mapped files, read without loading them."""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from functools import lru_cache
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from unmask.config import read_json
from unmask.data.corpus.format import (
    FORMAT,
    MANIFEST,
    PARTS,
    TOKENIZER,
    CorpusSettings,
    Manifest,
    Part,
    ShardRecord,
    Statistics,
    TokenizerRecord,
    shard_file,
)
from unmask.errors import DataError, SettingsError
from unmask.text.tokenizer import Tokenizer

# A shard takes a few hundred bytes in corpus.json: beyond this it is some other file.
_MAX_MANIFEST_BYTES = 256 * 1024 * 1024
_COUNTED = 1 << 24  # tokens at a time
_HINT = "the folder is incomplete or damaged; build or copy it again"

Tokens = NDArray[np.unsignedinteger[Any]]


class _Shard(NamedTuple):
    """The arrays of one shard, mapped: nothing is read before it is asked for."""

    tokens: Tokens
    sentences: NDArray[np.uint32]
    documents: NDArray[np.uint32]
    words: NDArray[np.uint8]


class DocumentSpan(NamedTuple):
    """A document as a stretch of a shard: sentence k is tokens `bounds[k]` up to `bounds[k + 1]`."""

    shard: int
    bounds: tuple[int, ...]


class Corpus:
    """Documents of sentences of tokens, without special tokens, as `build_corpus` wrote them.

    Sentences and documents are numbered from 0 through the whole corpus. Arrays that are handed out are views of the
    files and cannot be written to.

    Attributes:
        folder: where it lies.
        num_documents, num_sentences, num_tokens: how many there are.
        vocab_size: ids are smaller than this.
        tokenizer_record: which tokenizer made it; `load_tokenizer` gives the tokenizer itself.
        settings: how it was built.
        statistics: what was counted when it was built.
    """

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        """Look at a folder whose manifest was read; use `Corpus.open`."""
        self.folder = folder
        self.manifest = manifest
        self.settings: CorpusSettings = manifest.settings
        self.statistics: Statistics = manifest.statistics
        self.tokenizer_record: TokenizerRecord = manifest.tokenizer
        self.vocab_size = manifest.tokenizer.vocab_size
        shards = manifest.shards
        self._documents_before = [0, *accumulate(shard.documents for shard in shards)]
        self._sentences_before = [0, *accumulate(shard.sentences for shard in shards)]
        self.num_documents = self._documents_before[-1]
        self.num_sentences = self._sentences_before[-1]
        self.num_tokens = sum(shard.tokens for shard in shards)
        # Mapped again when needed: a corpus of a great many shards must not use up the system's mappings.
        self._shard = lru_cache(maxsize=256)(self._map)

    @classmethod
    def open(cls, folder: Path | str) -> Corpus:
        """Open a corpus folder; DataError in one sentence if it is not one, or its files are not of the right size."""
        folder = Path(folder)
        manifest = _read_manifest(folder)
        for number, shard in enumerate(manifest.shards):
            for part in PARTS:
                _check_size(shard_file(folder, number, part), shard.size(part, manifest.token_type))
        return cls(folder, manifest)

    def __len__(self) -> int:
        return self.num_documents

    def __repr__(self) -> str:
        counts = f"{self.num_documents:,} documents, {self.num_sentences:,} sentences, {self.num_tokens:,} tokens"
        return f"Corpus({counts})"

    def document(self, number: int) -> list[Tokens]:
        """The sentences of a document, each the array of its tokens."""
        shard, first, last = self._document(number)
        bounds = self._bounds(shard, first, last)
        return [shard.tokens[start:end] for start, end in pairwise(bounds)]

    def sentence(self, number: int) -> Tokens:
        """The tokens of a sentence."""
        shard, place = self._sentence(number)
        start, end = self._bounds(shard, place, place + 1)
        return shard.tokens[start:end]

    def sentences_of(self, document: int) -> range:
        """The numbers of the sentences of a document."""
        _, first, last = self._document(document)
        before = self._sentences_before[bisect_right(self._documents_before, document) - 1]
        return range(before + first, before + last)

    def word_starts(self, sentence: int) -> NDArray[np.bool_]:
        """For each token of a sentence, whether a word begins with it."""
        shard, place = self._sentence(sentence)
        start, end = self._bounds(shard, place, place + 1)
        bits = np.unpackbits(shard.words[start // 8 : -(-end // 8)], bitorder="little")
        return bits[start % 8 : start % 8 + end - start].view(np.bool_)

    def span(self, document: int) -> DocumentSpan:
        """Where a document lies: its sentences are one stretch of tokens of one shard."""
        number = _index(document, self.num_documents, "document")
        shard, first, last = self._document(number)
        return DocumentSpan(bisect_right(self._documents_before, number) - 1, tuple(self._bounds(shard, first, last)))

    def stretch(self, shard: int, start: int, end: int) -> tuple[Tokens, NDArray[np.bool_]]:
        """Tokens from `start` up to `end` of a shard, and for each whether a word begins with it."""
        mapped = self._shard(shard)
        bits = np.unpackbits(mapped.words[start // 8 : -(-end // 8)], bitorder="little")
        return mapped.tokens[start:end], bits[start % 8 : start % 8 + end - start].view(np.bool_)

    def token_counts(self) -> NDArray[np.int64]:
        """How often each id of the vocabulary occurs; reads all tokens once."""
        counts = np.zeros(self.vocab_size, dtype=np.int64)
        for number in range(len(self.manifest.shards)):
            tokens = self._shard(number).tokens
            for start in range(0, len(tokens), _COUNTED):
                found = np.bincount(tokens[start : start + _COUNTED], minlength=self.vocab_size)
                if len(found) > self.vocab_size:
                    raise DataError(f"has ids beyond its vocabulary; {_HINT}", file=self.folder)
                counts += found
        return counts

    def load_tokenizer(self) -> Tokenizer:
        """The tokenizer that made the tokens, from the folder itself."""
        return Tokenizer.from_folder(self.folder / TOKENIZER)

    def verify(self) -> None:
        """Read every byte: DataError names the first file that is not as it was written."""
        _check_hash(self.folder / TOKENIZER / "tokenizer.json", self.tokenizer_record.sha256)
        for number, record in enumerate(self.manifest.shards):
            for part in PARTS:
                _check_hash(shard_file(self.folder, number, part), record.sha256.get(part, ""))

    def _document(self, number: int) -> tuple[_Shard, int, int]:
        """The shard of a document, and its sentences there."""
        number = _index(number, self.num_documents, "document")
        owner = bisect_right(self._documents_before, number) - 1
        shard = self._shard(owner)
        place = number - self._documents_before[owner]
        first, last = int(shard.documents[place]), int(shard.documents[place + 1])
        if not first < last <= len(shard.sentences) - 1:
            raise DataError(f"document {number} has impossible bounds; {_HINT}", file=self.folder)
        return shard, first, last

    def _sentence(self, number: int) -> tuple[_Shard, int]:
        number = _index(number, self.num_sentences, "sentence")
        owner = bisect_right(self._sentences_before, number) - 1
        return self._shard(owner), number - self._sentences_before[owner]

    def _bounds(self, shard: _Shard, first: int, last: int) -> list[int]:
        """Where sentences begin and end among the tokens; checked, as a file may hold anything."""
        bounds: list[int] = shard.sentences[first : last + 1].tolist()
        if bounds[-1] > len(shard.tokens) or any(end <= start for start, end in pairwise(bounds)):
            raise DataError(f"sentences have impossible bounds; {_HINT}", file=self.folder)
        return bounds

    def _map(self, number: int) -> _Shard:
        record = self.manifest.shards[number]
        types: dict[Part, str] = {"tokens": self.manifest.token_type, "words": "uint8"}
        arrays = {}
        for part in PARTS:
            path = shard_file(self.folder, number, part)
            _check_size(path, record.size(part, self.manifest.token_type))
            kind = np.dtype(types.get(part, "uint32")).newbyteorder("<")
            arrays[part] = np.asarray(np.memmap(path, dtype=kind, mode="r"))
        shard = _Shard(**arrays)
        _check_ends(shard, record, self.folder / f"{number:05d}")
        return shard


def _read_manifest(folder: Path) -> Manifest:
    path = folder / MANIFEST
    if not path.is_file():
        raise DataError(
            f"there is no {MANIFEST} in it, so it is not a corpus; build one: unmask corpus build", file=folder
        )
    if path.stat().st_size > _MAX_MANIFEST_BYTES:
        raise DataError(f"too large for a {MANIFEST}; {_HINT}", file=path)
    try:
        content = read_json(path)
        version = content.get("format") if isinstance(content, dict) else None
        if isinstance(version, int) and version > FORMAT:
            raise DataError(
                f"is of format {version}, but this version of unmask reads up to {FORMAT}; update unmask", file=path
            )
        return Manifest.parse(content, str(path))
    except SettingsError as error:
        raise DataError(f"{error}; {_HINT}") from None


def _check_size(path: Path, size: int) -> None:
    found = path.stat().st_size if path.is_file() else None
    if found is None:
        raise DataError(f"no such file; {_HINT}", file=path)
    if found != size:
        raise DataError(f"has {found:,} bytes where {size:,} should be; {_HINT}", file=path)


def _check_ends(shard: _Shard, record: ShardRecord, name: Path) -> None:
    """The cheap part of what must hold: starts begin at 0 and end where the next array does."""
    for starts, end in ((shard.sentences, record.tokens), (shard.documents, record.sentences)):
        if starts[0] != 0 or starts[-1] != end:
            raise DataError(f"the starts of shard {name.name} do not fit its tokens; {_HINT}", file=name.parent)


def _check_hash(path: Path, expected: str) -> None:
    if not path.is_file():
        raise DataError(f"no such file; {_HINT}", file=path)
    with path.open("rb") as file:
        if hashlib.file_digest(file, "sha256").hexdigest() != expected:
            raise DataError(f"is not as it was written; {_HINT}", file=path)


def _index(number: int, count: int, name: str) -> int:
    if not 0 <= number < count:
        raise IndexError(f"{name} {number} of a corpus that has {count}")
    return number
