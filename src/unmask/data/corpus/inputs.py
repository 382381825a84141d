"""Files → chunks of text of bounded size, in order, each with its place."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from unmask.config import Settings
from unmask.data.corpus.format import CorpusSettings, Count
from unmask.data.parquet import open_parquet
from unmask.errors import DataError
from unmask.text.files import read_lines_at, size_of

#: Enough work that handing it over costs nothing, little enough that many can wait in memory.
CHUNK_CHARACTERS = 1 << 18
# A document is cut over several chunks only when it is longer than this.
_LONG_DOCUMENT = 4 * CHUNK_CHARACTERS

Kind = Literal["text", "jsonl", "strings"]
"""text: blank lines between documents. jsonl: a document a line. strings: as jsonl, but each line is only the text."""


class Input(Settings):
    """A file to read, and how to see that it is still the same one."""

    path: str
    bytes: Count
    modified: int
    """When it was last changed, in nanoseconds."""

    @classmethod
    def of(cls, path: Path) -> Input:
        """Look at a file; DataError if it cannot be read as text."""
        if str(path) == "-":
            raise DataError("a corpus is built from files, not from standard input; save the text first")
        size_of(path)
        try:
            path.open("rb").close()
        except OSError as error:
            raise DataError(f"cannot be opened ({error.strerror})", file=path) from None
        if path.suffix == ".parquet":
            open_parquet(path)
        state = path.stat()
        return cls(path=str(path.absolute()), bytes=state.st_size, modified=state.st_mtime_ns)


@dataclass(frozen=True)
class Place:
    """Where to begin to read: the number of a file, from 0, and of a line in it, from 1."""

    file: int = 0
    line: int = 1


@dataclass(frozen=True)
class Chunk:
    """Some lines of one file, the first of which is not blank."""

    place: Place
    name: str
    kind: Kind
    continues: bool
    """Whether it begins in the middle of the document with which the chunk before it ended."""
    text: str
    bytes_read: int
    """Of all files together, to the end of this chunk."""


def read_chunks(inputs: Sequence[Input], settings: CorpusSettings, start: Place) -> Iterator[Chunk]:
    """The text of all files from a place on, where a document must begin."""
    before = sum(source.bytes for source in inputs[: start.file])
    for number in range(start.file, len(inputs)):
        path = Path(inputs[number].path)
        lines, kind = _lines(path, settings)
        first = Place(number, start.line if number == start.file else 1)
        cut = _documents_whole if kind == "text" else _lines_whole
        for line, continues, text, done in cut(lines, first.line):
            yield Chunk(Place(number, line), str(path), kind, continues, text, before + done)
        before += inputs[number].bytes
        if Input.of(path) != inputs[number]:
            raise DataError("was changed while it was read; build the corpus again", file=path)


Line = tuple[str, int]
Cut = tuple[int, bool, str, int]


def _lines(path: Path, settings: CorpusSettings) -> tuple[Iterable[Line], Kind]:
    suffixes = path.suffixes[:-1] if path.suffix == ".gz" else path.suffixes
    match suffixes[-1:]:
        case [".parquet"]:
            return _rows(path, settings.field), "strings"
        case [".jsonl" | ".ndjson"]:
            return read_lines_at(path, encoding=settings.encoding), "jsonl"
        case _:
            return read_lines_at(path, encoding=settings.encoding), "text"


def _documents_whole(lines: Iterable[Line], first: int) -> Iterator[Cut]:
    """Chunks that end where a document ends, except in very long ones."""
    held: list[str] = []
    size = begin = done = 0
    continues = False
    for number, (line, done) in enumerate(lines, 1):
        if number < first:
            continue
        blank = not line or line.isspace()
        if not held:
            if blank:
                continues = False
                continue
            begin = number
        held.append(line)
        size += len(line) + 1
        if size >= (CHUNK_CHARACTERS if blank else _LONG_DOCUMENT):
            yield begin, continues, "\n".join(held), done
            held, size, continues = [], 0, not blank
    if held:
        yield begin, continues, "\n".join(held), done


def _lines_whole(lines: Iterable[Line], first: int) -> Iterator[Cut]:
    """Chunks of files in which every line is a document."""
    held: list[str] = []
    size = begin = done = 0
    for number, (line, done) in enumerate(lines, 1):
        if number < first:
            continue
        if not held:
            begin = number
        held.append(line)
        size += len(line) + 1
        if size >= CHUNK_CHARACTERS:
            yield begin, False, "\n".join(held), done
            held, size = [], 0
    if held:
        yield begin, False, "\n".join(held), done


def _rows(path: Path, field: str) -> Iterator[Line]:
    """The texts of a column, each written as a JSON string so that it fits on a line."""
    file = open_parquet(path)
    total, read, size = file.metadata.num_rows, 0, path.stat().st_size
    names = list(file.schema_arrow.names)
    if field not in names:
        raise DataError(f"has no column {field}; its columns are {', '.join(map(str, names[:20]))}", file=path)
    for batch in file.iter_batches(batch_size=256, columns=[field]):
        for value in batch.column(0).to_pylist():
            read += 1
            if value is not None and not isinstance(value, str):
                raise DataError(
                    f"the column {field} must be text but has a {type(value).__name__}", file=path, line=read
                )
            yield json.dumps(value, ensure_ascii=False), size * read // max(total, 1)
