from __future__ import annotations

import random
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unmask.data.parallel import Pair, read_pairs
from unmask.data.parallel_split import split_pairs
from unmask.errors import DataError, SettingsError

split = partial(split_pairs, key="source")


def made(number: int, texts: int, seed: int = 0) -> list[Pair]:
    """Pairs whose sources, and whose targets, are often the same."""
    draw = random.Random(seed)
    return [Pair(f"s{draw.randrange(texts)}", f"t{draw.randrange(texts)}", line) for line in range(1, number + 1)]


@pytest.mark.parametrize("key", ["source", "target"])
def test_no_text_is_on_both_sides(key: Any) -> None:
    pairs = made(1000, 300)
    train, dev = split(pairs, count=100, key=key)
    assert not {getattr(pair, key) for pair in train} & {getattr(pair, key) for pair in dev}
    other = "target" if key == "source" else "source"
    assert {getattr(pair, other) for pair in train} & {getattr(pair, other) for pair in dev}
    assert len(dev) == 100
    assert sorted(train + dev, key=lambda pair: pair.line) == pairs
    for part in (train, dev):
        assert [pair.line for pair in part] == sorted(pair.line for pair in part)


def test_a_share() -> None:
    train, dev = split(made(1000, 5000), share=0.1)
    assert (len(train), len(dev)) == (900, 100)


def test_it_depends_on_texts_and_seed_alone() -> None:
    pairs = made(500, 300)
    found = split(pairs, count=50)
    assert split(pairs, count=50) == found
    assert split(iter(pairs), count=50) == found
    assert split(pairs, count=50, seed=1) != found
    assert split(pairs, count=50, key="target") != found
    mixed = random.Random(0).sample(pairs, len(pairs))
    assert sorted(split(mixed, count=50)[1]) == sorted(found[1])
    spaced = [Pair(f" {pair.source}", pair.target, pair.line) for pair in pairs]
    assert [pair.line for pair in split(spaced, count=50)[1]] == [pair.line for pair in found[1]]


def test_the_choice_is_random() -> None:
    """Over seeds, each pair is set apart about as often as any other."""
    pairs = [Pair(f"s{line}", "t", line) for line in range(50)]
    often = [0] * 50
    for seed in range(400):
        for pair in split(pairs, share=0.2, seed=seed)[1]:
            often[pair.line] += 1
    assert sum(often) == 400 * 10
    assert 80 - 5 * 8 < min(often) < max(often) < 80 + 5 * 8  # the error of a count is √(400 · 0.2 · 0.8) = 8


def test_a_group_that_does_not_fit_stays_whole() -> None:
    pairs = [Pair("big", f"t{line}", line) for line in range(1, 91)] + [
        Pair(f"s{line}", "t", line) for line in range(91, 101)
    ]
    for seed in range(20):
        train, dev = split(pairs, count=10, seed=seed)
        assert (len(train), len(dev)) == (90, 10)
        assert all(pair.source != "big" for pair in dev)
    with pytest.raises(DataError, match="100 pairs cannot be split so: those that share a text make 1 group"):
        split([Pair("same", str(line), line) for line in range(100)], count=10)
    twos = [Pair(f"s{line // 2}", "t", line) for line in range(20)]
    assert len(split(twos, count=5)[1]) == 4


def test_what_cannot_be_asked() -> None:
    pairs = made(10, 100)
    for options in ({}, {"share": 0.1, "count": 1}):
        with pytest.raises(SettingsError, match="either a share or a count"):
            split(pairs, **options)
    for share in (0.0, 1.0, -0.5, float("nan")):
        with pytest.raises(SettingsError, match="a share lies between 0 and 1"):
            split(pairs, share=share)
    for count in (0, -1, 10, 11):
        with pytest.raises(SettingsError, match=f"{count} of 10 pairs cannot be set apart"):
            split(pairs, count=count)
    with pytest.raises(SettingsError, match="0 pairs cannot be set apart"):
        split([], share=0.1)
    with pytest.raises(SettingsError, match="key is source, target, both, given 'none'"):
        split(pairs, count=1, key="none")  # type: ignore[arg-type]


@given(st.lists(st.tuples(st.sampled_from("abcdef"), st.sampled_from("uvwxyz")), min_size=2), st.integers(1, 5))
def test_groups_are_whole_whatever_they_are(rows: list[tuple[str, str]], count: int) -> None:
    pairs = [Pair(*row, line) for line, row in enumerate(rows)]
    try:
        train, dev = split(pairs, count=count)
    except (DataError, SettingsError):
        return
    assert 1 <= len(dev) <= count
    assert train
    assert not {pair.source for pair in train} & {pair.source for pair in dev}


def test_real_text_by_its_english_side(data_folder: Path) -> None:
    """Sentences of Tatoeba have several translations: split by lines, much of dev would be known."""
    pairs = list(read_pairs([data_folder / "tatoeba_spa-eng" / "spa.txt"]))
    train, dev = split(pairs, count=2000)
    assert (len(train), len(dev)) == (len(pairs) - 2000, 2000)
    assert not {pair.source for pair in train} & {pair.source for pair in dev}
    by_line = random.Random(0).sample(pairs, len(pairs))
    known = {pair.source for pair in by_line[2000:]}
    assert sum(pair.source in known for pair in by_line[:2000]) > 200


@given(st.lists(st.tuples(st.sampled_from("abcdefghij"), st.sampled_from("qrstuvwxyz")), min_size=2), st.integers(1, 5))
def test_no_text_of_either_side_is_in_both_parts(rows: list[tuple[str, str]], count: int) -> None:
    pairs = [Pair(*row, line) for line, row in enumerate(rows)]
    try:
        train, dev = split_pairs(pairs, count=count)
    except (DataError, SettingsError):
        return
    assert 1 <= len(dev) <= count
    for side in ("source", "target"):
        assert not {getattr(pair, side) for pair in train} & {getattr(pair, side) for pair in dev}
    mixed = split_pairs(random.Random(0).sample(pairs, len(pairs)), count=count)
    assert {(pair.source, pair.target) for pair in mixed[1]} == {(pair.source, pair.target) for pair in dev}


def test_real_text_by_both_sides(data_folder: Path) -> None:
    pairs = list(read_pairs([data_folder / "tatoeba_cmn-eng" / "cmn.txt"], swap=True))
    train, dev = split_pairs(pairs, count=1000)
    assert len(dev) == 1000
    for side in ("source", "target"):
        assert not {getattr(pair, side) for pair in train} & {getattr(pair, side) for pair in dev}
