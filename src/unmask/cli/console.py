"""What people and programs see: results on stdout, everything else on stderr."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from os.path import exists, isdir
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    ProgressColumn,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.table import Table
from rich.text import Text

from unmask.errors import UserError
from unmask.text.files import check_encoding, read_lines, size_of

#: When stdout is a file or a pipe, tables are not squeezed into the width of an imagined screen.
_WIDE = 1000
NO_TEXTS = "no texts were given"


#: Characters that could steer a terminal or turn the order of its letters around, and halves of characters, which
#: cannot be written at all.
_STEERING = re.compile("[\x00-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def visible(text: str) -> str:
    """A text whose control characters are shown (as `\\x1b`) instead of obeyed."""
    return _STEERING.sub(lambda found: repr(found[0])[1:-1], text)


def out() -> Console:
    """Where tables go."""
    return Console(highlight=False, width=None if sys.stdout.isatty() else _WIDE)


def result(text: str) -> None:
    """A plain result on stdout, to the letter; only a terminal gets its control characters made visible."""
    if sys.stdout.isatty() or not _writable(text):
        text = visible(text)
    sys.stdout.write(text + "\n")


def say(message: str) -> None:
    """A line about what is being done, on stderr, so that it never mixes with results."""
    Console(stderr=True, highlight=False).print(visible(message), markup=False, emoji=False, soft_wrap=True)


def print_json(value: Any) -> None:
    """One value on one line."""
    text = json.dumps(value, ensure_ascii=False)
    # JSON leaves some of them as they are, but has its own way of showing them.
    sys.stdout.write(_STEERING.sub(lambda found: f"\\u{ord(found[0]):04x}", text) + "\n")


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]], title: str | None = None) -> None:
    """A table for people. Cells are shown as they are: text in [brackets] is text."""
    out().print(table(columns, rows, title))


def fits(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> bool:
    """Whether a table with these rows fits on the screen without breaking a cell into lines."""
    console = out()
    wanted = console.measure(table(columns, rows), options=console.options.update(width=10 * _WIDE))
    return wanted.maximum <= console.width


def table(columns: Sequence[str], rows: Iterable[Sequence[object]], title: str | None = None) -> Table:
    """A table as it is drawn."""
    heading = None if title is None else Text(visible(title), style="bold")
    table = Table(title=heading, title_justify="left", header_style="bold")
    for column in columns:
        table.add_column(Text(visible(column)), overflow="fold")  # what is cut off cannot be told apart
    for row in rows:
        table.add_row(*(_cell(value) for value in row))
    return table


def _cell(value: object) -> Text:
    number = isinstance(value, int) and not isinstance(value, bool)
    return Text(f"{value:,}" if number else visible(str(value)))


def _writable(text: str) -> bool:
    try:
        text.encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:
        return False
    return True


def texts_from(arguments: Sequence[str] | None, file: str | None, encoding: str = "utf-8") -> Iterator[str]:
    """Texts from the command's arguments, else from a file (`-` for stdin), else from a pipe on stdin.

    What is wrong is said now, before any work is done.
    """
    checked = check_encoding(encoding)
    if arguments and file:
        raise UserError("give texts as arguments or with --file, not both")
    if arguments:
        return iter(arguments)
    if file is None and sys.stdin.isatty():
        raise UserError("no text given: write it after the command, or use --file FILE, or --file - for stdin")
    if file is not None and file != "-":
        size_of(Path(file))
    return read_lines(file or "-", encoding=checked)


def not_none(texts: Iterator[str]) -> Iterator[str]:
    """The same texts; a remark if there are none."""
    for text in texts:
        yield text
        yield from texts
        return
    say(NO_TEXTS)


def num_lines(file: str | None) -> int | None:
    """How many texts a file has, for a bar that knows its end; None if only reading it all would tell."""
    path = Path(file or "-")
    if not path.is_file() or path.suffix == ".gz":
        return None
    with path.open("rb") as content:
        ends = 0
        last = b"\n"
        while block := content.read(1 << 20):
            ends += block.count(b"\n")
            last = block[-1:]
    return ends + (last != b"\n")


@contextmanager
def download_bar() -> Iterator[Callable[[Any], None]]:
    """A callback that draws a bar for each label it is called with; silent when stderr is not a terminal."""
    columns = (
        TextColumn("{task.description}", markup=False),
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
                tasks[label] = bar.add_task(visible(label), total=progress.total)
            bar.update(tasks[label], completed=progress.done, total=progress.total)

        yield report


@contextmanager
def status(what: str) -> Iterator[Callable[[str], None]]:
    """A callback that shows what is being done; silent when stderr is not a terminal."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda _: None
        return
    with console.status(what) as shown:
        yield lambda now: shown.update(f"{what}: {now}")


@contextmanager
def counting(label: str, total: int | None = None, *, shown: bool = True) -> Iterator[Callable[[int], None]]:
    """A callback that shows how many have been done and how fast; silent when stderr is not a terminal."""
    console = Console(stderr=True)
    columns: list[ProgressColumn] = [TextColumn("{task.description}", markup=False), TextColumn("{task.completed:,}")]
    if total is not None:
        columns += [TextColumn(f"of {total:,}"), BarColumn()]
    columns.append(TextColumn("{task.fields[rate]}"))
    silent = not (shown and console.is_terminal)
    with Progress(*columns, console=console, disable=silent, transient=True) as bar:
        task = bar.add_task(label, total=total, rate="")

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
    """`path`, if a file may be written there."""
    if isdir(path):
        raise UserError(f"{path}: is a folder; give the name of a file in it")
    if exists(path) and not overwrite:
        raise UserError(f"{path}: exists already; choose another name or add --overwrite")
    if not isdir(path.parent):
        raise UserError(f"{path}: there is no folder {path.parent} to write into; create it first")
    return path


def new_folder_path(path: Path, *, overwrite: bool) -> Path:
    """`path`, if a folder may be written there."""
    standing = next(place for place in (path, *path.absolute().parents) if exists(place))
    if not isdir(standing):
        raise UserError(f"{path}: cannot be a folder, for {standing} is a file; choose another name")
    if isdir(path) and any(path.iterdir()) and not overwrite:
        raise UserError(f"{path}: exists already; choose another name or add --overwrite")
    return path


def use_threads(threads: int | None) -> None:
    """Let torch work with so many threads; None: as many as it likes."""
    if threads is not None:
        import torch

        torch.set_num_threads(threads)


def load_bundle(name: str, engine: str) -> Any:
    """A model by name, with a bar while it is fetched, and a word where another engine runs it than was asked for."""
    from unmask.bundle import load

    with download_bar() as report:
        bundle = load(name, progress=report, engine=engine)  # type: ignore[arg-type]
    if bundle.engine.why and engine != "auto":
        say(str(bundle.engine))
    return bundle
