"""What not to rely on, in sentences made from the numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from unmask.metrics.calibration import expected_calibration_error
from unmask.report.letters import cut
from unmask.report.numbers import (
    called,
    confidences,
    is_share,
    percent,
)
from unmask.report.outcome import Evaluation, TextOutcome

_SMALL = 30  # examples of a label below which its scores are mostly luck
_NAMED = 5


def limits(evaluation: Evaluation) -> list[str]:
    """Each a sentence or two that someone who wants to use the model should know."""
    found = [
        *_precision(evaluation),
        *_chosen(evaluation),
        *_guessing(evaluation),
        *_small_labels(evaluation),
        *_weak_labels(evaluation),
        *_confidence(evaluation),
        *_reading(evaluation),
    ]
    return found or ["Nothing was measured, so nothing is known."]


def _precision(evaluation: Evaluation) -> list[str]:
    if not evaluation.scores:
        return []
    name, score = next(iter(evaluation.scores.items()))
    if score.value is None or score.low is None or score.high is None:
        return [f"This file gives no value for {called(name)}."]
    half = (score.high - score.low) / 2
    within = f"{100 * half:.1f} points" if is_share(name, score.value) else f"{half:.2g}"
    facts = evaluation.measured
    file = f"The {facts.role} set of {score.n:,}" if facts else f"A set of {score.n:,}"
    if half == 0:
        return [f"{file} cannot say how far {called(name)} may be off: drawn again from itself, it gives the same."]
    said = f"{file} measures {called(name)} to ±{within}"
    return [f"{said}. A model that differs by less is not shown to be better or worse."]


def _chosen(evaluation: Evaluation) -> list[str]:
    facts = evaluation.measured
    evaluations = sum("evaluation" in entry for entry in evaluation.curve)
    if facts is None or facts.role != "dev" or evaluations < 2:
        return []
    said = f"The dev set was looked at {evaluations} times during training"
    return [f"{said}, and may have chosen the model: on fresh texts expect a little less."]


def _guessing(evaluation: Evaluation) -> list[str]:
    if evaluation.problem != "single" or "accuracy" not in evaluation.scores:
        return []
    labels = [outcome.gold for outcome in evaluation.outcomes if isinstance(outcome, TextOutcome)]
    if not labels:
        return []
    label, count = Counter(labels).most_common(1)[0]
    said = f"Saying {cut(str(label), 30)} every time would be right for {percent(count / len(labels))}"
    return [f"{said}; accuracy has to be seen against that."]


def _small_labels(evaluation: Evaluation) -> list[str]:
    none = [row.label for row in evaluation.table if not row.support]
    unseen = [f"Not measured, for the file has none of them: {_names(none)}."] if none else []
    small = [row.label for row in evaluation.table if 0 < row.support < _SMALL]
    if not small:
        return unseen
    counted = f"{len(small)} of {len(evaluation.table)} labels have" if len(small) > 1 else "One label has"
    theirs = "their scores are" if len(small) > 1 else "its score is"
    return [f"{counted} fewer than {_SMALL} examples here ({_names(small)}): {theirs} mostly luck.", *unseen]


def _weak_labels(evaluation: Evaluation) -> list[str]:
    rows = [row for row in evaluation.table if row.support]
    if len(rows) < 3:
        return []
    middle = sorted(row.f1 for row in rows)[len(rows) // 2]
    weak = sorted((row for row in rows if row.f1 < 0.75 * middle), key=lambda row: row.f1)
    if not weak:
        return []
    named = ", ".join(f"{cut(row.label, 30)} {percent(row.f1)}" for row in weak[:_NAMED])
    more = f" and {len(weak) - _NAMED} more" if len(weak) > _NAMED else ""
    return [f"Found far worse than the rest, by F1: {named}{more}; the middle label has {percent(middle)}."]


def _confidence(evaluation: Evaluation) -> list[str]:
    sure, right = confidences(evaluation.outcomes)
    if len(sure) < 100:
        return []
    error, excess = expected_calibration_error(sure, right), float(sure.mean() - right.mean())
    if error < 0.03 or excess < 0.5 * error:
        return []
    said = f"It is too sure of itself: on average it claims {percent(float(sure.mean()))}"
    return [f"{said} and is right for {percent(float(right.mean()))}. Choose thresholds on your own texts."]


def _reading(evaluation: Evaluation) -> list[str]:
    total = len(evaluation.outcomes)
    if not total:
        return []
    cut_ones = [outcome.coverage for outcome in evaluation.outcomes if outcome.coverage < 1]
    windows = sum(outcome.windows > 1 for outcome in evaluation.outcomes)
    found = []
    if cut_ones:
        were, share = _texts(len(cut_ones)), percent(sum(cut_ones) / len(cut_ones), 0)
        found.append(f"{were} too long and read in part, of {total:,}: on average {share} of each.")
    if windows:
        found.append(f"{_texts(windows)} read in several windows whose answers were joined, of {total:,}.")
    known = [outcome.tokens for outcome in evaluation.outcomes if outcome.tokens]
    if known and not cut_ones:
        found.append(f"All texts were read whole; the longest has {max(known):,} tokens. Longer ones were not tested.")
    return found


def _texts(count: int) -> str:
    return "1 text was" if count == 1 else f"{count:,} texts were"


def _names(labels: Sequence[str]) -> str:
    few = ", ".join(cut(label, 30) for label in labels[:_NAMED])
    return few + (f" and {len(labels) - _NAMED} more" if len(labels) > _NAMED else "")
