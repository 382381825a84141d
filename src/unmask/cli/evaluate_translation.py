"""How `unmask evaluate` measures a translator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from json import dumps
from pathlib import Path
from typing import Any

from unmask.cli import console
from unmask.cli.translate import translator_of


def evaluate_translator(
    model: str, files: Sequence[str], given: Mapping[str, Any], out: Path | None, *, overwrite: bool, json: bool
) -> None:
    """Measure a translator on pairs of sentences."""
    from unmask.data.parallel import read_pairs
    from unmask.tasks.translate_evaluate import evaluate_translations

    pairs = read_pairs(files, columns=given["columns"], swap=given["swap"], encoding=given["encoding"])
    for sentence in pairs.said:
        console.say(sentence)
    translator = translator_of(model, given["engine"])
    changes = {name: value for name, value in given["search"].items() if value is not None}
    with console.counting("pairs"):
        found = evaluate_translations(
            translator,
            list(pairs),
            translator.usage.decode.replace(**changes),
            tokenize=given["tokenize"],
            lowercase=given["lowercase"],
        )
    if out is not None:
        _write(found, out, overwrite)
    if json:
        console.print_json(found.as_json())
    else:
        _show(found)


def _write(found: Any, out: Path, overwrite: bool) -> None:
    """Figures, and the translations themselves."""
    from unmask.storage import atomic_write, new_folder

    with new_folder(out, overwrite=overwrite) as draft:
        atomic_write(draft / "translations.txt", "".join(line + "\n" for line in found.translations).encode())
        figures = dumps(found.as_json(), indent=1, ensure_ascii=False)
        atomic_write(draft / "evaluation.json", (figures + "\n").encode())


def _show(found: Any) -> None:
    scores = found.scores
    low, high = scores.bleu_interval.low, scores.bleu_interval.high
    rows = [
        ("BLEU", f"{scores.bleu:.2f}", f"{low:.2f} to {high:.2f}", scores.bleu_signature),
        ("chrF", f"{scores.chrf:.2f}", "–", scores.chrf_signature),
        ("perplexity", "–" if found.perplexity is None else f"{found.perplexity:.3f}", "–", "of a reference's token"),
        ("length ratio", f"{scores.length_ratio:.3f}", "–", f"brevity penalty {scores.brevity_penalty:.3f}"),
    ]
    console.print_table(["score", "value", "95 % interval", "how"], rows, title=f"{scores.n:,} pairs")
    buckets = [
        (
            bucket.name,
            bucket.n,
            "–" if bucket.scores is None else f"{bucket.scores.bleu:.2f}",
            "few sentences: means little" if bucket.small else "",
        )
        for bucket in found.lengths
    ]
    console.print_table(["source tokens", "pairs", "BLEU", ""], buckets)
    if found.unread:
        console.say(f"perplexity leaves out {found.unread:,} pairs longer than the model reads")
    if found.split:
        console.say(f"{found.split:,} sources were split into sentences first")
