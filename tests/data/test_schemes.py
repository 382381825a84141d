from __future__ import annotations

from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unmask.data.examples import Entity
from unmask.data.schemes import Scheme, decode, recognise_scheme, scheme_of_labels, to_tags

SCHEMES: tuple[Scheme, ...] = get_args(Scheme)
ENTITIES = [Entity(0, 1, "PER"), Entity(1, 4, "PER"), Entity(5, 7, "LOC")]
WRITTEN: dict[Scheme, str] = {
    "BIO": "B-PER B-PER I-PER I-PER O B-LOC I-LOC O",
    "IOB1": "I-PER B-PER I-PER I-PER O I-LOC I-LOC O",
    "BIOES": "S-PER B-PER I-PER E-PER O B-LOC E-LOC O",
    "BMES": "S-PER B-PER M-PER E-PER O B-LOC E-LOC O",
    "BMEWO": "W-PER B-PER M-PER E-PER O B-LOC E-LOC O",
    "BILOU": "U-PER B-PER I-PER L-PER O B-LOC L-LOC O",
}


@pytest.mark.parametrize("scheme", SCHEMES)
def test_by_hand(scheme: Scheme) -> None:
    tags = WRITTEN[scheme].split()
    assert to_tags(ENTITIES, 8, scheme) == tags
    assert decode(tags, scheme) == (ENTITIES, [])
    assert recognise_scheme([tags]) == scheme


@st.composite
def marked(draw: st.DrawFn) -> tuple[list[Entity], int]:
    entities, place = [], 0
    for gap, length, type in draw(
        st.lists(st.tuples(st.integers(0, 2), st.integers(1, 4), st.sampled_from(["A", "B-x", "I", "人"])), max_size=6)
    ):
        place += gap
        entities.append(Entity(place, place + length, type))
        place += length
    return entities, place + draw(st.integers(0, 2))


@given(marked(), st.sampled_from(SCHEMES))
def test_entities_survive_every_scheme(case: tuple[list[Entity], int], scheme: Scheme) -> None:
    entities, words = case
    assert decode(to_tags(entities, words, scheme), scheme) == (entities, [])


def conlleval(tags: list[str]) -> list[Entity]:
    """The rules of the script of the CoNLL shared tasks, for B, I, E, S and O, as it states them."""

    def parts(tag: str) -> tuple[str, str]:
        head, _, type = tag.partition("-")
        return head, type

    found, start = [], None
    before, before_type = "O", ""
    for index, tag in enumerate([*tags, "O"]):
        now, type = parts(tag)
        ends = before in ("E", "S") or (before in ("B", "I") and (now in ("B", "S", "O") or type != before_type))
        starts = now in ("B", "S") or (now in ("I", "E") and (before in ("E", "S", "O") or type != before_type))
        if ends and start is not None:
            found.append(Entity(start, index, before_type))
            start = None
        if starts:
            start = index
        before, before_type = now, type
    return found


TAGS = [f"{letter}-{type}" for letter in "BIES" for type in "XY"] + ["O"]


@given(st.lists(st.sampled_from(TAGS), max_size=8))
def test_what_is_broken_is_read_as_conlleval_reads_it(tags: list[str]) -> None:
    assert decode(tags, "BIOES")[0] == conlleval(tags)
    short = [tag for tag in tags if tag[0] in "BIO"]
    assert decode(short, "BIO")[0] == conlleval(short)


@given(st.lists(st.sampled_from([*TAGS, "M-X", "L-Y", "??"]), max_size=8), st.sampled_from(SCHEMES))
def test_what_was_repaired_is_whole_and_says_the_same(tags: list[str], scheme: Scheme) -> None:
    entities, breaks = decode(tags, scheme)
    repaired = to_tags(entities, len(tags), scheme)
    assert decode(repaired, scheme) == (entities, [])
    if not breaks:
        assert repaired == tags


@pytest.mark.parametrize(
    ("tags", "scheme", "places"),
    [
        ("O I-PER O", "BIO", [1]),
        ("B-PER I-LOC", "BIO", [1]),
        ("B-PER I-PER", "BIO", []),
        ("O E-PER", "BIOES", [1]),
        ("B-PER O", "BIOES", [1]),
        ("B-PER I-PER", "BIOES", [1]),
        ("B-PER S-PER", "BIOES", [1]),
        ("O M-PER E-PER", "BMES", [1]),
        ("O X-PER", "BIO", [1]),
        ("O I-PER B-LOC", "IOB1", [2]),
    ],
)
def test_broken_places_are_found(tags: str, scheme: Scheme, places: list[int]) -> None:
    assert [found.word for found in decode(tags.split(), scheme)[1]] == places


def test_slips_do_not_change_the_scheme() -> None:
    whole = WRITTEN["BIO"].split()
    assert recognise_scheme([whole] * 9 + [["O", "I-PER"]]) == "BIO"
    assert recognise_scheme([whole] * 9 + [["B-PER", "E-PER"]]) == "BIO"
    assert recognise_scheme([whole] * 9 + [["X-PER", "O"]]) == "BIO"
    assert recognise_scheme([WRITTEN["BMES"].split()] * 9 + [["O", "M-PER", "E-PER"]]) == "BMES"


def test_plain_tags_and_tags_without_types() -> None:
    assert recognise_scheme([["DET", "NOUN", "VERB", "O"]]) is None
    assert recognise_scheme([["n", "v", "w"]]) is None
    assert recognise_scheme([["O", "O"]]) == "BIO"
    assert recognise_scheme([list("BMESS"), list("BE")]) in ("BMES", "BIOES")
    assert decode(list("BMESS"), "BMES") == ([Entity(0, 3, ""), Entity(3, 4, ""), Entity(4, 5, "")], [])
    assert to_tags([Entity(0, 2, "")], 3, "BMES") == ["B", "E", "O"]


@pytest.mark.parametrize("entities", [[(0, 2), (1, 3)], [(2, 5)], [(1, 1)]])
def test_entities_that_do_not_fit_are_our_own_mistake(entities: list[tuple[int, int]]) -> None:
    with pytest.raises(ValueError, match="overlaps"):
        to_tags([Entity(start, end, "A") for start, end in entities], 4)


@pytest.mark.parametrize(
    ("labels", "scheme"),
    [
        (("O", "B-X", "I-X"), "BIO"),
        (("O", "I-X"), "BIO"),
        (("O", "B-X", "I-X", "E-X", "S-X"), "BIOES"),
        (("O", "B-X", "M-X", "E-X", "S-X"), "BMES"),
        (("O", "B-X", "I-X", "L-X", "U-X"), "BILOU"),
        (("O", "B_X", "I_X"), "BIO"),
        (("NOUN", "VERB"), None),
    ],
)
def test_the_scheme_of_a_models_labels(labels: tuple[str, ...], scheme: str | None) -> None:
    assert scheme_of_labels(labels) == scheme
