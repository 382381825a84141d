"""`unmask train translate`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from json import dumps
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from unmask.cli import console
from unmask.cli.models import Json
from unmask.cli.text import Encoding
from unmask.cli.translate import Threads
from unmask.errors import UserError

_FILES = "Two files of sentences, line by line (--train a.en a.de), or one table with both."
_CONFIGS = "A .toml or .json file, or multi30k-tiny, tatoeba-es, tatoeba-zh, transformer-base, reverse."
_START = "A translator to begin with, ours or a Marian folder, instead of a new one."
Config = Annotated[str, typer.Argument(metavar="CONFIG", help=_CONFIGS)]
Columns = Annotated[
    str | None, typer.Option(metavar="NAMES", help="Of a table, where names do not tell: source=…,target=…")
]
BatchTokens = Annotated[
    int | None, typer.Option("--batch-tokens", metavar="N", help="Tokens of a batch, on its longer side.")
]
Vocabulary = Annotated[int | None, typer.Option("--vocabulary", metavar="N", help="Tokens of the vocabulary at most.")]
Changes = Annotated[list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="Change any setting.")]


class ManyValues(TyperCommand):
    """Lets --train and --dev be followed by several names, as a shell's file names are."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Give every name its own option."""
        return super().parse_args(ctx, expanded(args))


def expanded(args: Sequence[str], options: Sequence[str] = ("--train", "--dev")) -> list[str]:
    """`--train a b` as `--train a --train b`."""
    made: list[str] = []
    current = None
    for word in args:
        if word.startswith("-") and word != "-":
            current, fresh = (word if word in options else None), True
        elif current is not None:
            if not fresh:
                made.append(current)
            fresh = False
        made.append(word)
    return made


def train_translate(
    config: Config = "multi30k-tiny",
    train: Annotated[list[str] | None, typer.Option("--train", metavar="FILES", help=_FILES)] = None,
    dev: Annotated[list[str] | None, typer.Option("--dev", metavar="FILES", help="The same, to measure on.")] = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", metavar="FOLDER", help="Folder for the run.")] = None,
    start: Annotated[str | None, typer.Option("--model", metavar="MODEL", help=_START)] = None,
    arch: Annotated[str | None, typer.Option(metavar="KIND", help="transformer, lstm or lstm-attention.")] = None,
    columns: Columns = None,
    swap: Annotated[bool, typer.Option("--swap", metavar="", help="Learn to translate the other way round.")] = False,
    updates: Annotated[int | None, typer.Option(min=1, metavar="N", help="Steps of the optimizer.")] = None,
    batch_tokens: BatchTokens = None,
    rate: Annotated[float | None, typer.Option("--learning-rate", metavar="X", help="At its peak.")] = None,
    vocabulary: Vocabulary = None,
    seed: Annotated[int | None, typer.Option(metavar="N", help="Of first values, order and dropout.")] = None,
    seeds: Annotated[int, typer.Option(min=1, metavar="N", help="N runs with different seeds, and their mean.")] = 1,
    resume: Annotated[bool, typer.Option("--resume", metavar="", help="Go on with the run in the folder.")] = False,
    changes: Changes = None,
    encoding: Encoding = "utf-8",
    threads: Threads = None,
    json: Json = False,
) -> None:
    """Teach a Transformer (or an LSTM) to translate, from sentences and their translations."""
    from unmask.tasks.translate_settings import Texts, read_translate_settings
    from unmask.train.world import joined

    if not train or out is None:
        raise UserError("give what to learn from with --train FILES, and a folder for the run with --out FOLDER")
    said = {
        "start": start,
        "arch": arch,
        "train.updates": updates,
        "batch_tokens": batch_tokens,
        "train.optimizer.learning_rate": rate,
        "vocabulary.size": vocabulary,
    }
    if seed is not None:
        said |= {"seed": seed, "train.seed": seed}
    written = [f"{name}={dumps(value)}" for name, value in said.items() if value is not None]
    settings = read_translate_settings(config, [*written, *(changes or ())])
    texts = Texts(train=tuple(train), dev=tuple(dev or ()), columns=columns, swap=swap, encoding=encoding)
    console.use_threads(threads)
    with joined() as world:
        if seeds > 1:
            _several(settings, texts, out, resume, seeds, json)
            return
        found = _one(settings, texts, out, resume)
        if world.is_first:
            _show_run(out, found, json)


def _one(settings: Any, texts: Any, out: Path, resume: bool) -> dict[str, float]:
    """One run, shown as it goes."""
    from unmask.cli.training import BarListener, training_bar
    from unmask.tasks.translate_train import train_translation
    from unmask.train.checkpoint import newest_checkpoint
    from unmask.train.progress import Listener
    from unmask.train.world import World

    if not World.present().is_first:
        return train_translation(settings, texts, out, Listener(), resume=resume)
    newest = newest_checkpoint(out) if resume else None
    done = 0 if newest is None else int(newest.name.rpartition("-")[2])
    with training_bar(out.name, settings.train.updates, done) as bar:
        return train_translation(settings, texts, out, BarListener(bar), resume=resume)


def _several(settings: Any, texts: Any, out: Path, resume: bool, seeds: int, json: bool) -> None:
    from unmask.cli.train import show_seeds
    from unmask.train.seeds import run_seeds
    from unmask.train.world import World

    def job(seed: int) -> dict[str, float]:
        changed = settings.replace(seed=seed, train=settings.train.replace(seed=seed))
        return _one(changed, texts, out / f"seed-{seed}", resume)

    report = run_seeds(range(settings.seed, settings.seed + seeds), job)
    if World.present().is_first:
        show_seeds(report, out, json)


def _show_run(out: Path, found: Mapping[str, float], json: bool) -> None:
    from unmask.cli.training import summary
    from unmask.tasks.runs import MODEL

    if json:
        console.print_json({"model": str(out / MODEL), "evaluation": dict(found)})
        return
    console.print_table(["run", str(out)], summary(out))
    console.print_table(["the model that is kept", "dev"], [(name, f"{value:.4f}") for name, value in found.items()])
    console.result(f"{out / MODEL}  the model, with its card")
    console.result(f"{out / 'loss.png'}  its curves")
    console.say(f"Next: unmask translate {out / MODEL} FILE, or unmask evaluate {out / MODEL} test.src test.tgt")
