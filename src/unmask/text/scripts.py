"""Which script a character belongs to."""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache

# The blocks that BERT calls Chinese, in its order. It leaves out later extensions (F and on) and marks such as 々.
_BERT_CHINESE = (
    (0x4E00, 0x9FFF),
    (0x3400, 0x4DBF),
    (0x20000, 0x2A6DF),
    (0x2A700, 0x2B73F),
    (0x2B740, 0x2B81F),
    (0x2B820, 0x2CEAF),
    (0xF900, 0xFAFF),
    (0x2F800, 0x2FA1F),
)
HAN = re.compile("[" + "".join(f"{chr(first)}-{chr(last)}" for first, last in _BERT_CHINESE) + "]")
"""A character that BERT treats as Chinese."""

_FIRST_WORDS = {
    "CJK": "han",
    "HIRAGANA": "kana",
    "KATAKANA": "kana",
    "KATAKANA-HIRAGANA": "kana",
    "HANGUL": "hangul",
    "LATIN": "latin",
    "CYRILLIC": "cyrillic",
    "GREEK": "greek",
    "ARABIC": "arabic",
    "HEBREW": "hebrew",
    "DEVANAGARI": "devanagari",
    "THAI": "thai",
}


def is_han(character: str) -> bool:
    """Whether BERT treats a character as Chinese, one that is a word by itself."""
    return HAN.match(character) is not None


@lru_cache(maxsize=65536)
def script(character: str) -> str:
    """The script of a character: han, kana, latin, digit, punctuation, symbol (with emoji), space, ... or other."""
    if character.isspace():
        return "space"
    category = unicodedata.category(character)
    if category in ("Nd", "No"):
        return "digit"
    if category.startswith("P"):
        return "punctuation"
    if category.startswith("S"):
        return "symbol"
    # Names begin with the script; a width such as FULLWIDTH or HALFWIDTH may stand before it.
    words = unicodedata.name(character, "").removeprefix("FULLWIDTH ").removeprefix("HALFWIDTH ").split(" ", 1)
    if is_han(character) or character == "々":
        return "han"
    return _FIRST_WORDS.get(words[0], "mark" if category.startswith("M") else "other")
