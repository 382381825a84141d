"""What was tried and what came of it: compress.json, and one HTML page with the Pareto plot that needs nothing else."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Sequence
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from unmask.storage import atomic_write

if TYPE_CHECKING:
    from unmask.compress.run import Attempt, Outcome

REPORT, FIGURES, CARD = "report.html", "compress.json", "README.md"
_KEPT, _REFUSED, _BEFORE = "#0f766e", "#b91c1c", "#1f2937"


def write_report(outcome: Outcome, folder: Path) -> None:
    """Write the page, the figures and the model's card into a folder."""
    atomic_write(folder / FIGURES, (json.dumps(outcome.as_json(), indent=1, ensure_ascii=False) + "\n").encode())
    atomic_write(folder / REPORT, page(outcome).encode())
    atomic_write(folder / CARD, card(outcome).encode())


def page(outcome: Outcome) -> str:
    """The report as a text."""
    picture = base64.b64encode(pareto(outcome)).decode()
    return (
        _pages()
        .get_template("compress.html")
        .render(
            outcome=outcome,
            before=outcome.attempts[0],
            picture=f"data:image/svg+xml;base64,{picture}",
            style=Markup(_part("compress.css")),
            environment=outcome.as_json()["environment"],
            version=metadata.version("unmask"),
        )
    )


def pareto(outcome: Outcome) -> bytes:
    """Score against size, and against throughput, of all attempts, as SVG; those that nothing beats are joined."""
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context({"svg.fonttype": "path", "svg.hashsalt": "unmask", "font.size": 9}):
        figure = Figure(figsize=(10.5, 4.2))
        left, right = figure.subplots(1, 2, sharey=True)
        first = outcome.attempts[0]
        rate = first.speeds[0].texts_per_second
        _panel(left, outcome, [one.bytes / 1e6 for one in outcome.attempts], outcome.bytes_before / 1e6, least=True)
        _panel(right, outcome, [rate * one.times_as_fast for one in outcome.attempts], rate, least=False)
        left.set_xlabel("size on disk, MB (less is better)")
        right.set_xlabel("texts per second (more is better)")
        left.set_ylabel(f"{first.verdict.metric}, points")
        for axis in (left, right):
            axis.set_xlim(left=0)
            axis.spines[["top", "right"]].set_visible(False)
            axis.grid(alpha=0.25)
        right.legend(loc="lower left", fontsize=8, framealpha=0.9)
        figure.tight_layout()
        content = io.BytesIO()
        figure.savefig(content, format="svg", metadata={"Date": None})
    return content.getvalue()


def _panel(axis: Any, outcome: Outcome, places: Sequence[float], before: float, *, least: bool) -> None:
    """One panel: the model as it was, the contract, every attempt by its number with the interval of its loss."""
    verdict = outcome.attempts[0].verdict
    start = 100 * verdict.before
    axis.axhline(start - verdict.contract.max_drop, color=_REFUSED, linestyle="--", linewidth=1, label="the contract")
    axis.plot([before], [start], "D", color=_BEFORE, markersize=7, label="as it was", zorder=4)
    for kept, colour, style, label in ((True, _KEPT, "o", "kept"), (False, _REFUSED, "X", "refused")):
        chosen = [(x, one) for x, one in zip(places, outcome.attempts, strict=True) if one.verdict.kept == kept]
        if not chosen:
            continue
        scores = [start - one.verdict.drop for _, one in chosen]
        bounds = [start - end for _, one in chosen for end in one.verdict.interval]
        low = [max(0.0, y - bounds[2 * number + 1]) for number, y in enumerate(scores)]
        high = [max(0.0, bounds[2 * number] - y) for number, y in enumerate(scores)]
        axis.errorbar(
            [x for x, _ in chosen], scores, yerr=[low, high], fmt=style, color=colour, label=label, markersize=7,
            elinewidth=1, ecolor=colour + "66", zorder=3,
        )  # fmt: skip
    for number, (x, one) in enumerate(zip(places, outcome.attempts, strict=True), start=1):
        taken = one is outcome.best
        axis.annotate(
            f"{number}{' ★' if taken else ''}", (x, start - one.verdict.drop),
            xytext=(6, 5 if number % 2 else -12), textcoords="offset points", weight="bold" if taken else "normal",
        )  # fmt: skip
    line = front([(x, start - one.verdict.drop) for x, one in zip(places, outcome.attempts, strict=True)], least=least)
    axis.plot([x for x, _ in line], [y for _, y in line], color=_KEPT, linewidth=1, alpha=0.6, zorder=2)


def front(points: Sequence[tuple[float, float]], *, least: bool) -> list[tuple[float, float]]:
    """Those points that no other beats in both: smaller (or, not `least`, larger) and higher."""
    sign = 1 if least else -1
    beaten = {
        one
        for one in points
        for other in points
        if other != one and sign * other[0] <= sign * one[0] and other[1] >= one[1]
    }
    return sorted(set(points) - beaten)


def card(outcome: Outcome) -> str:
    """README.md of the smaller model."""
    best = outcome.best
    assert best is not None
    verdict = best.verdict
    lines = [
        f"# {Path(outcome.request.model).name}, made smaller",
        "",
        f"Made from `{outcome.request.model}` by `unmask compress`: {best.name}.",
        "",
        "| | before | now |",
        "|---|---|---|",
        f"| size on disk | {outcome.bytes_before / 1e6:.1f} MB | {best.bytes / 1e6:.1f} MB |",
        f"| parameters | {outcome.parameters_before:,} | {best.parameters:,} |",
        f"| texts per second | {best.speeds[0].texts_per_second:,.0f} ({best.speeds[0].engine}) "
        f"| {best.speeds[1].texts_per_second:,.0f} ({best.speeds[1].engine}) |",
        f"| {verdict.metric} | {100 * verdict.before:.2f} | {100 * verdict.after:.2f} |",
        "",
        f"On `{Path(outcome.request.data.file).name}` it {verdict.sentence}.",
        "",
        *_usage(best),
    ]
    return "\n".join(lines) + "\n"


def _usage(best: Attempt) -> list[str]:
    engine = " --engine int8" if best.storage == "int8" else ""
    lines = [f"`unmask predict FOLDER texts.txt{engine}`; all that was tried is in [{REPORT}]({REPORT})."]
    if best.storage == "int8" or best.pieces.model.settings.heads_by_layer is not None:
        lines += ["", "`transformers` cannot build this model: it has int8 weights, or layers with fewer heads."]
    return lines


@cache
def _pages() -> Environment:
    loader = PackageLoader("unmask.compress")
    return Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)


def _part(name: str) -> str:
    return (Path(__file__).parent / "templates" / name).read_text(encoding="utf-8")
