"""A text in windows: what each of them holds, and what none of them does."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TypeVar

from unmask.longtext.windows import Window, held
from unmask.text import Encoding

Item = TypeVar("Item")

#: What a window holds of each text: of one, or of the two of a pair.
Kept = tuple[Window, ...]


class LongEncoding:
    """A text, or a pair, as the windows in which a model reads it.

    Only the ranges of windows are kept; the ids of each are put together when they are read, so memory grows with the
    text however much its windows overlap.
    """

    def __init__(
        self,
        encoding: Encoding,
        text: str,
        pair: str | None = None,
        kept: Sequence[Kept] | None = None,
        num_skipped: int = 0,
    ) -> None:
        """Windows that hold `kept` of the encoding's texts; None where one window holds all."""
        #: The whole text, as one sequence that may be longer than the model reads.
        self.encoding = encoding
        #: Windows that `max_windows` left out.
        self.num_skipped = num_skipped
        self._texts = (text,) if pair is None else (text, pair)
        self._kept = kept

    def __repr__(self) -> str:
        dropped = f", {self.dropped} dropped" if self.dropped else ""
        return f"LongEncoding({len(self.encoding)} tokens in {self.num_windows} windows{dropped})"

    @property
    def num_windows(self) -> int:
        """How many windows there are; one where the text fits."""
        return 1 if self._kept is None else len(self._kept)

    @property
    def is_long(self) -> bool:
        """Whether it did not fit as it is into one window."""
        return self._kept is not None

    @property
    def windows(self) -> list[EncodedWindow]:
        """The windows in order; made anew each time, for kept ones would keep this encoding alive in a circle."""
        if self._kept is None:
            return [EncodedWindow(self, None)]
        return [EncodedWindow(self, kept) for kept in self._kept]

    @cached_property
    def blocks(self) -> tuple[tuple[int, int], ...]:
        """Where the content tokens of each text start and end in the whole encoding."""
        owners = self.encoding.texts
        # An empty text stands nowhere: the first is taken to stand before everything, the second after.
        places = [owners.index(number) if number in owners else number * len(owners) for number in self._numbers]
        return tuple((place, place + owners.count(number)) for number, place in enumerate(places))

    def num_tokens(self, text: int = 0) -> int:
        """How many content tokens a text of the pair has, all windows together."""
        start, end = self.blocks[text]
        return end - start

    def offsets(self, text: int = 0) -> list[tuple[int, int]]:
        """Start and end in the original string of each content token of a text."""
        start, end = self.blocks[text]
        return self.encoding.offsets[start:end]

    def num_dropped(self, text: int = 0) -> int:
        """How many content tokens of a text are in no window."""
        return self.num_tokens(text) - sum(end - start for start, end in self._held(text)) if self.is_long else 0

    @cached_property
    def dropped(self) -> int:
        """How many content tokens are in no window."""
        return sum(map(self.num_dropped, self._numbers)) if self.is_long else 0

    @cached_property
    def cuts_shorter(self) -> bool:
        """Whether both texts of a pair were so long that the shorter one was cut too."""
        if len(self._texts) == 1 or not self.is_long:
            return False
        shorter = 1 if self.num_tokens(0) > self.num_tokens(1) else 0
        return self.num_dropped(shorter) > 0

    @cached_property
    def characters(self) -> tuple[int, int]:
        """How many characters, spaces aside, some window holds, and how many there are."""
        total = sum(map(_visible, self._texts))
        return (self._characters_held() if self.dropped else total), total

    @property
    def coverage(self) -> float:
        """Share of the characters of both texts, spaces aside, that some window holds; 1.0 if nothing was left out."""
        if not self.dropped:
            return 1.0
        seen, total = self.characters
        return seen / total if total else 1.0

    @property
    def _numbers(self) -> range:
        return range(len(self._texts))

    def _held(self, text: int) -> list[tuple[int, int]]:
        return held(kept[text] for kept in self._kept or ())

    def _characters_held(self) -> int:
        """Visible characters from the first token of each held range to the first token after it.

        So a character without a token, such as an accent that was stripped, belongs to the token before it. One that
        several tokens share, as bytes do, counts only where all of them are held.
        """
        seen = 0
        for number, text in enumerate(self._texts):
            offsets = self.offsets(number)
            for first, after in self._held(number):
                start = max(offsets[first][0], offsets[first - 1][1]) if first else 0
                end = offsets[after][0] if after < len(offsets) else len(text)
                seen += _visible(text[start:end])
        return seen


class EncodedWindow:
    """What a model reads at once: a part of a text, or of a pair, with special tokens around it.

    Every list has one item for each token of the window.
    """

    __slots__ = ("_kept", "_whole")

    def __init__(self, whole: LongEncoding, kept: Kept | None) -> None:
        """A window of `whole` that holds `kept` of its texts; None where it holds all of them."""
        self._whole = whole
        self._kept = kept

    def __len__(self) -> int:
        whole = len(self._whole.encoding)
        if self._kept is None:
            return whole
        return whole - sum(end - start for start, end in self._whole.blocks) + sum(map(len, self._kept))

    def __repr__(self) -> str:
        return f"EncodedWindow({len(self)} tokens)"

    @property
    def ids(self) -> list[int]:
        """The vocabulary index of each token."""
        return self._taken(self._whole.encoding.ids)

    @property
    def segments(self) -> list[int]:
        """0 for tokens of the first text and the special tokens that belong to it, 1 for the second."""
        return self._taken(self._whole.encoding.segments)

    @property
    def offsets(self) -> list[tuple[int, int]]:
        """Start and end of each token in its own, whole text; (0, 0) for special tokens."""
        return self._taken(self._whole.encoding.offsets)

    @property
    def texts(self) -> list[int | None]:
        """0 or 1 for a token of the first or second text; None for special tokens."""
        return self._taken(self._whole.encoding.texts)

    @property
    def kept(self) -> Kept:
        """Which content tokens of each text the window holds."""
        if self._kept is not None:
            return self._kept
        return tuple(Window.of(0, end - start) for start, end in self._whole.blocks)

    def rows(self, text: int = 0) -> range:
        """Where in the window the content tokens of a text stand: together, even where they are a head and a tail."""
        blocks, kept = self._whole.blocks, self.kept
        before = sum(end - start - len(window) for (start, end), window in zip(blocks[:text], kept, strict=False))
        start = blocks[text][0] - before
        return range(start, start + len(kept[text]))

    def _taken(self, items: list[Item]) -> list[Item]:
        if self._kept is None:
            return items
        taken: list[Item] = []
        done = 0
        for (start, end), window in zip(self._whole.blocks, self._kept, strict=True):
            taken += items[done:start]
            for first, after in window.ranges:
                taken += items[start + first : start + after]
            done = end
        return taken + items[done:]


def _visible(text: str) -> int:
    """How many characters are not spaces."""
    return sum(map(len, text.split()))
