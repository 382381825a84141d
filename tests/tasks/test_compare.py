"""Two models on the same examples: equal ones do not differ, a planted difference is found, and others are refused."""

from __future__ import annotations

import dataclasses
import random
from pathlib import Path
from typing import Any

import pytest

import finetune_toy as toy
import unmask
from unmask.data.examples import Entity
from unmask.errors import UserError
from unmask.report.outcome import QuestionOutcome, TaggedOutcome, TextOutcome, read_evaluation
from unmask.tasks.compare import compare
from unmask.tasks.measured import evaluation_of, stored_evaluation, write_evaluated
from unmask.tasks.scoring import Scored

NAMES = ("one", "two")
METRICS = {"single": "accuracy", "multi": "f1", "regression": "pearson", "words": "f1", "plain": "f1", "qa2": "f1"}


def measured(task: str, folder: Path, rows: list[dict[str, Any]] | None = None) -> Scored:
    file = toy.write_rows(folder / f"{task}.jsonl", rows or toy.dev_rows(task))
    return unmask.load(toy.learned(task) / "model").predictor.evaluate(str(file))


def worse(outcome: Any, draw: random.Random, others: Any) -> Any:
    """The same question, answered wrong."""
    match outcome:
        case TextOutcome():
            return dataclasses.replace(outcome, predicted=draw.choice(others).predicted)
        case TaggedOutcome():
            wrong = tuple(Entity(one.start, one.end, "WRONG") for one in outcome.predicted[1:])
            return dataclasses.replace(outcome, predicted=outcome.predicted[:1] + wrong)
        case QuestionOutcome():
            return dataclasses.replace(outcome, predicted="x", f1=0.0, exact=0.0)


def spoiled(found: Scored, share: float, seed: int = 0) -> Scored:
    draw = random.Random(seed)
    outcomes = tuple(worse(one, draw, found.outcomes) if draw.random() < share else one for one in found.outcomes)
    return dataclasses.replace(found, outcomes=outcomes)


@pytest.mark.parametrize("task", METRICS)
def test_equal_models_do_not_differ_and_a_worse_one_does(task: str, tmp_path: Path) -> None:
    found = measured(task, tmp_path)
    metric, same = compare(found, found, NAMES)
    assert metric == METRICS[task]
    assert same.difference == 0
    assert same.p == 1
    assert not same.differs
    assert same.verdict.startswith("No difference between one and two is shown")
    bad = spoiled(found, 0.6)
    _, planted = compare(found, bad, NAMES)
    assert planted.differs
    assert planted.difference > 0.1
    assert planted.verdict.startswith("one scores higher than two")
    _, reverse = compare(bad, found, NAMES)
    assert reverse.difference == pytest.approx(-planted.difference)
    assert "one scores lower than two" in reverse.verdict


def test_noise_of_the_same_size_is_no_difference(tmp_path: Path) -> None:
    found = measured("single", tmp_path)
    shown = [compare(spoiled(found, 0.3, seed), spoiled(found, 0.3, seed + 50), NAMES)[1].differs for seed in range(10)]
    assert sum(shown) <= 2


def test_the_difference_is_that_of_the_scores(tmp_path: Path) -> None:
    rows = toy.dev_rows("regression")
    found = measured("regression", tmp_path, rows)
    bad = spoiled(found, 0.6)
    stats = pytest.importorskip("scipy.stats")
    scores = [
        stats.pearsonr([one.gold for one in side.outcomes], [one.predicted for one in side.outcomes]).statistic
        for side in (found, bad)
    ]
    assert compare(found, bad, NAMES)[1].difference == pytest.approx(scores[0] - scores[1], abs=1e-6)


def test_what_cannot_be_compared(tmp_path: Path) -> None:
    single, words = measured("single", tmp_path), measured("words", tmp_path)
    with pytest.raises(UserError, match=r"one and two do different things \(single and entities\)"):
        compare(single, words, NAMES)
    fewer = dataclasses.replace(single, outcomes=single.outcomes[1:])
    moved = dataclasses.replace(single, outcomes=single.outcomes[1:] + single.outcomes[:1])
    relabelled = measured("single", tmp_path, [row | {"label": "pos"} for row in toy.dev_rows("single")])
    for other in (fewer, moved, relabelled):
        with pytest.raises(UserError, match="measured on different examples.*--data FILE"):
            compare(single, other, NAMES)


@pytest.mark.parametrize("task", METRICS)
def test_what_is_stored_compares_as_what_was_measured(task: str, tmp_path: Path) -> None:
    bundle = unmask.load(toy.learned(task) / "model")
    found = measured(task, tmp_path)
    evaluation = evaluation_of(found, bundle.model, "toy", str(tmp_path / f"{task}.jsonl"))
    write_evaluated(evaluation, tmp_path / "report")
    for place in (tmp_path / "report", tmp_path / "report" / "evaluation.json"):
        stored = stored_evaluation(place)
        assert stored.outcomes == found.outcomes
        bad = spoiled(found, 0.6)
        assert compare(stored, bad, NAMES) == compare(found, bad, NAMES)
    assert "<html" in (tmp_path / "report" / "report.html").read_text(encoding="utf-8")
    run = toy.learned(task)
    assert stored_evaluation(run) == stored_evaluation(run / "model") == read_evaluation(run / "evaluation.json")
    assert not compare(stored_evaluation(run), stored_evaluation(run), NAMES)[1].differs


def test_where_nothing_was_measured(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no evaluation\.json there"):
        stored_evaluation(tmp_path)
