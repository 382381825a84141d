"""The few shapes that charts are made of. All that is given as text is escaped; colours come from the page."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from unmask.report.letters import visible

WIDTH, HEIGHT = 400, 262  # about a phone's width, so that letters stay readable there
LEFT, RIGHT, TOP, BOTTOM = 44, 20, 30, 46

MARKS = ("circle", "square", "diamond", "triangle")  # one for each line of a chart, beside its colour


@dataclass(frozen=True)
class Chart:
    """A drawing with all that stands around it."""

    title: str
    svg: Markup
    #: What to see in it, in a sentence or two.
    reading: str
    #: Style and name of each line.
    legend: tuple[tuple[str, str], ...] = ()
    wide: bool = False


@dataclass(frozen=True)
class Axis:
    """Numbers from `low` to `high` on pixels from `start` to `end`."""

    low: float
    high: float
    start: float
    end: float
    label: str
    marks: tuple[tuple[float, str], ...] = ()

    def at(self, value: float) -> float:
        """The pixel of a value; what lies outside is put on the edge."""
        inside = min(max(value, self.low), self.high)
        return self.start + (inside - self.low) / ((self.high - self.low) or 1.0) * (self.end - self.start)


def tag(name: str, attributes: Mapping[str, object], *inside: str | Markup) -> Markup:
    """An element; numbers are rounded to what a screen can show."""
    written = Markup("").join(Markup(' {}="{}"').format(key, _short(value)) for key, value in attributes.items())
    content = Markup("").join(part if isinstance(part, Markup) else visible(part) for part in inside)
    return Markup("<{}{}>{}</{}>").format(Markup(name), written, content, Markup(name))


def picture(title: str, reading: str, parts: Iterable[Markup], size: tuple[float, float] = (WIDTH, HEIGHT)) -> Markup:
    """A whole drawing, which says what it is to those who cannot see it."""
    width, height = size
    about = {"viewBox": f"0 0 {_short(width)} {_short(height)}", "width": width, "height": height, "role": "img"}
    return tag("svg", about, tag("title", {}, title), tag("desc", {}, reading), *parts)


def words(text: str, x: float, y: float, style: str = "tick", anchor: str = "middle") -> Markup:
    """A line of text."""
    return tag("text", {"x": x, "y": y, "class": style, "text-anchor": anchor}, text)


def line(x1: float, y1: float, x2: float, y2: float, style: str) -> Markup:
    """A straight line."""
    return tag("line", {"x1": x1, "y1": y1, "x2": x2, "y2": y2, "class": style})


def path(points: Iterable[tuple[float, float]], style: str) -> Markup:
    """A line through points; one that is no number leaves a gap."""
    steps: list[str] = []
    pen = "M"
    for x, y in points:
        if math.isfinite(y):
            steps.append(f"{pen}{_short(x)} {_short(y)}")
            pen = "L"
        else:
            pen = "M"
    return tag("path", {"d": "".join(steps), "class": style})


def mark(shape: str, x: float, y: float, style: str, about: str = "") -> Markup:
    """A point of some shape, which tells more when pointed at."""
    inside = tag("title", {}, about) if about else Markup("")
    if shape == "circle":
        return tag("circle", {"cx": x, "cy": y, "r": 3.6, "class": style}, inside)
    corners = {
        "square": ((-3.3, -3.3), (3.3, -3.3), (3.3, 3.3), (-3.3, 3.3)),
        "diamond": ((0, -4.6), (4.6, 0), (0, 4.6), (-4.6, 0)),
        "triangle": ((0, -4.4), (4.2, 3.4), (-4.2, 3.4)),
    }[shape]
    points = " ".join(f"{_short(x + dx)},{_short(y + dy)}" for dx, dy in corners)
    return tag("polygon", {"points": points, "class": style}, inside)


def across(low: float, high: float, label: str, marks: Sequence[tuple[float, str]]) -> Axis:
    """The axis below a drawing of the usual size."""
    return Axis(low, high, LEFT, WIDTH - RIGHT, label, tuple(marks))


def upward(low: float, high: float, label: str, marks: Sequence[tuple[float, str]]) -> Axis:
    """The axis on its left."""
    return Axis(low, high, HEIGHT - BOTTOM, TOP, label, tuple(marks))


def frame(x: Axis, y: Axis) -> list[Markup]:
    """Both axes with their numbers and names; the name of the upright one lies on top of it, easier to read so."""
    parts = [line(x.start, y.at(value), x.end, y.at(value), "grid") for value, _ in y.marks]
    parts += [words(text, x.start - 8, y.at(value) + 4, anchor="end") for value, text in y.marks]
    parts.append(line(x.start, y.start, x.end, y.start, "rule"))
    parts += [words(text, x.at(value), y.start + 17) for value, text in x.marks]
    parts.append(words(x.label, (x.start + x.end) / 2, y.start + 38, "label axis-x"))
    parts.append(words(y.label, 4, 13, "label axis-y", "start"))
    return parts


def steps(low: float, high: float, count: int = 5) -> list[float]:
    """Round numbers from below `low` to above `high`: 1, 2 or 5 times a power of ten apart."""
    if not high > low:
        high = low + (abs(low) or 1.0)
    rough = (high - low) / count
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [number * step for number in range(first, last + 1)]


def counted(value: float) -> str:
    """A number of an axis, short."""
    if abs(value) >= 10_000:
        return f"{value / 1000:,.10g}k"
    return f"{value:,.10g}" if value == int(value) else f"{value:.6g}"


def _short(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.1f}".removesuffix(".0")
    return str(value)
