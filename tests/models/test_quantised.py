"""int8 and fp16 on disk: what is read back is what the numbers say, and nobody takes them for something else."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from unmask.engine.choose import kernels
from unmask.engine.pack import pack
from unmask.errors import ModelError
from unmask.models.assign import named_tensors
from unmask.models.folder import load_model, write_model
from unmask.models.init import build_model
from unmask.models.quantised import SCALE, dequantise, is_quantised, quantise, stored
from unmask.models.settings import BertSettings


def build(**changes: object) -> object:
    sizes = {"vocab_size": 97, "num_layers": 2, "hidden_size": 60, "num_heads": 3, "ffn_size": 70, "max_length": 80}
    heads = [{"kind": "mlm"}, {"kind": "classify", "labels": ["a", "b", "c"]}]
    return build_model(BertSettings.parse(sizes | {"heads": heads} | changes), seed=5)


def test_by_hand() -> None:
    weight = torch.tensor([[1.27, -0.635, 0.004], [0.0, 0.0, 0.0], [-2.54, 0.02, 2.54]])
    numbers, scales = quantise(weight)
    assert numbers.tolist() == [[127, -64, 0], [0, 0, 0], [-127, 1, 127]]  # -63.5 goes to the even neighbour
    torch.testing.assert_close(scales, torch.tensor([0.01, 0.0, 0.02]))
    expected = torch.tensor([[1.27, -0.64, 0.0], [0.0, 0.0, 0.0], [-2.54, 0.02, 2.54]])
    torch.testing.assert_close(dequantise(numbers, scales), expected)


def test_no_number_is_further_off_than_half_a_step_and_a_second_time_changes_nothing() -> None:
    weight = torch.randn(50, 83, generator=torch.Generator().manual_seed(0)) * torch.logspace(-4, 3, 50)[:, None]
    numbers, scales = quantise(weight)
    found = dequantise(numbers, scales)
    assert ((found - weight).abs() <= scales[:, None] * 0.5001).all()
    again, same = quantise(found)
    assert torch.equal(again, numbers)
    torch.testing.assert_close(same, scales, rtol=3e-7, atol=0)


def test_a_folder_read_again_is_exactly_quantised_and_read_back(tmp_path: Path) -> None:
    model = build()
    tmp_path.mkdir(exist_ok=True)
    write_model(model, tmp_path, "int8")
    loaded, report = load_model(tmp_path)
    assert not report.new
    assert not report.unused
    assert loaded.settings == model.settings
    changed = 0
    for name, tensor in named_tensors(model).items():
        found = named_tensors(loaded)[name]
        expected = dequantise(*quantise(tensor)) if is_quantised(tensor) else tensor
        assert torch.equal(found, expected), name
        changed += is_quantised(tensor)
    assert changed == 1 + 1 + 2 * 6 + 1 + 1  # tokens, positions, the blocks' matrices, the pooler, MLM's dense
    assert all(parameter.dtype == torch.float32 for parameter in loaded.parameters())


def test_the_file_is_a_quarter_and_holds_int8(tmp_path: Path) -> None:
    model = build(vocab_size=5000)
    sizes = {}
    for storage in ("fp32", "fp16", "int8"):
        folder = tmp_path / storage
        folder.mkdir()
        write_model(model, folder, storage)
        sizes[storage] = (folder / "model.safetensors").stat().st_size
    assert sizes["fp16"] < 0.52 * sizes["fp32"]
    assert sizes["int8"] < 0.29 * sizes["fp32"]
    tensors = load_file(tmp_path / "int8" / "model.safetensors")
    name = "encoder.embeddings.token.weight"
    assert tensors[name].dtype == torch.int8
    assert tensors[name + SCALE].shape == (5000,)


def test_fp16_is_read_back_as_what_halves_can_hold(tmp_path: Path) -> None:
    model = build()
    write_model(model, tmp_path, "fp16")
    loaded, _ = load_model(tmp_path)
    for name, tensor in named_tensors(model).items():
        assert torch.equal(named_tensors(loaded)[name], tensor.detach().half().float()), name
    with torch.no_grad():
        next(iter(model.parameters())).fill_(1e6)
    with pytest.raises(ModelError, match="beyond what fp16 can hold"):
        write_model(model, tmp_path, "fp16")


def test_transformers_reads_halves_and_refuses_int8(tmp_path: Path) -> None:
    import transformers

    model = build(heads=[{"kind": "classify", "labels": ["a", "b", "c"]}]).eval()
    for storage in ("fp16", "int8"):
        (tmp_path / storage).mkdir()
        write_model(model, tmp_path / storage, storage)
    theirs = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "fp16", dtype=torch.float32)
    ids = torch.tensor([[1, 5, 9, 2]])
    from unmask.nn.batch import Batch

    ours, _ = load_model(tmp_path / "fp16")
    expected = ours.class_logits(ours(Batch.of(ids.tolist())))
    torch.testing.assert_close(theirs.eval()(ids).logits, expected, rtol=0, atol=1e-5)
    with pytest.raises(ValueError, match="unmask"):
        transformers.AutoModel.from_pretrained(tmp_path / "int8")


@pytest.mark.parametrize("change", ["missing", "shape", "type"])
def test_numbers_without_their_scales_are_refused(tmp_path: Path, change: str) -> None:
    write_model(build(), tmp_path, "int8")
    tensors = load_file(tmp_path / "model.safetensors")
    name = "encoder.embeddings.token.weight" + SCALE
    if change == "missing":
        del tensors[name]
    else:
        tensors[name] = tensors[name][1:].clone() if change == "shape" else tensors[name].half()
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(ModelError, match="no fp32 scale for each row"):
        load_model(tmp_path)


def test_int8_under_a_published_name_is_refused(tmp_path: Path) -> None:
    model = build(heads=[])
    write_model(model, tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    save_file({name: t.to(torch.int8) for name, t in tensors.items()}, tmp_path / "model.safetensors")
    with pytest.raises(ModelError, match="where weights are expected"):
        load_model(tmp_path)


def test_the_config_says_how_weights_are_stored(tmp_path: Path) -> None:
    write_model(build(), tmp_path, "int8")
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["model_type"] == "unmask"
    assert config["unmask"]["storage"] == "int8"


@pytest.mark.skipif(kernels() is None, reason="no compiler for the kernels")
def test_the_engine_packs_the_very_numbers_of_the_file() -> None:
    weight = torch.randn(64, 128, generator=torch.Generator().manual_seed(1))
    numbers, scales = quantise(weight)
    packed = pack(dequantise(numbers, scales), None, int8=True)
    direct = pack(weight, None, int8=True)
    assert torch.equal(packed.weights, direct.weights)
    assert packed.scales is not None
    torch.testing.assert_close(packed.scales, scales, rtol=3e-7, atol=0)


def test_small_tensors_and_buffers_stay(tmp_path: Path) -> None:
    tensors = {"a.weight": torch.randn(3, 5), "bias": torch.randn(5000), "count": torch.tensor(3)}
    assert stored(tensors, "int8").keys() == tensors.keys()
    assert stored(tensors, "fp16")["count"].dtype == torch.int64
