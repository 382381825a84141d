"""What pre-training is worth: the Chinese model that comes with Unmask against the same net with random weights.

    UNMASK_DATA=folder python benchmarks/pretraining_helps.py [--seeds 3] [--out results.json]

With --out it draws a picture beside the results. From 500 to 4,000 examples, each size with fresh samples for each
seed. ChnSentiCorp (reviews, two classes): over a quarter of its development rows stand in the training file too;
training rows that are repeated, or stand in the development or test file, are dropped, and accuracy is measured on both
these files together. TNEWS (headlines, 15 classes) is measured on 2,000 rows of the development set (a fixed sample).
Texts are read to their first 64 tokens.

Measured once, after the last update. Every size gets about 200 updates of 32 or more. Both starts are tried with two
learning rates at the middle size under the first seed, and the better one, by the sets measured on, is theirs for all
sizes: that favours both a little.
"""

from __future__ import annotations

import argparse
import math
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from common import data_folder
from finetune_common import (
    BATCH,
    Found,
    Results,
    Row,
    Run,
    across,
    loop_settings,
    parser,
    said,
    sample,
    tabbed,
    table,
    write_rows,
)
from unmask.longtext.settings import LongTextSettings
from unmask.tasks.finetune_settings import ClassifyRun, Files
from unmask.train.seeds import summary

SIZES = "500,2000,4000"
LEAST_UPDATES = 200
HELD_OUT = 2000
RATES = ("1e-4", "5e-4")
PRETRAINED, RANDOM = "mini-zh", "random weights"


class Pair(NamedTuple):
    """Runs of both starts, seed by seed."""

    pretrained: list[Found]
    random: list[Found]
    rates: tuple[str, str]  # which of the two each got


def chnsenticorp() -> tuple[list[Row], list[Row]]:
    parts = {
        part: {text: label for label, text in tabbed(data_folder() / "chnsenticorp" / f"{part}.tsv")}
        for part in ("train", "dev", "test")
    }
    held_out = parts["dev"] | parts["test"]
    train = {text: label for text, label in parts["train"].items() if text not in held_out}
    return _rows(train), _rows(held_out)


def tnews() -> tuple[list[Row], list[Row]]:
    folder = data_folder() / "tnews"
    train, dev = (dict(tabbed(folder / f"{part}.tsv", header=False)) for part in ("train", "dev"))
    return _rows({text: label for text, label in train.items() if text not in dev}), sample(_rows(dev), HELD_OUT)


def _rows(texts: dict[str, str]) -> list[Row]:
    return [{"text": text, "label": label} for text, label in texts.items() if text.strip()]


def with_every_label(rows: Sequence[Row], size: int, seed: int) -> list[Row]:
    """So many rows, in random order, one of each label at least: nobody can learn what is never shown."""
    drawn = sample(rows, None, seed)
    first = {row["label"]: place for place, row in reversed(list(enumerate(drawn)))}
    others = [place for place in range(len(drawn)) if first[drawn[place]["label"]] != place]
    return [drawn[place] for place in sorted([*first.values(), *others[: size - len(first)]])]


def epochs_of(size: int) -> int:
    return max(3, math.ceil(LEAST_UPDATES / math.ceil(size / BATCH)))


def settings_of(start: str, size: int, seed: int, quick: bool) -> ClassifyRun:
    per_epoch = math.ceil(size / BATCH)
    epochs = 1 if quick else epochs_of(size)
    return ClassifyRun(
        problem="single",
        epochs=epochs,
        seed=seed,
        from_nothing=start.startswith(RANDOM),
        # Long reviews are read to their first 64 tokens, the same on both sides.
        long_text=LongTextSettings(strategy="head", max_length=64),
        train=loop_settings(float(start.rpartition(" ")[2]), evaluate_every=epochs * per_epoch),
    )


def compared(name: str, options: argparse.Namespace, results: Results, spare: Path) -> dict[int, Pair]:
    """For each size the runs of both starts."""
    train, held_out = chnsenticorp() if name == "ChnSentiCorp" else tnews()
    said(f"{name}: {len(train):,} training rows that are not repeated nor measured on, {len(held_out):,} measured on")
    sizes: Sequence[int] = sorted({min(int(size), len(train)) for size in options.sizes.split(",")})
    if options.quick:
        sizes, held_out = (60,), held_out[:50]
    dev = str(write_rows(held_out, spare / f"{name}-dev.jsonl"))

    def run(start: str, size: int, seed: int) -> Found:
        # In a quick run every label must occur.
        chosen = with_every_label(train, size, seed) + (held_out if options.quick else [])
        file = write_rows(chosen, spare / f"{name}-{size}-{seed}.jsonl")
        files = Files(model="mini-zh", train=str(file), dev=dev)
        job = Run(settings_of(start, size, seed, options.quick), files)
        return results.get(f"{name}, {size} examples, {epochs_of(size)} epochs, {start}, seed {seed}", job.go)

    def better(who: str) -> str:
        return max(RATES, key=lambda rate: run(f"{who}, rate {rate}", sizes[len(sizes) // 2], 0)["scores"]["accuracy"])

    rates = (better(PRETRAINED), better(RANDOM))
    found = {}
    for size in sizes:
        runs = [
            [run(f"{who}, rate {rate}", size, seed) for seed in range(options.seeds)]
            for who, rate in zip((PRETRAINED, RANDOM), rates, strict=True)
        ]
        found[size] = Pair(runs[0], runs[1], rates)
    return found


def draw(all_found: dict[str, dict[int, Pair]], path: Path) -> None:
    """Accuracy by training size, with the interval of the mean over seeds."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, len(all_found), figsize=(5 * len(all_found), 3.6), squeeze=False)
    for place, (name, found) in zip(axes[0], all_found.items(), strict=True):
        sizes = list(found)
        for label, runs_of in (
            ("pre-trained (mini-zh)", [pair.pretrained for pair in found.values()]),
            ("random weights", [pair.random for pair in found.values()]),
        ):
            means = [summary([run["scores"]["accuracy"] for run in runs]) for runs in runs_of]
            place.plot(sizes, [one.mean for one in means], marker="o", label=label)
            lows, highs = [one.low or one.mean for one in means], [one.high or one.mean for one in means]
            place.fill_between(sizes, lows, highs, alpha=0.2)
        place.set(title=name, xscale="log", xlabel="training examples", ylabel="accuracy")
        place.legend()
    figure.tight_layout()
    figure.savefig(path, dpi=130)
    plt.close(figure)


def rows_of(name: str, found: dict[int, Pair]) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = []
    for size, pair in found.items():
        both = zip(pair.pretrained, pair.random, strict=True)
        gain = summary([a["scores"]["accuracy"] - b["scores"]["accuracy"] for a, b in both])
        wide = "" if gain.low is None or gain.high is None else f" ({gain.low:+.4f} to {gain.high:+.4f})"
        rows.append(
            {
                "set": name,
                "examples": size,
                "mini-zh": across(pair.pretrained, "accuracy"),
                "random weights": across(pair.random, "accuracy"),
                "their rates": ", ".join(pair.rates),
                "gain": f"{gain.mean:+.4f}{wide}",
            }
        )
    return rows


def main() -> None:
    made = parser(__doc__)
    made.add_argument("--sets", default="ChnSentiCorp,TNEWS", help="which of the two")
    made.add_argument("--sizes", default=SIZES, help="numbers of examples to learn from")
    options = made.parse_args()
    if options.quick:
        options.seeds = 1
    results = Results(options)
    with tempfile.TemporaryDirectory() as spare:
        all_found = {name: compared(name, options, results, Path(spare)) for name in options.sets.split(",")}
    rows = [row for name, found in all_found.items() for row in rows_of(name, found)]
    table(f"Accuracy with and without pre-training, mean of {options.seeds} seeds (95 % interval)", rows, options)
    if options.out is not None:
        draw(all_found, options.out.with_suffix(".png"))


if __name__ == "__main__":
    main()
