"""Labelled examples of every shape a task has: what readers give, and what doctor, training and scoring take."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True, slots=True)
class TextExample:
    """A text, or a pair of texts, with what is to be said of it."""

    text: str
    pair: str | None = None
    #: A label; several where a text may have many; a number for regression; None where the file says nothing.
    label: str | tuple[str, ...] | float | None = None
    line: int = 0


class Entity(NamedTuple):
    """A stretch of a text that has a type. `text[start:end]` is what it says."""

    start: int
    end: int
    type: str


@dataclass(frozen=True, slots=True)
class TaggedExample:
    """A text whose parts have labels: words with tags, or stretches with types."""

    text: str
    #: Start and end of each word, where the file gives words; None where it gives a text and stretches of it.
    words: tuple[tuple[int, int], ...] | None = None
    #: The tag of each word as the file writes it; None where it gives stretches, or nothing.
    tags: tuple[str, ...] | None = None
    #: In order and not overlapping; None where tags mark no stretches (as parts of speech), or nothing is given.
    entities: tuple[Entity, ...] | None = None
    line: int = 0


class Answer(NamedTuple):
    """An answer and where it starts in its context."""

    text: str
    start: int


@dataclass(frozen=True, slots=True)
class QuestionExample:
    """A question about a text, with all answers that count as right; none where the text does not say."""

    id: str
    question: str
    context: str
    answers: tuple[Answer, ...] = ()
    impossible: bool = False
    line: int = 0
