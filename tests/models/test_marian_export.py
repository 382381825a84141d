"""What we write for Marian, `transformers` loads as the same model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import GenerationConfig, MarianMTModel

from unmask.decode.search import decode
from unmask.decode.settings import DecodeSettings
from unmask.decode.stepping import TargetIds
from unmask.errors import SettingsError, TaskError, UserError
from unmask.models.folder import load_model
from unmask.models.init import build_model
from unmask.models.marian_export import _ALLOWED, TranslationIds, export_marian
from unmask.models.settings import TransformerSettings
from unmask.models.transformer import Transformer
from unmask.nn.batch import Batch

V, PAD, START, END = 31, 0, 1, 2
IDS = TranslationIds(START, END, PAD, unknown=3)
SOURCE = [[5, 6, 7, 2], [8, 9, 10, 11, 12, 13, 14, 15, 16, 2], [17, 2], [18, 19, 20, 3, 4, 2]]
TARGET = [[START, 5, 6], [START, 7, 8, 9, 10, 11, 12, 13], [START], [START, 14, 15, 16, 17]]

SETTINGS: dict[str, dict[str, Any]] = {
    "the paper's": {},
    "concatenated": {"positions": {"kind": "sinusoidal", "order": "concatenated"}},
    "other waves": {"positions": {"kind": "sinusoidal", "spacing": "tensor2tensor", "start": 1}},
    "learned": {"positions": {"kind": "learned"}},
    "no positions": {"positions": {"kind": "none"}},
    "target tied": {"tie": "target", "target_vocab_size": 37},
    "nothing tied": {"tie": "none", "target_vocab_size": 37},
    "output bias": {"output_bias": True, "scale_embeddings": False},
    "no bias": {"bias": False},
    "silu": {"activation": "silu"},
    "gelu": {"activation": "gelu"},
    "gelu_tanh": {"activation": "gelu_tanh"},
    "identity": {"activation": "identity"},
    "head size": {"head_size": 6},
    "uneven": {"num_encoder_layers": 1, "num_decoder_layers": 4},
}


def transformer(changes: dict[str, Any]) -> Transformer:
    sizes = {"hidden_size": 24, "num_heads": 4, "ffn_size": 40, "num_encoder_layers": 2, "num_decoder_layers": 3}
    base = sizes | {"source_vocab_size": V, "target_vocab_size": V, "max_length": 50}
    model = build_model(TransformerSettings.parse(base | changes), seed=2)
    assert isinstance(model, Transformer)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():  # nothing stays as zero as biases start
            parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.1)
    return model.eval()


def theirs(model: MarianMTModel) -> Tensor:
    batches = Batch.of(SOURCE), Batch.of(TARGET)
    ids, start = (batch.layout.pad(batch.ids, PAD) for batch in batches)
    mask, there = (batch.layout.key_mask(batch.ids.device) for batch in batches)
    with torch.inference_mode():
        return model(input_ids=ids, attention_mask=mask.long(), decoder_input_ids=start).logits[there]


@pytest.mark.parametrize("kind", SETTINGS)
def test_they_load_the_same_model(kind: str, tmp_path: Path) -> None:
    model = transformer(SETTINGS[kind])
    export_marian(model, tmp_path / "marian", IDS)
    found, info = MarianMTModel.from_pretrained(tmp_path / "marian", output_loading_info=True)
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    assert not info["mismatched_keys"]
    expected = model(Batch.of(SOURCE), Batch.of(TARGET)).detach()
    assert expected.std() > 0.3
    torch.testing.assert_close(theirs(found.eval()), expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("kind", SETTINGS)
def test_we_load_it_too(kind: str, tmp_path: Path) -> None:
    model = transformer(SETTINGS[kind])
    export_marian(model, tmp_path / "marian", IDS)
    again, report = load_model(tmp_path / "marian")
    assert report.unused == report.new == ()
    pair = Batch.of(SOURCE), Batch.of(TARGET)
    torch.testing.assert_close(again(*pair), model(*pair), rtol=0, atol=1e-6)


def test_marians_own_waves_survive_their_saving(tmp_path: Path) -> None:
    """Their `save_pretrained` leaves the table out; only with concatenated waves is that no loss."""
    model = transformer(SETTINGS["concatenated"])
    export_marian(model, tmp_path / "marian", IDS)
    MarianMTModel.from_pretrained(tmp_path / "marian").save_pretrained(tmp_path / "again")
    expected = model(Batch.of(SOURCE), Batch.of(TARGET)).detach()
    found = MarianMTModel.from_pretrained(tmp_path / "again").eval()
    torch.testing.assert_close(theirs(found), expected, rtol=0, atol=1e-5)


def test_greedy_outputs_are_ours(tmp_path: Path) -> None:
    model = transformer(SETTINGS["nothing tied"] | {"output_bias": True})
    model.output_bias.data[END] += 2.0  # so that some end early and some never
    export_marian(model, tmp_path / "marian", IDS)
    found = MarianMTModel.from_pretrained(tmp_path / "marian").eval()
    sources = SOURCE + [[3 + (7 * i + j) % 26 for j in range(1 + i)] for i in range(12)]
    ids = TargetIds(START, END, never=(PAD, START))
    ours = decode(model, sources, ids, DecodeSettings(beam=1, max_length=49, max_ratio=None))
    outputs = set()
    for source, (one,) in zip(sources, ours, strict=True):
        said = found.generate(torch.tensor([source]), attention_mask=torch.ones(1, len(source)).long())[0, 1:].tolist()
        assert one.ids == said[: said.index(END) if END in said else None]
        outputs.add(tuple(one.ids))
    assert len(outputs) > 5
    assert len({len(ids) for ids in outputs}) > 3


def test_generation_knows_the_ids(tmp_path: Path) -> None:
    export_marian(transformer({}), tmp_path / "marian", IDS)
    config = GenerationConfig.from_pretrained(tmp_path / "marian")
    assert (config.decoder_start_token_id, config.eos_token_id, config.pad_token_id) == (START, END, PAD)
    assert (config.max_length, config.bad_words_ids, config.forced_eos_token_id) == (50, [[PAD], [START]], None)
    export_marian(transformer({}), tmp_path / "alike", TranslationIds(PAD, END, PAD))
    assert GenerationConfig.from_pretrained(tmp_path / "alike").bad_words_ids == [[PAD]]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"norm_place": "pre", "final_norm": True}, "norm_place pre cannot be written for MarianMTModel.* has post"),
        ({"final_norm": True}, "final_norm true"),
        ({"embedding_norm": True}, "embedding_norm true"),
        ({"norm": "rms"}, "norm rms"),
        ({"norm_eps": 1e-6}, "norm_eps 1e-06 .* which has 1e-05"),
        ({"gated": True}, "gated true"),
        ({"ffn": False}, "ffn false"),
        ({"residual": False}, "residual false"),
        ({"projections": "shared_qk"}, "projections shared_qk"),
        ({"score": "dot"}, "score dot"),
        ({"positions": {"kind": "rotary"}}, "positions rotary .* has sinusoidal or learned or none"),
        ({"head_size": 5}, "head_size 5"),
    ],
)
def test_what_marian_has_not_is_named(changes: dict[str, Any], words: str, tmp_path: Path) -> None:
    with pytest.raises(TaskError, match=words):
        export_marian(transformer(changes), tmp_path / "marian", IDS)
    assert list(tmp_path.iterdir()) == []


def test_every_setting_was_thought_of() -> None:
    """A new setting must be written, refused, or be none of Marian's business."""
    sizes = {"source_vocab_size", "target_vocab_size", "num_encoder_layers", "num_decoder_layers", "hidden_size"}
    written = {"num_heads", "ffn_size", "max_length", "scale_embeddings", "tie", "output_bias", "bias", "dropout"}
    checked = {*_ALLOWED, "head_size"}
    assert set(TransformerSettings.model_fields) == sizes | written | checked | {
        "model",
        "init",
        "init_std",
        "init_branches",
    }


@pytest.mark.parametrize("name", ["start", "end", "pad", "unknown"])
def test_ids_must_exist(name: str, tmp_path: Path) -> None:
    ids = {"start": START, "end": END, "pad": PAD, "unknown": 3} | {name: V}
    with pytest.raises(SettingsError, match=f"{name} id 31 is not in a vocabulary of 31"):
        export_marian(transformer({}), tmp_path / "marian", TranslationIds(**ids))


def test_nothing_is_overwritten_unasked(tmp_path: Path) -> None:
    export_marian(transformer({}), tmp_path / "marian", IDS)
    before = (tmp_path / "marian" / "config.json").read_text()
    with pytest.raises(UserError, match="exists already"):
        export_marian(transformer({}), tmp_path / "marian", IDS)
    export_marian(transformer({"activation": "silu"}), tmp_path / "marian", IDS, overwrite=True)
    assert json.loads(before)["activation_function"] == "relu"
    assert json.loads((tmp_path / "marian" / "config.json").read_text())["activation_function"] == "swish"
