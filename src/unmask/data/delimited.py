"""Rows of .csv, .tsv and .txt files: which delimiter, whether quoted, whether the first line names the columns."""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from unmask.data.columns import KNOWN, folded
from unmask.data.rows import OnError, RowError, report
from unmask.errors import DataError
from unmask.text.files import MAX_LINE_BYTES, TextEncoding, read_lines

Record = tuple[list[str], int]
"""Cells, and the line on which they start."""
_NAMES = {",": "commas", ";": "semicolons", "\t": "tabs", None: "lines alone"}
#: Enough lines to recognise a file by, and no more characters than are read in a moment.
_SAMPLE_LINES, _SAMPLE_CHARACTERS = 1000, 1 << 22
_NUMBER = re.compile(r"\s*[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?\s*")
#: A name of a column is a word or three.
_LONGEST_NAME = 40


@dataclass(frozen=True)
class Dialect:
    """How a file of cells is written."""

    #: None where each line is one cell.
    delimiter: str | None
    quoted: bool
    header: bool

    @property
    def name(self) -> str:
        """What stands between cells."""
        return _NAMES[self.delimiter]


def recognise(path: str, kind: str, *, encoding: TextEncoding = "utf-8", header: bool | None = None) -> Dialect:
    """How the file at `path` is written, from its first lines; `kind` is csv, tsv or txt."""
    lines, size = [], 0
    for line in islice(read_lines(path, encoding=encoding), _SAMPLE_LINES):
        lines.append(line)
        size += len(line)
        if size > _SAMPLE_CHARACTERS:
            break
    if not any(line.strip() for line in lines):
        raise DataError("is empty", file=path)
    _not_json(lines, path, kind)
    whole = len(lines) < _SAMPLE_LINES and size <= _SAMPLE_CHARACTERS
    delimiter, quoted = _layout(lines, kind, whole)
    rows = [cells for cells, _ in _sampled(lines, delimiter, quoted, whole)]
    if header is None:
        header = bool(rows) and is_header(rows[0], rows[1:])
    return Dialect(delimiter, quoted, header)


def records(
    path: str, dialect: Dialect, *, encoding: TextEncoding = "utf-8", on_error: OnError = None
) -> Iterator[Record]:
    """All rows of a file, the header too, each with the line it starts on; a row of another width is an error."""
    lines = read_lines(path, encoding=encoding)
    parsed = _quoted(lines, dialect.delimiter or "\0", path, on_error) if dialect.quoted else _plain(lines, dialect)
    width: int | None = None
    for cells, line in parsed:
        width = width or len(cells)
        if len(cells) == width:
            yield cells, line
            continue
        advice = (
            f"a text that contains one of the {dialect.name} must stand in quotes"
            if dialect.quoted
            else f"a text must not contain {dialect.name}"
        )
        message = f"has {_cells(len(cells))} but {width} were expected, as in the first row; {advice}"
        report(RowError(message, kind="ragged", file=path, line=line), on_error)


def is_header(first: Sequence[str], body: Sequence[Sequence[str]]) -> bool:
    """Whether a first row names columns: by a name that is known, or because it is unlike what follows."""
    names = [cell.strip() for cell in first]
    # The first cell may be empty: so an index is written.
    plausible = (all(names[1:]) and len(set(names)) == len(names)) or _repeats_known(names)
    if not plausible or any(len(name) > _LONGEST_NAME or _NUMBER.fullmatch(name) for name in names):
        return False
    columns = [[row[place] for row in body if len(row) == len(first)] for place in range(len(first))]
    for name, cells in zip(names, columns, strict=True):
        if folded(name) in KNOWN and name not in cells:
            return True
    signs = 0
    for name, cells in zip(names, columns, strict=True):
        values = set(cells)
        if name in values and len(values) <= len(cells) // 2:
            return False
        numbers = bool(cells) and all(_NUMBER.fullmatch(cell) for cell in cells)
        few = 4 <= 2 * len(values) <= len(cells) and name not in values
        signs += numbers or (few and len(first) > 1)
    return signs > 0 and len(body) >= 4


def _repeats_known(names: Sequence[str]) -> bool:
    """Whether a name that is known stands there twice: a header all the same, and wrong."""
    return any(count > 1 and folded(name) in KNOWN for name, count in Counter(names).items())


def _layout(lines: Sequence[str], kind: str, whole: bool) -> tuple[str | None, bool]:
    """The delimiter, and whether cells may be quoted."""
    if kind == "csv":
        scores = {delimiter: _agreement(lines, delimiter, whole) for delimiter in ("\t", ";", ",")}
        best = max(scores, key=lambda delimiter: scores[delimiter])
        return (best, True) if scores[best] else (",", True)
    if kind == "tsv" or "\t" in lines[0]:
        return "\t", _tabs_are_quoted(lines, whole)
    for delimiter in (",", ";"):
        # Plain text has commas too: only names that are known make them delimiters here.
        first = next(_sampled(lines, delimiter, True, whole))[0]
        if len(first) > 1 and {folded(cell) for cell in first} & KNOWN and _agreement(lines, delimiter, whole) > 0.9:
            return delimiter, True
    return None, False


def _agreement(lines: Sequence[str], delimiter: str, whole: bool) -> float:
    """The share of rows that have as many cells as the first; 0 if that has only one."""
    widths = [len(cells) for cells, _ in _sampled(lines, delimiter, True, whole)]
    if not widths or widths[0] == 1:
        return 0.0
    return sum(width == widths[0] for width in widths) / len(widths)


def _tabs_are_quoted(lines: Sequence[str], whole: bool) -> bool:
    """Whether quotes around cells belong to the writing and not to the texts.

    So it is where a quote inside quotes is doubled, or where only quotes make all rows equally wide.
    """
    cells = [cell for line in lines for cell in line.split("\t") if '"' in cell]
    proper = [cell for cell in cells if re.fullmatch(r'"(?:[^"]|"")*"', cell)]
    if cells and len(proper) == len(cells) and any('""' in cell[1:-1] for cell in proper):
        return True
    plain = {len(line.split("\t")) for line in lines if line}
    if len(plain) == 1 or not cells:
        return False
    quoted = {len(row) for row, _ in _sampled(lines, "\t", True, whole)}
    return len(quoted) == 1 and quoted != {1}


def _sampled(lines: Sequence[str], delimiter: str | None, quoted: bool, whole: bool) -> Iterator[Record]:
    """The rows of the first lines; the last is left out where it may be cut off. What is wrong is left out."""
    if not quoted:
        yield from _plain(lines, Dialect(delimiter, False, False))
        return
    errors: list[RowError] = []
    rows = list(_quoted(lines, delimiter or "\0", "", errors.append))
    yield from rows if whole or len(rows) < 2 else rows[:-1]


def _plain(lines: Iterable[str], dialect: Dialect) -> Iterator[Record]:
    for number, line in enumerate(lines, 1):
        if dialect.delimiter is None:
            yield [line], number
        elif line and not line.isspace():
            yield line.split(dialect.delimiter), number


def _quoted(lines: Iterable[str], delimiter: str, path: str, on_error: OnError) -> Iterator[Record]:
    # The limit is the process's own, and 131,072 characters are too few for a long document.
    csv.field_size_limit(max(csv.field_size_limit(), MAX_LINE_BYTES))
    reader = csv.reader((line + "\n" for line in lines), delimiter=delimiter, strict=True)
    while True:
        start = reader.line_num + 1
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            report(RowError(_quoting(str(error)), kind="quotes", file=path, line=start), on_error)
            continue
        if any(cell and not cell.isspace() for cell in cells) or len(cells) > 1:
            yield cells, start


def _quoting(error: str) -> str:
    if "unexpected end" in error:
        return 'a quote (") is opened here and never closed; close it, or double the quotes that belong to the text'
    if "field larger" in error:
        return f'a cell of more than {MAX_LINE_BYTES:,} characters; is a quote (") opened here and never closed?'
    if "expected after" in error:
        return 'a quote (") inside a quoted cell must be doubled ("")'
    return "has a line end (CR) in the middle of a line; save the file with line ends of one kind"


def _not_json(lines: Sequence[str], path: str, kind: str) -> None:
    first = next(line for line in lines if line.strip()).strip()
    if first.startswith('{"') and first.endswith("}") and kind != "txt":
        raise DataError(f"is called .{kind} but holds JSON lines; rename it to end in .jsonl", file=path)


def _cells(number: int) -> str:
    return "1 cell" if number == 1 else f"{number} cells"
