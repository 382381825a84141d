"""Texts whose words or stretches have labels: CoNLL columns, CLUENER, and JSON with tokens or stretches."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

from unmask.data.examples import Entity, TaggedExample
from unmask.data.joining import Sentence, joined
from unmask.data.label_kinds import natural
from unmask.data.rows import OnError, RowError, report
from unmask.data.schemes import Scheme, decode, recognise_scheme
from unmask.data.stretches import Reader, is_stretched
from unmask.data.tables import HUB, open_table
from unmask.errors import DataError, place
from unmask.text.files import check_encoding, read_lines, size_of

_BLANKS = re.compile(r"[ \t]+")
_DOCUMENT = "-DOCSTART-"


@dataclass(frozen=True)
class TaggedFile:
    """The examples of a file and what was recognised in it."""

    path: str
    examples: list[TaggedExample]
    #: None where tags are plain (as parts of speech), or where the file gives stretches and no tags.
    scheme: Scheme | None
    #: Whether tags mark no stretches; then `labels` are the tags themselves, and else the types.
    plain: bool
    labels: tuple[str, ...]
    #: Each place where tags break their scheme, with its line. They were read kindly.
    broken: list[RowError]
    #: What was recognised, for people.
    said: list[str]


def read_tagged(
    path: Path | str, *, encoding: str = "utf-8", labelled: bool = True, on_error: OnError = None
) -> TaggedFile:
    """The tagged examples of a file, in any of the formats of this room.

    `labelled` says that there must be tags. What is wrong with an example is a DataError, which is raised, or given
    to `on_error` and the example passed over. Broken sequences of tags are read kindly and listed.
    """
    checked = check_encoding(encoding)
    name = str(path)
    said: list[str] = []
    if _is_table(name):
        table = open_table(path, encoding=encoding)
        reader = Reader(table.path, on_error)
        rows = ((dict(zip(table.columns, row.cells, strict=True)), row.line) for row in table.rows(on_error))
        examples = list(reader.examples(rows))
        said += reader.said()
    else:
        size_of(Path(path))
        examples = joined(list(_sentences(name, read_lines(name, encoding=checked), on_error)))
    if not examples:
        raise DataError("has no sentence with words", file=name)
    if labelled and all(example.tags is None and example.entities is None for example in examples):
        raise DataError("has no tags: every example is only text", file=name)
    return _recognised(name, examples, said)


def is_tagged(path: Path | str, *, encoding: str = "utf-8") -> bool:
    """Whether a file looks like one that `read_tagged` reads, and not like a table of texts with a label."""
    if _is_table(str(path)):
        table = open_table(path, encoding=encoding)
        return any(is_stretched(dict(zip(table.columns, row.cells, strict=True))) for row in table.sample[:50])
    if str(path).removesuffix(".gz").endswith((".csv", ".tsv", ".txt")):
        return _looks_like_columns(read_lines(path, encoding=check_encoding(encoding)))
    return True


def _is_table(name: str) -> bool:
    suffixes = Path(name.removesuffix(".gz")).suffix.lower()
    return name.startswith(HUB) or suffixes in (".jsonl", ".ndjson", ".json", ".parquet")


def _looks_like_columns(lines: Iterator[str]) -> bool:
    """Whether lines of a word and a tag, all of as many cells, come in groups with blank lines between them."""
    widths: Counter[int] = Counter()
    blank = long = 0
    for line in islice(lines, 500):
        cells = _cells(line)
        blank += not line.strip()
        long += max(map(len, cells)) > 50
        widths[len(cells)] += bool(line.strip())
    (width, count), total = (widths or Counter([0])).most_common(1)[0], widths.total()
    return width > 1 and count > 0.95 * total and total > 2 * blank > 0 and long < 0.05 * total


def _cells(line: str) -> list[str]:
    return line.rstrip(" \t").split("\t") if "\t" in line.strip(" \t") else _BLANKS.split(line.rstrip(" \t"))


def _sentences(path: str, lines: Iterable[str], on_error: OnError) -> Iterator[Sentence]:
    """The sentences of a file with a word a line, its tag last; blank lines part them."""
    words: list[str] = []
    tags: list[str] = []
    width: int | None = None
    begin, wrong = 1, False
    for number, line in enumerate([*lines, ""], 1):
        cells = _cells(line)
        if not line.strip() or cells[0] == _DOCUMENT:
            if words and not wrong:
                yield words, tags if tags else None, begin
            words, tags, wrong = [], [], False
            continue
        width = width or len(cells)
        begin = begin if words or wrong else number
        problem = _wrong(cells, width)
        if problem is not None:
            wrong = True
            report(RowError(problem, kind="tags", file=path, line=number), on_error)
        words.append(cells[0])
        if width > 1:
            tags.append(cells[-1])


def _wrong(cells: Sequence[str], width: int) -> str | None:
    if len(cells) != width:
        columns = "1 column" if len(cells) == 1 else f"{len(cells)} columns"
        return f"has {columns} but {width} were expected, as in the first line: a word first, its tag last"
    if not cells[0]:
        return f"has a tag ({cells[-1]!r}) but no word"
    return f"has a word ({cells[0]!r}) but no tag" if width > 1 and not cells[-1] else None


def _recognised(path: str, examples: list[TaggedExample], said: list[str]) -> TaggedFile:
    """Entities from tags, and all labels."""
    tagged = [example.tags for example in examples if example.tags is not None]
    if not tagged:
        labels = {entity.type for example in examples for entity in example.entities or ()}
        return TaggedFile(path, examples, None, False, _said(examples, labels, said, "types"), [], said)
    scheme = recognise_scheme(tagged)
    if scheme is None:
        labels = {tag for tags in tagged for tag in tags}
        said.append("tags are plain: each word has its own")
        if all(label.isdecimal() for label in labels):
            said.append("tags are numbers, which the file does not name")
        return TaggedFile(path, examples, None, True, _said(examples, labels, said, "tags"), [], said)
    broken: list[RowError] = []
    examples = [_with_entities(example, scheme, path, broken) for example in examples]
    said.append(f"tags follow {scheme}")
    if broken:
        first = f"{place(broken[0].line or 1)}: {broken[0].message}"
        said.append(f"{len(broken):,} broken places in the tags were read kindly, the first on {first}")
    labels = {entity.type for example in examples for entity in example.entities or ()}
    return TaggedFile(path, examples, scheme, False, _said(examples, labels, said, "types"), broken, said)


def _with_entities(example: TaggedExample, scheme: Scheme, path: str, broken: list[RowError]) -> TaggedExample:
    if example.tags is None or example.words is None:
        return example
    found, breaks = decode(example.tags, scheme)
    # In columns each word has its line; in JSON all of them have one.
    step = 0 if _is_table(path) else 1
    for index, message in breaks:
        word = "" if step else f"word {index + 1}: "
        broken.append(RowError(word + message, kind="scheme", file=path, line=example.line + step * index))
    entities = tuple(Entity(example.words[start][0], example.words[end - 1][1], type) for start, end, type in found)
    return replace(example, entities=entities)


def _said(examples: Sequence[TaggedExample], labels: set[str], said: list[str], what: str) -> tuple[str, ...]:
    ordered = tuple(sorted(labels, key=natural))
    listed = ", ".join(ordered[:20]) + (" …" if len(ordered) > 20 else "")
    said.append(f"{len(examples):,} examples, {len(ordered)} {what}: {listed}")
    return ordered
