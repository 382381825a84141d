"""Drawings of the lab's pictures: SVG that stands alone or in a page, readable at a phone's width."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import assert_never

from markupsafe import Markup

from unmask.lab.pictures import Bars, Heat, Lines, Picture, Point, Series
from unmask.lab.words import Language
from unmask.report.letters import room
from unmask.report.svg import (
    BOTTOM,
    HEIGHT,
    LEFT,
    MARKS,
    RIGHT,
    TOP,
    WIDTH,
    Axis,
    counted,
    frame,
    line,
    mark,
    path,
    picture,
    steps,
    tag,
    words,
)

_ROW = 17  # pixels of a line of the legend
_LETTER = 6.4
_MOST_SERIES = 8


def draw(shown: Picture, language: Language) -> Markup:
    """A picture with its axes, their units, and a legend where there are several series."""
    match shown:
        case Lines():
            return _lines(shown, language)
        case Bars():
            return _bars(shown, language)
        case Heat():
            return _heat(shown, language)
        case _:
            assert_never(shown)


def alone(shown: Picture, language: Language, style: str) -> str:
    """The same as a file of its own, with the style that a page would give it."""
    drawn = str(draw(shown, language))
    start = drawn.index(">") + 1
    opened = drawn[:start].replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1)
    return f"{opened}<style>{style}</style>{drawn[start:]}\n"


def _lines(shown: Lines, language: Language) -> Markup:
    points = [point for series in shown.series for point in series.points]
    x = _axis([point.x for point in points], shown.x.said(language), (LEFT, WIDTH - RIGHT), shown.log_x)
    heights = [value for point in points for value in (point.y, point.low, point.high) if value is not None]
    y = _axis(heights, shown.y.said(language), (HEIGHT - BOTTOM, TOP), shown.log_y)
    parts = frame(_numbers(x), _numbers(y))
    for number, series in enumerate(shown.series):
        parts += _series(series, number, x, y, language)
    return _with_legend(shown, parts, language)


def _series(series: Series, number: int, x: _Scale, y: _Scale, language: Language) -> list[Markup]:
    colour = f"c{number % _MOST_SERIES}"
    parts = [
        line(x.at(point.x), y.at(point.low), x.at(point.x), y.at(point.high), f"whisker {colour}")
        for point in series.points
        if point.low is not None and point.high is not None
    ]
    if series.line:
        parts.append(path([(x.at(point.x), y.at(point.y)) for point in series.points], f"line {colour}"))
    if len(series.points) <= 40:
        name = series.name.said(language)
        for point in series.points:
            about = f"{name}: {counted(point.x)} → {_said(point)}"
            parts.append(mark(MARKS[number % len(MARKS)], x.at(point.x), y.at(point.y), f"mark {colour}", about))
    return parts


def _bars(shown: Bars, language: Language) -> Markup:
    heights = [value for series in shown.series for point in series.points for value in point[1:] if value is not None]
    y = _axis([0.0, *heights], shown.y.said(language), (HEIGHT - BOTTOM, TOP), False)
    count, width = len(shown.names), WIDTH - RIGHT - LEFT
    x = Axis(0, count, LEFT, WIDTH - RIGHT, "", ())
    parts = frame(x, _numbers(y))
    each = width / count / (len(shown.series) + 0.6)
    for number, series in enumerate(shown.series):
        for point in series.points:
            left = x.at(point.x) + each * (0.3 + number)
            top, ground = y.at(max(point.y, 0)), y.at(min(point.y, 0))
            about = f"{shown.names[int(point.x)].said(language)}, {series.name.said(language)}: {_said(point)}"
            place = {"x": left, "y": top, "width": 0.9 * each, "height": max(ground - top, 0.8)}
            parts.append(tag("rect", {**place, "class": f"box c{number % _MOST_SERIES}"}, tag("title", {}, about)))
            if point.low is not None and point.high is not None:
                middle = left + 0.45 * each
                parts.append(line(middle, y.at(point.low), middle, y.at(point.high), "whisker ink"))
    for number, name in enumerate(shown.names):
        for row, text in enumerate(_folded(name.said(language), width / count)):
            parts.append(words(text, x.at(number + 0.5), HEIGHT - BOTTOM + 16 + 13 * row))
    return _with_legend(shown, parts, language)


def _heat(shown: Heat, language: Language) -> Markup:
    names = [_cut(name, 14) for name in shown.rows]
    left = 26 + _LETTER * max(map(room, names), default=0)
    cell = min(44.0, max(9.0, (WIDTH - left - 8) / max(1, len(shown.columns))))
    tall = min(cell, 26.0)
    top = 44 + 0.72 * _LETTER * max((room(_cut(name, 14)) for name in shown.columns), default=0)
    values = [value for row in shown.values for value in row]
    low, high = min(values, default=0.0), max(values, default=1.0)
    parts = [words(shown.y.said(language), 4, 13, "label axis-y", "start")]
    for r, row in enumerate(shown.values):
        parts.append(words(names[r], left - 6, top + (r + 0.5) * tall + 4, "name", "end"))
        for c, value in enumerate(row):
            share = (value - low) / ((high - low) or 1.0)
            about = f"{shown.rows[r]} → {shown.columns[c]}: {value:.3g} {shown.unit.said(language)}"
            place = {"x": left + c * cell, "y": top + r * tall, "width": cell - 1, "height": tall - 1, "class": "heat"}
            parts.append(tag("rect", {**place, "fill-opacity": round(0.04 + 0.96 * share, 3)}, tag("title", {}, about)))
    for c, name in enumerate(shown.columns):
        move = f"translate({left + (c + 0.5) * cell + 3:.1f} {top - 6:.1f}) rotate(-45)"
        parts.append(tag("text", {"transform": move, "class": "name"}, _cut(name, 14)))
    height = top + len(shown.rows) * tall + 30
    scale = f"{shown.x.said(language)} · {shown.unit.said(language)}: {low:.3g} – {high:.3g}"
    parts.append(words(scale, WIDTH / 2, height - 10, "label"))
    return picture(shown.title.said(language), shown.reading.said(language), parts, (WIDTH, height))


def _with_legend(shown: Lines | Bars, parts: list[Markup], language: Language) -> Markup:
    height = float(HEIGHT)
    if len(shown.series) > 1:
        left, row = float(LEFT), 0
        for number, series in enumerate(shown.series):
            name = series.name.said(language)
            wide = 26 + _LETTER * room(name)
            if left + wide > WIDTH and left > LEFT:
                left, row = float(LEFT), row + 1
            y = HEIGHT + 4 + _ROW * row
            colour = f"c{number % _MOST_SERIES}"
            shape = MARKS[number % len(MARKS)] if isinstance(shown, Lines) else "square"
            style = f"mark {colour}" if isinstance(shown, Lines) else f"box {colour}"
            parts.append(mark(shape, left + 6, y, style))
            parts.append(words(name, left + 15, y + 4, "name", "start"))
            left += wide
        height += 10 + _ROW * (row + 1)
    return picture(shown.title.said(language), shown.reading.said(language), parts, (WIDTH, height))


class _Scale(Axis):
    """An axis that may be logarithmic."""

    log: bool = False

    def at(self, value: float) -> float:
        """The pixel of a value."""
        return super().at(math.log10(value) if self.log and value > 0 else value)


class _LogScale(_Scale):
    log = True


def _axis(values: Sequence[float], label: str, pixels: tuple[float, float], log: bool) -> _Scale:
    finite = [value for value in values if math.isfinite(value) and (value > 0 or not log)] or [0.0 if not log else 1.0]
    low, high = min(finite), max(finite)
    if log:
        marks = _powers(low, high)
        return _LogScale(
            math.log10(min(low, marks[0])), math.log10(max(high, marks[-1])), *pixels, label, _named(marks)
        )
    ticks = steps(low, high)
    return _Scale(ticks[0], ticks[-1], *pixels, label, _named(ticks))


def _numbers(scale: _Scale) -> Axis:
    """The axis as `frame` wants it: marks where they are drawn."""
    if not scale.log:
        return scale
    marks = tuple((math.log10(value), text) for value, text in scale.marks)
    return Axis(scale.low, scale.high, scale.start, scale.end, scale.label, marks)


def _powers(low: float, high: float) -> list[float]:
    """Round numbers on a logarithmic axis: powers of ten, or of two where there are few of these."""
    base = 10.0 if high / low > 60 else 2.0
    first, last = math.floor(math.log(low, base) + 1e-9), math.ceil(math.log(high, base) - 1e-9)
    every = max(1, math.ceil((last - first) / 6))
    return [base**power for power in range(first, last + 1, every)]


def _named(values: Iterable[float]) -> tuple[tuple[float, str], ...]:
    return tuple(
        (value, f"{value:.0e}" if value and not 1e-4 <= abs(value) < 1e7 else counted(value)) for value in values
    )


def _said(point: Point) -> str:
    value = f"{point.y:.4g}"
    return value if point.low is None or point.high is None else f"{value} ({point.low:.4g} – {point.high:.4g})"


def _cut(text: str, letters: int) -> str:
    return text if len(text) <= letters else text[: letters - 1] + "…"


def _folded(text: str, pixels: float) -> list[str]:
    """A name on at most two lines of so many pixels."""
    if room(text) * _LETTER <= pixels:
        return [text]
    pieces = text.split(" ") if " " in text else [text[: len(text) // 2], text[len(text) // 2 :]]
    join = " " if " " in text else ""
    first, most = pieces[0], max(2, int(pixels / _LETTER))
    rest = pieces[1:]
    while rest and room(first + join + rest[0]) <= most:
        first += join + rest.pop(0)
    return [_cut(first, most), _cut(join.join(rest), most)] if rest else [_cut(first, most)]
