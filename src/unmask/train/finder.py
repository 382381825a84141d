"""Which learning rate? A short run whose rate grows from update to update shows where the loss falls (Smith 2017)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Self

import torch
from pydantic import Field, model_validator
from torch import nn

from unmask.config import Settings
from unmask.errors import UserError
from unmask.models.assign import named_tensors
from unmask.models.bert import device_of
from unmask.storage import replacing
from unmask.train.optimizer import OptimizerSettings, build_optimizer, set_rate
from unmask.train.step import backward
from unmask.train.task import Source, Task

_ENOUGH = 3  # updates; fewer have no slope


class FinderSettings(Settings):
    """How learning rates are tried."""

    smallest: Annotated[float, Field(gt=0.0)] = 1e-7
    largest: Annotated[float, Field(gt=0.0)] = 1.0
    updates: Annotated[int, Field(ge=_ENOUGH)] = 100  # one for each rate, evenly spaced on a logarithmic scale
    accumulate: Annotated[int, Field(ge=1)] = 1  # micro-batches for one update
    clip: Annotated[float, Field(gt=0.0)] | None = 1.0  # the greatest norm of all gradients together
    smoothing: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.9  # how much of the smoothed loss is that of before
    diverged: Annotated[float, Field(gt=1.0)] = 4.0  # stop where the smoothed loss is so many times its lowest
    seed: int = 0  # of dropout

    @model_validator(mode="after")
    def _check_range(self) -> Self:
        if self.largest <= self.smallest:
            raise ValueError(f"largest must be above smallest, given {self.largest:g} and {self.smallest:g}")
        return self

    @property
    def rates(self) -> list[float]:
        """The rates to try, from the smallest to the largest."""
        ratio = self.largest / self.smallest
        return [self.smallest * ratio ** (number / (self.updates - 1)) for number in range(self.updates)]


@dataclass(frozen=True)
class SweepRow:
    """The loss at one rate, before the update with this rate."""

    rate: float
    loss: float  # all losses of the task together
    smoothed: float


@dataclass(frozen=True)
class RateSweep:
    """The loss at each rate that was tried."""

    rows: tuple[SweepRow, ...]
    diverged_at: float | None  # the rate at which the loss grew too large; None if the sweep came to its end

    @property
    def suggestion(self) -> float | None:
        """The rate at which the smoothed loss falls steepest, on a logarithmic scale; None if it never falls."""
        place = self._lowest()
        # Half a step on either side: a single step is mostly noise. Nothing after the lowest point is of interest.
        slopes = {self.rows[i].rate: self.rows[i + 1].smoothed - self.rows[i - 1].smoothed for i in range(1, place)}
        steepest = min(slopes, key=lambda rate: slopes[rate], default=None)
        return None if steepest is None or slopes[steepest] >= 0 else steepest

    @property
    def tenth_of_best(self) -> float:
        """A tenth of the rate at which the smoothed loss is lowest: a careful choice."""
        return self.rows[self._lowest()].rate / 10

    def _lowest(self) -> int:
        return min(range(len(self.rows)), key=lambda i: self.rows[i].smoothed)


def find_rate(
    model: nn.Module, task: Task[Any], source: Source, settings: FinderSettings, optimizer_settings: OptimizerSettings
) -> RateSweep:
    """Try one rate after another on the first micro-batches; the model and the random generators stay as they were.

    The learning rate of `optimizer_settings` is not used. Made for one process.
    """
    rows: list[SweepRow] = []
    diverged_at = None
    device = device_of(model)
    with _untouched(model):
        torch.manual_seed(settings.seed)
        model.train()
        optimizer = build_optimizer(model, optimizer_settings)
        for number, rate in enumerate(settings.rates):
            places = range(number * settings.accumulate, (number + 1) * settings.accumulate)
            loss = _loss(model, task, [_to(source[place], device) for place in places])
            if not math.isfinite(loss):
                diverged_at = rate
                break
            rows.append(SweepRow(rate, loss, _smoothed(rows, loss, settings.smoothing)))
            if rows[-1].smoothed > settings.diverged * min(row.smoothed for row in rows):
                diverged_at = rate
                break
            set_rate(optimizer, rate)
            if not _step(model, optimizer, settings.clip):
                diverged_at = rate
                break
    if len(rows) < _ENOUGH:
        raise UserError(
            f"the loss grew without end after {len(rows)} updates, at a rate of {diverged_at:g}; "
            "choose a lower `smallest`, or look for what is wrong with the data"
        )
    return RateSweep(tuple(rows), diverged_at)


def plot_sweep(sweep: RateSweep, path: Path | str) -> None:
    """The loss over the rate as a PNG, with both suggestions."""
    # Not at the top: its import takes long, and most runs draw nothing.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.0, 4.5), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    rates = [row.rate for row in sweep.rows]
    axes.plot(rates, [row.loss for row in sweep.rows], color="0.75", linewidth=1, label="loss")
    axes.plot(rates, [row.smoothed for row in sweep.rows], color="C0", label="smoothed")
    if sweep.suggestion is not None:
        axes.axvline(sweep.suggestion, color="C1", linestyle="--", label=f"steepest: {sweep.suggestion:.1e}")
    axes.axvline(sweep.tenth_of_best, color="C2", linestyle=":", label=f"lowest / 10: {sweep.tenth_of_best:.1e}")
    axes.set(xscale="log", xlabel="learning rate", ylabel="loss", title="learning-rate sweep")
    axes.legend()
    with replacing(Path(path)) as draft:
        figure.savefig(draft, format="png", dpi=120)


def _loss(model: nn.Module, task: Task[Any], window: Sequence[Any]) -> float:
    """Gradients of a window, and all its losses together."""
    return sum(backward(model, task, window).values())


def _step(model: nn.Module, optimizer: torch.optim.Optimizer, clip: float | None) -> bool:
    """One update; False, and no update, where the gradient is not finite."""
    norm = nn.utils.clip_grad_norm_(model.parameters(), float("inf") if clip is None else clip)
    if not math.isfinite(float(norm)):
        return False
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return True


def _smoothed(rows: Sequence[SweepRow], loss: float, smoothing: float) -> float:
    """A moving average that is not drawn to zero at its start."""
    weights = [smoothing**age for age in range(len(rows) + 1)]
    losses = [loss, *(row.loss for row in reversed(rows))]
    return sum(weight * one for weight, one in zip(weights, losses, strict=True)) / sum(weights)


@contextmanager
def _untouched(model: nn.Module) -> Iterator[None]:
    """Afterwards weights, buffers, gradients, modes and random generators are what they were."""
    tensors = named_tensors(model)
    before = {name: tensor.detach().clone() for name, tensor in tensors.items()}
    gradients = [(parameter, parameter.grad) for parameter in model.parameters()]
    modes = [(module, module.training) for module in model.modules()]
    model.zero_grad(set_to_none=True)
    try:
        with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
            yield
    finally:
        with torch.no_grad():
            for name, tensor in tensors.items():
                tensor.copy_(before[name])
        for parameter, gradient in gradients:
            parameter.grad = gradient
        for module, training in modes:
            module.training = training


def _to(batch: Any, device: torch.device) -> Any:
    return batch.to(device) if hasattr(batch, "to") else batch
