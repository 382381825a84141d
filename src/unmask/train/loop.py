"""accumulate → clip → step → log → evaluate → save, from wherever the run folder says it is."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from unmask.errors import Stopped, UserError
from unmask.nn.modes import evaluating
from unmask.train.average import Average
from unmask.train.checkpoint import (
    Position,
    Trained,
    agreed_checkpoint,
    drop_old_checkpoints,
    read_checkpoint,
    write_best,
    write_checkpoint,
)
from unmask.train.curves import plot_curves
from unmask.train.environment import write_environment
from unmask.train.fgm import embedding_parameters, perturbed
from unmask.train.freeze import drop_gradients, freeze, frozen_names
from unmask.train.memory import checkpoint_activations, compile_blocks
from unmask.train.optimizer import build_optimizer, set_rate
from unmask.train.precision import build_scaler
from unmask.train.prefetch import prefetched
from unmask.train.progress import Listener, Progress
from unmask.train.record import Record
from unmask.train.schedule import build_schedule
from unmask.train.settings import TrainSettings
from unmask.train.signals import Stop
from unmask.train.step import Means, Part, run_window, share_of, window_counts
from unmask.train.task import Evaluator, Source, Task
from unmask.train.world import World, check_possible, give_back, joint_learner, model_of, whole

_DRAW_EVERY = 30.0  # seconds


def fit(
    model: nn.Module,
    task: Task[Any],
    source: Source,
    settings: TrainSettings,
    run: Path,
    evaluator: Evaluator | None = None,
    listener: Listener | None = None,
) -> Position:
    """Train `model` in place, going on from the newest checkpoint of the run folder if there is one.

    The model is where its parameters are; with several processes (see `world.joined`) each calls this with the same
    arguments. At the end the model has the last weights, or their average where one was asked for; the best by the
    evaluator's score are in the run folder (`read_best`). With engine fsdp it learns nothing before the end.
    """
    with _Run(model, task, settings, run, listener or Listener()) as one:
        return one.train(source, evaluator)


@dataclass(frozen=True)
class _Update:
    losses: Mapping[str, float]
    norm: float
    tokens: int


class _Run:
    """Everything that lives as long as a run."""

    def __init__(
        self, model: nn.Module, task: Task[Any], settings: TrainSettings, run: Path, listener: Listener
    ) -> None:
        self.given, self.settings, self.run, self.listener = model, settings, run, listener
        self.world = World.present(settings.engine)
        self.device = next(model.parameters()).device
        check_possible(model, self.world, settings.precision, settings.compile)
        freeze(model, settings.freeze)
        self.frozen = frozen_names(model, settings.freeze) if settings.freeze.until else set()
        if settings.checkpoint_activations:
            checkpoint_activations(model)
        if settings.compile:
            compile_blocks(model)
        self.learner = joint_learner(model, self.world)
        self.model = model_of(self.learner)
        scaler = build_scaler(self.device, settings.precision)
        average = None if settings.average is None else Average(self.model, settings.average, warmup=True)
        self.trained = Trained(self.model, build_optimizer(self.model, settings.optimizer), scaler, average)
        self.means = Means(task, self.world, settings.seed, self.device, settings.precision, scaler)
        self.schedule = build_schedule(settings.schedule, settings.updates)
        self.drawn = -math.inf
        torch.manual_seed(settings.seed)
        newest = agreed_checkpoint(run, self.world)
        self.position = Position() if newest is None else read_checkpoint(newest, self.trained)

    def __enter__(self) -> _Run:
        self.record = None
        if self.world.is_first:
            self.record = Record(self.run, self.position.updates, self.settings.log_every)
            write_environment(self.run)
        self.world.wait()
        return self

    def __exit__(self, *error: object) -> None:
        if self.record is not None:
            self.record.close()

    def train(self, source: Source, evaluator: Evaluator | None) -> Position:
        """All updates that are still to do."""
        settings = self.settings
        last = self.position.updates if self.position.stopped else settings.updates
        self.learner.train()
        with Stop() as stop, prefetched(source, self._numbers(last), settings.workers) as batches:
            for update in range(self.position.updates, last):
                began = time.perf_counter()
                done = self._update(update, self._window(batches, update))
                self.position = self.position.replace(
                    updates=update + 1, micro_batches=(update + 1) * settings.accumulate
                )
                self._tell(done, time.perf_counter() - began)
                if evaluator is not None and self._is_time(settings.evaluate_every):
                    self._evaluate(evaluator)
                asked = self.world.most(stop.signum)  # one process's signal stops all of them
                if self._is_time(settings.save_every) or asked or self.position.stopped:
                    self._save()
                if asked:
                    raise Stopped(asked)
                if self.position.stopped:
                    break
        return self._finish()

    def _numbers(self, last: int) -> list[int]:
        """The micro-batches of this process, in order."""
        size = self.settings.accumulate
        updates = range(self.position.updates, last)
        return [n for u in updates for n, _ in share_of(range(u * size, (u + 1) * size), self.world)]

    def _window(self, batches: Iterator[Any], update: int) -> list[Part]:
        size = self.settings.accumulate
        shares = share_of(range(update * size, (update + 1) * size), self.world)
        return [Part(number, next(batches).to(self.device), counts) for number, counts in shares]

    def _update(self, update: int, window: Sequence[Part]) -> _Update:
        """One step of the optimizer."""
        settings, optimizer, scaler = self.settings, self.trained.optimizer, self.trained.scaler
        counts = window_counts(window, self.means)
        losses = run_window(self.learner, window, counts, self.means)
        if settings.fgm is not None:
            with perturbed(embedding_parameters(self.model), settings.fgm):
                run_window(self.learner, window, counts, self.means)
        if update < (settings.freeze.until or 0):
            drop_gradients(self.model, self.frozen)
        scaler.unscale_(optimizer)
        set_rate(optimizer, settings.optimizer.learning_rate * self.schedule(update))
        norm = self._clipped()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)
        if self.trained.average is not None:
            self.trained.average.update(self.model)
        own = sum(part.batch.num_tokens for part in window if part.counts)
        return _Update(losses, norm, int(self.world.total([own])[0]))

    def _clipped(self) -> float:
        """The norm of all gradients together, which is at most `clip` afterwards."""
        limit = math.inf if self.settings.clip is None else self.settings.clip
        found = torch.nn.utils.clip_grad_norm_(self.model.parameters(), limit)
        norm = float(whole(found))
        if not math.isfinite(norm) and not self.trained.scaler.is_enabled():
            raise UserError(
                f"{self.run}: the gradient of update {self.position.updates + 1} is not finite ({norm}); the last "
                "checkpoint is kept: try a lower learning rate, a longer warm-up or a smaller clip"
            )
        return norm

    def _tell(self, done: _Update, seconds: float) -> None:
        update = self.position.updates
        rate = self.settings.optimizer.learning_rate * self.schedule(update - 1)
        progress = Progress(update, self.settings.updates, done.losses, done.norm, rate, done.tokens, seconds)
        if self.record is not None:
            self.record.update(progress)
            self.listener.update(progress)

    def _is_time(self, every: int | None) -> bool:
        update = self.position.updates
        return update == self.settings.updates or (every is not None and update % every == 0)

    def _evaluate(self, evaluator: Evaluator) -> None:
        """Measure, tell, and keep the weights if they are the best so far."""
        with self._averaged():
            values = measured(self.learner, evaluator, self.world)
            with evaluating(self.learner), torch.no_grad():
                remarks = self.learner(evaluator.remarks)
            score = values[evaluator.score]
            before = self.position.best
            better = before is None or (score < before if evaluator.lower_is_better else score > before)
            if better and math.isfinite(score):
                self.position = self.position.replace(best=score, best_update=self.position.updates, stale=0)
                write_best(self.run, self.model, self.position, self.world)
            else:
                stale = self.position.stale + 1
                enough = self.settings.patience is not None and stale >= self.settings.patience
                self.position = self.position.replace(stale=stale, stopped=enough)
        if self.record is not None:
            self.record.evaluation(self.position.updates, values)
            self.listener.evaluation(self.position.updates, values, remarks)

    def _averaged(self) -> contextlib.AbstractContextManager[None]:
        average = self.trained.average
        return contextlib.nullcontext() if average is None else average.standing_in(self.model)

    def _save(self) -> None:
        write_checkpoint(self.run, self.trained, self.position, self.world)
        if self.world.is_first:
            drop_old_checkpoints(self.run, self.settings.keep)
            self._draw()

    def _draw(self) -> None:
        """Draw the curves, but not so often that drawing takes longer than learning."""
        now = time.monotonic()
        ended = self.position.stopped or self.position.updates == self.settings.updates
        if ended or now - self.drawn > _DRAW_EVERY:
            plot_curves(self.run)
            self.drawn = now

    def _finish(self) -> Position:
        average = self.trained.average
        if average is not None:
            average.hand_over(self.model)
        give_back(self.learner, self.given)
        return self.position


def measured(learner: nn.Module, evaluator: Evaluator, world: World) -> Mapping[str, float]:
    """What the evaluator says of a model; every batch is measured once, by one of the processes."""
    own = []
    with evaluating(learner), torch.no_grad():
        for number, counts in share_of(range(len(evaluator)), world):
            found = learner(lambda model, number=number: evaluator.measure(model, number))
            if counts:
                own.append(found)
    gathered = world.gather(own)
    results = [gathered[number % world.size][number // world.size] for number in range(len(evaluator))]
    return evaluator.conclude(results)
