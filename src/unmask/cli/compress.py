"""`unmask compress`: a smaller and faster model that keeps a contract."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from unmask.cli import console
from unmask.cli.models import Json, Overwrite
from unmask.cli.predict import ColumnNames, Threads
from unmask.cli.text import Encoding
from unmask.errors import Stopped, UserError

_DATA = "Labelled examples to measure on; never learned from."
_TRAIN = "Labelled examples: what matters, and to learn again."

Model = Annotated[str, typer.Argument(metavar="MODEL", help="A fine-tuned model: folder, run folder, or Hub id.")]
Out = Annotated[Path, typer.Option("--out", "-o", metavar="FOLDER", help="Folder for the smaller model.")]
Data = Annotated[str, typer.Option(metavar="FILE", help=_DATA)]
Train = Annotated[str | None, typer.Option(metavar="FILE", help=_TRAIN)]
MaxDrop = Annotated[
    float, typer.Option("--max-drop", min=0.0, metavar="POINTS", help="Of the main score, lost at most.")
]
Sure = Annotated[bool, typer.Option("--sure", metavar="", help="The end of the loss's 95 % interval counts, too.")]
Int8 = Annotated[bool, typer.Option("--int8", metavar="", help="Store weights as int8 with a scale a row.")]
Fp16 = Annotated[bool, typer.Option("--fp16", metavar="", help="Store weights as halves.")]
Vocab = Annotated[bool, typer.Option("--vocab", metavar="", help="Leave out tokens that your texts do not have.")]
VocabSize = Annotated[int | None, typer.Option("--vocab-size", min=1, metavar="N", help="Keep so many tokens.")]
Neurons = Annotated[float | None, typer.Option(metavar="SHARE", help="Of feed-forward neurons that stay, as 0.5.")]
Heads = Annotated[float | None, typer.Option(metavar="SHARE", help="Of attention heads that stay.")]
Layers = Annotated[int | None, typer.Option(min=1, metavar="N", help="Layers that stay.")]
Student = Annotated[str | None, typer.Option(metavar="NAME", help="Another encoder, to learn the same (--distill).")]
Magnitude = Annotated[float | None, typer.Option(metavar="SHARE", help="For comparison: other weights are zero.")]
Distill = Annotated[bool, typer.Option("--distill", metavar="", help="Learn again from the model, not only labels.")]
NoRecovery = Annotated[bool, typer.Option("--no-recovery", metavar="", help="Do not learn again.")]
Examples = Annotated[int | None, typer.Option(min=1, metavar="N", help="Seen in each recovery; 20,000.")]
Rate = Annotated[float | None, typer.Option("--learning-rate", metavar="X", help="Of the recovery; 5e-5.")]
Changes = Annotated[list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="Any setting of the recovery.")]
Resume = Annotated[bool, typer.Option("--resume", metavar="", help="Go on after an interruption.")]


def compress(
    model: Model,
    out: Out,
    data: Data,
    train: Train = None,
    max_drop: MaxDrop = 0.5,
    sure: Sure = False,
    int8: Int8 = False,
    fp16: Fp16 = False,
    vocab: Vocab = False,
    vocab_size: VocabSize = None,
    neurons: Neurons = None,
    heads: Heads = None,
    layers: Layers = None,
    student: Student = None,
    magnitude: Magnitude = None,
    distill: Distill = False,
    no_recovery: NoRecovery = False,
    examples: Examples = None,
    rate: Rate = None,
    changes: Changes = None,
    columns: ColumnNames = None,
    encoding: Encoding = "utf-8",
    threads: Threads = None,
    resume: Resume = False,
    overwrite: Overwrite = False,
    json: Json = False,
) -> None:
    """Make a fine-tuned model smaller and faster, as far as your own data allow; without steps, try a ladder."""
    console.new_folder_path(out, overwrite=overwrite)
    console.use_threads(threads)
    if int8 and fp16:
        raise UserError("give --int8 or --fp16, not both")
    parts = {"student": student, "neurons": neurons, "heads": heads, "layers": layers}
    learns = not no_recovery and any(part is not None for part in parts.values())
    given = parts | {"vocab": vocab or vocab_size is not None, "vocab_size": vocab_size, "magnitude": magnitude}
    given["recovery"] = "distill" if distill else "labels" if learns else "none"
    given["storage"] = "int8" if int8 else "fp16" if fp16 else "fp32"
    request = _request(model, data, train, (columns, encoding), {"max_drop": max_drop, "sure": sure}, given)
    request = _with_recovery(request, {"examples": examples, "learning_rate": rate}, changes or ())
    _show(_run(request, out, resume, overwrite), out, json)


def _request(
    model: str, data: str, train: str | None, how: tuple[str | None, str], contract: Any, steps: dict[str, Any]
) -> Any:
    from unmask.compress.lessons import Source
    from unmask.compress.run import Request
    from unmask.compress.settings import Contract, Steps

    asked = Steps.parse(steps, "options")
    return Request(
        model,
        Source(data, *how),
        None if train is None else Source(train, *how),
        Contract.parse(contract, "options"),
        attempts=() if asked == Steps() else (asked,),
    )


def _with_recovery(request: Any, said: dict[str, Any], changes: Sequence[str]) -> Any:
    from unmask.compress.settings import RecoverySettings
    from unmask.config import changed

    given = changed({}, changes) | {name: value for name, value in said.items() if value is not None}
    return dataclasses.replace(request, recovery=RecoverySettings.parse(given, "options"))


def _run(request: Any, out: Path, resume: bool, overwrite: bool) -> Any:
    from unmask.compress.run import compress as run

    try:
        return run(request, out, console.say, _watch, resume=resume, overwrite=overwrite)
    except (Stopped, KeyboardInterrupt):
        console.say(f"nothing was written to {out}; the same command with --resume goes on from here")
        raise


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
