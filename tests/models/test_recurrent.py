"""LSTM baselines: a ragged batch equals each sequence alone, and padding cannot leak."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from unmask.models.recurrent import LstmEncoder, LstmSeq2Seq
from unmask.nn.batch import Batch
from unmask.nn.layout import Layout

V, H = 13, 10
SOURCE = [[1, 2, 3], [4, 5, 6, 7, 8, 9, 10], [11], [1, 3, 5, 7, 9]]
TARGET = [[1, 5], [2, 6, 7, 11, 12], [3, 1, 4], [2]]
CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(17)


def widened(batch: Batch, width: int, filler: int) -> Batch:
    """The same sequences in a rectangle of `width` columns."""
    layout = Layout(batch.layout.lengths, width)
    ids = torch.full((len(batch), width), filler)
    ids[layout.key_mask(CPU)] = batch.ids
    return Batch(ids.flatten(), torch.zeros(len(batch) * width, dtype=torch.long), layout)


@pytest.mark.parametrize("bidirectional", [True, False])
@pytest.mark.parametrize("layers", [1, 2])
def test_ragged_rows_equal_each_sequence_alone(bidirectional: bool, layers: int) -> None:
    model = LstmEncoder(V, H, layers, bidirectional=bidirectional, dropout=0.5).eval()
    together = model(Batch.of(SOURCE))
    assert together.shape == (16, H)
    alone = [model.lstm(model.embedding(torch.tensor([ids])))[0][0] for ids in SOURCE]
    torch.testing.assert_close(together, torch.cat(alone), rtol=0, atol=1e-6)


@pytest.mark.parametrize("bidirectional", [True, False])
def test_the_last_state_is_that_of_each_sequences_own_end(bidirectional: bool) -> None:
    model = LstmEncoder(V, H, 2, bidirectional=bidirectional).eval()
    _, (hidden, cell) = model.read(Batch.of(SOURCE))
    assert hidden.shape == cell.shape == (2, 4, H)
    for b, ids in enumerate(SOURCE):
        _, (own, own_cell) = model.lstm(model.embedding(torch.tensor([ids])))
        for layer in range(2):
            if bidirectional:  # forward half, then backward half
                expected = torch.cat([own[2 * layer, 0], own[2 * layer + 1, 0]])
                expected_cell = torch.cat([own_cell[2 * layer, 0], own_cell[2 * layer + 1, 0]])
            else:
                expected, expected_cell = own[layer, 0], own_cell[layer, 0]
            torch.testing.assert_close(hidden[layer, b], expected, rtol=0, atol=1e-6)
            torch.testing.assert_close(cell[layer, b], expected_cell, rtol=0, atol=1e-6)


@pytest.mark.parametrize("width", [7, 11])
def test_padding_cannot_leak_into_the_encoder(width: int) -> None:
    model, batch = LstmEncoder(V, H).eval(), Batch.of(SOURCE)
    expected = model(batch)
    for filler in (0, 12):
        padded = widened(batch, width, filler)
        rows = model(padded)
        assert rows.shape == (padded.layout.num_rows, H)
        torch.testing.assert_close(rows[padded.layout.token_rows(CPU)], expected, rtol=0, atol=1e-6)


def naive(model: LstmSeq2Seq, source: list[int], target: list[int]) -> Tensor:
    """One pair, by hand from torch's layers."""
    memory, (hidden, cell) = model.encoder.lstm(model.encoder.embedding(torch.tensor([source])))
    state = tuple(torch.cat([part[0::2], part[1::2]], dim=-1) for part in (hidden, cell))
    queries, _ = model.decoder.lstm(model.decoder.embedding(torch.tensor([target])), state)
    rows = queries[0]
    if model.mix is not None:
        contexts = [(memory[0] @ row).softmax(0) @ memory[0] for row in rows]
        rows = torch.tanh(model.mix(torch.cat([rows, torch.stack(contexts)], dim=-1)))
    return model.output(rows)


@pytest.mark.parametrize("attention", [True, False])
@pytest.mark.parametrize("layers", [1, 2])
def test_seq2seq_equals_each_pair_alone(attention: bool, layers: int) -> None:
    model = LstmSeq2Seq(V, 17, H, layers, attention=attention, dropout=0.5).eval()
    together = model(Batch.of(SOURCE), Batch.of(TARGET))
    assert together.shape == (11, 17)
    alone = [naive(model, *pair) for pair in zip(SOURCE, TARGET, strict=True)]
    torch.testing.assert_close(together, torch.cat(alone), rtol=0, atol=1e-6)


@pytest.mark.parametrize("attention", [True, False])
def test_padding_cannot_leak_into_seq2seq(attention: bool) -> None:
    model = LstmSeq2Seq(V, 17, H, attention=attention).eval()
    source, target = Batch.of(SOURCE), Batch.of(TARGET)
    expected = model(source, target)
    padded = widened(target, 7, 3)
    torch.testing.assert_close(model(widened(source, 11, 5), target), expected, rtol=0, atol=1e-6)
    rows = model(widened(source, 11, 6), padded)
    torch.testing.assert_close(rows[padded.layout.token_rows(CPU)], expected, rtol=0, atol=1e-6)


def test_a_future_target_token_never_moves_the_past() -> None:
    model = LstmSeq2Seq(V, 17, H).eval()
    before = model(Batch.of([[1, 2, 3]]), Batch.of([[1, 2, 3, 4, 5]]))
    after = model(Batch.of([[1, 2, 3]]), Batch.of([[1, 2, 3, 9, 5]]))
    moved = (before - after).abs().amax(-1)
    assert (moved[:3] == 0).all()
    assert (moved[3:] > 0).all()


def test_an_odd_size_is_refused_for_two_directions() -> None:
    with pytest.raises(ValueError, match="11 must be even"):
        LstmEncoder(V, 11)
    LstmEncoder(V, 11, bidirectional=False)


def test_dropout_acts_in_training_only() -> None:
    model, batch = LstmEncoder(V, H, dropout=0.5), Batch.of(SOURCE)
    assert not torch.equal(model(batch), model(batch))
    assert torch.equal(model.eval()(batch), model(batch))
