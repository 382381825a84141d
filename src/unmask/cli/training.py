"""What is seen of a training run: a bar on a terminal, plain lines elsewhere, and a table when it has ended."""

from __future__ import annotations

import math
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from unmask.cli.console import table, visible
from unmask.train.progress import Listener, Progress
from unmask.train.record import METRICS, is_loss, read_entries, training_seconds, training_tokens

Clock = Callable[[], float]

_WINDOW = 30.0  # seconds of training that a rate is taken over
_LEAST = 5  # updates that a rate is taken over, however long they take
_DECAY = 0.95  # of the running mean of a loss
_REDRAW = 0.25  # seconds between two drawings of the bar
_SAY = 10.0  # seconds between two plain lines
_LAST = 10  # logged updates whose mean is the final loss: a single one is noise
_PIPE_WIDTH = 1000  # a table in a file is not squeezed into the width of an imagined screen


class TrainingBar(Protocol):
    """Where a run shows how it goes."""

    def update(self, progress: Progress) -> None:
        """Show one more update."""

    def say(self, text: str) -> None:
        """Show a line, above the bar if there is one."""

    def table(self, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
        """Show a table, above the bar if there is one."""


@contextmanager
def training_bar(label: str, updates: int | None = None, done: int = 0) -> Iterator[TrainingBar]:
    """Show on stderr how a run of so many updates goes, `done` of which an earlier process did.

    Where nobody knows yet how many updates there will be, the first one tells.
    """
    screen = Console(stderr=True, highlight=False)
    if not (sys.stderr.isatty() and screen.is_interactive):
        yield _PlainLines(label, updates, done)
        return
    bar = _LiveBar(screen, label, updates, done)
    with bar.live:
        bar.live.refresh()
        yield bar


class BarListener(Listener):
    """Shows a run on its bar: updates, what is said, and evaluations with their remarks."""

    def __init__(self, bar: TrainingBar, measured_on: str = "dev") -> None:
        self.bar, self.measured_on = bar, measured_on

    def update(self, progress: Progress) -> None:
        """Move the bar."""
        self.bar.update(progress)

    def say(self, text: str) -> None:
        """A line above it."""
        self.bar.say(text)

    def evaluation(self, update: int, values: Mapping[str, float], remarks: Sequence[str]) -> None:
        """A line with the values, and one for each remark."""
        found = "  ".join(f"{name} {value:.4f}" for name, value in values.items())
        self.bar.say(f"{self.measured_on}, update {update:,}: {found}")
        for line in remarks:
            self.bar.say(f"  {line}")


def duration(seconds: float) -> str:
    """A time in the two units that matter: `45 s`, `12 min`, `1 h 32 min`, `2 d 3 h`."""
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    if minutes < 60:
        return f"{minutes} min"
    if minutes < 24 * 60:
        return f"{minutes // 60} h {minutes % 60} min"
    hours = round(seconds / 3600)
    return f"{hours // 24} d {hours % 24} h"


def summary(run: Path) -> list[tuple[str, object]]:
    """What came of a run, as rows of a table: how long, how fast, the final losses and the best of each evaluation."""
    entries = read_entries(run / METRICS)
    seconds, tokens = training_seconds(run), training_tokens(run)
    rows: list[tuple[str, object]] = [
        ("updates", max((entry["update"] for entry in entries), default=0)),
        ("minutes of training", f"{seconds / 60:,.1f}"),
        ("tokens", tokens),
        ("tokens/s", round(tokens / seconds) if seconds else 0),
    ]
    logged = [entry["losses"] for entry in entries if "losses" in entry]
    names = dict.fromkeys(name for losses in logged for name in losses)
    for name in names:
        known = [losses[name] for losses in logged[-_LAST:] if losses.get(name) is not None]
        if known:
            mean = f"{sum(known) / len(known):.4g}"
            rows.append((f"final loss {name}, mean of {len(known)} logged", mean))
    evaluated: dict[str, list[tuple[float, int]]] = {}
    for entry in entries:
        for name, value in entry.get("evaluation", {}).items():
            if value is not None:
                evaluated.setdefault(name, []).append((value, entry["update"]))
    for name, values in evaluated.items():
        lower = is_loss(name, names) or name.lower().endswith(("perplexity", "error"))
        best, update = min(values, key=lambda pair: pair[0] if lower else -pair[0])
        rows.append((f"best {name} evaluated", f"{best:.4g} after update {update:,}"))
    return rows


class _Meter:
    """How fast a run is of late, and its losses as running means.

    Only what this process does counts: what an earlier one did took none of its time.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._began = 0.0
        self._trained = 0.0  # seconds in updates, since `began`
        self._recent: deque[tuple[int, float]] = deque()
        self._tokens = 0  # of the recent updates
        self._seconds = 0.0
        self._means: dict[str, tuple[float, float]] = {}  # weighted sum and sum of weights
        self._latest: Progress | None = None

    def add(self, progress: Progress) -> None:
        """Count an update that has just ended."""
        if self._latest is None:
            self._began = self._clock() - progress.seconds
        self._latest = progress
        self._trained += progress.seconds
        self._recent.append((progress.tokens, progress.seconds))
        self._tokens += progress.tokens
        self._seconds += progress.seconds
        while len(self._recent) > _LEAST and self._seconds - self._recent[0][1] >= _WINDOW:
            tokens, seconds = self._recent.popleft()
            self._tokens -= tokens
            self._seconds -= seconds
        for name, value in progress.losses.items():
            if math.isfinite(value):
                total, weight = self._means.get(name, (0.0, 0.0))
                self._means[name] = _DECAY * total + value, _DECAY * weight + 1.0

    def losses(self) -> list[str]:
        """Each loss by its name. One that is no number now is shown as it is."""
        shown = []
        for name, latest in self._latest.losses.items() if self._latest else ():
            value = latest
            if math.isfinite(latest):
                total, weight = self._means[name]
                value = total / weight
            shown.append(f"{name} {value:.2g}" if abs(value) < 0.01 else f"{name} {value:.3f}")
        return shown

    def rate(self) -> str:
        """Tokens a second; empty before anything is known."""
        if not self._tokens or self._seconds <= 0:
            return ""
        return f"{self._tokens / self._seconds:,.0f} tokens/s"

    def left(self) -> str:
        """The time until the last update: the recent pace, and as much around the updates as there was so far."""
        if self._latest is None or self._latest.update >= self._latest.updates:
            return ""
        pace = self._seconds / len(self._recent)
        around = (self._clock() - self._began) / self._trained if self._trained > 0 else 1.0
        return f"{duration((self._latest.updates - self._latest.update) * pace * max(1.0, around))} left"


class _PlainLines:
    """A line for the first update, then one every ten seconds at most, and one for the last."""

    def __init__(self, label: str, updates: int | None, done: int, clock: Clock = time.monotonic) -> None:
        self._screen = Console(stderr=True, highlight=False, width=None if sys.stderr.isatty() else _PIPE_WIDTH)
        self._meter = _Meter(clock)
        self._clock = clock
        self._said = -math.inf
        if updates is not None:
            self.say(f"{label}: going on after update {done} of {updates}" if done else f"{label}: {updates} updates")

    def update(self, progress: Progress) -> None:
        self._meter.add(progress)
        now = self._clock()
        if now - self._said < _SAY and progress.update != progress.updates:
            return
        self._said = now
        losses = _named(self._meter.losses(), " ")
        parts = (f"update {progress.update}/{progress.updates}", losses, self._meter.rate(), self._meter.left())
        self.say("  ".join(part for part in parts if part))

    def say(self, text: str) -> None:
        _print_line(self._screen, text)

    def table(self, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
        self._screen.print(table(columns, rows))


class _LiveBar:
    """Two lines that are drawn over and over: how far and how fast, and below them the losses.

    No thread draws them, as rich's own bars have one: worker processes are forked from this one, and a fork while a
    thread holds a lock leaves it locked for ever.
    """

    def __init__(
        self, screen: Console, label: str, updates: int | None, done: int, clock: Clock = time.monotonic
    ) -> None:
        self._screen = screen
        self._label = label
        self._updates, self._done = updates, done
        self._meter = _Meter(clock)
        self._clock = clock
        self._drawn = -math.inf
        self.live = Live(
            console=screen,
            get_renderable=self._picture,
            auto_refresh=False,
            # What others print goes above the bar too. But results belong where stdout goes, if that is a file.
            redirect_stdout=sys.stdout.isatty(),
        )

    def update(self, progress: Progress) -> None:
        self._meter.add(progress)
        self._done, self._updates = progress.update, progress.updates
        if self._clock() - self._drawn >= _REDRAW or progress.update == progress.updates:
            self._drawn = self._clock()
            self.live.refresh()

    def say(self, text: str) -> None:
        _print_line(self._screen, text)

    def table(self, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
        self._screen.print(table(columns, rows))

    def _picture(self) -> RenderableType:
        if self._updates is None:
            return Text(visible(f"{self._label}  getting ready …"))
        line = Table.grid(padding=(0, 2, 0, 0), expand=True)
        line.add_column(no_wrap=True, overflow="ellipsis")
        line.add_column(ratio=1, min_width=4)
        cells = [f"{self._done}/{self._updates}", self._meter.rate(), self._meter.left()]
        for _ in cells:
            line.add_column(no_wrap=True)
        bar = ProgressBar(total=self._updates, completed=self._done)
        line.add_row(Text(visible(self._label)), bar, *map(Text, cells))
        losses = self._meter.losses()
        return Group(line, Text(visible(_named(losses, "  ")))) if losses else line


def _named(losses: list[str], gap: str) -> str:
    """Losses after the word, which one that has no other name brings itself."""
    return gap.join(losses if losses[:1] and losses[0].startswith("loss ") else ["loss", *losses])


def _print_line(screen: Console, text: str) -> None:
    screen.print(visible(text), markup=False, emoji=False, soft_wrap=True)
