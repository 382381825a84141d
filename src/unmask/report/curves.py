"""How the training went: its loss, and the scores on the way."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from unmask.report.letters import cut
from unmask.report.numbers import Numbers, called, is_share, less_is_better, written
from unmask.report.outcome import Evaluation
from unmask.report.svg import (
    HEIGHT,
    MARKS,
    Axis,
    Chart,
    across,
    counted,
    frame,
    mark,
    path,
    picture,
    steps,
    upward,
)

_MAX_POINTS = 300  # more than a chart has pixels for
_FEW = 30  # entries that can be seen one by one, and need no smoothing
_MAX_LINES = len(MARKS)

Series = tuple[Numbers, Numbers]


def loss_chart(evaluation: Evaluation) -> Chart | None:
    """Each training loss as a smooth line over its raw values, and each evaluated loss as points."""
    trained = _series(evaluation.curve, "losses")
    seen = {name: values for name, values in _series(evaluation.curve, "evaluation").items() if _is_loss(name, trained)}
    shown = dict(list(trained.items())[:2])
    if not shown:
        return None
    x = _updates([*shown.values(), *seen.values()])
    middle = {name: _smooth(values) if len(values) > _FEW else values for name, (_, values) in shown.items()}
    # A few outliers must not squeeze all the rest.
    heights = [*middle.values(), *(np.nanquantile(values, (0.01, 0.98)) for _, values in shown.values())]
    heights += [values for _, values in seen.values()]
    every = np.concatenate(heights)
    y = _upward(every, "loss")
    parts = frame(x, y)
    legend: list[tuple[str, str]] = []
    for number, (name, (updates, values)) in enumerate(shown.items()):
        step = -(-len(updates) // _MAX_POINTS)
        if len(values) > _FEW:
            parts.append(_line(x, y, updates[::step], values[::step], f"raw c{number}"))
        parts.append(_line(x, y, updates[::step], middle[name][::step], f"line c{number}"))
        legend.append((f"line c{number}", f"training: {cut(called(name), 20)}"))
    for number, (name, (updates, values)) in enumerate(list(seen.items())[: _MAX_LINES - len(shown)], len(shown)):
        parts += _points(x, y, updates, values, (number, name))
        legend.append((f"mark c{number}", f"dev: {cut(called(name), 20)}"))
    title = "Loss during training"
    reading = _loss_reading(evaluation, next(iter(middle.items())), next(iter(seen.items()), None))
    return Chart(title, picture(title, reading, parts), reading, tuple(legend))


def score_chart(evaluation: Evaluation) -> Chart | None:
    """The scores of the evaluations on the way, the best one named."""
    losses = _series(evaluation.curve, "losses")
    found = _series(evaluation.curve, "evaluation")
    others = {name: series for name, series in found.items() if not _is_loss(name, losses)}
    if not others:
        return None
    main = next((name for name in evaluation.scores if name in others), next(iter(others)))
    order = sorted(others, key=lambda name: (name != main, name not in evaluation.scores))
    # Shares and other numbers do not go on one axis; the score that the model is judged by decides.
    shown = {name: others[name] for name in order if _shares(name, others[name]) == _shares(main, others[main])}
    shown = dict(list(shown.items())[:_MAX_LINES])
    share = _shares(main, others[main])
    x = _updates(list(shown.values()))
    every = np.concatenate([values for _, values in shown.values()])
    y = _upward(every, "score on the dev file" + (", %" if share else ""), 100 if share else 1, share)
    parts = frame(x, y)
    legend = []
    for number, (name, (updates, values)) in enumerate(shown.items()):
        parts.append(_line(x, y, updates, values, f"line c{number}"))
        parts += _points(x, y, updates, values, (number, name))
        legend.append((f"line mark c{number}", cut(called(name), 24)))
    title = "Scores during training"
    updates, values = shown[main]
    place = int(np.nanargmin(values) if less_is_better(main) else np.nanargmax(values))
    last = int(updates[-1])
    reading = f"The best {called(main)} was {written(main, float(values[place]))}, after update {int(updates[place]):,}"
    reading += " (the last one measured)." if place == len(values) - 1 else f" of {last:,}."
    return Chart(title, picture(title, reading, parts), reading, tuple(legend))


def _loss_reading(evaluation: Evaluation, loss: tuple[str, Numbers], seen: tuple[str, Series] | None) -> str:
    name, values = loss
    known = values[np.isfinite(values)]
    which = "training loss" if name == "loss" else f"training loss of {cut(name, 30)}"
    reading = f"The {which} went from {known[0]:.3g} to {known[-1]:.3g}."
    if seen is not None:
        heights = seen[1][1]
        best, last = float(np.nanmin(heights)), float(heights[np.isfinite(heights)][-1])
        rises = last > 1.1 * best
        reading += " The dev loss rose again after its best point: a sign of learning by heart." if rises else ""
    rates = [rate for entry in evaluation.curve if (rate := _number(entry.get("learning_rate"))) is not None]
    if rates:
        reading += f" The learning rate peaked at {max(rates):.2g}."
    return reading


def _series(curve: Sequence[Mapping[str, Any]], kind: str) -> dict[str, Series]:
    """The values of one kind by name; those that never were numbers are left out."""
    found: dict[str, tuple[list[float], list[float]]] = {}
    for entry in curve:
        values = entry.get(kind)
        if kind == "losses" and values is None and "loss" in entry:
            values = {"loss": entry["loss"]}
        if not isinstance(values, Mapping) or not isinstance(entry.get("update"), int):
            continue
        for name, value in values.items():
            updates, heights = found.setdefault(str(name), ([], []))
            updates.append(entry["update"])
            number = _number(value)
            heights.append(math.nan if number is None else number)
    arrays = {name: (np.array(updates, dtype=np.float64), np.array(found)) for name, (updates, found) in found.items()}
    return {name: series for name, series in arrays.items() if np.isfinite(series[1]).any()}


def _number(value: object) -> float | None:
    """A finite number, or None."""
    return float(value) if isinstance(value, float | int) and math.isfinite(value) else None


def _is_loss(name: str, losses: Mapping[str, object]) -> bool:
    """Whether an evaluated value is a loss: one of the training losses, or called so."""
    return name in losses or name.lower().endswith("loss")


def _shares(name: str, series: Series) -> bool:
    return is_share(name) and all(0 <= value <= 1 for value in series[1] if np.isfinite(value))


def _updates(series: Sequence[Series]) -> Axis:
    last = max(float(updates[-1]) for updates, _ in series)
    marks = [(value, counted(value)) for value in steps(0, last) if value <= last and value == int(value)]
    return across(0, last, "update", marks)


def _upward(values: Numbers, label: str, factor: float = 1, share: bool = False) -> Axis:
    low, high = float(np.nanmin(values)), float(np.nanmax(values))
    if share and high - low < 0.02:  # noise must not look like a mountain
        low, high = max(0.0, low - 0.01), min(1.0, high + 0.01)
    found = steps(low, high)
    if share:
        found = [value for value in found if value <= 1 + 1e-9]
    top = max(found[-1], high)
    return upward(found[0], top, label, [(value, counted(round(factor * value, 9))) for value in found])


def _line(x: Axis, y: Axis, updates: Numbers, values: Numbers, style: str) -> Any:
    heights = (y.at(value) if math.isfinite(value) else math.nan for value in values)
    return path(zip(map(x.at, updates), heights, strict=True), style)


def _points(x: Axis, y: Axis, updates: Numbers, values: Numbers, line: tuple[int, str]) -> list[Any]:
    number, name = line
    step = -(-len(updates) // 60)
    chosen = [(update, value) for update, value in zip(updates, values, strict=True) if math.isfinite(value)][::step]
    return [
        mark(
            MARKS[number],
            x.at(update),
            min(y.at(value), HEIGHT),
            f"mark c{number}",
            f"update {update:,.0f}: {called(name)} {written(name, value)}",
        )
        for update, value in chosen
    ]


def _smooth(values: Numbers) -> Numbers:
    """A weighted mean with neighbours on both sides; gaps stay gaps."""
    width = max(1.0, len(values) / 60)
    reach = min(int(3 * width), (len(values) - 1) // 2)
    bell = np.exp(-0.5 * (np.arange(-reach, reach + 1) / width) ** 2)
    finite = np.isfinite(values)
    weights = np.convolve(finite.astype(np.float64), bell, mode="same")
    sums = np.convolve(np.where(finite, values, 0.0), bell, mode="same")
    return np.where(finite, sums / np.where(finite, weights, 1.0), np.nan)
