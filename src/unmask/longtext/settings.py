"""How texts beyond a model's limit are read, and the choice of a way where the user leaves it open."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal, NamedTuple, Self

from pydantic import Field, model_validator

from unmask.config import Settings
from unmask.errors import SettingsError

Strategy = Literal["auto", "head", "tail", "head_tail", "windows", "parts", "hierarchical"]
Join = Literal["mean", "max", "attention"]
LongTask = Literal["classify", "tag", "qa", "embed"]

#: Tokens that neighbouring windows share where nobody says how many, in a room of 510.
OVERLAP = 128
#: Beginning and end must hold this share of the long texts for `auto` to be content with them.
ENOUGH = 0.5


class LongTextSettings(Settings):
    """What happens to a text that is longer than the model reads at once. A text that fits is never touched."""

    strategy: Strategy = "auto"
    #: Tokens read at once, special ones included; None: as many as the model can.
    max_length: Annotated[int, Field(ge=1)] | None = None
    #: Tokens that neighbouring windows share at least; None: 128, or a quarter of the room where that is less.
    overlap: Annotated[int, Field(ge=0)] | None = None
    join: Join = "mean"
    #: In training alone: the most windows a text may have. Those kept are spread evenly over it, from first to last.
    max_windows: Annotated[int, Field(ge=1)] | None = None

    @model_validator(mode="after")
    def _check_length(self) -> Self:
        if self.overlap is not None and self.max_length is not None and self.overlap >= self.max_length:
            raise ValueError(f"overlap {self.overlap} must be below max_length {self.max_length}")
        return self

    def read_at_once(self, limit: int) -> int:
        """Tokens of a window, special ones included, for a model that can read `limit`."""
        if self.max_length is not None and self.max_length > limit:
            raise SettingsError(
                f"max_length: {self.max_length} is more than the {limit} tokens that the model reads at once; "
                "lower it, or extend the model's positions"
            )
        return self.max_length or limit

    def shared(self, room: int) -> int:
        """Tokens that windows of `room` tokens share at least."""
        if self.overlap is None:
            return min(OVERLAP, (room + 3) // 4, room - 1)
        if self.overlap >= room:
            raise SettingsError(
                f"overlap: {self.overlap} must be below the {room} tokens of text that a window has room for"
            )
        return self.overlap


class Chosen(NamedTuple):
    """Settings that leave nothing open, and one sentence that says why."""

    settings: LongTextSettings
    reason: str


def choose(settings: LongTextSettings, task: LongTask, lengths: Sequence[int], limit: int) -> Chosen:
    """Settings with a strategy in the place of `auto`, which depends on the task and on how long the texts are.

    `lengths` count tokens with the special ones, as `limit` does.
    """
    at_once = settings.read_at_once(limit)
    if settings.strategy == "parts" and task in ("tag", "qa"):
        raise SettingsError(
            f"strategy: parts makes one vector of a text's parts, but {task} answers token by token; use windows"
        )
    long = [length for length in lengths if length > at_once]
    if settings.strategy != "auto":
        return Chosen(settings, f"{settings.strategy}, as asked for; {_count(long, lengths, at_once)}")
    strategy, why = _strategy(task, at_once * len(long) / sum(long) if long else 1.0)
    if not long:
        strategy, why = "windows", "nothing is cut, and what is longer one day will be read in windows"
    return Chosen(settings.replace(strategy=strategy), f"{strategy}: {_count(long, lengths, at_once)}; {why}")


def _strategy(task: LongTask, held: float) -> tuple[Strategy, str]:
    """The way for a task whose long texts could be held to the share `held` by one window each, and why."""
    if task == "tag":
        return "windows", "every token needs its label, so all are read"
    if task == "qa":
        return "windows", "an answer may stand anywhere, so all is read"
    if task == "embed":
        return "parts", "parts that do not overlap let every token count once"
    if held >= ENOUGH:
        return "head_tail", f"beginning and end hold {held:.0%} of their tokens, at the cost of one window a text"
    return "windows", f"beginning and end would hold only {held:.0%} of their tokens, so all is read"


def _count(long: Sequence[int], lengths: Sequence[int], at_once: int) -> str:
    """How many of the texts are long, in words."""
    if not long:
        return f"none of {len(lengths):,} texts is longer than the {at_once:,} tokens read at once"
    return (
        f"{len(long):,} of {len(lengths):,} texts are longer than the {at_once:,} tokens read at once, "
        f"up to {max(long):,}"
    )
