"""The commands put together, and what happens when one fails."""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType
from typing import Annotated

import typer

from unmask import __version__
from unmask.cli import (
    bench,
    compress,
    console,
    corpus,
    doctor,
    export,
    finetune,
    lab,
    models,
    predict,
    quickstart,
    text,
    train,
    train_translate,
    translate,
    use,
)
from unmask.errors import Stopped, UnmaskError

app = typer.Typer(
    name="unmask",
    help="The Transformer and BERT: fetch a model, look inside it, use it on your text.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"unmask {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", metavar="", help="Show the version.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    pass


app.command("fetch")(models.fetch)
app.command("info")(models.info)
app.command("tokenize")(text.tokenize)
app.command("embed")(use.embed)
app.command("fill-mask")(use.fill_mask)
app.command("doctor")(doctor.doctor)
app.command("predict")(predict.predict)
app.command("evaluate")(predict.evaluate)
app.command("compare")(predict.compare)
app.command("translate")(translate.translate)
app.command("export")(export.export)
app.command("bench")(bench.bench)
app.command("compress")(compress.compress)
app.command("quickstart")(quickstart.quickstart)
app.add_typer(text.tokenizer, name="tokenizer")
app.add_typer(corpus.corpus, name="corpus")
app.add_typer(lab.lab, name="lab")
finetune.register(train.train)
train.train.command("translate", cls=train_translate.ManyValues)(train_translate.train_translate)
app.add_typer(train.train, name="train")


def main(arguments: list[str] | None = None) -> None:
    """Run a command and leave with its exit code."""
    os.environ.setdefault("RUST_BACKTRACE", "0")  # where a library panics, our sentence says it
    for signum in (signal.SIGINT, signal.SIGTERM):
        signal.signal(signum, _stop)
    sys.exit(run(arguments))


def run(arguments: list[str] | None = None) -> int:
    """Run a command; what went wrong becomes one sentence on stderr and an exit code."""
    try:
        app(arguments)
    except UnmaskError as error:
        console.say(f"unmask: {error}")
        return error.exit_code
    except SystemExit as leave:  # how the library ends a command, usage errors included
        return leave.code if isinstance(leave.code, int) else 0
    except (Stopped, KeyboardInterrupt) as stopped:
        console.say("unmask: stopped")
        return stopped.exit_code if isinstance(stopped, Stopped) else 130
    return 0


def _stop(signum: int, frame: FrameType | None) -> None:
    raise Stopped(signum)
