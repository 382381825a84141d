"""An encoder as a folder for ONNX Runtime, OpenVINO or CTranslate2: checked first, complete or not there."""

from __future__ import annotations

import json
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from unmask.errors import TaskError
from unmask.export.ctranslate import check_ctranslate, ctranslate_runner, write_ctranslate
from unmask.export.dense import DenseBert, exported_head
from unmask.export.describe import FILES, description, readme
from unmask.export.onnx import onnx_runner, quantise_onnx, write_onnx
from unmask.export.openvino import openvino_runner, write_openvino
from unmask.export.packages import installed, needed
from unmask.export.parity import Parity, Runner, demand, text_batches
from unmask.models.bert import Bert
from unmask.models.sentence import SentenceSettings
from unmask.storage import new_folder
from unmask.text.tokenizer import Tokenizer

Kind = Literal["onnx", "openvino", "ctranslate2"]
KINDS = get_args(Kind)


@dataclass(frozen=True)
class Encoder:
    """What is exported: a model in eval mode, its tokenizer, and how it makes one vector of a text."""

    model: Bert
    tokenizer: Tokenizer
    sentence: SentenceSettings | None = None


@dataclass(frozen=True)
class Exported:
    """What was written; `parity` is None where the program that would run it is not installed."""

    kind: Kind
    head: str | None
    parity: Parity | None


def export_encoder(
    encoder: Encoder, folder: Path, kind: Kind, *, head: str | None = None, int8: bool = False, overwrite: bool = False
) -> Exported:
    """Write the model, its tokenizer, export.json and README.md.

    `head` is one of the model's, or none; without it, what the model was made for. A model that does not say the same
    there is not written.
    """
    if head is None and encoder.sentence is not None:
        head = "none"
    model = encoder.model
    head = exported_head(model, head) or "none"
    if kind == "ctranslate2":
        check_ctranslate(model, None if head == "none" else head)
    dense = DenseBert(model, head, encoder.sentence or SentenceSettings())
    _check_packages(kind, int8=int8)
    padding = encoder.tokenizer.pad_id or 0
    with new_folder(folder, overwrite=overwrite) as draft, tempfile.TemporaryDirectory() as spare:
        run = _write(kind, encoder, dense, draft, Path(spare), int8=int8)
        parity = None
        if run is not None:
            batches = text_batches(encoder.tokenizer, model.settings.max_length, pairs=model.settings.num_segments != 1)
            parity = demand(dense, run, batches, padding=padding, int8=int8)
        del run  # lets go of the files
        encoder.tokenizer.save(draft)
        said = description(dense, kind, parity, int8=int8, padding=padding)
        (draft / "export.json").write_text(json.dumps(said, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        (draft / "README.md").write_text(readme(said), encoding="utf-8")
    return Exported(kind, dense.head, parity)


def _check_packages(kind: Kind, *, int8: bool) -> None:
    """What is missing is said before any work is done."""
    wanted = {"onnx": ["onnx"], "openvino": ["onnx", "openvino"], "ctranslate2": ["ctranslate2", "transformers"]}[kind]
    if int8 and kind == "onnx":
        wanted.append("onnxruntime")
    for name in wanted:
        needed(name, "export")
    if int8 and kind == "openvino":
        needed("nncf", "bench")


def _write(kind: Kind, encoder: Encoder, dense: DenseBert, draft: Path, spare: Path, *, int8: bool) -> Runner | None:
    """Write the model itself; gives what runs it, if that is installed."""
    if kind == "ctranslate2":
        write_ctranslate(encoder.model, encoder.tokenizer, draft, spare, int8=int8)
        return ctranslate_runner(draft, int8=int8)
    path = draft / FILES["onnx"]
    if kind == "onnx" and not int8:
        write_onnx(dense, path)
        return onnx_runner(path) if installed("onnxruntime") else None
    write_onnx(dense, spare / FILES["onnx"])
    if kind == "onnx":
        quantise_onnx(spare / FILES["onnx"], path)
        return onnx_runner(path)
    return openvino_runner(write_openvino(spare / FILES["onnx"], draft, int8=int8))


def check_kind(kind: str) -> Kind:
    """TaskError for a word that is no kind of export."""
    for known in KINDS:
        if kind == known:
            return known
    raise TaskError(f"an encoder is exported to {', '.join(KINDS)}, given {kind!r}")
