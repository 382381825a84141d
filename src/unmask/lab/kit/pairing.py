"""Arms compared seed by seed, where a run may have ended without a number.

All names begin as those of conclusions do: nothing here makes a number that goes into results.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from unmask.lab.entry import Record
from unmask.lab.kit.effects import Effect, named, spread
from unmask.lab.pictures import Bars, Point, Series
from unmask.lab.words import Text

_NAN = float("nan")


def conclude_seeds(records: Mapping[str, Record], arm: str, value: str) -> list[float]:
    """A value of an arm's trials in the order of their seeds; NaN where there was none."""
    found = []
    for seed in range(len(records)):
        record = records.get(named(arm, seed))
        if record is None:
            break
        given = record[value]
        found.append(_NAN if given is None else float(given))
    return found


def conclude_effect(values: Iterable[float]) -> Effect:
    """Mean and interval of those that are numbers; no interval where fewer than two are."""
    finite = [value for value in values if math.isfinite(value)]
    if len(finite) < 2:
        return Effect(finite[0] if finite else _NAN, _NAN, _NAN)
    return spread(finite)


def conclude_paired(records: Mapping[str, Record], first: str, second: str, value: str) -> Effect:
    """How much more the first arm has of a value than the second, over the seeds for which both have it."""
    both = zip(conclude_seeds(records, first, value), conclude_seeds(records, second, value), strict=True)
    return conclude_effect(one - other for one, other in both)


def conclude_arm(records: Mapping[str, Record], arm: str, value: str, unit: float = 1.0) -> Effect:
    """An arm's mean of a value, divided by a unit."""
    return conclude_effect(one / unit for one in conclude_seeds(records, arm, value))


def conclude_lost(records: Mapping[str, Record], value: str) -> Text:
    """A sentence about runs without a number; nothing where there are none."""
    lost = sum(record[value] is None for record in records.values())
    if not lost:
        return Text("", "")
    return Text(
        f" {lost} of {len(records)} runs ended without a number and are left out.",
        f"{len(records)} 次训练中有 {lost} 次没有得到数值，未计入。",
    )


def conclude_than(effect: Effect) -> Text:
    """On which side of zero an effect lies."""
    if effect.low > 0:
        return Text("higher than", "更高")
    return Text("lower than", "更低") if effect.high < 0 else Text("not told apart from", "分不出高低")


def conclude_bars(
    title: Text, y: Text, names: Sequence[Text], groups: Mapping[Text, Sequence[Effect]], reading: Text
) -> Bars:
    """Bars with whiskers: for each name a bar of each group."""
    series = tuple(Series(group, tuple(conclude_points(effects))) for group, effects in groups.items())
    return Bars(title, y, tuple(names), series, reading)


def conclude_points(effects: Iterable[Effect]) -> list[Point]:
    """The effects that can be drawn, each at its number."""
    points = []
    for number, effect in enumerate(effects):
        if math.isfinite(effect.mean):
            points.append(effect.point(number) if math.isfinite(effect.low) else Point(number, effect.mean))
    return points
