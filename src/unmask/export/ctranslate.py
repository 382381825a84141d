"""CTranslate2's form of an encoder, made by its own converter from the Hugging Face form of ours."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from unmask.errors import TaskError
from unmask.export.dense import VECTORS
from unmask.export.packages import hush, needed
from unmask.export.parity import Numbers, Runner
from unmask.models.bert import Bert
from unmask.models.folder import write_model
from unmask.models.huggingface import is_plain
from unmask.nn.heads import Pooler
from unmask.text.tokenizer import Tokenizer


def check_ctranslate(model: Bert, head: str | None) -> None:
    """TaskError for what CTranslate2 has no form for."""
    if head is not None:
        raise TaskError(
            f"CTranslate2 has no {head} head: export the encoder alone with --head none, or --to onnx or openvino"
        )
    if not is_plain(model.settings):
        raise TaskError("CTranslate2 knows BERT as published, and this model is a variant of it; use --to onnx")


def write_ctranslate(model: Bert, tokenizer: Tokenizer, folder: Path, spare: Path, *, int8: bool = False) -> None:
    """Write the encoder for `ctranslate2.Encoder`; `spare` is a folder for the step between."""
    converters = needed("ctranslate2.converters", "export")
    needed("transformers", "export")
    write_model(_bare(model), spare)
    tokenizer.save(spare)
    with hush():
        converters.TransformersConverter(str(spare)).convert(
            str(folder), quantization="int8" if int8 else "float32", force=True
        )


def ctranslate_runner(folder: Path, *, int8: bool = False) -> Runner:
    """CTranslate2 with a folder."""
    package = needed("ctranslate2", "export")
    encoder = package.Encoder(str(folder), compute_type="int8" if int8 else "float32")

    def run(ids: Any, mask: Any, segments: Any) -> dict[str, Numbers]:
        given = package.StorageView.from_array(ids.astype(np.int32))
        lengths = package.StorageView.from_array(mask.sum(1).astype(np.int32))
        out = encoder.forward_batch(given, lengths, token_type_ids=segments.tolist())
        return {VECTORS: np.array(out.last_hidden_state)}

    return run


def _bare(model: Bert) -> Bert:
    """The encoder alone. Its converter wants a pooler; one that says nothing stands in where there is none."""
    bare = Bert(model.settings.replace(heads=(), pooler=False))
    bare.settings = bare.settings.replace(pooler=True)
    bare.encoder.load_state_dict(model.encoder.state_dict(), strict=False)
    pooler = model.encoder.pooler
    if pooler is None:
        pooler = Pooler(model.settings.hidden_size)
        torch.nn.init.zeros_(pooler.dense.weight)
        torch.nn.init.zeros_(pooler.dense.bias)
    bare.encoder.pooler = pooler
    return bare.eval()
