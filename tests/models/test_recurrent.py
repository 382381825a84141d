"""LSTM baselines: a ragged batch equals each sequence alone, and padding cannot leak."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import pytest
import torch
from torch import Tensor

from unmask.decode.search import decode
from unmask.decode.settings import DecodeSettings
from unmask.decode.stepping import TargetIds
from unmask.errors import ModelError, SettingsError, UserError
from unmask.models.assign import named_tensors
from unmask.models.bert import num_parameters
from unmask.models.folder import load_model, read_settings, save_model
from unmask.models.init import assemble, build_model
from unmask.models.inspect import inspect
from unmask.models.recurrent import LstmEncoder, LstmSeq2Seq, LstmStack, lstm_like
from unmask.models.settings import LstmSettings, TagSettings, TransformerSettings, transformer_preset
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
    alone = [model.stack.lstm(model.embedding(torch.tensor([ids])))[0][0] for ids in SOURCE]
    torch.testing.assert_close(together, torch.cat(alone), rtol=0, atol=1e-6)


@pytest.mark.parametrize("bidirectional", [True, False])
def test_the_last_state_is_that_of_each_sequences_own_end(bidirectional: bool) -> None:
    model = LstmEncoder(V, H, 2, bidirectional=bidirectional).eval()
    batch = Batch.of(SOURCE)
    _, (hidden, cell) = model.stack(model.embedding(batch.ids), batch.layout)
    assert hidden.shape == cell.shape == (2, 4, H)
    for b, ids in enumerate(SOURCE):
        _, (own, own_cell) = model.stack.lstm(model.embedding(torch.tensor([ids])))
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


def settings_of(**changes: object) -> LstmSettings:
    base = {"source_vocab_size": V, "target_vocab_size": 17, "hidden_size": H, "tie": "none", "dropout": 0.5}
    return LstmSettings.parse(base | changes)


def seq2seq(**changes: object) -> LstmSeq2Seq:
    model = build_model(settings_of(**changes), seed=3)
    assert isinstance(model, LstmSeq2Seq)
    return model.eval()


def naive(model: LstmSeq2Seq, source: list[int], target: list[int]) -> Tensor:
    """One pair, by hand from torch's layers."""
    tables = model.source_embeddings.token.weight * H**0.5, model.target_embeddings.token.weight * H**0.5
    memory, (hidden, cell) = model.encoder.lstm(tables[0][source][None])
    state = tuple(torch.cat([part[0::2], part[1::2]], dim=-1) for part in (hidden, cell))
    queries, _ = model.decoder.lstm(tables[1][target][None], state)
    rows = queries[0]
    if model.mix is not None:
        contexts = [(memory[0] @ row).softmax(0) @ memory[0] for row in rows]
        rows = torch.tanh(model.mix(torch.cat([rows, torch.stack(contexts)], dim=-1)))
    output = model.target_embeddings.token if model.output is None else model.output
    return rows @ output.weight.T + model.output_bias


@pytest.mark.parametrize("attention", [True, False])
@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize(("tie", "source_vocab_size"), [("none", V), ("target", V), ("all", 17)])
def test_seq2seq_equals_each_pair_alone(attention: bool, layers: int, tie: str, source_vocab_size: int) -> None:
    model = seq2seq(attention=attention, num_layers=layers, tie=tie, source_vocab_size=source_vocab_size)
    torch.nn.init.normal_(model.output_bias)
    together = model(Batch.of(SOURCE), Batch.of(TARGET))
    assert together.shape == (11, 17)
    alone = [naive(model, *pair) for pair in zip(SOURCE, TARGET, strict=True)]
    torch.testing.assert_close(together, torch.cat(alone), rtol=0, atol=1e-6)


@pytest.mark.parametrize("attention", [True, False])
def test_padding_cannot_leak_into_seq2seq(attention: bool) -> None:
    model = seq2seq(attention=attention)
    source, target = Batch.of(SOURCE), Batch.of(TARGET)
    expected = model(source, target)
    padded = widened(target, 7, 3)
    torch.testing.assert_close(model(widened(source, 11, 5), target), expected, rtol=0, atol=1e-6)
    rows = model(widened(source, 11, 6), padded)
    torch.testing.assert_close(rows[padded.layout.token_rows(CPU)], expected, rtol=0, atol=1e-6)


def test_a_future_target_token_never_moves_the_past() -> None:
    model = seq2seq()
    before = model(Batch.of([[1, 2, 3]]), Batch.of([[1, 2, 3, 4, 5]]))
    after = model(Batch.of([[1, 2, 3]]), Batch.of([[1, 2, 3, 9, 5]]))
    moved = (before - after).abs().amax(-1)
    assert (moved[:3] == 0).all()
    assert (moved[3:] > 0).all()


def test_an_odd_size_is_refused_for_two_directions() -> None:
    with pytest.raises(ValueError, match="11 must be even"):
        LstmEncoder(V, 11)
    LstmEncoder(V, 11, bidirectional=False)
    with pytest.raises(SettingsError, match="hidden_size 11 must be even"):
        settings_of(hidden_size=11)


def test_dropout_acts_in_training_only() -> None:
    model, batch = LstmEncoder(V, H, dropout=0.5), Batch.of(SOURCE)
    assert not torch.equal(model(batch), model(batch))
    assert torch.equal(model.eval()(batch), model(batch))
    pair = seq2seq().train()
    assert not torch.equal(pair(batch, batch), pair(batch, batch))
    assert torch.equal(pair.eval()(batch, batch), pair(batch, batch))


def test_training_may_put_the_output_layer_apart() -> None:
    model = seq2seq()
    rows = model.decode(Batch.of(TARGET), model.encode(Batch.of(SOURCE)))
    assert rows.shape == (11, H)
    torch.testing.assert_close(model.logits(rows), model(Batch.of(SOURCE), Batch.of(TARGET)))
    rows.sum().backward()
    left = {name for name, parameter in model.named_parameters() if parameter.grad is None}
    assert left == {"output.weight", "output_bias"}


def test_decoding_takes_the_model_as_it_is() -> None:
    """The model itself is what decoding asks for steps, with no wrapper between them."""
    model = seq2seq(tie="all", source_vocab_size=17)
    found = decode(model, SOURCE, TargetIds(1, 2), DecodeSettings(beam=3, max_length=6))
    for source, (best, *_) in zip(SOURCE, found, strict=True):
        said = [*best.ids, 2][: len(best.ids) + best.finished]
        log_probs = naive(model, source, [1, *said[:-1]]).detach().log_softmax(-1)
        expected = sum(float(log_probs[t, token]) for t, token in enumerate(said))
        assert best.log_probability == pytest.approx(expected, abs=1e-5)


def test_an_unknown_id_is_named() -> None:
    with pytest.raises(UserError, match="id 13 but the model's vocabulary has 13"):
        seq2seq()(Batch.of([[13]]), Batch.of([[1]]))


def test_first_values_come_from_the_generator_alone() -> None:
    torch.manual_seed(1)
    one = named_tensors(seq2seq())
    torch.manual_seed(2)
    state = torch.get_rng_state()
    two, other = named_tensors(seq2seq()), named_tensors(build_model(settings_of(), seed=4))
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(one[name], two[name]) for name in one)
    assert all(not torch.equal(one[name], other[name]) for name in one if one[name].dim() > 1)


def test_every_parameter_is_set() -> None:
    model = LstmStack(H, 2, bidirectional=True, dropout=0.0)
    for parameter in model.parameters():
        parameter.data.fill_(77)
    model.initialise(torch.Generator().manual_seed(0))
    half = H // 2
    for name, parameter in model.lstm.named_parameters():
        if name.startswith("weight"):
            assert 0.9 * half**-0.5 < parameter.abs().max() <= half**-0.5
        else:
            gates = parameter.detach().view(4, half)
            expected = torch.zeros(4, half)
            expected[1] = 1.0 if name.startswith("bias_ih") else 0.0
            assert torch.equal(gates, expected)


@pytest.mark.parametrize(("tie", "tables"), [("none", 3), ("target", 2), ("all", 1)])
def test_a_folder_gives_the_model_back(tmp_path: Path, tie: str, tables: int) -> None:
    settings = settings_of(tie=tie, source_vocab_size=17)
    model = build_model(settings, seed=1).eval()
    save_model(model, tmp_path / "lstm")
    assert json.loads((tmp_path / "lstm" / "config.json").read_text())["unmask"]["settings"]["model"] == "lstm"
    assert read_settings(tmp_path / "lstm") == settings
    back, report = load_model(tmp_path / "lstm")
    assert isinstance(back, LstmSeq2Seq)
    assert report.loaded == report.total == len(named_tensors(model))
    assert sum(tensor.shape == (17, H) for tensor in named_tensors(back).values()) == tables
    pair = Batch.of(SOURCE), Batch.of(TARGET)
    assert torch.equal(copy.deepcopy(back)(*pair), model(*pair))  # in memory of its own, not in the file's map
    back.train()(*pair).sum().backward()
    with pytest.raises(ModelError, match="not on a lstm model"):
        load_model(tmp_path / "lstm", heads=[TagSettings(labels=("a", "b"))])


def test_its_parts_can_be_listed() -> None:
    model = seq2seq()
    table = inspect(model)
    assert table.total == num_parameters(model)
    assert {"mix", "decoder.lstm.weight_hh_l1", "source_embeddings.token"} <= {part.name for part in table.parts}


BIG = TransformerSettings(
    hidden_size=48, num_heads=4, ffn_size=100, source_vocab_size=500, target_vocab_size=700, tie="none"
)
LIKE = [
    transformer_preset("tiny", 8000),
    transformer_preset("base", 37000),
    transformer_preset("tiny", 8000, 9000),
    BIG,
    BIG.replace(num_encoder_layers=60, num_decoder_layers=60),
]


@pytest.mark.parametrize("attention", [True, False])
@pytest.mark.parametrize("settings", LIKE, ids=["tiny", "base", "two vocabularies", "untied", "deep"])
def test_an_lstm_of_a_transformers_size(settings: TransformerSettings, attention: bool) -> None:
    like = lstm_like(settings, attention)
    assert (like.attention, like.num_layers, like.tie) == (attention, 2, settings.tie)
    assert (like.source_vocab_size, like.target_vocab_size) == (settings.source_vocab_size, settings.target_vocab_size)
    with torch.device("meta"):
        wanted = num_parameters(assemble(settings))
        found = [num_parameters(assemble(like.replace(hidden_size=like.hidden_size + step))) for step in (-2, 0, 2)]
    assert found[1] == pytest.approx(wanted, rel=0.02)
    assert abs(found[1] - wanted) == min(abs(count - wanted) for count in found)
