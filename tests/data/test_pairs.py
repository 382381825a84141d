"""Examples of hand-made documents: spans only, there are no tokens here."""

from __future__ import annotations

import math
from collections import Counter
from itertools import accumulate, pairwise
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unmask.data.corpus.store import DocumentSpan
from unmask.data.pairs import Example, PairSettings, Stretch, examples_of
from unmask.errors import SettingsError

PLAIN = PairSettings(unrelated=0.0, short=0.0)


def document(*sentences: int, shard: int = 0, start: int = 100) -> DocumentSpan:
    """A document of sentences of so many tokens."""
    return DocumentSpan(shard, tuple(accumulate(sentences, initial=start)))


OTHER = document(5, 6, 7, 8, shard=1)


def made(
    of: DocumentSpan, length: int, settings: PairSettings, seed: int = 0, other: DocumentSpan = OTHER
) -> list[Example]:
    return list(examples_of(of, length, settings, lambda: other, Random(seed)))


def second_of(example: Example) -> Stretch:
    assert example.second is not None
    return example.second


def inside(count: int, total: int, share: float) -> bool:
    """Within the two-sided 99 % interval of a binomial."""
    return abs(count - total * share) <= 2.576 * math.sqrt(total * share * (1 - share)) + 1


def test_pairs_by_hand() -> None:
    # Room for 13 tokens: the first four sentences make one example, the last two another.
    one, two = made(document(4, 5, 3, 6, 2, 2), 16, PLAIN)
    # 18 tokens were gathered, 5 too many; wherever the cut is, what touches it stays.
    assert one.first.end == second_of(one).start
    assert one.first.end - 100 in (4, 9, 12)
    assert one.length == 16
    assert two == Example(Stretch(0, 118, 120), Stretch(0, 120, 122), 0)
    assert two.length == 7


@pytest.mark.parametrize(
    ("sentences", "sizes"),
    [
        ((3, 13), (3, 10)),
        ((13, 3), (10, 3)),
        ((13, 12), (7, 6)),
        ((9, 5), (8, 5)),
        ((6, 8), (6, 7)),
        ((7, 6), (7, 6)),
        ((1, 1), (1, 1)),
    ],
)
def test_the_longer_text_is_shortened_first(sentences: tuple[int, int], sizes: tuple[int, int]) -> None:
    (one,) = made(document(*sentences), 16, PLAIN)
    assert (one.first.length, second_of(one).length) == sizes
    assert one.first.end == second_of(one).start == 100 + sentences[0]
    assert made(document(*sentences), 16, PLAIN.replace(objective="sop")) == [one]


def test_swapped_pairs_are_shortened_alike() -> None:
    swapped = PairSettings(objective="sop", unrelated=1.0, short=0.0)
    assert made(document(13, 12), 16, swapped) == [Example(Stretch(0, 118, 125), Stretch(0, 100, 106), 1)]


def test_single_texts_by_hand() -> None:
    single = PLAIN.replace(objective="none")
    assert made(document(4, 5, 5, 3), 16, single) == [
        Example(Stretch(0, 100, 114), None, 0),
        Example(Stretch(0, 114, 117), None, 0),
    ]
    starts = {made(document(4, 13), 16, single, seed)[0].first.start for seed in range(200)}
    assert starts == {100, 101, 102, 103}  # three too many: any window of fourteen
    assert made(document(1), 16, single) == [Example(Stretch(0, 100, 101), None, 0)]


def test_what_was_replaced_begins_the_next_example() -> None:
    settings = PairSettings(unrelated=1.0, short=0.0)
    for seed in range(30):
        found = made(document(*[3] * 20), 33, settings, seed, other=document(*[3] * 30, shard=1))
        firsts = [one.first for one in found]
        assert firsts[0].start == 100
        for one, two in pairwise(firsts[:-1]):
            assert one.end == two.start
        assert firsts[-1].start in (firsts[-2].end, 154)  # a lone last sentence comes with the one before it
        assert all(one.label == 1 and second_of(one).shard == 1 for one in found)


def used(examples: list[Example]) -> Counter[int]:
    """How often each token is used."""
    texts = [text for one in examples for text in (one.first, one.second) if text is not None]
    return Counter(place for text in texts for place in range(text.start, text.end))


@pytest.mark.parametrize(("objective", "extra"), [("none", 2), ("nsp", 3), ("sop", 3)])
def test_a_sentence_longer_than_any_example_is_used_from_end_to_end(objective: str, extra: int) -> None:
    settings = PLAIN.replace(objective=objective)
    for length in (16, 17, 128):
        for size in (1000, 1001, length, length + 1, length - extra + 1, 2 * (length - extra), 7 * (length - extra)):
            found = made(document(size), length, settings)
            assert set(used(found)) == set(range(100, 100 + size))
            assert all(one.length == length for one in found[:-1])
    found = made(document(3, 1000, 4), 16, settings)
    assert len(used(found)) > 600  # what does not fit is lost, as between ordinary sentences


def test_a_second_text_is_never_the_beginning_of_a_document() -> None:
    settings = PairSettings(unrelated=1.0, short=0.0)
    starts: Counter[int] = Counter()
    for seed in range(4000):
        starts.update(second_of(one).start for one in made(document(30, 30), 64, settings, seed)[:1])
    # The last sentence alone would be too short for the 30 tokens that it replaces: it begins earlier then.
    assert set(starts) == {105}
    starts.clear()
    for seed in range(4000):
        starts.update(second_of(one).start for one in made(document(30, 5), 64, settings, seed)[:1])
    assert set(starts) == {105, 111, 118}
    assert all(inside(count, 4000, 1 / 3) for count in starts.values())
    # The only sentence of a document is cut, wherever it is taken from.
    found = {
        second_of(one).start
        for seed in range(400)
        for one in made(document(9), 64, settings, seed, other=document(4, shard=1))
    }
    assert found == {101, 102, 103}


def test_a_replacement_is_as_long_as_what_it_replaces() -> None:
    """A short document with a long second text would give the answer away."""
    settings = PairSettings(unrelated=1.0, short=0.0)
    many = document(*[2] * 100, shard=1)
    for seed in range(50):
        one = made(document(6, 6), 128, settings, seed, other=many)[0]
        assert (one.first.length, second_of(one).length) == (6, 6)


def test_a_document_of_one_token_is_no_pair() -> None:
    for objective in ("nsp", "sop"):
        assert made(document(1), 16, PairSettings(objective=objective)) == []
        (one,) = made(document(2), 16, PairSettings(objective=objective, unrelated=0.0))
        assert (one.first, one.second) == (Stretch(0, 100, 101), Stretch(0, 101, 102))
    # But it may be what another is followed by.
    found = made(document(9, 9), 16, PairSettings(unrelated=1.0), other=document(1, shard=1))
    assert all(one.second == Stretch(1, 100, 101) for one in found)


@pytest.mark.parametrize("objective", ["nsp", "sop", "none"])
@pytest.mark.parametrize("share", [0.0, 0.1, 0.6, 1.0])
def test_short_examples_have_every_length_alike(objective: str, share: float) -> None:
    found = []
    settings = PairSettings(objective=objective, short=share)
    for seed in range(400):
        many = made(document(*[1] * 700), 35, settings, seed, other=document(*[1] * 90, shard=1))
        found += [one for one in many if one.first.start < 700]  # near its end a document has too few
    room = 35 - (2 if objective == "none" else 3)
    short = [one for one in found if one.short]
    assert inside(len(short), len(found), share)
    assert all(one.length == 35 for one in found if not one.short)
    # Of sentences of one token, an example has exactly as many tokens as it was to have.
    lengths = Counter(one.length - (35 - room) for one in short)
    assert set(lengths) <= set(range(2, room + 1))
    if share:
        expected = len(short) / (room - 1)
        chi = sum((lengths[size] - expected) ** 2 / expected for size in range(2, room + 1))
        assert chi < room - 2 + 2.576 * math.sqrt(2 * (room - 2)) + 4


@pytest.mark.parametrize("objective", ["nsp", "sop"])
@pytest.mark.parametrize("share", [0.0, 0.2, 0.5, 1.0])
def test_the_share_of_unrelated_pairs_is_the_one_set_whatever_the_documents(objective: str, share: float) -> None:
    draw = Random(1)
    kinds = {
        "single sentences": lambda: document(draw.randint(2, 40)),
        "two sentences": lambda: document(draw.randint(1, 40), draw.randint(1, 40)),
        "short": lambda: document(*[draw.randint(1, 9) for _ in range(draw.randint(1, 4))]),
        "long": lambda: document(*[draw.randint(1, 60) for _ in range(draw.randint(5, 60))]),
    }
    settings = PairSettings(objective=objective, unrelated=share)
    for name, kind in kinds.items():
        labels: list[int] = []
        seed = 0
        while len(labels) < 8000:
            seed += 1
            labels += [one.label for one in made(kind(), 64, settings, seed)]
        assert inside(sum(labels), len(labels), share), name


sentences = st.lists(st.integers(1, 60), min_size=1, max_size=12)


@given(sentences, sentences, st.integers(8, 70), st.floats(0, 1), st.floats(0, 1), st.integers(0, 9))
def test_whatever_the_document(
    own: list[int], others: list[int], length: int, unrelated: float, short: float, seed: int
) -> None:
    span, other = document(*own), document(*others, shard=1)
    low, high = span.bounds[0], span.bounds[-1]
    for objective in ("nsp", "sop", "none"):
        settings = PairSettings(objective=objective, unrelated=unrelated, short=short)
        found = made(span, length, settings, seed, other)
        assert bool(found) == (objective == "none" or high - low > 1)
        assert found == made(span, length, settings, seed, other)
        for one in found:
            assert one.length <= length
            assert one.first.length > 0
            assert low <= one.first.start
            assert one.first.end <= high
            if one.second is None:
                assert (objective, one.label) == ("none", 0)
                continue
            assert one.second.length > 0
            if objective == "nsp" and one.label == 1:
                assert one.second.shard == 1
                assert other.bounds[0] <= one.second.start
                assert one.second.end <= other.bounds[-1]
                assert one.second.start > other.bounds[0] or sum(others) == 1
                continue
            assert one.second.shard == one.first.shard == 0
            earlier, later = (one.first, one.second) if one.label == 0 else (one.second, one.first)
            assert earlier.end == later.start if one.label == 0 else earlier.end <= later.start
            assert later.end <= high


def test_shares_are_checked() -> None:
    with pytest.raises(SettingsError, match="unrelated"):
        PairSettings(unrelated=1.5)
    with pytest.raises(SettingsError, match="objective"):
        PairSettings(objective="next")  # type: ignore[arg-type]
