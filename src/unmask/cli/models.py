"""`unmask fetch` and `unmask info`."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from unmask.cli import console
from unmask.errors import UserError

#: What people look for first; the other settings follow in their own order.
_FIRST = ("model", "num_layers", "hidden_size", "num_heads", "ffn_size", "vocab_size", "max_length", "heads")

#: Options that several commands have. A flag takes no value, so none is named.
Json = Annotated[bool, typer.Option("--json", metavar="", help="One JSON object a line, for programs.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", metavar="", help="Replace what exists.")]
EngineName = Annotated[
    str,
    typer.Option("--engine", metavar="ENGINE", help="auto, fp32, int8 or torch; auto is fast and loses nothing."),
]
ModelName = Annotated[str, typer.Option("--model", "-m", metavar="NAME", help="Short name, Hub id, or folder.")]


def fetch(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="Short name, Hub id (org/name), or folder.")
    ] = None,
    refresh: Annotated[bool, typer.Option("--refresh", metavar="", help="Fetch anew what is here already.")] = False,
    json: Json = False,
) -> None:
    """Fetch a model and say where it is; without a name, list what there is."""
    from unmask.models.fetch import fetch as fetch_model

    if name is None:
        if refresh:
            raise UserError("--refresh needs the name of what is to be fetched anew")
        _list(json)
        return
    with console.download_bar() as report:
        folder = fetch_model(name, progress=report, refresh=refresh)
    console.print_json({"name": name, "folder": str(folder)}) if json else console.result(str(folder))


def _list(json: bool) -> None:
    """What can be fetched, and what is here."""
    from unmask.models.catalogue import catalogue, shipped
    from unmask.models.fetch import list_cached

    cached = {entry.name: entry for entry in list_cached()}
    rows: list[dict[str, Any]] = [
        {
            "name": model.name,
            "here": True,
            "megabytes": round(cached[model.name].size / 1e6),
            "licence": model.licence,
            "description": model.description,
        }
        for model in shipped().values()
    ]
    rows += [
        {
            "name": entry.name,
            "here": entry.name in cached,
            "megabytes": round(entry.size / 1e6),
            "licence": entry.licence,
            "description": entry.description,
        }
        for entry in catalogue().values()
    ]
    known = {row["name"] for row in rows}
    rows += [
        {"name": entry.name, "here": True, "megabytes": round(entry.size / 1e6), "licence": "", "description": "Hub"}
        for entry in cached.values()
        if entry.name not in known
    ]
    if json:
        for row in rows:
            console.print_json(row)
        return
    cells = [
        (row["name"], "yes" if row["here"] else "no", f"{row['megabytes']} MB", row["licence"], row["description"])
        for row in rows
    ]
    console.print_table(["name", "here", "size", "licence", "what"], cells)
    console.say("Any BERT on the Hugging Face Hub can be fetched too: unmask fetch ORG/NAME")


def info(
    model: Annotated[str, typer.Argument(metavar="NAME", help="Short name, Hub id, or folder.")],
    json: Json = False,
) -> None:
    """Show a model's architecture and its parameters, to the unit."""
    from unmask.bundle import load
    from unmask.models.inspect import inspect

    with console.download_bar() as report:
        bundle = load(model, progress=report)
    facts = inspect(bundle.model)
    if json:
        console.print_json(
            {
                "folder": str(bundle.folder),
                "loaded": str(bundle.report),
                "settings": bundle.model.settings.model_dump(mode="json"),
                "tokenizer": {"kind": bundle.tokenizer.kind, "vocab_size": bundle.tokenizer.vocab_size},
                "parameters": facts.total,
                "parts": [
                    {"part": part.name, "shapes": part.formula, "stored_as": part.stored_as}
                    | {"tensors": part.tensors, "parameters": part.parameters}
                    for part in facts.parts
                ],
            }
        )
        return
    console.say(f"{bundle.folder}: {bundle.report}")
    console.print_table(["setting", "value"], _settings_rows(bundle.model.settings.model_dump(mode="json"), bundle))
    _print_parts(facts)


def _print_parts(facts: Any) -> None:
    """The parameter table; on a narrow screen without the columns that can be done without."""
    columns = ["part", "stored as", "shapes", "tensors", "parameters"]
    rows = [(part.name, part.stored_as, part.formula, part.tensors, part.parameters) for part in facts.parts]
    total = ("total", "", "", sum(part.tensors for part in facts.parts), facts.total)
    if console.fits(columns, rows):
        console.print_table(columns, [*rows, total])
        return
    short: list[tuple[object, ...]] = []
    heading = ""
    for name, _, formula, _, parameters in rows:
        group, star, rest = name.partition("*.")
        if star and group != heading:
            short.append((f"{group}*", "", ""))
        heading = group if star else ""
        short.append((f"  .{rest}" if star else name, formula, parameters))
    console.print_table(["part", "shapes", "parameters"], [*short, ("total", "", facts.total)])
    console.say(
        "A wider terminal or --json also shows the name of each part in the folder and how many tensors it has."
    )


def _settings_rows(settings: dict[str, Any], bundle: Any) -> list[tuple[str, str]]:
    """Settings that say something: those left at "none" are passed over."""
    rows = []
    for name in sorted(settings, key=lambda name: _FIRST.index(name) if name in _FIRST else len(_FIRST)):
        value = settings[name]
        if value is None or value == []:
            continue
        if isinstance(value, dict):
            value = ", ".join(f"{key} {item}" for key, item in value.items())
        elif isinstance(value, list):
            value = ", ".join(item["kind"] if isinstance(item, dict) else str(item) for item in value)
        rows.append((name, str(value)))
    tokenizer = bundle.tokenizer
    case = "lower-cased" if tokenizer.lowercase else "cased"
    rows.append(("tokenizer", f"{tokenizer.kind}, {case}, {tokenizer.vocab_size:,} tokens"))
    if bundle.sentence is not None:
        normalised = ", normalised" if bundle.sentence.normalise else ""
        rows.append(("sentence vector", f"{bundle.sentence.pooling} of token vectors{normalised}"))
    return rows
