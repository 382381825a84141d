"""What can be mended without asking: answers that are elsewhere, and tags that break their scheme."""

from __future__ import annotations

import json
import re
from collections import Counter
from typing import Any

from unmask.data.doctor.items import Task
from unmask.data.json_rows import objects_of, whole_text
from unmask.data.questions import NOWHERE, realign
from unmask.data.schemes import decode, to_tags
from unmask.data.stretches import TAG_KEYS
from unmask.data.tagged import read_tagged
from unmask.errors import UserError
from unmask.text.files import TextEncoding

MOVED, REPAIRED = "answers moved to where they are", "tags repaired"
#: Keys of objects with several questions.
_NESTED = {"paragraphs", "qas"}


class Mender:
    """Mends lines and objects of one file, and counts what it did."""

    def __init__(self, path: str, task: Task, encoding: TextEncoding) -> None:
        self.path, self.task, self.encoding = path, task, encoding
        self.done: Counter[str] = Counter()
        self._number = 0  # of questions without an id
        self._tags: dict[int, list[str]] = {}
        self._words: dict[int, str] = {}
        if task == "tag":
            self._repair()

    def _repair(self) -> None:
        """The tags of each sentence that breaks the scheme, as they should be."""
        found = read_tagged(self.path, encoding=self.encoding, on_error=lambda _: None)
        for example in found.examples if found.scheme is not None else ():
            if example.tags is None or found.scheme is None:
                continue
            entities, breaks = decode(example.tags, found.scheme)
            if breaks:
                self._tags[example.line] = to_tags(entities, len(example.tags), found.scheme)
        self._words = {line + place: tag for line, tags in self._tags.items() for place, tag in enumerate(tags)}

    def tag_line(self, number: int, line: str) -> str:
        """A line of a file with columns, its tag mended."""
        tag = self._words.get(number)
        if tag is None:
            return line
        mended = re.sub(r"\S+(?=\s*$)", lambda _: tag, line)
        self.done[REPAIRED] += mended != line
        return mended

    def json_line(self, number: int, line: str) -> str:
        """A line with an object; the same letters if there is nothing to mend."""
        if self.task == "classify":
            return line
        item = json.loads(line)
        changed = self._answers(item, _context(item)) if self.task == "qa" else self._retag(item, number)
        return json.dumps(item, ensure_ascii=False) if changed else line

    def article_line(self, line: str, kept: set[str]) -> str | None:
        """A line with several questions, without those that are not kept; None if it has not several."""
        try:
            item = json.loads(line)
        except ValueError:
            return None
        if not isinstance(item, dict) or not _NESTED & item.keys():
            return None
        left = self._article(item, kept)
        return "" if not left else line if item == json.loads(line) else json.dumps(item, ensure_ascii=False)

    def questions(self, kept: set[str]) -> str:
        """A file of questions, without those that are not kept and texts of which no question is left."""
        value = json.loads(whole_text(self.path, encoding=self.encoding))
        articles = value["data"] if isinstance(value, dict) else value
        articles[:] = [article for article in articles if isinstance(article, dict) and self._article(article, kept)]
        return json.dumps(value, ensure_ascii=False, indent=1)

    def _article(self, article: dict[str, Any], kept: set[str]) -> bool:
        """Mend a text with questions, or a question with its text; whether something of it is left."""
        if not _NESTED & article.keys():
            return bool(_context(article)) and self._question(article, _context(article), kept)
        paragraphs = article.get("paragraphs", [article])
        for paragraph in paragraphs:
            context = _context(paragraph)
            entries = paragraph.get("qas", []) if context else []
            paragraph["qas"] = [entry for entry in entries if self._question(entry, context, kept)]
        if "paragraphs" in article:
            article["paragraphs"] = [paragraph for paragraph in paragraphs if paragraph["qas"]]
        return bool(article.get("paragraphs", article.get("qas")))

    def _question(self, entry: dict[str, Any], context: str, kept: set[str]) -> bool:
        self._number += 1
        id = str(entry.get("id", entry.get("query_id", self._number)))
        if id not in kept:
            return False
        kept.discard(id)  # so that an id that is given twice stays once
        self._answers(entry, context)
        return True

    def objects(self, dropped: set[int]) -> str:
        """A list of objects without those that start on lines that are dropped."""
        found = list(objects_of(self.path, encoding=self.encoding, on_error=lambda _: None))
        if dropped and len({line for _, line in found}) < len(found):
            raise UserError(
                f"{self.path}: several objects share a line, so they cannot be told apart; save it as .jsonl first"
            )
        kept = [(item, line) for item, line in found if line not in dropped]
        for item, line in kept:
            self._retag(item, line)
        return json.dumps([item for item, _ in kept], ensure_ascii=False, indent=1)

    def _retag(self, item: dict[str, Any], line: int) -> bool:
        key = next((name for name in TAG_KEYS if isinstance(item.get(name), list)), None)
        if line not in self._tags or key is None:
            return False
        self.done[REPAIRED] += sum(old != new for old, new in zip(item[key], self._tags[line], strict=True))
        item[key] = self._tags[line]
        return True

    def _answers(self, entry: dict[str, Any], context: str) -> bool:
        """Move answers to where they are; those that are nowhere, and what stands at unanswerable questions, stay."""
        answers = [] if entry.get("is_impossible") else entry.get("answers") or []
        moved = 0
        if isinstance(answers, dict):
            starts = answers["answer_start"]
            for number, (text, start) in enumerate(zip(answers["text"], starts, strict=True)):
                place = realign(context, text, start)
                if place not in (start, NOWHERE):
                    starts[number] = place
                    moved += 1
        else:
            for answer in answers:
                place = realign(context, answer["text"], answer["answer_start"])
                if place not in (answer["answer_start"], NOWHERE):
                    answer["answer_start"] = place
                    moved += 1
        self.done[MOVED] += moved
        return moved > 0


def _context(item: dict[str, Any]) -> str:
    """The text of a question, or of several; empty if there is none."""
    context = item.get("context", item.get("context_text"))
    return context if isinstance(context, str) and context.strip() else ""
