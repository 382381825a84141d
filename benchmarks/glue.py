"""Four tasks of GLUE with MiniLM: ours beside a loop around `transformers` with the same settings.

    UNMASK_DATA=folder python benchmarks/glue.py [--seeds 3] [--only MRPC RTE] [--out results.json]

MRPC, STS-B, CoLA and RTE. Measured on the development sets, where the best epoch is chosen too, by both sides alike
(CoLA by accuracy); the last epoch is shown beside it. Batch 32, rate 1e-4, 3 epochs, 10 % warm-up, decay 0.01.
SST-2 whole is a run of its own: `unmask train classify --config sst2-minilm`.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from common import data_folder
from finetune_common import (
    BATCH,
    Found,
    Recipe,
    Results,
    Row,
    Run,
    across,
    loop_settings,
    parser,
    shuffled,
    tabbed,
    table,
    train_peer,
    write_rows,
)
from unmask.models.fetch import fetch
from unmask.tasks.finetune_settings import ClassifyRun, Files

RATE = 1e-4
EPOCHS = 3


@dataclass(frozen=True)
class Task:
    """Where texts and labels stand in a task's files, and what it is measured by."""

    first: int
    second: int | None
    label: int
    score: str = "accuracy"
    header: bool = True

    @property
    def regression(self) -> bool:
        return self.score == "pearson"

    @property
    def chosen_by(self) -> str:
        """What epochs are compared by."""
        return "pearson" if self.regression else "accuracy"


TASKS = {
    "MRPC": Task(3, 4, 0),
    "RTE": Task(1, 2, 3),
    "STS-B": Task(7, 8, 9, "pearson"),
    "CoLA": Task(3, None, 1, "mcc", header=False),
}


def read(name: str, part: str) -> list[Row]:
    task, rows = TASKS[name], []
    for cells in tabbed(data_folder() / "glue" / name / f"{part}.tsv", header=task.header):
        if len(cells) <= max(task.first, task.second or 0, task.label):
            continue
        label: Any = float(cells[task.label]) if task.regression else cells[task.label]
        row = {"text": cells[task.first], "label": label}
        rows.append(row if task.second is None else row | {"pair": cells[task.second]})
    return rows


def ours(name: str, parts: dict[str, list[Row]], seed: int, epochs: int) -> Found:
    task = TASKS[name]
    with tempfile.TemporaryDirectory() as spare:
        paths = {part: str(write_rows(rows, Path(spare) / f"{part}.jsonl")) for part, rows in parts.items()}
        columns = "text=text,label=label" + ("" if task.second is None else ",pair=pair")
        files = Files(model="minilm", train=paths["train"], dev=paths["dev"], columns=columns)
        problem: Any = "regression" if task.regression else "single"
        return Run(ClassifyRun(problem=problem, epochs=epochs, seed=seed, train=loop_settings(RATE)), files).go()


def peer(name: str, parts: dict[str, list[Row]], seed: int, epochs: int) -> Found:
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    task, folder = TASKS[name], str(fetch("minilm"))
    labels = [] if task.regression else sorted({row["label"] for row in parts["train"]})
    tokenizer = AutoTokenizer.from_pretrained(folder)
    encoded = {part: _encoded(tokenizer, rows, labels) for part, rows in parts.items()}
    torch.manual_seed(seed)
    options: dict[str, Any] = {"num_labels": len(labels) or 1}
    if task.regression:
        options["problem_type"] = "regression"
    model = AutoModelForSequenceClassification.from_pretrained(folder, **options)

    def padded(examples: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        return dict(tokenizer.pad(examples, return_tensors="pt"))

    def measure() -> dict[str, float]:
        rows, found = encoded["dev"], []
        for start in range(0, len(rows), 64):
            found.append(model(**padded(rows[start : start + 64])).logits.float().numpy())
        return _scores(np.concatenate(found), np.array([row["labels"] for row in rows]), task)

    train = encoded["train"]
    recipe = Recipe(epochs, RATE, -(-len(train) // BATCH), seed, task.chosen_by)
    batches: Callable[[int], Any] = lambda epoch: (  # noqa: E731
        padded([train[number] for number in numbers]) for numbers in shuffled(len(train), seed, epoch)
    )
    return train_peer(model, recipe, batches, measure)


def _encoded(tokenizer: Any, rows: list[Row], labels: list[str]) -> list[dict[str, Any]]:
    texts = [[row["text"] for row in rows]]
    if "pair" in rows[0]:
        texts.append([row["pair"] for row in rows])
    found = tokenizer(*texts, truncation=True, max_length=512)
    targets = [labels.index(row["label"]) if labels else row["label"] for row in rows]
    return [{name: found[name][i] for name in found} | {"labels": targets[i]} for i in range(len(rows))]


def _scores(logits: Any, gold: Any, task: Task) -> dict[str, float]:
    from scipy.stats import pearsonr, spearmanr
    from sklearn.metrics import accuracy_score, matthews_corrcoef

    if task.regression:
        said = logits[:, 0]
        return {"pearson": float(pearsonr(gold, said)[0]), "spearman": float(spearmanr(gold, said)[0])}
    said = logits.argmax(-1)
    return {"accuracy": float(accuracy_score(gold, said)), "mcc": float(matthews_corrcoef(gold, said))}


def compared(name: str, options: argparse.Namespace, results: Results) -> list[dict[str, object]]:
    task = TASKS[name]
    parts = {part: read(name, part) for part in ("train", "dev")}
    if options.quick:
        parts = {part: rows[:40] for part, rows in parts.items()}
    epochs = 1 if options.quick else EPOCHS
    rows = []
    for who, train in (("ours", ours), ("transformers", peer)):
        runs = [
            results.get(f"{name}, {who}, rate {RATE}, seed {s}", lambda s=s, run=train: run(name, parts, s, epochs))  # type: ignore[misc]
            for s in range(options.seeds)
        ]
        rows.append(_row(name, who, task, runs))
    return rows


def _row(name: str, who: str, task: Task, runs: list[Found]) -> dict[str, object]:
    minutes = sum(run["train_seconds"] for run in runs) / len(runs) / 60
    return {
        "task": name,
        "who": who,
        "score": task.score,
        "best epoch": across(runs, task.score),
        "last epoch": across(runs, task.score, "last"),
        "seeds": len(runs),
        "training (min)": f"{minutes:.1f}",
    }


def main() -> None:
    made = parser(__doc__)
    made.add_argument("--only", nargs="+", choices=list(TASKS), default=list(TASKS))
    options = made.parse_args()
    if options.quick:
        options.seeds = 1
    results = Results(options)
    rows = []
    for name in options.only:
        found = compared(name, options, results)
        table(f"{name}, development set", found, options)
        rows += found
    table("GLUE with MiniLM, mean over seeds (95 % interval; for one seed that of its examples)", rows, options)


if __name__ == "__main__":
    main()
