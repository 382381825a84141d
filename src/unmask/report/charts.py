"""The charts of an evaluation: how sure it was, how long the texts were, how far numbers were off."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from markupsafe import Markup

from unmask.metrics.calibration import expected_calibration_error
from unmask.report.numbers import (
    Bin,
    Numbers,
    by_confidence,
    by_length,
    confidences,
    numbers_of,
    percent,
    score_name,
    written,
)
from unmask.report.outcome import Evaluation, TextOutcome
from unmask.report.svg import Axis, Chart, across, counted, frame, line, mark, picture, steps, tag, upward, words

_MAX_DOTS = 600  # of a scatter: more would hide each other
_ENOUGH = 20  # confidences that a diagram needs


def strip(value: float | None, low: float | None, high: float | None) -> Markup:
    """A share with its interval as a small line from 0 to 100 %."""
    if value is None or not 0 <= value <= 1:
        return Markup("")
    axis = Axis(0, 1, 5, 155, "")
    parts = [line(5, 9, 155, 9, "track")]
    said = percent(value)
    if low is not None and high is not None:
        left, end = axis.at(low), axis.at(high)
        parts.append(tag("rect", {"x": left, "y": 4, "width": max(end - left, 1.0), "height": 10, "class": "band"}))
        said = f"{said}, interval {percent(low)} to {percent(high)}"
    parts.append(line(axis.at(value), 2, axis.at(value), 16, "needle"))
    about = {"viewBox": "0 0 160 18", "width": 160, "height": 18, "role": "img", "class": "strip"}
    return tag("svg", about, tag("title", {}, said), *parts)


def bar(value: float) -> Markup:
    """A share as a small bar from 0 to 100 %."""
    about = {"viewBox": "0 0 120 10", "width": 120, "height": 10, "role": "img", "class": "strip"}
    full = tag("rect", {"x": 0, "y": 3, "width": 120, "height": 4, "class": "bar-track", "rx": 2})
    part = tag("rect", {"x": 0, "y": 3, "width": 120.0 * min(max(value, 0), 1), "height": 4, "class": "bar", "rx": 2})
    return tag("svg", about, tag("title", {}, percent(value)), full, part)


def calibration_chart(evaluation: Evaluation) -> Chart | None:
    """How often the model is right when it says how sure it is."""
    sure, right = confidences(evaluation.outcomes)
    if len(sure) < _ENOUGH:
        return None
    bins, error = by_confidence(sure, right), expected_calibration_error(sure, right)
    floor = 0.5 if float(sure.min()) >= 0.5 else 0.0
    marks = [(value, f"{100 * value:.0f}") for value in np.linspace(floor, 1, 6).tolist()]
    x = across(floor, 1, "confidence, %", marks)
    lowest = min(floor, *(bin.score.value for bin in bins))
    y = _percent_axis(lowest, 1, "right, %")
    parts = frame(x, y)
    tallest = max(bin.score.n for bin in bins)
    for bin in bins:  # how many there are, on the ground
        left, end = x.at(bin.low) + 1, x.at(bin.high) - 1
        height = 40.0 * bin.score.n / tallest
        parts.append(
            tag("rect", {"x": left, "y": y.start - height, "width": end - left, "height": height, "class": "ground"})
        )
    start = max(floor, y.low)
    parts.append(line(x.at(start), y.at(start), x.at(1), y.at(1), "ideal"))
    for bin in bins:
        about = f"{bin.score.n:,} at {percent(bin.low, 0)} to {percent(bin.high, 0)}: {percent(bin.score.value)} right"
        parts += _whiskered(x.at(bin.middle), y, bin, about)
    title = "Can its confidence be trusted?"
    excess = float(sure.mean() - right.mean())
    if error < 0.03:
        said = "its confidence can be read as a probability."
    elif abs(excess) < 0.5 * error:
        said = "it is too sure in some places and not sure enough in others."
    else:
        said = "it is surer than it should be." if excess > 0 else "it is right more often than it says."
    reading = f"On the dashed line it would be exactly as often right as it says. ECE {percent(error)}: {said}"
    legend = (("mark c0", "share right, 95 % interval"), ("swatch ground", f"how many (most: {tallest:,})"))
    return Chart(title, picture(title, reading, parts), reading, legend)


def length_chart(evaluation: Evaluation) -> Chart | None:
    """The score of short and of long texts."""
    bins = by_length(evaluation.outcomes)
    if not bins:
        return None
    name, regression = score_name(evaluation), evaluation.problem == "regression"
    x = across(0, len(bins), "tokens of the text", [])
    lows, highs = [bin.score.low for bin in bins], [bin.score.high for bin in bins]
    if regression:
        found = steps(0, max(highs))
        y = upward(0, found[-1], name, [(value, counted(value)) for value in found])
    else:
        y = _percent_axis(min(lows), max(highs), f"{name}, %")
    parts = frame(x, y)
    for number, bin in enumerate(bins):
        place = x.at(number + 0.5)
        parts.append(words(length_name(bin, number, len(bins)), place, y.start + 16))
        about = f"{bin.score.n:,} texts: {name} {written(name, bin.score.value)}"
        parts += _whiskered(place, y, bin, about)
    title = "Short and long texts"
    return Chart(title, picture(title, reading := _length_reading(bins, name), parts), reading)


def length_name(bin: Bin, number: int, count: int) -> str:
    """The bounds of a bin of lengths."""
    low, high = int(bin.low) + 1, int(bin.high)
    short = [f"{bound // 1024}k" if bound >= 2048 else str(bound) for bound in (low, high)]
    return f"{short[0]}–{short[1]}" if number > 0 and count <= 5 else f"to {short[1]}"


def scatter_chart(evaluation: Evaluation) -> Chart | None:
    """What the file says against what the model said."""
    gold, predicted = _pairs(evaluation)
    if not len(gold):
        return None
    low, high = float(min(gold.min(), predicted.min())), float(max(gold.max(), predicted.max()))
    high = high if high > low else low + 1
    marks = [(value, counted(round(value, 9))) for value in steps(low, high) if low <= value <= high]
    x, y = across(low, high, "in the file", marks), upward(low, high, "said by the model", marks)
    parts = [*frame(x, y), line(x.start, y.start, x.end, y.end, "ideal")]
    step = -(-len(gold) // _MAX_DOTS)
    for left, right in zip(gold[::step], predicted[::step], strict=True):
        parts.append(tag("circle", {"cx": x.at(left), "cy": y.at(right), "r": 2.4, "class": "speck"}))
    title = "What it said and what is so"
    shown = f" Shown: {len(gold[::step]):,} of {len(gold):,}." if step > 1 else ""
    slope = float(np.polyfit(gold, predicted, 1)[0]) if float(gold.std()) > 0 else 1.0
    said = "Its numbers shrink towards the middle." if slope < 0.8 else "Its numbers spread as those of the file do."
    reading = f"On the dashed line both agree. {said}{shown}"
    return Chart(title, picture(title, reading, parts), reading)


def residual_chart(evaluation: Evaluation) -> Chart | None:
    """How far it was off, and in which direction."""
    gold, predicted = _pairs(evaluation)
    if not len(gold):
        return None
    off = predicted - gold
    bound = float(np.abs(off).max()) or 1.0
    counts, edges = np.histogram(off, bins=25, range=(-bound, bound))
    marks = [(value, counted(round(value, 9))) for value in steps(-bound, bound, 6) if abs(value) <= bound]
    x = across(-bound, bound, "said minus in the file", marks)
    heights = steps(0, float(counts.max()), 4)
    y = upward(0, heights[-1], "texts", [(value, counted(value)) for value in heights if value == int(value)])
    parts = frame(x, y)
    for count, low, high in zip(counts.tolist(), edges, edges[1:], strict=False):
        left, end = x.at(float(low)) + 0.5, x.at(float(high)) - 0.5
        box = {"x": left, "y": y.at(count), "width": end - left, "height": y.start - y.at(count), "class": "column"}
        parts.append(tag("rect", box, tag("title", {}, f"{count:,} between {low:.3g} and {high:.3g}")))
    parts.append(line(x.at(0), y.start, x.at(0), y.end, "ideal"))
    title = "How far off"
    middle = float(off.mean())
    side = (
        "neither too high nor too low on average"
        if abs(middle) < 0.1 * float(off.std() or 1)
        else (f"{abs(middle):.2g} too {'high' if middle > 0 else 'low'} on average")
    )
    near = float(np.quantile(np.abs(off), 0.9))
    reading = f"It is {side}. Nine of ten are off by at most {near:.2g}."
    return Chart(title, picture(title, reading, parts), reading)


def _pairs(evaluation: Evaluation) -> tuple[Numbers, Numbers]:
    texts = [outcome for outcome in evaluation.outcomes if isinstance(outcome, TextOutcome)]
    pairs = [pair for outcome in texts if all(map(math.isfinite, pair := numbers_of(outcome)))]
    both = np.array(pairs, dtype=np.float64).reshape(-1, 2)
    return both[:, 0], both[:, 1]


def _percent_axis(low: float, high: float, label: str) -> Axis:
    found = [value for value in steps(max(0.0, low), high, 5) if -1e-9 <= value <= 1 + 1e-9]
    return upward(found[0], max(found[-1], high), label, [(value, f"{100 * value:.4g}") for value in found])


def _whiskered(place: float, y: Axis, bin: Bin, about: str) -> list[Markup]:
    low, high = y.at(bin.score.low), y.at(bin.score.high)
    return [line(place, low, place, high, "whisker"), mark("circle", place, y.at(bin.score.value), "mark c0", about)]


def _length_reading(bins: Sequence[Bin], name: str) -> str:
    if len(bins) == 1:
        return "The texts are of one length, more or less; nothing can be said of others."
    first, last = bins[0].score, bins[-1].score
    said = f"{name[0].upper()}{name[1:]} is {written(name, first.value)} for the shortest and "
    said += f"{written(name, last.value)} for the longest."
    apart = first.high < last.low or last.high < first.low
    return said + ("" if apart else " The intervals overlap: the difference may be chance.")
