"""What stands beside an exported model: how to call it, what comes out, how far it was checked."""

from __future__ import annotations

import json
from typing import Any

from unmask.export.dense import INPUTS, SENTENCE, VECTORS, DenseBert
from unmask.export.parity import Parity

#: The file that each kind of export is used by.
FILES = {"onnx": "model.onnx", "openvino": "model.xml", "ctranslate2": "model.bin"}
_APPLY = {"single": "softmax", "multi": "sigmoid", "regression": "nothing"}
_INPUTS = {
    "input_ids": "ids of the tokens, padded to the longest of the batch",
    "attention_mask": "1 for a token, 0 for padding",
    "token_type_ids": "0 for the first text, 1 for the second of a pair",
}


def description(dense: DenseBert, kind: str, parity: Parity | None, *, int8: bool, padding: int) -> dict[str, Any]:
    """What a program needs to know."""
    settings = dense.model.settings
    outputs = {name: _shape(dense, name) for name in dense.outputs if kind != "ctranslate2" or name == VECTORS}
    said: dict[str, Any] = {
        "kind": kind,
        "file": FILES[kind],
        "precision": "int8" if int8 else "fp32",
        "head": dense.head,
        "inputs": {name: {"type": "int64", "shape": ["batch", "length"], "is": _INPUTS[name]} for name in INPUTS},
        "outputs": {name: {"type": "float32", "shape": shape} for name, shape in outputs.items()},
        "max_length": settings.max_length,
        "padding_id": padding,
    }
    for head in settings.heads:
        if head.kind == dense.head and head.kind in ("classify", "tag"):
            said["labels"] = list(head.labels)
            said["apply"] = _APPLY[head.problem] if head.kind == "classify" else "softmax"
    if SENTENCE in outputs and dense.sentence is not None:
        said["sentence"] = {"pooling": dense.sentence.pooling, "normalised": dense.sentence.normalise}
    difference = None if parity is None else {"largest": parity.largest, "relative": parity.relative}
    return said | {"difference": difference}


def readme(said: dict[str, Any]) -> str:
    """The same for people, with a piece of code that runs in the folder."""
    given = "\n".join(f"| `{name}` | int64, batch × length | {one['is']} |" for name, one in said["inputs"].items())
    come = "\n".join(
        f"| `{name}` | float32, {' × '.join(map(str, one['shape']))} |" for name, one in said["outputs"].items()
    )
    lines = [f"# {said['file']}", f"Written by `unmask export --to {said['kind']}`, {said['precision']}."]
    lines += [f"| input | | |\n|---|---|---|\n{given}", f"| output | |\n|---|---|\n{come}"]
    if "labels" in said:
        labels = ", ".join(json.dumps(label, ensure_ascii=False) for label in said["labels"][:20])
        more = ", … (all in export.json)" if len(said["labels"]) > 20 else ""
        lines.append(f"Labels in the order of the logits: {labels}{more}. Apply {said['apply']} for probabilities.")
    if "sentence" in said:
        unit = ", of length 1" if said["sentence"]["normalised"] else ""
        lines.append(f"`{SENTENCE}` is the {said['sentence']['pooling']} of a text's token vectors{unit}.")
    lines.append(
        f"It reads {said['max_length']} tokens at once; what to do with longer texts is up to the caller "
        "(unmask itself reads them in windows)."
    )
    lines.append(_checked(said["difference"]))
    lines.append(f"```python\n{_code(said)}```")
    return "\n\n".join(lines) + "\n"


def _checked(difference: dict[str, float] | None) -> str:
    if difference is None:
        return "It was not compared with the model it came from: the program that runs it was not installed."
    return (
        "Compared with the model it came from on texts of different lengths, padded together: the largest difference "
        f"of any output was {difference['largest']:.2g}."
    )


def _shape(dense: DenseBert, output: str) -> list[str | int]:
    settings = dense.model.settings
    place: list[str | int] = ["batch", "length"] if dense.per_token(output) else ["batch"]
    if dense.head == "qa":
        return place
    if dense.head == "mlm":
        return [*place, settings.vocab_size]
    labels = [
        len(head.labels) for head in settings.heads if head.kind in ("classify", "tag") and head.kind == dense.head
    ]
    return [*place, labels[0] if labels else settings.hidden_size]


_BEGIN = """\
import numpy as np
from tokenizers import Tokenizer

tokenizer = Tokenizer.from_file("tokenizer.json")
tokenizer.enable_truncation({max_length})
tokenizer.enable_padding(pad_id={padding_id})
texts = tokenizer.encode_batch(["A text.", "And another one, which is longer."])
given = {{
    "input_ids": np.array([text.ids for text in texts]),
    "attention_mask": np.array([text.attention_mask for text in texts]),
    "token_type_ids": np.array([text.type_ids for text in texts]),
}}

"""
_RUN = {
    "onnx": """\
import onnxruntime

session = onnxruntime.InferenceSession("model.onnx")
names = [output.name for output in session.get_outputs()]
outputs = dict(zip(names, session.run(names, given)))
""",
    "openvino": """\
import openvino

compiled = openvino.compile_model("model.xml", "CPU")
found = compiled(given)
outputs = {output.get_any_name(): found[output] for output in compiled.outputs}
""",
    "ctranslate2": """\
import ctranslate2

encoder = ctranslate2.Encoder(".")
found = encoder.forward_batch(
    ctranslate2.StorageView.from_array(given["input_ids"].astype(np.int32)),
    ctranslate2.StorageView.from_array(given["attention_mask"].sum(1).astype(np.int32)),
    token_type_ids=given["token_type_ids"].tolist(),
)
outputs = {"last_hidden_state": np.array(found.last_hidden_state)}
""",
}


def _code(said: dict[str, Any]) -> str:
    begin = _BEGIN.format(max_length=said["max_length"], padding_id=said["padding_id"])
    return begin + _RUN[said["kind"]]
