"""All checks in their order: read, compare, count, measure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from unmask.config import Settings
from unmask.data.columns import ColumnChoice
from unmask.data.doctor.checks import check_labels, check_leaks, check_repeats
from unmask.data.doctor.findings import Finding, Place, Report, Severity, at_places, many
from unmask.data.doctor.items import Examples, Reading, Task, read_examples, recognise_task
from unmask.data.doctor.texts import check_characters, check_lengths, length_facts, lengths
from unmask.data.label_kinds import Problem, natural
from unmask.data.rows import RowError
from unmask.errors import DataError, UserError, place
from unmask.text import Tokenizer
from unmask.text.files import TextEncoding

Estimate = Callable[[Mapping[str, Any]], Mapping[str, Any]]
"""From the facts of a training set to what training on it will cost, as memory and minutes."""

_ORDER: dict[Severity, int] = {"error": 0, "warning": 1, "note": 2}
#: How each kind of trouble with rows is told; what is not here is told by its first sentence.
_ROWS: dict[str, tuple[Severity, str, str]] = {
    "ragged": ("error", "has another number of cells", "have another number of cells"),
    "quotes": ("error", "has quotes that do not fit", "have quotes that do not fit"),
    "json": ("error", "is not the JSON that is expected", "are not the JSON that is expected"),
    "empty": ("error", "has no text", "have no text"),
    "unlabelled": ("error", "has no label", "have no label"),
    "label": ("error", "has a label that cannot be read", "have labels that cannot be read"),
    "text": ("error", "has a text that is none", "have texts that are none"),
    "tags": ("error", "has words and tags that do not fit", "have words and tags that do not fit"),
    "offsets": ("error", "has entities that do not fit their text", "have entities that do not fit their text"),
    "question": ("error", "has a question that cannot be read", "have questions that cannot be read"),
    "scheme": ("warning", "breaks the tags' scheme; --fix repairs it", "break the tags' scheme; --fix repairs them"),
    "misaligned": ("warning", "has a misplaced answer; --fix moves it", "have misplaced answers; --fix moves them"),
    "missing": ("warning", "has an answer that is not in its text", "have an answer that is not in its text"),
}


class DoctorSettings(Settings):
    """What to look at, and how the files are written."""

    task: Task | Literal["auto"] = "auto"
    columns: ColumnChoice | None = None
    problem: Problem | Literal["auto"] = "auto"
    separator: str | None = None
    encoding: TextEncoding = "utf-8"
    header: bool | None = None
    max_length: Annotated[int, Field(ge=1)] = 512

    def reading(self) -> Reading:
        """How files are to be read."""
        return Reading(self.columns, self.problem, self.separator, self.encoding, self.header)


def examine(
    train: Path | str | Sequence[Path | str],
    dev: Path | str | None = None,
    settings: DoctorSettings | None = None,
    *,
    tokenizer: Tokenizer | None = None,
    estimate: Estimate | None = None,
) -> Report:
    """Look at a training set of one file or several, and at the dev set beside it. Nothing is changed."""
    settings = settings or DoctorSettings()
    train = [train] if isinstance(train, str | Path) else list(train)
    if not train:
        raise UserError("no file was given to look at")
    task, unknown = _task(train, settings)
    if unknown is not None:
        return Report(task, [_unreadable(unknown)], {})
    sets = {"train": read_examples(train, task, settings.reading())}
    if dev is not None:
        sets["dev"] = read_examples([dev], task, settings.reading())
    findings: list[Finding] = []
    facts: dict[str, Any] = {}
    for name, examples in sets.items():
        findings += [*_refused(examples), *check_repeats(examples), *check_characters(examples)]
        facts[name], found = _facts(examples, tokenizer, settings.max_length)
        unit = "characters" if tokenizer is None else "tokens"
        findings += check_lengths(examples, found, settings.max_length, unit)
    findings += check_labels(sets["train"], sets.get("dev"))
    if "dev" in sets:
        findings += check_leaks(sets["train"], sets["dev"])
    if estimate is not None and sets["train"].items:
        facts["estimate"] = dict(estimate(facts["train"]))
    return Report(task, sorted(findings, key=lambda finding: _ORDER[finding.severity]), facts)


def _task(train: Sequence[Path | str], settings: DoctorSettings) -> tuple[Task, DataError | None]:
    if settings.task != "auto":
        return settings.task, None
    try:
        return recognise_task(train[0], settings.encoding), None
    except DataError as error:
        return "classify", error


def _unreadable(error: DataError) -> Finding:
    """What cannot be read at all, in the sentence that training would say."""
    file = "" if error.file is None else str(error.file)
    message = str(error).removeprefix(file).removeprefix(f", {place(error.line or 0)}").removeprefix(": ")
    return Finding("error", "unreadable", message, file, () if error.line is None else (error.line,))


def _refused(examples: Examples) -> Iterator[Finding]:
    """Rows that are wrong, told by what is wrong with them."""
    for error in examples.unreadable:
        yield _unreadable(error)
    kinds: dict[str, list[RowError]] = {}
    for row in (*examples.errors, *examples.doubts):
        kinds.setdefault(row.kind, []).append(row)
    for kind, rows in kinds.items():
        severity, one, several = _ROWS[kind]
        unit = {"qa": "question", "tag": "line"}.get(examples.task, "row")
        yield from at_places(
            severity,
            kind,
            (Place(str(row.file), row.line or 0, row.message) for row in rows),
            lambda number, unit=unit, one=one, several=several: (  # type: ignore[misc]
                f"{many(number, unit)} {one if number == 1 else several}"
            ),
        )


def _facts(examples: Examples, tokenizer: Tokenizer | None, limit: int) -> tuple[dict[str, Any], list[int]]:
    facts: dict[str, Any] = {
        "files": examples.files,
        "task": examples.task,
        "examples": len(examples.items),
        "refused": len(examples.errors),
        "said": examples.said,
    }
    if not examples.items:
        return facts, []
    if examples.problem is not None:
        facts["problem"] = examples.problem
    counts = examples.counts
    if examples.problem == "regression":
        values = [item.label for item in examples.items if isinstance(item.label, float)]
        facts["numbers"] = {"min": min(values), "max": max(values), "mean": round(sum(values) / len(values), 4)}
    elif counts:
        facts["labels"] = {label: counts[label] for label in sorted(counts, key=natural)}
    found = lengths(examples.items, tokenizer)
    facts["lengths"] = length_facts(found, limit, "characters" if tokenizer is None else "tokens")
    return facts, found
