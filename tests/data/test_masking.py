from __future__ import annotations

import math

import numpy as np
import pytest

from unmask.data.masking import MaskingSettings, MaskVocabulary, mask_tokens
from unmask.errors import SettingsError

VOCAB, MASK, SPECIAL = 101, 4, (0, 1, 2, 3, 4)
VOCABULARY = MaskVocabulary.of(VOCAB, MASK, SPECIAL)


def sequences(rng: np.random.Generator, tokens: int):
    """Random sequences with [CLS] and [SEP], words of one to four pieces, until there are so many tokens."""
    done = 0
    while done < tokens:
        length = int(rng.integers(3, 131))
        ids = rng.integers(5, VOCAB, length)
        ids[0], ids[-1] = 2, 3
        starts = rng.random(length) < 0.6
        starts[[0, 1, -1]] = True
        may = ~np.isin(ids, SPECIAL)
        done += int(may.sum())
        yield ids, may, starts


def inside(count: int, total: int, share: float) -> bool:
    """Within the two-sided 99 % interval of a binomial."""
    return abs(count - total * share) <= 2.576 * math.sqrt(total * share * (1 - share)) + 1


@pytest.mark.parametrize("unit", ["token", "word", "span"])
@pytest.mark.parametrize("rate", [0.15, pytest.param(0.4, marks=pytest.mark.slow)])
def test_shares_over_a_million_tokens(unit: str, rate: float) -> None:
    settings = MaskingSettings(rate=rate, unit=unit)
    rng = np.random.default_rng(7)
    total = chosen = masked = replaced = kept = 0
    for ids, may, starts in sequences(np.random.default_rng(1), 1_000_000):
        found = mask_tokens(ids, may, starts, VOCABULARY, settings, rng)
        total += int(may.sum())
        chosen += len(found.places)
        seen = found.ids[found.places]
        masked += int((seen == MASK).sum())
        kept += int((seen == found.targets).sum())
        replaced += int(((seen != MASK) & (seen != found.targets)).sum())
        assert may[found.places].all()
        assert (found.ids[~np.isin(np.arange(len(ids)), found.places)] == np.delete(ids, found.places)).all()
    assert inside(chosen, total, rate)
    assert inside(masked, chosen, 0.8)
    same = 1 / (VOCAB - len(SPECIAL))  # a random token is now and then the one that stood there
    assert inside(replaced, chosen, 0.1 * (1 - same))
    assert inside(kept, chosen, 0.1 + 0.1 * same)


@pytest.mark.parametrize("unit", ["word", "span"])
def test_whole_words_are_never_split(unit: str) -> None:
    rng = np.random.default_rng(3)
    for ids, may, starts in sequences(np.random.default_rng(2), 30_000):
        found = mask_tokens(ids, may, starts, VOCABULARY, MaskingSettings(unit=unit, rate=0.3), rng)
        word = np.cumsum(starts)
        for number in set(word[found.places]):
            members = np.flatnonzero((word == number) & may)
            assert np.isin(members, found.places).all()


def test_spans_are_longer_than_words() -> None:
    def runs(unit: str) -> float:
        rng, lengths = np.random.default_rng(5), []
        for ids, may, starts in sequences(np.random.default_rng(4), 60_000):
            found = mask_tokens(ids, may, starts, VOCABULARY, MaskingSettings(unit=unit), rng)
            if len(found.places):
                lengths.append(len(found.places) / (1 + (np.diff(found.places) > 1).sum()))
        return float(np.mean(lengths))

    assert runs("span") > 1.5 * runs("word")


def test_the_same_generator_gives_the_same_masks_and_another_does_not() -> None:
    ids, may, starts = next(iter(sequences(np.random.default_rng(9), 1)))
    first, again, other = (
        mask_tokens(ids, may, starts, VOCABULARY, MaskingSettings(rate=0.5), np.random.default_rng(seed))
        for seed in (1, 1, 2)
    )
    assert (first.ids == again.ids).all()
    assert first.places.tolist() != other.places.tolist()


def test_nothing_to_choose_from_is_no_trouble() -> None:
    ids = np.array([2, 3])
    none = np.zeros(2, dtype=bool)
    for unit in ("token", "word", "span"):
        found = mask_tokens(ids, none, none, VOCABULARY, MaskingSettings(unit=unit), np.random.default_rng(0))
        assert found.places.tolist() == []
        assert found.ids.tolist() == [2, 3]


def test_random_tokens_are_never_special() -> None:
    settings = MaskingSettings(rate=0.9, mask=0.0, random=1.0, keep=0.0)
    rng = np.random.default_rng(0)
    for ids, may, starts in sequences(np.random.default_rng(6), 20_000):
        found = mask_tokens(ids, may, starts, VOCABULARY, settings, rng)
        assert not np.isin(found.ids[found.places], SPECIAL).any()


def test_shares_must_add_up() -> None:
    with pytest.raises(SettingsError, match="add up to 1"):
        MaskingSettings(mask=0.8, random=0.3, keep=0.1)
