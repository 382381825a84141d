from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from unmask.errors import DataError, FetchError, UserError
from unmask.train.seeds import SeedResult, run_seeds, summary


def test_the_interval_by_students_tables() -> None:
    """t(0.975): 12.706 for 1 degree of freedom, 4.303 for 2, 2.776 for 4, 2.262 for 9."""
    for values, spread, t in (
        ([1.0, 3.0], 2**0.5, 12.7062),
        ([1.0, 2.0, 3.0], 1.0, 4.30265),
        ([1.0, 2.0, 3.0, 4.0, 5.0], 2.5**0.5, 2.77645),
        ([float(i) for i in range(10)], (82.5 / 9) ** 0.5, 2.26216),
    ):
        found = summary(values)
        mean, half = sum(values) / len(values), t * spread / len(values) ** 0.5
        assert (found.n, found.mean, found.min, found.max) == (len(values), mean, min(values), max(values))
        assert found.low == pytest.approx(mean - half, rel=1e-5)
        assert found.high == pytest.approx(mean + half, rel=1e-5)
    alone = summary([0.5])
    assert (alone.n, alone.mean, alone.low, alone.high) == (1, 0.5, None, None)
    equal = summary([0.25, 0.25, 0.25])
    assert (equal.low, equal.high) == (0.25, 0.25)


def test_scores_of_all_seeds_in_their_order() -> None:
    seen: list[SeedResult] = []
    report = run_seeds([3, 1, 2], lambda seed: {"accuracy": seed / 10, "loss": float(seed)}, seen.append)
    assert [result.seed for result in seen] == [3, 1, 2]
    assert seen == list(report.results)
    assert report.scores["accuracy"].mean == pytest.approx(0.2)
    assert report.scores["loss"] == summary([3.0, 1.0, 2.0])
    assert report.failed == {}


ERRORS: list[Exception] = [
    DataError("no such label", file="train.tsv", line=3),
    FetchError("the disk is full"),
    FloatingPointError("overflow"),
    ZeroDivisionError("division by zero"),
    RuntimeError("The total norm of order 2.0 is non-finite\nand more lines"),
    torch.OutOfMemoryError("out of memory"),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_a_seed_that_fails_is_named_and_the_others_go_on(error: Exception) -> None:
    def job(seed: int) -> dict[str, float]:
        if seed == 2:
            raise error
        return {"f1": float(seed)}

    seen: list[SeedResult] = []
    report = run_seeds([1, 2, 3], job, seen.append)
    assert list(report.failed) == [2]
    assert str(error).splitlines()[0] in report.failed[2]
    assert "\n" not in report.failed[2]
    assert report.scores["f1"] == summary([1.0, 3.0])
    assert [result.error is None for result in seen] == [True, False, True]


def test_a_score_that_is_no_number_is_a_failure() -> None:
    report = run_seeds([1, 2], lambda seed: {"f1": float("nan") if seed == 1 else 0.5})
    assert report.failed == {1: "the score f1 is nan"}
    assert report.scores["f1"].n == 1


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, TypeError, KeyError, NotImplementedError])
def test_mistakes_and_ctrl_c_end_everything(error: type[BaseException]) -> None:
    ran: list[int] = []

    def job(seed: int) -> dict[str, float]:
        ran.append(seed)
        if seed == 2:
            raise error
        return {"f1": 1.0}

    with pytest.raises(error):
        run_seeds([1, 2, 3], job)
    assert ran == [1, 2]


def test_all_failed() -> None:
    def job(seed: int) -> dict[str, float]:
        raise DataError(f"nothing for {seed}")

    with pytest.raises(UserError, match="all 2 seeds failed; seed 7: nothing for 7"):
        run_seeds([7, 8], job)


def test_no_seed_and_one_seed_twice() -> None:
    with pytest.raises(UserError, match="no seeds"):
        run_seeds([], lambda seed: {})
    with pytest.raises(UserError, match="twice in 1, 2, 1"):
        run_seeds([1, 2, 1], lambda seed: {})


def test_the_report_as_a_file(tmp_path: Path) -> None:
    def job(seed: int) -> dict[str, float]:
        if seed == 2:
            raise DataError("坏标签")
        return {"f1": seed / 4, **({"late": 1.0} if seed == 3 else {})}

    report = run_seeds([1, 2, 3], job)
    report.write(tmp_path / "seeds.json")
    found = json.loads((tmp_path / "seeds.json").read_text(encoding="utf-8"))
    assert found == report.as_json()
    assert found["failed"] == [2]
    assert found["seeds"][1] == {"seed": 2, "scores": {}, "error": "坏标签"}
    assert found["scores"]["f1"] | {"low": 0, "high": 0} == {
        "n": 2, "mean": 0.5, "low": 0, "high": 0, "min": 0.25, "max": 0.75,
    }  # fmt: skip
    assert found["scores"]["late"]["n"] == 1
    assert found["scores"]["late"]["low"] is None
    assert [path.name for path in tmp_path.iterdir()] == ["seeds.json"]
