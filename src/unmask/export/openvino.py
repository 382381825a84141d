"""OpenVINO's own form (.xml and .bin), made from ONNX by OpenVINO's own converter."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from unmask.export.packages import hush, needed
from unmask.export.parity import Numbers, Runner, named


def write_openvino(onnx: Path, folder: Path, *, int8: bool = False) -> Path:
    """Write model.xml and model.bin; with `int8`, weights are stored so by NNCF and multiplied in fp32."""
    vino = needed("openvino", "export")
    path = folder / "model.xml"
    with hush():
        model = vino.convert_model(onnx)
        if int8:
            model = needed("nncf", "bench").compress_weights(model)
        # It would store weights in half precision without being asked.
        vino.save_model(model, path, compress_to_fp16=False)
    return path


def openvino_runner(path: Path) -> Runner:
    """OpenVINO with a file, in full precision: on some processors it takes bf16 of its own accord."""
    vino = needed("openvino", "export")
    with hush():
        compiled = vino.Core().compile_model(path, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
        request = compiled.create_infer_request()

    def run(*given: Any) -> dict[str, Numbers]:
        found = request.infer(named(given))
        return {output.get_any_name(): np.array(found[output]) for output in compiled.outputs}

    return run
