"""Run the trials of questions, each once: what was found before by the same code with the same settings stays."""

from __future__ import annotations

import contextlib
import multiprocessing
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass
from importlib import metadata
from multiprocessing import get_context
from pathlib import Path

import torch

from unmask.lab.catalogue import code_of, entry_of, parts_of
from unmask.lab.entry import Conclusion, Entry, Kind, Part, Plan, Record, Trial, Verdict, overall
from unmask.lab.store import Kept, Results
from unmask.nn.modes import no_denormals, one_thread
from unmask.train.environment import machine


@dataclass(frozen=True)
class Job:
    """A trial that is to be run."""

    entry: Entry
    part: Part
    trial: Trial

    @property
    def kind(self) -> Kind:
        """Of its part."""
        return next(method.kind for method in self.entry.parts if method.name == self.part.name)


@dataclass(frozen=True)
class Found:
    """What is known of a part: its trials at a size, and whether all of them are there and of today's code."""

    name: str
    kind: Kind
    trials: Mapping[str, Kept]
    complete: bool
    current: bool
    conclusion: Conclusion | None

    @property
    def verdict(self) -> Verdict:
        """What it says of the claim."""
        return Verdict.NOT_RUN if self.conclusion is None else self.conclusion.verdict


@dataclass(frozen=True)
class Answer:
    """A question with all that is known of it."""

    entry: Entry
    parts: tuple[Found, ...]

    @property
    def verdict(self) -> Verdict:
        """On the claim as a whole."""
        return overall([part.verdict for part in self.parts])

    @property
    def missing(self) -> tuple[Found, ...]:
        """Parts of the evidence that were not run."""
        return tuple(part for part in self.parts if part.conclusion is None)


class Runner:
    """Runs what is missing, and tells of it."""

    def __init__(
        self, folder: Path, plan: Plan, kinds: Sequence[Kind] = (), *, again: bool = False, workers: int = 1
    ) -> None:
        self.folder, self.plan, self.kinds, self.again, self.workers = folder, plan, kinds, again, workers

    def jobs(self, entry: Entry) -> list[Job]:
        """What has to be run for a question."""
        results, code = Results.read(entry, self.folder), code_of(entry) if parts_of(entry) else ""
        jobs = []
        for part in self._parts(entry):
            kept = results.of(part.name, self.plan.size)
            for trial in part.trials(self.plan):
                before = kept.get(trial.name)
                if self.again or before is None or before.code != code or before.settings != dict(trial.settings):
                    jobs.append(Job(entry, part, trial))
        return jobs

    def run(
        self, jobs: Sequence[Job], told: Callable[[Job], None] = lambda _: None, until: float = float("inf")
    ) -> int:
        """Run jobs; none is begun after the time `until`. How many were run.

        Ablations run side by side in processes of one thread each, as many as there are threads; what is measured has
        the machine to itself.
        """
        alone = [job for job in jobs if job.kind != "ablation"]
        count = self._run_here(alone, told, until)
        together = [job for job in jobs if job.kind == "ablation"]
        if self.workers < 2 or len(together) < 2:
            with one_thread(), no_denormals():  # as in processes: what is found must not depend on how many there are
                return count + self._run_here(together, told, until)
        return count + self._run_in_processes(together, told, until)

    def _run_here(self, jobs: Sequence[Job], told: Callable[[Job], None], until: float) -> int:
        for number, job in enumerate(jobs):
            if time.monotonic() >= until:
                return number
            self._keep(job, *_timed(job.trial))
            told(job)
        return len(jobs)

    def _run_in_processes(self, jobs: Sequence[Job], told: Callable[[Job], None], until: float) -> int:
        waiting, count = list(jobs), 0
        running: dict[Future[tuple[Record, float]], Job] = {}
        with ProcessPoolExecutor(self.workers, get_context("spawn"), initializer=_begin) as pool, _ended_with_us():
            while running or (waiting and time.monotonic() < until):
                while waiting and len(running) < self.workers and time.monotonic() < until:
                    job = waiting.pop(0)
                    running[pool.submit(run_trial, job.entry.id, job.part.name, job.trial.name, self.plan)] = job
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    job = running.pop(future)
                    self._keep(job, *future.result())
                    told(job)
                    count += 1
        return count

    def _keep(self, job: Job, record: Record, seconds: float) -> None:
        version, code = metadata.version("unmask"), code_of(job.entry)
        kept = Kept(record, dict(job.trial.settings), round(seconds, 3), code, version, machine())
        Results.read(job.entry, self.folder).add(job.part.name, self.plan.size, job.trial.name, kept)

    def _parts(self, entry: Entry) -> list[Part]:
        parts = parts_of(entry)
        return [
            parts[method.name]
            for method in entry.parts
            if method.name in parts and (not self.kinds or method.kind in self.kinds)
        ]


def answer_of(entry: Entry, folder: Path | None, plan: Plan = Plan()) -> Answer:  # noqa: B008 - it is frozen
    """What the results in a folder say of a question."""
    results, parts = Results.read(entry, folder), parts_of(entry)
    code = code_of(entry) if parts else ""
    found = []
    for method in entry.parts:
        trials = dict(results.of(method.name, plan.size))
        part = parts.get(method.name)
        wanted = {trial.name for trial in part.trials(plan)} if part else set()
        complete = bool(wanted) and wanted <= trials.keys()
        records: dict[str, Record] = {name: kept.record for name, kept in trials.items()}
        conclusion = part.conclude(records) if part and complete else None
        current = all(kept.code == code for kept in trials.values())
        found.append(Found(method.name, method.kind, trials, complete, current, conclusion))
    return Answer(entry, tuple(found))


def run_trial(entry: str, part: str, trial: str, plan: Plan) -> tuple[Record, float]:
    """What a trial finds, by its names: for another process, which makes it anew."""
    found = parts_of(entry_of(entry))[part]
    return _timed(next(one for one in found.trials(plan) if one.name == trial))


def _timed(trial: Trial) -> tuple[Record, float]:
    began = time.perf_counter()
    record = trial.job()
    return record, time.perf_counter() - began


def _begin() -> None:
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)  # see no_denormals: it is for as long as the process lives
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # no farewell: what was kept is kept


@contextlib.contextmanager
def _ended_with_us() -> Iterator[None]:
    """Processes that still work on a trial when we are told to stop, or fail, are not waited for."""
    others = set(multiprocessing.active_children())
    try:
        yield
    except BaseException:
        for process in set(multiprocessing.active_children()) - others:
            process.terminate()
        raise
