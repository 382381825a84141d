"""A fine-tuning run from a labelled file to a model in use: read → examine → encode → the loop → measure → write."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch

from unmask.data.columns import parse_columns
from unmask.data.doctor import DoctorSettings, examine
from unmask.errors import DataError, ModelError, SettingsError
from unmask.longtext.settings import LongTask, choose
from unmask.models.assign import assign, named_tensors
from unmask.models.bert import Bert, device_of, num_parameters
from unmask.models.fetch import fetch
from unmask.models.folder import load_model, write_model
from unmask.models.huggingface import needs_own_heads
from unmask.models.init import assemble, build_model
from unmask.models.long_positions import extend_positions
from unmask.models.settings import HeadSettings
from unmask.models.surgery import remove_layers
from unmask.nn.settings import DropoutSettings
from unmask.report.card import model_card
from unmask.report.outcome import DataFacts, Evaluation, ModelFacts, write_evaluation
from unmask.report.page import write_report
from unmask.storage import atomic_write, new_folder
from unmask.tasks import runs
from unmask.tasks.estimate import estimate
from unmask.tasks.finetune_settings import Files, FinetuneSettings
from unmask.tasks.scoring import Scored
from unmask.tasks.usage import Usage, write_usage
from unmask.tasks.windows import Epochs, windows_in
from unmask.text.files import check_encoding
from unmask.text.tokenizer import Tokenizer
from unmask.train.checkpoint import read_best
from unmask.train.environment import environment
from unmask.train.fgm import embedding_parameters
from unmask.train.freeze import freeze
from unmask.train.loop import fit
from unmask.train.precision import build_scaler
from unmask.train.progress import Listener
from unmask.train.rdrop import RDrop
from unmask.train.record import METRICS, read_entries, training_seconds
from unmask.train.settings import TrainSettings
from unmask.train.task import Evaluator, Task
from unmask.train.world import World, check_possible, local_device

EVALUATION = "evaluation.json"
REPORT = "report.html"
_LONGER = 4  # times as many tokens are read at once with hierarchical positions, where nobody says how many
Example = TypeVar("Example")


@dataclass(frozen=True)
class Job:
    """What the loop needs, whatever the task, and what is done when it has ended."""

    model: Bert
    tokenizer: Tokenizer
    usage: Usage
    task: Task[Any]
    items: Sequence[Any]
    collate: Callable[[Sequence[Any]], Any]
    evaluator: Evaluator
    data: tuple[DataFacts, ...]
    notes: tuple[str, ...]
    measure: Callable[[Bert], Scored]


Prepare = Callable[[Any, Files, Listener], Job]


def finetune(
    settings: FinetuneSettings, files: Files, run: Path, prepare: Prepare, listener: Listener, *, resume: bool = False
) -> Evaluation | None:
    """Train, going on if `resume`, measure and write `RUN/model`, `RUN/report.html` and `RUN/evaluation.json`.

    With several processes each calls this with the same arguments; only the first one speaks, and gives the evaluation.
    """
    world = World.present()
    listener = listener if world.is_first else Listener()
    runs.check_free(run, resume=resume)  # before texts are read, which may take minutes
    job = prepare(settings, files, listener)  # before the folder is claimed: bad input must leave nothing behind
    notes = (*job.notes, *(_examined(settings, files, job, listener) if world.is_first else ()))
    source = Epochs(job.items, job.collate, settings.batch_size, settings.train.accumulate, settings.seed)
    loop = settings.loop(len(job.items), source.updates_of_epoch)
    _check_possible(job.model, loop)
    task: Any = job.task
    if settings.r_drop is not None:
        if not hasattr(task, "logits"):
            raise SettingsError("r_drop: needs a task with one row of logits an item; question answering has none")
        task = RDrop(task, settings.r_drop)
    content = {role: sha256_of(name) for role, name in (("train", files.train), ("dev", files.dev)) if name}
    resolved = {
        "finetune": settings.model_dump(mode="json"),
        "files": files.model_dump(mode="json") | {"sha256": content},
    }
    if world.is_first:
        runs.claim(run, resolved, resume=resume)
    world.wait()
    fit(job.model, task, source, loop, run, job.evaluator, listener)
    read_best(run, job.model)
    evaluation = None
    if world.is_first:
        evaluation = _conclude(run, dataclasses.replace(job, notes=notes), settings, files, listener)
    world.wait()
    return evaluation


def _check_possible(model: Bert, loop: TrainSettings) -> None:
    """Say now what the loop would refuse when the folder is already claimed."""
    check_possible(model, World.present(loop.engine), loop.precision, loop.compile)
    build_scaler(device_of(model), loop.precision)
    freeze(model, loop.freeze)
    if loop.fgm is not None:
        embedding_parameters(model)


def _examined(settings: FinetuneSettings, files: Files, job: Job, listener: Listener) -> list[str]:
    """What the doctor has to say that did not stop the run, and how long it may take."""
    about = DoctorSettings(
        task=job.usage.task,
        columns=None if files.columns is None else parse_columns(files.columns),
        problem=getattr(settings, "problem", "auto"),
        encoding=check_encoding(files.encoding),
        max_length=job.model.settings.max_length,
    )
    found = [
        f"{finding.file}: {finding.message}"
        for finding in (examine(files.train, files.dev, about).findings if settings.doctor else ())
        if finding.severity != "note" and finding.kind != "long"  # lengths are in tokens, and said already
    ]
    for sentence in found:
        listener.say(f"doctor: {sentence}")
    tokens = job.data[0].tokens or 0
    longest = max(len(window) for item in job.items[:5000] for window in windows_in(item))
    batch = tokens / max(len(job.items), 1) * settings.batch_size / settings.train.accumulate
    listener.say(f"estimate: {estimate(job.model.settings, settings.epochs * tokens, longest, batch)}")
    return found


def _conclude(run: Path, job: Job, settings: FinetuneSettings, files: Files, listener: Listener) -> Evaluation:
    """Measure the best model, and write everything that is kept."""
    listener.say("measuring the best model on the development set")
    found = job.measure(job.model)
    facts = ModelFacts(
        name=run.resolve().name,
        start=None if settings.from_nothing else files.model,
        parameters=num_parameters(job.model),
        max_length=found.usage.long_text.max_length or job.model.settings.max_length,
        own_head=needs_own_heads(job.model.settings),
    )
    evaluation = Evaluation(
        task=found.usage.task,
        problem=found.problem,
        model=facts,
        data=job.data,
        settings={"finetune": settings.model_dump(mode="json"), "files": files.model_dump(mode="json")},
        scores=found.scores,
        labels=found.labels,
        confusion=found.confusion,
        table=found.table,
        outcomes=found.outcomes,
        curve=tuple(read_entries(run / METRICS)),
        notes=job.notes,
        seconds=training_seconds(run),
        environment=environment(),
    )
    with new_folder(run / runs.MODEL, overwrite=True) as draft:
        write_model(job.model.cpu(), draft)
        job.tokenizer.save(draft)
        write_usage(draft, found.usage)
        atomic_write(draft / "README.md", model_card(evaluation).encode())
    write_evaluation(evaluation, run / EVALUATION)
    write_report(evaluation, run / REPORT)
    return evaluation


def load_start(settings: FinetuneSettings, files: Files, head: HeadSettings) -> Bert:
    """The model to start from, with a new head, on the device of this process."""
    model, _ = load_model(fetch(files.model), heads=[head], seed=settings.seed)
    if not isinstance(model, Bert):
        raise ModelError(f"{files.model}: is no BERT, and only BERT is fine-tuned here")
    if settings.from_nothing:
        fresh = build_model(model.settings, settings.seed)
        assert isinstance(fresh, Bert)
        model = fresh
    if settings.dropout is not None:
        model = with_dropout(model, settings.dropout)
    if settings.layers is not None:
        depth = model.settings.num_layers
        if settings.layers > depth:
            raise SettingsError(f"layers: {settings.layers} were asked for but {files.model} has {depth}")
        smaller = remove_layers(model, range(settings.layers, depth)) if settings.layers < depth else model
        assert isinstance(smaller, Bert)
        model = smaller
    if settings.long_text.strategy == "hierarchical":
        model = extend_positions(model, settings.long_text.max_length or _LONGER * model.settings.max_length)
    return model.to(local_device())


def with_dropout(model: Bert, share: float) -> Bert:
    """The same weights in a model that drops so much of embeddings, sub-layers and attention."""
    dropout = DropoutSettings(embedding=share, residual=share, attention=share, activation=0.0)
    with torch.device("meta"):
        other = assemble(model.settings.replace(dropout=dropout))
    assign(other, named_tensors(model))
    assert isinstance(other, Bert)
    return other.train(model.training)


def resolved_usage(usage: Usage, task: LongTask, lengths: Sequence[int], limit: int) -> tuple[Usage, str]:
    """The same with a decision about long texts in the place of `auto`, and why."""
    chosen = choose(usage.long_text, task, lengths, limit)
    return usage.replace(long_text=chosen.settings), f"long texts: {chosen.reason}"


def set_apart(examples: Sequence[Example], share: float, seed: int, file: str) -> tuple[list[Example], list[Example]]:
    """The training examples of a file without, and then, those that are set apart to measure on."""
    order = np.random.default_rng([seed % 2**63, 0xDE7]).permutation(len(examples))
    count = max(1, round(share * len(examples)))
    if count >= len(examples):
        few = "one example is" if len(examples) == 1 else f"{len(examples)} examples are"
        raise DataError(f"{few} too few to set some apart for measuring; give a file for it with --dev", file=file)
    apart = set(order[:count].tolist())
    return (
        [example for number, example in enumerate(examples) if number not in apart],
        [examples[number] for number in sorted(apart)],
    )


def sha256_of(path: str) -> str | None:
    """The sha256 of a file; None for what is not a file."""
    try:
        with Path(path).open("rb") as content:
            return hashlib.file_digest(content, "sha256").hexdigest()
    except OSError:
        return None
