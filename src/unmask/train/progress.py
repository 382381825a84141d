"""What one update of a run was like: what the loop tells whoever listens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Progress:
    """How one update went."""

    update: int  # counted from 1
    updates: int  # of the whole run
    losses: Mapping[str, float]  # means over the items of the update
    gradient_norm: float  # before it was clipped
    learning_rate: float
    tokens: int  # of this update, in all processes
    seconds: float  # that this update took


class Listener:
    """Hears how a run goes, in the process that speaks; does nothing unless told what."""

    def say(self, text: str) -> None:
        """What is being done, before the first update and after the last."""

    def update(self, progress: Progress) -> None:
        """After each update."""

    def evaluation(self, update: int, values: Mapping[str, float], remarks: Sequence[str]) -> None:
        """After each evaluation."""
