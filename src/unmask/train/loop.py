"""accumulate → clip → step → log → save, from wherever the run folder says it is."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from unmask.config import Settings
from unmask.train.checkpoint import (
    Position,
    Trained,
    drop_old_checkpoints,
    newest_checkpoint,
    read_checkpoint,
    write_checkpoint,
)
from unmask.train.optimizer import OptimizerSettings, build_optimizer, set_rate
from unmask.train.schedule import ScheduleSettings, build_schedule
from unmask.train.task import Source, Task, total_counts


class TrainSettings(Settings):
    """How a run goes."""

    updates: Annotated[int, Field(ge=1)]
    accumulate: Annotated[int, Field(ge=1)] = 1  # micro-batches for one update
    clip: Annotated[float, Field(gt=0.0)] | None = 1.0  # the greatest norm of all gradients together
    seed: int = 0  # of dropout; data and first values have seeds of their own
    log_every: Annotated[int, Field(ge=1)] = 10
    save_every: Annotated[int, Field(ge=1)] = 500
    keep: Annotated[int, Field(ge=1)] = 2
    workers: Annotated[int, Field(ge=0)] = 0
    optimizer: OptimizerSettings = OptimizerSettings()
    schedule: ScheduleSettings = ScheduleSettings()


@dataclass(frozen=True)
class Progress:
    """How one update went."""

    update: int  # counted from 1
    updates: int
    losses: Mapping[str, float]  # means over the items of the update
    gradient_norm: float
    learning_rate: float


def fit(
    model: nn.Module,
    task: Task[Any],
    source: Source,
    settings: TrainSettings,
    run: Path,
    on_update: Callable[[Progress], None] | None = None,
) -> None:
    """Train `model` in place, going on from the newest checkpoint of the run folder if there is one."""
    run.mkdir(parents=True, exist_ok=True)
    trained = Trained(model, build_optimizer(model, settings.optimizer))
    torch.manual_seed(settings.seed)
    newest = newest_checkpoint(run)
    start = Position(updates=0, micro_batches=0) if newest is None else read_checkpoint(newest, trained)
    _forget_after(run / "metrics.jsonl", start.updates)
    schedule = build_schedule(settings.schedule, settings.updates)
    micro = _prefetched(source, start.micro_batches, settings)
    device = next(model.parameters()).device
    model.train()
    for update in range(start.updates, settings.updates):
        window = [_to(next(micro), device) for _ in range(settings.accumulate)]
        rate = settings.optimizer.learning_rate * schedule(update)
        set_rate(trained.optimizer, rate)
        losses = backward(model, task, window)
        limit = float("inf") if settings.clip is None else settings.clip
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), limit, error_if_nonfinite=True)
        trained.optimizer.step()
        trained.optimizer.zero_grad(set_to_none=True)
        done = update + 1
        progress = Progress(done, settings.updates, losses, float(norm), rate)
        if done % settings.log_every == 0 or done == settings.updates:
            _log(run / "metrics.jsonl", progress)
        if on_update is not None:
            on_update(progress)
        if done % settings.save_every == 0 or done == settings.updates:
            write_checkpoint(run, trained, Position(updates=done, micro_batches=done * settings.accumulate))
            drop_old_checkpoints(run, settings.keep)


def backward(model: nn.Module, task: Task[Any], window: Sequence[Any]) -> dict[str, float]:
    """Add the gradient of the mean losses over all items of the window; gives these means.

    Each micro-batch is divided by the counts of the whole window, so the split into micro-batches does not matter.
    """
    counts = total_counts([task.counts(batch) for batch in window])
    means = dict.fromkeys(counts, 0.0)
    for batch in window:
        objective: Tensor | None = None
        for name, value in task.sums(model, batch).items():
            part = value / max(counts[name], 1)
            means[name] += float(part.detach())
            objective = part if objective is None else objective + part
        if objective is not None and objective.requires_grad:
            objective.backward()
    return means


class _Numbered(Dataset[Any]):
    """A source as torch's loader wants it."""

    def __init__(self, source: Source) -> None:
        self.source = source

    def __getitem__(self, number: int) -> Any:
        return self.source[number]


def _prefetched(source: Source, first: int, settings: TrainSettings) -> Iterator[Any]:
    """Micro-batches from number `first` on, made ahead by workers where there are any."""
    loader = DataLoader(
        _Numbered(source),
        batch_size=None,
        sampler=range(first, settings.updates * settings.accumulate),
        num_workers=settings.workers,
        # A generator of its own: the loader draws seeds, and must not disturb the one that dropout draws from.
        generator=torch.Generator(),
    )
    return iter(loader)


def _to(batch: Any, device: torch.device) -> Any:
    return batch.to(device) if hasattr(batch, "to") else batch


def _log(path: Path, progress: Progress) -> None:
    line = {
        "update": progress.update,
        "losses": dict(progress.losses),
        "gradient_norm": progress.gradient_norm,
        "learning_rate": progress.learning_rate,
    }
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")


def _forget_after(path: Path, updates: int) -> None:
    """Remove from the log what a run wrote after the checkpoint it goes on from."""
    if not path.is_file():
        return
    kept = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            if json.loads(line)["update"] <= updates:
                kept.append(line + "\n")
        except (json.JSONDecodeError, KeyError, TypeError):
            break  # cut off in the middle of a line
    path.write_text("".join(kept), encoding="utf-8")
