"""Which tokens of a text each window holds: functions of counts alone.

A token here is a content token, counted from 0 within its text; special tokens come around each window later. `room`
is how many content tokens a window can hold: 510 where a model reads 512 and a text is put between [CLS] and [SEP].
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeVar, assert_never

from unmask.errors import SettingsError
from unmask.longtext.settings import LongTextSettings

Item = TypeVar("Item")

# Head and tail as they were published, for a room of 510: 128 + 382 of texts up to 800 tokens, 256 + 254 beyond.
_ROOM, _SHORT_HEAD, _LONG_HEAD, _LONG = 510, 128, 256, 800


@dataclass(frozen=True, slots=True)
class Window:
    """The tokens of a text that are read at once: one range (start, end), or two, the head's and the tail's."""

    ranges: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, start: int, end: int) -> Window:
        """A window of one range."""
        return cls(((start, end),))

    def __len__(self) -> int:
        return sum(end - start for start, end in self.ranges)


def pieces(num_tokens: int, room: int, settings: LongTextSettings) -> list[Window]:
    """The windows of a text, in order; one that holds all of it where it fits.

    `auto`, which only `choose` can resolve, is read as `windows`, the way that leaves nothing out.
    """
    if room < 1:
        raise SettingsError("a window has no room for text beside its special tokens; read more tokens at once")
    if num_tokens <= room:
        return [Window.of(0, num_tokens)]
    match settings.strategy:
        case "head":
            return [Window.of(0, room)]
        case "tail":
            return [Window.of(num_tokens - room, num_tokens)]
        case "head_tail":
            return [_head_tail(num_tokens, room)]
        case "windows" | "auto" | "hierarchical":  # hierarchical positions made the room larger; this is what is beyond
            step = room - settings.shared(room)
            starts = [*range(0, num_tokens - room, step), num_tokens - room]
            return [Window.of(start, start + room) for start in starts]
        case "parts":
            count = -(-num_tokens // room)
            cuts = [number * num_tokens // count for number in range(count + 1)]
            return [Window.of(start, end) for start, end in pairwise(cuts)]
        case _:
            assert_never(settings.strategy)


def _head_tail(num_tokens: int, room: int) -> Window:
    """Head and tail in the published proportions.

    For another room the head is rounded to the nearest token, half up, but has at least one; the tail is the rest of
    the room, and none in a room of one. Whether a text is beyond 800 is asked of its share of the room, unrounded.
    """
    published = _SHORT_HEAD if num_tokens * _ROOM <= _LONG * room else _LONG_HEAD
    head = max(1, (2 * room * published + _ROOM) // (2 * _ROOM))
    tail = room - head
    return Window(((0, head), (num_tokens - tail, num_tokens))) if tail else Window.of(0, head)


def pair_pieces(first: int, second: int, room: int, settings: LongTextSettings) -> list[tuple[Window, Window]]:
    """The windows of a pair: the longer text in windows, each with all of the shorter.

    A shorter text that needs more than half of the room is cut to half of it: by head, tail or both where the strategy
    is one of them, else by head. As in the tokenizer, of two equal texts the second is the longer.
    """
    if first + second <= room:
        return [(Window.of(0, first), Window.of(0, second))]
    if room < 2:
        raise SettingsError("a window has no room for two texts beside its special tokens; read more tokens at once")
    short, long = min(first, second), max(first, second)
    cuts = settings.strategy in ("head", "tail", "head_tail")
    kept = pieces(short, room // 2, settings if cuts else settings.replace(strategy="head"))[0]
    windows = pieces(long, room - len(kept), settings)
    return [(window, kept) if first > second else (kept, window) for window in windows]


def spread(items: Sequence[Item], most: int | None) -> list[Item]:
    """At most `most` items, evenly spread, the first and the last among them; the first where it is one."""
    if most is None or len(items) <= most:
        return list(items)
    if most == 1:
        return [items[0]]
    return [items[number * (len(items) - 1) // (most - 1)] for number in range(most)]


def held(windows: Iterable[Window]) -> list[tuple[int, int]]:
    """The ranges of tokens that some window holds, in order and apart."""
    found: list[tuple[int, int]] = []
    for start, end in sorted(span for window in windows for span in window.ranges):
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], end))
        else:
            found.append((start, end))
    return found
