"""What people and programs see: results on stdout, everything else on stderr."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn
from rich.table import Table
from rich.text import Text

from unmask.errors import UserError
from unmask.text.files import read_lines

#: When stdout is a file or a pipe, tables are not squeezed into the width of an imagined screen.
_WIDE = 1000


def out() -> Console:
    """Where results go."""
    return Console(highlight=False, width=None if sys.stdout.isatty() else _WIDE)


def say(message: str) -> None:
    """A line about what is being done, on stderr, so that it never mixes with results."""
    Console(stderr=True, highlight=False).print(message, markup=False, soft_wrap=True)


def print_json(value: Any) -> None:
    """One value on one line."""
    sys.stdout.write(json.dumps(value, ensure_ascii=False) + "\n")


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]], title: str | None = None) -> None:
    """A table for people. Cells are shown as they are: text in [brackets] is text."""
    table = Table(title=None if title is None else Text(title), title_justify="left", header_style="bold")
    for column in columns:
        table.add_column(Text(column))
    for row in rows:
        table.add_row(*(_cell(value) for value in row))
    out().print(table)


def _cell(value: object) -> Text:
    number = isinstance(value, int) and not isinstance(value, bool)
    return Text(f"{value:,}" if number else str(value))


def texts_from(arguments: Sequence[str] | None, file: str | None) -> Iterator[str]:
    """Texts from the command's arguments, else from a file (`-` for stdin), else from a pipe on stdin."""
    if arguments and file:
        raise UserError("give texts as arguments or with --file, not both")
    if arguments:
        return iter(arguments)
    if file is None and sys.stdin.isatty():
        raise UserError("no text given: write it after the command, or use --file FILE, or --file - for stdin")
    return read_lines(file or "-")


@contextmanager
def download_bar() -> Iterator[Callable[[Any], None]]:
    """A callback that draws a bar for each label it is called with; silent when stderr is not a terminal."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    tasks: dict[str, Any] = {}
    console = Console(stderr=True)
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as bar:

        def report(progress: Any) -> None:
            label = getattr(progress, "label", None) or progress.stage
            if label not in tasks:
                tasks[label] = bar.add_task(label, total=progress.total)
            bar.update(tasks[label], completed=progress.done, total=progress.total)

        yield report


@contextmanager
def counting(label: str) -> Iterator[Callable[[int], None]]:
    """A callback that shows how many have been done and how fast; silent when stderr is not a terminal."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), TextColumn("{task.completed:,}"), TextColumn("{task.fields[rate]}"))
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as bar:
        task = bar.add_task(label, total=None, rate="")

        def report(done: int) -> None:
            bar.update(task, completed=done)
            speed = bar.tasks[0].speed
            bar.update(task, rate=f"{speed:,.0f}/s" if speed else "")

        yield report


def shorten(text: str, width: int = 60) -> str:
    """A text on one line, its end replaced by … if it is long."""
    text = " ".join(text.split())
    return text if len(text) <= width else text[: width - 1] + "…"


def new_path(path: Path, *, overwrite: bool) -> Path:
    """`path`, if it may be written to."""
    if path.exists() and not overwrite:
        raise UserError(f"{path}: exists already; choose another name or add --overwrite")
    return path
