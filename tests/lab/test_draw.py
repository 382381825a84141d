"""Drawings: valid, in both languages, with axes and units; the page needs nothing from outside."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import get_args

import html5lib
import pytest

from unmask.lab.catalogue import entries
from unmask.lab.draw import alone, draw
from unmask.lab.page import page_html, write_docs
from unmask.lab.pictures import Bars, Heat, Lines, Picture, Point, Series
from unmask.lab.run import answer_of
from unmask.lab.words import Language, Text, both

READING = Text("It rises.", "上升。")
SERIES = (
    Series(Text("with <b>", "有"), (Point(1, 0.5, 0.4, 0.6), Point(10, 0.7), Point(100, 0.9, 0.85, 0.95))),
    Series(Text("without", "无"), (Point(1, 0.2), Point(100, 0.3)), line=False),
)
PICTURES: dict[str, Picture] = {
    "lines": Lines(both("t"), Text("tokens", "词数"), Text("seconds", "秒"), SERIES, READING),
    "logarithmic": Lines(both("t"), both("n"), both("s"), SERIES, READING, log_x=True, log_y=True),
    "one point": Lines(both("t"), both("n"), both("s"), (Series(both("a"), (Point(0, 0),)),), READING),
    "tiny values": Lines(
        both("t"), both("n"), both("s"), (Series(both("a"), (Point(1, 1e-9), Point(2, 3e-9))),), READING
    ),
    "bars": Bars(
        both("t"),
        Text("accuracy", "准确率"),
        (both("a"), Text("a very long name of an arm", "一个很长很长的名字")),
        (Series(both("x"), (Point(0, 0.5, 0.4, 0.6), Point(1, -0.2))),),
        READING,
    ),
    "heat": Heat(
        both("t"), ("a", "北京"), ("x", "y", "z"), ((0, 1, 2), (2, 1, 0)), READING, both("x"), both("y"), both("u")
    ),
}


@pytest.mark.parametrize("language", get_args(Language))
@pytest.mark.parametrize("kind", PICTURES)
def test_a_drawing_is_valid_and_says_what_it_shows(kind: str, language: Language) -> None:
    shown = PICTURES[kind]
    text = alone(shown, language, "svg { color: red }")
    root = ElementTree.fromstring(text)
    assert root.tag.endswith("svg")
    words = " ".join(root.itertext())
    assert shown.reading.said(language) in words
    assert shown.y.said(language) in words
    if not isinstance(shown, Bars):
        assert shown.x.said(language) in words
    assert "nan" not in text
    numbers = [float(value) for value in re.findall(r'(?:x|y|x1|y1|x2|y2|cx|cy)="(-?[\d.]+)"', text)]
    assert all(-5 <= value <= 500 for value in numbers), "inside the picture"


def test_points_stand_where_their_values_are() -> None:
    drawn = str(draw(PICTURES["logarithmic"], "en"))
    places = [float(value) for value in re.findall(r'<circle cx="([\d.]+)"', drawn)]
    assert places[1] - places[0] == pytest.approx(places[2] - places[1], abs=0.3), "1, 10, 100 are equally far apart"


def test_the_page_has_every_question_and_nothing_from_outside() -> None:
    answers = [answer_of(entry, None) for entry in entries()]
    page = page_html(answers)
    html5lib.HTMLParser(strict=True).parse(page)
    for entry in entries():
        assert f'id="{entry.id}"' in page
        assert f"unmask lab run {entry.id}" in page
    assert not re.search(r"(?:src|href)=[\"'](?!#)", page)
    assert "not yet run" in page
    assert "尚未运行" in page


def test_pages_for_the_documentation_have_their_pictures(tmp_path: Path) -> None:
    from unmask.lab.catalogue import entry_of
    from unmask.lab.entry import Plan
    from unmask.lab.run import Runner

    entry = entry_of("look-ahead-mask")
    runner = Runner(tmp_path / "results", Plan())
    runner.run(runner.jobs(entry))
    write_docs([answer_of(entry, tmp_path / "results")], tmp_path)
    for name in ("README.md", "README.zh.md"):
        page = (tmp_path / name).read_text(encoding="utf-8")
        pictures = re.findall(r"\]\(([^)#]+\.svg)\)", page)
        assert pictures
        assert all((tmp_path / one).is_file() for one in pictures)
