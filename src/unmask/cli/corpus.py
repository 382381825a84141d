"""`unmask corpus build` and `unmask corpus info`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from unmask.cli import console
from unmask.cli.models import Json
from unmask.errors import SettingsError

corpus = typer.Typer(help="Turn text into the tokens that pre-training reads.", no_args_is_help=True)


@corpus.command("build")
def build(
    files: Annotated[
        list[Path], typer.Argument(help="Text (.txt), JSON lines (.jsonl) or .parquet; .gz of the first two.")
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for the corpus.")],
    tokenizer: Annotated[str, typer.Option("--tokenizer", "-t", help="Tokenizer: folder, short name, or Hub id.")],
    format: Annotated[
        str, typer.Option(help="What a line is: one of the sentences, or one of the paragraphs, to be split.")
    ] = "sentences",
    field: Annotated[str, typer.Option(help="Field (.jsonl) or column (.parquet) with the text.")] = "text",
    words: Annotated[
        bool, typer.Option("--words/--no-words", help="Find Chinese words, for masking whole ones.")
    ] = True,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Processes; as many as there are cores if not given.")
    ] = None,
    engine: Annotated[
        str, typer.Option(help="Who encodes: local, the processes of this machine, or ray, those of a Ray cluster.")
    ] = "local",
    ray_address: Annotated[
        str | None, typer.Option(help="The cluster, as HOST:PORT or auto; one of this machine alone if not given.")
    ] = None,
    shard_tokens: Annotated[int, typer.Option(help="A shard ends with the document that reaches so many.")] = 1 << 24,
    encoding: Annotated[str, typer.Option(help="utf-8 or gb18030.")] = "utf-8",
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a folder that exists.")] = False,
    json: Json = False,
) -> None:
    """Build a corpus; after an interruption, the same command goes on where it was."""
    from unmask.data.corpus.build import build_with
    from unmask.data.corpus.format import CorpusSettings
    from unmask.models.fetch import fetch
    from unmask.text import Tokenizer

    settings = CorpusSettings.parse(
        {"format": format, "field": field, "words": words, "shard_tokens": shard_tokens, "encoding": encoding},
        "corpus build",
    )
    encode = _engine(engine, workers, ray_address)
    with console.download_bar() as progress:
        chosen = Tokenizer.from_folder(fetch(tokenizer, progress=progress))
    with _build_bar() as listener:
        built = build_with(encode, files, chosen, out, settings, overwrite=overwrite, listener=listener)
    _show(built, json)


def _engine(name: str, workers: int | None, address: str | None) -> Any:
    """Who encodes, by the word for it."""
    from unmask.data.corpus.build import on_this_machine
    from unmask.data.corpus.scale import on_ray

    if name == "ray":
        return on_ray(workers, address=address)
    if name != "local":
        raise SettingsError(f"--engine is local or ray, given {name!r}")
    if address is not None:
        raise SettingsError("--ray-address is for a build on a cluster; add --engine ray")
    return on_this_machine(workers)


@corpus.command("info")
def info(
    folder: Annotated[Path, typer.Argument(help="A corpus folder.")],
    verify: Annotated[bool, typer.Option("--verify", help="Read every byte and compare it with its hash.")] = False,
    json: Json = False,
) -> None:
    """Show what is in a corpus."""
    from unmask.data.corpus.store import Corpus

    opened = Corpus.open(folder)
    if verify:
        opened.verify()
        console.say(f"{folder}: every file is as it was written")
    _show(opened, json)


def _show(opened: Any, json: bool) -> None:
    """The facts of a corpus, for people or programs."""
    from unmask.data.corpus.format import histogram_labels, percentage

    found, record = opened.statistics, opened.tokenizer_record
    if json:
        console.print_json(
            {
                "folder": str(opened.folder),
                "files": len(opened.manifest.inputs),
                "shards": len(opened.manifest.shards),
                "settings": opened.settings.model_dump(mode="json"),
                "tokenizer": record.model_dump(mode="json"),
                **found.model_dump(mode="json"),
                "unknown_rate": found.unknown_rate,
                "sentence_lengths": dict(histogram_labels(found.sentence_lengths)),
                "document_lengths": dict(histogram_labels(found.document_lengths)),
            }
        )
        return
    console.print_table(["", str(opened.folder)], _facts(opened))
    for name, counts in (("sentences", found.sentence_lengths), ("documents", found.document_lengths)):
        rows = [(label, count, percentage(count, sum(counts))) for label, count in histogram_labels(counts)]
        console.print_table(["tokens", name, "share"], rows)
    if found.special_tokens:
        console.say(f"{found.special_tokens:,} special tokens, such as [MASK], were written out in the text itself")


def _facts(opened: Any) -> list[tuple[str, object]]:
    from unmask.data.corpus.format import percentage

    found, record = opened.statistics, opened.tokenizer_record
    return [
        ("files", len(opened.manifest.inputs)),
        ("documents", found.documents),
        (
            "documents seen before",
            f"{found.duplicate_documents:,} ({percentage(found.duplicate_documents, found.documents)})",
        ),
        ("documents left out, without a token", found.empty_documents),
        ("sentences", found.sentences),
        ("sentences left out, without a token", found.empty_sentences),
        ("characters", found.characters),
        ("words", found.words),
        ("tokens", found.tokens),
        ("unknown tokens", f"{found.unknown_tokens:,} ({percentage(found.unknown_tokens, found.tokens)})"),
        ("tokens of the longest sentence", found.longest_sentence),
        ("tokens of the longest document", found.longest_document),
        ("shards", len(opened.manifest.shards)),
        ("tokenizer", f"{record.kind}, {record.vocab_size:,} tokens, sha256 {record.sha256[:12]}…"),
        ("Chinese words", "found" if opened.settings.words else "not looked for"),
    ]


@contextmanager
def _build_bar() -> Iterator[Callable[[Any], None]]:
    """A listener that draws bytes read and documents a second, on a terminal; sentences are always said."""
    screen = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeRemainingColumn(),
    )
    began = time.monotonic()
    with Bar(*columns, console=screen, disable=not screen.is_terminal, transient=True) as bar:
        task = bar.add_task("building", total=None, rate="")
        first: list[int] = []

        def hear(heard: Any) -> None:
            if isinstance(heard, str):
                console.say(heard)
                return
            first[:] = first or [heard.documents]  # those of an earlier, interrupted build do not count as fast
            rate = (heard.documents - first[0]) / max(time.monotonic() - began, 1e-9)
            bar.update(task, completed=heard.done, total=heard.total, rate=f"{rate:,.0f} documents/s")

        yield hear
