"""Names in Chinese text with the model that comes with Unmask: softmax and CRF, beside the net with random weights.

    UNMASK_DATA=folder python benchmarks/tagging.py [--seeds 3] [--out results.json]

CLUENER (the first 2,000 of 10,748 sentences, so that thirteen runs take half an hour on a core; all with `--sentences
10748`; ten types, measured on its development set of 1,343) and Weibo (1,350 posts, measured on its 270 test posts
after the best epoch was chosen on the 270 development posts; for CLUENER that choice is made on the set shown, so the
last epoch is shown too). F1 counts whole names, as seqeval does. As many epochs for all (3; Weibo 10). Pre-trained
weights are tried with two learning rates (1e-4 and 5e-4) under the first seed with softmax, and the better one on the
development set is theirs; random weights learn at 5e-4.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from common import data_folder
from finetune_common import Found, Results, Run, across, loop_settings, parser, table
from unmask.tasks.finetune_settings import Files, TagRun

EPOCHS = {"cluener": 3, "weibo": 10}
RATES = {"mini-zh": 1e-4, "mini-zh, rate 5e-4": 5e-4, "random weights": 5e-4}


def head_of(path: Path, count: int, target: Path) -> Path:
    """The first examples of a file: lines, or groups of lines with a blank one between them."""
    text, apart = path.read_text(encoding="utf-8"), "\n" if path.suffix == ".json" else "\n\n"
    target.write_text(apart.join(text.split(apart)[:count]) + apart, encoding="utf-8")
    return target


def files_of(name: str, options: argparse.Namespace, spare: Path) -> tuple[Files, Path | None]:
    folder = data_folder()
    if name == "cluener":
        paths = {part: folder / "cluener2020" / f"{part}.json" for part in ("train", "dev")}
        paths["train"] = head_of(paths["train"], options.sentences, spare / "cluener-some.json")
    else:
        paths = {part: folder / "weibo_ner" / f"{part}.all.bmes" for part in ("train", "dev", "test")}
    if options.quick:
        # Enough of them for every type to occur.
        paths = {part: head_of(path, 150, spare / f"{name}-{part}{path.suffix}") for part, path in paths.items()}
        if name == "weibo":
            paths["dev"] = paths["test"] = paths["train"]
    return Files(model="mini-zh", train=str(paths["train"]), dev=str(paths["dev"])), paths.get("test")


def settings_of(name: str, crf: bool, start: str, seed: int, quick: bool) -> TagRun:
    epochs = 1 if quick else EPOCHS[name]
    nothing = start == "random weights"
    return TagRun(crf=crf, from_nothing=nothing, epochs=epochs, seed=seed, train=loop_settings(RATES[start]))


def compared(name: str, options: argparse.Namespace, results: Results, spare: Path) -> list[dict[str, object]]:
    files, test = files_of(name, options, spare)

    def run(crf: bool, start: str, seed: int) -> Found:
        who = f"{'CRF' if crf else 'softmax'}, {start}"
        settings = settings_of(name, crf, start, seed, options.quick)
        learned = f", {options.sentences} sentences" if name == "cluener" else ""
        return results.get(f"{name}{learned}, {who}, seed {seed}", Run(settings, files, test).go)

    pretrained = max(("mini-zh", "mini-zh, rate 5e-4"), key=lambda start: run(False, start, 0)["scores"]["f1"])
    rows: list[dict[str, object]] = []
    for crf in (False, True):
        for start in (pretrained, "random weights"):
            who = f"{'CRF' if crf else 'softmax'}, {start}"
            runs = [run(crf, start, seed) for seed in range(options.seeds)]
            rows.append(
                {
                    "set": name,
                    "who": who,
                    "dev F1, best epoch": across(runs, "f1"),
                    "dev F1, last epoch": across(runs, "f1", "last"),
                    "test F1": across(runs, "f1", "test") if test else "–",
                    "training (s)": round(sum(run["train_seconds"] for run in runs) / len(runs)),
                }
            )
    return rows


def main() -> None:
    made = parser(__doc__)
    made.add_argument("--sentences", type=int, default=2000, help="CLUENER: learn from the first so many")
    options = made.parse_args()
    if options.quick:
        options.seeds = 1
    results = Results(options)
    with tempfile.TemporaryDirectory() as spare:
        rows = [row for name in ("weibo", "cluener") for row in compared(name, options, results, Path(spare))]
    table(f"Names in Chinese text, mean of {options.seeds} seeds (95 % interval of the mean)", rows, options)


if __name__ == "__main__":
    main()
