"""Tags → entities, and predicted entities against gold ones.

An entity is (start, end, type), `end` behind its last token, so that tokens[start:end] is it. Without a scheme tags are
read as seqeval reads them by default: leniently, so that an entity may begin with I- if nothing else makes sense. With
a scheme they are read strictly, as by seqeval's mode="strict": what the scheme does not allow is no entity.

    BIO    B-X I-X I-X        B at every beginning (also known as IOB2)
    IOB1   I-X I-X I-X        B only where an entity touches another of its type
    BIOES  B-X I-X E-X, S-X   S alone        BMES  with M for I        BILOU  with L for E and U for S
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np

from unmask.errors import DataError
from unmask.metrics.scores import Counts, Score, ScoreTable

Scheme = Literal["BIO", "IOB1", "BIOES", "BMES", "BILOU"]
Entity = tuple[int, int, str]

#: What the letters of a scheme mean, said in those of BIOES.
_LETTERS: dict[Scheme, dict[str, str]] = {
    "BIO": {"B": "B", "I": "I", "O": "O"},
    "IOB1": {"B": "B", "I": "I", "O": "O"},
    "BIOES": {letter: letter for letter in "BIOES"},
    "BMES": {"B": "B", "M": "I", "E": "E", "S": "S", "O": "O"},
    "BILOU": {"B": "B", "I": "I", "L": "E", "O": "O", "U": "S"},
}
_ANY = {letter: meaning for letters in _LETTERS.values() for letter, meaning in letters.items()}

_Tag = tuple[str, str]  # letter, type
_OUTSIDE: _Tag = ("O", "")


@dataclass(frozen=True)
class EntityScores:
    """Precision, recall and F1 of entities."""

    types: tuple[str, ...]  # all that occur in gold or prediction, sorted
    table: ScoreTable  # a row for each type

    @property
    def micro(self) -> Score:
        """All types counted together: what is usually meant by the F1 of entities."""
        return self.table.micro

    @property
    def macro(self) -> Score:
        """The mean over types."""
        return self.table.macro

    @property
    def by_type(self) -> dict[str, Score]:
        """The score of each type."""
        return {name: self.table[row] for row, name in enumerate(self.types)}

    def as_json(self) -> dict[str, Any]:
        """The same as plain data."""
        return {
            "micro": self.micro.as_json(),
            "macro": self.macro.as_json(),
            "weighted": self.table.weighted.as_json(),
            "types": {name: score.as_json() for name, score in self.by_type.items()},
        }


def entities_of(tags: Sequence[str], scheme: Scheme | None = None) -> list[Entity]:
    """The entities that the tags of one sentence say: leniently, or strictly by a scheme."""
    if scheme is not None and scheme not in get_args(Scheme):
        raise ValueError(f"scheme {scheme!r} is none of {', '.join(get_args(Scheme))}")
    parsed = _parsed(tags, scheme)
    if scheme is None:
        return _lenient(parsed)
    if scheme == "IOB1":
        return _strict_iob1(parsed)
    return _strict(parsed, closes=scheme != "BIO")


def entity_scores(
    gold: Sequence[Collection[Entity]],
    predicted: Sequence[Collection[Entity]],
) -> EntityScores:
    """Scores over documents: an entity is right if its start, its end and its type are. Repeats count once."""
    types, counts = entity_counts(gold, predicted)
    return EntityScores(types, ScoreTable(counts.sum(axis=0)))


def entity_counts(
    gold: Sequence[Collection[Entity]],
    predicted: Sequence[Collection[Entity]],
) -> tuple[tuple[str, ...], Counts]:
    """The types that occur, and how many entities of each are correct, predicted and gold, (documents, types, 3).

    What an interval resamples: `counts.sum(axis=1)` gives micro F1 by `f1_of`, `counts.reshape(n, -1)` macro F1 by
    `macro_f1_of`.
    """
    if len(gold) != len(predicted):
        raise ValueError(f"{len(gold)} documents are gold but {len(predicted)} are predicted")
    if not gold:
        raise DataError("there is nothing to score: there are no documents")
    types = tuple(
        sorted({entity[2] for documents in (gold, predicted) for document in documents for entity in document})
    )
    row = {name: number for number, name in enumerate(types)}
    counts = np.zeros((len(gold), len(types), 3), dtype=np.int64)
    for number, (right, found) in enumerate(zip(gold, predicted, strict=True)):
        both = set(right) & set(found)
        for column, group in enumerate((both, set(found), set(right))):
            for entity in group:
                counts[number, row[entity[2]], column] += 1
    return types, counts


def _parsed(tags: Sequence[str], scheme: Scheme | None) -> list[_Tag]:
    """Letter and type of each tag; a tag without a type gets the type `_`."""
    letters = _ANY if scheme is None else _LETTERS[scheme]
    parsed = []
    for place, tag in enumerate(tags):
        letter, dash, kind = tag[:1], tag[1:2], tag[2:]
        if letter not in letters or dash not in ("", "-") or (letter == "O" and dash):
            allowed = ", ".join(f"{letter}-…" for letter in letters if letter != "O")
            raise DataError(f"tag {tag!r} of token {place + 1} is neither O nor one of {allowed}; correct the tag")
        parsed.append(_OUTSIDE if letter == "O" else (letters[letter], kind or "_"))
    return parsed


def _lenient(tags: Sequence[_Tag]) -> list[Entity]:
    """A new entity begins at B, at S, after E or S, at another type, and wherever none is open."""
    found: list[Entity] = []
    start, before = 0, _OUTSIDE
    for place, tag in enumerate([*tags, _OUTSIDE]):
        if tag[1] == before[1] and before[0] in ("B", "I") and tag[0] in ("I", "E"):
            before = tag
            continue
        if before[0] != "O":
            found.append((start, place, before[1]))
        start, before = place, tag
    return found


def _strict(tags: Sequence[_Tag], *, closes: bool) -> list[Entity]:
    """B and what follows of its type; where the scheme `closes` its entities, only if an E ends it, or S alone."""
    found: list[Entity] = []
    place = 0
    while place < len(tags):
        start, (letter, kind) = place, tags[place]
        place += 1
        if letter == "S":
            found.append((start, place, kind))
        if letter != "B":
            continue
        while place < len(tags) and tags[place] == ("I", kind):
            place += 1
        if not closes:
            found.append((start, place, kind))
        elif place < len(tags) and tags[place] == ("E", kind):
            place += 1
            found.append((start, place, kind))
    return found


def _strict_iob1(tags: Sequence[_Tag]) -> list[Entity]:
    """I begins and continues; B begins only behind a token of its own type."""
    found: list[Entity] = []
    place, before = 0, _OUTSIDE
    while place < len(tags):
        start, (letter, kind) = place, tags[place]
        place += 1
        if letter == "I" or (letter == "B" and before[1] == kind):
            while place < len(tags) and tags[place] == ("I", kind):
                place += 1
            # seqeval drops a lone B before a B of another type: neither of them has a reason to be there.
            after = tags[place] if place < len(tags) else _OUTSIDE
            if place - start > 1 or letter == "I" or after[0] != "B" or after[1] == kind:
                found.append((start, place, kind))
        before = tags[place - 1]
    return found
