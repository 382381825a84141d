from __future__ import annotations

import math
import re
from dataclasses import replace
from itertools import pairwise
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

import report_samples as samples
from unmask.report.charts import bar, calibration_chart, length_chart, residual_chart, scatter_chart, strip
from unmask.report.curves import loss_chart, score_chart
from unmask.report.matrix import confused, confusion_chart
from unmask.report.outcome import TextOutcome
from unmask.report.svg import BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH, Axis, Chart, counted, path, steps, tag


def shapes(chart: Chart | None, name: str, style: str = "") -> list[dict[str, str]]:
    assert chart is not None
    found = ElementTree.fromstring(str(chart.svg)).iter(name)
    return [shape.attrib for shape in found if not style or set(style.split()) <= set(shape.get("class", "").split())]


def written(chart: Chart | None, style: str) -> list[str]:
    assert chart is not None
    return [
        text.text or ""
        for text in ElementTree.fromstring(str(chart.svg)).iter("text")
        if style in text.get("class", "").split()
    ]


def points(d: str) -> list[tuple[float, float]]:
    return [(float(x), float(y)) for x, y in re.findall(r"[ML](-?[\d.]+) (-?[\d.]+)", d)]


def test_an_axis_puts_values_on_pixels() -> None:
    axis = Axis(10, 20, 100, 0, "")
    assert [axis.at(value) for value in (10, 15, 20, 25, 0)] == [100, 50, 0, 0, 100]
    assert Axis(5, 5, 0, 10, "").at(5) == 0


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0, 1, [0, 0.2, 0.4, 0.6, 0.8, 1.0]),
        (0, 97, [0, 20, 40, 60, 80, 100]),
        (-0.3, 0.3, [-0.4, -0.2, 0, 0.2, 0.4]),
        (3, 3, [3, 4, 5, 6]),
        (0, 0, [0, 0.2, 0.4, 0.6, 0.8, 1.0]),
        (1e-6, 2e-6, [1e-6, 1.2e-6, 1.4e-6, 1.6e-6, 1.8e-6, 2e-6]),
    ],
)
def test_marks_of_an_axis_are_round_and_enclose(low: float, high: float, expected: list[float]) -> None:
    assert steps(low, high) == pytest.approx(expected)


def test_numbers_of_an_axis_are_short() -> None:
    assert [counted(value) for value in (0, 0.25, 1500, 20_000, 1_250_000)] == ["0", "0.25", "1,500", "20k", "1,250k"]


def test_elements_escape_and_paths_have_gaps() -> None:
    assert str(tag("text", {"class": 'a"b'}, "<&>\x00")) == '<text class="a&#34;b">&lt;&amp;&gt;\ufffd</text>'
    drawn = path([(0.0, 1.0), (1.0, math.nan), (2.0, 3.0), (3.0, 4.04)], "line")
    assert 'd="M0 1M2 3L3 4"' in str(drawn)


def test_a_strip_shows_value_and_interval() -> None:
    chart = Chart("", strip(0.5, 0.4, 0.7), "")
    (band,) = shapes(chart, "rect", "band")
    assert (float(band["x"]), float(band["width"])) == (65.0, 45.0)
    (needle,) = shapes(chart, "line", "needle")
    assert float(needle["x1"]) == 80
    assert strip(None, None, None) == strip(3.0, 2.0, 4.0) == ""
    assert float(shapes(Chart("", bar(0.25), ""), "rect", "bar")[0]["width"]) == 30


def sure(pairs: list[tuple[float, bool]]) -> Any:
    outcomes = tuple(
        TextOutcome("t", gold="a", predicted="a" if right else "b", confidence=confidence, tokens=9)
        for confidence, right in pairs
    )
    return replace(samples.empty(), problem="single", outcomes=outcomes)


def test_a_calibrated_model_lies_on_the_line() -> None:
    evaluation = sure([(0.75, number % 4 != 0) for number in range(400)])
    chart = calibration_chart(evaluation)
    assert chart is not None
    assert "ECE 0.0\u00a0%: its confidence can be read as a probability." in chart.reading
    (dot,) = shapes(chart, "circle", "mark")
    (ideal,) = shapes(chart, "line", "ideal")
    x1, y1, x2, y2 = (float(ideal[key]) for key in ("x1", "y1", "x2", "y2"))
    on_line = y1 + (float(dot["cx"]) - x1) / (x2 - x1) * (y2 - y1)
    assert float(dot["cy"]) == pytest.approx(on_line, abs=0.2)
    (whisker,) = shapes(chart, "line", "whisker")
    assert float(whisker["y2"]) < float(dot["cy"]) < float(whisker["y1"])


@pytest.mark.parametrize(
    ("pairs", "said"),
    [
        ([(0.95, number % 2 == 0) for number in range(100)], "surer than it should be"),
        ([(0.55, True)] * 100, "right more often than it says"),
        ([(0.95, number % 2 == 0) for number in range(100)] + [(0.55, True)] * 100, "too sure in some places"),
    ],
)
def test_what_is_said_of_confidence(pairs: list[tuple[float, bool]], said: str) -> None:
    chart = calibration_chart(sure(pairs))
    assert chart is not None
    assert said in chart.reading


def test_too_few_confidences_draw_nothing() -> None:
    assert calibration_chart(sure([(0.9, True)] * 19)) is None
    assert calibration_chart(samples.regression()) is None


def test_lengths_have_a_point_each_and_a_sentence() -> None:
    chart = length_chart(samples.single())
    assert chart is not None
    assert len(shapes(chart, "circle", "mark")) == len(shapes(chart, "line", "whisker")) == 5
    assert written(chart, "axis-y") == ["accuracy, %"]
    assert "The intervals overlap" in chart.reading
    short = [TextOutcome("t", gold="a", predicted="a", tokens=9)] * 200
    long = [TextOutcome("t", gold="a", predicted="b", tokens=90)] * 200
    apart = length_chart(replace(sure([]), outcomes=(*short, *long)))
    assert apart is not None
    assert apart.reading == "Accuracy is 100.0\u00a0% for the shortest and 0.0\u00a0% for the longest."
    assert length_chart(sure([])) is None


def test_the_scatter_puts_each_text_where_it_belongs() -> None:
    golds = [0.0, 2.0, 5.0]
    outcomes = tuple(TextOutcome("t", gold=gold, predicted=5 - gold) for gold in golds)
    dots = shapes(scatter_chart(replace(samples.regression(), outcomes=outcomes)), "circle", "speck")
    xs, ys = [float(dot["cx"]) for dot in dots], [float(dot["cy"]) for dot in dots]
    width, height = WIDTH - RIGHT - LEFT, HEIGHT - BOTTOM - TOP
    assert xs == pytest.approx([LEFT, LEFT + 0.4 * width, WIDTH - RIGHT], abs=0.1)
    assert ys == pytest.approx([TOP, TOP + 0.4 * height, HEIGHT - BOTTOM], abs=0.1)


def test_many_numbers_are_drawn_in_part_and_said() -> None:
    chart = scatter_chart(samples.regression())
    assert chart is not None
    assert len(shapes(chart, "circle", "speck")) == 500
    assert "Shown: 500 of 1,500." in chart.reading
    assert "shrink towards the middle" in chart.reading  # as they were invented: 0.75 of the way


def test_residuals_hold_every_text() -> None:
    chart = residual_chart(samples.regression())
    assert chart is not None
    titles = re.findall(r"<title>([\d,]+) between", str(chart.svg))
    assert sum(int(count.replace(",", "")) for count in titles) == 1500
    same = tuple(TextOutcome("t", gold=1.0, predicted=1.0) for _ in range(5))
    assert residual_chart(replace(samples.regression(), outcomes=same)) is not None
    assert scatter_chart(replace(samples.regression(), outcomes=same)) is not None
    lost = (TextOutcome("t", gold=1.0, predicted=None), TextOutcome("t", gold=1.0, predicted=math.nan))
    assert residual_chart(replace(samples.regression(), outcomes=lost)) is None


def test_the_matrix_has_a_cell_for_each_pair() -> None:
    chart = confusion_chart(samples.single())
    assert written(chart, "count") == [str(count) for row in samples.single().confusion or () for count in row]
    assert chart is not None
    assert "taken for" in chart.reading
    good, bad = shapes(chart, "rect", "good"), shapes(chart, "rect", "bad")
    assert (len(good), len(bad)) == (2, 2)
    assert float(good[0]["fill-opacity"]) > float(bad[0]["fill-opacity"])


@pytest.mark.parametrize(("size", "title"), [(30, "What it confuses"), (31, "What it confuses most")])
def test_large_matrices_become_pairs(size: int, title: str) -> None:
    labels = [f"l{number}" for number in range(size)]
    counts = tuple(tuple(9 if i == j else int(j == (i + 1) % size) * (i + 1) for j in range(size)) for i in range(size))
    evaluation = replace(samples.single(5), labels=tuple(labels), confusion=counts)
    chart = confusion_chart(evaluation)
    assert chart is not None
    assert chart.title == title
    assert confused(evaluation)[0] == (size, f"l{size - 1}", "l0", size + 9)
    assert f"l{size - 1} taken for l0, {size} of {size + 9} times" in chart.reading


def test_a_perfect_matrix_and_an_empty_one() -> None:
    perfect = confusion_chart(replace(samples.single(5), confusion=((3, 0), (0, 2))))
    assert perfect is not None
    assert perfect.reading == "Nothing was confused."
    assert confusion_chart(replace(samples.single(5), confusion=((0, 0), (0, 0)))) is None
    labels = tuple(map(str, range(31)))
    diagonal = tuple(tuple(int(i == j) for j in range(31)) for i in range(31))
    assert confusion_chart(replace(samples.single(5), labels=labels, confusion=diagonal)) is not None


def trained(entries: list[dict[str, Any]]) -> Any:
    return replace(samples.single(5), curve=tuple(entries))


def test_the_loss_is_drawn_from_left_to_right() -> None:
    entries: list[dict[str, Any]] = [{"update": n, "losses": {"loss": 4.0 - n / 10}} for n in range(1, 21)]
    chart = loss_chart(trained(entries))
    (line,) = shapes(chart, "path", "line c0")
    found = points(line["d"])
    assert len(found) == 20  # few are not smoothed
    assert found[-1][0] == WIDTH - RIGHT
    assert all(a[0] < b[0] and a[1] < b[1] for a, b in pairwise(found))
    assert chart is not None
    assert chart.reading == "The training loss went from 3.9 to 2."


def test_a_gap_an_outlier_and_a_plain_loss() -> None:
    entries: list[dict[str, Any]] = [{"update": n, "loss": 2.0 + 0.1 * math.sin(n)} for n in range(1, 201)]
    entries[100]["loss"] = 1e6
    entries[50]["loss"] = None
    chart = loss_chart(trained(entries))
    (line,) = shapes(chart, "path", "raw")
    assert line["d"].count("M") == 2
    ticks = [float(text.replace("k", "e3").replace(",", "")) for text in written(chart, "tick")]
    assert max(ticks) < 1e6
    heights = [y for _, y in points(line["d"])]
    assert min(heights) == TOP
    assert np.isfinite(heights).all()


def test_learning_by_heart_is_said() -> None:
    entries: list[dict[str, Any]] = [
        {"update": n, "losses": {"loss": 1 / n}, "learning_rate": 3e-5} for n in range(1, 9)
    ]
    entries += [{"update": n, "evaluation": {"loss": loss}} for n, loss in ((2, 0.5), (4, 0.3), (8, 0.6))]
    chart = loss_chart(trained(entries))
    assert chart is not None
    assert "learning by heart" in chart.reading
    assert "peaked at 3e-05" in chart.reading
    assert len(shapes(chart, "rect")) == 0
    assert len(shapes(chart, "polygon", "mark c1")) == 3


def test_the_best_score_is_named() -> None:
    entries = [{"update": n, "evaluation": {"accuracy": score}} for n, score in ((10, 0.5), (20, 0.9), (30, 0.8))]
    chart = score_chart(trained(entries))
    assert chart is not None
    assert chart.reading == "The best accuracy was 90.0\u00a0%, after update 20 of 30."
    rising = score_chart(trained(entries[:2]))
    assert rising is not None
    assert rising.reading.endswith("after update 20 (the last one measured).")
    errors = [{"update": n, "evaluation": {"mse": score}} for n, score in ((10, 0.5), (20, 0.9))]
    lower = score_chart(replace(trained(errors), scores={}))
    assert lower is not None
    assert "The best MSE was 0.500, after update 10" in lower.reading


def test_shares_and_other_numbers_do_not_share_an_axis() -> None:
    entries = [{"update": n, "evaluation": {"perplexity": 900.0, "accuracy": 0.5}} for n in (1, 2)]
    chart = score_chart(trained(entries))
    assert chart is not None
    assert [name for _, name in chart.legend] == ["accuracy"]


@pytest.mark.parametrize(
    "entries",
    [[], [{"update": 1, "losses": {"loss": None}}], [{"update": "x", "losses": {"loss": 1.0}}], [{"losses": 3}]],
)
def test_nothing_to_draw(entries: list[dict[str, Any]]) -> None:
    assert loss_chart(trained(entries)) is None
    assert score_chart(trained(entries)) is None


def test_a_long_run_is_drawn_with_few_points() -> None:
    chart = loss_chart(trained([{"update": n, "losses": {"loss": 1 + n % 7}} for n in range(1, 20_000)]))
    assert all(len(points(line["d"])) <= 300 for line in shapes(chart, "path"))
