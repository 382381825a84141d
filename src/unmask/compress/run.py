"""From a fine-tuned model to a smaller one: attempts from mild to strong, the best that keeps the contract."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from unmask.bundle import load
from unmask.compress.contract import Verdict, judge
from unmask.compress.cut import Pieces, cut
from unmask.compress.lessons import Source, read_examples, texts_of
from unmask.compress.recover import recover
from unmask.compress.report import write_report
from unmask.compress.settings import Contract, RecoverySettings, Steps, on_top
from unmask.compress.speed import Speed, race, size_of
from unmask.config import read_json
from unmask.errors import RefusedError, SettingsError, TaskError, UserError
from unmask.models.bert import Bert, num_parameters
from unmask.models.fetch import fetch
from unmask.models.folder import load_model, write_model
from unmask.models.quantised import Storage
from unmask.storage import atomic_write, disk_trouble, new_folder
from unmask.tasks.finetune import sha256_of
from unmask.tasks.runs import difference, model_folder
from unmask.tasks.scoring import Scored
from unmask.tasks.usage import read_usage, write_usage
from unmask.text.tokenizer import Tokenizer
from unmask.train.environment import environment
from unmask.train.progress import Listener

#: After so many refusals in a row nothing stronger is tried.
ENOUGH = 2
SETTINGS = "settings.json"

#: Shows how a recovery of this name goes.
Watch = Callable[[str], AbstractContextManager[Listener]]


@dataclass(frozen=True)
class Request:
    """What is asked for."""

    model: str
    data: Source
    train: Source | None = None
    contract: Contract = field(default_factory=Contract)
    recovery: RecoverySettings = field(default_factory=RecoverySettings)
    #: One attempt after another, each on top of what has kept the contract; empty: the ladder.
    attempts: tuple[Steps, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """Plain data: what must be the same when a compression goes on."""
        sources = {"data": self.data, "train": self.train}
        return {
            "model": self.model,
            "files": {name: None if one is None else vars(one) for name, one in sources.items()},
            "sha256": {name: None if one is None else sha256_of(one.file) for name, one in sources.items()},
            "contract": self.contract.model_dump(mode="json"),
            "recovery": self.recovery.model_dump(mode="json"),
            "attempts": [steps.model_dump(mode="json") for steps in self.attempts],
        }


@dataclass
class Attempt:
    """One smaller model, and what was measured of it."""

    steps: Steps  # all that was done to the model it all began with
    folder: Path
    bytes: int
    parameters: int
    speeds: tuple[Speed, Speed]  # of the model as it was, and of this one, in turns
    verdict: Verdict
    pieces: Pieces
    notes: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        """What was done, in words."""
        return self.steps.name

    @property
    def storage(self) -> Storage:
        """How it is stored."""
        return self.steps.storage

    @property
    def times_as_fast(self) -> float:
        """Throughput beside the model as it was."""
        return self.speeds[1].texts_per_second / self.speeds[0].texts_per_second

    def as_json(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "name": self.name,
            "kept": self.verdict.kept,
            "bytes": self.bytes,
            "parameters": self.parameters,
            "storage": self.storage,
            "times_as_fast": self.times_as_fast,
            "speed_before": self.speeds[0].as_json(),
            "speed": self.speeds[1].as_json(),
            "score": self.verdict.as_json(),
            "settings": self.pieces.model.settings.model_dump(mode="json"),
            "notes": self.notes,
        }


@dataclass(frozen=True)
class Outcome:
    """All that was tried, and what was taken."""

    request: Request
    bytes_before: int
    parameters_before: int
    attempts: list[Attempt]
    best: Attempt | None
    examples: int = 0  # that all were measured on

    def as_json(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "request": self.request.as_json(),
            "before": {"bytes": self.bytes_before, "parameters": self.parameters_before},
            "examples": self.examples,
            "attempts": [attempt.as_json() for attempt in self.attempts],
            "taken": None if self.best is None else self.best.name,
            "environment": environment(),
        }


def ladder(depth: int, *, learning: bool) -> tuple[Steps, ...]:
    """Attempts from mild to strong for a model of so many layers; without examples to learn from the first ones."""
    mild = (Steps(storage="fp16"), Steps(storage="int8"), Steps(vocab=True, storage="int8"))
    if not learning:
        return mild
    # An eighth at a time: several small cuts, each recovered from, leave more than a large one.
    less = Steps(heads=0.875, neurons=0.875, recovery="distill", storage="int8")
    if depth == 1:
        return (*mild, less, less)
    lower = Steps(layers=depth - max(1, depth // 6), recovery="distill", storage="int8")
    return (*mild, less, less, lower, less, less)


class Compression:
    """The model, the user's examples, and what they say of it."""

    def __init__(self, request: Request, work: Path, tell: Callable[[str], None], watch: Watch) -> None:
        self.request, self.work, self.tell, self.watch = request, work, tell, watch
        folder = model_folder(request.model)
        self.folder = fetch(str(folder) if folder.is_dir() else request.model)
        model, _ = load_model(self.folder)
        if not isinstance(model, Bert):
            raise TaskError(
                f"{request.model}: is a {model.settings.model} model, and only encoders are made smaller here"
            )
        self.model = model
        self.usage = read_usage(self.folder, model)
        self.tokenizer = Tokenizer.from_folder(self.folder)
        self.dev = read_examples(request.data, self.usage, model)
        self.train = [] if request.train is None else read_examples(request.train, self.usage, model)
        for steps in request.attempts:
            if (steps.removes or steps.recovery != "none") and request.train is None:
                raise SettingsError(
                    f"{steps.name}: needs labelled examples that say what matters and to learn from; add --train FILE "
                    "(not the file of --data: that one must stay unseen)"
                )

    @cached_property
    def texts(self) -> list[str]:
        """The user's texts: which tokens they have. Those of the measurement only where there are no others."""
        return texts_of(self.train) or texts_of(self.dev)

    @cached_property
    def before(self) -> Scored:
        """What the model as it is says of the development set."""
        self.tell("measuring the model as it is")
        return self._scored(self.folder, "auto")

    def _scored(self, folder: Path, engine: Any) -> Scored:
        data = self.request.data
        return load(folder, engine=engine).predictor.evaluate(data.file, data.columns, data.encoding)

    def attempt(self, number: int, start: Attempt | None, steps: Steps) -> Attempt:
        """One smaller model, from the one it all began with or from an earlier attempt, written down and measured."""
        pieces = Pieces(self.model, self.tokenizer) if start is None else start.pieces
        whole = steps if start is None else on_top(start.steps, steps)
        self.tell(f"attempt {number}: {whole.name}")
        notes: list[str] = []

        def note(text: str) -> None:
            notes.append(text)
            self.tell(f"  {text}")

        pieces = cut(pieces, steps, self.usage, self.train, self.texts, note)
        place = self.work / f"attempt-{number}"
        if steps.recovery != "none":
            teacher = self.model if steps.recovery == "distill" else None
            with self.watch(whole.name) as listener:
                recover(pieces, teacher, self.usage, self.train, self.request.recovery, place / "run", listener)
        if steps.magnitude is not None:
            note("zeros take as much room and time as other numbers: for comparison only")
        folder = place / "model"
        shutil.rmtree(folder, ignore_errors=True)
        with disk_trouble(folder):
            folder.mkdir(parents=True)
        write_model(pieces.model, folder, steps.storage)
        pieces.tokenizer.save(folder)
        write_usage(folder, self.usage)
        found = self._measured(folder, whole, pieces)
        found.notes = notes
        self.tell(f"  {shown(found, size_of(self.folder))}")
        return found

    def _measured(self, folder: Path, steps: Steps, pieces: Pieces) -> Attempt:
        """As it will be used: read from its folder. In int8 both ways to compute with it must keep the contract."""
        int8 = steps.storage == "int8"
        engines = ("int8", "auto") if int8 else ("auto",)
        verdicts = [judge(self.before, self._scored(folder, engine), self.request.contract) for engine in engines]
        before, after = race([(self.folder, "fp32"), (folder, "int8" if int8 else "fp32")], texts_of(self.dev))
        worst = max(verdicts, key=lambda verdict: (not verdict.kept, verdict.drop))
        size, parameters = size_of(folder), num_parameters(pieces.model)
        return Attempt(steps, folder, size, parameters, (before, after), worst, pieces)


def shown(found: Attempt, before: int) -> str:
    """An attempt in one line."""
    return (
        f"{found.bytes / 1e6:.1f} MB (1/{before / found.bytes:.1f}), {found.speeds[1].texts_per_second:,.0f} texts/s "
        f"({found.times_as_fast:.2f} times as fast), {found.verdict.sentence}"
    )


def compress(
    request: Request,
    out: Path,
    tell: Callable[[str], None],
    watch: Watch,
    *,
    resume: bool = False,
    overwrite: bool = False,
) -> Outcome:
    """Try, measure, and write the best that keeps the contract into `out`, with its report.

    Everything happens in a folder beside `out`, from which an interrupted compression goes on. RefusedError, and
    nothing written, if no attempt keeps the contract.
    """
    out = out.expanduser().resolve()  # "." has no name of its own
    work = out.with_name(out.name + ".work")
    _check_work(work, request, resume=resume)
    job = Compression(request, work, tell, watch)
    plans = request.attempts or ladder(job.model.settings.num_layers, learning=request.train is not None)
    with disk_trouble(work):
        work.mkdir(parents=True, exist_ok=True)
    atomic_write(work / SETTINGS, (json.dumps(request.as_json(), indent=1) + "\n").encode())
    try:
        outcome = _climb(job, plans)
    except UserError:  # there is nothing to go on with: the same command would fail again
        shutil.rmtree(work)
        raise
    if outcome.best is None:
        shutil.rmtree(work)
        tried = "; ".join(f"{attempt.name}: {attempt.verdict.sentence}" for attempt in outcome.attempts)
        raise RefusedError(f"nothing was written, for nothing keeps the contract. {tried}")
    with new_folder(out, overwrite=overwrite) as draft:
        shutil.copytree(outcome.best.folder, draft, dirs_exist_ok=True)
        write_report(outcome, draft)
    shutil.rmtree(work)
    return outcome


def _climb(job: Compression, plans: Sequence[Steps]) -> Outcome:
    """One attempt after another, each on top of the last that kept the contract."""
    attempts: list[Attempt] = []
    last: Attempt | None = None
    refused = 0
    for number, steps in enumerate(plans, start=1):
        if steps.layers is not None and last is not None and steps.layers >= last.pieces.model.settings.num_layers:
            continue
        if any(attempt.steps == (steps if last is None else on_top(last.steps, steps)) for attempt in attempts):
            continue  # what it would be on top of was refused
        found = job.attempt(number, last, steps)
        attempts.append(found)
        refused = 0 if found.verdict.kept else refused + 1
        if found.verdict.kept:
            last = found
        if refused == ENOUGH:
            job.tell(f"{ENOUGH} attempts in a row were refused: nothing stronger is tried")
            break
    kept = [attempt for attempt in attempts if attempt.verdict.kept]
    # Small and fast count alike: what takes half the room is worth what takes half the time.
    best = max(kept, key=lambda one: one.times_as_fast / one.bytes, default=None)
    return Outcome(job.request, size_of(job.folder), num_parameters(job.model), attempts, best, len(job.dev))


def _check_work(work: Path, request: Request, *, resume: bool) -> None:
    if not work.exists():
        return
    stored = read_json(work / SETTINGS) if (work / SETTINGS).is_file() else None
    if not resume:
        raise UserError(
            f"{work}: a compression that did not come to its end is there; add --resume to go on with it, or remove it"
        )
    if found := difference(stored, request.as_json()):
        raise SettingsError(f"{work}: what was begun there had another {found}; remove the folder or give the same")
