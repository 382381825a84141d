from __future__ import annotations

import hashlib
import json
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

import toy
from unmask.errors import FetchError, ModelError
from unmask.train.checkpoint import newest_checkpoint
from unmask.train.loop import fit
from unmask.train.optimizer import OptimizerSettings
from unmask.train.progress import Listener, Progress
from unmask.train.step import backward

TOY = Path(__file__).with_name("toy.py")


def digest(run: Path) -> str:
    """Weights, optimizer, random state, position and log of a finished run."""
    newest = newest_checkpoint(run)
    assert newest is not None
    files = [newest / "model.safetensors", newest / "position.json", run / "metrics.jsonl"]
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()


def train(run: Path, updates: int = 23, **changes: object) -> torch.nn.Module:
    model = toy.model()
    fit(model, toy.GuessMasks(), toy.Sentences(), toy.settings(updates).replace(**changes), run)
    return model


def gradients(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("size", [1, 2, 4, 8, 16])
def test_the_split_into_micro_batches_does_not_matter(size: int) -> None:
    torch.set_default_dtype(torch.float64)
    try:
        whole, parts = toy.model(dropout=0.0).double(), toy.model(dropout=0.0).double()
        expected = backward(whole, toy.GuessMasks(), [toy.Sentences(32)[0]])
        found = backward(parts, toy.GuessMasks(), [toy.Sentences(size)[i] for i in range(32 // size)])
    finally:
        torch.set_default_dtype(torch.float32)
    assert found == pytest.approx(expected, rel=1e-12)
    other = gradients(parts)
    for name, gradient in gradients(whole).items():
        assert (gradient - other[name]).abs().max() <= 1e-9 * gradient.abs().max() + 1e-18, name


def test_unequal_micro_batches_are_not_averaged_as_equals() -> None:
    model = toy.model(dropout=0.0)
    task = toy.GuessMasks()
    one, two = toy.Sentences(1)[0], toy.Sentences(7)[1]
    means = backward(model, task, [one, two])
    alone = [backward(toy.model(dropout=0.0), task, [batch]) for batch in (one, two)]
    assert means["masked"] == pytest.approx((alone[0]["masked"] + 7 * alone[1]["masked"]) / 8, rel=1e-5)


@pytest.mark.slow  # test_crash.py stops whole programs in every run of the tests
def test_a_stopped_run_goes_on_to_the_same_bits(tmp_path: Path) -> None:
    train(tmp_path / "whole")

    class PowerCut(Exception):
        pass

    class StopAt(Listener):
        def __init__(self, last: int) -> None:
            self.last = last

        def update(self, progress: Progress) -> None:
            if progress.update == self.last:
                raise PowerCut

    for stops in ([7], [5, 6, 17], [1, 2, 3]):
        run = tmp_path / "-".join(map(str, stops))
        for update in stops:
            torch.manual_seed(update)  # whatever the generator was before must not matter
            with pytest.raises(PowerCut):
                fit(toy.model(), toy.GuessMasks(), toy.Sentences(), toy.settings(23), run, None, StopAt(update))
        train(run)
        assert digest(run) == digest(tmp_path / "whole")


def test_workers_and_a_second_run_change_nothing(tmp_path: Path) -> None:
    train(tmp_path / "alone")
    train(tmp_path / "workers", workers=2)
    assert digest(tmp_path / "alone") == digest(tmp_path / "workers")
    train(tmp_path / "other", seed=4)
    assert digest(tmp_path / "alone") != digest(tmp_path / "other")


@pytest.mark.slow  # test_crash.py kills whole programs in every run of the tests
def test_killed_at_any_moment_it_ends_the_same(tmp_path: Path) -> None:
    command = [sys.executable, str(TOY)]
    arguments = ["60", "2", "1"]
    started = time.monotonic()
    subprocess.run([*command, str(tmp_path / "whole"), *arguments], check=True)
    took = time.monotonic() - started
    draw = random.Random(0)
    run = tmp_path / "killed"
    for _ in range(4):
        process = subprocess.Popen([*command, str(run), *arguments])
        try:
            process.wait(timeout=draw.uniform(0.5, 1.0) * took)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    subprocess.run([*command, str(run), *arguments], check=True)
    assert digest(run) == digest(tmp_path / "whole")


def test_it_learns(tmp_path: Path) -> None:
    settings = toy.settings(500, accumulate=1).replace(
        log_every=50, save_every=500, optimizer=OptimizerSettings(learning_rate=1e-2)
    )
    fit(toy.model(dropout=0.0), toy.GuessMasks(), toy.Sentences(32), settings, tmp_path / "run")
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert lines[-1]["losses"]["masked"] < 0.5 * lines[0]["losses"]["masked"]
    assert lines[-1]["learning_rate"] == pytest.approx(1e-2 / 497)  # 3 of 500 are warm-up; the last one learns


def test_only_the_newest_checkpoints_are_kept(tmp_path: Path) -> None:
    train(tmp_path / "run", updates=23, keep=2)
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == [
        "checkpoint-20",
        "checkpoint-23",
        "environment.json",
        "loss.png",
        "metrics.jsonl",
        "tensorboard",
        "times.jsonl",
    ]


def test_a_save_that_fails_leaves_the_last_good_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from unmask.train import checkpoint

    run = tmp_path / "run"
    real = checkpoint.write_weights

    def full(folder: Path, tensors: dict[str, torch.Tensor]) -> None:
        real(folder, tensors)
        if (run / "checkpoint-5").exists():
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoint, "write_weights", full)
    with pytest.raises(FetchError, match="disk is full"):
        train(run)
    assert newest_checkpoint(run) == run / "checkpoint-5"
    monkeypatch.undo()
    train(run)
    train(tmp_path / "whole")
    assert digest(run) == digest(tmp_path / "whole")


def test_a_checkpoint_of_another_model_is_refused(tmp_path: Path) -> None:
    train(tmp_path / "run", updates=5)
    other = torch.nn.Linear(3, 5)
    with pytest.raises(ModelError, match="another model"):
        fit(other, toy.GuessMasks(), toy.Sentences(), toy.settings(23), tmp_path / "run")
