"""Learning to do without: the training loop of fine-tuning, from labels or from a teacher."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import nn

from unmask.compress.cut import Pieces
from unmask.compress.distill import Augmented, Bridged, Distillation, Teacher
from unmask.compress.lessons import Lessons, lessons, sample
from unmask.compress.settings import RecoverySettings
from unmask.engine.choose import accelerated, choose
from unmask.errors import SettingsError
from unmask.models.bert import Bert, device_of
from unmask.nn.attend import Attend
from unmask.nn.dropout import Dropout
from unmask.tasks.usage import Usage
from unmask.tasks.windows import Epochs
from unmask.train.loop import fit
from unmask.train.optimizer import OptimizerSettings
from unmask.train.progress import Listener
from unmask.train.schedule import ScheduleSettings
from unmask.train.settings import TrainSettings


def recover(
    pieces: Pieces,
    teacher: Bert | None,
    usage: Usage,
    examples: Sequence[Any],
    settings: RecoverySettings,
    run: Path,
    listener: Listener,
) -> None:
    """Train a model in place, going on with what the run folder holds; without a teacher, from labels alone.

    No development set is looked at: the last weights are taken, so that what is measured later was never chosen by.
    """
    learned = lessons(pieces.model, pieces.tokenizer, usage, sample(examples, settings.examples, settings.seed))
    loop = train_settings(settings)
    source: Any = Epochs(learned.items, learned.collate, settings.batch_size, seed=settings.seed)
    if teacher is None:
        with dropping(pieces.model, settings.dropout):
            fit(pieces.model, learned.task, source, loop, run, None, listener)
    else:
        task = distillation(learned, pieces, teacher, settings)
        if settings.augment and pieces.tokenizer.mask_id is None:
            raise SettingsError("augment: the vocabulary has no token for a mask")
        masked = pieces.tokenizer.mask_id or 0, pieces.tokenizer.special_ids
        source = Augmented(source, settings.augment, *masked, settings.seed)
        with dropping(pieces.model, settings.dropout or 0.0):
            fit(_pupil(pieces.model, teacher, settings), task, source, loop, run, None, listener)
    pieces.model.eval()


@contextmanager
def dropping(model: nn.Module, share: float | None) -> Iterator[None]:
    """Within the block, a model in training drops this share wherever it drops anything; None: as it does."""
    places: list[tuple[nn.Module, str]] = [(module, "p") for module in model.modules() if isinstance(module, Dropout)]
    places += [(module, "dropout") for module in model.modules() if isinstance(module, Attend)]
    before = [getattr(*place) for place in places]
    try:
        for place, own in zip(places, before, strict=True):
            setattr(*place, own if share is None or not own else share)
        yield
    finally:
        for place, own in zip(places, before, strict=True):
            setattr(*place, own)


def train_settings(settings: RecoverySettings) -> TrainSettings:
    """The loop's settings."""
    updates = math.ceil(settings.examples / settings.batch_size)
    return TrainSettings(
        updates=updates,
        seed=settings.seed,
        keep=1,
        save_every=max(50, updates // 5),
        optimizer=OptimizerSettings(learning_rate=settings.learning_rate),
        schedule=ScheduleSettings(warmup=round(settings.warmup * updates)),
    )


def distillation(learned: Lessons, pieces: Pieces, teacher: Bert, settings: RecoverySettings) -> Distillation:
    """What a student learns, from whom."""
    teacher = teacher.to(device_of(pieces.model)).eval()
    chosen = choose(teacher, "auto").engine
    fast = accelerated(teacher, "fp32") if chosen == "fp32" else None
    return Distillation(learned, Teacher(teacher, pieces.kept, fast), settings)


def _pupil(student: Bert, teacher: Bert, settings: RecoverySettings) -> Bert | Bridged:
    width = teacher.settings.hidden_size
    if settings.hidden and student.settings.hidden_size != width:
        return Bridged(student, width).to(device_of(student))
    return student
