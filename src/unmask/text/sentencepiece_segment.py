"""Cutting cleaned text into the pieces of a SentencePiece model, tie by tie as its own library does.

The Rust library adds scores in double precision where SentencePiece rounds sums to single precision, and so breaks
ties differently: of "aa a" and "a aa" each may take another.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Mapping
from heapq import heappop, heappush
from typing import NamedTuple, Protocol

from unmask.text.sentencepiece_file import PieceFile, PieceType
from unmask.text.sentencepiece_normalise import Symbols

_UNKNOWN_PENALTY = 10.0
_BONUS = 0.1  # for each byte but the first of a user-defined piece, so that long ones win
_FOUND_IN_TEXT = (PieceType.NORMAL, PieceType.USER_DEFINED, PieceType.UNUSED)


class Cut(NamedTuple):
    """A stretch of the text, and whether it is a piece."""

    start: int
    end: int
    known: bool


class Segmenter(Protocol):
    """What cuts text."""

    def __call__(self, text: str) -> list[Cut]:
        """Stretches that make up the text."""


def segmenter(file: PieceFile) -> Segmenter:
    """The way of cutting that a model file asks for."""
    return Unigram(file) if file.kind == "unigram" else Merging(file)


class Unigram:
    """The most probable way to cut: the greatest sum of scores (Viterbi)."""

    def __init__(self, file: PieceFile) -> None:
        normal = [piece.score for piece in file.pieces if piece.type is PieceType.NORMAL]
        self._unknown = _single(min(normal) - _UNKNOWN_PENALTY)
        # Every beginning of a piece has an entry, so that looking on can stop; only pieces have a score.
        self._scores: dict[str, float | None] = {}
        for piece in file.pieces:
            if piece.type not in _FOUND_IN_TEXT:
                continue
            for end in range(1, len(piece.text)):
                self._scores.setdefault(piece.text[:end], None)
            if piece.type is PieceType.NORMAL:
                self._scores[piece.text] = piece.score
            elif piece.type is PieceType.USER_DEFINED:
                self._scores[piece.text] = _single(_BONUS * (len(piece.text.encode()) - 1))
            else:
                self._scores.setdefault(piece.text, None)

    def __call__(self, text: str) -> list[Cut]:
        """Stretches that make up the text."""
        scores, unknown, size = self._scores, self._unknown, len(text)
        best = array("f", bytes(4 * (size + 1)))
        total = array("f", [0.0])  # sums are compared in single precision
        cuts: list[Cut | None] = [None] * (size + 1)  # the last stretch of the best way to each place
        for start in range(size):
            so_far = best[start]
            alone = False  # whether the character is a piece by itself
            for end in range(start + 1, size + 1):
                piece = text[start:end]
                if piece not in scores:  # nor does any longer one begin so
                    break
                score = scores[piece]
                if score is None:
                    continue
                alone = alone or end == start + 1
                total[0] = so_far + score
                if cuts[end] is None or total[0] > best[end]:
                    best[end], cuts[end] = total[0], Cut(start, end, True)
            total[0] = so_far + unknown
            if not alone and (cuts[start + 1] is None or total[0] > best[start + 1]):
                best[start + 1], cuts[start + 1] = total[0], Cut(start, start + 1, False)
        return _back(cuts)


def _back(cuts: list[Cut | None]) -> list[Cut]:
    found: list[Cut] = []
    last = cuts[-1]
    while last is not None:
        found.append(last)
        last = cuts[last.start]
    return found[::-1]


class Merging:
    """Characters, merged pair by pair; the pair with the best score first, the first of equals (BPE)."""

    def __init__(self, file: PieceFile) -> None:
        self._scores = {piece.text: piece.score for piece in file.pieces if piece.type in _FOUND_IN_TEXT}
        self._symbols = Symbols(file.texts(PieceType.USER_DEFINED))
        self._unused = frozenset(file.texts(PieceType.UNUSED))

    def __call__(self, text: str) -> list[Cut]:
        """Stretches that make up the text."""
        ends, frozen = self._characters(text)
        halves: dict[str, int] = {}  # of a piece that is not to be used, where it was put together
        before = {end: start for start, end in ends.items()}
        waiting: list[tuple[float, int, int, int]] = []

        def offer(left: int | None, right: int | None) -> None:
            if left is None or right is None or right not in ends or left in frozen or right in frozen:
                return
            merged = text[left : ends[right]]
            score = self._scores.get(merged)
            if score is not None:
                heappush(waiting, (-score, left, ends[right], right))
                if merged in self._unused:
                    halves[merged] = right - left

        for start, end in ends.items():
            offer(start, end)
        while waiting:
            _, left, end, right = heappop(waiting)
            if ends.get(left) != right or ends.get(right) != end:  # one of the two is no longer there
                continue
            ends[left] = end
            del ends[right]
            before[end] = left
            offer(before.get(left), left)
            offer(left, end)
        return [cut for start, end in ends.items() for cut in self._usable(text, start, end, halves)]

    def _characters(self, text: str) -> tuple[dict[int, int], set[int]]:
        """Start → end of each character, in order; user-defined symbols stay whole."""
        ends: dict[int, int] = {}
        frozen: set[int] = set()
        place = 0
        while place < len(text):
            size = self._symbols.longest(text, place)
            if size:
                frozen.add(place)
            ends[place] = place + max(1, size)
            place = ends[place]
        return ends, frozen

    def _usable(self, text: str, start: int, end: int, halves: Mapping[str, int]) -> list[Cut]:
        """A stretch, or, where its piece is not to be used, what it was put together from."""
        piece = text[start:end]
        if piece not in self._unused or piece not in halves:
            return [Cut(start, end, piece in self._scores)]
        middle = start + halves[piece]
        return [*self._usable(text, start, middle, halves), *self._usable(text, middle, end, halves)]


def _single(value: float) -> float:
    """The nearest number of single precision."""
    (rounded,) = struct.unpack("<f", struct.pack("<f", value))
    return float(rounded)
