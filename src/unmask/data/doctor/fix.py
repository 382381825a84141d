"""A cleaned copy of a file: what cannot be used is left out, what can be mended is mended, and all of it is counted."""

from __future__ import annotations

import gzip
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from unmask.data.delimited import recognise, records
from unmask.data.doctor.checks import leaked, repeated
from unmask.data.doctor.examine import DoctorSettings
from unmask.data.doctor.items import Examples, Task, read_examples, recognise_task
from unmask.data.doctor.mend import Mender
from unmask.data.json_rows import is_json_lines
from unmask.data.rows import RowError
from unmask.data.tables import HUB, kind_of
from unmask.errors import DataError, UserError
from unmask.storage import replacing
from unmask.text.files import read_lines


@dataclass(frozen=True)
class Fixed:
    """What was done, and how often."""

    file: str
    out: str
    #: In words, as `exact copies dropped`.
    done: dict[str, int]
    kept: int


def fix(
    path: Path | str,
    out: Path,
    settings: DoctorSettings | None = None,
    *,
    dev: Path | str | None = None,
    overwrite: bool = False,
) -> Fixed:
    """Write a cleaned copy of `path` to `out`, in the same format: without rows that are refused, without copies, and
    without texts of the dev set; answers are moved to where they are and broken tags repaired."""
    settings = settings or DoctorSettings()
    _check_out(path, out, overwrite)
    path = Path(path)
    task = settings.task if settings.task != "auto" else recognise_task(path, settings.encoding)
    examples = read_examples([path], task, settings.reading())
    for error in (*examples.unreadable, *(row for row in examples.errors if "never closed" in row.message)):
        raise error
    done: Counter[str] = Counter()
    dropped = _dropped(examples, None if dev is None else _dev(dev, task, settings), done)
    mender = Mender(str(path), task, settings.encoding)
    lines = list(_cleaned(path, task, settings, dropped, mender))
    done.update(mender.done)
    with replacing(out) as temporary:
        content = "".join(f"{line}\n" for line in lines).encode(settings.encoding)
        temporary.write_bytes(gzip.compress(content, mtime=0) if out.suffix == ".gz" else content)
    return Fixed(str(path), str(out), dict(+done), len(examples.items) - dropped.count)


@dataclass(frozen=True)
class Dropped:
    """What is left out: the lines where rows start, for refused ones and for those that are read but not wanted."""

    refused: set[int]
    items: set[int]
    #: For questions, whose lines may not tell them apart.
    kept_ids: set[str]
    #: How many are read but not wanted.
    count: int

    @property
    def lines(self) -> set[int]:
        """All of them."""
        return self.refused | self.items


def _check_out(path: Path | str, out: Path, overwrite: bool) -> None:
    if str(path).startswith(HUB) or str(path).endswith(".parquet"):
        raise UserError(f"{path}: only text files can be cleaned; save it as .jsonl first")
    path = Path(path)
    if out.exists() and path.exists() and out.samefile(path):
        raise UserError(f"{out}: a file is never cleaned in place; give another name")
    if out.exists() and not overwrite:
        raise UserError(f"{out}: exists already; choose another name or add --overwrite")
    endings = [name.name.removesuffix(".gz").rpartition(".")[2] for name in (path, out)]
    if endings[0] != endings[1]:
        raise UserError(f"{out}: the copy has the format of {path.name}; give a name that ends in .{endings[0]}")


def _dev(dev: Path | str, task: Task, settings: DoctorSettings) -> Examples:
    found = read_examples([dev], task, settings.reading())
    for error in found.unreadable:
        raise error
    return found


def _dropped(examples: Examples, dev: Examples | None, done: Counter[str]) -> Dropped:
    done.update(f"{_REFUSED.get(error.kind, 'unreadable rows')} dropped" for error in examples.errors)
    copies = [item for item, _ in repeated(examples.items)[0]]
    done["exact copies dropped"] += len(copies)
    gone = set(map(id, copies))
    leaks = [item for item, _ in (leaked(examples.items, dev.items) if dev else []) if id(item) not in gone]
    done["rows of the dev set dropped"] += len(leaks)
    for what in [what for what, count in done.items() if not count]:
        del done[what]
    gone |= set(map(id, leaks))
    kept = {item.id for item in examples.items if id(item) not in gone}
    lines = {item.line for item in (*copies, *leaks)}
    return Dropped({error.line or 0 for error in examples.errors}, lines, kept, len(gone))


_REFUSED = {"empty": "rows without a text", "unlabelled": "rows without a label", "ragged": "ragged rows"}


def _cleaned(path: Path, task: Task, settings: DoctorSettings, dropped: Dropped, mender: Mender) -> Iterator[str]:
    """The lines of the copy."""
    columns = task == "tag" and kind_of_any(path) not in ("json", "jsonl")
    if columns:
        yield from _sentences(read_lines(path, encoding=settings.encoding), dropped.lines, mender)
        return
    kind = kind_of(path)
    if kind in ("csv", "tsv", "txt"):
        yield from _rows(path, kind, settings, dropped.lines)
    elif kind == "jsonl" or is_json_lines(str(path), encoding=settings.encoding):
        for number, line in enumerate(read_lines(path, encoding=settings.encoding), 1):
            several = mender.article_line(line, dropped.kept_ids) if task == "qa" else None
            if several is not None:
                yield from [several] if several else []
            elif line.strip() and number not in dropped.lines:
                yield mender.json_line(number, line)
    elif task == "qa":
        yield mender.questions(dropped.kept_ids)
    else:
        yield mender.objects(dropped.lines)


def kind_of_any(path: Path) -> str:
    """The kind of a table, or "" for a file that is none."""
    try:
        return kind_of(path)
    except DataError:
        return ""


def _rows(path: Path, kind: str, settings: DoctorSettings, dropped: set[int]) -> Iterator[str]:
    """The lines of the rows that stay, as they are written: a row may have several."""
    dialect = recognise(str(path), kind, encoding=settings.encoding, header=settings.header)
    wrong: list[RowError] = []
    found = records(str(path), dialect, encoding=settings.encoding, on_error=wrong.append)
    starts = {line for _, line in found} | {error.line for error in wrong}
    keep = True
    for number, line in enumerate(read_lines(path, encoding=settings.encoding), 1):
        if number in starts:
            keep = number not in dropped
        if keep:
            yield line


def _sentences(lines: Iterable[str], dropped: set[int], mender: Mender) -> Iterator[str]:
    """The lines of the sentences that stay; a sentence goes as a whole."""
    held: list[tuple[int, str]] = []
    for number, line in enumerate([*lines, ""], 1):
        held.append((number, line))
        if line.strip():
            continue
        if not any(number in dropped for number, _ in held):
            yield from (mender.tag_line(number, line) for number, line in held)
        held = []
