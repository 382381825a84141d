"""`unmask train pretrain`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from unmask.cli import console
from unmask.cli.models import Json
from unmask.errors import UserError

train = typer.Typer(help="Train a model.", no_args_is_help=True)


@train.command("pretrain")
def pretrain(
    config: Annotated[
        str,
        typer.Argument(
            help="A .toml or .json file, or bert-tiny-demo, bert-tiny-zh, bert-mini-en, bert-mini-zh, bert-base."
        ),
    ],
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FOLDER", help="Folder for the run.")],
    text: Annotated[
        list[str] | None, typer.Option("--text", metavar="FILE", help="Text to learn from; repeat.")
    ] = None,
    corpus: Annotated[
        str | None, typer.Option(metavar="FOLDER", help="A corpus (unmask corpus build), instead of text.")
    ] = None,
    tokenizer: Annotated[
        str | None, typer.Option(metavar="NAME", help="Tokenizer; learned from the text if not given.")
    ] = None,
    start: Annotated[
        str | None, typer.Option("--from", metavar="NAME", help="Go on from this BERT instead of from nothing.")
    ] = None,
    extend: Annotated[
        int, typer.Option(min=0, metavar="N", help="Give N frequent words of the text a token of their own.")
    ] = 0,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in the folder.")] = False,
    seeds: Annotated[int, typer.Option(min=1, metavar="N", help="N runs with different seeds, and their mean.")] = 1,
    find_rate: Annotated[
        bool, typer.Option("--find-rate", help="Only try learning rates, and draw the curve.")
    ] = False,
    changes: Annotated[
        list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="Change a setting: train.save_every=100.")
    ] = None,
    threads: Annotated[int | None, typer.Option(min=1, metavar="N", help="Threads; all cores if not given.")] = None,
    json: Json = False,
) -> None:
    """Pre-train BERT (MLM and NSP) on your text. After an interruption, --resume goes on where it was."""
    from unmask.tasks.pretrain_run import Inputs, recorded_inputs
    from unmask.tasks.pretrain_settings import read_pretrain_settings

    settings = read_pretrain_settings(config, changes or ())
    inputs = Inputs(text=tuple(text or ()), corpus=corpus, tokenizer=tokenizer, start=start, extend=extend)
    if inputs == Inputs():
        inputs = recorded_inputs(Path(config)) or inputs
    _check(inputs, out)
    console.use_threads(threads)
    # torchrun starts everything again when a process is lost: then there is something to go on with.
    resume = resume or int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0
    _train(settings, inputs, out, resume=resume, seeds=seeds, find_rate=find_rate, json=json)


def _train(settings: Any, inputs: Any, out: Path, *, resume: bool, seeds: int, find_rate: bool, json: bool) -> None:
    """One run, several, or a sweep of learning rates, in as many processes as torchrun started."""
    from unmask.train.world import joined

    with joined() as world:
        if find_rate:
            if world.size > 1:
                raise UserError("--find-rate tries learning rates in a single process; start it without torchrun")
            _find_rate(settings, inputs, out, json)
        elif seeds > 1:
            report = _several(settings, inputs, out, resume, seeds)
            if world.is_first:
                show_seeds(report, out, json)
        else:
            values = _one(settings, inputs, out, resume)
            if world.is_first:
                _show(out, values, json)


def _check(inputs: Any, out: Path) -> None:
    if inputs.text and inputs.corpus is not None:
        raise UserError("give --text or --corpus, not both")
    if inputs.extend and inputs.corpus is not None:
        raise UserError("--extend needs --text: the tokens of a corpus are fixed")
    if inputs.tokenizer is not None and inputs.corpus is not None:
        raise UserError("--tokenizer needs --text: a corpus has its own")
    for name in inputs.text:
        if not (Path(name).is_file() or (out / "data" / "corpus").is_dir()):
            raise UserError(f"{name}: no such file")


def _one(settings: Any, inputs: Any, out: Path, resume: bool) -> dict[str, float]:
    """One run, shown as it goes."""
    from unmask.cli.training import BarListener, training_bar
    from unmask.tasks.pretrain_run import PretrainListener, pretrain
    from unmask.train.checkpoint import newest_checkpoint
    from unmask.train.world import World

    if not World.present().is_first:
        return pretrain(settings, inputs, out, PretrainListener(), resume=resume)
    newest = newest_checkpoint(out) if resume else None
    done = 0 if newest is None else int(newest.name.rpartition("-")[2])
    with training_bar(out.name, settings.train.updates, done) as bar:

        class Shown(BarListener, PretrainListener):
            def masking(self, report: Any) -> None:
                bar.table(["masking", "found", "expected", "99 % interval", "ok"], report.rows())

        return pretrain(settings, inputs, out, Shown(bar, "held out"), resume=resume)


def _several(settings: Any, inputs: Any, out: Path, resume: bool, seeds: int) -> Any:
    """The same run with several seeds; one that fails does not stop the others."""
    from unmask.train.seeds import run_seeds

    first = settings.seed

    def job(seed: int) -> dict[str, float]:
        changed = settings.replace(
            seed=seed, model=settings.model.replace(seed=seed), train=settings.train.replace(seed=seed)
        )
        return _one(changed, inputs, out / f"seed-{seed}", resume)

    return run_seeds(range(first, first + seeds), job)


def show_seeds(report: Any, out: Path, json: bool) -> None:
    """The scores over all seeds, and which of them failed."""
    report.write(out / "seeds.json")
    if json:
        console.print_json(report.as_json())
        _tell_failed(report)
        return
    rows = [
        (name, f"{found.mean:.4f}", _interval(found), found.n, f"{found.min:.4f}", f"{found.max:.4f}")
        for name, found in report.scores.items()
    ]
    console.print_table(["score", "mean", "95 % interval", "seeds", "least", "most"], rows)
    _tell_failed(report)


def _tell_failed(report: Any) -> None:
    """Name the seeds that failed; a script must see it in the exit code too."""
    if report.failed:
        told = "; ".join(f"seed {seed}: {why}" for seed, why in report.failed.items())
        raise UserError(f"{len(report.failed)} of {len(report.results)} seeds failed ({told})")


def _interval(found: Any) -> str:
    return "–" if found.low is None else f"{found.low:.4f} to {found.high:.4f}"


def _find_rate(settings: Any, inputs: Any, out: Path, json: bool) -> None:
    """Try learning rates from tiny to huge, and draw what happens."""
    from unmask.tasks.pretrain import Pretraining
    from unmask.tasks.pretrain_run import PretrainListener, claim, prepare
    from unmask.train.finder import FinderSettings, find_rate, plot_sweep

    class Said(PretrainListener):
        def say(self, text: str) -> None:
            console.say(text)

    claim(out, settings, inputs, resume=True)
    prepared = prepare(settings, inputs, out, Said())
    task = Pretraining(settings.pairs.objective, settings.pairs.weight)
    with console.counting("learning rates"):
        sweep = find_rate(prepared.model, task, prepared.source, FinderSettings(), settings.train.optimizer)
    picture = out / "rates.png"
    plot_sweep(sweep, picture)
    if json:
        console.print_json({"suggestion": sweep.suggestion, "tenth_of_best": sweep.tenth_of_best, "plot": str(picture)})
        return
    suggested = "none: the loss never fell" if sweep.suggestion is None else f"{sweep.suggestion:.1e}"
    console.print_table(
        ["learning rate", "value"],
        [("where the loss falls fastest", suggested), ("a tenth of the best", f"{sweep.tenth_of_best:.1e}")],
    )
    console.result(f"{picture}  the curve")


def _show(out: Path, values: Mapping[str, float], json: bool) -> None:
    from unmask.cli.training import summary
    from unmask.tasks.runs import MODEL

    if json:
        console.print_json({"model": str(out / MODEL), "evaluation": dict(values)})
        return
    console.print_table(["run", str(out)], summary(out))
    console.result(f"{out / MODEL}  the model, in Hugging Face's layout")
    console.result(f"{out / 'loss.png'}  its curves")
