"""Replacing a model's tensors keeps tied places tied."""

from __future__ import annotations

import torch
from torch import nn

from unmask.models.assign import assign, named_tensors
from unmask.models.init import assemble, build_model
from unmask.models.settings import BertSettings, GptSettings, TransformerSettings
from unmask.nn.batch import Batch

LAYER = {"hidden_size": 12, "num_heads": 3, "ffn_size": 17}


def test_names_hold_every_tensor_once() -> None:
    model = nn.Module()
    model.first, model.second = nn.Linear(3, 5), nn.BatchNorm1d(5)
    model.third = model.first
    names = list(named_tensors(model))
    assert names[:2] == ["first.weight", "first.bias"]
    assert set(names[2:]) == {
        f"second.{name}" for name in ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")
    }


def test_a_model_without_memory_takes_anothers_tensors() -> None:
    """From the meta device to life: parameters, buffers, and the integer one of batch norm."""
    settings = BertSettings.parse({"vocab_size": 13, "num_layers": 2, "norm": "batch"} | LAYER)
    full = build_model(settings, seed=1).eval()
    with torch.device("meta"):
        empty = assemble(settings)
    assign(empty, named_tensors(full))
    batch = Batch.of([[1, 2, 3], [4, 5]])
    assert torch.equal(empty.eval()(batch).sequence, full(batch).sequence)
    assert all(isinstance(parameter, nn.Parameter) for parameter in empty.parameters())


def test_tied_embeddings_stay_one_tensor() -> None:
    settings = TransformerSettings.parse({"source_vocab_size": 13, "target_vocab_size": 13} | LAYER)
    full = build_model(settings, seed=1)
    with torch.device("meta"):
        empty = assemble(settings)
    assign(empty, named_tensors(full))
    assert empty.source_embeddings.token.weight is empty.target_embeddings.token.weight
    assert empty.source_embeddings.token.weight.device.type == "cpu"


def test_positions_shared_by_layers_stay_one_tensor() -> None:
    shared = {"kind": "buckets", "num_buckets": 8, "max_distance": 16}
    settings = GptSettings.parse({"vocab_size": 13, "num_layers": 3, "positions": shared} | LAYER)
    full = build_model(settings, seed=1)
    with torch.device("meta"):
        empty = assemble(settings)
    assign(empty, named_tensors(full))
    tables = [block.self_attention.attend.positions.table.weight for block in empty.stack.blocks]
    assert tables[0] is tables[1] is tables[2]
    assert torch.equal(tables[0], full.stack.blocks[0].self_attention.attend.positions.table.weight)


def test_one_tensor_in_two_modules_stays_one() -> None:
    model = nn.Module()
    model.first, model.second = nn.Linear(3, 5, bias=False), nn.Linear(3, 5, bias=False)
    model.second.weight = model.first.weight
    new = torch.ones(5, 3)
    assign(model, {"first.weight": new})
    assert model.first.weight is model.second.weight
    assert torch.equal(model.first.weight, new)
