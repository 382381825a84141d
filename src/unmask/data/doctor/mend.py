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


class Mender:
    """Mends lines and objects of one file, and counts what it did."""

    def __init__(self, path: str, task: Task, encoding: TextEncoding) -> None:
        self.path, self.task, self.encoding = path, task, encoding
        self.done: Counter[str] = Counter()
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
        changed = self._answers(item, str(item.get("context"))) if self.task == "qa" else self._retag(item, number)
        return json.dumps(item, ensure_ascii=False) if changed else line

    def questions(self, kept: set[str]) -> str:
        """A nested file of questions, without those that are not kept and texts of which no question is left."""
        value = json.loads(whole_text(self.path, encoding=self.encoding))
        articles = value["data"] if isinstance(value, dict) else value
        number = 0
        for article in articles:
            paragraphs = article.get("paragraphs", [article])
            for paragraph in paragraphs:
                entries = []
                for entry in paragraph.get("qas", []):
                    number += 1
                    id = str(entry.get("id", entry.get("query_id", number)))
                    if id in kept:
                        kept.discard(id)  # so that an id that is given twice stays once
                        self._answers(entry, paragraph["context"])
                        entries.append(entry)
                paragraph["qas"] = entries
            if "paragraphs" in article:
                article["paragraphs"] = [paragraph for paragraph in paragraphs if paragraph["qas"]]
        articles[:] = [article for article in articles if article.get("paragraphs", article.get("qas"))]
        return json.dumps(value, ensure_ascii=False, indent=1)

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
        answers = entry.get("answers") or []
        moved = 0
        if isinstance(answers, dict):
            pairs = zip(answers["text"], answers["answer_start"], strict=True)
            starts = [realign(context, text, start) for text, start in pairs]
            moved = sum(new not in (old, NOWHERE) for new, old in zip(starts, answers["answer_start"], strict=True))
            answers["answer_start"] = starts
        else:
            for answer in answers:
                place = realign(context, answer["text"], answer["answer_start"])
                moved += place not in (answer["answer_start"], NOWHERE)
                answer["answer_start"] = place
        self.done[MOVED] += moved
        return moved > 0
