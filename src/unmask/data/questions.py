"""Questions about texts: SQuAD's nested JSON and those that follow it (CMRC 2018, DRCD), or one question a line."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unmask.config import shown
from unmask.data.examples import Answer, QuestionExample
from unmask.data.json_rows import is_json_lines, objects_of
from unmask.data.rows import OnError, RowError, report
from unmask.data.tables import HUB, kind_of, open_table
from unmask.errors import DataError, place
from unmask.text.files import check_encoding, read_lines, size_of

_ID = re.compile(r'"id"\s*:\s*("(?:[^"\\]|\\.)*"|-?\d+)')
#: An answer whose text is not in its context has no place there; it still counts when answers are compared as texts.
NOWHERE = -1


@dataclass(frozen=True)
class QuestionFile:
    """The questions of a file and what was recognised in it."""

    path: str
    examples: list[QuestionExample]
    #: Each answer that was not where the file says, with line or id. They were moved where their text occurs.
    misaligned: list[RowError]
    #: Each answer whose text does not occur in its context at all; it starts at `NOWHERE`.
    missing: list[RowError]
    #: What was recognised, for people.
    said: list[str]


def read_questions(path: Path | str, *, encoding: str = "utf-8", on_error: OnError = None) -> QuestionFile:
    """The questions of a file, all answers where their texts are.

    What is wrong with a question is a DataError, which is raised, or given to `on_error` and the question passed over.
    """
    name = str(path)
    reader = _Reader(name, on_error)
    examples = list(reader.examples(_entries(name, encoding, on_error)))
    if not examples:
        raise DataError("has no questions", file=name)
    answered = sum(bool(example.answers) for example in examples)
    contexts = len({example.context for example in examples})
    said = [f"{len(examples):,} questions about {contexts:,} texts, {answered:,} with an answer"]
    for found, what in ((reader.misaligned, "were not where the file says"), (reader.missing, "are not in their text")):
        if found:
            said.append(f"{len(found):,} answers {what}, the first on {place(found[0].line or 1)}: {found[0].message}")
    return QuestionFile(name, examples, reader.misaligned, reader.missing, said)


def is_questions(path: Path | str, *, encoding: str = "utf-8") -> bool:
    """Whether a file looks like one that `read_questions` reads."""
    if str(path).startswith(HUB) or kind_of(Path(path)) in ("jsonl", "json", "parquet"):
        names = set(open_table(path, encoding=encoding).columns)
        return {"question", "context"} <= names or bool(names & {"paragraphs", "context_text"})
    return False


def realign(context: str, answer: str, start: int) -> int:
    """Where an answer is: `start` if its text is there, else the nearest place where it is, else `NOWHERE`."""
    if start >= 0 and context.startswith(answer, start):
        return start
    places = [found.start() for found in re.finditer(f"(?={re.escape(answer)})", context)]
    return min(places, key=lambda place: (abs(place - start), place), default=NOWHERE)


Entry = tuple[Mapping[str, Any], str, int]
"""A question as the file has it, its context, and its line."""


def _entries(path: str, encoding: str, on_error: OnError) -> Iterator[Entry]:
    for item, line, lines in _objects(path, encoding, on_error):
        try:
            yield from (
                _nested(item, path, line, lines, on_error)
                if {"paragraphs", "qas"} & item.keys()
                else [(item, _context(item, path, line), line)]
            )
        except RowError as error:
            report(error, on_error)


def _objects(path: str, encoding: str, on_error: OnError) -> Iterator[tuple[dict[str, Any], int, Mapping[str, int]]]:
    """The objects of a file with their lines, and the lines of ids where objects are nested."""
    kind = "" if path.startswith(HUB) else kind_of(Path(path))
    if kind != "json":
        table = open_table(path, encoding=encoding)
        for row in table.rows(on_error):
            cells = zip(table.columns, row.cells, strict=True)
            yield {name: cell for name, cell in cells if cell is not None}, row.line, {}
        return
    size_of(Path(path))
    checked = check_encoding(encoding)
    lines = {} if is_json_lines(path, encoding=checked) else _lines_of_ids(read_lines(path, encoding=checked))
    for item, line in objects_of(path, encoding=checked, on_error=on_error):
        yield item, line, lines


def _nested(
    item: Mapping[str, Any], path: str, line: int, lines: Mapping[str, int], on_error: OnError
) -> Iterator[Entry]:
    """SQuAD's way: articles of paragraphs of questions."""
    for paragraph in _list(item.get("paragraphs", [item]), "paragraphs", path, line):
        try:
            context = _context(paragraph, path, line)
            entries = _list(paragraph.get("qas"), "qas", path, line)
        except RowError as error:
            report(error, on_error)
            continue
        for entry in entries:
            yield entry, context, lines.get(str(entry.get("id")), line)


def _lines_of_ids(lines: Iterable[str]) -> dict[str, int]:
    """The line of each id, found without parsing, since JSON that is parsed has no lines; none if there is only one."""
    found: dict[str, int] = {}
    number = 0
    for number, line in enumerate(lines, 1):
        for match in _ID.finditer(line) if '"id"' in line else ():
            found.setdefault(str(json.loads(match[1], strict=False)), number)
    return found if number > 1 else {}


def _list(value: Any, name: str, path: str, line: int) -> list[Mapping[str, Any]]:
    if not isinstance(value, list) or not all(isinstance(part, dict) for part in value):
        message = f"{name} must be a list of objects but is {shown(value)}"
        raise RowError(message, kind="question", file=path, line=line)
    return value


def _context(item: Mapping[str, Any], path: str, line: int) -> str:
    context = item.get("context", item.get("context_text"))
    if not isinstance(context, str) or not context.strip():
        keys = ", ".join(map(str, list(item)[:8])) or "nothing"
        message = f"a question needs a text in 'context'; found {keys}"
        raise RowError(message, kind="question", file=path, line=line)
    return context


class _Reader:
    def __init__(self, path: str, on_error: OnError) -> None:
        self.path, self.on_error = path, on_error
        self.misaligned: list[RowError] = []
        self.missing: list[RowError] = []
        self._seen: set[str] = set()

    def examples(self, entries: Iterable[Entry]) -> Iterator[QuestionExample]:
        for number, (entry, context, line) in enumerate(entries, 1):
            try:
                yield self._example(entry, context, line, number)
            except RowError as error:
                report(error, self.on_error)

    def _example(self, entry: Mapping[str, Any], context: str, line: int, number: int) -> QuestionExample:
        id = str(entry.get("id", entry.get("query_id", number)))
        question = entry.get("question", entry.get("query_text"))
        if not isinstance(question, str) or not question.strip():
            what = "is empty" if question == "" else f"must be text but is {shown(question)}"
            raise self._error(f"the question {id} {what}; correct or remove it, or let unmask doctor --fix do it", line)
        if id in self._seen:
            raise self._error(f"the id {id} is given twice; answers could not be told apart", line)
        self._seen.add(id)
        impossible = bool(entry.get("is_impossible", False))
        given = [] if impossible else self._given(entry.get("answers"), id, line)
        answers = tuple(self._placed(text, start, context, id, line) for text, start in given)
        unanswerable = impossible or (entry.get("answers") is not None and not answers)
        return QuestionExample(id, question, context, answers, unanswerable, line)

    def _given(self, answers: Any, id: str, line: int) -> list[tuple[str, int]]:
        """Answers and their places, as SQuAD lists them or as the Hub's copies hold them: two lists."""
        if isinstance(answers, dict):
            texts, starts = answers.get("text", []), answers.get("answer_start", [])
            if not isinstance(texts, list) or not isinstance(starts, list) or len(texts) != len(starts):
                raise self._error(f"the question {id} has not as many answer_start as answers", line)
            answers = [{"text": text, "answer_start": start} for text, start in zip(texts, starts, strict=True)]
        if answers is not None and not isinstance(answers, list):
            raise self._error(f"the answers of question {id} must be a list but are {shown(answers)}", line)
        found = []
        for answer in answers or []:
            text = answer.get("text") if isinstance(answer, dict) else None
            start = answer.get("answer_start") if isinstance(answer, dict) else None
            if not isinstance(text, str) or not text.strip():
                raise self._error(f"an answer of question {id} must have a text but is {shown(answer)}", line)
            if not isinstance(start, int) or isinstance(start, bool):
                raise self._error(f"the answer {shown(text)} of question {id} has no answer_start", line)
            found.append((text, start))
        return found

    def _placed(self, text: str, start: int, context: str, id: str, line: int) -> Answer:
        found = realign(context, text, start)
        if found == NOWHERE:
            message = f"the answer {shown(text)} of question {id} is not in its text"
            self.missing.append(self._error(message, line, "missing"))
        elif found != start:
            says = shown(context[max(start, 0) : max(start, 0) + len(text)])
            said = f"the answer {shown(text)} of question {id} is not at {start}, where the text says {says}"
            self.misaligned.append(self._error(f"{said}, but at {found}", line, "misaligned"))
        return Answer(text, found)

    def _error(self, message: str, line: int, kind: str = "question") -> RowError:
        return RowError(message, kind=kind, file=self.path, line=line or None)
