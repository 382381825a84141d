"""Learning-rate schedules: plain functions from the number of an update, counted from 0, to a factor."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Annotated, Literal, assert_never

from pydantic import Field

from unmask.config import Settings
from unmask.errors import SettingsError

Schedule = Callable[[int], float]


class ScheduleSettings(Settings):
    """How the learning rate moves over a run."""

    kind: Literal["linear", "cosine", "inverse_sqrt", "noam", "constant"] = "linear"
    warmup: Annotated[int, Field(ge=0)] = 0  # updates during which the rate grows in proportion to their number
    final: Annotated[float, Field(ge=0.0, le=1.0)] = (
        0.0  # of linear and cosine: what they fall to, just past the last update
    )
    hidden_size: Annotated[int, Field(ge=1)] | None = None  # of noam, which divides by its square root


def build_schedule(settings: ScheduleSettings, updates: int) -> Schedule:
    """The schedule of a run of so many updates."""
    match settings.kind:
        case "linear":
            return linear(settings.warmup, updates, settings.final)
        case "cosine":
            return cosine(settings.warmup, updates, settings.final)
        case "inverse_sqrt":
            return inverse_sqrt(settings.warmup)
        case "noam":
            if settings.hidden_size is None:
                raise SettingsError("schedule: noam divides by the square root of the model's width: give hidden_size")
            return noam(settings.hidden_size, settings.warmup)
        case "constant":
            return constant(settings.warmup)
        case _:
            assert_never(settings.kind)


def linear(warmup: int, updates: int, final: float = 0.0) -> Schedule:
    """Up in proportion to the update's number, then down in a straight line: BERT's."""
    return lambda update: _warm(update, warmup) * (1 - (1 - final) * _progress(update, warmup, updates))


def cosine(warmup: int, updates: int, final: float = 0.0) -> Schedule:
    """Up in proportion to the update's number, then down along half a cosine."""

    def factor(update: int) -> float:
        fall = (1 + math.cos(math.pi * _progress(update, warmup, updates))) / 2
        return _warm(update, warmup) * (final + (1 - final) * fall)

    return factor


def inverse_sqrt(warmup: int) -> Schedule:
    """Up to 1 at the end of the warm-up, then down with the square root: the Transformer's, its peak set to 1."""
    return lambda update: min((update + 1) / max(warmup, 1), math.sqrt(max(warmup, 1) / (update + 1)))


def noam(hidden_size: int, warmup: int) -> Schedule:
    """The paper's formula as written: hidden_size^-0.5 · min(step^-0.5, step · warmup^-1.5), to be used with rate 1."""
    return lambda update: hidden_size**-0.5 * min((update + 1) ** -0.5, (update + 1) * max(warmup, 1) ** -1.5)


def constant(warmup: int = 0) -> Schedule:
    """Always the same, after the warm-up."""
    return lambda update: _warm(update, warmup)


def _warm(update: int, warmup: int) -> float:
    """(current step / warm-up steps), at most 1."""
    return min(1.0, (update + 1) / warmup) if warmup else 1.0


def _progress(update: int, warmup: int, updates: int) -> float:
    """How much of the way from the end of the warm-up is done; it ends past the last update, which still learns."""
    return min(1.0, max(0.0, (update - warmup) / max(1, updates - warmup)))
