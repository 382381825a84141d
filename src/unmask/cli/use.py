"""`unmask embed` and `unmask fill-mask`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import typer

from unmask.cli import console
from unmask.cli.models import EngineName, Json, ModelName, Overwrite
from unmask.cli.text import Encoding, TextFile, Texts
from unmask.errors import UserError


def embed(
    texts: Texts = None,
    model: ModelName = "minilm",
    file: TextFile = None,
    encoding: Encoding = "utf-8",
    pooling: Annotated[
        str | None, typer.Option(metavar="POOLING", help="cls, mean or max; default: what the model says.")
    ] = None,
    normalise: Annotated[
        bool | None,
        typer.Option("--normalise/--no-normalise", metavar="", help="Length 1; default: what the model says."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="FILE", help="Write all vectors to this .npy file.")
    ] = None,
    engine: EngineName = "auto",
    overwrite: Overwrite = False,
    json: Json = False,
) -> None:
    """Turn texts into vectors. Long texts are read in windows, so nothing is cut."""
    given = console.texts_from(texts, file, encoding)
    if out is not None and console.new_path(out, overwrite=overwrite).suffix != ".npy":
        raise UserError(f"{out}: vectors are written as .npy; give a name that ends so")
    from unmask.cli.watch import Tally, watching
    from unmask.data.vectors import write_vectors

    bundle = console.load_bundle(model, engine)
    width = bundle.model.settings.hidden_size
    tally = Tally(bundle.tokenizer)
    kept: list[str] = []
    read = _kept(tally.read(given), kept) if out is None else tally.read(given)
    chunks = bundle.embed_stream(read, pooling=pooling, normalise=normalise)
    total = len(texts) if texts else console.num_lines(file)
    # Where vectors themselves run over the screen, they show how far it is.
    shown = out is not None or not sys.stdout.isatty()
    with console.counting("texts", total, shown=shown) as count, watching(bundle.encoder, tally, count):
        if out is None:
            _show(chunks, kept, width, json)
        else:
            rows = write_vectors(out, chunks, width)
    if out is not None:
        if json:
            console.print_json({"file": str(out), "vectors": rows, "width": width})
        else:
            console.result(f"{out}: {rows:,} {'vector' if rows == 1 else 'vectors'} of {width} numbers")
    for remark in tally.remarks():
        console.say(remark)


def _kept(texts: Iterator[str], kept: list[str]) -> Iterator[str]:
    """The same texts, which also wait in a list until they are shown beside their vectors."""
    for text in texts:
        kept.append(text)
        yield text


def _show(chunks: Iterator[Any], kept: list[str], width: int, json: bool) -> None:
    for chunk in chunks:
        pairs = list(zip(islice(kept, len(chunk)), chunk, strict=True))
        del kept[: len(chunk)]
        if json:
            for text, vector in pairs:
                console.print_json({"text": text, "vector": [round(float(value), 7) for value in vector]})
        else:
            lines = [
                (console.shorten(text), " ".join(f"{x:+.3f}" for x in vector[:6]) + " …") for text, vector in pairs
            ]
            console.print_table(["text", f"the first 6 of {width} numbers"], lines)


def fill_mask(
    texts: Texts = None,
    model: Annotated[
        str,
        typer.Option(
            "--model", "-m", metavar="NAME", help="Short name, Hub id, or folder of a BERT with its MLM head."
        ),
    ] = "mini-zh",
    file: TextFile = None,
    encoding: Encoding = "utf-8",
    top: Annotated[int, typer.Option(min=1, metavar="N", help="How many candidates to show.")] = 5,
    engine: EngineName = "auto",
    json: Json = False,
) -> None:
    """Guess what stands at each [MASK] of a text, by our small Chinese model unless another is named."""
    given = console.texts_from(texts, file, encoding)
    bundle = console.load_bundle(model, engine)
    for text in console.not_none(given):
        masks = bundle.fill_mask(text, top=top)
        for place, guesses in enumerate(masks):
            if json:
                found = [
                    {"token": guess.token, "id": guess.id, "probability": guess.probability, "text": guess.text}
                    for guess in guesses
                ]
                console.print_json({"text": text, "mask": place, "guesses": found})
            else:
                rows = [(guess.token, f"{guess.probability:.3f}", guess.text) for guess in guesses]
                title = f"mask {place + 1} of {len(masks)}: {console.shorten(text, 100)}"
                console.print_table(["token", "probability", "text"], rows, title=title)
