"""Letters on a page: how much room they take, and which of them can be seen."""

from __future__ import annotations

import re
import unicodedata

from unmask.text.scripts import HAN

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202d\u202e\ud800-\udfff\ufffe\uffff]")
_KANA = re.compile("[\u3040-\u30ff]")


def visible(text: str) -> str:
    """A text whose control characters can be seen: most of them no page may hold, and two turn its letters around."""
    return _CONTROL.sub("\ufffd", text)


def language(text: str) -> str:
    """What to tell the browser, which has other shapes for Chinese than for Japanese characters."""
    return "ja" if _KANA.search(text) else "zh" if HAN.search(text) else ""


def wide(character: str) -> bool:
    """Whether a character takes the room of two."""
    return unicodedata.east_asian_width(character) in "WF"


def cut(text: str, room: int) -> str:
    """As much of a text as fits into the room of so many Latin letters, on one line."""
    plain = " ".join(text.split())
    used = 0
    for place, character in enumerate(plain):
        used += 2 if wide(character) else 1
        if used > room:
            return plain[: max(place - 1, 0)].rstrip() + "…"
    return plain


def room(text: str) -> int:
    """How many Latin letters' room a text takes."""
    return sum(2 if wide(character) else 1 for character in text)
