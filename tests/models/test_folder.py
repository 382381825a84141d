from __future__ import annotations

import copy
import json
import os
import shutil
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from unmask.errors import ModelError, UserError
from unmask.models.assign import named_tensors
from unmask.models.folder import FORMAT, load_model, read_settings, save_model
from unmask.models.init import Model, build_model
from unmask.models.settings import (
    BertSettings,
    ClassifySettings,
    GptSettings,
    LstmSettings,
    MaskedTokenSettings,
    ModelSettings,
    NextSentenceSettings,
    SentenceOrderSettings,
    TagSettings,
    TransformerSettings,
)
from unmask.models.weights_write import write_weights
from unmask.nn.batch import Batch
from unmask.nn.settings import (
    AlibiSettings,
    BucketSettings,
    ComplexSettings,
    DropoutSettings,
    NoPositionsSettings,
    RotarySettings,
    ShawSettings,
    SinusoidalSettings,
    TransformerXLSettings,
)

BASE = BertSettings(vocab_size=31, num_layers=3, hidden_size=20, num_heads=5, ffn_size=23, max_length=17)
BATCH = Batch.of([[2, 3, 5, 7], [11, 13], [17, 19, 23]])

VARIANTS: dict[str, ModelSettings] = {
    "plain": BASE,
    "pretraining": BASE.replace(heads=(MaskedTokenSettings(), NextSentenceSettings())),
    "untied": BASE.replace(heads=(MaskedTokenSettings(tied=False),)),
    "sop": BASE.replace(heads=(MaskedTokenSettings(), SentenceOrderSettings())),
    "classes": BASE.replace(heads=(ClassifySettings(labels=("x", "y", "z"), dropout=0.3),)),
    "mean": BASE.replace(heads=(ClassifySettings(labels=("x", "y"), pooling="mean"),)),
    "crf": BASE.replace(heads=(TagSettings(labels=("O", "B", "I"), crf=True),)),
    "two classifiers": BASE.replace(heads=(ClassifySettings(labels=("x", "y")), TagSettings(labels=("O", "B", "I")))),
    "no pooler": BASE.replace(pooler=False),
    "none": BASE.replace(positions=NoPositionsSettings()),
    "sinusoidal": BASE.replace(positions=SinusoidalSettings(start=1)),
    "complex": BASE.replace(positions=ComplexSettings()),
    "rotary": BASE.replace(positions=RotarySettings(base=500.0)),
    "alibi": BASE.replace(positions=AlibiSettings()),
    "buckets": BASE.replace(positions=BucketSettings(num_buckets=8, max_distance=11)),
    "shaw": BASE.replace(positions=ShawSettings(max_distance=3)),
    "transformer-xl": BASE.replace(positions=TransformerXLSettings(share_layers=True)),
    "batch norm": BASE.replace(norm="batch"),
    "pre, rms, gated": BASE.replace(norm="rms", norm_place="pre", final_norm=True, gated=True, bias=False),
    "additive": BASE.replace(score="additive", projections="shared_qk"),
    "pruned": BASE.replace(heads_by_layer=(5, 1, 3), head_size=4, ffn_by_layer=(23, 7, 11)),
    "four dropouts": BASE.replace(dropout=DropoutSettings(embedding=0.2, activation=0.1)),
    "output bias": TransformerSettings(
        source_vocab_size=31,
        target_vocab_size=29,
        hidden_size=20,
        num_heads=5,
        ffn_size=23,
        tie="none",
        output_bias=True,
    ),
    "gpt": GptSettings(vocab_size=31, num_layers=3, hidden_size=20, num_heads=5, ffn_size=23, tie_output=False),
    "transformer": TransformerSettings(
        source_vocab_size=31, target_vocab_size=31, hidden_size=20, num_heads=5, ffn_size=23, num_decoder_layers=2
    ),
    "lstm": LstmSettings(source_vocab_size=31, target_vocab_size=31, hidden_size=20, attention=False),
}


def output(model: Model) -> torch.Tensor:
    with torch.inference_mode():
        if isinstance(model.settings, TransformerSettings | LstmSettings):
            return model(BATCH, BATCH)
        out = model(BATCH)
        return out if isinstance(out, torch.Tensor) else out.sequence


@pytest.mark.parametrize("name", VARIANTS)
def test_every_variant_comes_back_as_it_was(name: str, tmp_path: Path) -> None:
    model = build_model(VARIANTS[name], seed=7).eval()
    save_model(model, tmp_path / "model")
    again, report = load_model(tmp_path / "model")
    assert again.settings == model.settings
    assert read_settings(tmp_path / "model") == model.settings
    assert report.new == report.unused == ()
    assert report.loaded == report.total == len(named_tensors(model))
    for tensor, (other, found) in zip(named_tensors(model).values(), named_tensors(again).items(), strict=True):
        assert torch.equal(tensor, found), other
    # In memory of its own: in the file's map numbers lie at odd places, and some processors then sum in another order.
    assert torch.equal(output(model), output(copy.deepcopy(again)))
    assert not again.training


@pytest.mark.parametrize("name", ["plain", "classes", "gpt"])
def test_shards_load_like_one_file(name: str, tmp_path: Path) -> None:
    model = build_model(VARIANTS[name], seed=7).eval()
    save_model(model, tmp_path / "model")
    whole = load_file(tmp_path / "model" / "model.safetensors")
    write_weights(tmp_path / "model", whole, max_shard_bytes=4000)
    assert not (tmp_path / "model" / "model.safetensors").exists()
    assert len(list((tmp_path / "model").glob("model-*.safetensors"))) > 3
    again, _ = load_model(tmp_path / "model")
    assert torch.equal(output(model), output(again))


def rename(folder: Path, change: Callable[[str], str]) -> None:
    tensors = load_file(folder / "model.safetensors")
    save_file({change(name): tensor for name, tensor in tensors.items()}, folder / "model.safetensors")


def saved(folder: Path, name: str = "pretraining") -> Path:
    save_model(build_model(VARIANTS[name], seed=7), folder)
    return folder


def test_old_names_and_missing_prefix_are_read(tmp_path: Path) -> None:
    folder = saved(tmp_path / "model")
    expected = output(load_model(folder)[0])

    def old(name: str) -> str:
        name = name.removeprefix("bert.")
        if "LayerNorm" in name:
            name = name.replace(".weight", ".gamma").replace(".bias", ".beta")
        return name

    rename(folder, old)
    assert any("gamma" in name for name in load_file(folder / "model.safetensors"))
    model, report = load_model(folder)
    assert torch.equal(output(model), expected)
    assert report.unused == ()


def test_repeated_tensors_are_passed_over(tmp_path: Path) -> None:
    folder = saved(tmp_path / "model")
    tensors = load_file(folder / "model.safetensors")
    tensors["bert.embeddings.position_ids"] = torch.arange(17)[None]
    tensors["cls.predictions.decoder.weight"] = tensors["bert.embeddings.word_embeddings.weight"].clone()
    tensors["cls.predictions.decoder.bias"] = tensors["cls.predictions.bias"].clone()
    save_file(tensors, folder / "model.safetensors")
    model, report = load_model(folder)
    assert report.loaded == report.total == len(named_tensors(model))


def test_report_says_what_is_new_and_what_is_left_out(tmp_path: Path) -> None:
    folder = saved(tmp_path / "model")
    model, report = load_model(folder, heads=[ClassifySettings(labels=("a", "b", "c"))], seed=3)
    assert report.loaded == 5 + 3 * 16 + 2
    assert str(report).endswith("2 new for the head you asked for (expected)")
    assert "left out 7" in str(report)
    same, _ = load_model(folder, heads=[ClassifySettings(labels=("a", "b", "c"))], seed=3)
    other, _ = load_model(folder, heads=[ClassifySettings(labels=("a", "b", "c"))], seed=4)
    weight = model.heads["classify"].dense.weight
    assert torch.equal(weight, same.heads["classify"].dense.weight)
    assert not torch.equal(weight, other.heads["classify"].dense.weight)
    _, report = load_model(folder, heads=[MaskedTokenSettings()])
    assert report.new == ()
    assert "cls.seq_relationship.weight" in report.unused


def test_a_head_of_another_size_starts_fresh_and_whole(tmp_path: Path) -> None:
    folder = saved(tmp_path / "model", "classes")
    _, report = load_model(folder, heads=[ClassifySettings(labels=("a", "b"))])
    assert report.new == ("heads.classify.dense.bias", "heads.classify.dense.weight")


def test_a_new_head_brings_the_pooler_it_reads(tmp_path: Path) -> None:
    folder = saved(tmp_path / "model", "no pooler")
    model, report = load_model(folder, heads=[NextSentenceSettings()])
    assert len(report.new) == 4
    assert torch.isfinite(model.next_sentence_logits(model(BATCH))).all()


def test_an_unlike_output_matrix_counts_whatever_the_config_says(tmp_path: Path) -> None:
    folder = saved(tmp_path / "model")
    tensors = load_file(folder / "model.safetensors")
    tensors["cls.predictions.decoder.weight"] = tensors["bert.embeddings.word_embeddings.weight"] + 1
    tensors["cls.predictions.decoder.bias"] = tensors["cls.predictions.bias"] + 2
    save_file(tensors, folder / "model.safetensors")
    model, report = load_model(folder)
    assert report.unused == ()
    assert not model.settings.heads[0].tied
    assert torch.equal(model.heads["mlm"].output.weight, tensors["cls.predictions.decoder.weight"])
    assert torch.equal(model.heads["mlm"].bias, tensors["cls.predictions.decoder.bias"])


def test_heads_that_cannot_be_read_do_not_hide_the_encoder(tmp_path: Path) -> None:
    folder = saved(tmp_path / "model", "classes")
    edit_config(folder, architectures=["BertForMultipleChoice"])
    with pytest.raises(ModelError, match="BertForMultipleChoice is not supported; say heads="):
        load_model(folder)
    _, report = load_model(folder, heads=[])
    assert report.unused == ("classifier.bias", "classifier.weight")
    edit_config(folder, architectures=None, id2label={"0": "x", "1": "y", "3": "z"})
    with pytest.raises(ModelError, match="without gaps"):
        load_model(folder)
    _, report = load_model(folder, heads=[TagSettings(labels=("O", "B", "I"))])
    assert report.new == ()  # a classifier of the right size is used for what it is asked for


def test_a_classifier_without_a_pooler_is_one_of_tokens(tmp_path: Path) -> None:
    model = build_model(BASE.replace(pooler=False, heads=(TagSettings(labels=("O", "B")),)))
    save_model(model, tmp_path / "model")
    edit_config(tmp_path / "model", architectures=None)
    again, _ = load_model(tmp_path / "model")
    assert again.settings.heads[0].kind == "tag"


@pytest.mark.parametrize(
    "head",
    [ClassifySettings(labels=("x", "y"), pooling=kind) for kind in ("cls", "mean", "max")]
    + [ClassifySettings(labels=("x", "y"), window_attention=True), TagSettings(labels=("O", "B", "I"), crf=True)],
)
def test_a_head_that_transformers_lacks_is_not_taken_for_one_it_has(
    head: ClassifySettings | TagSettings, tmp_path: Path
) -> None:
    from transformers import BertForSequenceClassification, BertModel

    model = build_model(BASE.replace(heads=(head,)), seed=7).eval()
    folder = tmp_path / "model"
    save_model(model, folder)
    *_, told = BertForSequenceClassification.from_pretrained(folder, output_loading_info=True)
    assert {"classifier.weight", "classifier.bias"} <= set(told["missing_keys"])
    theirs = BertModel.from_pretrained(folder, add_pooling_layer=False).eval()
    with torch.inference_mode():
        expected = theirs(torch.tensor([[2, 3, 5, 7]])).last_hidden_state[0]
    torch.testing.assert_close(output(model)[:4], expected, rtol=0, atol=1e-5)
    # Folders from before had their name.
    rename(folder, lambda name: name.replace(f"heads.{head.kind}.dense.", "classifier."))
    again, report = load_model(folder)
    assert report.new == report.unused == ()
    for tensor, found in zip(named_tensors(model).values(), named_tensors(again).values(), strict=True):
        assert torch.equal(tensor, found)


def test_half_precision_files_become_full_precision(tmp_path: Path) -> None:
    folder = saved(tmp_path / "model")
    tensors = load_file(folder / "model.safetensors")
    save_file({name: tensor.half() for name, tensor in tensors.items()}, folder / "model.safetensors")
    model, _ = load_model(folder)
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}


def test_training_never_changes_the_file(tmp_path: Path) -> None:
    folder = saved(tmp_path / "model")
    before = (folder / "model.safetensors").read_bytes()
    model, _ = load_model(folder)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1.0)
    assert (folder / "model.safetensors").read_bytes() == before


def test_googles_checkpoint_gives_what_transformers_computes_from_its_arrays(tmp_path: Path) -> None:
    import transformers

    source = Path(__file__).parents[1] / "data_files" / "tf_bert"
    model, report = load_model(source)
    assert {head.kind for head in model.settings.heads} == {"mlm", "nsp"}
    assert report.new == report.unused == ()
    arrays = np.load(source / "expected.npz")
    config = json.loads((source / "bert_config.json").read_text())
    theirs = transformers.BertForPreTraining(transformers.BertConfig(**config)).eval()
    with torch.no_grad():
        for name, parameter in theirs.named_parameters():
            parameter.copy_(torch.from_numpy(array_for(arrays, name)))
        ids = torch.tensor([[2, 7, 11, 30, 3], [2, 5, 3, 9, 4]])
        out = theirs(input_ids=ids)
        encoded = model(Batch.of(ids.tolist()))
        mine = model.masked_token_logits(encoded.sequence).view(2, 5, -1)
        torch.testing.assert_close(mine, out.prediction_logits, atol=1e-5, rtol=0)
        torch.testing.assert_close(model.next_sentence_logits(encoded), out.seq_relationship_logits, atol=1e-5, rtol=0)


def array_for(arrays: np.lib.npyio.NpzFile, name: str) -> np.ndarray:
    """Google's array for a parameter of `transformers`, worked out from what each side's code says."""
    special = {
        "bert.embeddings.word_embeddings.weight": "bert/embeddings/word_embeddings",
        "bert.embeddings.position_embeddings.weight": "bert/embeddings/position_embeddings",
        "bert.embeddings.token_type_embeddings.weight": "bert/embeddings/token_type_embeddings",
        "cls.predictions.bias": "cls/predictions/output_bias",
        "cls.seq_relationship.weight": "cls/seq_relationship/output_weights",
        "cls.seq_relationship.bias": "cls/seq_relationship/output_bias",
    }
    if name in special:
        return arrays[special[name]]
    path = name.replace("encoder.layer.", "encoder.layer_").replace(".", "/")
    if "LayerNorm" in path:
        return arrays[path.replace("/weight", "/gamma").replace("/bias", "/beta")]
    if path.endswith("/weight"):
        return arrays[path.replace("/weight", "/kernel")].T.copy()
    return arrays[path]


def edit_config(folder: Path, **changes: object) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | changes))


def drop_tensor(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    del tensors["bert.encoder.layer.1.output.dense.weight"]
    save_file(tensors, folder / "model.safetensors")


def reshape_tensor(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    tensors["bert.encoder.layer.1.output.dense.weight"] = torch.zeros(3, 5)
    save_file(tensors, folder / "model.safetensors")


def spoil_tensor(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    tensors["bert.encoder.layer.1.output.dense.weight"][0, 0] = float("nan")
    save_file(tensors, folder / "model.safetensors")


def own_block(folder: Path, **block: object) -> None:
    edit_config(folder, unmask=block)


def huge_numbers(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    wide = {name: tensor.double() for name, tensor in tensors.items()}
    wide["bert.encoder.layer.1.output.dense.weight"][0, 0] = 1e300
    save_file(wide, folder / "model.safetensors")


def whole_numbers(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    tensors["bert.encoder.layer.1.output.dense.weight"] = torch.ones(20, 23, dtype=torch.int64)
    save_file(tensors, folder / "model.safetensors")


def two_names_for_one(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    tensors["embeddings.word_embeddings.weight"] = tensors["bert.embeddings.word_embeddings.weight"] * 0
    save_file(tensors, folder / "model.safetensors")


def a_pipe(folder: Path) -> None:
    (folder / "config.json").unlink()
    os.mkfifo(folder / "config.json")


HOSTILE: dict[str, tuple[Callable[[Path], object], str]] = {
    "a thousand million layers": (lambda f: edit_config(f, num_hidden_layers=10**9), "num_hidden_layers"),
    "more layers than there are": (lambda f: edit_config(f, num_hidden_layers=400), "weights hold 3 layers"),
    "a vast vocabulary": (lambda f: edit_config(f, vocab_size=9_999_999), "9999999, 20"),
    "a vast hidden size": (lambda f: edit_config(f, hidden_size=1_000_000, num_attention_heads=1), "1000000"),
    "heads that do not divide": (lambda f: edit_config(f, num_attention_heads=7), "not a multiple"),
    "a negative size": (lambda f: edit_config(f, hidden_size=-4), "hidden_size"),
    "words for numbers": (lambda f: edit_config(f, hidden_size="many"), "hidden_size"),
    "an unknown activation": (lambda f: edit_config(f, hidden_act="swishish"), "swishish"),
    "relative positions": (lambda f: edit_config(f, position_embedding_type="relative_key"), "relative_key"),
    "a decoder": (lambda f: edit_config(f, is_decoder=True), "is_decoder"),
    "another model": (lambda f: edit_config(f, model_type="roberta"), "roberta"),
    "not JSON": (lambda f: (f / "config.json").write_text("{oops"), "not valid JSON"),
    "not an object": (lambda f: (f / "config.json").write_text("[1, 2]"), "object"),
    "deeply nested": (lambda f: (f / "config.json").write_text("[" * 100_000), "not valid JSON"),
    "not text": (lambda f: (f / "config.json").write_bytes(b"\xff\xfe\x00"), "not valid JSON"),
    "a config of 11 MB": (lambda f: (f / "config.json").write_text(" " * 11_000_000), "10,000,000 bytes"),
    "no config": (lambda f: (f / "config.json").unlink(), "config.json"),
    "no weights": (lambda f: (f / "model.safetensors").unlink(), "model.safetensors"),
    "a missing encoder tensor": (drop_tensor, "1 of 62 tensors are missing"),
    "a wrong shape": (reshape_tensor, "shape (3, 5)"),
    "NaN": (spoil_tensor, "NaN"),
    "a header that lies": (lambda f: (f / "model.safetensors").write_bytes(b"\xff" * 7 + b"\x00{}"), "header"),
    "a newer format": (lambda f: own_block(f, format=FORMAT + 1), "newer unmask"),
    "a damaged block": (lambda f: edit_config(f, unmask=[1]), "damaged"),
    "numbers beyond the type": (huge_numbers, "beyond what"),
    "whole numbers for weights": (whole_numbers, "torch.int64"),
    "two names for one tensor": (two_names_for_one, "two names for one"),
    "a pipe": (a_pipe, "config.json"),
    "a number of 5,000 digits": (
        lambda f: (f / "config.json").write_text('{"a": ' + "9" * 5000 + "}"),
        "not valid JSON",
    ),
    "a sentence of 5 MB": (lambda f: edit_config(f, hidden_act="x" * 5_000_000), "is not supported"),
    "odd label numbers": (
        lambda f: edit_config(f, num_hidden_layers=3, vocab_size=0, id2label={"²": "x"}),
        "vocab_size",
    ),
    "a format that is true": (lambda f: own_block(f, format=True), "damaged"),
    "a pickle": (
        lambda f: (f / "model.safetensors").rename(f / "pytorch_model.bin"),
        "pickle",
    ),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_folders_get_one_sentence_quickly_and_in_little_memory(name: str, tmp_path: Path) -> None:
    folder = saved(tmp_path / "model")
    damage, words = HOSTILE[name]
    damage(folder)
    size = sum(path.stat().st_size for path in folder.iterdir())
    tracemalloc.start()
    started = time.process_time()
    with pytest.raises(UserError) as caught:
        load_model(folder)
    seconds = time.process_time() - started
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 1000
    assert seconds < 1
    assert peak < 2 * size + 20_000_000


def test_hostile_own_settings(tmp_path: Path) -> None:
    folder = saved(tmp_path / "model", "rotary")
    config = json.loads((folder / "config.json").read_text())
    for field, value, words in (
        ("num_layers", 10**9, "num_layers"),
        ("num_layers", 999, "999 layers"),
        ("hiden_size", 3, "did you mean hidden_size"),
        ("positions", {"kind": "magic"}, "positions"),
    ):
        changed = json.loads(json.dumps(config))
        changed["unmask"]["settings"][field] = value
        (folder / "config.json").write_text(json.dumps(changed))
        with pytest.raises(ModelError, match=words):
            load_model(folder)


def test_saving_never_leaves_half_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from unmask.models import folder as folders

    model = build_model(BASE)

    def fail(*_: object) -> None:
        raise RuntimeError("power cut")

    monkeypatch.setattr(folders, "atomic_write", fail)
    with pytest.raises(RuntimeError):
        save_model(model, tmp_path / "model")
    assert list(tmp_path.iterdir()) == []


def test_an_existing_folder_is_replaced_only_when_asked(tmp_path: Path) -> None:
    folder = saved(tmp_path / "model", "plain")
    (folder / "notes.txt").write_text("mine")
    with pytest.raises(UserError, match="exists already"):
        save_model(build_model(BASE), folder)
    assert (folder / "notes.txt").exists()
    save_model(build_model(BASE, seed=9), folder, overwrite=True)
    assert not (folder / "notes.txt").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
    shutil.rmtree(folder)
