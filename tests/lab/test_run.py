"""Trials are run once, kept whole, and run again only where they would be others."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from unmask.errors import UserError
from unmask.lab import run as running
from unmask.lab.catalogue import entry_of
from unmask.lab.entry import Conclusion, Part, Plan, Record, Trial, Verdict
from unmask.lab.run import Runner, answer_of
from unmask.lab.store import Results
from unmask.lab.words import both

ENTRY = entry_of("look-ahead-mask")


def test_what_was_found_is_not_run_again(tmp_path: Path) -> None:
    runner = Runner(tmp_path, Plan())
    jobs = runner.jobs(ENTRY)
    assert [job.trial.name for job in jobs][:2] == ["mask A", "mask B"]
    told: list[str] = []
    assert runner.run(jobs, lambda job: told.append(job.trial.name)) == len(jobs) == len(told)
    assert runner.jobs(ENTRY) == []
    assert len(Runner(tmp_path, Plan(), again=True).jobs(ENTRY)) == len(jobs)
    answer = answer_of(ENTRY, tmp_path)
    assert answer.verdict == Verdict.DEPENDS
    assert not answer.missing
    assert all(part.complete and part.current for part in answer.parts)


def test_other_code_or_settings_are_run_anew(tmp_path: Path) -> None:
    runner = Runner(tmp_path, Plan())
    runner.run(runner.jobs(ENTRY))
    results = Results.read(ENTRY, tmp_path)
    trials = results.of("shift", "default")
    first, second = list(trials)[:2]
    trials[first] = replace(trials[first], code="another")
    trials[second] = replace(trials[second], settings={"mask": "C"})
    results.write()
    assert [job.trial.name for job in runner.jobs(ENTRY)] == [first, second]
    shift = answer_of(ENTRY, tmp_path).parts[1]
    assert shift.complete
    assert not shift.current


def test_nothing_is_begun_after_the_budget_and_the_rest_goes_on_later(tmp_path: Path) -> None:
    runner = Runner(tmp_path, Plan())
    jobs = runner.jobs(ENTRY)
    assert runner.run(jobs, until=time.monotonic() - 1) == 0
    assert runner.run(jobs[:1]) == 1
    assert len(runner.jobs(ENTRY)) == len(jobs) - 1
    assert answer_of(ENTRY, tmp_path).verdict == Verdict.NOT_RUN, "half of a part's trials conclude nothing"


def test_only_the_kinds_that_are_wanted(tmp_path: Path) -> None:
    assert Runner(tmp_path, Plan(), ["ablation"]).jobs(ENTRY) == []
    assert Runner(tmp_path, Plan(), ["exact"]).jobs(ENTRY)


@pytest.mark.parametrize(
    "content",
    [
        "no JSON",
        "[]",
        '{"format": 2, "question": "look-ahead-mask", "parts": {}}',
        '{"format": 1, "question": "warmup", "parts": {}}',
        '{"format": 1, "question": "look-ahead-mask", "parts": {"shift": {"default": {"x": {"record": {}}}}}}',
    ],
)
def test_a_file_that_is_no_results_file_is_said_so(tmp_path: Path, content: str) -> None:
    path = tmp_path / "look-ahead-mask.json"
    path.write_text(content)
    with pytest.raises(UserError, match="look-ahead-mask.json") as told:
        answer_of(ENTRY, tmp_path)
    assert "\n" not in str(told.value)
    assert path.read_text() == content


def test_results_have_no_numbers_that_json_has_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    part = Part("shift", lambda plan: [Trial("one", lambda: {"x": float("nan")})], lambda records: None)  # type: ignore[arg-type, return-value]
    monkeypatch.setattr(running, "parts_of", lambda entry: {"shift": part})
    runner = Runner(tmp_path, Plan())
    with pytest.raises(ValueError, match="JSON"):
        runner.run(runner.jobs(ENTRY))
    assert not list(tmp_path.iterdir())


def _slow(seed: int) -> Record:
    return {"seed": seed}


@pytest.mark.slow  # it trains
def test_ablations_run_side_by_side_in_processes(tmp_path: Path) -> None:
    """A real one, in two processes of one thread, gives what one process gives."""
    entry = entry_of("positions-needed")
    found = {}
    for workers in (1, 2):
        runner = Runner(tmp_path / str(workers), Plan("small", 1), ["ablation"], workers=workers)
        jobs = runner.jobs(entry)
        assert runner.run(jobs) == len(jobs) > 1
        part = next(method.name for method in entry.parts if method.kind == "ablation")
        kept = Results.read(entry, tmp_path / str(workers)).of(part, "small")
        found[workers] = {name: one.record for name, one in kept.items()}
    assert found[1] == found[2]


def test_a_file_holds_every_run(tmp_path: Path) -> None:
    runner = Runner(tmp_path, Plan())
    runner.run(runner.jobs(ENTRY))
    data = json.loads((tmp_path / "look-ahead-mask.json").read_text(encoding="utf-8"))
    trials = data["parts"]["future-change"]["default"]
    assert set(trials) == {"mask A", "mask B"}
    one = trials["mask A"]
    assert set(one) == {"record", "settings", "seconds", "code", "version", "machine"}
    assert one["settings"] == {"mask": "A"}


def test_conclusions_come_from_records_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def conclude(records: dict[str, Record]) -> Conclusion:
        right = all(record["seed"] == int(name[-1]) for name, record in records.items())
        return Conclusion(Verdict.SUPPORTED if right else Verdict.NOT_SUPPORTED, both("said"))

    trials = [Trial(f"seed {seed}", partial(_slow, seed), {"seed": seed}) for seed in range(3)]
    part = Part("shift", lambda plan: trials, conclude)  # type: ignore[arg-type]
    monkeypatch.setattr(running, "parts_of", lambda entry: {"shift": part})
    runner = Runner(tmp_path, Plan())
    runner.run(runner.jobs(ENTRY))
    assert answer_of(ENTRY, tmp_path).parts[1].verdict == Verdict.SUPPORTED
    results = Results.read(ENTRY, tmp_path)
    results.of("shift", "default")["seed 1"].record["seed"] = 7
    results.write()
    assert answer_of(ENTRY, tmp_path).parts[1].verdict == Verdict.NOT_SUPPORTED


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="looks for child processes where Linux tells of them")
def test_told_to_stop_it_stops_at_once(tmp_path: Path) -> None:
    """Trials of a minute are under way in two processes: they end too, and nothing half-done is kept."""
    out = tmp_path / "results"
    words = ["lab", "run", "mask-rate", "--kind", "ablation", "--threads", "2", "--out", str(out)]
    command = [sys.executable, "-m", "unmask", *words]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        workers: set[int] = set()
        until = time.monotonic() + 120
        while (
            len(workers) < 3 and process.poll() is None and time.monotonic() < until
        ):  # with one that tracks resources
            time.sleep(0.2)
            workers = _children(process.pid)
        process.send_signal(signal.SIGINT)
        assert process.stderr is not None
        said = process.communicate(timeout=30)[1]
    assert process.returncode == 130
    assert "Traceback" not in said
    until = time.monotonic() + 20
    while (left := {one for one in workers if Path(f"/proc/{one}").exists()}) and time.monotonic() < until:
        time.sleep(0.1)
    assert not left
    assert not list(out.glob("*.json"))


def _children(process: int) -> set[int]:
    found = set()
    for task in Path(f"/proc/{process}/task").iterdir():
        found |= {int(one) for one in (task / "children").read_text().split()}
    return found
