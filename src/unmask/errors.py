"""The exception tree.

    UnmaskError
    ├── UserError            something given to us is wrong; the message is one sentence a user can act on
    │   ├── SettingsError    a setting is unknown, misspelt or out of range
    │   ├── DataError        a file of text or labels is wrong: names file and line
    │   ├── ModelError       a model folder is wrong, incomplete or of another kind
    │   └── TaskError        the model at hand cannot do what was asked
    ├── RefusedError         nothing is wrong, but what was asked for would break what was promised
    └── FetchError           the outside world did not deliver (network, registry, disk)

`Stopped` stands beside the tree: nothing is wrong, but a signal asked to end.

Anything else that escapes is our own fault and keeps its traceback. A message says what was wrong, what was
given, what is allowed and what to do. The command line and (later) HTTP say the same sentence.
"""

from __future__ import annotations

from pathlib import Path


class UnmaskError(Exception):
    """The root of everything raised on purpose."""

    exit_code = 1


class UserError(UnmaskError):
    """Something the user gave is wrong."""

    exit_code = 2


class SettingsError(UserError):
    """A setting is unknown, misspelt or out of range."""


class ItemNumber(int):
    """In the place of a line: the number of an object in a list that is written on one line."""


def place(line: int) -> str:
    """Where something is, in words: line 7, or item 7 of a list on one line."""
    return f"{'item' if isinstance(line, ItemNumber) else 'line'} {line}"


class DataError(UserError):
    """A file of text or labels is wrong."""

    def __init__(self, message: str, *, file: str | Path | None = None, line: int | None = None) -> None:
        self.file = None if file is None else Path(file)
        self.line = line
        where = "" if file is None else f"{file}: " if line is None else f"{file}, {place(line)}: "
        super().__init__(where + message)


class ModelError(UserError):
    """A model folder is wrong, incomplete or of another kind."""


class TaskError(UserError):
    """The model at hand cannot do what was asked of it."""


class RefusedError(UnmaskError):
    """What was asked for would break a promise, such as how much a smaller model may lose; nothing was written."""


class FetchError(UnmaskError):
    """The outside world did not deliver."""


class Stopped(BaseException):
    """Ctrl-C or SIGTERM. Not KeyboardInterrupt, which the command-line library would turn into exit code 1."""

    def __init__(self, signum: int) -> None:
        super().__init__(signum)
        self.exit_code = 128 + signum
