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
        left = f"{self.dropped:,} tokens are left out and {_percent(self.coverage)} of the characters read"
        return "; ".join([*parts, left if self.dropped else "nothing is left out"])


def report(encodings: Iterable[LongEncoding]) -> LongTextReport:
    """Counts over many texts; quick where nothing was left out."""
    texts = long = windows = skipped = shortened = dropped = seen = total = 0
    for encoding in encodings:
        reached, characters = encoding.characters
        texts += 1
        long += encoding.is_long
        windows += encoding.num_windows
        skipped += encoding.num_skipped
        shortened += encoding.cuts_shorter
        dropped += encoding.dropped
        seen += reached
        total += characters
    return LongTextReport(texts, long, windows, skipped, shortened, dropped, seen / total if total else 1.0)


def _percent(share: float) -> str:
    """A share that is below one never looks like all of it."""
    return f"{min(share, 0.999):.1%}" if share < 1 else "100%"
