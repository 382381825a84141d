"""Gaps of one character in held-out text: what stood there?"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from torch import Tensor

from unmask.lab.entry import Record
from unmask.lab.kit.daily import CLS, MASK, SEP, SPECIAL, daily, windows
from unmask.models.bert import Bert
from unmask.models.gpt import Gpt
from unmask.nn.batch import Batch

LENGTH, RUN = 32, 8  # characters a text; characters from a gap on that are guessed one after the other
_EACH = 64  # texts a batch


@dataclass(frozen=True)
class Gap:
    """A text, and the place of the character that is asked for."""

    text: tuple[int, ...]
    place: int

    @property
    def answers(self) -> tuple[int, ...]:
        """The character that belongs there, and those that follow it."""
        return self.text[self.place : self.place + RUN]


@cache
def gaps(count: int) -> tuple[Gap, ...]:
    """So many, always the same; at least eight characters stand before each, and seven after it."""
    rng = np.random.default_rng(54321)
    found: list[Gap] = []
    while len(found) < count:
        (text,) = windows(daily().held_out, LENGTH, 1, rng)
        place = int(rng.integers(8, LENGTH - RUN + 1))
        if len(text) == LENGTH and min(text[place : place + RUN]) >= SPECIAL:  # characters that models know
            found.append(Gap(tuple(text.tolist()), place))
    return tuple(found)


@dataclass(frozen=True)
class Asked:
    """What a model is shown, and which of its tokens it is asked for."""

    sequence: list[int]
    place: int
    answer: int


def cloze(gap: Gap) -> Asked:
    """Both sides, the gap as [MASK]."""
    text = [*gap.text[: gap.place], MASK, *gap.text[gap.place + 1 :]]
    return Asked([CLS, *text, SEP], gap.place + 1, gap.text[gap.place])


def next_of(gap: Gap, step: int) -> Asked:
    """The left side alone and `step` characters more, then [MASK]."""
    end = gap.place + step
    return Asked([CLS, *gap.text[:end], MASK, SEP], end + 1, gap.text[end])


@torch.inference_mode()
def bert_guesses(model: Bert, asked: list[Asked]) -> Tensor:
    """Log probabilities of the answers, and whether each was the best guess: (n, 2)."""

    def logits(batch: Batch, rows: Tensor) -> Tensor:
        return model.masked_token_logits(model(batch).sequence.index_select(0, rows))

    return guesses(logits, asked)


@torch.inference_mode()
def guesses(logits: Callable[[Batch, Tensor], Tensor], asked: list[Asked]) -> Tensor:
    """The same of anything that gives logits for rows of a batch."""
    found = []
    for first in range(0, len(asked), _EACH):
        some = asked[first : first + _EACH]
        batch = Batch.of([one.sequence for one in some])
        rows = torch.tensor([start + one.place for start, one in zip(batch.layout.starts, some, strict=True)])
        found.append(_scored(logits(batch, rows), torch.tensor([one.answer for one in some])))
    return torch.cat(found)


@torch.inference_mode()
def gpt_guesses(model: Gpt, chosen: tuple[Gap, ...]) -> Tensor:
    """Of each gap and the characters after it, each from all before it: (n, RUN, 2)."""
    found = []
    for first in range(0, len(chosen), _EACH):
        some = chosen[first : first + _EACH]
        batch = Batch.of([[CLS, *gap.text] for gap in some])
        starts = zip(batch.layout.starts, some, strict=True)
        rows = torch.tensor([start + gap.place + step for start, gap in starts for step in range(RUN)])
        answers = torch.tensor([answer for gap in some for answer in gap.answers])
        found.append(_scored(model(batch).index_select(0, rows), answers).view(len(some), RUN, 2))
    return torch.cat(found)


def _scored(logits: Tensor, answers: Tensor) -> Tensor:
    logs = logits.double().log_softmax(-1).gather(1, answers[:, None])[:, 0]
    return torch.stack([logs, (logits.argmax(-1) == answers).double()], dim=-1)


def summed(name: str, found: Tensor) -> Record:
    """Mean log probability and share of right guesses under a name; None where a model gives no numbers."""
    log, right = found.flatten(0, -2).mean(0).tolist()
    return {f"{name}_log": log if math.isfinite(log) else None, f"{name}_right": right}
