"""Smaller models: the ladder of `unmask compress` on SST-2, distillation beside training, heads removed one by one.

    UNMASK_DATA=folder python benchmarks/compress.py --model runs/sst2 [--out results.json] [--plot heads.svg]

--model is a MiniLM fine-tuned on SST-2 (`unmask train classify --config sst2-minilm`). Everything is measured on the
872 sentences of the development set.

1. `unmask compress` with nothing but files and --max-drop 1.0: which attempt is taken, and how fast it is beside the
   model as it was on the 128 texts of mixed length that the other benchmarks use (--folder: where it is kept, or is
   already).
2. A student of layers 2, 4 and 6 of pre-trained MiniLM learns the task from 2,000 training sentences: from their
   labels alone (in three ways, of which the best counts), or from the fine-tuned model's answers and hidden states as
   well (in one). Three seeds: of the new head, the order of sentences, and dropout.
3. Heads removed, the least important first, or at random, without learning again.
"""

from __future__ import annotations

import argparse
import random
import tempfile
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from common import data_folder, mixed_length_texts
from finetune_common import Found, Results, Shown, across, parser, said, table
from unmask.bundle import load
from unmask.compress.cut import Pieces
from unmask.compress.importance import importance, least_heads
from unmask.compress.lessons import Source, lessons, read_examples, sample
from unmask.compress.recover import recover
from unmask.compress.run import Request, compress
from unmask.compress.settings import Contract, RecoverySettings
from unmask.compress.speed import race, size_of
from unmask.config import read_json
from unmask.engine.choose import accelerated
from unmask.models.fetch import fetch
from unmask.models.folder import load_model
from unmask.models.surgery import remove_heads, remove_layers
from unmask.tasks.predict import Predictor
from unmask.tasks.runs import model_folder
from unmask.train.progress import Listener
from unmask.train.seeds import summary

STUDENT = (1, 3, 5)
SENTENCES = 2000
#: (learning rate, how many times the sentences are seen). More is worth it only with a teacher: labels are learned by
#: heart.
WAYS = {"labels": ((5e-5, 3), (1e-4, 3), (1e-4, 10)), "distilled": ((1e-4, 10),)}


class Bench:
    """The fine-tuned model and its data."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.folder = model_folder(str(options.model))
        bundle = load(self.folder)
        self.model: Any = bundle.model
        self.tokenizer, self.usage = bundle.tokenizer, bundle.predictor.usage
        self.data = data_folder() / "glue" / "SST-2"
        self.train = read_examples(Source(str(self.data / "train.tsv")), self.usage, self.model)

    def score(self, model: Any) -> Found:
        fast = accelerated(model, "fp32")
        found = Predictor(fast, self.tokenizer, self.usage).evaluate(str(self.data / "dev.tsv"))
        one = found.scores["accuracy"]
        return {"scores": {"accuracy": one.value}, "intervals": {"accuracy": [one.low, one.high]}}

    def ladder(self) -> Found:
        """The command, if the folder does not hold what it made before."""
        with tempfile.TemporaryDirectory() as spare:
            folder = self.options.folder or Path(spare) / "small"
            if not (folder / "compress.json").is_file():
                files = [Source(str(self.data / name)) for name in ("dev.tsv", "train.tsv")]
                recovery = RecoverySettings(examples=64 if self.options.quick else self.options.examples)
                contract = Contract(max_drop=100.0 if self.options.quick else 1.0)
                request = Request(str(self.folder), *files, contract, recovery)
                compress(request, folder, said, _shown, resume=True)
            found = read_json(folder / "compress.json")
            speeds = race(
                [(self.folder, "fp32"), (folder, "int8")], mixed_length_texts(), 2 if self.options.quick else 5
            )
            keys = ("name", "bytes", "times_as_fast", "kept", "score")
            return {
                "before": size_of(self.folder),
                "taken": found["taken"],
                "attempts": [{key: one[key] for key in keys} for one in found["attempts"]],
                "mixed": [one.as_json() for one in speeds],
            }

    def student(self, seed: int) -> Any:
        """Some layers of the pre-trained model, with a new head."""
        head = self.model.settings.heads[0]
        start, _ = load_model(fetch("minilm"), heads=[head], seed=seed)
        settings = start.settings
        assert settings.num_layers == 6
        student: Any = remove_layers(start, [layer for layer in range(6) if layer not in STUDENT])
        return student

    def learned(self, how: str, way: tuple[float, int], seed: int) -> Found:
        sentences = 64 if self.options.quick else SENTENCES
        student = self.student(seed)
        rate, times = way
        settings = RecoverySettings(examples=times * sentences, learning_rate=rate, seed=seed)
        teacher = self.model if how == "distilled" else None
        with tempfile.TemporaryDirectory() as spare:
            chosen = random.Random(0).sample(self.train, sentences)
            pieces = Pieces(student, self.tokenizer)
            recover(pieces, teacher, self.usage, chosen, settings, Path(spare) / "run", Shown())
        found = self.score(student)
        said(f"{how}, rate {rate:g}, {times} times, seed {seed}: {found['scores']['accuracy']:.4f}")
        return found

    @cached_property
    def matter(self) -> list[torch.Tensor]:
        """How much each head matters."""
        found = lessons(self.model, self.tokenizer, self.usage, sample(self.train, 64 if self.options.quick else 1024))
        return importance(self.model, found, found.batches(1024)).heads

    def heads(self, order: str, count: int) -> Found:
        """Without so many heads."""
        total = sum(shape.num_heads for shape in self.model.settings.shapes)
        if order == "importance":
            gone = least_heads(self.matter, count)
        else:
            draw = torch.rand(total, generator=torch.Generator().manual_seed(0))
            gone = least_heads(list(draw.view(len(self.model.settings.shapes), -1)), count)
        return self.score(remove_heads(self.model, gone))


def _shown(name: str) -> AbstractContextManager[Listener]:
    said(name)
    return nullcontext(Shown())


def lost(score: Found) -> str:
    return f"{score['drop']:+.2f} ({score['drop_low']:+.2f} to {score['drop_high']:+.2f})"


def show_ladder(found: Found, options: argparse.Namespace) -> None:
    rows: list[dict[str, object]] = [
        {
            "attempt": ("* " if one["name"] == found["taken"] else "") + one["name"],
            "MB": f"{one['bytes'] / 1e6:.1f}",
            "of the size": f"1/{found['before'] / one['bytes']:.2f}",
            "times as fast": f"{one['times_as_fast']:.2f}",
            "accuracy": f"{one['score']['after']:.2f}",
            "lost (95 %)": lost(one["score"]),
            "": "kept" if one["kept"] else "refused",
        }
        for one in found["attempts"]
    ]
    table(f"unmask compress --max-drop 1.0, {found['before'] / 1e6:.1f} MB before; * taken", rows, options)
    before, after = (one["texts_per_second"] for one in found["mixed"])
    print(f"128 texts of mixed length: {before:.0f} → {after:.0f} texts/s, {after / before:.2f} times as fast")


def show_students(found: dict[str, list[Found]], options: argparse.Namespace) -> None:
    rows: list[dict[str, object]] = [
        {
            "a student of 3 layers learns from": name,
            "accuracy over seeds (95 %)": across(runs, "accuracy"),
            "each": ", ".join(f"{100 * run['scores']['accuracy']:.2f}" for run in runs),
        }
        for name, runs in found.items()
    ]
    table(f"{SENTENCES:,} sentences", rows, options)
    [taught] = [runs for name, runs in found.items() if name.startswith("distilled")]
    best = max(
        (runs for runs in found.values() if runs is not taught),
        key=lambda runs: sum(run["scores"]["accuracy"] for run in runs),
    )
    gains = [100 * (a["scores"]["accuracy"] - b["scores"]["accuracy"]) for a, b in zip(taught, best, strict=True)]
    one = summary(gains)
    if one.low is not None and one.high is not None:
        print(f"distilled against the best from labels: {one.mean:+.2f} points ({one.low:+.2f} to {one.high:+.2f})")


def plot_heads(curves: dict[str, dict[int, Found]], path: Path) -> None:
    import matplotlib.pyplot as plt

    figure, axis = plt.subplots(figsize=(6.5, 3.8))
    for (name, points), colour in zip(curves.items(), ("#0f766e", "#94a3b8"), strict=True):
        counts = sorted(points)
        scores = [100 * points[count]["scores"]["accuracy"] for count in counts]
        bounds = [[100 * end for end in points[count]["intervals"]["accuracy"]] for count in counts]
        axis.fill_between(counts, [low for low, _ in bounds], [high for _, high in bounds], color=colour, alpha=0.15)
        axis.plot(counts, scores, "o-", color=colour, markersize=4, label=name)
    axis.set_xlabel("attention heads removed, of 72; not trained again")
    axis.set_ylabel("SST-2 accuracy, %, with 95 % interval")
    axis.spines[["top", "right"]].set_visible(False)
    axis.grid(alpha=0.25)
    axis.legend()
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
    plt.close(figure)


def main() -> None:
    options_of = parser(__doc__)
    options_of.add_argument("--model", type=Path, required=True, help="a MiniLM fine-tuned on SST-2: run or folder")
    options_of.add_argument("--folder", type=Path, help="where the smaller model is kept, or is already")
    options_of.add_argument("--examples", type=int, default=9600, help="seen in each recovery of the ladder")
    options_of.add_argument("--plot", type=Path, help="the curve of heads as a picture (.svg, .png)")
    options_of.add_argument("--only", choices=["ladder", "students", "heads"], help="one of the three")
    options = options_of.parse_args()
    results, bench = Results(options), Bench(options)
    wanted = [options.only] if options.only else ["heads", "students", "ladder"]
    if "heads" in wanted:
        steps = (0, 36, 66) if options.quick else range(0, 67, 6)
        curves = {
            order: {
                count: results.get(f"heads {order} {count}", lambda o=order, c=count: bench.heads(o, c))
                for count in steps
            }
            for order in ("importance", "random")
        }
        rows: list[dict[str, object]] = [
            {"heads removed": count}
            | {order: f"{points[count]['scores']['accuracy']:.4f}" for order, points in curves.items()}
            for count in steps
        ]
        table("Heads removed, not trained again", rows, options)
        if options.plot is not None:
            plot_heads({"least important first": curves["importance"], "at random": curves["random"]}, options.plot)
    if "students" in wanted:
        found: dict[str, list[Found]] = {}
        for seed in range(options.seeds):
            for how, ways in WAYS.items():
                for way in ways:
                    name = f"{how}, rate {way[0]:g}, {way[1]} times"
                    run = results.get(f"{name}, seed {seed}", lambda h=how, w=way, s=seed: bench.learned(h, w, s))
                    found.setdefault(name, []).append(run)
        show_students(found, options)
    if "ladder" in wanted:
        show_ladder(results.get("ladder", bench.ladder), options)


if __name__ == "__main__":
    main()
