"""Which stretches of a corpus become one pre-training example: a single text, or a pair of them.

As in BERT's own data: sentences of a document are gathered until they fill the length; a cut between two of them
makes a first and a second text. With NSP, half of the time the second is replaced by a stretch of another document,
and what it replaced is used by the next example. Only lengths are looked at here, no token is read.

Unlike there, as little as is cheap to have but the meaning tells a true pair from another: a pair that is too
long loses the beginning of its first text and the end of its second, so that a true pair is one piece of text; a second
text never is the beginning of a document; and one that replaces the end of a short document is about as long as that.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from itertools import pairwise
from operator import sub
from random import Random
from typing import Annotated, Literal, NamedTuple

from pydantic import Field

from unmask.config import Settings
from unmask.data.corpus.store import DocumentSpan


class PairSettings(Settings):
    """How texts are put together. Defaults are BERT's."""

    objective: Literal["nsp", "sop", "none"] = "nsp"
    """What the pair is asked: does the second follow (nsp), are they in order (sop), or there is one text only."""
    unrelated: Annotated[float, Field(ge=0.0, le=1.0)] = 0.5
    """Of pairs: how many do not follow (nsp) or are swapped (sop)."""
    weight: Annotated[float, Field(gt=0.0)] = 1.0
    """How much the question about the pair counts beside the hidden tokens. There are few pairs in a small batch, so
    their gradient is large and uncertain: it may drown the other."""
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
    short: bool = False
    """Whether it was to be filled to a random shorter length only."""

    @property
    def length(self) -> int:
        """How many tokens, special ones included."""
        return self.first.length + (2 if self.second is None else 3 + self.second.length)


Bounds = tuple[int, ...]
Elsewhere = Callable[[], DocumentSpan]
"""Gives a random document that is not the one at hand."""


def examples_of(
    document: DocumentSpan, length: int, settings: PairSettings, elsewhere: Elsewhere, rng: Random
) -> Iterator[Example]:
    """The examples of one document, none longer than `length`."""
    if settings.objective == "none":
        yield from _single_texts(document, length - 2, settings, rng)
        return
    room = length - 3
    bounds, place = _parts(document.bounds, room, rng), 0
    while place < len(bounds) - 1:
        short, target = _target(room, settings, rng)
        begin, end = _at_least_two(bounds, place, _until(bounds, place, target))
        if end - begin < 2:
            return  # a document of one token
        cut = begin + 1 + _below(end - begin - 1, rng)
        first = Stretch(document.shard, bounds[begin], bounds[cut])
        second = Stretch(document.shard, bounds[cut], bounds[end])
        if rng.random() >= settings.unrelated:
            yield _fitted(first, second, 0, room, short)
        elif settings.objective == "sop":
            yield _fitted(second, first, 1, room, short)
        else:
            wanted = min(target, bounds[end] - bounds[begin]) - first.length
            yield _fitted(first, _other(elsewhere(), wanted, room, rng), 1, room, short)
            if begin == place:  # what the other text replaced is not lost: the next example begins with it
                end = cut
        place = end


def _single_texts(document: DocumentSpan, room: int, settings: PairSettings, rng: Random) -> Iterator[Example]:
    bounds, place = _pieces(document.bounds, room), 0
    while place < len(bounds) - 1:
        short, target = _target(room, settings, rng)
        end = _until(bounds, place, target)
        size = min(room, bounds[end] - bounds[place])
        start = bounds[place] + _below(bounds[end] - bounds[place] - size + 1, rng)
        yield Example(Stretch(document.shard, start, start + size), None, 0, short)
        place = end


def _target(room: int, settings: PairSettings, rng: Random) -> tuple[bool, int]:
    """Whether an example is a short one, and how many tokens it is to have."""
    short = rng.random() < settings.short
    return short, 2 + _below(room - 1, rng) if short else room


def _pieces(bounds: Bounds, room: int) -> Bounds:
    """Where sentences begin and end. One that is too long for an example is cut into halves of examples."""
    if max(map(sub, bounds[1:], bounds)) <= room:
        return bounds
    found = [bounds[0]]
    for start, end in pairwise(bounds):
        if end - start > room:
            found += [start + half * room // 2 for half in range(1, -(-2 * (end - start) // room))]
        found.append(end)
    return tuple(found)


def _parts(bounds: Bounds, room: int, rng: Random) -> Bounds:
    """What a cut may lie between: sentences, or two parts of the only one if it has more than one token."""
    found = _pieces(bounds, room)
    if len(found) > 2 or found[1] - found[0] < 2:
        return found
    return found[0], found[0] + 1 + _below(found[1] - found[0] - 1, rng), found[1]


def _until(bounds: Bounds, place: int, target: int) -> int:
    """Where sentences from `place` on have `target` tokens, or the document ends."""
    return bisect_left(bounds, bounds[place] + target, place + 1, len(bounds) - 1)


def _at_least_two(bounds: Bounds, place: int, end: int) -> tuple[int, int]:
    """At least two sentences where the document has them.

    Were a lone sentence always paired with a random one, as in the original, unrelated pairs would be more than half.
    """
    if end - place > 1:
        return place, end
    return (place, end + 1) if end < len(bounds) - 1 else (max(0, place - 1), end)


def _other(document: DocumentSpan, wanted: int, room: int, rng: Random) -> Stretch:
    """About `wanted` tokens of another document, from anywhere that a second text may begin."""
    bounds = _parts(document.bounds, room, rng)
    last = len(bounds) - 1
    start = 1 + _below(last - 1, rng) if last > 1 else 0
    end = _until(bounds, start, wanted)
    if bounds[end] - bounds[start] < wanted and start > 1:  # too near to its end
        start = max(1, bisect_right(bounds, bounds[end] - wanted) - 1)
    return Stretch(document.shard, bounds[start], bounds[end])


def _fitted(first: Stretch, second: Stretch, label: int, room: int, short: bool) -> Example:
    """A pair that fits: the longer text is shortened first. What touches the other text stays."""
    half = room // 2
    a, b = first.length, second.length
    if a + b > room:
        if b <= half:
            a = room - b
        elif a <= room - half:
            b = room - a
        else:
            a, b = room - half, half
    one = Stretch(first.shard, first.end - a, first.end)
    return Example(one, Stretch(second.shard, second.start, second.start + b), label, short)


def _below(number: int, rng: Random) -> int:
    """A whole number from 0 on, below `number`. Much faster than numpy's for one at a time."""
    return int(rng.random() * number)
