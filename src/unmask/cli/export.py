"""`unmask export`: a translator for other programs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from unmask.cli import console
from unmask.cli.models import Json, Overwrite
from unmask.cli.translate import translator_of
from unmask.errors import TaskError, UserError

_KINDS = ("marian", "ctranslate2")


def export(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A translator: folder, or run folder.")],
    to: Annotated[str, typer.Option("--to", metavar="KIND", help="marian (Hugging Face) or ctranslate2.")],
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FOLDER", help="Folder to write.")],
    overwrite: Overwrite = False,
    json: Json = False,
) -> None:
    """Write a translator so that `transformers` (MarianMTModel) or CTranslate2 loads it as the same model."""
    from unmask.models.transformer import Transformer

    if to not in _KINDS:
        raise UserError(f"--to is {' or '.join(_KINDS)}, given {to!r}")
    console.new_folder_path(out, overwrite=overwrite)
    translator = translator_of(model)
    if not isinstance(translator.model, Transformer):
        raise TaskError(f"{model}: only a Transformer can be exported, and this is an LSTM")
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
