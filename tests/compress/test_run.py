"""The way up the ladder: on top of what was kept, nothing twice, and an end after two refusals."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from unmask.compress.run import Request, _climb, ladder
from unmask.compress.settings import Steps, on_top
from unmask.models.init import build_model
from unmask.models.settings import bert_preset


class Job:
    """A compression whose attempts cost nothing: those in `refused` break the contract."""

    def __init__(self, folder: Path, refused: set[int]) -> None:
        self.folder, self.refused, self.dev = folder, refused, [1, 2, 3]
        self.model = build_model(bert_preset("tiny", 30))
        self.request = Request("model", None)  # type: ignore[arg-type]
        self.asked: list[tuple[int, Steps | None]] = []

    def tell(self, text: str) -> None:
        self.said = text

    def attempt(self, number: int, last: Any, steps: Steps) -> Any:
        self.asked.append((number, None if last is None else last.steps))
        kept = number not in self.refused
        settings = SimpleNamespace(
            num_layers=steps.layers or (6 if last is None else last.pieces.model.settings.num_layers)
        )
        return SimpleNamespace(
            steps=steps if last is None else on_top(last.steps, steps),
            verdict=SimpleNamespace(kept=kept),
            times_as_fast=number,
            bytes=100 / number,
            pieces=SimpleNamespace(model=SimpleNamespace(settings=settings)),
        )


def test_each_stands_on_the_last_that_was_kept(tmp_path: Path) -> None:
    job = Job(tmp_path, refused={2})
    plans = (Steps(storage="fp16"), Steps(storage="int8"), Steps(vocab=True, storage="int8"))
    outcome = _climb(job, plans)  # type: ignore[arg-type]
    assert job.asked == [(1, None), (2, Steps(storage="fp16")), (3, Steps(storage="fp16"))]
    assert outcome.best is outcome.attempts[2]
    assert outcome.examples == 3


def test_nothing_is_tried_twice_and_two_refusals_are_enough(tmp_path: Path) -> None:
    less = Steps(heads=0.75, recovery="distill", storage="int8")
    plans = (Steps(storage="int8"), less, less, Steps(layers=4, recovery="distill", storage="int8"), less)
    job = Job(tmp_path, refused={2, 4})
    outcome = _climb(job, plans)  # type: ignore[arg-type]
    assert [number for number, _ in job.asked] == [1, 2, 4]
    assert outcome.best is outcome.attempts[0]
    assert "nothing stronger" in job.said
    assert _climb(Job(tmp_path, {1, 2}), plans).best is None  # type: ignore[arg-type]


def test_layers_that_have_gone_already_are_not_tried(tmp_path: Path) -> None:
    plans = (Steps(layers=2, recovery="distill"), Steps(layers=4, recovery="distill"))
    job = Job(tmp_path, set())
    _climb(job, plans)  # type: ignore[arg-type]
    assert [number for number, _ in job.asked] == [1]


def test_a_ladder_without_examples_to_learn_from_removes_nothing() -> None:
    assert not any(steps.removes or steps.recovery != "none" for steps in ladder(6, learning=False))
    assert any(steps.layers == 5 for steps in ladder(6, learning=True))
    assert all(steps.layers is None for steps in ladder(1, learning=True))
