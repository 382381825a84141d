"""The peers, where they are installed: transformers, ONNX Runtime, OpenVINO and CTranslate2, fp32 and int8.

Each is made from the same folder. int8: ONNX Runtime quantises dynamically (activations by each batch's range),
OpenVINO statically with NNCF on texts of the measurement, CTranslate2 its weights and, row by row, activations.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import io
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from unmask.bench.contestants import Ids, Padded, Peer, Rows
from unmask.bundle import Bundle
from unmask.export.dense import INPUTS, VECTORS
from unmask.export.onnx import export_onnx
from unmask.export.packages import silence
from unmask.models.bert import Bert
from unmask.models.huggingface import is_plain
from unmask.models.settings import BertSettings

PEERS = ("transformers", "onnxruntime", "openvino", "ctranslate2")
_NNCF_SAMPLES = 128


def installed(names: Sequence[str] = PEERS) -> list[str]:
    """Those of the peers that are there."""
    return [name for name in names if importlib.util.find_spec(name) is not None]


@contextlib.contextmanager
def peers_of(bundle: Bundle, names: Sequence[str], ids: Ids, threads: int) -> Iterator[list[Peer]]:
    """The peers with the model of a bundle; what they need on disk is gone afterwards."""
    with tempfile.TemporaryDirectory() as spare, silence():
        yield [peer for name in names for peer in _MAKERS[name](bundle, Path(spare), ids, threads)]


def _plain(bundle: Bundle, spare: Path) -> Path | None:
    """A folder as transformers reads it, if there can be one."""
    settings = bundle.model.settings
    if not isinstance(settings, BertSettings) or not is_plain(settings):
        return None
    folder = spare / "plain"
    if not folder.exists():
        bundle.save(folder)
    return folder


def _transformers(bundle: Bundle, spare: Path, ids: Ids, threads: int) -> list[Peer]:
    folder = _plain(bundle, spare)
    if folder is None:
        return []
    package = importlib.import_module("transformers")
    model = package.BertModel.from_pretrained(folder, dtype=torch.float32, attn_implementation="sdpa").eval()

    @torch.inference_mode()
    def run(given: Any, mask: Any) -> Rows:
        out = model(input_ids=torch.from_numpy(given), attention_mask=torch.from_numpy(mask))
        return np.asarray(out.last_hidden_state.numpy())

    return [Peer("transformers fp32", run)]


def _onnx(bundle: Bundle, spare: Path) -> Path:
    path = spare / "model.onnx"
    if not path.exists():
        model = bundle.model
        assert isinstance(model, Bert)
        bare = Bert(model.settings.replace(heads=()))
        bare.encoder = model.encoder
        export_onnx(bare, path)
    return path


def _onnxruntime(bundle: Bundle, spare: Path, ids: Ids, threads: int) -> list[Peer]:
    runtime = importlib.import_module("onnxruntime")
    quantization = importlib.import_module("onnxruntime.quantization")
    path, small = _onnx(bundle, spare), spare / "int8.onnx"
    quantization.quantize_dynamic(path, small, weight_type=quantization.QuantType.QInt8, per_channel=True)

    def runner(file: Path) -> Padded:
        options = runtime.SessionOptions()
        options.intra_op_num_threads = threads
        session = runtime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])

        def run(given: Any, mask: Any) -> Rows:
            rows = session.run([VECTORS], dict(zip(INPUTS, (given, mask, np.zeros_like(given)), strict=True)))
            return np.asarray(rows[0])

        return run

    return [Peer("ONNX Runtime fp32", runner(path)), Peer("ONNX Runtime int8", runner(small))]


def _openvino(bundle: Bundle, spare: Path, ids: Ids, threads: int) -> list[Peer]:
    vino = importlib.import_module("openvino")
    core = vino.Core()

    def runner(model: Any) -> Padded:
        options = {"INFERENCE_NUM_THREADS": threads, "PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": "f32"}
        request = core.compile_model(model, "CPU", options).create_infer_request()

        def run(given: Any, mask: Any) -> Rows:
            found = request.infer(dict(zip(INPUTS, (given, mask, np.zeros_like(given)), strict=True)))
            return np.array(next(iter(found.values())))

        return run

    path = _onnx(bundle, spare)
    peers = [Peer("OpenVINO fp32", runner(vino.convert_model(path)), 8)]
    if importlib.util.find_spec("nncf") is not None:
        peers.append(Peer("OpenVINO int8", runner(_nncf(vino.convert_model(path), ids)), 8))
    return peers


def _nncf(model: Any, ids: Ids) -> Any:
    nncf = importlib.import_module("nncf")
    samples = [np.array([one], dtype=np.int64) for one in ids[:_NNCF_SAMPLES]]
    given = [dict(zip(INPUTS, (one, np.ones_like(one), np.zeros_like(one)), strict=True)) for one in samples]
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        return nncf.quantize(model, nncf.Dataset(given), model_type=nncf.ModelType.TRANSFORMER)


def _ctranslate2(bundle: Bundle, spare: Path, ids: Ids, threads: int) -> list[Peer]:
    folder = _plain(bundle, spare)
    if folder is None or importlib.util.find_spec("transformers") is None:
        return []
    package = importlib.import_module("ctranslate2")
    converters = importlib.import_module("ctranslate2.converters")
    target = spare / "ctranslate2"
    converters.TransformersConverter(str(folder)).convert(str(target))

    def runner(kind: str) -> Padded:
        encoder = package.Encoder(str(target), compute_type=kind, intra_threads=threads)

        def run(given: Any, mask: Any) -> Rows:
            lengths = mask.sum(1).astype(np.int32)
            out = encoder.forward_batch(
                package.StorageView.from_array(given.astype(np.int32)), package.StorageView.from_array(lengths)
            )
            return np.array(out.last_hidden_state)

        return run

    return [Peer("CTranslate2 fp32", runner("float32")), Peer("CTranslate2 int8", runner("int8"))]


_MAKERS: dict[str, Callable[[Bundle, Path, Ids, int], list[Peer]]] = {
    "transformers": _transformers,
    "onnxruntime": _onnxruntime,
    "openvino": _openvino,
    "ctranslate2": _ctranslate2,
}
