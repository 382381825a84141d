"""The report: one HTML file that needs nothing else."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from unmask.report.charts import (
    bar,
    calibration_chart,
    length_chart,
    residual_chart,
    scatter_chart,
    strip,
)
from unmask.report.curves import loss_chart, score_chart
from unmask.report.letters import language, visible
from unmask.report.limits import limits
from unmask.report.matrix import confusion_chart
from unmask.report.mistakes import worst_mistakes, wrong
from unmask.report.numbers import Mean, by_length, called, is_share, mean, percent, score_name, span, written
from unmask.report.outcome import Evaluation, QuestionOutcome
from unmask.report.svg import Chart
from unmask.storage import atomic_write

_MAX_ROWS = 200  # labels of a table
_MAX_SETTINGS = 400  # lines of settings

_NAMES = {
    "single": "one label a text",
    "multi": "several labels a text",
    "regression": "a number a text",
    "entities": "entities in a text",
    "tags": "a tag for each word",
    "answers": "answers from a text",
}


def write_report(evaluation: Evaluation, path: Path) -> None:
    """Write the report of an evaluation; whoever opens it sees all of it or the one before."""
    atomic_write(Path(path), report_html(evaluation).encode())


def report_html(evaluation: Evaluation) -> str:
    """The report as a text. Only what is shown is in it, whatever the number of examples."""
    style, script = _part("report.css"), _part("report.js")
    facts = evaluation.measured
    page: dict[str, Any] = {
        "evaluation": evaluation,
        "facts": facts,
        "kind": _NAMES[evaluation.problem],
        "style": style,
        "script": script,
        "most": _MAX_SETTINGS,
        # Only this very script may run: a text that slipped through the escaping could not.
        "script_hash": base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        "title": visible(evaluation.model.name),
        "shares": any(is_share(name, score.value) for name, score in evaluation.scores.items() if score.value),
        "main": list(evaluation.scores.items())[:1],
        "limits": limits(evaluation),
        "answers": _answers(evaluation),
        "rows": evaluation.table[:_MAX_ROWS],
        "more_rows": max(0, len(evaluation.table) - _MAX_ROWS),
        "charts": _charts(evaluation),
        "lengths": by_length(evaluation.outcomes),
        "mistakes": worst_mistakes(evaluation),
        "wrong": sum(map(wrong, evaluation.outcomes)),
        "settings": _flat(evaluation.settings),
        "environment": _flat(evaluation.environment),
    }
    return _environment().get_template("report.html").render(page)


def _charts(evaluation: Evaluation) -> dict[str, list[Chart]]:
    """The charts of each section; those that the evaluation has nothing for are left out."""
    sections: dict[str, tuple[Callable[[Evaluation], Chart | None], ...]] = {
        "labels": (confusion_chart,),
        "numbers": (scatter_chart, residual_chart),
        "confidence": (calibration_chart,),
        "length": (length_chart,),
        "training": (loss_chart, score_chart),
    }
    if evaluation.problem != "regression":
        sections["numbers"] = ()
    return {
        name: [chart for draw in draws if (chart := draw(evaluation)) is not None] for name, draws in sections.items()
    }


def _answers(evaluation: Evaluation) -> list[tuple[str, Mean, Mean]]:
    """Exact match and F1 of questions with an answer and of those without; nothing if there is one kind only."""
    questions = [outcome for outcome in evaluation.outcomes if isinstance(outcome, QuestionOutcome)]
    groups = (
        ("with an answer", [outcome for outcome in questions if outcome.answers]),
        ("without an answer", [outcome for outcome in questions if not outcome.answers]),
    )
    return [
        (name, mean([outcome.exact for outcome in chosen]), mean([outcome.f1 for outcome in chosen]))
        for name, chosen in groups
        if chosen
    ]


def _flat(values: Mapping[str, Any], above: str = "") -> list[tuple[str, str]]:
    """Nested settings as lines `group.name`, value."""
    found: list[tuple[str, str]] = []
    for key, value in values.items():
        name = f"{above}{key}"
        if isinstance(value, Mapping) and value:
            found += _flat(value, f"{name}.")
        else:
            text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
            found.append((name, text if len(text) <= 300 else text[:299] + "…"))
    return found


def duration(seconds: float) -> str:
    """How long something took, in words."""
    if seconds < 90:
        return f"{seconds:.0f} seconds"
    minutes = seconds / 60
    return f"{minutes:.0f} minutes" if minutes < 90 else f"{minutes / 60:.1f} hours"


@cache
def _environment() -> Environment:
    made = Environment(
        loader=PackageLoader("unmask.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        # Control characters, which no page may hold, and halves of characters, which no file may.
        finalize=lambda value: visible(value) if isinstance(value, str) and not isinstance(value, Markup) else value,
    )
    made.globals |= {"strip": strip, "bar": bar, "percent": percent, "written": written, "span": span}
    made.globals |= {"is_share": is_share, "duration": duration, "score_name": score_name, "called": called}
    made.globals |= {"language": language}
    return made


@cache
def _part(name: str) -> Markup:
    """A style sheet or script of ours, which goes into the page as it is."""
    return Markup((Path(__file__).parent / "templates" / name).read_text(encoding="utf-8"))
