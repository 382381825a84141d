"""BERT in rectangles says what BERT says, and so does the ONNX file made from it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from unmask.errors import TaskError
from unmask.export import parity
from unmask.export.dense import DenseBert
from unmask.export.onnx import export_onnx
from unmask.models.bert import Bert
from unmask.models.init import build_model
from unmask.models.settings import (
    BertSettings,
    ClassifySettings,
    MaskedTokenSettings,
    NextSentenceSettings,
    SpanSettings,
    TagSettings,
)
from unmask.nn.batch import Batch

IDS = [[5, 6, 7, 8, 9, 10], [11, 12], [3, 4, 5, 1]]


def bert(**changes: Any) -> Bert:
    given = {"vocab_size": 30, "num_layers": 2, "hidden_size": 12, "num_heads": 3, "ffn_size": 20, "init_std": 0.3}
    model = build_model(BertSettings(**given | changes))
    assert isinstance(model, Bert)
    return model.eval()


def rectangle() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    layout = Batch.of(IDS).layout
    ids = layout.pad(Batch.of(IDS).ids)
    return ids, layout.key_mask(ids.device).long(), torch.zeros_like(ids)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"norm_place": "pre", "final_norm": True},
        {"positions": {"kind": "sinusoidal"}},
        {"positions": {"kind": "none"}, "num_segments": 0, "activation": "relu"},
        {"scale_embeddings": True, "head_size": 8},
    ],
)
@torch.no_grad()
def test_vectors(changes: dict[str, Any]) -> None:
    model = bert(**changes)
    found = DenseBert(model)(*rectangle())
    expected = model(Batch.of(IDS))
    for row, rows in enumerate(expected.layout.split(expected.sequence)):
        torch.testing.assert_close(found[row, : len(rows)], rows, atol=2e-6, rtol=1e-5)


@pytest.mark.parametrize("pooling", ["pooler", "cls", "mean", "max"])
@torch.no_grad()
def test_classes(pooling: Any) -> None:
    model = bert(heads=(ClassifySettings(labels=("a", "b", "c"), pooling=pooling),))
    torch.testing.assert_close(DenseBert(model)(*rectangle()), model.class_logits(model(Batch.of(IDS))))


@torch.no_grad()
def test_tags_and_spans() -> None:
    for head in (TagSettings(labels=("x", "y")), SpanSettings()):
        model = bert(heads=(head,))
        encoded = model(Batch.of(IDS))
        said = model.tag_logits(encoded) if head.kind == "tag" else model.span_logits(encoded)
        found = DenseBert(model)(*rectangle())
        if head.kind == "qa":
            found = torch.stack(found, -1)
        for row, rows in enumerate(encoded.layout.split(said)):
            torch.testing.assert_close(found[row, : len(rows)], rows, atol=2e-6, rtol=1e-5)


@torch.no_grad()
def test_masked_tokens() -> None:
    for tied in (True, False):
        model = bert(heads=(MaskedTokenSettings(tied=tied),))
        encoded = model(Batch.of(IDS))
        found = DenseBert(model)(*rectangle())
        for row, rows in enumerate(encoded.layout.split(model.masked_token_logits(encoded.sequence))):
            torch.testing.assert_close(found[row, : len(rows)], rows, atol=2e-6, rtol=1e-5)


def test_the_head_asked_for() -> None:
    model = bert(heads=(MaskedTokenSettings(), NextSentenceSettings(), ClassifySettings(labels=("a", "b"))))
    assert DenseBert(model).head == "classify"
    assert DenseBert(model, "mlm").head == "mlm"
    assert DenseBert(model, "none").head is None
    for head, said in (("tag", "has mlm, nsp, classify"), ("nsp", "one of classify, tag, qa, mlm or none")):
        with pytest.raises(TaskError, match=said):
            DenseBert(model, head)


def test_what_cannot_be_exported() -> None:
    with pytest.raises(TaskError, match="positions in attention"):
        DenseBert(bert(positions={"kind": "alibi"}))
    with pytest.raises(TaskError, match="CRF"):
        DenseBert(bert(heads=(TagSettings(labels=("x", "y"), crf=True),)))


@pytest.mark.parametrize("heads", [(), (ClassifySettings(labels=("a", "b")),), (TagSettings(labels=("x", "y")),)])
def test_an_onnx_file_says_the_same(heads: Any, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    difference = export_onnx(bert(heads=heads), tmp_path / "model.onnx")
    assert difference is not None
    assert difference < 1e-5
    assert [path.name for path in tmp_path.iterdir()] == ["model.onnx"]


def test_an_onnx_file_that_says_something_else_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("onnxruntime")
    monkeypatch.setattr(parity, "TOLERANCE", -1.0)
    with pytest.raises(TaskError, match="something else"):
        export_onnx(bert(), tmp_path / "model.onnx")
    assert list(tmp_path.iterdir()) == []
