"""Batches: whose token is where, ragged and padded."""

from __future__ import annotations

import pytest
import torch

from unmask.nn.batch import Batch
from unmask.nn.layout import Layout


def test_of_lays_sequences_end_to_end() -> None:
    batch = Batch.of([[5, 6, 7], [8], [9, 10]], [[0, 0, 1], [1], [0, 1]])
    assert batch.ids.tolist() == [5, 6, 7, 8, 9, 10]
    assert batch.segments.tolist() == [0, 0, 1, 1, 0, 1]
    assert batch.layout == Layout((3, 1, 2))
    assert len(batch) == 3


def test_segments_default_to_the_first_text() -> None:
    assert Batch.of([[5, 6], [7]]).segments.tolist() == [0, 0, 0]


@pytest.mark.parametrize("segments", [[[0, 0]], [[0], [0, 0]], [[0, 0], [0], [0]]])
def test_segments_of_other_lengths_are_refused(segments: list[list[int]]) -> None:
    with pytest.raises(ValueError, match="segments must have the lengths of ids"):
        Batch.of([[5, 6], [7]], segments)


@pytest.mark.parametrize("ids", [[], [[]], [[5], []]])
def test_empty_sequences_are_refused(ids: list[list[int]]) -> None:
    with pytest.raises(ValueError, match="at least one"):
        Batch.of(ids)


def test_padded_fills_up_to_the_longest() -> None:
    padded = Batch.of([[5, 6, 7], [8]], [[0, 1, 1], [1]]).padded(99)
    assert padded.ids.tolist() == [5, 6, 7, 8, 99, 99]
    assert padded.segments.tolist() == [0, 1, 1, 1, 0, 0]
    assert padded.layout == Layout((3, 1), 3)


def test_padding_twice_changes_nothing() -> None:
    once = Batch.of([[5, 6, 7], [8]]).padded()
    twice = once.padded()
    assert torch.equal(once.ids, twice.ids)
    assert once.layout == twice.layout


def test_padded_keeps_rows_and_layout_together_when_already_wider() -> None:
    wide = Batch(torch.arange(10), torch.zeros(10, dtype=torch.long), Layout((3, 1), 5))
    padded = wide.padded()
    assert len(padded.ids) == len(padded.segments) == padded.layout.num_rows


def test_to_moves_ids_and_segments() -> None:
    moved = Batch.of([[5, 6], [7]]).to("meta")
    assert moved.ids.device.type == moved.segments.device.type == "meta"
    assert moved.layout == Layout((2, 1))
