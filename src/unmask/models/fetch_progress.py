"""How a download tells how far it is; who draws it is not its concern."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Progress:
    """How far a download is. `total` is None while nobody knows it."""

    label: str
    done: int
    total: int | None


Report = Callable[[Progress], None]
