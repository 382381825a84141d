"""What is wrong with one row, and who hears of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from unmask.errors import DataError


class RowError(DataError):
    """One row, sentence or question of a file is wrong; the others may be right."""

    def __init__(self, message: str, *, kind: str, file: str | Path, line: int | None) -> None:
        super().__init__(message, file=file, line=line)
        #: What is wrong in a word, to count by: ragged, quotes, json, empty, unlabelled, label, text, tags, offsets …
        self.kind = kind
        #: The sentence without file and line.
        self.message = message


OnError = Callable[[RowError], None] | None
"""Takes what is wrong with a row, which is then left out; None raises it."""


def report(error: RowError, on_error: OnError) -> None:
    """Raise what is wrong, or give it to whoever takes it."""
    if on_error is None:
        raise error
    on_error(error)
