"""Marian folders: `transformers` is the reference, for what is read and for what is written."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import MarianConfig, MarianMTModel

from unmask.decode.search import decode
from unmask.decode.settings import DecodeSettings
from unmask.decode.stepping import TargetIds
from unmask.errors import ModelError
from unmask.models.assign import named_tensors
from unmask.models.folder import load_model, read_settings, save_model
from unmask.models.settings import SpanSettings
from unmask.models.transformer import Transformer
from unmask.nn.batch import Batch
from unmask.nn.settings import SinusoidalSettings

V, W, PAD, END = 31, 37, 30, 0
SOURCE = [[5, 6, 7, 0], [8, 9, 10, 11, 12, 13, 14, 15, 16, 0], [17, 0], [18, 19, 20, 3, 4, 0]]
TARGET = [[PAD, 5, 6], [PAD, 7, 8, 9, 10, 11, 12, 13], [PAD], [PAD, 14, 15, 16, 17]]

KINDS: dict[str, dict[str, Any]] = {
    "shared": {},
    "two vocabularies": {"share_encoder_decoder_embeddings": False, "decoder_vocab_size": W},
    "nothing tied": {
        "share_encoder_decoder_embeddings": False,
        "decoder_vocab_size": W,
        "tie_word_embeddings": False,
    },
    "shared, but not tied": {"tie_word_embeddings": False},
    "relu": {"activation_function": "relu", "scale_embedding": False},
    "gelu": {"activation_function": "gelu"},
    "no attention dropout": {"attention_dropout": 0.0, "activation_dropout": 0.3},
}


def marian(changes: dict[str, Any] | None = None, *, lively: float = 8.0) -> MarianMTModel:
    """A random model with a bias of the logits, as published ones have; livelier than first values are."""
    config = MarianConfig(
        **{
            "vocab_size": V,
            "d_model": 24,
            "encoder_layers": 2,
            "decoder_layers": 3,
            "encoder_attention_heads": 4,
            "decoder_attention_heads": 4,
            "encoder_ffn_dim": 40,
            "decoder_ffn_dim": 40,
            "activation_function": "swish",
            "scale_embedding": True,
            "max_position_embeddings": 64,
            "pad_token_id": PAD,
            "decoder_start_token_id": PAD,
            "eos_token_id": END,
            "forced_eos_token_id": None,
            "dropout": 0.1,
            "attention_dropout": 0.2,
        }
        | (changes or {})
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        model = MarianMTModel(config).eval()
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if "embed_positions" not in name:
                    parameter.mul_(lively if parameter.dim() > 1 else 1.0).add_(torch.randn_like(parameter), alpha=0.05)
            model.final_logits_bias.normal_()
    return model


def saved(model: MarianMTModel, folder: Path) -> Path:
    model.save_pretrained(folder)
    return folder


def loaded(folder: Path) -> Transformer:
    model, report = load_model(folder)
    assert isinstance(model, Transformer)
    assert report.new == ()
    return model


def theirs(model: MarianMTModel, source: list[list[int]], target: list[list[int]]) -> Tensor:
    """Their logits of the tokens that are there, from batches that are padded."""
    batches = Batch.of(source), Batch.of(target)
    ids, start = (batch.layout.pad(batch.ids, PAD) for batch in batches)
    mask, there = (batch.layout.key_mask(batch.ids.device) for batch in batches)
    return model(input_ids=ids, attention_mask=mask.long(), decoder_input_ids=start).logits[there]


@pytest.mark.parametrize("kind", KINDS)
def test_logits_are_theirs(kind: str, tmp_path: Path) -> None:
    model = marian(KINDS[kind])
    ours = loaded(saved(model, tmp_path / "marian"))
    found = ours(Batch.of(SOURCE), Batch.of(TARGET))
    with torch.inference_mode():
        expected = theirs(model, SOURCE, TARGET)
    assert expected.std() > 0.5
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)
    assert read_settings(tmp_path / "marian") == ours.settings


def test_gradients_are_theirs_in_training(tmp_path: Path) -> None:
    still = {"dropout": 0.0, "attention_dropout": 0.0}
    model = marian(still, lively=2.0).train()
    ours = loaded(saved(model, tmp_path / "marian")).train()
    labels = torch.arange(sum(map(len, TARGET)))
    torch.nn.functional.cross_entropy(ours(Batch.of(SOURCE), Batch.of(TARGET)), labels).backward()
    torch.nn.functional.cross_entropy(theirs(model, SOURCE, TARGET), labels).backward()
    pairs = {
        "decoder.blocks.2.cross_attention.projections.key.weight": "model.decoder.layers.2.encoder_attn.k_proj.weight",
        "encoder.blocks.0.ffn.inner.weight": "model.encoder.layers.0.fc1.weight",
        "decoder.blocks.0.around_cross.norm.bias": "model.decoder.layers.0.encoder_attn_layer_norm.bias",
    }
    for name, other in pairs.items():
        expected = model.get_parameter(other).grad
        assert expected.abs().max() > 1e-4
        torch.testing.assert_close(ours.get_parameter(name).grad, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("kind", ["shared", "nothing tied"])
def test_greedy_outputs_are_theirs(kind: str, tmp_path: Path) -> None:
    model = marian(KINDS[kind])
    model.final_logits_bias[0, END] += 2.0  # so that some end early and some never
    ours = loaded(saved(model, tmp_path / "marian"))
    sources = SOURCE + [[3 + (7 * i + j) % 26 for j in range(1 + i)] for i in range(12)]
    found = decode(ours, sources, TargetIds(PAD, END), DecodeSettings(beam=1, max_length=12, max_ratio=None))
    outputs = set()
    for source, (one,) in zip(sources, found, strict=True):
        said = model.generate(torch.tensor([source]), max_new_tokens=12, num_beams=1, do_sample=False)[0, 1:].tolist()
        assert one.ids == said[: said.index(END) if END in said else None]
        outputs.add(tuple(one.ids))
    assert len(outputs) > 5
    assert len({len(ids) for ids in outputs}) > 1


def test_dropout_and_sizes_are_read(tmp_path: Path) -> None:
    settings = read_settings(saved(marian(), tmp_path / "marian"))
    assert (settings.num_encoder_layers, settings.num_decoder_layers, settings.num_heads) == (2, 3, 4)
    assert settings.dropout.model_dump() == {"embedding": 0.1, "residual": 0.1, "attention": 0.2, "activation": 0.0}
    assert settings.positions == SinusoidalSettings(order="concatenated")
    assert (settings.tie, settings.max_length, settings.activation, settings.output_bias) == ("all", 64, "silu", True)


def rewrite(folder: Path, change: Callable[[dict[str, Tensor]], object]) -> None:
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def test_old_files_with_every_name_of_a_table(tmp_path: Path) -> None:
    """As pickles were converted: tied tables several times over, and the table of positions."""
    model = marian()
    saved(model, tmp_path / "marian")

    def repeat(tensors: dict[str, Tensor]) -> None:
        shared = tensors["model.shared.weight"]
        for name in ("model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight", "lm_head.weight"):
            tensors[name] = shared.clone()
        for side in ("encoder", "decoder"):
            tensors[f"model.{side}.embed_positions.weight"] = model.get_parameter(
                f"model.{side}.embed_positions.weight"
            ).clone()

    rewrite(tmp_path / "marian", repeat)
    ours, report = load_model(tmp_path / "marian")
    assert report.unused == ()
    assert report.loaded == len(named_tensors(ours))
    with torch.inference_mode():
        expected = theirs(model, SOURCE, TARGET)
    torch.testing.assert_close(ours(Batch.of(SOURCE), Batch.of(TARGET)), expected, rtol=0, atol=1e-5)
    rewrite(tmp_path / "marian", lambda tensors: tensors["lm_head.weight"].add_(1))
    with pytest.raises(ModelError, match="ties model.shared.weight and lm_head.weight, but .* tie_word_embeddings"):
        load_model(tmp_path / "marian")


def test_a_table_of_other_positions_is_meant(tmp_path: Path) -> None:
    """`transformers` reads a stored table too, so a model with learned positions is one."""
    saved(marian(), tmp_path / "marian")

    def learn(tensors: dict[str, Tensor]) -> None:
        for side in ("encoder", "decoder"):
            tensors[f"model.{side}.embed_positions.weight"] = torch.randn(64, 24)

    rewrite(tmp_path / "marian", learn)
    ours, model = loaded(tmp_path / "marian"), MarianMTModel.from_pretrained(tmp_path / "marian").eval()
    assert ours.settings.positions.kind == "learned"
    with torch.inference_mode():
        expected = theirs(model, SOURCE, TARGET)
    torch.testing.assert_close(ours(Batch.of(SOURCE), Batch.of(TARGET)), expected, rtol=0, atol=1e-5)
    rewrite(tmp_path / "marian", lambda tensors: tensors.pop("model.encoder.embed_positions.weight"))
    with pytest.raises(ModelError, match="only one of model.encoder.embed_positions.weight and"):
        load_model(tmp_path / "marian")


def test_half_precision_is_read(tmp_path: Path) -> None:
    ours = loaded(saved(marian().half(), tmp_path / "marian"))
    model = MarianMTModel.from_pretrained(tmp_path / "marian", dtype=torch.float32).eval()
    with torch.inference_mode():
        expected = theirs(model, SOURCE, TARGET)
    torch.testing.assert_close(ours(Batch.of(SOURCE), Batch.of(TARGET)), expected, rtol=0, atol=1e-5)


def test_it_becomes_a_folder_of_our_own(tmp_path: Path) -> None:
    ours = loaded(saved(marian(), tmp_path / "marian"))
    save_model(ours, tmp_path / "own")
    again = loaded(tmp_path / "own")
    assert again.settings == ours.settings
    pair = Batch.of(SOURCE), Batch.of(TARGET)
    assert torch.equal(again(*pair), ours(*pair))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"normalize_before": True}, "normalize_before.*given True"),
        ({"normalize_embedding": True}, "normalize_embedding.*given True"),
        ({"add_final_layer_norm": True}, "add_final_layer_norm.*given True"),
        ({"static_position_embeddings": False}, "static_position_embeddings.*given False"),
        ({"extra_pos_embeddings": 2}, "extra_pos_embeddings.*given 2"),
        ({"encoder_layerdrop": 0.1}, "encoder_layerdrop.*given 0.1"),
        ({"is_encoder_decoder": False}, "is_encoder_decoder.*given False"),
        ({"activation_function": "mish"}, "activation_function 'mish' is not supported; known are gelu"),
        ({"decoder_attention_heads": 6}, "encoder_attention_heads 4 and decoder_attention_heads 6 differ"),
        ({"decoder_ffn_dim": 41}, "encoder_ffn_dim 40 and decoder_ffn_dim 41 differ"),
        ({"encoder_layers": 1_000_000}, "encoder_layers is 1,000,000 but the weights hold 2"),
        ({"decoder_layers": 2}, "decoder_layers is 2 but the weights hold 3"),
        ({"encoder_attention_heads": 5, "decoder_attention_heads": 5}, "hidden_size 24 is not a multiple of num_heads"),
        ({"d_model": "wide"}, "d_model"),
        ({"vocab_size": 40}, r"has shape \(31,\) but the config asks for \(40,\)"),
        ({"dropout": 1.5}, "dropout.*given 1.5"),
    ],
)
def test_what_we_have_not_is_named(changes: dict[str, Any], words: str, tmp_path: Path) -> None:
    saved(marian(), tmp_path / "marian")
    path = tmp_path / "marian" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    with pytest.raises(ModelError, match=words) as error:
        load_model(tmp_path / "marian")
    assert str(tmp_path / "marian") in str(error.value)
    assert "\n" not in str(error.value)


def test_missing_tensors_pickles_and_heads(tmp_path: Path) -> None:
    saved(marian(), tmp_path / "marian")
    with pytest.raises(ModelError, match="heads can be put on a BERT encoder"):
        load_model(tmp_path / "marian", heads=[SpanSettings()])
    rewrite(tmp_path / "marian", lambda tensors: tensors.pop("model.shared.weight"))
    with pytest.raises(ModelError, match="missing, the first is source_embeddings.token.weight"):
        load_model(tmp_path / "marian")
    (tmp_path / "marian" / "model.safetensors").unlink()
    (tmp_path / "marian" / "pytorch_model.bin").write_bytes(b"\x80\x04.")
    with pytest.raises(ModelError, match="only pytorch_model.bin, a pickle"):
        load_model(tmp_path / "marian")
