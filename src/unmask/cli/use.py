"""`unmask embed` and `unmask fill-mask`."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice, tee
from pathlib import Path
from typing import Annotated, Any

import typer

from unmask.cli import console
from unmask.cli.models import Json
from unmask.cli.text import TextFile, Texts
from unmask.errors import UserError

ModelName = Annotated[str, typer.Option("--model", "-m", help="Short name, Hub id, or folder.")]


def embed(
    texts: Texts = None,
    model: ModelName = "minilm",
    file: TextFile = None,
    pooling: Annotated[str | None, typer.Option(help="cls, mean or max; default: what the model says.")] = None,
    normalise: Annotated[
        bool | None, typer.Option("--normalise/--no-normalise", help="Length 1; default: what the model says.")
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Write all vectors to this .npy file.")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a file that exists.")] = False,
    json: Json = False,
) -> None:
    """Turn texts into vectors. Long texts are read in windows, so nothing is cut."""
    from unmask.bundle import load
    from unmask.data.vectors import write_vectors

    given = console.texts_from(texts, file)
    if out is not None:
        console.new_path(out, overwrite=overwrite)
        if out.suffix != ".npy":
            raise UserError(f"{out}: vectors are written as .npy; give a name that ends so")
    with console.download_bar() as report:
        bundle = load(model, progress=report)
    width = bundle.model.settings.hidden_size
    if out is not None:
        vectors = bundle.embed_stream(given, pooling=pooling, normalise=normalise)  # type: ignore[arg-type]
        rows = write_vectors(out, _counted(vectors), width)
        console.out().print(f"{out}: {rows:,} vectors of {width}")
        return
    shown, read = tee(given)
    for chunk in bundle.embed_stream(read, pooling=pooling, normalise=normalise):  # type: ignore[arg-type]
        pairs = list(zip(islice(shown, len(chunk)), chunk, strict=True))
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
        str | None, typer.Option("--model", "-m", help="Short name, Hub id, or folder of a BERT with its MLM head.")
    ] = None,
    file: TextFile = None,
    top: Annotated[int, typer.Option(min=1, help="How many candidates to show.")] = 5,
    json: Json = False,
) -> None:
    """Guess what stands at each [MASK] of a text."""
    from unmask.bundle import load

    given = console.texts_from(texts, file)
    if model is None:
        raise UserError("say which model is to guess: --model FOLDER or --model ORG/NAME of a BERT with its MLM head")
    with console.download_bar() as report:
        bundle = load(model, progress=report)
    for text in given:
        for place, guesses in enumerate(bundle.fill_mask(text, top=top)):
            if json:
                found = [
                    {"token": guess.token, "id": guess.id, "probability": guess.probability, "text": guess.text}
                    for guess in guesses
                ]
                console.print_json({"text": text, "mask": place, "guesses": found})
            else:
                rows = [(guess.token, f"{guess.probability:.3f}", guess.text) for guess in guesses]
                console.print_table(["token", "probability", "text"], rows)


def _counted(chunks: Iterator[Any]) -> Iterator[Any]:
    done = 0
    with console.counting("texts") as count:
        for chunk in chunks:
            done += len(chunk)
            count(done)
            yield chunk
