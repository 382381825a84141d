"""Pictures that several questions draw."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from unmask.lab.kit.effects import spread
from unmask.lab.pictures import Bars, Series
from unmask.lab.words import Text

Values = Mapping[str, Sequence[float]]


def text_and_topics(names: Mapping[str, Text], loss: Values, accuracy: Values) -> tuple[Bars, Bars]:
    """Arms by their loss on newspaper text, and by their accuracy on headlines."""
    return (
        _bars(
            names,
            loss,
            Text("Text from left to right", "从左到右的文本"),
            Text("held-out loss a character", "留出集每字损失"),
            Text("Lower is better.", "越低越好。"),
        ),
        _bars(
            names,
            accuracy,
            Text("Topics of headlines", "标题的类别"),
            Text("accuracy", "准确率"),
            Text("Higher is better.", "越高越好。"),
        ),
    )


def _bars(names: Mapping[str, Text], values: Values, title: Text, unit: Text, reading: Text) -> Bars:
    points = tuple(spread(values[arm]).point(number) for number, arm in enumerate(names))
    return Bars(title, unit, tuple(names.values()), (Series(Text("mean of seeds", "种子平均"), points),), reading)
