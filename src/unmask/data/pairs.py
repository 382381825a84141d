"""Which stretches of a corpus become one pre-training example: a single text, or a pair of them.

As in BERT's own data: sentences of a document are gathered until they fill the length; a cut between two of them
makes a first and a second text. With NSP, half of the time the second is replaced by a stretch of another document,
and what it replaced is used by the next example. Only lengths are looked at here, no token is read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Annotated, Literal, NamedTuple

import numpy as np
from pydantic import Field

from unmask.config import Settings
from unmask.data.corpus.store import DocumentSpan


class PairSettings(Settings):
    """How texts are put together. Defaults are BERT's."""

    objective: Literal["nsp", "sop", "none"] = "nsp"
    """What the pair is asked: does the second follow (nsp), are they in order (sop), or there is one text only."""
    unrelated: Annotated[float, Field(ge=0.0, le=1.0)] = 0.5
    """Of pairs: how many do not follow (nsp) or are swapped (sop)."""
    short: Annotated[float, Field(ge=0.0, le=1.0)] = 0.1
    """How many examples are filled to a random shorter length only."""


class Stretch(NamedTuple):
    """Tokens from `start` up to `end` of a shard."""

    shard: int
    start: int
    end: int

    @property
    def length(self) -> int:
        """How many tokens."""
        return self.end - self.start


class Example(NamedTuple):
    """One or two stretches of text. `label` 0: the second follows the first; 1: it does not (or they are swapped)."""

    first: Stretch
    second: Stretch | None
    label: int

    @property
    def length(self) -> int:
        """How many tokens, special ones included."""
        return self.first.length + (2 if self.second is None else 3 + self.second.length)


Elsewhere = Callable[[], DocumentSpan]
"""Gives a random document that is not the one at hand."""


def examples_of(
    document: DocumentSpan, length: int, settings: PairSettings, elsewhere: Elsewhere, rng: np.random.Generator
) -> Iterator[Example]:
    """The examples of one document, none longer than `length`."""
    room = length - (2 if settings.objective == "none" else 3)
    bounds, place = document.bounds, 0
    last = len(bounds) - 1
    while place < last:
        target = int(rng.integers(2, room + 1)) if rng.random() < settings.short else room
        end = place + 1
        while end < last and bounds[end] - bounds[place] < target:
            end += 1
        if settings.objective == "none":
            yield Example(_cut(document.shard, bounds[place], bounds[end], room, rng), None, 0)
            place = end
            continue
        begin, end, middle = _two_parts(bounds, place, end, rng)
        if middle is None:
            return  # a document of one token
        first = Stretch(document.shard, bounds[begin], middle)
        second = Stretch(document.shard, middle, bounds[end])
        if rng.random() >= settings.unrelated:
            yield _fitted(first, second, 0, room, rng)
        elif settings.objective == "sop":
            yield _fitted(second, first, 1, room, rng)
        else:
            yield _fitted(first, _other(elsewhere(), target - first.length, rng), 1, room, rng)
            if begin == place:  # what the other text replaced is not lost: the next example begins with it
                end = next((i for i in range(place + 1, end) if bounds[i] >= middle), end)
        place = end


def _two_parts(
    bounds: tuple[int, ...], place: int, end: int, rng: np.random.Generator
) -> tuple[int, int, int | None]:
    """At least two sentences where the document has them, and where the second text begins.

    Were a lone sentence always paired with a random one, as in the original, unrelated pairs would be more than half.
    """
    if end - place == 1:
        if end < len(bounds) - 1:
            end += 1
        elif place > 0:
            place -= 1
        else:  # the only sentence of its document: cut in two
            size = bounds[1] - bounds[0]
            return place, end, bounds[0] + int(rng.integers(1, size)) if size > 1 else None
    return place, end, bounds[int(rng.integers(place + 1, end))]


def _other(document: DocumentSpan, target: int, rng: np.random.Generator) -> Stretch:
    """Sentences of another document from a random one on, until there are about `target` tokens."""
    bounds = document.bounds
    start = int(rng.integers(0, len(bounds) - 1))
    end = start + 1
    while end < len(bounds) - 1 and bounds[end] - bounds[start] < target:
        end += 1
    return Stretch(document.shard, bounds[start], bounds[end])


def _fitted(first: Stretch, second: Stretch, label: int, room: int, rng: np.random.Generator) -> Example:
    """A pair that fits: the longer loses tokens until both fit, at random from its front or its end."""
    half = room // 2
    a, b = first.length, second.length
    if a + b > room:
        if b <= half:
            a = room - b
        elif a <= room - half:
            b = room - a
        else:
            a, b = room - half, half
    return Example(_cut(*first, a, rng), _cut(*second, b, rng), label)


def _cut(shard: int, start: int, end: int, size: int, rng: np.random.Generator) -> Stretch:
    """A stretch of at most `size` tokens of this one."""
    spare = end - start - size
    if spare <= 0:
        return Stretch(shard, start, end)
    front = int(rng.binomial(spare, 0.5))
    return Stretch(shard, start + front, start + front + size)
