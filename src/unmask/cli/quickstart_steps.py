"""What both quickstarts are made of: steps that are passed over where an earlier call has done them."""

from __future__ import annotations

import csv
import io
import json
import shutil
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path

from unmask.bundle import load
from unmask.cli import console
from unmask.cli.training import TrainingBar, training_bar
from unmask.errors import UserError
from unmask.models.fetch import fetch
from unmask.report.outcome import Evaluation
from unmask.storage import atomic_write, disk_trouble
from unmask.tasks.finetune import EVALUATION, REPORT, finetune
from unmask.tasks.finetune_classify import prepare_classify
from unmask.tasks.finetune_settings import ClassifyRun, Files
from unmask.tasks.measured import evaluation_of, stored_evaluation, write_evaluated
from unmask.tasks.predict import Predictor
from unmask.tasks.pretrain_run import PretrainListener
from unmask.train.progress import Progress

MARK = "quickstart.json"
PARTS = ("train", "dev", "test")


class Shown(PretrainListener):
    """Shows a run on its bar; `dev` is what a line with scores begins with, `talk` whether remarks are shown."""

    def __init__(self, bar: TrainingBar, dev: str, *, talk: bool = True) -> None:
        self._bar, self._dev, self._talk = bar, dev, talk

    def update(self, progress: Progress) -> None:
        """Move the bar."""
        self._bar.update(progress)

    def say(self, text: str) -> None:
        """A line above the bar."""
        if self._talk:
            self._bar.say(f"   {text}")

    def evaluation(self, update: int, values: Mapping[str, float], remarks: Sequence[str]) -> None:
        """The scores, and what the model makes of the example texts."""
        scores = "  ".join(f"{name} {value:.4f}" for name, value in values.items())
        for line in (f"{self._dev} {update:,}: {scores}", *remarks):
            self._bar.say(f"   {line}")


def open_place(folder: Path, settings: Mapping[str, object], *, again: bool) -> None:
    """Make sure that the folder is a quickstart's own, with these settings; `again` empties it first."""
    console.new_folder_path(folder, overwrite=True)
    mark = folder / MARK
    if folder.is_dir() and any(folder.iterdir()) and not mark.is_file():
        raise UserError(f"{folder}: holds other things; choose another folder with --out")
    told = (json.dumps(dict(settings), indent=1) + "\n").encode()
    if mark.is_file() and not again and mark.read_bytes() != told:
        raise UserError(f"{folder}: holds a quickstart with other settings; add --again to start anew, or choose --out")
    with disk_trouble(folder):
        if again and folder.is_dir():
            shutil.rmtree(folder)
        folder.mkdir(parents=True, exist_ok=True)
    atomic_write(mark, told)


def fetched(name: str) -> Path:
    """The folder of a name, with a bar while it comes."""
    with console.download_bar() as report:
        return fetch(name, progress=report)


def labelled(name: str, folder: Path, few: int | None) -> dict[str, Path]:
    """The train, dev and test file of a data set; of each only the first `few` examples if that is given."""
    source = fetched(name)
    files = {part: source / f"{part}.csv" for part in PARTS}
    if few is None:
        return files
    return {part: _few(file, few, folder / f"few-{part}.csv") for part, file in files.items()}


def finetuned(settings: ClassifyRun, files: Files, run: Path, dev: str, *, talk: bool = True) -> Path:
    """Fine-tune in a run folder, going on with what is there, and give the folder of the model."""
    if not (run / REPORT).is_file():  # the last thing that a run writes
        with training_bar(run.name) as bar:
            finetune(settings, files, run, prepare_classify, Shown(bar, dev, talk=talk), resume=True)
    return run / "model"


def tested(model: Path, file: Path, folder: Path) -> Evaluation:
    """What a model scores on a file it has never seen; measured once, with a report in `folder`."""
    if not (folder / EVALUATION).is_file():
        predictor = predictor_of(model)
        found = predictor.evaluate(str(file))
        write_evaluated(evaluation_of(found, predictor.model, str(model), str(file)), folder, overwrite=True)
    return stored_evaluation(folder)


def predictor_of(model: Path) -> Predictor:
    """A fine-tuned model, ready to be asked."""
    return load(model).predictor


def predictions(model: Path, texts: Sequence[str]) -> list[tuple[str, str, str]]:
    """Each text, what the model says of it and how sure it is."""
    rows = []
    for text, said in zip(texts, load(model).predict(texts), strict=True):
        label = str(said.label)  # type: ignore[union-attr]
        rows.append((text, label, f"{said.probabilities[label]:.2f}"))  # type: ignore[union-attr]
    return rows


def _few(file: Path, number: int, target: Path) -> Path:
    """The first examples of a file: where the set is in no order, as good as any."""
    with file.open(encoding="utf-8", newline="") as source:
        rows = list(islice(csv.reader(source), number + 1))
    out = io.StringIO(newline="")
    csv.writer(out, lineterminator="\n").writerows(rows)
    atomic_write(target, out.getvalue().encode())
    return target
