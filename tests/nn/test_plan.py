"""Attention over groups of ragged rows equals attention of each sequence alone, by the formula."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from unmask.nn.attend import Attend
from unmask.nn.layout import Layout
from unmask.nn.plan import PADDING_TOLERANCE, AttentionPlan
from unmask.nn.positions import NoPositions
from unmask.nn.scores import ScaledDot

HEADS, SIZE = 3, 5
LENGTH = st.integers(1, 23)
LENGTHS = st.lists(LENGTH, min_size=1, max_size=7)
PAIRS = st.lists(st.tuples(LENGTH, LENGTH), min_size=1, max_size=5)
SPARE = st.none() | st.integers(0, 2)


def layout_of(lengths: list[int], spare: int | None) -> Layout:
    return Layout(tuple(lengths), None if spare is None else max(lengths) + spare)


def formula(q: Tensor, k: Tensor, v: Tensor, *, causal: bool) -> Tensor:
    """softmax(q·k / sqrt(D)) v for one sequence, (T, N, D) and (S, N, D), one head and query at a time."""
    out = torch.zeros_like(q)
    for head in range(q.shape[1]):
        for t in range(len(q)):
            seen = t + 1 if causal else len(k)
            power = torch.exp(k[:seen, head] @ q[t, head] / math.sqrt(q.shape[2]))
            out[t, head] = power @ v[:seen, head] / power.sum()
    return out


def rows(layout: Layout, generator: torch.Generator) -> Tensor:
    """Random rows in double precision; those that are padding hold numbers that would be noticed."""
    values = torch.randn(layout.num_rows, HEADS, SIZE, dtype=torch.float64, generator=generator)
    padding = torch.ones(layout.num_rows, dtype=torch.bool)
    padding[layout.token_rows(values.device)] = False
    values[padding] = 30.0
    return values


def assert_equals_formula(queries: Layout, keys: Layout, *, causal: bool = False) -> None:
    generator = torch.Generator().manual_seed(11)
    q, k, v = rows(queries, generator), rows(keys, generator), rows(keys, generator)
    plan = AttentionPlan.between(queries, keys, causal=causal)
    out = plan.run(Attend(ScaledDot(SIZE), NoPositions()), q, k, v)
    assert out.shape == q.shape
    pieces = zip(queries.split(q), keys.split(k), keys.split(v), queries.split(out), strict=True)
    for one_q, one_k, one_v, answer in pieces:
        torch.testing.assert_close(answer, formula(one_q, one_k, one_v, causal=causal), rtol=0, atol=1e-12)


@settings(max_examples=40, deadline=None)
@given(LENGTHS, SPARE, st.booleans())
def test_self_attention(lengths: list[int], spare: int | None, causal: bool) -> None:
    layout = layout_of(lengths, spare)
    assert_equals_formula(layout, layout, causal=causal)


@settings(max_examples=40, deadline=None)
@given(PAIRS, SPARE, SPARE)
@example([(2, 1), (1, 1)], None, 0)  # answers that are the first places of the rectangle, but not all
def test_cross_attention_between_every_pair_of_layouts(
    pairs: list[tuple[int, int]], query_spare: int | None, key_spare: int | None
) -> None:
    queries = layout_of([pair[0] for pair in pairs], query_spare)
    keys = layout_of([pair[1] for pair in pairs], key_spare)
    assert_equals_formula(queries, keys)


@settings(max_examples=20, deadline=None)
@given(LENGTHS)
def test_gradients_equal_those_of_each_sequence_alone(lengths: list[int]) -> None:
    layout = Layout.ragged(lengths)
    generator = torch.Generator().manual_seed(3)
    q, k, v, weight = (rows(layout, generator) for _ in range(4))
    parts = [part.requires_grad_() for part in (q, k, v)]
    out = AttentionPlan.between(layout, layout, causal=True).run(Attend(ScaledDot(SIZE), NoPositions()), q, k, v)
    together = torch.autograd.grad((out * weight).sum(), parts)
    pieces = zip(*(layout.split(part) for part in parts), strict=True)
    alone = torch.cat([formula(*piece, causal=True) for piece in pieces])
    expected = torch.autograd.grad((alone * weight).sum(), parts)
    for ours, theirs in zip(together, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-11)


@settings(deadline=None)
@given(st.data())
def test_the_order_of_a_batch_does_not_matter(data: st.DataObject) -> None:
    lengths = data.draw(LENGTHS)
    order = data.draw(st.permutations(range(len(lengths))))
    first, second = Layout.ragged(lengths), Layout.ragged(lengths[i] for i in order)
    q = rows(first, torch.Generator().manual_seed(5))
    moved = torch.cat([first.split(q)[i] for i in order])
    attend = Attend(ScaledDot(SIZE), NoPositions())
    out = AttentionPlan.between(first, first).run(attend, q, q, q)
    again = AttentionPlan.between(second, second).run(attend, moved, moved, moved)
    torch.testing.assert_close(again, torch.cat([first.split(out)[i] for i in order]), rtol=0, atol=1e-12)


@given(PAIRS)
def test_groups_hold_every_sequence_once_and_little_padding(pairs: list[tuple[int, int]]) -> None:
    queries, keys = Layout.ragged(pair[0] for pair in pairs), Layout.ragged(pair[1] for pair in pairs)
    groups = AttentionPlan.between(queries, keys).groups
    members = sorted(member for group in groups for member in group.members)
    assert members == [(i, *pair) for i, pair in enumerate(pairs)]
    for group in groups:
        assert group.queries == max(member[1] for member in group.members)
        assert group.keys == max(member[2] for member in group.members)
        content = sum(member[1] + member[2] for member in group.members)
        assert group.size * (group.queries + group.keys) <= (1 + PADDING_TOLERANCE) * content + 1e-9


def test_near_lengths_share_a_group_and_far_ones_do_not() -> None:
    layout = Layout.ragged([20, 2, 21, 2])
    groups = AttentionPlan.between(layout, layout).groups
    assert [[member[0] for member in group.members] for group in groups] == [[1, 3], [0, 2]]
    assert groups[0].mask.allowed is None
    assert groups[1].mask.allowed is not None


@pytest.mark.parametrize("lengths", [(7,), (5, 5, 5), (2, 2, 3, 3, 3, 5), (20, 21)])
def test_nothing_is_gathered_when_rows_already_lie_in_equal_groups(lengths: tuple[int, ...]) -> None:
    layout = Layout.ragged(lengths)
    plan = AttentionPlan.between(layout, layout)
    assert plan.query_index is plan.key_index is plan.output_index is None


@pytest.mark.parametrize("lengths", [(3, 2), (21, 20)])
def test_something_is_gathered_when_they_do_not(lengths: tuple[int, ...]) -> None:
    layout = Layout.ragged(lengths)
    plan = AttentionPlan.between(layout, layout)
    assert plan.query_index is not None
    assert plan.key_index is not None
    assert plan.output_index is not None


def test_a_padded_layout_is_one_group_without_gathering() -> None:
    layout = Layout.padded([5, 2, 3])
    plan = AttentionPlan.between(layout, layout)
    assert [(group.size, group.queries, group.keys) for group in plan.groups] == [(3, 5, 5)]
    assert plan.query_index is plan.key_index is plan.output_index is None


def test_different_numbers_of_sequences_are_refused() -> None:
    with pytest.raises(ValueError, match="2 query sequences but 3 of keys"):
        AttentionPlan.between(Layout.ragged([5, 2]), Layout.ragged([5, 2, 2]))


@pytest.mark.parametrize("keys", [Layout((5, 3)), Layout((5, 2), 7)])
def test_causal_attention_to_another_layout_is_refused(keys: Layout) -> None:
    """Which key a query stands at would depend on the group it falls in."""
    with pytest.raises(ValueError, match="causal"):
        AttentionPlan.between(Layout.ragged([5, 2]), keys, causal=True)
