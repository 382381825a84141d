"""Sentences and their translations: two files of plain text, line by line, or a table with a column for each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from unmask.config import shown
from unmask.data.delimited import recognise, records
from unmask.data.parallel_columns import PairColumns, choose_sides, names_sides, parse_pair_columns
from unmask.data.rows import OnError, RowError, report
from unmask.data.tables import HUB, Row, Table, kind_of, open_table
from unmask.errors import DataError, UserError
from unmask.text.files import TextEncoding, check_encoding, read_lines, size_of
from unmask.text.vocabulary import surrogate_position

_TABLES = (".csv", ".tsv", ".jsonl", ".ndjson", ".json", ".parquet")
#: The column in which sets on the Hub keep an object with a text for each language.
_NESTED = "translation"
_MAX_LINES = 20
_WANTED = "give two files of plain text, or one table (.tsv, .csv, .txt with tabs, .jsonl, .json, .parquet)"


class Pair(NamedTuple):
    """A sentence, its translation, and the line of both (in Parquet and on the Hub the number of the row)."""

    source: str
    target: str
    line: int


@dataclass(frozen=True)
class Noted:
    """How many pairs something is true of, and the first of their lines."""

    count: int = 0
    lines: tuple[int, ...] = ()

    def plus(self, line: int) -> Noted:
        """One more."""
        return Noted(self.count + 1, (*self.lines, line) if len(self.lines) < _MAX_LINES else self.lines)

    def __str__(self) -> str:
        ending = "" if self.count == 1 else "s"
        lines = ", ".join(map(str, self.lines[:3])) + (" …" if self.count > 3 else "")
        return f"{self.count:,} pair{ending}" + (f" (line{ending} {lines})" if lines else "")


@dataclass
class ParallelText:
    """Pairs that are read anew by each `for`, one at a time, and what was recognised of their files."""

    files: tuple[str, ...]
    #: What was recognised, for people.
    said: tuple[str, ...]
    _pairs: Callable[[], Iterator[Pair]]
    #: Pairs with an empty side, which are left out: those of the last pass that came to its end.
    empty: Noted = Noted()

    def __iter__(self) -> Iterator[Pair]:
        empty, some = Noted(), False
        for pair in self._pairs():
            if not pair.source or pair.source.isspace() or not pair.target or pair.target.isspace():
                empty = empty.plus(pair.line)
                continue
            some = True
            yield pair
        self.empty = empty
        if not some:
            raise DataError("has no pair with a text on both sides", file=self.files[0])


def read_pairs(
    files: Sequence[Path | str],
    *,
    columns: PairColumns | str | None = None,
    swap: bool = False,
    encoding: str = "utf-8",
    header: bool | None = None,
) -> ParallelText:
    """The pairs of two files of plain text, whose lines belong together, or of one table (or `hub:NAME:SPLIT`).

    `columns` names those of a table that are not clear, as `PairColumns` or as `source=…,target=…`. `swap` exchanges
    the sides. What is wrong with files and columns is said at once; what is wrong with a line, when it is read.
    """
    if isinstance(files, str | Path):
        files = [files]
    names = tuple(map(str, files))
    checked = check_encoding(encoding)
    choice = parse_pair_columns(columns) if isinstance(columns, str) else columns
    if len(names) == 2:
        return _two_files(names[0], names[1], checked, choice, swap)
    if len(names) != 1:
        raise UserError(f"pairs cannot be read from {len(names)} files; {_WANTED}")
    return _one_table(names[0], choice, swap, checked, header)


def _two_files(
    source: str, target: str, encoding: TextEncoding, choice: PairColumns | None, swap: bool
) -> ParallelText:
    if source == target:
        raise UserError(f"{source} is given for both sides; {_WANTED}")
    for name in (source, target):
        if Path(name.lower().removesuffix(".gz")).suffix in _TABLES or name.startswith(HUB):
            raise DataError("is a table, and of two files each must be plain text; give one table alone", file=name)
        if name != "-" and not size_of(Path(name)):
            raise DataError("is empty", file=name)
    if choice is not None:
        raise UserError(f"{source} and {target} are plain text, which has no columns; leave out --columns")

    def pairs() -> Iterator[Pair]:
        for first, second, line in _lines(source, target, encoding):
            yield Pair(second, first, line) if swap else Pair(first, second, line)

    first, second = (target, source) if swap else (source, target)
    return ParallelText((source, target), (f"source is {first}, target is {second}, line by line",), pairs)


def _lines(first: str, second: str, encoding: TextEncoding) -> Iterator[tuple[str, str, int]]:
    """The lines of two files side by side; DataError where one ends before the other."""
    one, other = read_lines(first, encoding=encoding), read_lines(second, encoding=encoding)
    number, end = 0, object()
    while True:
        left, right = next(one, end), next(other, end)
        if isinstance(left, str) and isinstance(right, str):
            number += 1
            yield left, right, number
            continue
        if left is right:
            return
        short, long, rest = (first, second, other) if left is end else (second, first, one)
        total = number + 1 + sum(1 for _ in rest)
        raise DataError(
            f"ends after {_count(number)}, but {long} has {total:,}, and line by line they must belong together; "
            "find the line that is missing or was broken in two",
            file=short,
            line=number,
        )


def _count(lines: int) -> str:
    return "1 line" if lines == 1 else f"{lines:,} lines"


def _one_table(
    name: str, choice: PairColumns | None, swap: bool, encoding: TextEncoding, header: bool | None
) -> ParallelText:
    table, named = _opened(name, choice, encoding, header)
    sides = choose_sides(
        table.columns, [row.cells for row in table.sample], file=name, choice=choice, named=named, swap=swap
    )

    def pairs() -> Iterator[Pair]:
        for row in table.rows():
            source = _text(row.cells[sides.source], "source", name, row.line)
            yield Pair(source, _text(row.cells[sides.target], "target", name, row.line), row.line)

    return ParallelText((name,), (*table.said, sides.said), pairs)


def _opened(name: str, choice: PairColumns | None, encoding: TextEncoding, header: bool | None) -> tuple[Table, bool]:
    """The table, and whether its columns have names."""
    if name == "-" or (not name.startswith(HUB) and _is_plain(Path(name))):
        size_of(Path(name))  # a file that is not there is said first
        raise DataError(f"pairs cannot be read from this file alone; {_WANTED}", file=name)
    kind = "hub" if name.startswith(HUB) else kind_of(Path(name))
    if kind not in ("csv", "tsv", "txt"):
        return _unnested(open_table(name, encoding=encoding)), True
    if header is None:
        size_of(Path(name))
        dialect = recognise(name, kind, encoding=encoding, header=False)
        errors: list[RowError] = []
        first = next(records(name, dialect, encoding=encoding, on_error=errors.append), None)
        header = first is not None and names_sides(first[0], choice)
    return open_table(name, encoding=encoding, header=header), header


def _is_plain(path: Path) -> bool:
    """Whether a file is called like no table, as train.en is."""
    return Path(path.name.lower().removesuffix(".gz")).suffix not in (*_TABLES, ".txt")


def _unnested(table: Table) -> Table:
    """A table of objects with a text for each language, with a column for each of these."""
    place = next((place for place, name in enumerate(table.columns) if name.lower() == _NESTED), None)
    if place is None or not any(isinstance(row.cells[place], dict) for row in table.sample):
        return table
    cells = [row.cells[place] for row in table.sample]
    names = tuple(dict.fromkeys(str(key) for cell in cells if isinstance(cell, dict) for key in cell))

    def unpacked(row: Row) -> Row:
        cell = row.cells[place]
        if not isinstance(cell, dict):
            message = f"{_NESTED} must be an object with a text for each language but is {shown(cell)}"
            raise RowError(message, kind="json", file=table.path, line=row.line)
        return Row(tuple(cell.get(name) for name in names), row.line)

    def rows(on_error: OnError) -> Iterator[Row]:
        for row in table.rows(on_error):
            try:
                yield unpacked(row)
            except RowError as error:
                report(error, on_error)

    sample = tuple(unpacked(row) for row in table.sample)
    said = f"each {_NESTED} holds the languages {', '.join(names)}"
    return Table(table.path, names, sample, (*table.said, said), rows)


def _text(cell: Any, role: str, path: str, line: int) -> str:
    if cell is None:
        return ""
    if not isinstance(cell, str):
        raise RowError(f"the {role} must be text but is {shown(cell)}", kind="text", file=path, line=line)
    if cell.isascii() and "\0" not in cell:
        return cell
    half = surrogate_position(cell)
    if half is not None or "\0" in cell:
        what = "a zero byte" if half is None else f"half a character (U+{ord(cell[half]):04X})"
        raise RowError(f"the {role} has {what}, so it is not text; remove it", kind="text", file=path, line=line)
    return cell
