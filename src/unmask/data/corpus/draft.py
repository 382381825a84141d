"""A corpus in the making: a folder beside its place, with a journal from which an interrupted build goes on."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import filelock

from unmask.config import Settings, read_json
from unmask.data.corpus.format import (
    FORMAT,
    PARTS,
    CorpusSettings,
    Count,
    ShardRecord,
    Statistics,
    TokenizerRecord,
    TokenType,
    shard_file,
)
from unmask.data.corpus.inputs import Input, Place
from unmask.errors import SettingsError, UserError
from unmask.storage import atomic_write, disk_trouble, put_in_place, sync


class Task(Settings):
    """What is to be built: a build goes on only with the very same."""

    format: int = FORMAT
    settings: CorpusSettings
    tokenizer: TokenizerRecord
    token_type: TokenType
    inputs: tuple[Input, ...]


class FinishedShard(Settings):
    """A shard that is on the disk, and where the text after it begins."""

    record: ShardRecord
    statistics: Statistics
    next_file: Count
    next_line: Count


class Journal(Settings):
    """The content of `journal.json`."""

    task: Task
    shards: tuple[FinishedShard, ...] = ()


class Draft:
    """The folder `OUT.partial`. What will be the corpus lies in its folder `corpus`."""

    def __init__(self, out: Path, task: Task) -> None:
        self.out = out
        self.folder = draft_folder(out)
        self.corpus = self.folder / "corpus"
        self.journal = Journal(task=task)

    @property
    def place(self) -> Place:
        """Where to go on reading."""
        if not self.journal.shards:
            return Place()
        last = self.journal.shards[-1]
        return Place(last.next_file, last.next_line)

    def hash_file(self, number: int) -> Path:
        """Where the hashes of a shard's documents wait to be counted."""
        return self.folder / f"{number:05d}.hashes"

    def finish_shard(self, shard: FinishedShard) -> None:
        """Note a shard that is complete."""
        self._write(Journal(task=self.journal.task, shards=(*self.journal.shards, shard)))

    def take_up(self) -> str:
        """Go on where an earlier build of the same stopped, or start; a sentence about what was found, if anything."""
        found = self._earlier()
        if found is not None and found.task == self.journal.task and self._is_whole(found):
            self.journal = found
            self.remove_unfinished()
            if not found.shards:
                return ""
            done = sum(shard.record.documents for shard in found.shards)
            return f"going on after the {done:,} documents that an interrupted build left in {self.folder}"
        self._empty()
        self.corpus.mkdir()
        self._write(self.journal)
        if found is None or not found.shards:
            return ""
        why = "is damaged" if found.task == self.journal.task else "was of other files, settings or another tokenizer"
        return f"starting anew: the interrupted build in {self.folder} {why}"

    def put_in_place(self) -> None:
        """Make the finished corpus appear at its place, all at once."""
        for path in (*sorted(self.corpus.rglob("*")), self.corpus):
            sync(path)
        put_in_place(self.corpus, self.out)
        self.discard()

    def discard(self) -> None:
        """Remove the draft."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def _earlier(self) -> Journal | None:
        try:
            return Journal.parse(read_json(self.folder / "journal.json"))
        except (SettingsError, OSError):
            return None

    def _write(self, journal: Journal) -> None:
        atomic_write(self.folder / "journal.json", json.dumps(journal.model_dump(mode="json")).encode())
        self.journal = journal

    def _is_whole(self, journal: Journal) -> bool:
        kind = journal.task.token_type
        expected = {self.hash_file(n): 8 * shard.record.documents for n, shard in enumerate(journal.shards)}
        for number, shard in enumerate(journal.shards):
            for part in PARTS:
                expected[shard_file(self.corpus, number, part)] = shard.record.size(part, kind)
        return self.corpus.is_dir() and all(
            path.is_file() and path.stat().st_size == size for path, size in expected.items()
        )

    def remove_unfinished(self) -> None:
        """Remove files of a shard that was begun but not finished."""
        finished = {
            shard_file(self.corpus, number, part) for number in range(len(self.journal.shards)) for part in PARTS
        }
        for path in self.corpus.iterdir():
            if path.is_file() and path not in finished:
                path.unlink()

    def _empty(self) -> None:
        for path in self.folder.iterdir():
            if path.name == "lock":
                continue
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def draft_folder(out: Path) -> Path:
    """Where a corpus is built before it appears at its place."""
    return out.with_name(out.name + ".partial")


@contextlib.contextmanager
def drafting(out: Path, task: Task) -> Iterator[Draft]:
    """A draft that no other build is working on; what is left of it when a build fails is what can be gone on with."""
    draft = Draft(out, task)
    folder = draft.folder
    with disk_trouble(folder):
        if folder.exists() and not _is_ours(folder):
            raise UserError(
                f"{folder}: is needed for the draft but is something else; rename it or choose another name"
            )
        folder.mkdir(parents=True, exist_ok=True)
        lock = filelock.FileLock(folder / "lock", timeout=0)
        try:
            lock.acquire()
        except filelock.Timeout:
            raise UserError(f"{out}: another build is writing it; wait for it or choose another name") from None
        try:
            yield draft
        finally:
            lock.release()
            if not draft.journal.shards:
                draft.discard()


def _is_ours(folder: Path) -> bool:
    return folder.is_dir() and (
        (folder / "journal.json").is_file() or all(path.name == "lock" for path in folder.iterdir())
    )
