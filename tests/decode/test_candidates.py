"""The best tokens, ties included, and which would repeat."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

from unmask.decode.candidates import repeated, top


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
