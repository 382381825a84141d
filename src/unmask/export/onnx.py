"""ONNX, written by torch and checked against the model it came from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from unmask.errors import TaskError
from unmask.export.dense import INPUTS, DenseBert
from unmask.export.packages import installed, needed, silence
from unmask.export.parity import Numbers, Runner, demand, named, random_batches
from unmask.models.bert import Bert, num_parameters
from unmask.storage import replacing

OPSET = 17
#: What one file of protocol buffers can hold.
_LIMIT = 2 * 1024**3


def export_onnx(model: Bert, path: Path) -> float | None:
    """Write an .onnx file with free batch size and length, complete or not at all.

    Gives the largest difference to the model itself, or None where onnxruntime is not installed to tell. A file that
    differs by more than rounding is not written.
    """
    dense = DenseBert(model)
    with replacing(path) as draft:
        write_onnx(dense, draft)
        if not installed("onnxruntime"):
            return None
        settings = model.settings
        return demand(dense, onnx_runner(draft), random_batches(settings.vocab_size, settings.max_length)).largest


def write_onnx(dense: DenseBert, path: Path) -> None:
    """Write the .onnx file, unchecked."""
    needed("onnx", "export")
    if 4 * num_parameters(dense) >= _LIMIT:
        raise TaskError(f"the model has {num_parameters(dense):,} parameters, and one ONNX file holds at most 2 GB")
    free = {name: {0: "batch", 1: "length"} for name in INPUTS}
    free |= {name: {0: "batch"} | ({1: "length"} if dense.per_token(name) else {}) for name in dense.outputs}
    with silence(), torch.no_grad():
        # The newer exporter writes operations that OpenVINO cannot read.
        torch.onnx.export(
            dense,
            _example(dense.encoder.embeddings.token.num_embeddings),
            str(path),
            input_names=list(INPUTS),
            output_names=list(dense.outputs),
            dynamic_axes=free,
            opset_version=OPSET,
            dynamo=False,
        )


def quantise_onnx(path: Path, small: Path) -> None:
    """ONNX Runtime's own dynamic quantisation: weights in int8, activations by the range of each batch."""
    quantization = needed("onnxruntime.quantization", "export")
    with silence():
        quantization.quantize_dynamic(path, small, weight_type=quantization.QuantType.QInt8, per_channel=True)


def onnx_runner(path: Path) -> Runner:
    """ONNX Runtime with a file."""
    runtime = needed("onnxruntime", "export")
    session = runtime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]

    def run(*given: Any) -> dict[str, Numbers]:
        return dict(zip(names, map(np.asarray, session.run(names, named(given))), strict=True))

    return run


def _example(vocabulary: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Ids, mask and segments of rows of different lengths."""
    ids = torch.randint(0, vocabulary, (3, 11), generator=torch.Generator().manual_seed(0))
    mask = (torch.arange(11) < torch.tensor([11, 9, 7])[:, None]).long()
    return ids * mask, mask, torch.zeros_like(ids)
