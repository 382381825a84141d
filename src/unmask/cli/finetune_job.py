"""How a fine-tuning command goes: one run with its bar, several seeds, or the grid, and what is shown at the end."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from json import dumps
from pathlib import Path
from typing import Any

from unmask.cli import console
from unmask.errors import UserError


@dataclass(frozen=True)
class FinetuneJob:
    """One call of a fine-tuning command."""

    kind: type[Any]
    prepare: Callable[..., Any]
    files: Mapping[str, Any]
    out: Path
    resume: bool
    seeds: int
    grid: bool
    threads: int | None
    json: bool

    def run(self, config: str | None, said: Mapping[str, Any], changes: Sequence[str]) -> None:
        """Do it, in as many processes as torchrun started."""
        from unmask.tasks.finetune_settings import Files, read_finetune_settings
        from unmask.train.world import joined

        written = [f"{name}={dumps(value)}" for name, value in said.items() if value is not None]
        settings = read_finetune_settings(self.kind, config, [*written, *changes])
        files = Files.parse(dict(self.files), "options")
        if self.grid and self.seeds > 1:
            raise UserError("give --grid or --seeds, not both: twelve runs a seed would take very long")
        console.use_threads(self.threads)
        from unmask.models.fetch import fetch

        with console.download_bar() as report:
            fetch(files.model, progress=report)
        # torchrun starts everything again when a process is lost: then there is something to go on with.
        resume = self.resume or int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0
        with joined() as world:
            if self.grid:
                self._grid(settings, files, resume, world.is_first)
            elif self.seeds > 1:
                self._seeds(settings, files, resume, world.is_first)
            else:
                found = self._one(settings, files, self.out, resume)
                if world.is_first:
                    show(found, self.out, self.json)

    def _one(self, settings: Any, files: Any, out: Path, resume: bool) -> Any:
        """One run, shown as it goes."""
        from unmask.cli.training import BarListener, training_bar
        from unmask.tasks.finetune import finetune
        from unmask.train.progress import Listener
        from unmask.train.world import World

        if not World.present().is_first:
            return finetune(settings, files, out, self.prepare, Listener(), resume=resume)
        with training_bar(out.name) as bar:
            return finetune(settings, files, out, self.prepare, BarListener(bar), resume=resume)

    def _seeds(self, settings: Any, files: Any, resume: bool, first: bool) -> None:
        from unmask.cli.train import show_seeds
        from unmask.train.seeds import run_seeds

        def job(seed: int) -> dict[str, float]:
            found = self._one(settings.replace(seed=seed), files, self.out / f"seed-{seed}", resume)
            if found is None:
                return {}
            return {name: score.value for name, score in found.scores.items() if score.value is not None}

        report = run_seeds(range(settings.seed, settings.seed + self.seeds), job)
        if first:
            show_seeds(report, self.out, self.json)

    def _grid(self, settings: Any, files: Any, resume: bool, first: bool) -> None:
        from unmask.tasks.grid import cell, grid, write_grid

        cells, metric = [], ""
        for name, changed in grid(settings):
            found = self._one(changed, files, self.out / name, resume)
            if found is not None:
                metric = next(iter(found.scores))
                cells.append(cell(changed, found, self.out / name))
        if not first:
            return
        write_grid(cells, metric, self.out)
        ranked = sorted(cells, key=lambda one: -one.score)
        if self.json:
            console.print_json({"metric": metric, "runs": [vars(one) for one in ranked]})
            return
        rows = [
            (
                one.batch_size,
                f"{one.learning_rate:.0e}",
                one.epochs,
                f"{one.score:.4f}",
                _between(one.low, one.high),
            )
            for one in ranked
        ]
        console.print_table(["batch", "learning rate", "epochs", metric, "95 % interval"], rows, title="Best first")
        console.say("Settings whose intervals overlap are not told apart by this development set.")
        console.result(f"{self.out / 'grid.png'}  the picture")
        console.result(f"{ranked[0].folder}/model  the best model")


def show(found: Any, out: Path, json: bool) -> None:
    """What came of one run, and what to do with it."""
    from unmask.tasks.finetune import EVALUATION, REPORT
    from unmask.tasks.runs import MODEL

    scores = {name: score._asdict() for name, score in found.scores.items()}
    if json:
        console.print_json({"model": str(out / MODEL), "report": str(out / REPORT), "scores": scores})
        return
    columns = ["score on the development set", "value", "95 % interval", "examples"]
    console.print_table(columns, score_rows(found.scores))
    console.result(f"{out / MODEL}  the model, in Hugging Face's layout, with its card")
    console.result(f"{out / REPORT}  curves, mistakes, calibration: open it in a browser")
    console.result(f"{out / EVALUATION}  all figures")
    console.say(f"Next: unmask predict {out / MODEL} FILE   ·   unmask evaluate {out / MODEL} FILE")


def score_rows(scores: Mapping[str, Any]) -> list[tuple[object, ...]]:
    """Scores as rows of a table."""
    return [(name, _number(score.value), _between(score.low, score.high), score.n) for name, score in scores.items()]


def _between(low: float | None, high: float | None) -> str:
    return f"{_number(low)} to {_number(high)}"


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.4f}"
