"""A text from its words: with spaces between them, but not between those of a language without."""

from __future__ import annotations

from collections.abc import Sequence

from unmask.data.examples import TaggedExample
from unmask.text.scripts import is_han, script

Sentence = tuple[list[str], list[str] | None, int]
"""Words, their tags, and the line of the first."""


def joined(sentences: Sequence[Sentence]) -> list[TaggedExample]:
    """Examples whose texts are made of their words."""
    total = sum(len(words) for words, _, _ in sentences)
    han = sum(len(word) == 1 and is_han(word) for words, _, _ in sentences for word in words)
    # Where each character is a word, letters and digits are cut up too, and no space was between them.
    single = 2 * han > total
    examples = []
    for words, tags, line in sentences:
        text, spans = "", []
        for index, word in enumerate(words):
            if index and _spaced(words[index - 1], word, single):
                text += " "
            spans.append((len(text), len(text) + len(word)))
            text += word
        examples.append(TaggedExample(text, tuple(spans), None if tags is None else tuple(tags), None, line))
    return examples


def _spaced(left: str, right: str, single: bool) -> bool:
    if single:
        return not (_is_cjk(left[-1]) or _is_cjk(right[0]) or len(left) == len(right) == 1)
    return not (_is_cjk(left[-1]) and _is_cjk(right[0]))


def _is_cjk(character: str) -> bool:
    """Whether a character is one of a language without spaces, or of its punctuation."""
    wide = "\u3000" <= character <= "\u303f" or "\uff00" <= character <= "\uffef"
    return wide or is_han(character) or script(character) == "kana" or character in "“”‘’—…·"
