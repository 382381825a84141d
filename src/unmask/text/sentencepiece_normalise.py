"""Cleaning text as SentencePiece does, with where each character came from.

The Rust library has a step for the same tables, but it replaces user-perceived characters one at a time where
SentencePiece looks for the longest rule at each place, so the two differ on combining marks.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path

from unmask.errors import ModelError
from unmask.text.pipelines import SPACE_MARK
from unmask.text.sentencepiece_file import Normalisation, PieceFile, PieceType

_DEAD = -1


@dataclass
class Clean:
    """Cleaned text; of each character, the stretch of the original that it stands for."""

    text: str
    starts: list[int]
    ends: list[int]

    def span(self, start: int, end: int) -> tuple[int, int]:
        """The stretch of the original for a stretch of the cleaned text."""
        return self.starts[start], self.ends[end - 1]


class Normaliser:
    """The cleaning that a model file asks for."""

    def __init__(self, file: PieceFile) -> None:
        self._rules = file.normalisation
        self._charsmap = Charsmap(self._rules.charsmap, file.path) if self._rules.charsmap else None
        self._symbols = Symbols(file.texts(PieceType.USER_DEFINED))
        self._mark = SPACE_MARK if self._rules.escape_whitespaces else " "

    def __call__(self, text: str) -> Clean:
        """Text as its pieces are looked for."""
        rules: Normalisation = self._rules
        place, end = 0, len(text)
        while rules.remove_extra_whitespaces and place < end:
            found, size = self._first(text, place)
            if found != " ":
                break
            place += size
        letters: list[str] = []
        starts: list[int] = []
        ends: list[int] = []
        if place < end and rules.add_dummy_prefix:
            letters.append(self._mark)
            starts.append(place)
            ends.append(place)
        after_space = rules.remove_extra_whitespaces
        while place < end:
            found, size = self._first(text, place)
            if after_space:
                found = found.lstrip(" ")
            if found:
                letters.extend(found)
                starts.extend([place] * len(found))
                ends.extend([place + size] * len(found))
                after_space = rules.remove_extra_whitespaces and found.endswith(" ")
            place += size
        made = "".join(letters).replace(" ", self._mark)
        if rules.remove_extra_whitespaces:
            made = made.rstrip(self._mark)
        return Clean(made, starts[: len(made)], ends[: len(made)])

    def _first(self, text: str, place: int) -> tuple[str, int]:
        """What stands at a place, cleaned, and how many characters of the text it is."""
        size = self._symbols.longest(text, place)
        if size:
            return text[place : place + size], size
        found = None if self._charsmap is None else self._charsmap.longest(text, place)
        return (text[place], 1) if found is None else found


class Symbols:
    """Pieces that are found in text before anything else."""

    def __init__(self, texts: list[str]) -> None:
        self._texts = frozenset(texts)
        self._sizes = sorted({len(text) for text in texts}, reverse=True)

    def longest(self, text: str, place: int) -> int:
        """How long the longest of them is that stands at a place; 0 for none."""
        stretches = (text[place : place + size] for size in self._sizes)  # at the end of the text, shorter ones
        return next((len(stretch) for stretch in stretches if stretch in self._texts), 0)


class Charsmap:
    """A compiled table of replacements: a double-array trie over UTF-8, and the texts that its leaves point to.

    Of what a character does at a node is kept what was found, so walking costs one look-up a character.
    """

    def __init__(self, data: bytes, path: Path) -> None:
        self._path = path
        size = int.from_bytes(data[:4], "little")
        if len(data) < 4 or size % 4 or size == 0 or size > len(data) - 4:
            raise self._damaged()
        self._units = struct.unpack(f"<{size // 4}I", data[4 : 4 + size])
        self._texts = data[4 + size :]
        self._root = _offset(self._units[0])
        self._steps: dict[tuple[int, str], tuple[int, str | None]] = {}

    def longest(self, text: str, place: int) -> tuple[str, int] | None:
        """The replacement of the longest rule that fits at a place, and how many characters it replaces."""
        node, at, end = self._root, place, len(text)
        best = None
        while at < end and node != _DEAD:
            step = (node, text[at])
            reached = self._steps.get(step)
            if reached is None:
                reached = self._steps[step] = self._walk(*step)
            node, found = reached
            at += 1
            if found is not None:
                best = (found, at - place)
        return best

    def _walk(self, node: int, character: str) -> tuple[int, str | None]:
        """The node behind a character, and the replacement of what leads there."""
        leaf = None
        for byte in character.encode():
            node ^= byte
            unit = self._unit(node)
            if unit & 0x800000FF != byte:
                return _DEAD, None
            node ^= _offset(unit)
            leaf = self._unit(node) if unit >> 8 & 1 else None
        return node, None if leaf is None else self._text(leaf & 0x7FFFFFFF)

    def _unit(self, place: int) -> int:
        if place >= len(self._units):
            raise self._damaged()
        return self._units[place]

    def _text(self, place: int) -> str:
        end = self._texts.find(b"\0", place)
        try:
            if end < 0:
                raise self._damaged()
            return self._texts[place:end].decode()
        except UnicodeDecodeError:
            raise self._damaged() from None

    def _damaged(self) -> ModelError:
        return ModelError(
            f"{self._path}: its table of replacements (precompiled_charsmap) is damaged; download it again"
        )


def _offset(unit: int) -> int:
    """How a unit of the double array says where its children are."""
    return unit >> 10 << ((unit & 0x200) >> 6)
