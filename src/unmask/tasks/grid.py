"""The table of settings that BERT's authors recommend to try, and what came of each."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from unmask.report.outcome import Evaluation
from unmask.storage import atomic_write, replacing
from unmask.tasks.finetune_settings import FinetuneSettings

BATCHES = (16, 32)
RATES = (5e-5, 3e-5, 2e-5)
EPOCHS = (3, 4)


@dataclass(frozen=True)
class Cell:
    """One combination and its score."""

    batch_size: int
    learning_rate: float
    epochs: int
    score: float
    low: float | None
    high: float | None
    folder: str


def grid(settings: FinetuneSettings) -> list[tuple[str, FinetuneSettings]]:
    """The names of all runs, and their settings."""
    found = []
    for batch, rate, epochs in itertools.product(BATCHES, RATES, EPOCHS):
        optimizer = settings.train.optimizer.replace(learning_rate=rate)
        changed = settings.replace(batch_size=batch, epochs=epochs, train=settings.train.replace(optimizer=optimizer))
        found.append((f"batch-{batch}-rate-{rate:.0e}-epochs-{epochs}".replace("e-0", "e-"), changed))
    return found


def cell(settings: FinetuneSettings, evaluation: Evaluation, folder: Path) -> Cell:
    """What came of one run."""
    score = next(iter(evaluation.scores.values()))
    value = float("nan") if score.value is None else score.value
    rate = settings.train.optimizer.learning_rate
    return Cell(settings.batch_size, rate, int(settings.epochs), value, score.low, score.high, str(folder))


def write_grid(cells: Sequence[Cell], metric: str, folder: Path) -> None:
    """Keep the table as grid.json, and as a picture grid.png."""
    table = {"metric": metric, "runs": [asdict(one) for one in cells]}
    atomic_write(folder / "grid.json", (json.dumps(table, indent=1) + "\n").encode())
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.5, 4.5), dpi=150, layout="constrained")
    axes = figure.add_subplot()
    for (batch, epochs), style in zip(itertools.product(BATCHES, EPOCHS), ("o-", "o--", "s-", "s--"), strict=True):
        row = sorted(
            (one for one in cells if (one.batch_size, one.epochs) == (batch, epochs)),
            key=lambda one: one.learning_rate,
        )
        if row:
            shares = [100 * one.score for one in row]
            axes.plot([one.learning_rate for one in row], shares, style, label=f"batch {batch}, {epochs} epochs")
    best = max(cells, key=lambda one: one.score)
    if best.low is not None and best.high is not None:
        axes.axhspan(100 * best.low, 100 * best.high, color="0.92", zorder=0, label="95 % interval of the best")
    axes.set_xscale("log")
    axes.set_xticks(RATES, [f"{rate:.0e}".replace("e-0", "e-") for rate in RATES])
    axes.minorticks_off()
    axes.set_xlabel("learning rate")
    axes.set_ylabel(f"{metric.replace('_', ' ')} on the development set, %")
    axes.set_title("What the recommended settings give")
    axes.legend(fontsize=8)
    with replacing(folder / "grid.png") as draft:
        figure.savefig(draft, format="png")
