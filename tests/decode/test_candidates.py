"""The best tokens, ties included, and which would repeat."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

from unmask.decode.candidates import Beginnings, normaliser, repeated, top
from unmask.errors import TaskError


@given(
    seed=st.integers(0, 10**6),
    size=st.sampled_from([1, 2, 63, 64, 65, 700, 2048, 2100]),
    count=st.integers(1, 9),
    levels=st.sampled_from([1, 2, 5, 50, 10**6]),
    forbidden=st.booleans(),
)
@examples(max_examples=150, deadline=None)
def test_equals_a_stable_sort(seed: int, size: int, count: int, levels: int, forbidden: bool) -> None:
    """Few levels make many ties."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.randint(0, levels, (7, size), generator=generator).float()
    if forbidden:
        values[torch.rand(7, size, generator=generator) < 0.5] = float("-inf")
    expected, ids = values.sort(dim=-1, descending=True, stable=True)
    found, places = top(values, count)
    count = min(count, size)
    assert torch.equal(found, expected[:, :count])
    there = found > float("-inf")  # which of the forbidden stands where is nobody's business
    assert torch.equal(places[there], ids[:, :count][there])


@given(
    seed=st.integers(0, 10**6),
    size=st.sampled_from([1, 3, 63, 64, 65, 700, 2100]),
    width=st.integers(1, 4),
    count=st.integers(1, 9),
    levels=st.sampled_from([1, 2, 5, 10**6]),
    forbidden=st.booleans(),
)
@examples(max_examples=150, deadline=None)
def test_the_best_continuations_equal_a_sort_of_all(
    seed: int, size: int, width: int, count: int, levels: int, forbidden: bool
) -> None:
    """Of five sentences some of whose places are empty; the last sentence has none left at all."""
    generator = torch.Generator().manual_seed(seed)
    slots = (torch.rand(5 * width, generator=generator) < 0.7).nonzero()[:, 0]
    slots = slots[slots < 4 * width] if len(slots[slots < 4 * width]) else torch.tensor([0])
    logits = -torch.randint(0, levels, (len(slots), size), generator=generator).double()
    if forbidden:
        logits[torch.rand(len(slots), size, generator=generator) < 0.5] = float("-inf")
    scores = -torch.randint(0, 3, (len(slots),), generator=generator).double()
    off = torch.randint(0, 2, (len(slots),), generator=generator).double()
    totals, parents, tokens = Beginnings(logits, off, scores, slots).best((5, width), count)
    for number in range(5):
        wanted = [
            (-(float(scores[row]) + float(logits[row, token]) - float(off[row])), int(slots[row]) % width, token)
            for row in (slots // width == number).nonzero()[:, 0].tolist()
            for token in range(size)
            if float(logits[row, token]) > -math.inf
        ]
        found = [
            (-total, parent, token)
            for total, parent, token in zip(
                totals[number].tolist(), parents[number].tolist(), tokens[number].tolist(), strict=True
            )
            if total > -math.inf
        ]
        assert found == sorted(wanted)[:count]
    assert int(tokens.max()) < size  # even where there is nothing


@pytest.mark.parametrize("shift", [-300.0, -41.0, -39.0, 0.0, 69.0, 71.0, 300.0])
def test_the_normaliser_is_right_however_large_logits_are(shift: float) -> None:
    logits = torch.randn(17, 501, generator=torch.Generator().manual_seed(0)) * 3 + shift
    torch.testing.assert_close(normaliser(logits), logits.double().logsumexp(-1), rtol=0, atol=1e-6)
    # And a row's own: rows beside it that need more care change nothing.
    mixed = torch.cat([logits, torch.full((1, 501), 1e4), torch.full((1, 501), -1e4)])
    assert torch.equal(normaliser(mixed)[:17], normaliser(logits))


@pytest.mark.parametrize("wrong", [math.nan, math.inf])
def test_what_is_not_a_number_is_refused(wrong: float) -> None:
    logits = torch.zeros(3, 5)
    logits[1, 2] = wrong
    with pytest.raises(TaskError, match="not a number"):
        normaliser(logits)


@pytest.mark.parametrize(
    ("ids", "size", "expected"),
    [
        ([], 1, set()),
        ([4, 5], 1, {4, 5}),
        ([4, 5, 4], 2, {5}),
        ([4, 5, 4, 6, 4], 2, {5, 6}),
        ([4, 5, 6, 4, 5], 3, {6}),
        ([4, 5], 3, set()),
        ([7, 7, 7], 3, {7}),
        ([7, 7], 2, {7}),
    ],
)
def test_tokens_that_would_repeat(ids: list[int], size: int, expected: set[int]) -> None:
    assert repeated(ids, size) == expected
