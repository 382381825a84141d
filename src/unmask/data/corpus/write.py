"""Encoded chunks → shards on the disk, and what is counted on the way."""

from __future__ import annotations

import contextlib
import hashlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from unmask.data.corpus.format import (
    MAX_SHARD_TOKENS,
    PARTS,
    Part,
    ShardRecord,
    Statistics,
    TokenType,
    histogram,
    shard_file,
)
from unmask.data.corpus.worker import HASH_BASE, HASH_MASK, EncodedChunk
from unmask.errors import DataError
from unmask.storage import sync


class PartFile:
    """One array of a shard, appended to; knows its hash."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = path.open("wb")
        self._sha256 = hashlib.sha256()

    def append(self, array: NDArray[np.generic]) -> None:
        """Write an array, which must be little-endian, at the end."""
        data = np.ascontiguousarray(array).view(np.uint8).data
        self._file.write(data)
        self._sha256.update(data)

    def close(self) -> str:
        """Put all of it on the disk; its hash."""
        self._file.close()
        sync(self.path)
        return self._sha256.hexdigest()

    def abandon(self) -> None:
        """Let go of a file that will not be finished."""
        with contextlib.suppress(OSError):  # of what could not be written before, either
            self._file.close()


class ShardWriter:
    """Writes one shard. Documents come as rows of a chunk; the last one stays open until it is known to have ended."""

    def __init__(self, folder: Path, number: int, token_type: TokenType, rare: NDArray[np.uint8]) -> None:
        """`rare` says of every id whether it is unknown (1), another special token (2) or neither (0)."""
        self._parts: dict[Part, PartFile] = {part: PartFile(shard_file(folder, number, part)) for part in PARTS}
        self._type = np.dtype(token_type).newbyteorder("<")
        self._rare = rare
        self._bits = np.empty(0, dtype=np.bool_)  # of the last, unfinished byte
        self._hashes: list[NDArray[np.uint64]] = []
        self._ended_sentences = 0  # of the documents that have ended
        self.tokens = 0
        self._sentences = 0
        self._words = 0
        self._open: tuple[int, int, int] | None = None  # sentences, tokens, hash
        self.statistics = Statistics()
        try:
            for part in ("sentences", "documents"):
                self._parts[part].append(np.zeros(1, dtype="<u4"))
        except OSError:
            self.abandon()
            raise

    def add(self, chunk: EncodedChunk, first: int, last: int, *, continues: bool) -> None:
        """Write documents `first` to `last` (not included) of a chunk."""
        sentence_range = _range(chunk.document_sentences, first, last)
        token_range = _range(chunk.sentence_tokens, sentence_range.start, sentence_range.stop)
        lengths = chunk.sentence_tokens[sentence_range]
        self._add_tokens(chunk.tokens[token_range], chunk.begins_word[token_range], lengths)
        counts = chunk.document_sentences[first:last]
        ends = np.cumsum(counts)
        reached = np.concatenate([[0], np.cumsum(lengths)])
        tokens = reached[ends] - reached[ends - counts]
        self._add_documents(counts, tokens, chunk.document_hashes[first:last], continues)
        self.statistics = self.statistics.plus(
            Statistics(
                characters=int(chunk.sentence_characters[sentence_range].sum()),
                empty_sentences=int(chunk.document_empty_sentences[first:last].sum()),
                longest_sentence=int(lengths.max(initial=0)),
                sentence_lengths=histogram(lengths),
            )
        )

    def close(self, hash_file: Path) -> ShardRecord:
        """Finish the shard; the hashes of its documents go to a file of their own."""
        self.end_document()
        self._parts["words"].append(np.packbits(self._bits, bitorder="little"))
        sums = {part: file.close() for part, file in self._parts.items()}
        hash_file.write_bytes(np.concatenate(self._hashes).astype("<u8").tobytes())
        sync(hash_file)
        return ShardRecord(
            documents=self.statistics.documents, sentences=self._sentences, tokens=self.tokens, sha256=sums
        )

    def abandon(self) -> None:
        """Let go of the files of a shard that will not be finished."""
        for file in self._parts.values():
            file.abandon()

    def end_document(self) -> None:
        """Record the open document, if there is one."""
        if self._open is not None:
            sentences, tokens, number = self._open
            self._open = None
            self._record(np.array([sentences]), np.array([tokens]), np.array([number], dtype=np.uint64))

    def _add_tokens(self, ids: NDArray[np.uint32], begins: NDArray[np.bool_], lengths: NDArray[np.int64]) -> None:
        if self.tokens + len(ids) > MAX_SHARD_TOKENS:
            raise DataError(f"a document has more than {MAX_SHARD_TOKENS:,} tokens; cut it with a blank line")
        self._parts["tokens"].append(ids.astype(self._type))
        self._parts["sentences"].append((self.tokens + np.cumsum(lengths)).astype("<u4"))
        bits = np.concatenate([self._bits, begins])
        whole = len(bits) // 8 * 8
        self._parts["words"].append(np.packbits(bits[:whole], bitorder="little"))
        self._bits = bits[whole:]
        self.tokens += len(ids)
        self._sentences += len(lengths)
        rare = np.bincount(self._rare[ids], minlength=3)
        self.statistics = self.statistics.plus(
            Statistics(
                sentences=len(lengths),
                tokens=len(ids),
                words=int(np.count_nonzero(begins)),
                unknown_tokens=int(rare[1]),
                special_tokens=int(rare[2]),
            )
        )

    def _add_documents(
        self, sentences: NDArray[np.int64], tokens: NDArray[np.int64], hashes: NDArray[np.uint64], continues: bool
    ) -> None:
        """Record documents whose end is known; the last may go on in the next chunk."""
        if not len(sentences):
            return
        sentences, tokens, hashes = sentences.copy(), tokens.copy(), hashes.copy()
        if continues and self._open is not None:
            before, length, number = self._open
            shifted = number * pow(HASH_BASE, int(sentences[0]), 2**64)
            hashes[0] = (shifted + int(hashes[0])) & HASH_MASK
            sentences[0] += before
            tokens[0] += length
            self._open = None
        self.end_document()
        self._record(sentences[:-1], tokens[:-1], hashes[:-1])
        self._open = int(sentences[-1]), int(tokens[-1]), int(hashes[-1])

    def _record(self, sentences: NDArray[np.int64], tokens: NDArray[np.int64], hashes: NDArray[np.uint64]) -> None:
        kept = sentences > 0
        ends = self._ended_sentences + np.cumsum(sentences[kept])
        if len(ends):
            self._ended_sentences = int(ends[-1])
        self._parts["documents"].append(ends.astype("<u4"))
        self._hashes.append(hashes[kept])
        self.statistics = self.statistics.plus(
            Statistics(
                documents=int(kept.sum()),
                empty_documents=int((~kept).sum()),
                longest_document=int(tokens.max(initial=0)),
                document_lengths=histogram(tokens[kept]),
            )
        )


def _range(lengths: NDArray[np.int64], first: int, last: int) -> slice:
    """Where the items of rows `first` to `last` lie."""
    start = int(lengths[:first].sum())
    return slice(start, start + int(lengths[first:last].sum()))


def count_duplicates(files: list[Path]) -> int:
    """How many hashes in these files were there before, in little memory whatever their number."""
    total = sum(file.stat().st_size // 8 for file in files)
    rounds = total // _HASHES_AT_ONCE + 1
    duplicates = 0
    for turn in range(rounds):
        # Only hashes with this remainder: equal ones always meet in the same round.
        chosen = []
        for file in files:
            hashes = np.fromfile(file, dtype="<u8")
            chosen.append(hashes[hashes % rounds == turn])
        together = np.concatenate(chosen) if chosen else np.empty(0, dtype=np.uint64)
        duplicates += len(together) - len(np.unique(together))
    return duplicates


_HASHES_AT_ONCE = 1 << 21
