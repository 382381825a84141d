"""Rows of .csv, .tsv, .txt, .jsonl, .json and .parquet files and of sets on the Hub, each with its line."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from unmask.data.delimited import Record, recognise, records
from unmask.data.json_rows import lines_of_objects, objects_of
from unmask.data.parquet import open_parquet
from unmask.data.rows import OnError, RowError, report
from unmask.errors import DataError, FetchError, UnmaskError, UserError
from unmask.text.files import TextEncoding, check_encoding, size_of

HUB = "hub:"
"""How the name of a set on the Hugging Face Hub begins: `hub:NAME:SPLIT` or `hub:NAME:CONFIG:SPLIT`."""
_KINDS = {".csv": "csv", ".tsv": "tsv", ".txt": "txt", ".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "json"}
_SAMPLE_ROWS = 1000


class Row(NamedTuple):
    """The cells of a row, in the order of the table's columns, and the line it starts on (in Parquet its number)."""

    cells: tuple[Any, ...]
    line: int


@dataclass(frozen=True)
class Table:
    """A file that has columns. Rows are read anew each time, and never held all at once but for .json."""

    path: str
    columns: tuple[str, ...]
    #: The first rows, to recognise columns by.
    sample: tuple[Row, ...]
    #: What was recognised, for people.
    said: tuple[str, ...]
    _rows: Callable[[OnError], Iterator[Row]]

    def rows(self, on_error: OnError = None) -> Iterator[Row]:
        """All rows. A row that is wrong is a DataError, which is raised, or given to `on_error` and passed over."""
        return self._rows(on_error)


def open_table(path: Path | str, *, encoding: str = "utf-8", header: bool | None = None) -> Table:
    """A table by the name of its file (each text format also with .gz) or its place on the Hub.

    Whether a .csv, .tsv or .txt file has a header is recognised unless it is said, and so is its delimiter.
    """
    checked = check_encoding(encoding)
    name = str(path)
    if name.startswith(HUB):
        return _hub(name)
    kind = kind_of(Path(path))
    size_of(Path(path))
    match kind:
        case "csv" | "tsv" | "txt":
            return _delimited(name, kind, checked, header)
        case "jsonl":
            return _objects(name, lambda on_error: lines_of_objects(name, encoding=checked, on_error=on_error))
        case "json":
            return _json(name, checked)
        case _:
            return _parquet(Path(path))


def kind_of(path: Path) -> str:
    """csv, tsv, txt, jsonl, json or parquet, by a file's name; DataError for any other."""
    suffix = path.with_suffix("").suffix if path.suffix.lower() == ".gz" else path.suffix
    if suffix.lower() == ".parquet" and path.suffix.lower() != ".gz":
        return "parquet"
    if suffix.lower() in _KINDS:
        return _KINDS[suffix.lower()]
    size_of(path)  # a file that is not there, or a folder, is said first
    advice = "save it as .csv" if suffix.lower() in (".xls", ".xlsx", ".ods") else "its name must end so"
    raise DataError(
        f"a file called {suffix or 'so, without an ending,'} is not read as a table; "
        f"tables are .csv, .tsv, .txt, .jsonl, .json (each also .gz) and .parquet: {advice}",
        file=path,
    )


def _delimited(path: str, kind: str, encoding: TextEncoding, header: bool | None) -> Table:
    dialect = recognise(path, kind, encoding=encoding, header=header)
    errors: list[RowError] = []
    first = _head(path, records(path, dialect, encoding=encoding, on_error=errors.append), 1, errors)[0]
    names = _names(first, path) if dialect.header else _numbered(len(first[0]))

    def rows(on_error: OnError) -> Iterator[Row]:
        for number, (cells, line) in enumerate(records(path, dialect, encoding=encoding, on_error=on_error)):
            if number or not dialect.header:
                yield Row(tuple(cells), line)

    said = [f"line {first[1]} names the columns: {', '.join(names)}" if dialect.header else _no_header(len(names))]
    unnamed = [place for place, name in enumerate(first[0], 1) if dialect.header and not name.strip()]
    if unnamed:
        said.append(f"column {unnamed[0]} has no name and is called {names[unnamed[0] - 1]!r}")
    if kind != "tsv" and len(names) > 1:
        said.append(f"columns are separated by {dialect.name}")
    sample = _head(path, rows(errors.append), _SAMPLE_ROWS, errors, "has a header but no rows")
    return Table(path, names, tuple(sample), tuple(said), rows)


def _no_header(width: int) -> str:
    if width == 1:
        return "no header: each line is a text"
    return f"no header was recognised: the columns are called column 1 to column {width}"


def _numbered(width: int) -> tuple[str, ...]:
    return tuple(f"column {number}" for number in range(1, width + 1))


def _names(first: Record, path: str) -> tuple[str, ...]:
    cells, line = first
    names = tuple(cell.strip() or f"column {number}" for number, cell in enumerate(cells, 1))
    for place, name in enumerate(names):
        if name in names[:place]:
            raise DataError(f"two columns are called {name!r}; rename or remove one", file=path, line=line)
    return names


def _head(
    path: str, rows: Iterable[Any], number: int, errors: Sequence[RowError] = (), none: str = "has no rows"
) -> Sequence[Any]:
    """The first rows; DataError if there are none, with what was wrong with them."""
    found = list(islice(rows, number))
    if not found:
        raise errors[0] if errors else DataError(none, file=path)
    return found


def _objects(path: str, objects: Callable[[OnError], Iterator[tuple[dict[str, Any], int]]]) -> Table:
    """A table of objects, whose columns are the keys of the first of them."""
    errors: list[RowError] = []
    first = _head(path, objects(errors.append), _SAMPLE_ROWS, errors, "is empty")
    names = tuple(dict.fromkeys(str(key) for item, _ in first for key in item))
    if not names:
        raise DataError("its objects are empty", file=path, line=first[0][1])

    def rows(on_error: OnError) -> Iterator[Row]:
        for item, line in objects(on_error):
            yield Row(tuple(item.get(name) for name in names), line)

    sample = tuple(Row(tuple(item.get(name) for name in names), line) for item, line in first)
    return Table(path, names, sample, (), rows)


def _json(path: str, encoding: TextEncoding) -> Table:
    errors: list[RowError] = []
    held = list(objects_of(path, encoding=encoding, on_error=errors.append))

    def objects(on_error: OnError) -> Iterator[tuple[dict[str, Any], int]]:
        for error in errors:
            report(error, on_error)
        return iter(held)

    return _objects(path, objects)


def _parquet(path: Path) -> Table:
    def rows(on_error: OnError) -> Iterator[Row]:
        number = 0
        for batch in open_parquet(path).iter_batches(batch_size=1024):
            for cells in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                number += 1
                yield Row(cells, number)

    names = tuple(map(str, open_parquet(path).schema_arrow.names))
    return Table(str(path), names, tuple(_head(str(path), rows(None), _SAMPLE_ROWS)), (), rows)


def _hub(name: str) -> Table:
    """A set on the Hub through the package `datasets`, which keeps a copy on the disk."""
    parts = name.removeprefix(HUB).split(":")
    if len(parts) not in (2, 3) or not all(parts):
        raise UserError(f"{name}: a set on the Hub is written hub:NAME:SPLIT or hub:NAME:CONFIG:SPLIT")
    found = _loaded(name, parts[0], parts[1] if len(parts) == 3 else None, parts[-1])
    names = tuple(found.column_names)

    def rows(on_error: OnError) -> Iterator[Row]:
        for number, item in enumerate(found, 1):
            yield Row(tuple(_class(item[column], found.features[column]) for column in names), number)

    return Table(name, names, tuple(_head(name, rows(None), _SAMPLE_ROWS)), (), rows)


def _class(value: Any, feature: Any) -> Any:
    """A class by its name, which says more than the number that is stored; -1 means that there is none."""
    if isinstance(value, list):
        inner = getattr(feature, "feature", feature[0] if isinstance(feature, list) else None)
        return [_class(part, inner) for part in value]
    if not hasattr(feature, "int2str") or value is None:
        return value
    return None if value == -1 else feature.int2str(value)


def _loaded(name: str, repository: str, config: str | None, split: str) -> Any:
    try:
        datasets = importlib.import_module("datasets")
    except ImportError:
        raise UserError(
            f"{name}: sets on the Hub need the package datasets; install it: pip install datasets"
        ) from None
    try:
        return datasets.load_dataset(repository, config, split=split)
    except UnmaskError:
        raise
    except (ValueError, FileNotFoundError) as error:
        raise UserError(f"{name}: cannot be loaded ({' '.join(str(error).split())[:300]})") from None
    except Exception as error:  # the package passes on what many others raise: all of it is the network's or the disk's
        raise FetchError(f"{name}: could not be fetched ({' '.join(str(error).split())[:300]})") from error
