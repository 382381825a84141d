"""The model card of a pre-trained model: what it was made of, how it did, where its limits are."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from unmask.tasks.pretrain_settings import PretrainSettings
from unmask.train.record import METRICS, read_entries, training_seconds, training_tokens


def pretrain_card(run: Path, settings: PretrainSettings, inputs: Mapping[str, Any], parameters: int) -> str:
    """Markdown, from what the run folder says."""
    evaluations = [entry for entry in read_entries(run / METRICS) if "evaluation" in entry]
    best = min(evaluations, key=_loss, default=None)
    masking, pairs = settings.masking, settings.pairs
    stages = "; ".join(f"{stage.updates:,} updates of {stage.length} tokens" for stage in settings.stages)
    names = ", ".join(Path(name).name for name in inputs["text"]) or Path(inputs["corpus"] or "").name
    start = inputs["start"]
    title = f"{Path(start).name}, pre-trained further" if start else f"BERT-{settings.model.size}, pre-trained"
    lines = [
        f"# {title} with unmask",
        "",
        f"- **Model**: BERT with {parameters:,} parameters, heads: {', '.join(head.kind for head in settings.heads)}",
        f"- **Data**: {names}",
        f"- **Objective**: MLM, {masking.rate:.0%} of tokens by {masking.unit} "
        f"({masking.mask:.0%} masked, {masking.random:.0%} random, {masking.keep:.0%} kept); pairs: {pairs.objective}",
        f"- **Training**: {stages}; {training_tokens(run):,} tokens in {training_seconds(run) / 60:.0f} minutes",
        *([f"- **Started from**: {start}"] if start else []),
        *([f"- **Vocabulary**: up to {inputs['extend']:,} frequent words were added"] if inputs["extend"] else []),
        "",
    ]
    if best is not None:
        lines += [f"Held-out text (one document in {settings.held_out}), after update {best['update']:,}:", ""]
        lines += ["| measure | value |", "|---|---|"]
        lines += [f"| {name} | {_shown(value)} |" for name, value in best["evaluation"].items()]
        lines += [
            "",
            "| update | " + " | ".join(best["evaluation"]) + " |",
            "|---" * (1 + len(best["evaluation"])) + "|",
        ]
        lines += [_row(entry) for entry in _some(evaluations)]
        lines.append("")
    lines += [
        "## Limits",
        "",
        "It knows what its text says, errors and prejudice included, and nothing later. It guesses words; what it says "
        "is not knowledge. It was measured on text of the same kind only.",
        "",
    ]
    return "\n".join(lines)


def _row(entry: Mapping[str, Any]) -> str:
    return f"| {entry['update']:,} | " + " | ".join(map(_shown, entry["evaluation"].values())) + " |"


def _shown(value: float | None) -> str:
    """A value; one that was no number is written down as None."""
    return "–" if value is None else f"{value:.4f}"


def _loss(entry: Mapping[str, Any]) -> float:
    loss = entry["evaluation"]["mlm_loss"]
    return float("inf") if loss is None else float(loss)


def _some(entries: list[dict[str, Any]], most: int = 16) -> list[dict[str, Any]]:
    """At most so many of them, evenly spread, the last included."""
    step = -(-len(entries) // most)
    return entries[::-1][::step][::-1]
