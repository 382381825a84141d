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

    An encoder is run there on sample texts and compared; if it says something else, nothing is written.
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
        checked = None if parity is None else {"largest": parity.largest, "relative": parity.relative}
        console.print_json({"folder": str(out), "kind": to, "head": found.head, "int8": int8, "difference": checked})
        return
    what = "vectors" if found.head is None else f"{found.head} head"
    console.result(f"{out}  {what} for {_LOADED_BY[to]}")
    if parity is None:
        console.say(
            "not compared with the model itself, for onnxruntime is not installed: pip install 'unmask[export]'"
        )
    else:
        console.say(f"compared with the model itself on {parity.rows:,} rows of output: {parity}")


def _export_translator(
    name: str, translator: Any, to: str, out: Path, head: str | None, int8: bool, *, overwrite: bool, json: bool
) -> None:
    from unmask.models.transformer import Transformer

    if to not in ("marian", "ctranslate2"):
        raise TaskError(f"{name}: is a translator, which is exported to marian or ctranslate2; {to} is for encoders")
    if head is not None or int8:
        raise TaskError(f"{name}: is a translator; --head and --int8 are for encoders")
    if not isinstance(translator.model, Transformer):
        raise TaskError(f"{name}: only a Transformer can be exported, and this is an LSTM")
    (_marian if to == "marian" else _ctranslate2)(translator, out, overwrite)
    if json:
        console.print_json({"folder": str(out), "kind": to})
    else:
        console.result(f"{out}  for {'MarianMTModel.from_pretrained' if to == 'marian' else 'ctranslate2.Translator'}")


def _marian(translator: Any, out: Path, overwrite: bool) -> None:
    from unmask.models.marian_export import export_marian

    export_marian(translator.model, out, _ids(translator.languages), overwrite=overwrite)
    translator.languages.save(out)


def _ctranslate2(translator: Any, out: Path, overwrite: bool) -> None:
    from unmask.models.ctranslate_export import export_ctranslate2

    languages = translator.languages
    source, target = (one.tokens(range(one.vocab_size)) for one in (languages.source, languages.target))
    export_ctranslate2(translator.model, out, source, target, _ids(languages), overwrite=overwrite)


def _ids(languages: Any) -> Any:
    from unmask.models.marian_export import TranslationIds

    pad = languages.target.pad_id
    if pad is None or pad != languages.source.pad_id:
        raise TaskError("the vocabularies have no padding token of the same id, which other programs need")
    return TranslationIds(languages.frame.start, languages.frame.end, pad, languages.target.unk_id)
