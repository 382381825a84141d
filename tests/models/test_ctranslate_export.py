"""What we write for CTranslate2, it loads as the same model and translates as we do."""

from __future__ import annotations

import importlib
import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch

from unmask.decode.search import decode
from unmask.decode.settings import DecodeSettings
from unmask.decode.stepping import TargetIds
from unmask.errors import SettingsError, TaskError, UserError
from unmask.models.ctranslate_export import _ALLOWED, export_ctranslate2
from unmask.models.init import build_model
from unmask.models.marian_export import TranslationIds
from unmask.models.settings import TransformerSettings
from unmask.models.transformer import Transformer
from unmask.nn.batch import Batch

ctranslate2 = pytest.importorskip("ctranslate2", reason="CTranslate2 is not installed: pip install 'unmask[export]'")

V, W, PAD, START, END = 31, 37, 0, 1, 2
IDS = TranslationIds(START, END, PAD, unknown=3)
SPECIAL = ["<pad>", "<s>", "</s>", "<unk>"]

SETTINGS: dict[str, dict[str, Any]] = {
    "the paper's": {},
    "concatenated": {"positions": {"kind": "sinusoidal", "order": "concatenated"}},
    "other waves": {"positions": {"kind": "sinusoidal", "spacing": "tensor2tensor", "start": 1}},
    "learned": {"positions": {"kind": "learned"}},
    "no positions": {"positions": {"kind": "none"}},
    "all tied": {"tie": "all", "target_vocab_size": V},
    "target tied": {"tie": "target"},
    "unscaled": {"scale_embeddings": False, "output_bias": False},
    "pre-norm": {"norm_place": "pre", "final_norm": True, "norm_eps": 1e-2},
    "pre-norm, open": {"norm_place": "pre"},
    "rms": {"norm": "rms", "norm_place": "pre", "final_norm": True},
    "norm of embeddings": {"embedding_norm": True},
    "no bias": {"bias": False},
    "silu": {"activation": "silu"},
    "gelu": {"activation": "gelu"},
    "gelu_tanh": {"activation": "gelu_tanh"},
    "uneven": {"num_encoder_layers": 1, "num_decoder_layers": 4},
}


def transformer(changes: dict[str, Any]) -> Transformer:
    sizes = {"hidden_size": 24, "num_heads": 4, "ffn_size": 40, "num_encoder_layers": 2, "num_decoder_layers": 3}
    vocabularies = {"source_vocab_size": V, "target_vocab_size": W, "tie": "none", "output_bias": True}
    model = build_model(TransformerSettings.parse(sizes | vocabularies | {"max_length": 50} | changes), seed=2)
    assert isinstance(model, Transformer)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():  # nothing stays as zero as biases start
            parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.1)
    return model.eval()


def vocabularies(settings: TransformerSettings) -> tuple[list[str], list[str]]:
    if settings.tie == "all":
        tokens = SPECIAL + [f"▁{number}" for number in range(4, V)]
        return tokens, tokens
    source = SPECIAL + [f"源{number}" for number in range(4, settings.source_vocab_size)]
    return source, SPECIAL + [f"t{number}" for number in range(4, settings.target_vocab_size)]


def sources_of(count: int) -> list[list[int]]:
    draw = random.Random(0)
    return [[draw.randrange(4, V) for _ in range(draw.randint(1, 20))] for _ in range(count)]


def translator(model: Transformer, folder: Path) -> Any:
    export_ctranslate2(model, folder, *vocabularies(model.settings), IDS)
    return ctranslate2.Translator(str(folder), compute_type="float32", inter_threads=1, intra_threads=1)


@pytest.mark.parametrize("kind", SETTINGS)
def test_probabilities_are_ours(kind: str, tmp_path: Path) -> None:
    model = transformer(SETTINGS[kind])
    source, target = vocabularies(model.settings)
    sources, draw = sources_of(12), random.Random(1)
    targets = [[draw.randrange(4, len(target)) for _ in range(draw.randint(1, 15))] for _ in sources]
    texts = [[source[token] for token in ids] for ids in sources], [[target[token] for token in ids] for ids in targets]
    found = translator(model, tmp_path / "model").score_batch(*texts)
    batches = Batch.of([[*ids, END] for ids in sources]), Batch.of([[START, *ids] for ids in targets])
    with torch.inference_mode():
        rows = batches[1].layout.split(model(*batches).log_softmax(-1))
    for ids, one, log_probs in zip(targets, found, rows, strict=True):
        said = [*ids, END]
        assert len(one.log_probs) == len(said)
        assert one.log_probs == pytest.approx(log_probs[range(len(said)), said].tolist(), abs=1e-4)


@pytest.mark.parametrize("kind", SETTINGS)
@pytest.mark.parametrize("beam", [1, 4])
def test_translations_are_ours(kind: str, beam: int, tmp_path: Path) -> None:
    """Without a penalty for length, where it does not matter that each has its own rule of when to stop."""
    model = transformer(SETTINGS[kind])
    outputs = translated_alike(model, beam, tmp_path / "long")
    assert len(outputs) > 3
    if model.output_bias is not None:
        model.output_bias.data[END] += 2.5  # now some end early, or all
        outputs |= translated_alike(model, beam, tmp_path / "short")
        assert len({len(output) for output in outputs}) > 1


def translated_alike(model: Transformer, beam: int, folder: Path) -> set[tuple[int, ...]]:
    """The different outputs for some sources, once all are seen to be CTranslate2's too."""
    sources = sources_of(25)
    source, target = vocabularies(model.settings)
    found = translator(model, folder).translate_batch(
        [[source[token] for token in ids] for ids in sources],
        beam_size=beam,
        length_penalty=0,
        min_decoding_length=0,
        max_decoding_length=30,
        return_scores=True,
    )
    settings = DecodeSettings(beam=beam, length_penalty=0.0, max_length=30, max_ratio=None)
    ours = decode(model, [[*ids, END] for ids in sources], TargetIds(START, END), settings)
    for (one, *_), theirs in zip(ours, found, strict=True):
        assert [target[token] for token in one.ids] == theirs.hypotheses[0]
        assert one.log_probability == pytest.approx(theirs.scores[0], abs=1e-4)
    return {tuple(one.ids) for one, *_ in ours}


def test_sources_may_come_with_their_end(tmp_path: Path) -> None:
    model = transformer({})
    source, target = vocabularies(model.settings)
    export_ctranslate2(model, tmp_path / "model", source, target, IDS, add_source_end=False)
    found = ctranslate2.Translator(str(tmp_path / "model")).score_batch([["源5", "</s>"], ["源5"]], [["t9"], ["t9"]])
    with torch.inference_mode():
        logits = [model(Batch.of([ids]), Batch.of([[START, 9]])).log_softmax(-1) for ids in ([5, END], [5])]
    for one, log_probs in zip(found, logits, strict=True):
        assert one.log_probs == pytest.approx(log_probs[[0, 1], [9, END]].tolist(), abs=1e-4)


def test_special_tokens_are_named(tmp_path: Path) -> None:
    model = transformer({"tie": "all", "target_vocab_size": V})
    source, target = vocabularies(model.settings)
    export_ctranslate2(model, tmp_path / "model", source, target, TranslationIds(START, END, PAD))
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    tokens = {"unk_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>", "decoder_start_token": "<s>"}
    assert config.items() >= (tokens | {"add_source_eos": True, "add_source_bos": False}).items()
    assert json.loads((tmp_path / "model" / "shared_vocabulary.json").read_text()) == source
    with pytest.raises(UserError, match="exists already"):
        export_ctranslate2(model, tmp_path / "model", source, target, IDS)
    export_ctranslate2(model, tmp_path / "model", source, target, IDS, overwrite=True)
    assert json.loads((tmp_path / "model" / "config.json").read_text())["unk_token"] == "<unk>"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"final_norm": True}, "final_norm true cannot be written for CTranslate2, which has false"),
        ({"norm": "batch"}, "norm batch .* has layer or rms"),
        ({"gated": True}, "gated true"),
        ({"ffn": False}, "ffn false"),
        ({"residual": False}, "residual false"),
        ({"projections": "shared_qk"}, "projections shared_qk"),
        ({"score": "dot"}, "score dot"),
        ({"activation": "identity"}, "activation identity"),
        ({"positions": {"kind": "rotary"}}, "positions rotary"),
        ({"head_size": 5}, "head_size 5"),
    ],
)
def test_what_ctranslate2_has_not_is_named(changes: dict[str, Any], words: str, tmp_path: Path) -> None:
    model = transformer(changes)
    with pytest.raises(TaskError, match=words):
        export_ctranslate2(model, tmp_path / "model", *vocabularies(model.settings), IDS)
    assert list(tmp_path.iterdir()) == []


def test_every_setting_was_thought_of() -> None:
    """A new setting must be written, refused, or be none of CTranslate2's business."""
    sizes = {"source_vocab_size", "target_vocab_size", "num_encoder_layers", "num_decoder_layers", "hidden_size"}
    written = {"num_heads", "ffn_size", "max_length", "scale_embeddings", "tie", "output_bias", "bias", "norm_eps"}
    checked = {*_ALLOWED, "head_size", "norm_place", "final_norm", "embedding_norm"}
    training = {"dropout", "init", "init_std", "init_branches"}
    assert set(TransformerSettings.model_fields) == sizes | written | checked | training | {"model"}


def test_tokens_must_fit_the_model(tmp_path: Path) -> None:
    model = transformer({})
    source, target = vocabularies(model.settings)

    def export(source: list[str], target: list[str]) -> None:
        export_ctranslate2(model, tmp_path / "model", source, target, IDS)

    with pytest.raises(SettingsError, match="30 source tokens are given but the model has 31"):
        export(source[1:], target)
    with pytest.raises(SettingsError, match="the target token 't9' is given twice"):
        export(source, [*target[:-1], "t9"])
    with pytest.raises(SettingsError, match="the end token '<eos>' of the target is not among the source tokens"):
        export(source, ["<pad>", "<s>", "<eos>", *target[3:]])
    with pytest.raises(SettingsError, match="start id 37 is not in a vocabulary of 37"):
        export_ctranslate2(model, tmp_path / "model", source, target, TranslationIds(W, END, PAD))
    assert list(tmp_path.iterdir()) == []


def test_without_ctranslate2_the_way_to_it_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise ImportError(name)

    monkeypatch.setattr(importlib, "import_module", missing)
    model = transformer({})
    with pytest.raises(UserError, match=r"not installed; install it with: pip install 'unmask\[export\]'"):
        export_ctranslate2(model, tmp_path / "model", *vocabularies(model.settings), IDS)
