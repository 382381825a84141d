"""Folders for other programs: the same numbers there, by references that are not ours, or nothing at all."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from unmask.bundle import Bundle
from unmask.cli.main import run
from unmask.errors import TaskError, UserError
from unmask.export import packages, parity
from unmask.export.dense import DenseBert
from unmask.export.folder import Encoder, Exported, Kind, export_encoder
from unmask.export.parity import compare, demand, random_batches, rectangle, text_batches
from unmask.models.bert import Bert
from unmask.models.init import build_model
from unmask.models.sentence import SentenceSettings
from unmask.models.settings import (
    BertSettings,
    ClassifySettings,
    GptSettings,
    HeadSettings,
    MaskedTokenSettings,
    SpanSettings,
    TagSettings,
)
from unmask.text import Tokenizer

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghijklmnopqrstuvwxyz", "the", "cat", "##s", "北", "京"]
LABELS = ("bad", "good", "neither")
HEADS: dict[str, tuple[HeadSettings, ...]] = {
    "none": (),
    "classify": (ClassifySettings(labels=LABELS),),
    "tag": (TagSettings(labels=LABELS),),
    "qa": (SpanSettings(),),
    "mlm": (MaskedTokenSettings(),),
}


def bert(**changes: Any) -> Bert:
    given = {"vocab_size": len(WORDS), "num_layers": 2, "hidden_size": 24, "num_heads": 3, "ffn_size": 40}
    model = build_model(BertSettings(**given | {"init_std": 0.3, "max_length": 70} | changes))
    assert isinstance(model, Bert)
    return model.eval()


def encoder(sentence: SentenceSettings | None = None, **changes: Any) -> Encoder:
    return Encoder(bert(**changes), Tokenizer.from_vocab(WORDS), sentence)


def exported(kind: Kind, out: Path, given: Encoder | None = None, **options: Any) -> Exported:
    return export_encoder(given or encoder(), out, kind, **options)


def code_of(folder: Path) -> str:
    return str(re.findall(r"```python\n(.*?)```", (folder / "README.md").read_text(), re.S)[0])


def outputs_by_readme(folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the code in README.md finds for its two texts."""
    monkeypatch.chdir(folder)
    names: dict[str, Any] = {}
    exec(code_of(folder), names)
    return {**names["outputs"], "given": names["given"]}


@pytest.mark.parametrize("head", HEADS)
def test_onnx_says_what_transformers_says(head: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("onnxruntime")
    transformers = pytest.importorskip("transformers")
    given = encoder(heads=HEADS[head])
    found = exported("onnx", tmp_path / "out", given)
    assert found.parity is not None
    assert found.parity.largest < 1e-5
    Bundle(given.model, given.tokenizer).save(tmp_path / "plain")
    name = json.loads((tmp_path / "plain" / "config.json").read_text())["architectures"][0]
    theirs = getattr(transformers, name).from_pretrained(tmp_path / "plain").eval()
    ours = outputs_by_readme(tmp_path / "out", monkeypatch)
    with torch.no_grad():
        expected = theirs(**{name: torch.from_numpy(array) for name, array in ours["given"].items()})
    there = ours["given"]["attention_mask"].astype(bool)
    assert not there.all()
    outputs = json.loads((tmp_path / "out" / "export.json").read_text())["outputs"]
    for name in set(outputs) - {"sentence_embedding"}:
        kept = slice(None) if head == "classify" else there
        np.testing.assert_allclose(ours[name][kept], expected[name].numpy()[kept], atol=1e-5)
        assert [*ours[name].shape[2 if head != "classify" else 1 :]] == [
            n for n in outputs[name]["shape"] if isinstance(n, int)
        ]


@pytest.mark.parametrize("pooling", ["cls", "mean", "max"])
def test_the_vector_of_a_text(pooling: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("onnxruntime")
    given = encoder(SentenceSettings(pooling, normalise=True))
    exported("onnx", tmp_path / "out", given)
    found = outputs_by_readme(tmp_path / "out", monkeypatch)["sentence_embedding"]
    bundle = Bundle(given.model, given.tokenizer, sentence=given.sentence)
    expected = bundle.embed(["A text.", "And another one, which is longer."])
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_what_lies_beside_it(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    exported("onnx", tmp_path / "out", encoder(heads=HEADS["classify"]))
    said = json.loads((tmp_path / "out" / "export.json").read_text())
    assert said["labels"] == list(LABELS)
    assert (said["head"], said["apply"], said["max_length"], said["padding_id"]) == ("classify", "softmax", 70, 0)
    assert said["outputs"]["logits"]["shape"] == ["batch", 3]
    assert said["difference"]["largest"] < 1e-5
    assert '"bad", "good", "neither"' in (tmp_path / "out" / "README.md").read_text()
    again = Tokenizer.from_folder(tmp_path / "out")
    assert again.encode("the cats").ids == Tokenizer.from_vocab(WORDS).encode("the cats").ids
    assert {path.name for path in (tmp_path / "out").iterdir()} >= {"model.onnx", "tokenizer.json"}


@pytest.mark.parametrize("changes", [{"positions": {"kind": "sinusoidal"}, "max_length": 150}, {"num_segments": 1}])
def test_variants_to_their_full_length(changes: dict[str, Any], tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    found = exported("onnx", tmp_path / "out", encoder(**changes))
    assert found.parity is not None
    assert found.parity.largest < 1e-5


def test_openvino(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("openvino")
    given = encoder(heads=HEADS["qa"])
    found = exported("openvino", tmp_path / "out", given)
    assert found.parity is not None
    assert found.parity.largest < 1e-4
    assert set(outputs_by_readme(tmp_path / "out", monkeypatch)) == {"start_logits", "end_logits", "given"}
    assert not (tmp_path / "out" / "model.onnx").exists()


@pytest.mark.parametrize("pooler", [True, False])
def test_ctranslate2(pooler: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ctranslate2")
    pytest.importorskip("transformers")
    given = encoder(pooler=pooler)
    found = exported("ctranslate2", tmp_path / "out", given)
    assert found.parity is not None
    assert found.parity.largest < 1e-4
    ours = outputs_by_readme(tmp_path / "out", monkeypatch)
    with torch.no_grad():
        expected = DenseBert(given.model)(*(torch.from_numpy(one) for one in ours["given"].values()))
    there = ours["given"]["attention_mask"].astype(bool)
    np.testing.assert_allclose(ours["last_hidden_state"][there], expected.numpy()[there], atol=1e-4)


def test_ctranslate2_knows_no_heads_and_no_variants(tmp_path: Path) -> None:
    pytest.importorskip("ctranslate2")
    pytest.importorskip("transformers")
    with pytest.raises(TaskError, match="no classify head: export the encoder alone with --head none"):
        exported("ctranslate2", tmp_path / "out", encoder(heads=HEADS["classify"]))
    with pytest.raises(TaskError, match="a variant of it"):
        exported("ctranslate2", tmp_path / "out", encoder(norm_place="pre", final_norm=True))
    assert list(tmp_path.iterdir()) == []
    exported("ctranslate2", tmp_path / "out", encoder(heads=HEADS["classify"]), head="none")


@pytest.mark.parametrize("kind", ["onnx", "ctranslate2"])
def test_int8_is_near_and_smaller(kind: Kind, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime" if kind == "onnx" else "ctranslate2")
    pytest.importorskip("transformers")
    large = encoder(hidden_size=48, ffn_size=192, init_std=0.1)
    full, small = (exported(kind, tmp_path / str(int8), large, int8=int8) for int8 in (False, True))
    assert full.parity is not None
    assert small.parity is not None
    assert full.parity.largest < 1e-4 < small.parity.relative < parity.INT8_TOLERANCE
    name = "model.onnx" if kind == "onnx" else "model.bin"
    sizes = [(tmp_path / str(int8) / name).stat().st_size for int8 in (False, True)]
    assert sizes[1] < 0.5 * sizes[0]
    assert json.loads((tmp_path / "True" / "export.json").read_text())["precision"] == "int8"


@pytest.mark.parametrize("kind", ["onnx", "ctranslate2"])
def test_what_says_something_else_is_not_written(kind: Kind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("onnxruntime" if kind == "onnx" else "ctranslate2")
    pytest.importorskip("transformers")
    monkeypatch.setattr(parity, "TOLERANCE", -1.0)
    with pytest.raises(TaskError, match="something else than the model .*not written"):
        exported(kind, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


class TestParity:
    """The comparison itself can fail."""

    def runner(self, dense: DenseBert, spoil: Any) -> Any:
        @torch.no_grad()
        def run(*given: Any) -> dict[str, Any]:
            said = dense(*(torch.from_numpy(spoil(number, one)) for number, one in enumerate(given)))
            said = said if isinstance(said, tuple) else (said,)
            return {name: one.numpy() for name, one in zip(dense.outputs, said, strict=True)}

        return run

    @pytest.mark.parametrize("head", HEADS)
    def test_the_same_is_the_same(self, head: str) -> None:
        dense = DenseBert(bert(heads=HEADS[head]), sentence=SentenceSettings())
        found = demand(dense, self.runner(dense, lambda _, one: one), random_batches(len(WORDS), 70))
        assert found.largest < 1e-5

    @pytest.mark.parametrize("wrong", [0, 1, 2], ids=["ids", "mask", "segments"])
    @pytest.mark.parametrize("head", HEADS)
    def test_what_ignores_an_input_is_found_out(self, head: str, wrong: int) -> None:
        dense = DenseBert(bert(heads=HEADS[head]), sentence=SentenceSettings())
        batches = text_batches(Tokenizer.from_vocab(WORDS), 70, pairs=True)
        assert sorted(len(batch) for batch in batches) == [1, 2, 6, 7]
        assert max(batch.layout.max_length for batch in batches) == 70
        spoilt = self.runner(dense, lambda number, one: np.ones_like(one) if number == wrong else one)
        with pytest.raises(TaskError, match="something else"):
            demand(dense, spoilt, batches)

    def test_numbers_that_are_none(self) -> None:
        dense = DenseBert(bert())
        for int8 in (False, True):
            with pytest.raises(TaskError, match="something else"):
                demand(
                    dense, lambda ids, *_: {"last_hidden_state": np.full((*ids.shape, 24), np.nan)}, _one(), int8=int8
                )

    def test_a_wrong_shape(self) -> None:
        dense = DenseBert(bert())
        with pytest.raises(TaskError, match="of shape"):
            compare(dense, lambda ids, *_: {"last_hidden_state": np.zeros((*ids.shape, 23), np.float32)}, _one())

    def test_padding_is_padded(self) -> None:
        ids, mask, segments = rectangle(random_batches(30, 70)[1], padding=29)
        assert ids.shape == mask.shape == segments.shape == (4, 30)
        assert (ids[mask == 0] == 29).all()
        assert mask.sum(1).tolist() == [30, 28, 1, 13]


def _one() -> Any:
    return random_batches(len(WORDS), 70)[:1]


@pytest.mark.parametrize(
    ("kind", "int8", "missing", "extra"),
    [
        ("onnx", False, "onnx", "export"),
        ("onnx", True, "onnxruntime", "export"),
        ("openvino", False, "openvino", "export"),
        ("ctranslate2", False, "transformers", "export"),
    ],
)
def test_what_is_not_installed(
    kind: Kind, int8: bool, missing: str, extra: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packages, "installed", lambda name: name.partition(".")[0] != missing)
    monkeypatch.setattr(packages.importlib, "import_module", lambda name: None)
    with pytest.raises(UserError, match=rf"needs the package {missing}: pip install 'unmask\[{extra}\]'"):
        exported(kind, tmp_path / "out", int8=int8)
    assert list(tmp_path.iterdir()) == []


class TestCommand:
    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        given = encoder(heads=HEADS["mlm"])
        Bundle(given.model, given.tokenizer).save(tmp_path / "model")
        return tmp_path / "model"

    def test_writes_and_tells_the_difference(
        self, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        pytest.importorskip("onnxruntime")
        call = ["export", str(folder), "--to", "onnx", "--out", str(tmp_path / "out")]
        assert run(call) == 0
        out, err = capsys.readouterr()
        assert "mlm head for onnxruntime" in out
        assert "largest difference" in err
        assert run(call) == 2
        assert "--overwrite" in capsys.readouterr().err
        assert run([*call, "--overwrite", "--head", "none", "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        assert found["head"] is None
        assert found["difference"]["largest"] < 1e-5

    @pytest.mark.parametrize(
        ("options", "said"),
        [
            (["--to", "tensorrt"], "onnx, openvino, ctranslate2, marian, given 'tensorrt'"),
            (["--to", "marian"], "marian is for translators"),
            (["--to", "onnx", "--head", "qa"], "no qa head; it has mlm"),
            (["--to", "onnx", "--head", "nose"], "given 'nose'"),
        ],
    )
    def test_mistakes(
        self, options: list[str], said: str, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert run(["export", str(folder), *options, "--out", str(tmp_path / "out")]) == 2
        assert said in capsys.readouterr().err
        assert not (tmp_path / "out").exists()

    def test_other_models(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        settings = GptSettings(vocab_size=len(WORDS), num_layers=1, hidden_size=8, num_heads=2, ffn_size=8)
        Bundle(build_model(settings), Tokenizer.from_vocab(WORDS)).save(tmp_path / "gpt")
        assert run(["export", str(tmp_path / "gpt"), "--to", "onnx", "--out", str(tmp_path / "out")]) == 2
        assert "this is neither" in capsys.readouterr().err


def test_the_environment_is_found_out_as_it_is() -> None:
    assert packages.installed("torch.nn")
    assert not packages.installed("a_package_that_nobody_wrote")
    assert packages.installed("onnxruntime") == (importlib.util.find_spec("onnxruntime") is not None)
