"""What a run folder says about the run, in formats that need no program of ours.

    metrics.jsonl   a line for each logged update and each evaluation; the same bits whether a run was stopped or not
    times.jsonl     how long it took; different every time
    tensorboard/    the same numbers for TensorBoard

A number that is not finite is null in the two .jsonl files, for JSON has no other word for it.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from unmask.storage import atomic_write, disk_trouble
from unmask.train.progress import Progress

METRICS = "metrics.jsonl"
TIMES = "times.jsonl"
TENSORBOARD = "tensorboard"


class Record:
    """Writes down how a run goes. To be told of every update; writes every `every`-th one, and the last.

    `done` is the number of updates of the checkpoint that the run goes on from; what an earlier process wrote after it
    is forgotten, since it is about to happen again.
    """

    def __init__(self, run: Path, done: int, every: int = 1) -> None:
        run.mkdir(parents=True, exist_ok=True)
        self._run = run
        self._every = every
        self._last = self._timed = done
        self._seconds = 0.0
        self._tokens = 0
        self._started = datetime.now(UTC).isoformat()
        for name in (METRICS, TIMES):
            _forget_after(run / name, done)
        self._events = _Events(run / TENSORBOARD, done)

    def update(self, progress: Progress) -> None:
        """Count one update, and write it down if its turn has come."""
        if progress.update != self._last + 1:  # its tokens and seconds would be missing from the totals
            raise ValueError(f"update {progress.update} was told after update {self._last}: every one must be told")
        self._last = progress.update
        self._seconds += progress.seconds
        self._tokens += progress.tokens
        if progress.update % self._every and progress.update != progress.updates:
            return
        losses = {name: float(value) for name, value in progress.losses.items()}
        state = {"gradient_norm": progress.gradient_norm, "learning_rate": progress.learning_rate}
        self._append(METRICS, {"update": progress.update, "losses": losses, **state})
        self._append_times()
        self._events.scalars(progress.update, {f"loss/{name}": value for name, value in losses.items()} | state)

    def evaluation(self, update: int, values: Mapping[str, float]) -> None:
        """Write down what an evaluation after `update` updates found."""
        found = {name: float(value) for name, value in values.items()}
        self._append(METRICS, {"update": update, "evaluation": found})
        self._events.scalars(update, {f"evaluation/{name}": value for name, value in found.items()})

    def close(self) -> None:
        """End the record: a run may stop between two logged updates, and their time must not be lost."""
        self._events.close()
        if self._timed < self._last:
            self._append_times()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _append_times(self) -> None:
        self._timed = self._last
        spent = {"seconds": round(self._seconds, 3), "tokens": self._tokens, "started": self._started}
        self._append(TIMES, {"update": self._last, **spent})

    def _append(self, name: str, entry: Mapping[str, Any]) -> None:
        path = self._run / name
        line = json.dumps(_finite(entry), ensure_ascii=False, allow_nan=False) + "\n"
        with disk_trouble(path), path.open("a", encoding="utf-8", newline="\n") as file:
            file.write(line)


def read_entries(path: Path) -> list[dict[str, Any]]:
    """The entries of a .jsonl file of a run folder, but for a last one that was cut off in the middle of a line."""
    return [entry for _, entry in _lines(path)]


def training_seconds(run: Path) -> float:
    """How long a run has been training, added up over all processes that worked on it one after another.

    Only the updates themselves count, not evaluating, saving or waiting to be started again; and only those that the
    run was built on, not those done again after a crash.
    """
    return sum((float(spent["seconds"]) for spent in _by_process(run)), 0.0)


def training_tokens(run: Path) -> int:
    """How many tokens a run has learned from, counted like its seconds."""
    return sum(int(spent["tokens"]) for spent in _by_process(run))


def is_loss(name: str, losses: Mapping[str, object]) -> bool:
    """Whether an evaluated value is a loss: one of the training losses, or called so."""
    return name in losses or name.lower().endswith("loss")


def _by_process(run: Path) -> list[dict[str, Any]]:
    """The last entry of each process, which has its totals."""
    return list({entry["started"]: entry for entry in read_entries(run / TIMES)}.values())


def _lines(path: Path) -> list[tuple[bytes, dict[str, Any]]]:
    found: list[tuple[bytes, dict[str, Any]]] = []
    for line in path.read_bytes().split(b"\n") if path.is_file() else []:
        try:
            entry = json.loads(line)
        except ValueError:
            break
        if not isinstance(entry, dict) or not isinstance(entry.get("update"), int):
            break
        found.append((line, entry))
    return found


def _forget_after(path: Path, done: int) -> None:
    """Remove what was written after the checkpoint; all, if there was none."""
    if not path.is_file():
        return
    kept = b"".join(line + b"\n" for line, entry in _lines(path) if done and entry["update"] <= done)
    if kept != path.read_bytes():
        atomic_write(path, kept)


def _finite(value: Any) -> Any:
    """The same value with None for each number that JSON cannot say."""
    if isinstance(value, Mapping):
        return {key: _finite(inner) for key, inner in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value


class _Events:
    """A file of events that TensorBoard reads.

    tensorboardX's own SummaryWriter is not used: its thread may hold events back when the process is killed, it names
    the file after the machine, and it overwrites the file of a process that began in the same second.
    """

    def __init__(self, folder: Path, done: int) -> None:
        from tensorboardX import RecordWriter
        from tensorboardX.proto.event_pb2 import Event, SessionLog

        folder = folder.resolve()  # a relative name with a colon would be taken for an address
        self._path = folder / f"events.out.tfevents.{_next_number(folder):06d}"
        with disk_trouble(self._path):
            folder.mkdir(parents=True, exist_ok=True)
            self._writer = RecordWriter(str(self._path))
        first = done + 1 if done else 0
        self._write(Event(step=first, file_version="brain.Event:2"))
        # Hides what the files before this one say of this update and those after it.
        self._write(Event(step=first, session_log=SessionLog(status=SessionLog.START)))

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """One event with all values of one update."""
        from tensorboardX.proto.event_pb2 import Event
        from tensorboardX.proto.summary_pb2 import Summary

        listed = [Summary.Value(tag=name, simple_value=value) for name, value in values.items()]
        self._write(Event(step=step, summary=Summary(value=listed)))

    def close(self) -> None:
        self._writer.close()

    def _write(self, event: Any) -> None:
        event.wall_time = time.time()
        with disk_trouble(self._path):
            self._writer.write(event.SerializeToString())
            self._writer.flush()


def _next_number(folder: Path) -> int:
    """Files are read in the order of their names, so each gets a higher number than all before it."""
    numbers = [path.name.rpartition(".")[2] for path in folder.glob("events.out.tfevents.*")]
    return 1 + max((int(number) for number in numbers if number.isdecimal()), default=0)
