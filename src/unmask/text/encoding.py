"""What a tokenizer gives back: a lazy view over the library's encoding that knows what was left out."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TypeVar

import tokenizers

from unmask.text.panics import panics_told

Item = TypeVar("Item")


class Encoding:
    """Tokens of one text or of a pair, with where each of them came from.

    Nothing is copied out of the library's encoding until it is read; what was read once is kept.
    All lists have one item for each kept token.
    """

    def __init__(
        self,
        source: tokenizers.Encoding,
        text: str,
        pair: str | None = None,
        max_length: int | None = None,
        finder: tokenizers.Tokenizer | None = None,
    ) -> None:
        """Look at a source; one that was made without tokens and offsets needs a `finder` for them."""
        self._source = source
        self._finder = finder
        self._text = text
        self._pair = pair
        cut = max_length is not None and len(source) > max_length
        self._kept = _kept_positions(source.sequence_ids, max_length) if cut and max_length is not None else None

    def __len__(self) -> int:
        return len(self._source) if self._kept is None else len(self._kept)

    def __repr__(self) -> str:
        dropped = f", {self.num_dropped} dropped" if self._kept is not None else ""
        return f"Encoding({len(self)} tokens{dropped})"

    @cached_property
    def ids(self) -> list[int]:
        """The vocabulary index of each token."""
        return self._keep(self._source.ids)

    @cached_property
    def segments(self) -> list[int]:
        """0 for tokens of the first text and the special tokens that belong to it, 1 for the second."""
        return self._keep(self._source.type_ids)

    @cached_property
    def tokens(self) -> list[str]:
        """Each token as it is written in the vocabulary."""
        return self._keep(self._located.tokens)

    @cached_property
    def offsets(self) -> list[tuple[int, int]]:
        """Start and end of each token in its own text, as Python string indices; (0, 0) for special tokens."""
        return self._keep(self._located.offsets)

    @cached_property
    def words(self) -> list[int | None]:
        """The number of the word each token belongs to, counted within its text; None for special tokens."""
        return self._keep(self._located.word_ids)

    @cached_property
    def texts(self) -> list[int | None]:
        """0 or 1 for a token of the first or second text; None for special tokens."""
        return self._keep(self._source.sequence_ids)

    @cached_property
    def special(self) -> list[bool]:
        """True for the tokens put around the text; a `[MASK]` typed in the text itself is not one of them."""
        return [flag == 1 for flag in self._keep(self._source.special_tokens_mask)]

    @property
    def num_dropped(self) -> int:
        """How many tokens `max_length` left out."""
        return len(self._source) - len(self)

    @cached_property
    def coverage(self) -> float:
        """Share of the characters of both texts, spaces aside, that the kept tokens reach; 1.0 if none was cut."""
        if self._kept is None:
            return 1.0
        reached = total = 0
        for number, text in enumerate((self._text, self._pair)):
            if text is not None:
                total += _visible(text)
                reached += _visible(text[: self._reach(number, len(text))])
        return reached / total if total else 1.0

    @cached_property
    def _located(self) -> tokenizers.Encoding:
        """The encoding with tokens and offsets: most uses of a batch never ask for them, and are faster for it."""
        if self._finder is None:
            return self._source
        wrapped = 1 in self._source.special_tokens_mask
        with panics_told():
            return self._finder.encode(self._text, self._pair, add_special_tokens=wrapped)

    def _reach(self, number: int, end: int) -> int:
        """Where the first dropped token of a text starts, or the end of the text if all of it was kept."""
        kept = self.texts.count(number)
        starts = [
            start
            for owner, (start, _) in zip(self._source.sequence_ids, self._located.offsets, strict=True)
            if owner == number
        ]
        return starts[kept] if kept < len(starts) else end

    def _keep(self, items: list[Item]) -> list[Item]:
        return items if self._kept is None else [items[position] for position in self._kept]


def shares(first: int, second: int, room: int) -> tuple[int, int]:
    """How many tokens of two texts are kept when both must fit in `room`: the longer one is cut first.

    When both are cut and the room is odd, the text that was longer gets the odd token, the second one on a tie;
    that is the rule of the fast tokenizers in common use.
    """
    if first + second <= room:
        return first, second
    short, long = min(first, second), max(first, second)
    long = max(short, room - short)
    if short + long > room:
        short = room // 2
        long = room - short
    return (long, short) if first > second else (short, long)


def _kept_positions(owners: Sequence[int | None], max_length: int) -> list[int]:
    first, second = owners.count(0), owners.count(1)
    room = max_length - (len(owners) - first - second)
    left = dict(enumerate(shares(first, second, room)))
    kept = []
    for position, owner in enumerate(owners):
        if owner is not None:
            left[owner] -= 1
            if left[owner] < 0:
                continue
        kept.append(position)
    return kept


def _visible(text: str) -> int:
    """How many characters are not spaces."""
    return sum(map(len, text.split()))
