"""Texts with labels from a table: one label, several, or a number."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from unmask.config import shown
from unmask.data.columns import ColumnChoice, Columns, choose_columns, parse_columns
from unmask.data.examples import TextExample
from unmask.data.label_kinds import Problem, as_number, as_word, natural, recognise_problem
from unmask.data.rows import OnError, RowError, report
from unmask.data.tables import Row, Table, open_table
from unmask.errors import DataError, SettingsError

#: So the sets of Stanford write that annotators did not agree.
_NO_GOLD = "-"
_REMEDY = "correct or remove the row, or let unmask doctor --fix do it"


@dataclass(frozen=True)
class LabelledFile:
    """The examples of a file and what was recognised in it."""

    path: str
    examples: list[TextExample]
    columns: Columns
    problem: Problem
    #: All labels, numbers in their order; none for regression.
    labels: tuple[str, ...]
    #: What was recognised, for people.
    said: list[str]
    #: What stands between several labels of a text; None: nothing does.
    separator: str | None = None

    def check_trainable(self) -> None:
        """DataError where nothing can be learned, because every example says the same."""
        if self.problem != "regression" and len(self.labels) < 2:
            only = f"only the label {self.labels[0]!r}" if self.labels else "no label at all"
            raise DataError(f"has {only}; to learn, at least two are needed", file=self.path)

    def check_labels(self, known: Sequence[str]) -> None:
        """DataError with the line of the first label that is not among those known (of the training file)."""
        for example in self.examples:
            given = (example.label,) if isinstance(example.label, str) else example.label
            for label in given if isinstance(given, tuple) else ():
                if label not in known:
                    listed = ", ".join(known[:20]) + (" …" if len(known) > 20 else "")
                    raise DataError(
                        f"the label {label!r} is unknown; those of the training file are {listed}",
                        file=self.path,
                        line=example.line,
                    )


def read_labelled(
    path: Path | str,
    columns: ColumnChoice | str | None = None,
    problem: Problem | Literal["auto"] = "auto",
    *,
    separator: str | None = None,
    encoding: str = "utf-8",
    header: bool | None = None,
    on_error: OnError = None,
) -> LabelledFile:
    """The labelled examples of a table.

    `columns` names those that are not clear, as a `ColumnChoice` or as `text=…,pair=…,label=…`. `separator` stands
    between several labels of a text; it is recognised where that is safe. A row that is wrong is a DataError, which
    is raised, or given to `on_error` and passed over.
    """
    if problem not in ("auto", "single", "multi", "regression"):
        raise SettingsError(f"a problem is auto, single, multi or regression, given {problem!r}")
    table = open_table(path, encoding=encoding, header=header)
    taken = choose_columns(
        table.columns, [row.cells for row in table.sample], file=table.path, choice=_choice(columns), labelled=True
    )
    rows = list(_rows(table, taken, on_error))
    if not rows:
        raise DataError("has no row with a text and a label", file=table.path)
    said = [*table.said, taken.said]
    decided, separator = recognise_problem([label for _, label in rows], problem, separator, said)
    examples = list(_labelled(rows, decided, separator, table.path, on_error))
    if not examples:
        raise DataError("has no row with a text and a label", file=table.path)
    examples, labels = _labels(examples, said)
    return LabelledFile(table.path, examples, taken, decided, labels, said, separator)


def iter_texts(
    path: Path | str,
    columns: ColumnChoice | str | None = None,
    *,
    encoding: str = "utf-8",
    header: bool | None = None,
    said: Callable[[str], None] | None = None,
) -> Iterator[TextExample]:
    """The texts of a table one by one, whatever its size; labels, where there are any, as they are written.

    Columns are chosen, and what is wrong with them is said, before the first text is asked for. A text may be empty.
    """
    table = open_table(path, encoding=encoding, header=header)
    taken = choose_columns(
        table.columns, [row.cells for row in table.sample], file=table.path, choice=_choice(columns), labelled=False
    )
    for sentence in (*table.said, taken.said) if said else ():
        said(sentence)  # type: ignore[misc]
    return (example for example, _ in _texts(table, taken, None, may_lack=False))


def _choice(columns: ColumnChoice | str | None) -> ColumnChoice | None:
    return parse_columns(columns) if isinstance(columns, str) else columns


LabelledRow = tuple[TextExample, Any]
"""A text, and what its label column holds (for columns of 0 and 1, the names of those with 1)."""


def _rows(table: Table, columns: Columns, on_error: OnError) -> Iterator[LabelledRow]:
    """The rows with texts; one that is empty is wrong here."""
    for example, label in _texts(table, columns, on_error):
        empty = (
            "text"
            if not example.text.strip()
            else "pair"
            if example.pair is not None and not example.pair.strip()
            else ""
        )
        if empty:
            message, kind = f"the {empty} is empty; {_REMEDY}", "empty"
        elif label is None or (isinstance(label, str) and not label.strip()):
            message, kind = f"has no label; {_REMEDY}", "unlabelled"
        else:
            yield example, label
            continue
        report(RowError(message, kind=kind, file=table.path, line=example.line), on_error)


def _texts(table: Table, columns: Columns, on_error: OnError, *, may_lack: bool = True) -> Iterator[LabelledRow]:
    """The rows with what stands in their columns; with `may_lack` a text that is missing is an empty one."""
    place = {name: number for number, name in enumerate(table.columns)}
    text_at, pair_at = place[columns.text], place.get(columns.pair or "")
    label_at = place.get(columns.label or "")
    for row in table.rows(on_error):
        try:
            text = _text(row.cells[text_at], "text", table.path, row.line, may_lack)
            pair = None if pair_at is None else _text(row.cells[pair_at], "pair", table.path, row.line, may_lack)
            label = _flags(row, columns, place, table.path) if columns.flags else None
        except RowError as error:
            report(error, on_error)
            continue
        if label_at is not None:
            label = row.cells[label_at]
        written = label if label is None or isinstance(label, str | tuple) else as_word(label)
        yield TextExample(text, pair, written, row.line), label


def _text(cell: Any, role: str, path: str, line: int, may_lack: bool) -> str:
    if cell is None and may_lack:
        return ""
    if cell is None:
        message = f'has no {role}; write "" if it is empty, or remove the row'
        raise RowError(message, kind="empty", file=path, line=line)
    if not isinstance(cell, str):
        raise RowError(f"the {role} must be text but is {shown(cell)}", kind="text", file=path, line=line)
    return cell


def _flags(row: Row, columns: Columns, place: dict[str, int], path: str) -> tuple[str, ...]:
    """The names of the columns with 1."""
    chosen = []
    for name in columns.flags:
        cell = row.cells[place[name]]
        value = str(int(cell) if isinstance(cell, bool | float) and cell in (0, 1) else cell).strip()
        if value not in ("0", "1"):
            raise RowError(
                f"the column {name} must be 0 or 1 but is {shown(cell)}", kind="label", file=path, line=row.line
            )
        if value == "1":
            chosen.append(name)
    return tuple(chosen)


def _labelled(
    rows: Iterable[LabelledRow], problem: Problem, separator: str | None, path: str, on_error: OnError
) -> Iterator[TextExample]:
    for example, given in rows:
        try:
            label = _label(given, problem, separator, path, example.line)
        except RowError as error:
            report(error, on_error)
            continue
        yield TextExample(example.text, example.pair, label, example.line)


def _label(given: Any, problem: Problem, separator: str | None, path: str, line: int) -> str | tuple[str, ...] | float:
    if isinstance(given, dict) or (problem != "multi" and isinstance(given, list)):
        raise RowError(f"the label must be one value but is {shown(given)}", kind="label", file=path, line=line)
    word = given if isinstance(given, tuple) else as_word(given)
    if problem == "regression":
        value = as_number(str(word))
        if value is None:
            raise RowError(f"the label must be a number but is {shown(given)}", kind="label", file=path, line=line)
        return value
    if problem == "single":
        return str(word)
    if isinstance(word, str):
        word = tuple(part.strip() for part in (word.split(separator) if separator else [word]))
    if "" in word or (isinstance(given, list) and None in given):
        raise RowError(f"one of its labels is empty: {shown(given)}", kind="label", file=path, line=line)
    return tuple(dict.fromkeys(word))


def _labels(examples: list[TextExample], said: list[str]) -> tuple[list[TextExample], tuple[str, ...]]:
    """All labels in order; examples that say there is none are left out, aloud."""
    counts: Counter[str] = Counter()
    for example in examples:
        if isinstance(example.label, str):
            counts[example.label] += 1
        elif isinstance(example.label, tuple):
            counts.update(example.label)
    if _NO_GOLD in counts and {"entailment", "neutral"} <= counts.keys():
        number = counts.pop(_NO_GOLD)
        examples = [example for example in examples if example.label != _NO_GOLD]
        said.append(f"{number:,} rows have the label '-', on which annotators did not agree, and are left out")
    labels = tuple(sorted(counts, key=natural))
    if labels:
        listed = ", ".join(f"{label} ({counts[label]:,})" for label in labels[:10])
        many = f"{len(labels)} labels" if len(labels) != 1 else "1 label"
        said.append(f"{len(examples):,} examples, {many}: {listed}{' …' if len(labels) > 10 else ''}")
    else:
        said.append(f"{len(examples):,} examples with a number each")
    return examples, labels
