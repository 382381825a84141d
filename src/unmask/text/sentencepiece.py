"""SentencePiece: text to pieces and back, as a model file says and as its own library does it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from unmask.text.pipelines import BYTE_TOKENS, SPACE_MARK
from unmask.text.sentencepiece_file import PieceFile, PieceType, read_piece_file
from unmask.text.sentencepiece_normalise import Normaliser
from unmask.text.sentencepiece_segment import segmenter

_UNKNOWN_SURFACE = " \u2047 "
_NO_CHARACTER = "\ufffd"


class Found(NamedTuple):
    """A piece, and the stretch of the text that it stands for."""

    piece: str
    start: int
    end: int


class SentencePiece:
    """Turns text into the pieces of a model file, and pieces into text. Never changed after it is made."""

    def __init__(self, file: PieceFile) -> None:
        self.file = file
        self._normalise = Normaliser(file)
        self._cut = segmenter(file)
        self._types = {piece.text: piece.type for piece in file.pieces}

    @classmethod
    def read(cls, path: Path) -> SentencePiece:
        """The model in a file (.spm, .model)."""
        return cls(read_piece_file(path))

    def normalise(self, text: str) -> str:
        """Text as it looks after cleaning, before it is cut; spaces are written ▁."""
        return self._normalise(text).text

    def encode(self, text: str) -> list[Found]:
        """The pieces of a text. What is unknown is given as it stands, a run of it as one, or as its bytes."""
        clean = self._normalise(text)
        found: list[Found] = []
        after_unknown = False
        for start, end, known in self._cut(clean.text):
            piece, span = clean.text[start:end], clean.span(start, end)
            if known:
                found.append(Found(piece, *span))
            elif self.file.byte_fallback:
                found += [Found(BYTE_TOKENS[byte], *span) for byte in piece.encode()]
            elif after_unknown:
                before = found.pop()
                found.append(Found(before.piece + piece, before.start, span[1]))
            else:
                found.append(Found(piece, *span))
            after_unknown = not known
        return found

    def decode(self, pieces: Sequence[str]) -> str:
        """The text that pieces make."""
        rules = self.file.normalisation
        trims = rules.add_dummy_prefix or rules.remove_extra_whitespaces
        text, waiting, begun = "", bytearray(), False
        for piece in pieces:
            kind = self._types.get(piece)
            if kind is PieceType.BYTE:
                waiting.append(BYTE_TOKENS.index(piece))
                continue
            text += _characters(waiting)
            waiting.clear()
            first = trims and not begun and not text
            begun = False
            if kind is None:
                text += piece
            elif kind is PieceType.UNKNOWN:
                text += _UNKNOWN_SURFACE
            elif kind is not PieceType.CONTROL:
                # Of the spaces at the beginning one was put there when the text was cleaned.
                begun = first and piece.startswith(SPACE_MARK) and not rules.remove_extra_whitespaces
                text += (piece.removeprefix(SPACE_MARK) if first else piece).replace(SPACE_MARK, " ")
        return text + _characters(waiting)


def _characters(data: bytes | bytearray) -> str:
    """Bytes as text; each that is no part of a character becomes a sign that says so."""
    made, place = "", 0
    while place < len(data):
        for size in (1, 2, 3, 4):
            try:
                made += data[place : place + size].decode()
            except UnicodeDecodeError:
                continue
            place += size
            break
        else:
            made += _NO_CHARACTER
            place += 1
    return made
