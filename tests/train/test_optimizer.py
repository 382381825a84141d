from __future__ import annotations

import pytest
import torch

from unmask.errors import ModelError
from unmask.models.init import build_model
from unmask.models.settings import BertSettings, ClassifySettings, LstmSettings
from unmask.train.optimizer import OptimizerSettings, build_optimizer, set_rate

SETTINGS = BertSettings(
    vocab_size=11,
    num_layers=3,
    hidden_size=8,
    num_heads=2,
    ffn_size=8,
    heads=(ClassifySettings(labels=("a", "b")),),
)


def groups(model: torch.nn.Module, settings: OptimizerSettings) -> dict[str, tuple[float, float]]:
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    optimizer = build_optimizer(model, settings)
    return {
        names[id(parameter)]: (group["weight_decay"], group["lr"])
        for group in optimizer.param_groups
        for parameter in group["params"]
    }


def test_biases_and_norms_do_not_decay() -> None:
    model = build_model(SETTINGS)
    found = groups(model, OptimizerSettings(weight_decay=0.1))
    assert len(found) == len(dict(model.named_parameters()))
    for name, (decay, _) in found.items():
        assert decay == (0.0 if name.endswith("bias") or ".norm." in name else 0.1), name


def test_lower_layers_learn_less() -> None:
    found = groups(build_model(SETTINGS), OptimizerSettings(learning_rate=1.0, layer_decay=0.5))
    assert found["heads.classify.dense.weight"][1] == 1.0
    assert found["encoder.pooler.dense.weight"][1] == 1.0
    for layer, rate in ((2, 0.5), (1, 0.25), (0, 0.125)):
        assert found[f"encoder.stack.blocks.{layer}.ffn.inner.weight"][1] == rate
    assert found["encoder.embeddings.token.weight"][1] == 0.0625


def test_frozen_parameters_are_left_out_and_rates_keep_their_share() -> None:
    model = build_model(SETTINGS)
    model.encoder.requires_grad_(False)
    optimizer = build_optimizer(model, OptimizerSettings(layer_decay=0.5))
    assert sum(len(group["params"]) for group in optimizer.param_groups) == 2
    set_rate(optimizer, 0.25)
    assert {group["lr"] for group in optimizer.param_groups} == {0.25}
    model.requires_grad_(False)
    with pytest.raises(ModelError, match="frozen"):
        build_optimizer(model, OptimizerSettings())


def test_biases_of_an_lstm_do_not_decay() -> None:
    model = build_model(LstmSettings(source_vocab_size=5, target_vocab_size=5, hidden_size=8), 0)
    found = groups(model, OptimizerSettings(weight_decay=0.1))
    assert {name for name, (decay, _) in found.items() if decay == 0.0} == {name for name in found if "bias" in name}
    assert any("bias_hh_l0" in name for name in found)
