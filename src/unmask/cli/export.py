"""`unmask export`: a model for other programs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from unmask.cli import console
from unmask.cli.models import Json, Overwrite
from unmask.errors import TaskError, UserError

_KINDS = ("onnx", "openvino", "ctranslate2", "marian")
_LOADED_BY = {
    "onnx": "onnxruntime.InferenceSession",
    "openvino": "openvino.compile_model",
    "ctranslate2": "ctranslate2.Encoder",
}


def export(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="Short name, Hub id, folder, or run folder.")],
    to: Annotated[
        str,
        typer.Option(
            "--to", metavar="KIND", help="onnx, openvino or ctranslate2; a translator: ctranslate2 or marian."
        ),
    ],
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FOLDER", help="Folder to write.")],
    head: Annotated[
        str | None,
        typer.Option(
            metavar="HEAD", help="classify, tag, qa, mlm, or none for vectors; default: what it was made for."
        ),
    ] = None,
    int8: Annotated[bool, typer.Option("--int8", metavar="", help="Weights in int8, by that program's tool.")] = False,
    overwrite: Overwrite = False,
    json: Json = False,
) -> None:
    """Write a model so that ONNX Runtime, OpenVINO, CTranslate2 or `transformers` (Marian) runs it as the same model.

    The model is run there on samples and compared with itself here; if it says something else, nothing is written.
    """
    if to not in _KINDS:
        raise UserError(f"--to is one of {', '.join(_KINDS)}, given {to!r}")
    console.new_folder_path(out, overwrite=overwrite)
    from unmask.cli.predict import load_named
    from unmask.models.bert import Bert

    bundle = load_named(model, "torch")
    if bundle.languages is not None:
        _export_translator(model, bundle.translator, to, out, head, int8, overwrite=overwrite, json=json)
        return
    if not isinstance(bundle.model, Bert):
        raise TaskError(f"{model}: encoders (BERT) and translators can be exported, and this is neither")
    if to == "marian":
        raise TaskError(
            f"{model}: marian is for translators; its folder is what transformers reads, if it is plain BERT"
        )
    _export_encoder(bundle, to, out, head, int8, overwrite=overwrite, json=json)


def _export_encoder(
    bundle: Any, to: str, out: Path, head: str | None, int8: bool, *, overwrite: bool, json: bool
) -> None:
    from unmask.export.folder import Encoder, check_kind, export_encoder

    encoder = Encoder(bundle.model, bundle.tokenizer, bundle.sentence)
    with console.status(f"exporting to {to}"):
        found = export_encoder(encoder, out, check_kind(to), head=head, int8=int8, overwrite=overwrite)
    parity = found.parity
    if json:
        difference = _difference(parity)
        console.print_json({"folder": str(out), "kind": to, "head": found.head, "int8": int8, "difference": difference})
        return
    what = "vectors" if found.head is None else f"{found.head} head"
    console.result(f"{out}  {what} for {_LOADED_BY[to]}")
    _say_parity(parity, "onnxruntime")


def _export_translator(
    name: str, translator: Any, to: str, out: Path, head: str | None, int8: bool, *, overwrite: bool, json: bool
) -> None:
    from unmask.export.translator import check_translator_kind, export_translator

    kind = check_translator_kind(to)
    if head is not None or int8:
        raise TaskError(f"{name}: is a translator; --head and --int8 are for encoders")
    with console.status(f"exporting to {to}"):
        parity = export_translator(translator, out, kind, overwrite=overwrite).parity
    if json:
        console.print_json({"folder": str(out), "kind": to, "difference": _difference(parity)})
        return
    console.result(f"{out}  for {'MarianMTModel.from_pretrained' if to == 'marian' else 'ctranslate2.Translator'}")
    _say_parity(parity, "transformers")


def _difference(parity: Any) -> dict[str, float] | None:
    return None if parity is None else {"largest": parity.largest, "relative": parity.relative}


def _say_parity(parity: Any, program: str) -> None:
    if parity is None:
        console.say(f"not compared with the model itself, for {program} is not installed: pip install 'unmask[export]'")
    else:
        console.say(f"compared with the model itself on {parity.rows:,} rows of output: {parity}")
