"""Which labels are taken for which."""

from __future__ import annotations

from markupsafe import Markup

from unmask.report.letters import cut, room
from unmask.report.numbers import percent
from unmask.report.outcome import Evaluation
from unmask.report.svg import WIDTH, Chart, line, picture, tag, words

MAX_LABELS = 30  # a larger matrix cannot be read
_PAIRS = 15
_LETTER = 6.4  # pixels, of the letters of a label


def confusion_chart(evaluation: Evaluation) -> Chart | None:
    """The confusion matrix; with many labels, the pairs that are confused most."""
    counts = evaluation.confusion
    if counts is None or not any(map(any, counts)):
        return None
    return _matrix(evaluation, counts) if len(counts) <= MAX_LABELS else _pairs(evaluation, counts)


def confused(evaluation: Evaluation) -> list[tuple[int, str, str, int]]:
    """How often, what is so, what was said, and of how many; the most frequent mistake first."""
    labels, counts = evaluation.labels, evaluation.confusion or ()
    found = [
        (count, labels[true], labels[said], sum(row))
        for true, row in enumerate(counts)
        for said, count in enumerate(row)
        if true != said and count
    ]
    return sorted(found, key=lambda pair: (-pair[0], pair[3], pair[1], pair[2]))


def _matrix(evaluation: Evaluation, counts: tuple[tuple[int, ...], ...]) -> Chart:
    labels, size = evaluation.labels, len(counts)
    names = [cut(label, 16) for label in labels]
    cell = 56.0 if size <= 4 else 44.0 if size <= 8 else 30.0
    left = 30 + _LETTER * max(map(room, names)) + 6
    upright = max(map(room, names)) * _LETTER > cell - 4
    top = 30 + (0.72 * _LETTER * max(map(room, names)) + 14 if upright else 20)
    # Slanted names of the last columns reach beyond the cells.
    width = left + size * cell + (0.72 * _LETTER * room(names[-1]) + 10 if upright else 10)
    parts: list[Markup] = []
    for true, row in enumerate(counts):
        y, total = top + true * cell, sum(row)
        parts.append(words(names[true], left - 8, y + cell / 2 + 4, "name", "end"))
        for said, count in enumerate(row):
            share = count / total if total else 0.0
            about = f"{labels[true]} taken for {labels[said]}: {count:,} of {total:,} ({percent(share)})"
            parts.append(_cell((left + said * cell, y, cell), count, share, true == said, about))
    for said, name in enumerate(names):
        x = left + said * cell + cell / 2
        if upright:
            place = {"transform": f"translate({x + 3:.1f} {top - 8:.1f}) rotate(-45)", "class": "name"}
            parts.append(tag("text", place, name))
        else:
            parts.append(words(name, x, top - 9, "name"))
    middle = top + size * cell / 2
    upward = {"transform": f"translate(12 {middle:.1f}) rotate(-90)", "class": "label axis-y", "text-anchor": "middle"}
    parts.append(tag("text", upward, "in the file"))
    parts.append(words("said by the model", left + size * cell / 2, 13, "label axis-x"))
    title, reading = "What it confuses", _reading(evaluation)
    legend = (("swatch good", "right"), ("swatch bad", "wrong; darker: a larger share of the row"))
    svg = picture(title, reading, parts, (max(width, 300.0), top + size * cell + 6))
    return Chart(title, svg, reading, legend, wide=size > 4)


def _cell(box: tuple[float, float, float], count: int, share: float, right: bool, about: str) -> Markup:
    x, y, size = box
    shade = (share if right else min(1.0, 2.5 * share)) * 0.9 if count else 0.0
    paint = {"class": "good" if right else "bad", "fill-opacity": f"{0.06 + shade:.2f}" if count else "0"}
    square = {"x": x + 1, "y": y + 1, "width": size - 2, "height": size - 2, "rx": 2}
    strong = " strong" if shade > 0.5 else ""
    shown = f"{count}" if count < 10_000 else f"{count / 1000:.0f}k"
    style = f"count{strong}{' small' if size < 40 else ''}"
    text = words(shown, x + size / 2, y + size / 2 + 4, style) if count else Markup("")
    return tag(
        "g",
        {},
        tag("title", {}, about),
        tag("rect", {**square, "class": "empty"}),
        tag("rect", {**square, **paint}),
        text,
    )


def _pairs(evaluation: Evaluation, counts: tuple[tuple[int, ...], ...]) -> Chart:
    worst = confused(evaluation)[:_PAIRS]
    row, top = 34.0, 28.0
    most = worst[0][0] if worst else 1
    bottom = top + row * max(len(worst), 1)
    parts = [words("in the file → said by the model", 0, 13, "label axis-y", "start")]
    parts.append(words("mistakes, of how many", WIDTH, 13, "label axis-x", "end"))
    parts.append(line(0, top - 6, WIDTH, top - 6, "grid"))
    for number, (count, true, said, total) in enumerate(worst):
        y = top + number * row
        about = f"{true} taken for {said}: {count:,} of {total:,}"
        parts.append(words(f"{cut(true, 22)} → {cut(said, 22)}", 0, y + 11, "name", "start"))
        parts.append(words(f"{count:,} of {total:,}", WIDTH, y + 11, "tick", "end"))
        bar = {"x": 0, "y": y + 17, "width": float(WIDTH) * count / most, "height": 5, "rx": 2, "class": "column bad"}
        parts.append(tag("rect", bar, tag("title", {}, about)))
    title = "What it confuses most"
    reading = f"{_reading(evaluation)} Shown are {len(worst)} pairs of {len(counts)} labels."
    return Chart(title, picture(title, reading, parts, (WIDTH, bottom)), reading)


def _reading(evaluation: Evaluation) -> str:
    worst = confused(evaluation)
    if not worst:
        return "Nothing was confused."
    count, true, said, total = worst[0]
    return f"The most frequent mistake: {cut(true, 30)} taken for {cut(said, 30)}, {count:,} of {total:,} times."
