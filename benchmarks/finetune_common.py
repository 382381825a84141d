"""What the benchmarks of fine-tuning share: rows and files, results that a stopped run finds again, ours and the peer.

Every result has a key and is kept as soon as it is there: a script that was stopped goes on where it was. The peer is
a plain loop around a model of `transformers` as its Trainer runs it (fused AdamW, linear schedule with warm-up, norm
clipped at 1, no decay of biases and norms, each batch padded to its longest text). Both sides measure after every
epoch. `scores` are those of the epoch with the best one, as both libraries keep it, `last` those of the last epoch.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from common import machine, show
from unmask.models.folder import load_model
from unmask.storage import atomic_write
from unmask.tasks.finetune import finetune
from unmask.tasks.finetune_answer import prepare_answer
from unmask.tasks.finetune_classify import prepare_classify
from unmask.tasks.finetune_settings import AnswerRun, ClassifyRun, Files, FinetuneSettings, TagRun
from unmask.tasks.finetune_tag import prepare_tag
from unmask.tasks.predict import Predictor
from unmask.tasks.runs import MODEL
from unmask.tasks.usage import read_usage
from unmask.text.tokenizer import Tokenizer
from unmask.train.optimizer import OptimizerSettings
from unmask.train.progress import Listener, Progress
from unmask.train.schedule import linear
from unmask.train.seeds import summary
from unmask.train.settings import LoopSettings

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")  # that a head is new is known
BATCH = 32
DECAY = 0.01
EPS = 1e-6
WARMUP = 0.1
Row = dict[str, Any]
Found = dict[str, Any]
_PREPARE: Mapping[type, Callable[..., Any]] = {
    ClassifyRun: prepare_classify,
    TagRun: prepare_tag,
    AnswerRun: prepare_answer,
}


def parser(doc: str | None, seeds: int = 3) -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=(doc or "").splitlines()[0])
    made.add_argument("--threads", type=int, default=2)
    made.add_argument("--seeds", type=int, default=seeds)
    made.add_argument("--quick", action="store_true", help="a handful of examples: does it run at all?")
    made.add_argument("--out", type=Path, help="where results are kept (JSON) and found again")
    made.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    return made


class Results:
    """Results by key, kept in a file after each."""

    def __init__(self, options: argparse.Namespace) -> None:
        """Results of quick runs are kept apart: they say nothing."""
        torch.set_num_threads(options.threads)
        self.path: Path | None = options.out
        self.mark = "quick " if options.quick else ""
        stored = self.path is not None and self.path.is_file()
        self.found: dict[str, Found] = json.loads(self.path.read_text())["results"] if stored and self.path else {}

    def get(self, key: str, job: Callable[[], Found]) -> Found:
        """What the job of this name gave, now or in an earlier run."""
        key = self.mark + key
        if key in self.found:
            print(f"{key}: done before", file=sys.stderr, flush=True)
            return self.found[key]
        print(f"{key}: {time.strftime('%H:%M:%S')}", file=sys.stderr, flush=True)
        began = time.perf_counter()
        self.found[key] = {**job(), "minutes": round((time.perf_counter() - began) / 60, 2)}
        if self.path is not None:
            # A line for each result: such a file can be read, and compared with an older one.
            lines = ",\n".join(f"{json.dumps(key)}: {json.dumps(one)}" for key, one in self.found.items())
            self.path.parent.mkdir(parents=True, exist_ok=True)
            atomic_write(self.path, f'{{"machine": {json.dumps(machine())}, "results": {{\n{lines}\n}}}}\n'.encode())
        return self.found[key]


@dataclass(frozen=True)
class Run:
    """One fine-tuning run of ours; `test` is measured once, after the best model was chosen on `files.dev`."""

    settings: FinetuneSettings
    files: Files
    test: Path | None = None
    marks: bool = False  # keep how right each answer was, for paired tests

    def go(self, folder: Path | None = None) -> Found:
        """Train and measure, in `folder` if the model is still needed."""
        with tempfile.TemporaryDirectory() as spare:
            place = folder or Path(spare) / "run"
            prepare = _PREPARE[type(self.settings)]
            evaluation = finetune(self.settings, self.files, place, prepare, Shown())
            assert evaluation is not None
            measured = [entry["evaluation"] for entry in evaluation.curve if "evaluation" in entry]
            found: Found = {
                "scores": {name: score.value for name, score in evaluation.scores.items()},
                "intervals": {name: [score.low, score.high] for name, score in evaluation.scores.items()},
                "last": measured[-1],
                "train_seconds": evaluation.seconds,
                "examples": [facts.examples for facts in evaluation.data],
                "long": next(note for note in evaluation.notes if note.startswith("long texts")),
            }
            if self.marks:
                found["right"] = [round(getattr(one, "f1", float(one.right)), 4) for one in evaluation.outcomes]
            if self.test is not None:
                scored = predictor(place).evaluate(str(self.test))
                found["test"] = {name: score.value for name, score in scored.scores.items()}
        return found


def predictor(run: Path) -> Predictor:
    """The model of a finished run, ready for use."""
    model: Any = load_model(run / MODEL)[0]
    return Predictor(model, Tokenizer.from_folder(run / MODEL), read_usage(run / MODEL, model))


class Shown(Listener):
    """A line for every tenth of a run, and for every evaluation."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def update(self, progress: Progress) -> None:
        self.seconds += progress.seconds
        if progress.update * 10 // progress.updates > (progress.update - 1) * 10 // progress.updates:
            said(f"{progress.update:,} of {progress.updates:,} updates, {self.seconds:.0f} s")

    def evaluation(self, update: int, values: Mapping[str, float], remarks: Sequence[str]) -> None:
        said(f"update {update:,}: " + "  ".join(f"{name} {value:.4f}" for name, value in values.items()))


def said(text: str) -> None:
    print(f"    {text}", file=sys.stderr, flush=True)


def loop_settings(rate: float, *, evaluate_every: int | None = None, decay: float = DECAY) -> LoopSettings:
    """Settings of the loop that both sides share."""
    optimizer = OptimizerSettings(learning_rate=rate, weight_decay=decay, eps=EPS)
    # A checkpoint holds three times the model; these runs are begun anew instead.
    return LoopSettings(optimizer=optimizer, evaluate_every=evaluate_every, save_every=1_000_000)


def write_rows(rows: Iterable[Row], path: Path) -> Path:
    """Examples as a file of JSON lines."""
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    return path


def sample(rows: Sequence[Row], count: int | None, seed: int = 0) -> list[Row]:
    """So many of the rows, always the same ones, in random order."""
    chosen = list(rows)
    random.Random(seed).shuffle(chosen)
    return chosen[:count]


def tabbed(path: Path, *, header: bool = True) -> list[list[str]]:
    """The cells of a table without quoting."""
    lines = path.read_text(encoding="utf-8-sig").rstrip("\n").split("\n")
    return [line.split("\t") for line in lines[1 if header else 0 :]]


# The peer.


@dataclass(frozen=True)
class Recipe:
    """How the peer learns."""

    epochs: int
    rate: float
    updates: int  # of one epoch
    seed: int
    score: str  # by which epochs are compared


Tensors = dict[str, torch.Tensor]


def train_peer(
    model: nn.Module,
    recipe: Recipe,
    batches: Callable[[int], Iterable[Tensors]],
    measure: Callable[[], dict[str, float]],
) -> Found:
    """Fine-tune a model of `transformers`; `batches` gives those of an epoch."""
    total = recipe.epochs * recipe.updates
    schedule = linear(round(WARMUP * total), total)
    optimizer = peer_optimizer(model, recipe.rate)
    torch.manual_seed(recipe.seed)
    seconds, update, measured = 0.0, 0, []
    for epoch in range(recipe.epochs):
        model.train()
        began = time.perf_counter()
        for batch in batches(epoch):
            for group in optimizer.param_groups:
                group["lr"] = recipe.rate * schedule(update)
            peer_step(model, optimizer, batch)
            update += 1
            if update % max(1, total // 10) == 0:
                said(f"peer: {update:,} of {total:,} updates, {seconds + time.perf_counter() - began:.0f} s")
        seconds += time.perf_counter() - began
        model.eval()
        with torch.inference_mode():
            measured.append(measure())
        said("peer: " + "  ".join(f"{name} {value:.4f}" for name, value in measured[-1].items()))
    best = max(measured, key=lambda one: one[recipe.score])
    return {"scores": best, "last": measured[-1], "train_seconds": round(seconds, 2)}


def peer_optimizer(model: nn.Module, rate: float) -> torch.optim.AdamW:
    apart = {name for name, _ in model.named_parameters() if name.endswith("bias") or "LayerNorm" in name}
    groups = [
        {"params": [p for name, p in model.named_parameters() if name not in apart], "weight_decay": DECAY},
        {"params": [p for name, p in model.named_parameters() if name in apart], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=rate, eps=EPS, fused=True)


def peer_step(model: nn.Module, optimizer: torch.optim.Optimizer, batch: Tensors) -> None:
    model(**batch).loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


def shuffled(count: int, seed: int, epoch: int) -> list[list[int]]:
    """The batches of an epoch, as numbers of examples."""
    order = torch.randperm(count, generator=torch.Generator().manual_seed(1000 * seed + epoch)).tolist()
    return [order[start : start + BATCH] for start in range(0, count, BATCH)]


# Tables.


def across(found: Sequence[Found], score: str, kind: str = "scores") -> str:
    """Mean of a score over seeds, and its 95 % interval; for one seed the interval of its examples if there is one."""
    one = summary([result[kind][score] for result in found])
    low, high = one.low, one.high
    if low is None and kind == "scores" and "intervals" in found[0]:
        low, high = found[0]["intervals"][score]
    return f"{one.mean:.4f}" if low is None or high is None else f"{one.mean:.4f} ({low:.4f} to {high:.4f})"


def table(title: str, rows: list[dict[str, object]], options: argparse.Namespace) -> None:
    """Show rows, and say when they say nothing."""
    show(title + (" [quick: these figures mean nothing]" if options.quick else ""), rows, options.json)
    sys.stdout.flush()
