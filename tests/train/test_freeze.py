from __future__ import annotations

import pytest
import torch
from torch import nn

from unmask.errors import ModelError, SettingsError
from unmask.models.init import build_model
from unmask.models.recurrent import LstmEncoder
from unmask.models.settings import BertSettings, ClassifySettings, GptSettings, TransformerSettings
from unmask.nn.batch import Batch
from unmask.nn.settings import BucketSettings
from unmask.train.freeze import FreezeSettings, drop_gradients, freeze, frozen_names
from unmask.train.optimizer import OptimizerSettings, build_optimizer

SIZES = {"hidden_size": 8, "num_heads": 2, "ffn_size": 8}
BATCH = Batch.of([[1, 2, 3], [4, 5]])


def bert(**changes: object) -> nn.Module:
    head = ClassifySettings(labels=("a", "b"))
    return build_model(BertSettings(**SIZES, vocab_size=11, num_layers=3, heads=(head,)).replace(**changes), seed=1)


def transformer(encoder: int = 3, decoder: int = 3) -> nn.Module:
    layers = {"num_encoder_layers": encoder, "num_decoder_layers": decoder}
    return build_model(TransformerSettings(**SIZES, **layers, source_vocab_size=11, target_vocab_size=11), seed=1)


def test_the_lowest_blocks_and_the_embeddings() -> None:
    names = frozen_names(bert(), FreezeSettings(embeddings=True, layers=2))
    everything = {name for name, _ in bert().named_parameters()}
    low = ("encoder.embeddings.", "encoder.stack.blocks.0.", "encoder.stack.blocks.1.")
    assert names == {name for name in everything if name.startswith(low)}
    assert {"encoder.embeddings.token.weight", "encoder.embeddings.positions.table.weight"} < names
    assert "heads.classify.dense.weight" not in names
    assert frozen_names(bert(), FreezeSettings()) == set()
    assert all(".blocks.0." in name for name in frozen_names(bert(), FreezeSettings(layers=1)))
    assert all("embeddings" in name for name in frozen_names(bert(), FreezeSettings(embeddings=True)))


def test_ten_is_above_two() -> None:
    names = frozen_names(bert(num_layers=12), FreezeSettings(layers=2))
    assert {name.split(".")[3] for name in names} == {"0", "1"}


def test_both_stacks_and_both_embeddings_of_a_transformer() -> None:
    names = frozen_names(transformer(), FreezeSettings(embeddings=True, layers=1))
    assert {name.rsplit(".blocks.")[0] for name in names if ".blocks." in name} == {"encoder", "decoder"}
    assert all(".blocks.0." in name or name.startswith("source_embeddings.") for name in names)
    assert "source_embeddings.token.weight" in names  # the target's are tied to it


@pytest.mark.parametrize("wrapper", ["module", "model", "_orig_mod"])
def test_wrapped_models_have_the_same_parameters_under_their_names(wrapper: str) -> None:
    settings = FreezeSettings(embeddings=True, layers=2)
    wrapped = nn.ModuleDict({wrapper: bert()})
    expected = {f"{wrapper}.{name}" for name in frozen_names(bert(), settings)}
    assert frozen_names(wrapped, settings) == expected
    freeze(wrapped, settings)
    assert {name for name, parameter in wrapped.named_parameters() if not parameter.requires_grad} == expected


def test_what_all_layers_share_learns_while_any_of_them_does() -> None:
    shared = bert(positions=BucketSettings(share_layers=True))
    table = "encoder.stack.blocks.0.self_attention.attend.positions.table.weight"
    assert table in dict(shared.named_parameters())
    assert table not in frozen_names(shared, FreezeSettings(layers=2))
    assert table in frozen_names(shared, FreezeSettings(layers=3))


def test_more_layers_than_there_are() -> None:
    with pytest.raises(SettingsError, match="layers is 4 but encoder.stack has 3 blocks; use at most 3"):
        frozen_names(bert(), FreezeSettings(layers=4))
    with pytest.raises(SettingsError, match="layers is 3 but decoder has 2 blocks"):
        freeze(transformer(encoder=4, decoder=2), FreezeSettings(layers=3, until=5))
    assert frozen_names(bert(), FreezeSettings(layers=3))
    with pytest.raises(SettingsError, match="layers is 1 but the model has no blocks"):
        frozen_names(LstmEncoder(11, 8), FreezeSettings(layers=1))
    with pytest.raises(SettingsError, match="embeddings"):
        frozen_names(LstmEncoder(11, 8), FreezeSettings(embeddings=True))


def step(model: nn.Module, optimizer: torch.optim.Optimizer, names: set[str]) -> set[str]:
    """The names of what moved in one update, in which some gradients were dropped."""
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    model.class_logits(model(BATCH)).square().sum().backward()
    drop_gradients(model, names)
    optimizer.step()
    optimizer.zero_grad()
    return {name for name, parameter in model.named_parameters() if not torch.equal(parameter, before[name])}


def test_frozen_for_the_whole_run() -> None:
    model = bert()
    settings = FreezeSettings(embeddings=True, layers=2)
    freeze(model, settings)
    optimizer = build_optimizer(model, OptimizerSettings(learning_rate=0.1))
    frozen = frozen_names(model, settings)
    assert step(model, optimizer, set()).isdisjoint(frozen)
    assert all(parameter.grad is None for name, parameter in model.named_parameters() if name in frozen)
    freeze(model, FreezeSettings(layers=3, embeddings=True))
    model.heads.requires_grad_(False)
    model.encoder.pooler.requires_grad_(False)
    with pytest.raises(ModelError, match="frozen"):
        build_optimizer(model, OptimizerSettings())


def test_frozen_for_a_while_without_a_step_or_decay() -> None:
    model = bert()
    settings = FreezeSettings(embeddings=True, layers=2, until=2)
    freeze(model, settings)
    assert all(parameter.requires_grad for parameter in model.parameters())
    frozen = frozen_names(model, settings)
    optimizer = build_optimizer(model, OptimizerSettings(learning_rate=0.1, weight_decay=0.5))
    for _ in range(2):
        moved = step(model, optimizer, frozen)
        assert moved
        assert moved.isdisjoint(frozen)
    # The gradient of a key's bias is zero but for rounding: softmax does not see it.
    assert {name for name in frozen if not name.endswith("key.bias")} <= step(model, optimizer, set())


def test_names_of_another_model_are_not_passed_over_in_silence() -> None:
    names = frozen_names(bert(), FreezeSettings(layers=1))
    with pytest.raises(ValueError, match="no parameter encoder.stack.blocks.0"):
        drop_gradients(nn.ModuleDict({"module": bert()}), names)


def test_gpt_and_settings() -> None:
    model = build_model(GptSettings(**SIZES, vocab_size=11, num_layers=2))
    names = frozen_names(model, FreezeSettings(embeddings=True, layers=1))
    assert "embeddings.token.weight" in names
    assert any(name.startswith("stack.blocks.0.") for name in names)
    for wrong in ({"layers": -1}, {"until": 0}, {"embeddings": 1}):
        with pytest.raises(SettingsError, match=next(iter(wrong))):
            FreezeSettings.parse(wrong)
