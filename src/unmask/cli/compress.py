"""`unmask compress`: a smaller and faster model that keeps a contract."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from unmask.cli import console
from unmask.cli.models import Json, Overwrite
from unmask.cli.predict import ColumnNames, Threads
from unmask.cli.text import Encoding
from unmask.errors import Stopped, UserError


def compress(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A fine-tuned model: folder, run folder, or Hub id.")],
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FOLDER", help="Folder for the smaller model.")],
    data: Annotated[str, typer.Option(metavar="FILE", help="Labelled examples to measure on; never learned from.")],
    train: Annotated[
        str | None, typer.Option(metavar="FILE", help="Labelled examples: what matters, and to learn again.")
    ] = None,
    max_drop: Annotated[
        float, typer.Option("--max-drop", min=0.0, metavar="POINTS", help="Of the main score, at most lost.")
    ] = 0.5,
    sure: Annotated[
        bool, typer.Option("--sure", metavar="", help="The end of the loss's 95 % interval counts, too.")
    ] = False,
    int8: Annotated[bool, typer.Option("--int8", metavar="", help="Store weights as int8 with a scale a row.")] = False,
    fp16: Annotated[bool, typer.Option("--fp16", metavar="", help="Store weights as halves.")] = False,
    vocab: Annotated[
        bool, typer.Option("--vocab", metavar="", help="Only tokens of your texts; others are spelt by them.")
    ] = False,
    vocab_size: Annotated[
        int | None, typer.Option("--vocab-size", min=1, metavar="N", help="The same with so many tokens.")
    ] = None,
    neurons: Annotated[
        float | None, typer.Option(metavar="SHARE", help="Of the feed-forward neurons that stay, as 0.5.")
    ] = None,
    heads: Annotated[float | None, typer.Option(metavar="SHARE", help="Of the attention heads that stay.")] = None,
    layers: Annotated[int | None, typer.Option(min=1, metavar="N", help="Layers that stay.")] = None,
    student: Annotated[
        str | None, typer.Option(metavar="NAME", help="Another encoder, to learn the same from this one (--distill).")
    ] = None,
    magnitude: Annotated[
        float | None, typer.Option(metavar="SHARE", help="For comparison: all smaller weights are zero.")
    ] = None,
    distill: Annotated[
        bool, typer.Option("--distill", metavar="", help="Learn again from the model itself, not only labels.")
    ] = False,
    no_recovery: Annotated[bool, typer.Option("--no-recovery", metavar="", help="Do not learn again.")] = False,
    examples: Annotated[int | None, typer.Option(min=1, metavar="N", help="Seen in each recovery; 20,000.")] = None,
    rate: Annotated[float | None, typer.Option("--learning-rate", metavar="X", help="Of the recovery; 1e-4.")] = None,
    changes: Annotated[
        list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="Change any setting of the recovery.")
    ] = None,
    columns: ColumnNames = None,
    encoding: Encoding = "utf-8",
    threads: Threads = None,
    resume: Annotated[bool, typer.Option("--resume", metavar="", help="Go on after an interruption.")] = False,
    overwrite: Overwrite = False,
    json: Json = False,
) -> None:
    """Make a fine-tuned model smaller and faster, as far as your own data allow; without steps, try a ladder."""
    console.new_folder_path(out, overwrite=overwrite)
    if int8 and fp16:
        raise UserError("give --int8 or --fp16, not both")
    console.use_threads(threads)
    from unmask.compress.lessons import Source
    from unmask.compress.run import Request
    from unmask.compress.run import compress as run
    from unmask.compress.settings import Contract, RecoverySettings, Steps
    from unmask.config import changed

    removes = any(part is not None for part in (student, neurons, heads, layers))
    learns = distill or (removes and not no_recovery)
    given: dict[str, Any] = {
        "student": student,
        "vocab": vocab or vocab_size is not None,
        "vocab_size": vocab_size,
        "neurons": neurons,
        "heads": heads,
        "layers": layers,
        "magnitude": magnitude,
        "recovery": "distill" if distill else "labels" if learns else "none",
        "storage": "int8" if int8 else "fp16" if fp16 else "fp32",
    }
    steps = Steps.parse(given, "options")
    recovery = changed({}, changes or ())
    recovery |= {name: value for name, value in (("examples", examples), ("learning_rate", rate)) if value is not None}
    request = Request(
        model,
        Source(data, columns, encoding),
        None if train is None else Source(train, columns, encoding),
        Contract(max_drop=max_drop, sure=sure),
        RecoverySettings.parse(recovery, "options"),
        () if steps == Steps() else (steps,),
    )
    try:
        outcome = run(request, out, console.say, _watch, resume=resume, overwrite=overwrite)
    except (Stopped, KeyboardInterrupt):
        console.say(f"nothing was written to {out}; the same command with --resume goes on from here")
        raise
    _show(outcome, out, json)


@contextmanager
def _watch(name: str) -> Iterator[Any]:
    from unmask.cli.training import BarListener, training_bar

    with training_bar(name) as bar:
        yield BarListener(bar)


def _show(outcome: Any, out: Path, json: bool) -> None:
    if json:
        console.print_json(outcome.as_json() | {"folder": str(out)})
        return
    metric = outcome.attempts[0].verdict.metric
    rows = [
        (
            ("★ " if one is outcome.best else "") + one.name,
            f"{one.bytes / 1e6:.1f}",
            f"1/{outcome.bytes_before / one.bytes:.1f}",
            f"{one.times_as_fast:.2f}",
            f"{100 * one.verdict.after:.2f}",
            f"{one.verdict.drop:+.2f} ({one.verdict.interval[0]:+.2f} to {one.verdict.interval[1]:+.2f})",
            "kept" if one.verdict.kept else "refused",
        )
        for one in outcome.attempts
    ]
    columns = ["attempt", "MB", "of the size", "times as fast", metric, "lost, 95 % interval", ""]
    console.print_table(columns, rows, title=f"{outcome.request.model}, {outcome.bytes_before / 1e6:.1f} MB")
    engine = " --engine int8" if outcome.best.storage == "int8" else ""
    console.result(f"{out}  the smaller model")
    console.result(f"{out / 'report.html'}  all attempts, with their picture")
    console.say(f"Next: unmask predict {out} FILE{engine}   ·   unmask bench {out}")
