"""Texts that are longer than a translator reads at once: split at sentences, else at words, and put together again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from unmask.data.sentences import split_sentences
from unmask.text.encoding import Encoding
from unmask.text.scripts import is_han

_ENDS_WITHOUT_SPACE = frozenset("。！？；…｡，、：”』」）》")
Encode = Callable[[Sequence[str]], list[Encoding]]


@dataclass(frozen=True)
class Part:
    """What is translated at once."""

    text: str
    encoding: Encoding

    @property
    def ids(self) -> list[int]:
        """Its tokens, without special ones."""
        return self.encoding.ids

    def characters(self, place: int) -> str:
        """What a token stands for in the text."""
        start, end = self.encoding.offsets[place]
        return self.text[start:end]


def split(text: str, encode: Encode, room: int, code: str = "") -> list[Part]:
    """A text in parts of at most `room` tokens: the whole, else its sentences, else stretches of words.

    Every part begins with `code`, as the text does.
    """
    if not text.strip():
        return []
    encoding = encode([text])[0]
    if len(encoding) <= room:
        return [Part(text, encoding)]
    sentences = split_sentences(text.removeprefix(code))
    if len(sentences) > 1:
        return [part for sentence in sentences for part in split(code + sentence, encode, room, code)]
    made = []
    while len(encoding) > room:
        cut = _cut(encoding, room)
        first, rest = text[:cut].rstrip(), text[cut:].lstrip()
        if len(first) <= len(code) or not rest:  # cannot be divided
            break
        made += split(first, encode, room, code)
        text = code + rest
        encoding = encode([text])[0]
    return [*made, Part(text, encoding)]


def _cut(encoding: Encoding, room: int) -> int:
    """Where to cut so that what is before has at most `room` tokens: before the last word that begins there."""
    words, offsets = encoding.words, encoding.offsets
    place = room
    while place > 0 and words[place] == words[place - 1]:
        place -= 1
    return offsets[place or room][0]


def joined(pieces: Sequence[str]) -> str:
    """Translations of parts one after another, with a space between them unless the script has none."""
    made = ""
    for piece in pieces:
        if made and piece and not (made[-1] in _ENDS_WITHOUT_SPACE or is_han(made[-1])):
            made += " "
        made += piece
    return made
