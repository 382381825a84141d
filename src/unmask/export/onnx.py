"""ONNX, written by torch and checked against the model it came from."""

from __future__ import annotations

import importlib
import logging
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch

from unmask.errors import TaskError, UserError
from unmask.export.dense import INPUTS, DenseBert
from unmask.models.bert import Bert
from unmask.storage import replacing

#: Largest difference that rounding explains, for outputs of size 1 and above in proportion.
TOLERANCE = 1e-4


def needed(name: str, extra: str) -> Any:
    """A package that is not always there."""
    try:
        return importlib.import_module(name)
    except ImportError:
        raise UserError(f"this needs the package {name}: pip install 'unmask[{extra}]'") from None


def example(vocabulary: int, *, sizes: tuple[int, int] = (3, 11)) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Ids, mask and segments of rows of different lengths."""
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(0, vocabulary, sizes, generator=generator)
    lengths = torch.arange(sizes[0]) * 2 % sizes[1]
    mask = (torch.arange(sizes[1]) < (sizes[1] - lengths)[:, None]).long()
    return ids * mask, mask, torch.zeros_like(ids)


def export_onnx(model: Bert, path: Path) -> float | None:
    """Write an .onnx file with free batch size and length, complete or not at all.

    Gives the largest difference to the model itself, or None where onnxruntime is not installed to tell. A file that
    differs by more than rounding is not written.
    """
    needed("onnx", "export")
    dense = DenseBert(model)
    with replacing(path) as draft:
        _write(dense, draft)
        return _checked(dense, draft)


def _write(dense: DenseBert, path: Path) -> None:
    free = {name: {0: "batch", 1: "length"} for name in INPUTS}
    free[dense.output] = {0: "batch"} if dense.head == "classify" else {0: "batch", 1: "length"}
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    with warnings.catch_warnings(), torch.no_grad():
        # The newer exporter writes operations that OpenVINO cannot read.
        warnings.simplefilter("ignore")
        torch.onnx.export(
            dense,
            example(dense.encoder.embeddings.token.num_embeddings),
            str(path),
            input_names=list(INPUTS),
            output_names=[dense.output],
            dynamic_axes=free,
            opset_version=17,
            dynamo=False,
        )


def _checked(dense: DenseBert, path: Path) -> float | None:
    try:
        runtime = importlib.import_module("onnxruntime")
    except ImportError:
        return None
    session = runtime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    worst = 0.0
    for sizes in ((1, 5), (4, 30)):
        given = example(dense.encoder.embeddings.token.num_embeddings, sizes=sizes)
        with torch.no_grad():
            expected = dense(*given).numpy()
        found = session.run(None, {name: tensor.numpy() for name, tensor in zip(INPUTS, given, strict=True)})[0]
        difference = np.abs(found - expected)
        worst = max(
            worst, float((difference if dense.head == "classify" else difference[given[1].numpy().astype(bool)]).max())
        )
        if worst > TOLERANCE * max(1.0, float(np.abs(expected).max())):
            raise TaskError(f"the ONNX file says something else than the model, by {worst:.2g}; it was not written")
    return worst
