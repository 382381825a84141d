"""`unmask bench`: how fast a model is on this machine."""

from __future__ import annotations

import json as json_format
from pathlib import Path
from typing import Annotated, Any

import typer

from unmask.cli import console
from unmask.cli.models import Json, Overwrite
from unmask.cli.predict import Threads
from unmask.cli.text import Encoding
from unmask.errors import UserError


def bench(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="Short name, Hub id, or folder of an encoder.")],
    texts: Annotated[
        str | None, typer.Option("--texts", metavar="FILE", help="Your texts, one a line; default: made-up ones.")
    ] = None,
    engines: Annotated[
        str, typer.Option(metavar="NAMES", help="Of ours, with commas between: torch,fp32,int8.")
    ] = "torch,fp32,int8",
    peers: Annotated[
        str, typer.Option(metavar="NAMES", help="all that are installed, none, or names with commas between.")
    ] = "all",
    lengths: Annotated[
        str, typer.Option(metavar="TOKENS", help="Of the one text whose latency is measured, with commas between.")
    ] = "16,128",
    rounds: Annotated[int, typer.Option(min=1, metavar="N", help="Rounds of all in turn; the best counts.")] = 5,
    repeats: Annotated[int, typer.Option(min=5, metavar="N", help="Repeats of a latency.")] = 50,
    encoding: Encoding = "utf-8",
    threads: Threads = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="FOLDER", help="Folder for bench.json and bench.svg.")
    ] = None,
    overwrite: Overwrite = False,
    json: Json = False,
) -> None:
    """Measure a model's throughput and latency with our engines and, where installed, beside its peers."""
    if out is not None:
        console.new_folder_path(out, overwrite=overwrite)
    sizes = _numbers(lengths)
    console.use_threads(threads)
    from unmask.bench.run import Plan
    from unmask.bench.run import bench as measure
    from unmask.tasks.runs import model_folder

    plan = Plan(_engines(engines), _peers(peers), rounds, sizes, repeats)
    folder = model_folder(model)
    model = str(folder) if folder.is_dir() else model
    given = _texts(model, texts, encoding)
    with console.status("measuring") as tell:
        report = measure(model, given, plan, tell)
    if out is not None:
        _write(report, out, overwrite)
    if json:
        console.print_json(report.as_json())
        return
    _show(report)
    if out is not None:
        console.result(f"{out / 'bench.svg'}  the picture\n{out / 'bench.json'}  all figures")


def _numbers(given: str) -> list[int]:
    try:
        numbers = [int(part) for part in given.split(",") if part.strip()]
    except ValueError:
        raise UserError(f"--lengths: numbers of tokens with commas between, given {given!r}") from None
    if any(number < 3 for number in numbers):
        raise UserError(f"--lengths: a text has at least 3 tokens, given {given!r}")
    return numbers


def _engines(given: str) -> list[str]:
    from unmask.engine.choose import check_engine

    names = [part.strip() for part in given.split(",") if part.strip()]
    for name in names:
        check_engine(name)
    if not names:
        raise UserError("--engines: name at least one of torch, fp32, int8")
    return names


def _peers(given: str) -> list[str]:
    from unmask.bench.peers import PEERS, installed

    if given == "none":
        return []
    if given == "all":
        return installed()
    names = [part.strip() for part in given.split(",") if part.strip()]
    for name in names:
        if name not in PEERS:
            raise UserError(f"--peers: known are {', '.join(PEERS)}; given {name!r}")
        if not installed([name]):
            raise UserError(f"--peers: {name} is not installed; pip install 'unmask[bench]'")
    return names


def _texts(model: str, file: str | None, encoding: str) -> list[str]:
    from unmask.bench.texts import mixed_texts
    from unmask.text.files import check_encoding, read_lines
    from unmask.text.tokenizer import Tokenizer

    if file is None:
        from unmask.models.fetch import fetch

        with console.download_bar() as report:
            return mixed_texts(Tokenizer.from_folder(fetch(model, progress=report)))
    lines = [line for line in read_lines(file, encoding=check_encoding(encoding)) if line.strip()]
    if not lines:
        raise UserError(f"{file}: has no text in it")
    return lines


def _show(report: Any) -> None:
    sizes = sorted(report.figures[0].latency)
    columns = ["", "texts/s", "tokens/s", *(f"{size} tokens: p50, p99 ms" for size in sizes), "cosine", "how"]
    rows = [
        (
            one.name,
            f"{one.texts_per_second:,.0f}",
            f"{one.tokens_per_second:,.0f}",
            *(f"{one.latency[size]['p50']:.2f}, {one.latency[size]['p99']:.2f}" for size in sizes),
            f"{one.cosine:.4f}",
            one.note,
        )
        for one in report.figures
    ]
    mean = sum(report.tokens) / len(report.tokens)
    title = f"{report.model}: {report.texts} texts, mean {mean:.0f} and at most {max(report.tokens)} tokens"
    console.print_table(columns, rows, title=f"{title}, {report.threads} threads")
    grown = ", ".join(f"{name} {size:,.0f} MB" for name, size in report.megabytes.items())
    console.say(f"memory that each of ours added to the process: {grown}")


def _write(report: Any, out: Path, overwrite: bool) -> None:
    from unmask.bench.plot import plot
    from unmask.storage import new_folder

    with new_folder(out, overwrite=overwrite) as draft:
        (draft / "bench.json").write_text(json_format.dumps(report.as_json(), indent=1) + "\n", encoding="utf-8")
        plot(report, draft / "bench.svg")
