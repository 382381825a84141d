"""Texts longer than a model reads at once: seven ways to classify them, compared on the same texts.

    UNMASK_DATA=folder python benchmarks/longtext.py [--layers 3] [--out results.json]

Film reviews that are longer than the 512 tokens MiniLM reads at once: of movie_reviews (690 documents to learn from,
1,000 measured; batch 16) and of IMDB (400 and 1,000; batch 8). So that seven ways on two sets take some two hours on a
core, the lowest three layers of MiniLM are used. Windows of 512 tokens overlap by a quarter; in training at most four
windows of a text are read, in measuring all. "hierarchical" reads up to 1,024 tokens at once, positions extended. Rate
2e-4, 2 epochs, no dropout below the head, one seed; measured once, after the last update. Intervals are those of the
share of right answers; each way is compared with "head" on the same texts (McNemar).
"""

from __future__ import annotations

import argparse
import gzip
import json
import tempfile
from pathlib import Path
from typing import Any

from common import data_folder
from finetune_common import Found, Results, Row, Run, across, loop_settings, parser, said, sample, table, write_rows
from unmask.longtext.settings import LongTextSettings
from unmask.metrics.compare import paired_test
from unmask.models.fetch import fetch
from unmask.tasks.finetune_settings import ClassifyRun, Files
from unmask.text.tokenizer import Tokenizer

LENGTH, LONGER, MOST = 512, 1024, 4
BATCHES = {"movie_reviews": 16, "imdb": 8}
WAYS: dict[str, dict[str, Any]] = {
    "head": {"strategy": "head"},
    "tail": {"strategy": "tail"},
    "head_tail": {"strategy": "head_tail"},
    "windows, mean": {"strategy": "windows", "join": "mean", "max_windows": MOST},
    "windows, max": {"strategy": "windows", "join": "max", "max_windows": MOST},
    "windows, attention": {"strategy": "windows", "join": "attention", "max_windows": MOST},
    "hierarchical": {"strategy": "hierarchical", "max_length": LONGER},
}


def long_ones(rows: list[Row]) -> list[Row]:
    """Those that do not fit into one window."""
    tokenizer = Tokenizer.from_folder(fetch("minilm"))
    rows = [row for row in rows if len(row["text"]) > LENGTH]  # a token has at least one character
    encodings = tokenizer.encode_batch([row["text"] for row in rows])
    return [row for row, encoding in zip(rows, encodings, strict=True) if len(encoding) > LENGTH]


def movie_reviews() -> tuple[list[Row], list[Row]]:
    path = data_folder() / "movie_reviews" / "polarity2.0.jsonl"
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    rows = sample(long_ones([{"text": row["text"], "label": row["label"]} for row in rows]), None)
    return rows[1000:], rows[:1000]


def imdb() -> tuple[list[Row], list[Row]]:
    def part(name: str, count: int) -> list[Row]:
        with gzip.open(data_folder() / "imdb" / f"{name}.tsv.gz", "rt", encoding="utf-8") as lines:
            cells = [line.rstrip("\n").split("\t", 2) for line in lines]
        return sample(long_ones([{"text": text, "label": label} for _, label, text in cells]), count)

    return part("train", 400), part("test", 1000)


def settings_of(way: str, examples: int, batch: int, options: argparse.Namespace) -> ClassifyRun:
    epochs = 1 if options.quick else 2
    return ClassifyRun(
        problem="single",
        epochs=epochs,
        batch_size=batch,
        layers=options.layers,
        dropout=0.0,  # attention with dropout would take most of the time at this length
        long_text=LongTextSettings(**{"max_length": LENGTH} | WAYS[way]),
        train=loop_settings(2e-4, evaluate_every=epochs * max(1, examples // batch)),
    )


def compared(name: str, options: argparse.Namespace, results: Results, spare: Path) -> list[dict[str, object]]:
    train, test = movie_reviews() if name == "movie_reviews" else imdb()
    if options.quick:
        train, test = train[:8], test[:6]
    paths = [str(write_rows(rows, spare / f"{name}-{part}.jsonl")) for part, rows in (("train", train), ("dev", test))]
    files = Files(model="minilm", train=paths[0], dev=paths[1])
    found: dict[str, Found] = {}
    for way in WAYS:
        run = Run(settings_of(way, len(train), BATCHES[name], options), files, marks=True)
        found[way] = results.get(f"{name}, {options.layers} layers, {way}", run.go)
        said(f"{found[way]['long']}: {across([found[way]], 'accuracy')}")
    rows: list[dict[str, object]] = []
    for way, one in found.items():
        test_of = paired_test(one["right"], found["head"]["right"])
        beside = f"{test_of.difference:+.4f} ({test_of.low:+.4f} to {test_of.high:+.4f}), p = {test_of.p:.4f}"
        rows.append(
            {
                "set": name,
                "way": way,
                "accuracy": across([one], "accuracy"),
                "against head": "–" if way == "head" else beside,
                "training (s)": round(one["train_seconds"]),
            }
        )
    return rows


def main() -> None:
    made = parser(__doc__, seeds=1)
    made.add_argument("--layers", type=int, default=3, help="use only so many of the lowest layers")
    made.add_argument("--sets", default="movie_reviews,imdb", help="which of the two")
    options = made.parse_args()
    results = Results(options)
    rows = []
    with tempfile.TemporaryDirectory() as spare:
        for name in ("movie_reviews",) if options.quick else options.sets.split(","):
            rows += compared(name, options, results, Path(spare))
    table("Long texts, accuracy (95 % interval) and difference from reading the beginning only", rows, options)


if __name__ == "__main__":
    main()
