"""Files of any task in one shape, so that each check is written once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple

from unmask.data.columns import ColumnChoice
from unmask.data.label_kinds import Problem
from unmask.data.labelled import read_labelled
from unmask.data.questions import is_questions, read_questions
from unmask.data.rows import RowError
from unmask.data.tagged import is_tagged, read_tagged
from unmask.errors import DataError
from unmask.text.files import TextEncoding

Task = Literal["classify", "tag", "qa"]
"""classify: texts or pairs with a label, several, or a number. tag: words or stretches. qa: questions about texts."""


class Item(NamedTuple):
    """An example of any task."""

    text: str
    pair: str | None
    #: What is said of it, to compare; and the labels in it, to count.
    label: Hashable
    labels: tuple[str, ...]
    line: int
    file: str
    #: A question's, which lines may not tell apart.
    id: str = ""


@dataclass
class Examples:
    """All that was read of some files that belong together, and what was wrong with them."""

    task: Task
    files: list[str]
    items: list[Item] = field(default_factory=list)
    #: Rows that are refused.
    errors: list[RowError] = field(default_factory=list)
    #: What was read kindly: broken tags, answers that are elsewhere or nowhere.
    doubts: list[RowError] = field(default_factory=list)
    #: Files that cannot be read at all.
    unreadable: list[DataError] = field(default_factory=list)
    problem: Problem | None = None
    said: list[str] = field(default_factory=list)

    @property
    def counts(self) -> Counter[str]:
        """How often each label occurs."""
        return Counter(label for item in self.items for label in item.labels)


class Reading(NamedTuple):
    """How files are to be read."""

    columns: ColumnChoice | str | None
    problem: Problem | Literal["auto"]
    separator: str | None
    encoding: TextEncoding
    header: bool | None


def recognise_task(path: Path | str, encoding: TextEncoding) -> Task:
    """The task a file is for, by its name and what stands in it."""
    if is_tagged(path, encoding=encoding):
        return "tag"
    return "qa" if is_questions(path, encoding=encoding) else "classify"


def read_examples(paths: Sequence[Path | str], task: Task, reading: Reading) -> Examples:
    """The examples of some files; what is wrong is gathered, never raised."""
    examples = Examples(task, [str(path) for path in paths])
    read = {"classify": _classified, "tag": _tagged, "qa": _asked}[task]
    for path in paths:
        try:
            read(path, reading, examples)
        except RowError as error:  # a file whose first row is wrong and has no other
            examples.errors.append(error)
        except DataError as error:
            examples.unreadable.append(error)
    return examples


def _classified(path: Path | str, reading: Reading, examples: Examples) -> None:
    found = read_labelled(
        path,
        reading.columns,
        reading.problem,
        separator=reading.separator,
        encoding=reading.encoding,
        header=reading.header,
        on_error=examples.errors.append,
    )
    examples.problem = found.problem
    examples.said += found.said
    for example in found.examples:
        label = example.label
        labels = (label,) if isinstance(label, str) else label if isinstance(label, tuple) else ()
        examples.items.append(Item(example.text, example.pair, label, labels, example.line, found.path))


def _tagged(path: Path | str, reading: Reading, examples: Examples) -> None:
    found = read_tagged(path, encoding=reading.encoding, on_error=examples.errors.append)
    examples.said += found.said
    examples.doubts += found.broken
    for example in found.examples:
        labels = example.tags if found.plain else tuple(entity.type for entity in example.entities or ())
        label = (example.entities, example.tags)
        examples.items.append(Item(example.text, None, label, labels or (), example.line, found.path))


def _asked(path: Path | str, reading: Reading, examples: Examples) -> None:
    found = read_questions(path, encoding=reading.encoding, on_error=examples.errors.append)
    examples.said += found.said
    examples.doubts += [*found.misaligned, *found.missing]
    for example in found.examples:
        answers = tuple(answer.text for answer in example.answers)
        examples.items.append(
            Item(example.question, example.context, answers, (), example.line, found.path, example.id)
        )
