"""One chunk of text → tokens and bounds; also the process that does it: `python -m unmask.data.corpus.worker`.

A worker is a process that reads requests from its standard input and answers on its standard output, in frames of a
small JSON head and a body of plain bytes. When its parent is gone its input ends, and so does the worker.
"""

from __future__ import annotations

import hashlib
import json
import signal
import struct
import sys
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from unmask.data.corpus.encode import SentenceEncoder
from unmask.data.corpus.format import CorpusSettings
from unmask.data.corpus.inputs import Chunk, Place
from unmask.data.sentences import split_sentences
from unmask.errors import DataError, UserError

_SIZES = struct.Struct("<IQ")
# A document's hash is a polynomial in the hashes of its sentences, so that it does not depend on how it was cut.
HASH_BASE = 0x9E3779B97F4A7C15
HASH_MASK = 2**64 - 1


@dataclass(frozen=True)
class EncodedChunk:
    """Sentences of a chunk that have tokens, and its documents, those without any included."""

    tokens: NDArray[np.uint32]
    begins_word: NDArray[np.bool_]
    sentence_tokens: NDArray[np.int64]
    sentence_characters: NDArray[np.int64]
    document_lines: NDArray[np.int64]
    """The line with which each document begins."""
    document_sentences: NDArray[np.int64]
    document_empty_sentences: NDArray[np.int64]
    document_hashes: NDArray[np.uint64]


_TYPES = {"tokens": "<u4", "begins_word": "?", "document_hashes": "<u8"}


class ChunkEncoder:
    """Splits chunks into documents and sentences and encodes these."""

    def __init__(self, tokenizer_folder: Path, settings: CorpusSettings) -> None:
        self._settings = settings
        self._encoder = SentenceEncoder(tokenizer_folder, words=settings.words)

    def encode(self, chunk: Chunk) -> EncodedChunk:
        """The tokens of a chunk."""
        sentences: list[str] = []
        owners: list[int] = []
        lines: list[int] = []
        for line, document in self._documents(chunk):
            owners += [len(lines)] * len(document)
            lines.append(line)
            sentences += document
        found = self._encoder.encode(sentences)
        kept = found.lengths > 0
        owner = np.array(owners, dtype=np.int64)
        hashes = [0] * len(lines)
        for number, sentence, real in zip(owners, sentences, kept.tolist(), strict=True):
            if real:
                hashes[number] = (hashes[number] * HASH_BASE + _hash(sentence)) & HASH_MASK
        characters = np.fromiter(map(len, sentences), dtype=np.int64, count=len(sentences))
        return EncodedChunk(
            found.ids.astype("<u4"),
            found.begins_word,
            found.lengths[kept],
            characters[kept],
            np.array(lines, dtype=np.int64),
            np.bincount(owner[kept], minlength=len(lines)),
            np.bincount(owner[~kept], minlength=len(lines)),
            np.array(hashes, dtype=np.uint64),
        )

    def _documents(self, chunk: Chunk) -> Iterator[tuple[int, list[str]]]:
        """The sentences of each document, and the line with which it begins."""
        lines = enumerate(chunk.text.split("\n"), chunk.place.line)
        if chunk.kind != "text":
            for number, line in lines:
                if line and not line.isspace():
                    yield number, self._sentences(self._field(line, chunk, number).split("\n"))
            return
        held: list[str] = []
        begin = 0
        for number, line in lines:
            if line and not line.isspace():
                begin = begin if held else number
                held.append(line)
            elif held:
                yield begin, self._sentences(held)
                held = []
        if held:
            yield begin, self._sentences(held)

    def _sentences(self, lines: list[str]) -> list[str]:
        if self._settings.format == "sentences":
            return [sentence for line in lines if (sentence := line.strip())]
        return [sentence for line in lines for sentence in split_sentences(line)]

    def _field(self, line: str, chunk: Chunk, number: int) -> str:
        """The text in a line of JSON; nothing if it is null."""
        file, field = chunk.name, self._settings.field
        try:
            value = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise DataError(f"not valid JSON ({error})", file=file, line=number) from None
        if chunk.kind == "jsonl":
            if not isinstance(value, dict):
                raise DataError(f"must be a JSON object with a field {field}", file=file, line=number)
            if field not in value:
                known = ", ".join(list(value)[:20]) or "none"
                raise DataError(f"has no field {field}; its fields are: {known}", file=file, line=number)
            value = value[field]
        if value is None:
            return ""
        if not isinstance(value, str):
            raise DataError(f"the field {field} must be text but is {value!r:.40}", file=file, line=number)
        if not value.isascii() and any("\ud800" <= character <= "\udfff" for character in value):
            raise DataError(f"the field {field} has half a character (a lone surrogate)", file=file, line=number)
        return value


def _hash(sentence: str) -> int:
    return int.from_bytes(hashlib.blake2b(sentence.encode(), digest_size=8).digest(), "little")


def send(stream: BinaryIO, head: dict[str, Any], *body: bytes | memoryview) -> None:
    """Write one frame."""
    packed = json.dumps(head).encode()
    stream.write(_SIZES.pack(len(packed), sum(map(len, body))))
    stream.write(packed)
    for part in body:
        stream.write(part)
    stream.flush()


def receive(stream: BinaryIO) -> tuple[dict[str, Any], bytes] | None:
    """Read one frame; None if the other side is gone."""
    sizes = stream.read(_SIZES.size)
    if len(sizes) < _SIZES.size:
        return None
    head_size, body_size = _SIZES.unpack(sizes)
    head, body = stream.read(head_size), stream.read(body_size)
    return (json.loads(head), body) if len(body) == body_size else None


def send_chunk(stream: BinaryIO, chunk: Chunk) -> None:
    """Ask a worker for a chunk's tokens."""
    head = {"file": chunk.place.file, "line": chunk.place.line, "name": chunk.name, "kind": chunk.kind}
    send(stream, head, chunk.text.encode())


def send_error(stream: BinaryIO, error: UserError) -> None:
    """Answer with what is wrong with a chunk."""
    file, line = getattr(error, "file", None), getattr(error, "line", None)
    send(stream, {"error": str(error), "file": None if file is None else str(file), "line": line})


def receive_encoded(stream: BinaryIO) -> EncodedChunk | None:
    """What a worker answered; its DataError is raised here."""
    frame = receive(stream)
    if frame is None:
        return None
    head, body = frame
    if "error" in head:
        error = DataError(head["error"])  # the message names file and line already
        error.file, error.line = None if head["file"] is None else Path(head["file"]), head["line"]
        raise error
    arrays, place = [], 0
    for field in fields(EncodedChunk):
        kind = np.dtype(_TYPES.get(field.name, "<i8"))
        arrays.append(np.frombuffer(body, dtype=kind, count=head[field.name], offset=place))
        place += arrays[-1].nbytes
    return EncodedChunk(*arrays)


def serve(requests: BinaryIO, answers: BinaryIO, encoder: ChunkEncoder) -> None:
    """Answer requests until there are no more."""
    while (frame := receive(requests)) is not None:
        head, body = frame
        chunk = Chunk(Place(head["file"], head["line"]), head["name"], head["kind"], False, body.decode(), 0)
        try:
            encoded = encoder.encode(chunk)
        except UserError as error:
            send_error(answers, error)
            continue
        arrays = {field.name: getattr(encoded, field.name) for field in fields(EncodedChunk)}
        body_parts = [np.ascontiguousarray(array).view(np.uint8).data for array in arrays.values()]
        send(answers, {name: len(array) for name, array in arrays.items()}, *body_parts)


def main() -> None:
    """Run as a worker: the tokenizer's folder and the settings are the arguments."""
    # Ctrl-C goes to every process of a terminal; the parent decides what happens.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    encoder = ChunkEncoder(Path(sys.argv[1]), CorpusSettings.parse(json.loads(sys.argv[2])))
    try:
        serve(sys.stdin.buffer, sys.stdout.buffer, encoder)
    except BrokenPipeError:
        # The parent is gone; without this the interpreter would complain when it flushes on its way out.
        sys.stderr.close()


if __name__ == "__main__":
    main()
