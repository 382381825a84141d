"""What became of long texts, in numbers and in one sentence."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from unmask.longtext.encoding import LongEncoding


@dataclass(frozen=True)
class LongTextReport:
    """How many texts were long, and how much of all of them is read. A pair counts as one text."""

    texts: int
    long: int
    #: Of all texts, short ones included.
    windows: int
    #: Windows that `max_windows` left out.
    skipped: int
    #: Pairs of two long texts, so that even the shorter one lost tokens.
    shortened: int
    #: Content tokens in no window.
    dropped: int
    #: Share of the characters, spaces aside, that some window holds.
    coverage: float

    def __str__(self) -> str:
        if not self.long:
            return f"none of {self.texts:,} texts is too long to be read at once"
        parts = [f"{self.long:,} of {self.texts:,} texts are too long to be read at once"]
        if self.windows > self.texts:
            parts.append(f"{self.windows:,} windows are read")
        if self.skipped:
            parts.append(f"max_windows leaves {self.skipped:,} windows out")
        if self.shortened:
            parts.append(f"in {self.shortened:,} pairs even the shorter text is cut")
        left = f"{self.dropped:,} tokens are left out and {share_read(self.coverage)} of the characters read"
        return "; ".join([*parts, left if self.dropped else "nothing is left out"])


class Tally:
    """Counts texts as they come by."""

    def __init__(self) -> None:
        self._texts = self._long = self._windows = self._skipped = self._shortened = self._dropped = 0
        self._seen = self._total = 0  # characters

    def add(self, encodings: Iterable[LongEncoding]) -> None:
        """Count some more; quick where nothing was left out."""
        for encoding in encodings:
            reached, characters = encoding.characters
            self._texts += 1
            self._long += encoding.is_long
            self._windows += encoding.num_windows
            self._skipped += encoding.num_skipped
            self._shortened += encoding.cuts_shorter
            self._dropped += encoding.dropped
            self._seen += reached
            self._total += characters

    @property
    def report(self) -> LongTextReport:
        """What was counted so far."""
        share = self._seen / self._total if self._total else 1.0
        counts = (self._texts, self._long, self._windows, self._skipped, self._shortened, self._dropped)
        return LongTextReport(*counts, share)


def report(encodings: Iterable[LongEncoding]) -> LongTextReport:
    """Counts over many texts."""
    tally = Tally()
    tally.add(encodings)
    return tally.report


def share_read(share: float) -> str:
    """A share that is below one never looks like all of it."""
    return f"{min(share, 0.999):.1%}" if share < 1 else "100%"
