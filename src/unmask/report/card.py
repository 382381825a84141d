"""The model card of a fine-tuned model: README.md of its folder, readable by people and by model hubs."""

from __future__ import annotations

import json
import re
from typing import Any

from unmask.report.letters import visible
from unmask.report.limits import limits
from unmask.report.numbers import called, percent, span, written
from unmask.report.outcome import Evaluation
from unmask.report.page import duration

_TAGS = {"classify": "text-classification", "tag": "token-classification", "qa": "question-answering"}

_WHAT = {
    "single": "It says which of {labels} labels a text has.",
    "multi": "It says which of {labels} labels a text has: none, one or several.",
    "regression": "It gives a text, or a pair of texts, a number.",
    "entities": "It finds stretches of text of {labels} types.",
    "tags": "It gives each word one of {labels} tags.",
    "answers": "It finds the answer to a question in a text.",
}

_COMMANDS = {
    "classify": 'unmask predict . --text "A text"',
    "tag": 'unmask predict . --text "A text"',
    "qa": 'unmask predict . --question "Who?" --context "A text that tells."',
}

_PIPELINE = """from transformers import pipeline

ask = pipeline("{tag}", model="."{options})
print(ask("A text"))
"""
_OPTIONS = {
    "single": "",
    "multi": ', top_k=None, function_to_apply="sigmoid"',
    "regression": ', function_to_apply="none"',
    "entities": ', aggregation_strategy="simple"',
    "tags": "",
}
_QUESTION = """from transformers import AutoModelForQuestionAnswering, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained(".")
model = AutoModelForQuestionAnswering.from_pretrained(".")
inputs = tokenizer("Who?", "A text that tells.", return_tensors="pt")
found = model(**inputs)
start, end = int(found.start_logits.argmax()), int(found.end_logits.argmax())
print(tokenizer.decode(inputs["input_ids"][0, start : end + 1]))
"""

_OWN_HEAD = (
    "`transformers` loads its encoder (`AutoModel`), but has no head like this one: its ready-made classes would put a "
    "new, untrained one in its place, and say so."
)

_MAX_LABELS = 100
_MAX_SETTINGS = 8000  # characters
_MAX_NOTE = 1000
_SPECIAL = re.compile(r"([\\`*_\[\]|~$])")


def model_card(evaluation: Evaluation) -> str:
    """Markdown that says what the model is, how to use it, what it was made of, how good it is and where it is not."""
    parts = [
        _front_matter(evaluation),
        f"# {_plain(evaluation.model.name)}",
        _what(evaluation),
        "## Use",
        _use(evaluation),
        "## Scores",
        _scores(evaluation),
        "## Limits",
        "\n".join(f"- {_plain(limit)}" for limit in limits(evaluation)),
        "It learned from its file, errors and prejudice included. It was measured on texts of the same kind only.",
        _training(evaluation),
    ]
    return "\n\n".join(part.strip("\n") for part in parts if part) + "\n"


def _front_matter(evaluation: Evaluation) -> str:
    """What model hubs read. JSON is YAML, and needs no second way of quoting."""
    model, facts = evaluation.model, evaluation.measured
    found: dict[str, Any] = {}
    if model.language:
        found["language"] = list(model.language)
    found["license"] = model.license or "unknown"
    found["pipeline_tag"] = _TAGS[evaluation.task]
    if model.start:
        found["base_model"] = model.start
    found["library_name"] = "transformers"
    found["tags"] = ["unmask", "bert"]
    found["metrics"] = list(evaluation.scores)
    values = [
        {"type": name, "name": called(name), "value": round(score.value, 6)}
        for name, score in evaluation.scores.items()
        if score.value is not None
    ]
    if values and facts:
        kind = {"type": _TAGS[evaluation.task]}
        result = {"task": kind, "dataset": {"name": facts.file, "type": facts.file}, "metrics": values}
        found["model-index"] = [{"name": model.name, "results": [result]}]
    lines = (f"{key}: {visible(json.dumps(_visible(value), ensure_ascii=False))}" for key, value in found.items())
    return "\n".join(["---", *lines, "---"])


def _what(evaluation: Evaluation) -> str:
    model = evaluation.model
    labels = evaluation.labels or tuple(row.label for row in evaluation.table)
    said = [_WHAT[evaluation.problem].format(labels=len(labels) or "several")]
    if model.start:
        said.append(f"It was made from {_plain(model.start)} with unmask.")
    if model.parameters:
        said.append(f"It has {model.parameters:,} parameters.")
    if model.max_length:
        said.append(f"It reads {model.max_length:,} tokens at once.")
    shown = ", ".join(map(_plain, labels[:_MAX_LABELS]))
    more = f" and {len(labels) - _MAX_LABELS:,} more" if len(labels) > _MAX_LABELS else ""
    return " ".join(said) + (f"\n\nLabels: {shown}{more}." if labels else "")


def _use(evaluation: Evaluation) -> str:
    options = _OPTIONS.get(evaluation.problem, "")
    code = _QUESTION if evaluation.task == "qa" else _PIPELINE.format(tag=_TAGS[evaluation.task], options=options)
    pair = any(getattr(outcome, "pair", None) is not None for outcome in evaluation.outcomes[:1])
    if pair:
        code = code.replace('ask("A text")', 'ask({"text": "A text", "text_pair": "Another"})')
    second = ' --pair "Another"' if pair else ""
    command = f"In this folder:\n\n```bash\n{_COMMANDS[evaluation.task]}{second}\n```"
    if evaluation.model.own_head:
        return f"{command}\n\n{_OWN_HEAD}"
    other = f"With `transformers`, which joins no windows of long texts:\n\n```python\n{code}```"
    return f"{command}\n\n{other}"


def _scores(evaluation: Evaluation) -> str:
    facts = evaluation.measured
    where = f"Measured on {_plain(facts.file)} ({facts.examples:,} examples).\n\n" if facts else ""
    rows = [
        f"| {_plain(called(name))} | {written(name, score.value)} | {span(name, score.low, score.high)} | {score.n:,} |"
        for name, score in evaluation.scores.items()
    ]
    table = "\n".join(["| score | value | 95 % interval | n |", "|---|---|---|---|", *rows])
    found = [f"{where}{table}"]
    if evaluation.table:
        head = ["| label | precision | recall | F1 | in the file |", "|---|---|---|---|---|"]
        lines = [
            f"| {_plain(row.label)} | {percent(row.precision)} | {percent(row.recall)} | {percent(row.f1)} | "
            f"{row.support:,} |"
            for row in evaluation.table[:_MAX_LABELS]
        ]
        found.append("\n".join([*head, *lines]))
    return "\n\n".join(found)


def _training(evaluation: Evaluation) -> str:
    rows = [
        f"| {facts.role} | {_plain(facts.file)} | {facts.examples:,} | "
        f"{'–' if facts.tokens is None else f'{facts.tokens:,}'} | {_plain((facts.sha256 or '–')[:12])} |"
        for facts in evaluation.data
    ]
    found = []
    if rows:
        head = ["| used as | file | examples | tokens | sha256 |", "|---|---|---|---|---|"]
        found.append("\n".join([*head, *rows]))
    if evaluation.seconds is not None:
        found.append(f"Trained in {duration(evaluation.seconds)}.")
    if evaluation.notes:
        found.append("\n".join(f"- {_plain(note, _MAX_NOTE)}" for note in evaluation.notes))
    if evaluation.settings:
        text = visible(json.dumps(evaluation.settings, ensure_ascii=False, indent=2, default=str))
        if len(text) > _MAX_SETTINGS:
            text = text[:_MAX_SETTINGS] + "\n…"
        # A fence that nothing inside can close.
        fence = "`" * max(3, 1 + max((len(run) for run in re.findall("`+", text)), default=0))
        found.append(f"Settings:\n\n{fence}json\n{text}\n{fence}")
    return "\n\n".join(["## Data and training", *found]) if found else ""


def _plain(text: str, longest: int = 200) -> str:
    """A text that Markdown shows as it is, on one line."""
    line = " ".join(visible(text[:longest]).split())
    return _SPECIAL.sub(r"\\\1", line.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;"))


def _visible(value: Any) -> Any:
    if isinstance(value, str):
        return " ".join(visible(value).split())
    if isinstance(value, list):
        return [_visible(inner) for inner in value]
    if isinstance(value, dict):
        return {key: _visible(inner) for key, inner in value.items()}
    return value
