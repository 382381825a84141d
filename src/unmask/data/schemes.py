"""Tags of words ↔ entities: BIO and its relatives, recognised from the tags themselves."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple, get_args

from unmask.data.examples import Entity

Scheme = Literal["BIO", "IOB1", "BIOES", "BMES", "BMEWO", "BILOU"]
"""How tags mark entities. In IOB1 a B only parts an entity from one of the same type right before it."""

#: What a letter means in each scheme: an entity's beginning, inside, end, or all of it.
_ROLES: dict[Scheme, dict[str, str]] = {
    "BIO": {"B": "B", "I": "I"},
    "IOB1": {"B": "B", "I": "I"},
    "BIOES": {"B": "B", "I": "I", "E": "E", "S": "S"},
    "BMES": {"B": "B", "M": "I", "E": "E", "S": "S"},
    "BMEWO": {"B": "B", "M": "I", "E": "E", "W": "S"},
    "BILOU": {"B": "B", "I": "I", "L": "E", "U": "S"},
}
_TAG = re.compile(r"([BIMESWLU])(?:[-_](.+))?|O")
#: So many of the tags that are not O must look like those of a scheme; the others are slips.
_MOST = 0.9


class Break(NamedTuple):
    """A place where tags do not follow their scheme: the number of the word, and what is wrong."""

    word: int
    message: str


def recognise_scheme(sequences: Iterable[Sequence[str]]) -> Scheme | None:
    """The scheme that the tags of a whole file break least often; None for plain tags, as parts of speech."""
    pairs: Counter[tuple[str, str]] = Counter()
    for tags in sequences:
        pairs.update(zip(["O", *tags], [*tags, "O"], strict=True))
    marked = [(tag, count) for (_, tag), count in pairs.items() if tag != "O"]
    if sum(count for tag, count in marked if _TAG.fullmatch(tag)) < _MOST * sum(count for _, count in marked):
        return None
    breaks: dict[Scheme, int] = {
        scheme: sum(count for pair, count in pairs.items() if _broken(*pair, scheme)) for scheme in get_args(Scheme)
    }
    return min(breaks, key=lambda scheme: breaks[scheme])  # the first of equals, so BIO where there is no difference


def scheme_of_labels(labels: Iterable[str]) -> Scheme | None:
    """The scheme whose letters all of a model's labels have; None for plain tags."""
    marked = [label for label in labels if label != "O"]
    found = [re.fullmatch(r"([BIMESWLU])[-_].+", label) for label in marked]
    letters = {match[1] for match in found if match is not None}
    if not letters or sum(match is not None for match in found) < _MOST * len(marked):
        return None
    fitting = (scheme for scheme, roles in _ROLES.items() if scheme != "IOB1" and letters <= roles.keys())
    return next(fitting, None)


def decode(tags: Sequence[str], scheme: Scheme) -> tuple[list[Entity], list[Break]]:
    """The entities that tags mark, from word to word, and the places where they break their scheme.

    What is broken is read kindly: an inside with nothing before it begins an entity, and one that is not ended ends
    where its tags do.
    """
    entities: list[Entity] = []
    breaks: list[Break] = []
    begun: tuple[int, str] | None = None
    before = "O"
    for index, tag in enumerate([*tags, "O"]):
        message = _broken(before, tag, scheme)
        if message is not None:
            breaks.append(Break(min(index, len(tags) - 1), message))
        role, type = _read(tag, scheme)
        goes_on = begun is not None and role in ("I", "E") and begun[1] == type
        if begun is not None and not goes_on:
            entities.append(Entity(begun[0], index, begun[1]))
            begun = None
        if begun is None and role != "O":
            begun = index, type
        if begun is not None and role in ("E", "S"):
            entities.append(Entity(begun[0], index + 1, begun[1]))
            begun = None
        before = tag
    return entities, breaks


def to_tags(entities: Iterable[Entity], words: int, scheme: Scheme = "BIO") -> list[str]:
    """The tags of so many words that mark these entities; ValueError if entities overlap or reach beyond the words."""
    letters = {role: letter for letter, role in _ROLES[scheme].items()}
    tags = ["O"] * words
    before = Entity(0, 0, "")
    for entity in sorted(entities):
        start, end, type = entity
        if not before.end <= start < end <= words:
            raise ValueError(f"{entity} overlaps {before} or reaches beyond {words} words")
        roles = ["B", *"I" * (end - start - 1)]
        if "E" in letters:
            roles = ["S"] if end - start == 1 else [*roles[:-1], "E"]
        elif scheme == "IOB1" and not (before.end == start and before.type == type):
            roles[0] = "I"
        tags[start:end] = [f"{letters[role]}-{type}" if type else letters[role] for role in roles]
        before = entity
    return tags


def _read(tag: str, scheme: Scheme) -> tuple[str, str]:
    """What a tag means in a scheme: B, I, E, S or O, and the type. A tag that is none of the scheme's is O."""
    found = _TAG.fullmatch(tag)
    role = None if found is None or found[1] is None else _ROLES[scheme].get(found[1])
    return ("O", "") if role is None or found is None else (role, found[2] or "")


def _broken(before: str, tag: str, scheme: Scheme) -> str | None:
    """What is wrong with a tag after another."""
    role, type = _read(tag, scheme)
    last, last_type = _read(before, scheme)
    open = last in ("B", "I")
    if role == "O" and tag != "O":
        return f"{tag!r} is no tag of {scheme}"
    if role in ("I", "E"):
        if open and last_type == type:
            return None
        single = scheme == "IOB1"
        return None if single else f"{tag!r} after {before!r} continues nothing"
    if open and "E" in _ROLES[scheme].values():
        return f"{before!r} is not ended before {tag!r}"
    if scheme == "IOB1" and role == "B" and not (open and last_type == type):
        return f"{tag!r} after {before!r} parts nothing"
    return None
