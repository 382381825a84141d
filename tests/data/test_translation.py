"""Batches of sentence pairs: what is in them, and that a number always gives the same one."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from unmask.data.translation import EncodedPairs, Frame, Kept, PairBatches, Sequences

FRAME = Frame(start=1, end=2, source_end=3)


def pairs(count: int = 200, seed: int = 0) -> EncodedPairs:
    rng = np.random.default_rng(seed)
    lists = [[rng.integers(10, 99, size=rng.integers(1, 30)).tolist() for _ in range(count)] for _ in range(2)]
    return EncodedPairs(Sequences(lists[0]), Sequences(lists[1]), FRAME)


def test_a_batch_is_framed() -> None:
    made = EncodedPairs(Sequences([[10, 11], [12]]), Sequences([[20], [21, 22, 23]]), FRAME).batch([1, 0])
    assert made.source.ids.tolist() == [12, 3, 10, 11, 3]
    assert made.source.layout.lengths == (2, 3)
    assert made.target.ids.tolist() == [1, 21, 22, 23, 1, 20]
    assert made.labels.tolist() == [21, 22, 23, 2, 20, 2]
    assert made.target.layout.lengths == (4, 2)
    assert made.num_tokens == 6


@pytest.mark.parametrize("tokens", [40, 300, 10_000])
def test_every_pair_comes_once_an_epoch_within_the_budget(tokens: int) -> None:
    given = pairs()
    batches = PairBatches(given, tokens, seed=3)
    for epoch in range(2):
        first = sum(batches.batches_of_epoch(before) for before in range(epoch))
        numbers = [batches.numbers(first + place) for place in range(batches.batches_of_epoch(epoch))]
        assert Counter(np.concatenate(numbers).tolist()) == Counter(range(200))
        longer = np.maximum(given.sources.lengths, given.targets.lengths) + 1
        assert all(longer[some].sum() <= tokens for some in numbers)
    assert batches.numbers(0).tolist() != batches.numbers(first).tolist()


def test_a_number_gives_the_same_batch_to_anyone() -> None:
    given, kept = pairs(), Kept(0.2, [7, 8], [9])
    one, other = (PairBatches(given, 200, seed=5, kept=kept) for _ in range(2))
    asked = [57, 3, 120, 0, 57]
    forward = {number: one[number].source.ids.tolist() for number in range(121)}
    for number in asked:
        assert other[number].source.ids.tolist() == forward[number]
    assert PairBatches(given, 200, seed=6)[0].source.ids.tolist() != forward[0]


def test_unknown_characters_stand_at_the_same_end_of_both_sides() -> None:
    given = pairs(2000)
    plain, with_kept = PairBatches(given, 500, 1), PairBatches(given, 500, 1, Kept(0.1, [7, 8], [9]))
    found = first = 0
    for number in range(plain.batches_of_epoch()):
        ours, before = with_kept[number], plain[number]
        for place, length in enumerate(before.source.layout.lengths):
            if ours.source.layout.lengths[place] == length:
                continue
            found += 1
            begin = ours.source.layout.starts[place]
            end = begin + length + 2
            target = ours.target.layout.starts[place]
            stop = target + ours.target.layout.lengths[place]
            if ours.source.ids[begin : begin + 2].tolist() == [7, 8]:
                first += 1
                assert ours.target.ids[target : target + 2].tolist() == [1, 9]
            else:
                assert ours.source.ids[end - 3 : end].tolist() == [7, 8, 3]
                assert ours.target.ids[stop - 1] == 9
    assert 150 < found < 250
    assert 0.35 < first / found < 0.65
