"""The model card of a translator: what it was made of, how it did, where its limits are."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from unmask.tasks.translate_settings import Texts, TranslateSettings
from unmask.train.record import METRICS, read_entries, training_seconds, training_tokens


def translate_card(
    run: Path, settings: TranslateSettings, texts: Texts, found: Mapping[str, float], parameters: int
) -> str:
    """Markdown, from what the run folder says."""
    shape = settings.model
    if settings.arch == "transformer":
        model = f"{shape.layers}+{shape.layers} layers of {shape.hidden}, {shape.heads} heads, ffn {shape.ffn}"
    else:
        model = f"{shape.lstm_layers}+{shape.lstm_layers} layers"
    evaluations = [entry for entry in read_entries(run / METRICS) if "evaluation" in entry]
    tied = {"all": "source, target and output tables are one", "target": "target and output tables are one"}
    lines = [
        f"# {run.resolve().name}: a translator made with unmask",
        "",
        f"- **Model**: {settings.arch}, {model}; {parameters:,} parameters"
        + (f"; {tied[shape.tie]}" if shape.tie in tied else ""),
        f"- **Data**: {', '.join(Path(name).name for name in texts.train)}" + (" (swapped)" if texts.swap else ""),
        f"- **Vocabulary**: {settings.vocabulary.kind}, up to {settings.vocabulary.size:,} tokens, "
        + ("joint" if settings.joint else "one for each language"),
        f"- **Training**: {settings.train.updates:,} updates of {settings.train.accumulate} × "
        f"{settings.batch_tokens:,} tokens at most, {training_tokens(run):,} target tokens in "
        f"{training_seconds(run) / 60:.0f} minutes; dropout "
        f"{shape.dropout}, label smoothing {settings.smoothing}, seed {settings.seed}",
        "",
        "On the development set, decoded "
        + ("greedily" if settings.evaluation_beam == 1 else f"with beam {settings.evaluation_beam}")
        + " (best single model or mean of checkpoints, chosen on this very set):",
        "",
        "| BLEU | loss of a token | perplexity |",
        "|---|---|---|",
        f"| {found['bleu']:.2f} | {found['loss']:.4f} | {found['perplexity']:.2f} |",
        "",
        "| update | BLEU | loss |",
        "|---|---|---|",
        *(
            f"| {entry['update']:,} | {_shown(entry['evaluation'].get('bleu'))} | "
            f"{_shown(entry['evaluation'].get('loss'))} |"
            for entry in evaluations[-16:]
        ),
        "",
        "## Limits",
        "",
        "It writes fluent sentences that may be wrong: names, numbers and negations deserve a look. It was measured on "
        "sentences like those it learned from, and other kinds of text will fare worse. Sentences longer than any it "
        "has learned from are split first, and the command says so.",
        "",
    ]
    return "\n".join(lines)


def _shown(value: float | None) -> str:
    return "–" if value is None else f"{value:.4f}"
