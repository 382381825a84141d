"""Pictures as data: points, names and units; `draw` makes drawings of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from unmask.lab.words import Text


class Point(NamedTuple):
    """A value, and its interval where it has one."""

    x: float
    y: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Series:
    """Points that belong together."""

    name: Text
    points: tuple[Point, ...]
    line: bool = True


@dataclass(frozen=True)
class Lines:
    """Lines or dots over a number. Axes say their units."""

    title: Text
    x: Text
    y: Text
    series: tuple[Series, ...]
    reading: Text  # what to see in it, in one sentence
    log_x: bool = False
    log_y: bool = False


@dataclass(frozen=True)
class Bars:
    """A value for each of several names."""

    title: Text
    y: Text
    names: tuple[Text, ...]
    series: tuple[Series, ...]  # x of a point is the number of its name
    reading: Text


@dataclass(frozen=True)
class Heat:
    """A table of values as shades."""

    title: Text
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    values: tuple[tuple[float, ...], ...]
    reading: Text
    x: Text
    y: Text
    unit: Text


Picture = Lines | Bars | Heat
