"""Layouts against lists of (sequence, position) written out one row after another."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from unmask.nn.layout import Layout

CPU = torch.device("cpu")
LENGTHS = st.lists(st.integers(1, 7), min_size=1, max_size=5)
SPARE = st.none() | st.integers(0, 3)  # None: ragged; otherwise rows beyond the longest


def layout_of(lengths: list[int], spare: int | None) -> Layout:
    return Layout(tuple(lengths), None if spare is None else max(lengths) + spare)


def rows_of(layout: Layout) -> list[tuple[int, int]]:
    return [(b, t) for b, length in enumerate(layout.lengths) for t in range(layout.width or length)]


@given(LENGTHS, SPARE)
def test_rows_know_their_sequence_and_position(lengths: list[int], spare: int | None) -> None:
    layout = layout_of(lengths, spare)
    rows = rows_of(layout)
    assert layout.num_rows == len(rows)
    assert layout.row_sequences(CPU).tolist() == [b for b, _ in rows]
    assert layout.row_positions(CPU).tolist() == [t for _, t in rows]
    assert layout.first_rows(CPU).tolist() == [rows.index((b, 0)) for b in range(len(lengths))]
    assert layout.token_rows(CPU).tolist() == [row for row, (b, t) in enumerate(rows) if t < lengths[b]]
    assert (layout.num_sequences, layout.num_tokens, layout.max_length) == (len(lengths), sum(lengths), max(lengths))


@given(LENGTHS, SPARE)
def test_pad_and_split_put_every_token_where_it_belongs(lengths: list[int], spare: int | None) -> None:
    layout = layout_of(lengths, spare)
    values = torch.arange(layout.num_rows * 3.0).view(-1, 3) + 1
    dense, pieces = layout.pad(values, -1.0), layout.split(values)
    assert dense.shape == (len(lengths), layout.width or max(lengths), 3)
    for row, (b, t) in enumerate(rows_of(layout)):
        assert torch.equal(dense[b, t], values[row])
        if t < lengths[b]:
            assert torch.equal(pieces[b][t], values[row])
    assert [len(piece) for piece in pieces] == lengths
    mask = layout.key_mask(CPU)
    assert mask.tolist() == [[t < length for t in range(dense.shape[1])] for length in lengths]
    if spare is None:
        assert (dense[~mask] == -1.0).all()


def test_pad_lets_gradients_through() -> None:
    rows = torch.ones(5, 2, requires_grad=True)
    Layout.ragged([2, 3]).pad(rows).sum().backward()
    assert torch.equal(rows.grad, torch.ones(5, 2))


def test_constructors_take_any_iterable() -> None:
    assert Layout.ragged(n for n in (3, 1)) == Layout((3, 1))
    assert Layout.padded(n for n in (3, 1)) == Layout((3, 1), 3)


@pytest.mark.parametrize("lengths", [(), (0,), (3, 0, 2), (2, -1)])
def test_empty_sequences_are_refused(lengths: tuple[int, ...]) -> None:
    for make in (Layout.ragged, Layout.padded):
        with pytest.raises(ValueError, match="at least one sequence of at least one token"):
            make(lengths)


def test_width_below_the_longest_is_refused() -> None:
    with pytest.raises(ValueError, match="width 4 is below the longest sequence, 5"):
        Layout((2, 5), 4)
