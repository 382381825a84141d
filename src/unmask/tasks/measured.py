"""Evaluations on disk: a report folder for a model and a file, and what a run folder keeps."""

from __future__ import annotations

from pathlib import Path

from unmask.errors import UserError
from unmask.models.bert import Bert, num_parameters
from unmask.models.huggingface import needs_own_heads
from unmask.report.outcome import DataFacts, Evaluation, ModelFacts, read_evaluation, write_evaluation
from unmask.report.page import write_report
from unmask.storage import new_folder
from unmask.tasks.finetune import EVALUATION, REPORT, sha256_of
from unmask.tasks.runs import MODEL
from unmask.tasks.scoring import Scored


def evaluation_of(found: Scored, model: Bert, name: str, file: str) -> Evaluation:
    """Scores with where they come from."""
    read = found.usage.long_text.read_at_once(model.settings.max_length)
    own = needs_own_heads(model.settings)
    facts = ModelFacts(name=name, parameters=num_parameters(model), max_length=read, own_head=own)
    return Evaluation(
        task=found.usage.task,
        problem=found.problem,
        model=facts,
        data=(DataFacts("test", file, len(found.outcomes), sha256=sha256_of(file)),),
        settings={},
        scores=found.scores,
        labels=found.labels,
        confusion=found.confusion,
        table=found.table,
        outcomes=found.outcomes,
    )


def write_evaluated(evaluation: Evaluation, folder: Path, *, overwrite: bool = False) -> None:
    """A folder with the report and all figures, complete or not at all."""
    with new_folder(folder, overwrite=overwrite) as draft:
        write_evaluation(evaluation, draft / EVALUATION)
        write_report(evaluation, draft / REPORT)


def stored_evaluation(place: Path) -> Evaluation:
    """What was measured in a run (or for a model in it), or is kept in a file."""
    candidates = [place, place / EVALUATION]
    if place.name == MODEL:
        candidates.append(place.parent / EVALUATION)
    found = next((path for path in candidates if path.is_file()), None)
    if found is None:
        raise UserError(f"{place}: no {EVALUATION} there, so nothing was measured; measure both now: add --data FILE")
    return read_evaluation(found)
