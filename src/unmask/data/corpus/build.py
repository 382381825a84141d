"""Text files → a corpus folder: streamed, in several processes, and able to go on after an interruption.

Who turns text into tokens is a parameter (`Encode`): the processes of this machine here, a cluster in `scale`.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import tempfile
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from unmask.data.corpus.draft import Draft, FinishedShard, Task, drafting
from unmask.data.corpus.format import (
    FORMAT,
    MANIFEST,
    TOKENIZER,
    CorpusSettings,
    InputRecord,
    Manifest,
    Statistics,
    TokenizerRecord,
    token_type_for,
)
from unmask.data.corpus.inputs import Chunk, Input, Place, read_chunks
from unmask.data.corpus.pool import available_cores, encoded_chunks
from unmask.data.corpus.store import Corpus
from unmask.data.corpus.worker import EncodedChunk
from unmask.data.corpus.write import ShardWriter, count_duplicates
from unmask.errors import DataError, SettingsError, UserError
from unmask.storage import atomic_write
from unmask.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class Progress:
    """How far a build has come: bytes of the files that were dealt with, of all bytes, and documents written."""

    done: int
    total: int
    documents: int
    stage: str = "building"


Listener = Callable[[Progress | str], None]
"""Hears of progress, and sentences about what is being done."""

Encode = Callable[[Draft], Generator[tuple[Chunk, EncodedChunk]]]
"""Reads the files of a draft from its place on: every chunk with its tokens, in order. Its text may be left out."""


def build_corpus(
    files: Sequence[Path],
    tokenizer: Tokenizer,
    out: Path,
    settings: CorpusSettings | None = None,
    *,
    workers: int | None = None,
    overwrite: bool = False,
    listener: Listener | None = None,
) -> Corpus:
    """Build a corpus from text files and open it.

    The same files, tokenizer and settings give the same bytes, whatever the number of workers (all cores if it is
    None). The folder appears when all is done; until then `OUT.partial` holds what an interrupted build goes on from.
    """
    encode = on_this_machine(workers)
    return build_with(encode, files, tokenizer, out, settings, overwrite=overwrite, listener=listener)


def build_with(
    encode: Encode,
    files: Sequence[Path],
    tokenizer: Tokenizer,
    out: Path,
    settings: CorpusSettings | None = None,
    *,
    overwrite: bool = False,
    listener: Listener | None = None,
) -> Corpus:
    """As `build_corpus`, with another way of turning text into tokens; the bytes are the same."""
    out = Path(out)
    settings = settings or CorpusSettings()
    if not files:
        raise DataError("no files were given to build a corpus from")
    if out.exists() and not overwrite and (out.is_file() or any(out.iterdir())):
        raise UserError(f"{out}: exists already; choose another name or allow it to be overwritten")
    listener = listener or (lambda heard: None)
    inputs = tuple(Input.of(Path(file)) for file in files)
    task = Task(
        settings=settings,
        tokenizer=_record(tokenizer),
        token_type=token_type_for(tokenizer.vocab_size),
        inputs=inputs,
    )
    with drafting(out, task) as draft:
        if said := draft.take_up():
            listener(said)
        tokenizer.save(draft.corpus / TOKENIZER)
        statistics = _write_shards(draft, tokenizer, encode, listener)
        if not draft.journal.shards:
            raise DataError(f"no sentence was found in {_names(files)}; nothing was built")
        _finish(draft, statistics)
        draft.put_in_place()
    return Corpus.open(out)


def on_this_machine(workers: int | None = None) -> Encode:
    """Encoding in processes of this machine: so many, one for each core if it is None."""
    count = available_cores() if workers is None else workers
    if count < 1:
        raise SettingsError(f"workers: {count} is too few; at least 1 is needed")

    def encode(draft: Draft) -> Generator[tuple[Chunk, EncodedChunk]]:
        task = draft.journal.task
        chunks = read_chunks(task.inputs, task.settings, draft.place)
        return encoded_chunks(chunks, draft.corpus / TOKENIZER, task.settings, count)

    return encode


def _write_shards(draft: Draft, tokenizer: Tokenizer, encode: Encode, listener: Listener) -> Statistics:
    total = sum(source.bytes for source in draft.journal.task.inputs)
    encoded = encode(draft)
    with contextlib.closing(encoded), contextlib.closing(_Shards(draft, _rare_ids(tokenizer))) as shards:
        for chunk, tokens in encoded:
            shards.add(chunk, tokens)
            listener(Progress(chunk.bytes_read, total, shards.documents))
        return shards.finish()


class _Shards:
    """Deals chunks out to shards, and closes these where they are full."""

    def __init__(self, draft: Draft, rare: NDArray[np.uint8]) -> None:
        self._draft = draft
        self._rare = rare
        self._limit = draft.journal.task.settings.shard_tokens
        self._writer = self._new_writer()
        self._earlier = sum(shard.record.documents for shard in draft.journal.shards)

    @property
    def documents(self) -> int:
        """How many documents were written so far."""
        return self._earlier + self._writer.statistics.documents

    def add(self, chunk: Chunk, encoded: EncodedChunk) -> None:
        """Write a chunk; a shard ends before the first document that begins when it is full."""
        ends = np.cumsum(encoded.document_sentences)
        reached = np.concatenate([[0], np.cumsum(encoded.sentence_tokens)])
        before = reached[ends - encoded.document_sentences]  # tokens of the chunk before each document
        first = 0
        while first < len(ends):
            continues = chunk.continues and first == 0
            begins = first + 1 if continues else first  # the first document that begins here
            full = np.flatnonzero(self._writer.tokens + before[begins:] - before[first] >= self._limit)
            cut = begins + int(full[0]) if len(full) else len(ends)
            if cut > first:
                self._writer.add(encoded, first, cut, continues=continues)
            if cut < len(ends):
                self._close(Place(chunk.place.file, int(encoded.document_lines[cut])))
            first = cut

    def finish(self) -> Statistics:
        """Close the last shard; what all shards counted."""
        self._writer.end_document()
        rest = self._writer.statistics
        if rest.documents:
            self._close(Place(len(self._draft.journal.task.inputs), 1))
            rest = Statistics()
        for shard in self._draft.journal.shards:
            rest = rest.plus(shard.statistics)
        return rest

    def close(self) -> None:
        """Let go of what was not finished."""
        self._writer.abandon()

    def _close(self, following: Place) -> None:
        number = len(self._draft.journal.shards)
        record = self._writer.close(self._draft.hash_file(number))
        self._earlier += record.documents
        self._draft.finish_shard(
            FinishedShard(
                record=record,
                statistics=self._writer.statistics,
                next_file=following.file,
                next_line=following.line,
            )
        )
        self._writer = self._new_writer()

    def _new_writer(self) -> ShardWriter:
        task = self._draft.journal.task
        return ShardWriter(self._draft.corpus, len(self._draft.journal.shards), task.token_type, self._rare)


def _finish(draft: Draft, statistics: Statistics) -> None:
    """Write what the corpus says about itself."""
    task, shards = draft.journal.task, draft.journal.shards
    draft.remove_unfinished()
    duplicates = count_duplicates([draft.hash_file(number) for number in range(len(shards))])
    manifest = Manifest(
        format=FORMAT,
        tokenizer=task.tokenizer,
        token_type=task.token_type,
        settings=task.settings,
        inputs=tuple(InputRecord(name=Path(source.path).name, bytes=source.bytes) for source in task.inputs),
        statistics=statistics.replace(duplicate_documents=duplicates),
        shards=tuple(shard.record for shard in shards),
    )
    text = json.dumps(manifest.model_dump(mode="json"), ensure_ascii=False, indent=1)
    atomic_write(draft.corpus / MANIFEST, f"{text}\n".encode())


def _record(tokenizer: Tokenizer) -> TokenizerRecord:
    """The tokenizer by the hash of what it is saved as."""
    with tempfile.TemporaryDirectory() as spare:
        tokenizer.save(Path(spare))
        saved = (Path(spare) / "tokenizer.json").read_bytes()
    return TokenizerRecord(
        sha256=hashlib.sha256(saved).hexdigest(), vocab_size=tokenizer.vocab_size, kind=tokenizer.kind
    )


def _rare_ids(tokenizer: Tokenizer) -> NDArray[np.uint8]:
    """For every id 1 if it is the unknown token, 2 if it is another special one, else 0."""
    rare = np.zeros(tokenizer.vocab_size, dtype=np.uint8)
    rare[sorted(tokenizer.special_ids)] = 2
    if tokenizer.unk_id is not None:
        rare[tokenizer.unk_id] = 1
    return rare


def _names(files: Iterable[Path]) -> str:
    names = [str(file) for file in files]
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
