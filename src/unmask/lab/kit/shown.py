"""What several conclusions show alike. The names begin as those of conclusions do: nothing here makes a number."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from unmask.lab.entry import Record
from unmask.lab.kit.effects import Effect
from unmask.lab.pictures import Bars, Point, Series
from unmask.lab.words import Text


def conclude_percent(effect: Effect) -> str:
    """A share with its interval."""
    return f"{100 * effect.mean:.1f} % ({100 * effect.low:.1f} – {100 * effect.high:.1f})"


def conclude_points(effect: Effect) -> Text:
    """A difference of shares with its interval, in points of percent."""
    mean, low, high = (100 * value for value in effect)
    return Text(f"{mean:+.1f} points ({low:+.1f} – {high:+.1f})", f"{mean:+.1f} 个百分点（{low:+.1f} – {high:+.1f}）")


def conclude_bars(title: Text, y: Text, arms: Sequence[tuple[Text, Effect]], reading: Text) -> Bars:
    """A bar with its interval for each of several arms."""
    points = [
        Point(number, one.mean) if one.low == one.high else one.point(number) for number, (_, one) in enumerate(arms)
    ]
    return Bars(title, y, tuple(name for name, _ in arms), (Series(y, conclude_finite(points)),), reading)


def conclude_shares(title: Text, y: Text, arms: Sequence[tuple[Text, Effect]], reading: Text) -> Bars:
    """The same where the values are shares, shown in percent."""
    return conclude_bars(title, y, [(name, Effect(*(100 * value for value in one))) for name, one in arms], reading)


def conclude_finite(points: Sequence[Point]) -> tuple[Point, ...]:
    """The points that can be drawn."""
    return tuple(point for point in points if all(value is None or math.isfinite(value) for value in point))


def conclude_diverged(records: Mapping[str, Record]) -> Text:
    """A sentence about runs that broke down, which count with the worst loss; nothing where none did."""
    broken = [name for name, record in records.items() if record.get("diverged")]
    if not broken:
        return Text("", "")
    return Text(
        f" {len(broken)} of {len(records)} runs broke down ({', '.join(broken[:3])}) and count as the worst.",
        f"{len(records)} 次训练中有 {len(broken)} 次发散（{'、'.join(broken[:3])}），按最差计。",
    )
