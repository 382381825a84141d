"""The Transformer: causality, steps equal to the full pass, tied weights, sizes."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from unmask.errors import SettingsError, UserError
from unmask.models.bert import num_parameters
from unmask.models.init import assemble, build_model
from unmask.models.settings import TransformerSettings, transformer_preset
from unmask.models.transformer import Transformer
from unmask.nn.batch import Batch

POSITIONS = ["none", "learned", "sinusoidal", "complex", "rotary", "alibi", "buckets", "shaw", "transformer_xl"]
SOURCE = [[1, 2, 3, 4, 5], [6, 7], [8, 9, 10]]
TARGET = [[1, 5], [2, 6, 7, 11, 12], [3, 1, 4]]
V = 13


def transformer(**changes: object) -> Transformer:
    sizes = {"hidden_size": 12, "num_heads": 3, "ffn_size": 17, "num_encoder_layers": 2, "num_decoder_layers": 2}
    vocabularies = {"source_vocab_size": V, "target_vocab_size": V, "max_length": 11}
    model = build_model(TransformerSettings.parse(sizes | vocabularies | changes), seed=13)
    assert isinstance(model, Transformer)
    return model.eval()


def moved(model: Transformer, source: list[list[int]], target: list[list[int]]) -> list[Tensor]:
    """How much each target token's logits moved against SOURCE and TARGET, by sequence."""
    layout = Batch.of(TARGET).layout
    before = model(Batch.of(SOURCE), Batch.of(TARGET))
    after = model(Batch.of(source), Batch.of(target))
    return layout.split((before - after).abs().amax(-1))


@pytest.mark.parametrize("kind", POSITIONS)
def test_a_future_target_token_never_moves_the_past(kind: str) -> None:
    target = [[1, 5], [2, 6, 3, 11, 12], [3, 1, 4]]
    first, second, third = moved(transformer(positions={"kind": kind}), SOURCE, target)
    assert (second[:2] == 0).all()
    assert (second[2:] > 1e-5).all()
    assert (first == 0).all()
    assert (third == 0).all()


@pytest.mark.parametrize("kind", POSITIONS)
def test_a_source_token_moves_its_own_target_only(kind: str) -> None:
    source = [[1, 2, 3, 4, 5], [6, 7], [8, 9, 2]]
    first, second, third = moved(transformer(positions={"kind": kind}), source, TARGET)
    assert (third > 1e-6).all()
    assert (first == 0).all()
    assert (second == 0).all()


@pytest.mark.parametrize("kind", POSITIONS)
def test_steps_equal_the_full_pass_with_ragged_sources(kind: str) -> None:
    model = transformer(positions={"kind": kind})
    target = torch.tensor([[1, 5, 2, 7, 3], [8, 8, 0, 1, 2], [3, 1, 4, 1, 5]])
    full = model(Batch.of(SOURCE), Batch.of(target.tolist())).view(3, 5, V)
    state = model.start(model.encode(Batch.of(SOURCE)))
    for t in range(5):
        logits, state = model.step(target[:, t], state)
        torch.testing.assert_close(logits, full[:, t], rtol=0, atol=1e-5)


@pytest.mark.parametrize("source", [SOURCE, [[1, 2, 3], [4, 5, 6], [7, 8, 9]]], ids=["ragged", "equal"])
def test_steps_go_on_after_sequences_were_selected(source: list[list[int]]) -> None:
    model, chosen = transformer(), torch.tensor([2, 0, 2])
    target = torch.tensor([[1, 5, 2, 7], [8, 8, 0, 1], [3, 1, 4, 1]])
    full = model(Batch.of(source), Batch.of(target.tolist())).view(3, 4, V)
    state = model.start(model.encode(Batch.of(source)))
    state = state.select(torch.tensor([0, 1, 2]))  # before the first step there is no past to select
    for t in range(2):
        _, state = model.step(target[:, t], state)
    state = state.select(chosen)
    for t in (2, 3):
        logits, state = model.step(target[chosen, t], state)
        torch.testing.assert_close(logits, full[chosen, t], rtol=0, atol=1e-5)


def test_steps_beyond_the_table_are_refused_with_both_numbers() -> None:
    model = transformer(positions={"kind": "learned"}, max_length=5)
    state = model.start(model.encode(Batch.of(SOURCE)))
    for _ in range(5):
        _, state = model.step(torch.tensor([1, 2, 3]), state)
    with pytest.raises(UserError, match="6 tokens .* 5 rows"):
        model.step(torch.tensor([1, 2, 3]), state)


def test_ragged_equals_padded_on_either_side() -> None:
    model = transformer()
    source, target = Batch.of(SOURCE), Batch.of(TARGET)
    expected = model(source, target)
    keep = target.padded().layout.token_rows(torch.device("cpu"))
    torch.testing.assert_close(model(source.padded(12), target), expected, rtol=0, atol=1e-5)
    torch.testing.assert_close(model(source, target.padded(12))[keep], expected, rtol=0, atol=1e-5)
    torch.testing.assert_close(model(source.padded(12), target.padded(12))[keep], expected, rtol=0, atol=1e-5)


def test_what_each_kind_of_tie_shares() -> None:
    counts = {}
    for tie in ("none", "target", "all"):
        model = transformer(tie=tie)
        source, target = model.source_embeddings.token.weight, model.target_embeddings.token.weight
        assert (source is target) == (tie == "all")
        assert (model.output is None) == (tie != "none")
        counts[tie] = num_parameters(model)
        rows = torch.randn(3, 12)
        matrix = target if model.output is None else model.output.weight
        torch.testing.assert_close(model.logits(rows), rows @ matrix.T)
    assert counts["none"] == counts["target"] + V * 12 == counts["all"] + 2 * V * 12


def test_a_gradient_step_keeps_tied_tensors_one() -> None:
    model = transformer()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    before = model.target_embeddings.token.weight.detach().clone()
    model(Batch.of(SOURCE), Batch.of(TARGET)).square().sum().backward()
    optimizer.step()
    assert model.source_embeddings.token.weight is model.target_embeddings.token.weight
    assert not torch.equal(model.source_embeddings.token.weight, before)


def test_output_bias_is_added() -> None:
    model, rows = transformer(output_bias=True), torch.randn(3, 12)
    assert (model.output_bias == 0).all()
    plain = model.logits(rows)
    with torch.no_grad():
        model.output_bias += torch.arange(float(V))
    torch.testing.assert_close(model.logits(rows), plain + torch.arange(float(V)))


def test_vocabularies_of_different_sizes() -> None:
    model = transformer(source_vocab_size=17, target_vocab_size=13, tie="target")
    assert model(Batch.of([[16]]), Batch.of([[12, 1]])).shape == (2, 13)


@pytest.mark.parametrize(("size", "stack"), [("base", 44_140_544), ("big", 176_361_472)])
def test_published_stacks_to_the_unit(size: str, stack: int) -> None:
    """As many numbers as torch.nn.Transformer has, whose stacks end with a norm."""
    with torch.device("meta"):
        model = assemble(transformer_preset(size, 37000).replace(final_norm=True))
    assert isinstance(model, Transformer)
    assert num_parameters(model.encoder) + num_parameters(model.decoder) == stack
    hidden = {"base": 512, "big": 1024}[size]
    assert num_parameters(model) == stack + 37000 * hidden


def test_presets() -> None:
    assert transformer_preset("tiny", 100).tie == "all"
    assert transformer_preset("tiny", 100, 100).tie == "all"
    two = transformer_preset("tiny", 100, 200)
    assert (two.tie, two.source_vocab_size, two.target_vocab_size) == ("target", 100, 200)
    with pytest.raises(SettingsError, match="unknown size huge .* tiny, base, big"):
        transformer_preset("huge", 100)


def test_dropout_differs_by_seed_in_training_and_never_in_evaluation() -> None:
    model = transformer()

    def output(seed: int) -> Tensor:
        torch.manual_seed(seed)
        return model(Batch.of(SOURCE), Batch.of(TARGET))

    assert torch.equal(output(1), output(2))
    model.train()
    assert not torch.allclose(output(1), output(2))
    assert torch.equal(output(1), output(1))
