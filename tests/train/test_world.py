"""Several processes learn what one would have learned, whatever happens to them."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from filelock import FileLock
from safetensors.torch import load_file

from unmask.errors import FetchError, SettingsError
from unmask.nn.settings import BucketSettings
from unmask.train.checkpoint import newest_checkpoint
from unmask.train.step import share_of
from unmask.train.world import World, joined

HERE = Path(__file__).parent
ENGINES = ["ddp", "fsdp"]


def program(name: str) -> ModuleType:
    """A program beside this file, as a module."""
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, HERE / f"{name}.py")
        assert spec is not None
        assert spec.loader is not None
        sys.modules[name] = module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    return sys.modules[name]


program("toy")
toys = program("distributed_toy")

#: One update, with dropout; micro-batches have one to five sentences.
GRADIENTS: dict[str, dict[str, Any]] = {
    "one": {"settings": {"accumulate": 1}},
    "three": {"settings": {"accumulate": 3}, "start": 4},
    "five": {"settings": {"accumulate": 5}},
    "double": {"settings": {"accumulate": 5}, "double": True},
    "bf16": {"settings": {"accumulate": 3, "precision": "bf16"}},
    "unused": {"settings": {"accumulate": 3}, "task": "masks"},
    "sometimes": {"settings": {"accumulate": 5}, "task": "sometimes"},
    "twice": {"settings": {"accumulate": 3}, "task": "twice"},
    "shared": {"settings": {"accumulate": 3}, "model": {"positions": BucketSettings(share_layers=True).model_dump()}},
}
USUAL = {"accumulate": 3, "evaluate_every": 5, "keep": 9}
LOWER = {"embeddings": True, "layers": 1}
#: Whole runs, evaluated on one or three batches now and then.
RUNS: dict[str, dict[str, Any]] = {
    "plain": {"settings": USUAL, "evaluate": 3},  # twenty updates
    "all": {
        "settings": USUAL
        | {"average": 0.9, "fgm": 0.5, "clip": 0.05, "checkpoint_activations": True}
        | {"updates": 8, "evaluate_every": 4, "freeze": LOWER | {"until": 3}},
        "evaluate": 3,
    },
    "frozen": {"settings": USUAL | {"updates": 5, "freeze": LOWER, "workers": 1}, "evaluate": 1, "task": "masks"},
}
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "compile": ({"settings": {"engine": "fsdp", "compile": True}}, "compile and engine fsdp do not go together"),
    "batch": ({"model": {"norm": "batch"}}, "norm batch learns its statistics from each micro-batch"),
    "losses": ({"settings": {"engine": "fsdp", "accumulate": 5}, "task": "sometimes"}, "the same losses in every"),
    "apart": ({"apart": True}, "1 of 2 processes do not see it; put the run folder on a disk that all machines share"),
}


def with_engine(job: Mapping[str, Any], engine: str) -> dict[str, Any]:
    return {**job, "settings": {**job.get("settings", {}), "engine": engine}}


def torchrun(jobs: Path, processes: int, *options: str) -> list[str]:
    # --standalone takes a free port, so that tests may run beside each other.
    start = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    return [*start, *options, str(HERE / "distributed_toy.py"), str(jobs)]


def launch(
    folder: Path, jobs: Sequence[Mapping[str, Any]], processes: int = 2, *options: str
) -> subprocess.CompletedProcess[str]:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "jobs.json"
    path.write_text(json.dumps(jobs))
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    command = torchrun(path, processes, *options)
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=1500)


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What one process and two did with all of the above; done once, also for several test processes."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "two-processes"
    with FileLock(f"{folder}.lock"):
        if not (folder / "said").exists():
            folder.mkdir()
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(toys.loop, "plot_curves", lambda run: None)
                toys.work([job | {"fit": str(folder / f"alone-{name}")} for name, job in RUNS.items()], World())
            went = launch(folder, list(two_process_jobs(folder)))
            assert went.returncode == 0, went.stderr
            (folder / "said").write_text(went.stdout + went.stderr)
    return folder


def two_process_jobs(folder: Path) -> Iterator[dict[str, Any]]:
    for engine in ENGINES:
        for name, job in GRADIENTS.items():
            if (engine, name) != ("fsdp", "sometimes"):
                yield with_engine(job, engine) | {"gradients": str(folder / f"{engine}-{name}.safetensors")}
        for name, job in RUNS.items():
            yield with_engine(job, engine) | {"fit": str(folder / f"{engine}-{name}")}
        begun = folder / f"{engine}-begun-alone"
        after_ten(folder / "alone-plain", begun)
        yield with_engine(RUNS["plain"], engine) | {"fit": str(begun)}
    after_ten(folder / "alone-plain", folder / "refused-apart-0")
    for name, (job, _) in REFUSED.items():
        yield job | {"refuse": str(folder / f"refused-{name}")}


def after_ten(finished: Path, run: Path) -> Path:
    """A run as it was after ten updates; its log knows more, as after a power cut."""
    shutil.copytree(finished / "checkpoint-10", run / "checkpoint-10")
    shutil.copy(finished / "metrics.jsonl", run)
    return run


def distance(one: torch.Tensor, two: torch.Tensor) -> float:
    """The greatest difference, against the greatest value."""
    assert one.shape == two.shape
    return float((one.double() - two.double()).abs().max() / one.double().abs().max().clamp(min=1e-30))


def furthest(folder: Path, other: Path) -> float:
    """The greatest distance of two stored models."""
    one, two = (load_file(path / "model.safetensors") for path in (folder, other))
    assert one.keys() == two.keys()
    return max(distance(one[name], two[name]) for name in one if name.startswith("model.") and not unseen(name))


def unseen(name: str) -> bool:
    """The biases of keys, which softmax does not see: their gradients are rounding errors, which Adam makes large."""
    return name.endswith("key.bias")


def last(run: Path) -> Path:
    found = newest_checkpoint(run)
    assert found is not None
    return found


def digest(run: Path) -> str:
    """Weights, optimizer, position and log of a finished run."""
    files = [last(run) / "model.safetensors", last(run) / "position.json", run / "metrics.jsonl"]
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()


def said(run: Path, rank: int = 0) -> dict[str, Any]:
    return json.loads(Path(f"{run}.{rank}.json").read_text())


def final_losses(run: Path) -> dict[str, float]:
    entries = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [entry["losses"] for entry in entries if "losses" in entry][-1]


@pytest.mark.parametrize("size", [1, 2, 3, 5])
@pytest.mark.parametrize("numbers", [range(0), range(1), range(7, 12), range(6)])
def test_every_micro_batch_counts_once_and_all_take_equally_many(size: int, numbers: range) -> None:
    shares = [list(share_of(numbers, World(rank, size))) for rank in range(size)]
    assert sorted(number for share in shares for number, counts in share if counts) == list(numbers)
    assert len({len(share) for share in shares}) == 1
    assert all(number in numbers for share in shares for number, _ in share)


def test_started_without_torchrun_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.delenv("RANK", raising=False)
    with pytest.raises(SettingsError, match="start several processes with torchrun"), joined():
        pass


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", GRADIENTS)
def test_gradients_are_those_of_one_process(engine: str, name: str, done: Path) -> None:
    if (engine, name) == ("fsdp", "sometimes"):
        return  # is refused, see below
    found = load_file(done / f"{engine}-{name}.safetensors")
    expected = toys.gradients_of(GRADIENTS[name])
    assert found.keys() == expected.keys()
    for key in expected:
        if key.startswith(("gradient.", "loss.")):
            assert distance(expected[key], found[key]) <= (1e-13 if name == "double" else 1e-6), key


def test_fsdp_gives_each_process_its_part(done: Path) -> None:
    held = {engine: load_file(done / f"{engine}-five.safetensors")["held"].tolist() for engine in ENGINES}
    assert held["ddp"] == [1.0, 1.0]
    assert sum(held["fsdp"]) == pytest.approx(1.0)
    assert max(held["fsdp"]) < 0.51


def test_ddp_adds_up_once_an_update(done: Path) -> None:
    assert load_file(done / "ddp-five.safetensors")["synced"].tolist() == [False, False, True]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", RUNS)
def test_runs_end_as_with_one_process(engine: str, name: str, done: Path) -> None:
    """Losses, evaluations, weights; with "all" also average, FGM, clipping and layers frozen for a while."""
    run, alone = done / f"{engine}-{name}", done / f"alone-{name}"
    expected = said(alone)
    for rank in (0, 1):
        found = said(run, rank)
        for one, two in zip(expected["said"], found["said"], strict=True):
            assert two == pytest.approx(one, rel=1e-6)
        best = expected["position"]["best"]
        assert found["position"] == expected["position"] | {"best": pytest.approx(best, rel=1e-6)}
        # The model is whole afterwards, and any process may use it without the others.
        assert found["alone"] == pytest.approx(expected["alone"], rel=1e-5)
    assert final_losses(run) == pytest.approx(final_losses(alone), rel=1e-4)
    assert furthest(last(alone), last(run)) <= 1e-5
    assert furthest(alone / "best", run / "best") <= 1e-5


@pytest.mark.parametrize("engine", ENGINES)
def test_one_process_goes_on_for_two_and_two_for_one(
    engine: str, done: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(toys.loop, "plot_curves", lambda run: None)
    run = after_ten(done / f"{engine}-plain", tmp_path / "run")
    toys.fitted(RUNS["plain"] | {"fit": str(run)})
    assert furthest(last(done / f"{engine}-plain"), last(run)) <= 1e-5
    assert furthest(last(done / "alone-plain"), last(done / f"{engine}-begun-alone")) <= 1e-5


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_possible_is_said(name: str, done: Path) -> None:
    for rank in (0, 1):
        assert REFUSED[name][1] in said(done / f"refused-{name}", rank)["says"]


def test_nothing_is_said_that_nobody_asked_for(done: Path) -> None:
    assert (done / "said").read_text() == ""


def accidents(engine: str, folder: Path) -> list[dict[str, Any]]:
    """The same run three times: a process is killed, one is asked to end, and one finds wrong data."""
    jobs = []
    for what, number in (("killed", 40), ("terminated", 35), ("data", 20)):
        trouble = {"what": what, "rank": 1, "number": number, "once": str(folder / f"{what}.happened")}
        jobs.append(with_engine(RUNS["plain"], engine) | {"fit": str(folder / what), "trouble": trouble})
    return jobs


@pytest.mark.slow  # restarts of whole groups of processes
@pytest.mark.parametrize("engine", ["ddp", "fsdp"])
def test_after_an_accident_everything_ends_as_without(engine: str, done: Path, tmp_path: Path) -> None:
    """torchrun starts all processes again after each; it cannot help the last one, which ends everything."""
    went = launch(tmp_path, accidents(engine, tmp_path), 2, "--max-restarts", "2")
    assert (tmp_path / "killed.happened").exists()
    assert digest(tmp_path / "killed") == digest(done / f"{engine}-plain")
    assert "unmask: another process of this run has ended or is stuck; its own message says why" in went.stderr
    assert (tmp_path / "terminated.happened").exists()
    assert went.stderr.count("unmask: stopped") == 2  # one was asked, both did
    assert digest(tmp_path / "terminated") == digest(done / f"{engine}-plain")
    assert went.returncode != 0
    assert "unmask: train.tsv, line 7: no label in this line" in went.stderr
    assert last(tmp_path / "data").name == "checkpoint-5"


def test_asked_to_end_from_outside_all_save_together(tmp_path: Path) -> None:
    run, jobs = tmp_path / "run", tmp_path / "jobs.json"
    jobs.write_text(json.dumps([{"fit": str(run), "settings": {"updates": 10**5, "save_every": 10**5}}]))
    process = subprocess.Popen(torchrun(jobs, 2), stderr=subprocess.PIPE, text=True)
    try:
        deadline = time.monotonic() + 600
        while not (run / "metrics.jsonl").exists():
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.1)
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=300)
    finally:
        process.kill()
    assert errors.count("unmask: stopped") == 2
    updates = json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])["update"]
    assert last(run).name == f"checkpoint-{updates}"


@pytest.mark.slow
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("rank", [0, 1])
def test_killed_in_the_middle_of_a_save(engine: str, rank: int, done: Path, tmp_path: Path) -> None:
    """The process that writes, or one that waits for it."""
    trouble = {"what": "killed while saving", "rank": rank, "number": 40, "once": str(tmp_path / "happened")}
    job = with_engine(RUNS["plain"], engine) | {"fit": str(tmp_path / "run"), "trouble": trouble, "slowly": 0.3}
    went = launch(tmp_path, [job], 2, "--max-restarts", "3")
    assert went.returncode == 0, went.stderr
    assert (tmp_path / "happened").exists()
    assert "(exitcode: -9)" in went.stderr
    assert digest(tmp_path / "run") == digest(done / f"{engine}-plain")
    assert not list((tmp_path / "run").glob(".*"))


@pytest.mark.slow
def test_killed_while_workers_make_batches(done: Path, tmp_path: Path) -> None:
    """They hold the lines to the other process open, until they see that they are alone."""
    trouble = {"what": "killed", "rank": 1, "number": 40, "once": str(tmp_path / "happened")}
    job = with_engine(RUNS["plain"], "ddp") | {"fit": str(tmp_path / "run"), "trouble": trouble}
    job["settings"]["workers"] = 1
    went = launch(tmp_path, [job], 2, "--max-restarts", "1")
    assert went.returncode == 0, went.stderr
    assert (tmp_path / "happened").exists()
    assert digest(tmp_path / "run") == digest(done / "ddp-plain")


@pytest.mark.slow
@pytest.mark.parametrize("engine", ENGINES)
def test_three_processes_and_then_another_engine(engine: str, done: Path, tmp_path: Path) -> None:
    """Interrupted and resumed with three: the same bits. Gone on with by the other engine: the same numbers."""
    other = ENGINES[1 - ENGINES.index(engine)]
    whole, resumed, changed = tmp_path / "whole", tmp_path / "resumed", tmp_path / "changed"
    file = tmp_path / "five.safetensors"
    job = with_engine(RUNS["plain"], engine)
    first = launch(
        tmp_path / "first",
        [job | {"fit": str(whole)}, with_engine(GRADIENTS["five"], engine) | {"gradients": str(file)}],
        3,
    )
    assert first.returncode == 0, first.stderr
    found, expected = load_file(file), toys.gradients_of(GRADIENTS["five"])
    gradients = [key for key in expected if key.startswith("gradient.") and not unseen(key)]
    assert max(distance(expected[key], found[key]) for key in gradients) <= 1e-6
    after_ten(whole, resumed)
    after_ten(whole, changed)
    second = launch(
        tmp_path / "second", [job | {"fit": str(resumed)}, with_engine(job, other) | {"fit": str(changed)}], 3
    )
    assert second.returncode == 0, second.stderr
    assert digest(resumed) == digest(whole)
    assert furthest(last(whole), last(changed)) <= 1e-5
    assert furthest(last(done / "alone-plain"), last(whole)) <= 1e-5


def test_a_lost_process_is_told_from_our_own_mistakes() -> None:
    from unmask.train.world import lost

    with pytest.raises(FetchError, match="another process"), lost():
        raise RuntimeError("[../third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]")
    with pytest.raises(RuntimeError, match="our own"), lost():
        raise RuntimeError("our own")
