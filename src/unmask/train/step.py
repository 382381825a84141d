"""Gradients of one update: the same whatever the number of micro-batches, or of processes, it is split into."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from unmask.errors import TaskError
from unmask.train.precision import Precision, autocasting, build_scaler
from unmask.train.task import Task, total_counts
from unmask.train.world import ALONE, Learner, World, everyone, syncing

_CPU = torch.device("cpu")


@dataclass(frozen=True)
class Part:
    """One micro-batch of an update."""

    number: int  # over the whole run and all processes: dropout is drawn from it
    batch: Any
    counts: bool = True  # False: another's, run along for nothing so that all processes do equally many


@dataclass(frozen=True)
class Means:
    """How to run a model over a window."""

    task: Task[Any]
    world: World = ALONE
    seed: int | None = None  # of dropout; None: whatever the generator gives
    device: torch.device = _CPU
    precision: Precision = "fp32"
    scaler: torch.amp.GradScaler = field(default_factory=lambda: build_scaler(_CPU, "fp32"))


def backward(model: nn.Module, task: Task[Any], window: Sequence[Any]) -> dict[str, float]:
    """Add the gradient of the mean losses over all items of the window; gives these means."""
    parts = [Part(number, batch) for number, batch in enumerate(window)]
    means = Means(task)
    return run_window(Learner(model), parts, window_counts(parts, means), means)


def window_counts(window: Sequence[Part], means: Means) -> dict[str, float]:
    """How many items the losses of an update are over, in all processes."""
    own = [
        {name: count if part.counts else 0 for name, count in means.task.counts(part.batch).items()} for part in window
    ]
    rounds = zip(*means.world.gather(own), strict=True)
    counts = [one for parts in rounds for one in parts]  # in the order of their numbers
    if means.world.size > 1 and means.world.engine == "fsdp" and len({frozenset(one) for one in counts}) > 1:
        raise TaskError("engine fsdp needs the same losses in every micro-batch, but this task's differ; use ddp")
    return total_counts(counts)


def run_window(
    learner: nn.Module, window: Sequence[Part], counts: Mapping[str, float], means: Means
) -> dict[str, float]:
    """Add the gradient of the mean losses over an update's items; gives these means, over all processes.

    Each micro-batch is divided by the counts of the whole window, so the split into micro-batches does not matter.
    """
    found: dict[str, Tensor] = {}
    weights: Mapping[str, float] = getattr(means.task, "weights", {})
    for place, part in enumerate(window):
        if means.seed is not None:
            torch.manual_seed(dropout_seed(means.seed, part.number))
        with syncing(learner, last=place == len(window) - 1):
            with autocasting(means.device, means.precision):
                sums = learner(lambda model, batch=part.batch: dict(means.task.sums(model, batch)))
            # Engines take the mean over processes, but these are parts of one sum.
            weight = float(means.world.size if part.counts else 0)
            losses = {name: value * (weight / max(counts[name], 1e-9)) for name, value in sums.items()}
            for name, value in losses.items() if part.counts else ():
                found[name] = found[name] + value.detach() if name in found else value.detach()
            objective = torch.stack([value * weights.get(name, 1.0) for name, value in losses.items()]).sum()
            # Several processes must all go backward, or one would wait for ever: torch's error is better than that.
            if objective.requires_grad or means.world.size > 1:
                means.scaler.scale(objective).backward()
    return everyone(means.world, {name: float(value) / means.world.size for name, value in found.items()})


def share_of(numbers: range, world: World) -> Iterator[tuple[int, bool]]:
    """Which of an update's micro-batches a process takes, and whether each counts.

    Every process takes equally many, for the engines go in step: where they do not come out even, the last processes
    run one along that counts for nothing.
    """
    for first in range(numbers.start, numbers.stop, world.size):
        number = first + world.rank
        yield (number, True) if number < numbers.stop else (first, False)


def dropout_seed(seed: int, number: int) -> int:
    """The seed of the dropout in one micro-batch: a function of the run's seed and its number alone.

    So a resumed run, or one with another number of processes, drops the same.
    """
    return int(np.random.SeedSequence([seed % 2**64, number]).generate_state(1, np.uint64)[0] >> 1)
