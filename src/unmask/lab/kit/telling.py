"""How conclusions are put into words, pictures and tables; none of it changes a number."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from unmask.lab.entry import Record, Table, Verdict
from unmask.lab.kit.effects import Effect, by_seed, paired, spread
from unmask.lab.pictures import Bars, Series
from unmask.lab.words import Text, both


def conclude_together(sides: Sequence[Verdict]) -> Verdict:
    """One verdict from several effects: all must lie on one side; where none is decided there is nothing to see."""
    found = set(sides)
    if len(found) == 1:
        return found.pop()
    return Verdict.DEPENDS


def conclude_compared(effect: Effect, digits: int = 3) -> Text:
    """A difference as "higher by …", "lower by …" or not to be told."""
    size, numbers = f"{abs(effect.mean):.{digits}f}", f"{effect.low:+.{digits}f} … {effect.high:+.{digits}f}"
    if effect.low > 0:
        return Text(f"higher by {size} ({numbers})", f"高 {size}（{numbers}）")
    if effect.high < 0:
        return Text(f"lower by {size} ({numbers})", f"低 {size}（{numbers}）")
    return Text(f"not visibly different ({numbers})", f"看不出差别（{numbers}）")


def conclude_bars(
    records: Mapping[str, Record], arms: Mapping[str, Text], value: str, title: Text, unit: Text, reading: Text
) -> Bars:
    """A bar for each arm: the mean over seeds with its interval."""
    points = tuple(spread(by_seed(records, arm, value)).point(number) for number, arm in enumerate(arms))
    return Bars(title, unit, tuple(arms.values()), (Series(unit, points),), reading)


def conclude_gaps(gaps: Mapping[str, Effect], names: Mapping[str, Text], title: Text, unit: Text) -> Bars:
    """A bar for each difference, for losses, whose own bars would all look alike."""
    points = tuple(gap.point(number) for number, gap in enumerate(gaps.values()))
    reading = Text(
        "Above 0 is worse, below better; a whisker (95 %, over seeds) that crosses 0 leaves it open.",
        "大于 0 为更差，小于 0 为更好；须线（各种子的 95 % 区间）跨过 0 则没有定论。",
    )
    return Bars(title, unit, tuple(names[name] for name in gaps), (Series(unit, points),), reading)


def conclude_table(
    records: Mapping[str, Record], arms: Mapping[str, Text], base: str, values: Mapping[str, Text]
) -> Table:
    """A row for each arm: means over seeds, and the paired difference of the first value from that of a base arm."""
    first = next(iter(values))
    rows = []
    for arm, label in arms.items():
        means = [f"{spread(by_seed(records, arm, value)).mean:.4g}" for value in values]
        gap = "–" if arm == base else paired(by_seed(records, arm, first), by_seed(records, base, first)).signed()
        rows.append((label.en if label.en == label.zh else f"{label.en} · {label.zh}", *means, gap))
    difference = Text(
        f"{values[first].en} − that of {arms[base].en} (95 %)", f"{values[first].zh} − {arms[base].zh}（95 %）"
    )
    return Table((Text("arm", "组"), *values.values(), difference), tuple(rows))


def conclude_lost(records: Mapping[str, Record]) -> Text:
    """A sentence on runs whose loss became no number; empty if there were none."""
    lost = sum(bool(record.get("diverged")) for record in records.values())
    if not lost:
        return both("")
    return Text(
        f" {lost} of {len(records)} runs diverged; they count as a model that knows nothing.",
        f"{len(records)} 次训练中有 {lost} 次发散，按一无所知的模型计。",
    )
