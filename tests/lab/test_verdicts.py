"""Ablations run again, shorter than those that are shipped: what they say must not flip."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import pytest

from unmask.lab.catalogue import entry_of, parts_of
from unmask.lab.entry import Plan, Record, Verdict
from unmask.lab.kit.effects import by_seed, paired, sided
from unmask.lab.run import Found, answer_of
from unmask.lab.store import shipped_folder
from unmask.nn.modes import no_denormals, one_thread


@dataclass(frozen=True)
class Shorter(Plan):
    """A share of the default size."""

    share: float = 1.0

    def at(self, small: int, default: int, large: int | None = None) -> int:
        return max(small, round(self.share * default))


@pytest.fixture(autouse=True)
def _as_the_lab_computes() -> Iterator[None]:
    with one_thread(), no_denormals():
        yield


def shipped(question: str, part: str) -> Found:
    return next(one for one in answer_of(entry_of(question), shipped_folder()).parts if one.name == part)


def again(question: str, part: str, share: float, starts: str = "") -> dict[str, Record]:
    """Trials of a part, those whose name starts so."""
    trials = parts_of(entry_of(question))[part].trials(Shorter(share=share))
    return {trial.name: trial.job() for trial in trials if trial.name.startswith(starts)}


@pytest.mark.parametrize(
    ("question", "part", "share", "more", "less", "value"),
    [
        ("scale-sqrt-dk", "training", 0.5, "recall, d_k 256, plain", "recall, d_k 256, scaled", "score"),
        ("positions-needed", "tasks", 0.7, "order, learned", "order, none", "accuracy"),
    ],
)
def test_a_difference_stays(question: str, part: str, share: float, more: str, less: str, value: str) -> None:
    def judged(records: Mapping[str, Record]) -> Verdict:
        return sided(paired(by_seed(records, more, value), by_seed(records, less, value)))

    before = judged({name: kept.record for name, kept in shipped(question, part).trials.items()})
    assert before == Verdict.SUPPORTED
    assert judged(again(question, part, share, more) | again(question, part, share, less)) == before


@pytest.mark.slow
@pytest.mark.parametrize(
    ("question", "part", "share"), [("label-noise", "class-weights", 1.0), ("weight-tying", "convergence", 0.6)]
)
def test_a_verdict_stays(question: str, part: str, share: float) -> None:
    found = parts_of(entry_of(question))[part].conclude(again(question, part, share))
    assert found.verdict == shipped(question, part).verdict
