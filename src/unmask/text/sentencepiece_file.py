"""Reading a SentencePiece model file: protobuf's wire format, only the fields that cutting text needs."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path
from typing import Literal

from unmask.errors import ModelError
from unmask.text.vocabulary import MAX_FILE_BYTES, MAX_TOKENS

#: A field's number and its value: an integer, four or eight bytes as they stand, or a stretch of bytes.
Field = tuple[int, "int | bytes"]

_VARINT, _EIGHT_BYTES, _STRETCH, _FOUR_BYTES = 0, 1, 2, 5
_KINDS: dict[int, Literal["unigram", "bpe"]] = {1: "unigram", 2: "bpe"}
_OTHER_KINDS = {3: "word", 4: "char"}


class PieceType(IntEnum):
    """What a piece is for, by the numbers of the format."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3  # never found in text
    USER_DEFINED = 4  # found in text before anything else
    UNUSED = 5
    BYTE = 6


@dataclass(frozen=True)
class Piece:
    """A token of the vocabulary."""

    text: str
    score: float
    type: PieceType


@dataclass(frozen=True)
class Normalisation:
    """How text is cleaned before it is cut."""

    charsmap: bytes = b""  # a compiled table of replacements
    add_dummy_prefix: bool = True
    remove_extra_whitespaces: bool = True
    escape_whitespaces: bool = True


@dataclass(frozen=True)
class PieceFile:
    """The content of a model file."""

    path: Path
    data: bytes = field(repr=False)
    pieces: tuple[Piece, ...] = field(repr=False)
    kind: Literal["unigram", "bpe"] = "unigram"
    byte_fallback: bool = False
    normalisation: Normalisation = Normalisation()

    def texts(self, *types: PieceType) -> list[str]:
        """The pieces of these types."""
        return [piece.text for piece in self.pieces if piece.type in types]


class _Damaged(Exception):
    """Says what is wrong; the file is named where it is known."""


def read_piece_file(path: Path) -> PieceFile:
    """The content of a SentencePiece model file; ModelError in one sentence if it is missing or damaged."""
    if not path.is_file() or path.stat().st_size > MAX_FILE_BYTES:
        raise ModelError(f"{path}: not a file of at most {MAX_FILE_BYTES:,} bytes, so not a SentencePiece model")
    try:
        return _model(path, path.read_bytes())
    except OSError as error:
        raise ModelError(f"{path}: cannot be read ({error.strerror or error})") from None
    except _Damaged as error:
        raise ModelError(f"{path}: not a SentencePiece model that can be read ({error}); download it again") from None


def _model(path: Path, data: bytes) -> PieceFile:
    pieces: list[Piece] = []
    trainer, normaliser = b"", b""
    for number, value in _fields(data):
        match number:
            case 1:
                pieces.append(_piece(_stretch(value, "a piece"), len(pieces)))
                if len(pieces) > MAX_TOKENS:
                    raise _Damaged(f"more than {MAX_TOKENS:,} pieces")
            case 2:  # a message that comes in several stretches is their sum
                trainer += _stretch(value, "trainer_spec")
            case 3:
                normaliser += _stretch(value, "normalizer_spec")
            case 5:
                _check_denormaliser(_stretch(value, "denormalizer_spec"), path)
    kind, byte_fallback = _trainer(trainer, path)
    _check(pieces, byte_fallback)
    return PieceFile(path, data, tuple(pieces), kind, byte_fallback, _normalisation(normaliser))


def _piece(data: bytes, place: int) -> Piece:
    text, score, kind = "", 0.0, int(PieceType.NORMAL)
    for number, value in _fields(data):
        match number:
            case 1:
                text = _text(_stretch(value, f"piece {place}"), place)
            case 2:
                if not isinstance(value, bytes) or len(value) != 4:
                    raise _Damaged(f"the score of piece {place} is not a number of four bytes")
                (score,) = struct.unpack("<f", value)
            case 3:
                kind = _number(value, f"the type of piece {place}")
    if not text:
        raise _Damaged(f"piece {place} is empty")
    if not math.isfinite(score):
        raise _Damaged(f"the score of piece {place} is {score}")
    if kind not in set(PieceType):
        raise _Damaged(f"piece {place} has the type {kind}, which there is not")
    return Piece(text, score, PieceType(kind))


def _text(data: bytes, place: int) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise _Damaged(f"piece {place} is not UTF-8") from None


def _trainer(data: bytes, path: Path) -> tuple[Literal["unigram", "bpe"], bool]:
    kind, byte_fallback = 1, False
    for number, value in _fields(data):
        match number:
            case 3:
                kind = _number(value, "model_type")
            case 35:
                byte_fallback = _number(value, "byte_fallback") != 0
            case 24 if _number(value, "treat_whitespace_as_suffix"):
                raise ModelError(f"{path}: treat_whitespace_as_suffix is set, which is not supported")
    if kind in _OTHER_KINDS:
        raise ModelError(f"{path}: model_type {_OTHER_KINDS[kind]} is not supported; supported are unigram and bpe")
    if kind not in _KINDS:
        raise _Damaged(f"model_type {kind} does not exist")
    return _KINDS[kind], byte_fallback


def _normalisation(data: bytes) -> Normalisation:
    charsmap = b""
    flags = {3: True, 4: True, 5: True}
    for number, value in _fields(data):
        if number == 2:
            charsmap = _stretch(value, "precompiled_charsmap")
        elif number in flags:
            flags[number] = _number(value, "a setting of normalizer_spec") != 0
    return Normalisation(charsmap, *flags.values())


def _check_denormaliser(data: bytes, path: Path) -> None:
    if any(number == 2 and value for number, value in _fields(data)):
        raise ModelError(f"{path}: has rules for changing text back after cutting, which is not supported")


def _check(pieces: list[Piece], byte_fallback: bool) -> None:
    unknown = sum(piece.type is PieceType.UNKNOWN for piece in pieces)
    if unknown != 1:
        raise _Damaged(f"{unknown} unknown pieces where there must be one")
    if not any(piece.type is PieceType.NORMAL for piece in pieces):
        raise _Damaged("no piece that text could be cut into")
    seen: set[str] = set()
    for place, piece in enumerate(pieces):
        if piece.text in seen:
            raise _Damaged(f"piece {place} is there twice")
        seen.add(piece.text)
    found = {piece.text for piece in pieces if piece.type is PieceType.BYTE}
    allowed = {f"<0x{byte:02X}>" for byte in range(256)}
    if not found <= allowed or (byte_fallback and found != allowed):
        raise _Damaged(f"{len(found & allowed)} byte pieces where there must be 256")


def _fields(data: bytes) -> Iterator[Field]:
    """The fields of a message one after another; _Damaged where they do not fill it exactly."""
    place, end = 0, len(data)
    while place < end:
        key, place = _varint(data, place)
        number, wire = key >> 3, key & 7
        value: int | bytes
        if number == 0:
            raise _Damaged("a field without a number")
        if wire == _VARINT:
            value, place = _varint(data, place)
        elif wire in (_STRETCH, _FOUR_BYTES, _EIGHT_BYTES):
            size = {_FOUR_BYTES: 4, _EIGHT_BYTES: 8}.get(wire, 0)
            if wire == _STRETCH:
                size, place = _varint(data, place)
            if size > end - place:
                raise _Damaged(f"a field of {size:,} bytes where {end - place:,} are left")
            value, place = data[place : place + size], place + size
        else:
            raise _Damaged(f"a field of the wire type {wire}")
        yield number, value


def _varint(data: bytes, place: int) -> tuple[int, int]:
    """An integer of seven bits a byte, and where it ends."""
    value = shift = 0
    while True:
        if place >= len(data):
            raise _Damaged("it ends in the middle of a number")
        byte = data[place]
        place += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += 7
        if shift > 63:
            raise _Damaged("a number of more than 64 bits")
    return value, place


def _stretch(value: int | bytes, what: str) -> bytes:
    if not isinstance(value, bytes):
        raise _Damaged(f"{what} is a number where bytes are expected")
    return value


def _number(value: int | bytes, what: str) -> int:
    if not isinstance(value, int):
        raise _Damaged(f"{what} is bytes where a number is expected")
    return value
