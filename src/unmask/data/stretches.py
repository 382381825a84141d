"""Tagged examples from JSON: tokens with tags, or a text with stretches, in the shapes that tools write."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from unmask.config import shown
from unmask.data.examples import Entity, TaggedExample
from unmask.data.joining import joined
from unmask.data.rows import OnError, RowError, report
from unmask.errors import place

_TOKENS = ("tokens", "words")
TAG_KEYS = ("tags", "ner_tags", "labels", "label", "ner", "pos_tags")
_TEXTS = ("text", "sentence", "content", "文本")
_STRETCHES = ("entities", "spans", "label", "labels", "entity")
_START = ("start", "start_offset", "start_idx", "begin")
_END = ("end", "end_offset", "end_idx")
_TYPE = ("label", "type", "entity_type", "entity_group", "tag")
_SURFACE = ("text", "word", "entity", "mention")


def is_stretched(item: Mapping[str, Any]) -> bool:
    """Whether an object has tokens, with tags or (to be tagged) without, or a text with stretches."""
    tokens = _first(item, _TOKENS)
    if isinstance(tokens, list) and all(isinstance(token, str) for token in tokens[:10]):
        return True
    stretches = _first(item, _STRETCHES)
    if isinstance(stretches, list):
        return bool(stretches) and isinstance(stretches[0], list | dict)
    return isinstance(stretches, dict) and all(isinstance(value, dict) for value in stretches.values())


class Reader:
    """Turns objects into examples, and remembers what it had to change."""

    def __init__(self, path: str, on_error: OnError = None) -> None:
        self.path = path
        self.on_error = on_error
        self._nested: list[int] = []
        self._inclusive: list[int] = []

    def examples(self, items: Iterable[tuple[Mapping[str, Any], int]]) -> Iterator[TaggedExample]:
        """The examples of objects with their lines."""
        for item, line in items:
            try:
                yield self._example(item, line)
            except RowError as error:
                report(error, self.on_error)

    def said(self) -> list[str]:
        """What was changed, for people."""
        sentences = []
        if self._nested:
            sentences.append(
                f"{len(self._nested):,} entities that overlap one that starts before them, or is longer, are left out, "
                f"the first on {place(self._nested[0])}"
            )
        if self._inclusive:
            sentences.append(f"ends of entities are inclusive, as their texts show ({place(self._inclusive[0])})")
        return sentences

    def _example(self, item: Mapping[str, Any], line: int) -> TaggedExample:
        tokens = _first(item, _TOKENS)
        if isinstance(tokens, list):
            return self._with_tokens(tokens, _first(item, TAG_KEYS), line)
        text = _first(item, _TEXTS)
        if not isinstance(text, str):
            keys = ", ".join(map(str, list(item)[:8])) or "nothing"
            raise self._error(f"expected tokens and tags, or text and entities; found {keys}", line, "json")
        if not text.strip():
            raise self._error("the text is empty; remove the example, or let unmask doctor --fix do it", line, "empty")
        given = _first(item, _STRETCHES)
        if given is None:
            return TaggedExample(text, line=line)
        entities = sorted(self._stretches(given, text, line), key=lambda entity: (entity.start, -entity.end))
        return TaggedExample(text, entities=tuple(self._apart(entities, line)), line=line)

    def _with_tokens(self, tokens: list[Any], tags: Any, line: int) -> TaggedExample:
        for token in tokens:
            if not isinstance(token, str) or not token.strip():
                raise self._error(f"a token must be text but is {shown(token)}", line, "tags")
        if not tokens:
            raise self._error("has no tokens", line, "empty")
        if tags is None:
            return joined([(tokens, None, line)])[0]
        if not isinstance(tags, list) or len(tags) != len(tokens):
            number = f"{len(tags)} tags" if isinstance(tags, list) else f"tags that are {shown(tags)}"
            raise self._error(f"has {len(tokens)} tokens but {number}", line, "tags")
        return joined([(tokens, [str(tag) for tag in tags], line)])[0]

    def _stretches(self, given: Any, text: str, line: int) -> Iterator[Entity]:
        if isinstance(given, dict):
            yield from self._by_type(given, text, line)
            return
        if not isinstance(given, list):
            raise self._error(f"entities must be a list but are {shown(given)}", line)
        for entry in given:
            if isinstance(entry, dict):
                start, end, type = (_first(entry, names) for names in (_START, _END, _TYPE))
                surface = _first(entry, _SURFACE)
            elif isinstance(entry, list | tuple) and len(entry) == 3:
                start, end, type = entry
                surface = None
            else:
                raise self._error(f"an entity is [start, end, label] or has these as keys, not {shown(entry)}", line)
            if not isinstance(type, str) or not type:
                raise self._error(f"the entity {shown(entry)} has no label", line)
            yield self._checked(start, end, type, surface, text, line)

    def _by_type(self, given: Mapping[str, Any], text: str, line: int) -> Iterator[Entity]:
        """CLUENER's way: type → what it says → places, the last character included."""
        for type, mentions in given.items():
            if not isinstance(mentions, dict):
                raise self._error(f"expected {{type: {{text: [[start, end]]}}}}, found {shown({type: mentions})}", line)
            for surface, places in mentions.items():
                for ends in places if isinstance(places, list) else [places]:
                    if not isinstance(ends, list) or len(ends) != 2 or not all(_is_place(part) for part in ends):
                        raise self._error(f"the place of {surface!r} is [start, end], not {shown(ends)}", line)
                    yield self._checked(ends[0], ends[1] + 1, str(type), surface, text, line)

    def _checked(self, start: Any, end: Any, type: str, surface: Any, text: str, line: int) -> Entity:
        if not _is_place(start) or not _is_place(end):
            raise self._error(f"an entity's start and end are whole numbers, not {shown(start)} and {shown(end)}", line)
        if isinstance(surface, str) and text[start:end] != surface and text[start : end + 1] == surface:
            self._inclusive.append(line)
            end += 1
        if not 0 <= start < end <= len(text):
            raise self._error(
                f"the entity {start}–{end} ({type}) lies outside its text of {len(text)} characters", line
            )
        if isinstance(surface, str) and text[start:end] != surface:
            found = shown(text[start:end])
            raise self._error(f"the entity {start}–{end} ({type}) should say {shown(surface)} but says {found}", line)
        return Entity(start, end, type)

    def _apart(self, entities: Iterable[Entity], line: int) -> Iterator[Entity]:
        """Entities that do not overlap: of those that do, the one that starts first, or is longer."""
        last: Entity | None = None
        for entity in entities:
            if last is None or entity.start >= last.end:
                yield entity
                last = entity
            elif entity != last:
                self._nested.append(line)

    def _error(self, message: str, line: int, kind: str = "offsets") -> RowError:
        return RowError(message, kind=kind, file=self.path, line=line)


def _is_place(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _first(item: Mapping[str, Any], names: Iterable[str]) -> Any:
    """The value of the first of these keys that is there."""
    return next((item[name] for name in names if item.get(name) is not None), None)
