"""`unmask train classify`, `unmask train tag` and `unmask train qa`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from unmask.cli.finetune_job import FinetuneJob
from unmask.cli.first_look import first_look
from unmask.cli.models import Json

_MODEL = "A BERT to start from: short name, Hub id, or folder."
_TRAIN = "Labelled file: .csv .tsv .jsonl .json .parquet{more}, or hub:NAME:SPLIT."
_DEV = "The same, to measure on; a tenth of the training file is set apart if not given."

Model = Annotated[str, typer.Option("--model", "-m", metavar="NAME", help=_MODEL)]
Out = Annotated[Path, typer.Option("--out", "-o", metavar="FOLDER", help="Folder for the run.")]
Dev = Annotated[str | None, typer.Option(metavar="FILE", help=_DEV)]
Config = Annotated[
    str | None, typer.Option(metavar="FILE", help="Settings from a .toml or .json file, or sst2-minilm.")
]
Epochs = Annotated[float | None, typer.Option(metavar="N", help="How often every example is seen; 3.")]
Batch = Annotated[int | None, typer.Option("--batch-size", metavar="N", help="Examples of an update; 32.")]
Rate = Annotated[float | None, typer.Option("--learning-rate", metavar="X", help="5e-5 if not given.")]
MaxLength = Annotated[int | None, typer.Option("--max-length", metavar="N", help="Tokens read at once.")]
LongText = Annotated[
    str | None,
    typer.Option(
        "--long-text", metavar="WAY", help="auto (default), head, tail, head_tail, windows, parts, hierarchical."
    ),
]
Layers = Annotated[int | None, typer.Option(metavar="N", help="Use only the N lowest layers.")]
ClassWeights = Annotated[
    str | None, typer.Option("--class-weights", metavar="HOW", help="none, or auto: rare labels count more.")
]
Smoothing = Annotated[float | None, typer.Option(metavar="X", help="Label smoothing, 0 if not given.")]
Decay = Annotated[float | None, typer.Option("--layer-decay", metavar="X", help="Each layer below learns X as fast.")]
Fgm = Annotated[float | None, typer.Option(metavar="X", help="Learn also from embeddings moved by X (FGM).")]
RDrop = Annotated[float | None, typer.Option("--r-drop", metavar="X", help="Weight of agreement under dropout.")]
Freeze = Annotated[int | None, typer.Option(metavar="N", help="Embeddings and N lowest layers do not learn.")]
Nothing = Annotated[
    bool, typer.Option("--from-nothing", metavar="", help="Random weights: what is pre-training worth?")
]
Seed = Annotated[
    int | None, typer.Option(metavar="N", help="Of the new head, the order, dropout, and what is set apart.")
]
Seeds = Annotated[int, typer.Option(min=1, metavar="N", help="N runs with different seeds, and their mean.")]
Grid = Annotated[bool, typer.Option("--grid", metavar="", help="Try batch 16, 32 × 5e-5, 3e-5, 2e-5 × epochs 3, 4.")]
Resume = Annotated[bool, typer.Option("--resume", metavar="", help="Go on with the run in the folder.")]
Changes = Annotated[list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="Change any setting.")]
Separator = Annotated[str | None, typer.Option(metavar="MARK", help="Between several labels, if not recognised.")]
Encoding = Annotated[str, typer.Option(metavar="NAME", help="Of text files: utf-8 or gb18030.")]
Threads = Annotated[int | None, typer.Option(min=1, metavar="N", help="Threads; all cores if not given.")]


def classify(
    train_file: Annotated[str, typer.Option("--train", metavar="FILE", help=_TRAIN.format(more=""))],
    out: Out,
    model: Model = "minilm",
    dev: Dev = None,
    columns: Annotated[
        str | None, typer.Option(metavar="NAMES", help="Where names do not tell: text=…,pair=…,label=…")
    ] = None,
    separator: Separator = None,
    problem: Annotated[str | None, typer.Option(metavar="KIND", help="auto, single, multi or regression.")] = None,
    pooling: Annotated[str | None, typer.Option(metavar="HOW", help="pooler, cls, mean or max.")] = None,
    epochs: Epochs = None,
    batch: Batch = None,
    rate: Rate = None,
    max_length: MaxLength = None,
    long_text: LongText = None,
    join: Annotated[str | None, typer.Option(metavar="HOW", help="Of windows: mean, max or attention.")] = None,
    layers: Layers = None,
    class_weights: ClassWeights = None,
    smoothing: Smoothing = None,
    layer_decay: Decay = None,
    fgm: Fgm = None,
    r_drop: RDrop = None,
    freeze: Freeze = None,
    from_nothing: Nothing = False,
    seed: Seed = None,
    seeds: Seeds = 1,
    grid: Grid = False,
    resume: Resume = False,
    config: Config = None,
    changes: Changes = None,
    encoding: Encoding = "utf-8",
    threads: Threads = None,
    json: Json = False,
) -> None:
    """Teach a model to label texts, or pairs of texts, from your file."""
    files = {"model": model, "train": train_file, "dev": dev, "encoding": encoding}
    files |= {"columns": columns, "separator": separator}
    if config is None and not changes:  # these may change how files are read
        first_look("classify", files, problem)
    from unmask.tasks.finetune_classify import prepare_classify
    from unmask.tasks.finetune_settings import ClassifyRun

    said = {"problem": problem, "pooling": pooling, "long_text.join": join, "seed": seed}
    said |= _common(epochs, batch, rate, max_length, long_text, layers) | _options(
        class_weights, smoothing, layer_decay, fgm, r_drop, freeze, from_nothing
    )
    job = FinetuneJob(ClassifyRun, prepare_classify, files, out, resume, seeds, grid, threads, json)
    job.run(config, said, changes or ())


def tag(
    train_file: Annotated[str, typer.Option("--train", metavar="FILE", help=_TRAIN.format(more=", CoNLL columns"))],
    out: Out,
    model: Model = "minilm",
    dev: Dev = None,
    crf: Annotated[bool, typer.Option("--crf", metavar="", help="Learn which label follows which (CRF).")] = False,
    scheme: Annotated[str | None, typer.Option(metavar="NAME", help="BIO or BIOES, whatever the file has.")] = None,
    epochs: Epochs = None,
    batch: Batch = None,
    rate: Rate = None,
    max_length: MaxLength = None,
    layers: Layers = None,
    class_weights: ClassWeights = None,
    smoothing: Smoothing = None,
    layer_decay: Decay = None,
    fgm: Fgm = None,
    r_drop: RDrop = None,
    freeze: Freeze = None,
    from_nothing: Nothing = False,
    seed: Annotated[
        int | None, typer.Option(metavar="N", help="Of the new head, the order, dropout, and what is set apart.")
    ] = None,
    seeds: Seeds = 1,
    grid: Grid = False,
    resume: Resume = False,
    config: Config = None,
    changes: Changes = None,
    encoding: Encoding = "utf-8",
    threads: Threads = None,
    json: Json = False,
) -> None:
    """Teach a model to find names and other stretches, or to tag words, from your file."""
    files = {"model": model, "train": train_file, "dev": dev, "encoding": encoding}
    if config is None and not changes:  # these may change how files are read
        first_look("tag", files)
    from unmask.tasks.finetune_settings import TagRun
    from unmask.tasks.finetune_tag import prepare_tag

    said: dict[str, Any] = {"crf": crf or None, "scheme": scheme, "seed": seed}
    said |= _common(epochs, batch, rate, max_length, None, layers) | _options(
        class_weights, smoothing, layer_decay, fgm, r_drop, freeze, from_nothing
    )
    FinetuneJob(TagRun, prepare_tag, files, out, resume, seeds, grid, threads, json).run(config, said, changes or ())


def qa(
    train_file: Annotated[str, typer.Option("--train", metavar="FILE", help="SQuAD, CMRC or DRCD JSON, or .jsonl.")],
    out: Out,
    model: Model = "minilm",
    dev: Dev = None,
    max_answer: Annotated[int | None, typer.Option("--max-answer", metavar="N", help="Tokens; 30.")] = None,
    epochs: Epochs = None,
    batch: Batch = None,
    rate: Rate = None,
    max_length: MaxLength = None,
    overlap: Annotated[int | None, typer.Option(metavar="N", help="Tokens that windows share; 128.")] = None,
    layers: Layers = None,
    smoothing: Smoothing = None,
    layer_decay: Decay = None,
    fgm: Fgm = None,
    freeze: Freeze = None,
    from_nothing: Nothing = False,
    seed: Annotated[
        int | None, typer.Option(metavar="N", help="Of the new head, the order, dropout, and what is set apart.")
    ] = None,
    seeds: Seeds = 1,
    grid: Grid = False,
    resume: Resume = False,
    config: Config = None,
    changes: Changes = None,
    encoding: Encoding = "utf-8",
    threads: Threads = None,
    json: Json = False,
) -> None:
    """Teach a model to answer questions about a text, or to say that it does not tell."""
    files = {"model": model, "train": train_file, "dev": dev, "encoding": encoding}
    if config is None and not changes:  # these may change how files are read
        first_look("qa", files)
    from unmask.tasks.finetune_answer import prepare_answer
    from unmask.tasks.finetune_settings import AnswerRun

    said: dict[str, Any] = {"max_answer": max_answer, "long_text.overlap": overlap, "seed": seed}
    said |= _common(epochs, batch, rate, max_length, None, layers) | _options(
        None, smoothing, layer_decay, fgm, None, freeze, from_nothing
    )
    FinetuneJob(AnswerRun, prepare_answer, files, out, resume, seeds, grid, threads, json).run(
        config, said, changes or ()
    )


def _common(
    epochs: float | None,
    batch: int | None,
    rate: float | None,
    max_length: int | None,
    long_text: str | None,
    layers: int | None,
) -> dict[str, Any]:
    return {
        "epochs": epochs,
        "batch_size": batch,
        "train.optimizer.learning_rate": rate,
        "long_text.max_length": max_length,
        "long_text.strategy": long_text,
        "layers": layers,
    }


def _options(
    class_weights: str | None,
    smoothing: float | None,
    layer_decay: float | None,
    fgm: float | None,
    r_drop: float | None,
    freeze: int | None,
    from_nothing: bool,
) -> dict[str, Any]:
    return {
        "loss.class_weights": class_weights,
        "loss.smoothing": smoothing,
        "train.optimizer.layer_decay": layer_decay,
        "train.fgm": fgm,
        "r_drop": r_drop,
        "train.freeze.layers": freeze,
        "train.freeze.embeddings": None if freeze is None else True,
        "from_nothing": from_nothing or None,
    }


def register(train: typer.Typer) -> None:
    """Put the commands below `unmask train`."""
    for name, command in (("classify", classify), ("tag", tag), ("qa", qa)):
        train.command(name)(command)
