"""The same job under several seeds: how good is it on average, and how sure is that?"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from unmask.errors import UnmaskError, UserError
from unmask.storage import atomic_write

_LEVEL = 0.95


@dataclass(frozen=True)
class SeedResult:
    """How one seed went: its scores, or why it failed."""

    seed: int
    scores: Mapping[str, float]
    error: str | None = None


@dataclass(frozen=True)
class Summary:
    """One score over all seeds that have it."""

    n: int
    mean: float
    low: float | None  # the 95 % interval of the mean, by Student's t; None for a single seed, which says nothing
    high: float | None
    min: float
    max: float


@dataclass(frozen=True)
class SeedsReport:
    """How all seeds went."""

    results: tuple[SeedResult, ...]

    @property
    def failed(self) -> dict[int, str]:
        """The seeds that failed, and why."""
        return {result.seed: result.error for result in self.results if result.error is not None}

    @property
    def scores(self) -> dict[str, Summary]:
        """Each score over the seeds that did not fail."""
        values: dict[str, list[float]] = {}
        for result in self.results:
            for name, value in result.scores.items():
                values.setdefault(name, []).append(value)
        return {name: summary(found) for name, found in values.items()}

    def as_json(self) -> dict[str, Any]:
        """The report as plain data."""
        return {
            "level": _LEVEL,
            "scores": {name: asdict(one) for name, one in self.scores.items()},
            "seeds": [{"seed": one.seed, "scores": dict(one.scores), "error": one.error} for one in self.results],
            "failed": sorted(self.failed),
        }

    def write(self, path: Path | str) -> None:
        """Write the report as JSON, complete or not at all."""
        text = json.dumps(self.as_json(), indent=2, ensure_ascii=False, allow_nan=False)
        atomic_write(Path(path), (text + "\n").encode(errors="backslashreplace"))


def run_seeds(
    seeds: Sequence[int],
    job: Callable[[int], Mapping[str, float]],
    on_result: Callable[[SeedResult], None] | None = None,
) -> SeedsReport:
    """Run `job` with one seed after another. A seed that fails is noted and the others go on.

    Errors for users, arithmetic, torch's run-time errors (as out of memory) and a score that is no number are failures
    of a seed. Anything else is a mistake in the program and ends everything, as Ctrl-C does. UserError if all fail.
    """
    if not seeds:
        raise UserError("no seeds were given; give at least one, and three or more for an interval that says something")
    if len(set(seeds)) < len(seeds):
        raise UserError(f"a seed is given twice in {', '.join(map(str, seeds))}; the same run twice proves nothing")
    results = []
    for seed in seeds:
        result = _run(seed, job)
        results.append(result)
        if on_result is not None:
            on_result(result)
    report = SeedsReport(tuple(results))
    if len(report.failed) == len(results):
        raise UserError(f"all {len(results)} seeds failed; seed {seeds[0]}: {report.failed[seeds[0]]}")
    return report


def summary(values: Sequence[float]) -> Summary:
    """Mean and its 95 % interval by Student's t, which is right for few values where a normal one is too narrow."""
    n, mean = len(values), statistics.fmean(values)
    if n == 1:
        return Summary(1, mean, None, None, mean, mean)
    # Not at the top: its import takes long.
    from scipy.stats import t

    half = float(t.ppf((1 + _LEVEL) / 2, n - 1)) * statistics.stdev(values) / math.sqrt(n)
    return Summary(n, mean, mean - half, mean + half, min(values), max(values))


def _run(seed: int, job: Callable[[int], Mapping[str, float]]) -> SeedResult:
    try:
        scores = {name: float(value) for name, value in job(seed).items()}
    except UnmaskError as error:
        return SeedResult(seed, {}, str(error))
    except (NotImplementedError, RecursionError):
        raise  # run-time errors by name, but mistakes in the program
    except (ArithmeticError, RuntimeError) as error:
        first = next(iter(str(error).splitlines()), "")
        return SeedResult(seed, {}, f"{type(error).__name__}: {first[:300]}" if first else type(error).__name__)
    wrong = [f"{name} is {value}" for name, value in scores.items() if not math.isfinite(value)]
    return SeedResult(seed, {}, f"the score {wrong[0]}") if wrong else SeedResult(seed, scores)
