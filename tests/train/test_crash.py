"""kill -9, signals and full disks: a run goes on to the same bits, and the newest checkpoint always loads."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch

import pretrain_toy as toy
from unmask import storage
from unmask.errors import FetchError
from unmask.models import weights_write
from unmask.train.checkpoint import drop_old_checkpoints, newest_checkpoint, read_checkpoint, write_checkpoint

TOY = Path(__file__).with_name("pretrain_toy.py")


class Program:
    """The toy, started once; it forks a process for each order."""

    def __init__(self, log: Path) -> None:
        self._log = log.open("w")
        self._server = subprocess.Popen(
            [sys.executable, str(TOY)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, text=True
        )
        self.process = 0

    def start(self, *order: str) -> None:
        self.process = self._ask(list(order))

    def wait(self) -> int:
        """The exit status; negative for a signal that was not heard."""
        return self._ask(["wait"])

    def kill(self) -> int:
        os.kill(self.process, signal.SIGKILL)
        return self.wait()

    def _ask(self, order: list[str]) -> int:
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        self._server.stdin.write(json.dumps(order) + "\n")
        self._server.stdin.flush()
        return int(self._server.stdout.readline())

    def close(self) -> None:
        for pipe in (self._server.stdin, self._server.stdout):
            assert pipe is not None
            pipe.close()
        self._server.wait(60)
        self._log.close()


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Program]:
    log = tmp_path_factory.mktemp("log") / "stderr"
    one = Program(log)
    yield one
    one.close()
    said = log.read_text()
    # A worker of torch's loader may be in the middle of handing over a batch when its master is killed, and says so.
    assert said.count("Traceback") == said.count("multiprocessing/resource_sharer.py"), said


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(toy.make_corpus(tmp_path_factory.mktemp("made") / "corpus").folder)


class Whole:
    """A run that nobody interrupted."""

    def __init__(self, program: Program, corpus: str, run: Path, updates: int) -> None:
        self.updates = updates
        began = time.monotonic()
        program.start("run", corpus, str(run), str(updates))
        assert program.wait() == 0
        self.seconds = time.monotonic() - began
        self.digests = digests(run)
        assert next(iter(self.digests)) == f"checkpoint-{updates}/model.safetensors"


@pytest.fixture(scope="module")
def short(program: Program, corpus: str, tmp_path_factory: pytest.TempPathFactory) -> Whole:
    return Whole(program, corpus, tmp_path_factory.mktemp("whole") / "run", 60)


def digests(run: Path) -> dict[str, str]:
    """Weights, optimizer, average, random state, position, the best weights and the log of a finished run."""
    newest = newest_checkpoint(run)
    assert newest is not None
    files = [newest / "model.safetensors", newest / "position.json", run / "metrics.jsonl"]
    files += [run / "best" / "model.safetensors", run / "best" / "position.json"]
    return {str(file.relative_to(run)): hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


def logged(run: Path) -> int:
    """How many updates have been written down."""
    path = run / "metrics.jsonl"
    return path.read_bytes().count(b'"losses"') if path.is_file() else 0


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 300
    while not condition():
        assert time.monotonic() < end, "it never came to that"
        time.sleep(0.002)


def left_behind(run: Path) -> list[str]:
    """Drafts of checkpoints and of the best weights."""
    return [path.name for path in run.glob(".*") if path.name.startswith((".checkpoint", ".best"))]


def killed_at(program: Program, order: tuple[str, ...], run: Path, moment: Callable[[], None]) -> None:
    """Start, kill at some moment; again if it was done by then."""
    for _ in range(20):
        shutil.rmtree(run, ignore_errors=True)
        program.start(*order)
        moment()
        if program.kill() == -signal.SIGKILL:
            return
    raise AssertionError("it was always faster")


def kills(program: Program, corpus: str, whole: Whole, folder: Path, trials: int) -> list[int]:
    """Kill independent runs, resume each; gives the update at which each was killed."""
    draw = Random(trials)
    moments = []
    for trial in range(trials):
        run = folder / f"run-{trial}"
        order = ("run", corpus, str(run), str(whole.updates))
        if trial % 2:  # at any time, the start included
            killed_at(program, order, run, lambda: time.sleep(draw.uniform(0, 0.98) * whole.seconds))
        else:  # at any update, and anywhere in the next one, which may be longer for it evaluates or saves
            wanted = draw.randrange(1, whole.updates)

            def moment(run: Path = run, wanted: int = wanted) -> None:
                until(lambda: logged(run) >= wanted)
                time.sleep(draw.uniform(0, 0.1))

            killed_at(program, order, run, moment)
        moments.append(logged(run))
        program.start(*order)
        assert program.wait() == 0
        assert digests(run) == whole.digests, f"trial {trial}, killed at update {moments[-1]}"
        assert not left_behind(run)
    return moments


def test_killed_at_any_moment_it_ends_the_same(program: Program, corpus: str, short: Whole, tmp_path: Path) -> None:
    assert len(kills(program, corpus, short, tmp_path, 3)) == 3


@pytest.mark.slow
def test_killed_at_twenty_moments_it_ends_the_same_twenty_times(
    program: Program, corpus: str, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    whole = Whole(program, corpus, tmp_path_factory.mktemp("whole") / "run", 200)
    moments = kills(program, corpus, whole, tmp_path, 20)
    print("killed at", sorted(moments))
    assert len(moments) == 20
    assert max(moments) > 100
    assert len(set(moments)) > 10


@pytest.mark.parametrize(("signum", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_saves_and_leaves(
    signum: signal.Signals, status: int, program: Program, corpus: str, short: Whole, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    order = ("run", corpus, str(run), str(short.updates))
    program.start(*order)
    until(lambda: logged(run) >= 23)
    os.killpg(program.process, signum)  # a terminal tells the workers too
    assert program.wait() == status
    newest = newest_checkpoint(run)
    assert newest is not None
    done = int(newest.name.rpartition("-")[2])
    assert 23 <= done < short.updates
    assert done == logged(run)  # no update is lost
    with pytest.raises(ProcessLookupError):  # and no worker left
        until(lambda: os.killpg(program.process, 0) is not None)
    program.start(*order)
    assert program.wait() == 0
    assert digests(run) == short.digests


def test_a_second_signal_does_not_wait(program: Program, corpus: str, short: Whole, tmp_path: Path) -> None:
    run = tmp_path / "run"
    order = ("run", corpus, str(run), str(short.updates))
    program.start(*order)
    until(lambda: logged(run) >= 5)
    for _ in range(2):
        os.kill(program.process, signal.SIGTERM)
        time.sleep(0.003)
    assert program.wait() == 143
    program.start(*order)
    assert program.wait() == 0
    assert digests(run) == short.digests


def test_a_signal_before_training_leaves_at_once(program: Program, corpus: str, short: Whole, tmp_path: Path) -> None:
    run = tmp_path / "run"
    order = ("run", corpus, str(run), str(short.updates))
    program.start(*order)
    time.sleep(0.03)
    os.kill(program.process, signal.SIGTERM)
    assert program.wait() in (143, -signal.SIGTERM)  # before and after it listens
    program.start(*order)
    assert program.wait() == 0
    assert digests(run) == short.digests


def assert_loads(run: Path, at_least: int) -> int:
    """The newest checkpoint holds exactly what was saved at its update; gives that."""
    newest = newest_checkpoint(run)
    if newest is None:
        assert at_least == 0
        return 0
    number = int(newest.name.rpartition("-")[2])
    assert number >= at_least
    with torch.random.fork_rng(devices=[]):
        found, expected = toy.something_trained(), toy.something_trained()
        position = toy.fill(expected, number)
        state = torch.get_rng_state()
        torch.manual_seed(0)
        assert read_checkpoint(newest, found) == position
        assert torch.equal(torch.get_rng_state(), state)
    for one, two in zip(found.model.parameters(), expected.model.parameters(), strict=True):
        assert torch.equal(one, two)
        for kind, value in expected.optimizer.state[two].items():
            assert torch.equal(found.optimizer.state[one][kind], value)
    return number


def kill_saves(program: Program, run: Path, trials: int) -> None:
    draw = Random(trials)
    number = drafts = 0
    for _ in range(trials):
        before = number
        program.start("save", str(run))
        until(lambda before=before: any(run.glob(f"checkpoint-{before + 1}")))
        time.sleep(draw.uniform(0, 0.1))
        assert program.kill() == -signal.SIGKILL
        number = assert_loads(run, before)
        drafts += bool(left_behind(run))
        assert len(left_behind(run)) <= 1  # the next save removes it
    assert drafts > trials // 10, "hardly any kill hit a save"


def test_killed_while_saving_the_newest_checkpoint_loads(program: Program, tmp_path: Path) -> None:
    kill_saves(program, tmp_path / "run", 12)


def test_a_checkpoint_that_was_half_removed_is_removed_in_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained = toy.something_trained()
    for number in (1, 2):
        write_checkpoint(tmp_path, trained, toy.fill(trained, number))

    class PowerCut(BaseException):
        pass

    def half(folder: Path, **_: Any) -> None:
        (folder / "position.json").unlink()
        raise PowerCut

    monkeypatch.setattr(shutil, "rmtree", half)
    with pytest.raises(PowerCut):
        drop_old_checkpoints(tmp_path, 1)
    monkeypatch.undo()
    drop_old_checkpoints(tmp_path, 1)
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint-2"]


@pytest.mark.slow
def test_killed_while_saving_sixty_times_the_newest_checkpoint_loads(program: Program, tmp_path: Path) -> None:
    kill_saves(program, tmp_path / "run", 60)


def failing_saves(run: Path, failing: Callable[[Random], contextlib.AbstractContextManager[Any]], words: str) -> int:
    """Sixty saves of which those that meet trouble must say so; gives how many did."""
    draw, trained, number = Random(1), toy.something_trained(), 0
    said = []
    for trial in range(1, 61):
        position = toy.fill(trained, trial)
        try:
            with failing(draw):
                write_checkpoint(run, trained, position)
            number = trial
        except FetchError as error:
            said.append(str(error))
        drop_old_checkpoints(run, 2)
        found = assert_loads(run, number)
        assert found in (number, trial)  # a save may fail when all is written, but not known to be on the disk
        number = found
        assert not left_behind(run)
    assert number
    assert all(words in sentence and "\n" not in sentence for sentence in said)
    return len(said)


@contextlib.contextmanager
def small_files(draw: Random) -> Iterator[None]:
    """Files may not grow beyond some size, in nine cases of ten less than is needed."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(draw.uniform(0, 2.05e6)), before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_file_that_may_not_grow_leaves_the_last_good_one(tmp_path: Path) -> None:
    failed = failing_saves(tmp_path / "run", small_files, "larger than a file may be here")
    assert 45 <= failed < 60


def test_a_disk_that_is_full_at_any_call_leaves_the_last_good_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every call of the system that a save makes fails once."""
    left = [0]  # calls until one fails

    def watched(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any, **named: Any) -> Any:
            left[0] -= 1
            if left[0] == 0:
                raise OSError(errno.ENOSPC, "No space left on device")
            return real(*given, **named)

        return call

    def save_file(*given: Any, **named: Any) -> None:
        left[0] -= 1
        if left[0] == 0:
            raise weights_write.SafetensorError("I/O error: No space left on device (os error 28)")
        real_save(*given, **named)

    real_save = weights_write.save_file
    monkeypatch.setattr(weights_write, "save_file", save_file)
    for name in ("open", "fsync", "replace"):
        monkeypatch.setattr(storage.os, name, watched(getattr(os, name)))
    for name in ("mkdir", "rename", "write_bytes"):
        monkeypatch.setattr(Path, name, watched(getattr(Path, name)))

    trained = toy.something_trained()
    write_checkpoint(tmp_path / "count", trained, toy.fill(trained, 1))
    calls = -left[0]
    assert calls > 15
    places = iter([*range(1, calls + 1), *[0] * 60])

    @contextlib.contextmanager
    def full(draw: Random) -> Iterator[None]:
        left[0] = next(places)
        yield
        left[0] = 0

    assert failing_saves(tmp_path / "run", full, "the disk is full") == calls


REAL = """
import contextlib, importlib.util, os, pathlib, subprocess, sys
sys.path.insert(0, sys.argv[1])
import test_crash as crash
place = pathlib.Path(sys.argv[2])
subprocess.run(["mount", "-t", "tmpfs", "-o", "size=12m", "tmpfs", str(place)], check=True)

@contextlib.contextmanager
def filled(draw):
    free = os.statvfs(place)
    room = int(draw.uniform(0, 2.05e6))
    with open(place / "filler", "wb") as file:
        file.write(bytes(max(0, free.f_bavail * free.f_frsize - room)))
    try:
        yield
    finally:
        (place / "filler").unlink()

print(crash.failing_saves(place / "run", filled, "the disk is full"))
"""


def test_a_disk_that_is_really_full_leaves_the_last_good_one(tmp_path: Path) -> None:
    """A small disk of our own, which only a process that may mount one can have."""
    if shutil.which("unshare") is None or subprocess.run(["unshare", "-m", "true"], check=False).returncode:
        pytest.skip("this process may not mount a disk of its own")
    command = ["unshare", "-m", sys.executable, "-c", REAL, str(TOY.parent), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if "mount:" in done.stderr:
        pytest.skip("this process may not mount a disk of its own")
    assert done.returncode == 0, done.stderr
    assert 45 <= int(done.stdout) < 60
