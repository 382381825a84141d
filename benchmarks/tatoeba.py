"""Tatoeba's short sentences, English to Spanish and Chinese to English, with the shipped configs.

    UNMASK_DATA=folder python benchmarks/tatoeba.py --runs FOLDER [--languages es,zh] [--updates N] [--out results.json]

A sentence has several translations there, so the sets are split such that no text, on either side, is in two parts:
train, dev (1,000 pairs) and test (2,000). BLEU is that of all test pairs, and that of each source once with all its
references; beam and penalty as the config says. Twenty sources drawn at random, with what became of them, are written
as a table beside the runs, as they are. A run that was stopped goes on when the same command is given again.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from common import data_folder
from finetune_common import Found, Results, Shown, parser, said, table
from unmask.bundle import load
from unmask.data.parallel import Pair, read_pairs
from unmask.data.parallel_split import split_pairs
from unmask.metrics.translation import TranslationScores, score_translations
from unmask.models.bert import num_parameters
from unmask.storage import atomic_write, new_folder
from unmask.tasks.runs import MODEL
from unmask.tasks.translate_settings import Texts, read_translate_settings
from unmask.tasks.translate_train import train_translation
from unmask.train.record import training_seconds

SEED = 0  # of what goes where
SAMPLES = 20
PARTS = {"dev": 1000, "test": 2000}
QUICK = {"pairs": 400, "dev": 20, "test": 20}


@dataclass(frozen=True)
class Direction:
    """From one language to another."""

    name: str
    file: str
    config: str
    swap: bool = False

    @property
    def codes(self) -> tuple[str, str]:
        """Of the source and of the target."""
        source, target = self.config.removeprefix("tatoeba-"), "en"
        return (source, target) if self.swap else (target, source)


DIRECTIONS = {
    "es": Direction("English → Spanish", "tatoeba_spa-eng/spa.txt", "tatoeba-es"),
    "zh": Direction("Chinese → English", "tatoeba_cmn-eng/cmn.txt", "tatoeba-zh", swap=True),
}


# Parts.


def split(direction: Direction, quick: bool) -> dict[str, list[Pair]]:
    """Train, dev and test; no text is in two of them."""
    rest = list(read_pairs([data_folder() / direction.file], swap=direction.swap))
    if quick:
        rest = random.Random(SEED).sample(rest, QUICK["pairs"])
    parts = {}
    for name, count in (QUICK if quick else PARTS).items():
        if name != "pairs":
            rest, parts[name] = split_pairs(rest, count=count, seed=SEED)
    parts["train"] = rest
    for one, other in (("train", "dev"), ("train", "test"), ("dev", "test")):
        for side in ("source", "target"):
            shared = {getattr(pair, side) for pair in parts[one]} & {getattr(pair, side) for pair in parts[other]}
            assert not shared, f"{one} and {other} share {side}s, such as {min(shared)!r}"
    return parts


def written(direction: Direction, folder: Path, quick: bool) -> Path:
    """The parts as files, train.en and so on; written once."""
    if not folder.is_dir():
        with new_folder(folder) as draft:
            for name, pairs in split(direction, quick).items():
                for code, side in zip(direction.codes, ("source", "target"), strict=True):
                    lines = "".join(getattr(pair, side) + "\n" for pair in pairs)
                    (draft / f"{name}.{code}").write_text(lines, encoding="utf-8")
    return folder


# Runs.


class Place:
    """Where a direction's files are."""

    def __init__(self, key: str, options: argparse.Namespace) -> None:
        self.direction = DIRECTIONS[key]
        name = "-".join(self.direction.codes)
        self.data = written(self.direction, options.runs / f"{name}-data", options.quick)
        self.run: Path = options.runs / (name if options.updates is None else f"{name}-{options.updates}")
        self.samples = self.run.with_name(f"{self.run.name}-samples.md")

    def files(self, part: str) -> tuple[str, str]:
        source, target = self.direction.codes
        return str(self.data / f"{part}.{source}"), str(self.data / f"{part}.{target}")

    def pairs(self, part: str) -> list[Pair]:
        return list(read_pairs(self.files(part)))


def train(place: Place, options: argparse.Namespace) -> Found:
    """A run, from nothing or from where it was stopped."""
    changes = [] if options.updates is None else [f"train.updates={options.updates}"]
    if options.quick:
        changes += ["vocabulary.size=300", "batch_tokens=256"]
    settings = read_translate_settings(place.direction.config, changes)
    texts = Texts(train=place.files("train"), dev=place.files("dev"))
    dev = train_translation(settings, texts, place.run, Shown(), resume=True)
    parameters = num_parameters(load(place.run / MODEL).model)
    return {
        "dev": dev,
        "pairs": len(place.pairs("train")),
        "parameters": parameters,
        "train_seconds": round(training_seconds(place.run), 1),
    }


def measure(place: Place) -> Found:
    """Scores of the test set, and the samples."""
    pairs = place.pairs("test")
    references: dict[str, list[str]] = {}
    for pair in pairs:
        references.setdefault(pair.source, []).append(pair.target)
    translator = load(place.run / MODEL).translator
    found = {source: one.text for source, one in zip(references, translator.run(references), strict=True)}
    each = score_translations([found[pair.source] for pair in pairs], [pair.target for pair in pairs])
    together = score_translations(list(found.values()), list(references.values()))
    drawn = random.Random(SEED).sample(sorted(references), min(SAMPLES, len(references)))
    rows = [(source, found[source], " / ".join(references[source])) for source in drawn]
    atomic_write(place.samples, markdown(place.direction, rows, each).encode())
    said(f"written: {place.samples}")
    return {
        "each": each.as_json(),
        "together": together.as_json(),
        "sources": len(references),
        "same_as_a_reference": sum(found[source] in several for source, several in references.items()),
        "samples": rows,
    }


def markdown(direction: Direction, rows: Sequence[tuple[str, str, str]], scores: TranslationScores) -> str:
    def cells(*texts: str) -> str:
        return "| " + " | ".join(text.replace("|", "\\|") for text in texts) + " |"

    return "\n".join(
        [
            f"{direction.name}, Tatoeba: {len(rows)} sources of the test set, drawn at random. {scores}.",
            "",
            cells("source", "translation", "references"),
            "|---|---|---|",
            *(cells(*row) for row in rows),
            "",
        ]
    )


def row(direction: Direction, found: Found) -> dict[str, object]:
    def bleu(kind: str) -> str:
        one = found[kind]
        return f"{one['bleu']:.2f} ({one['bleu_interval']['low']:.2f} to {one['bleu_interval']['high']:.2f})"

    same = found["same_as_a_reference"] / found["sources"]
    return {
        "direction": direction.name,
        "pairs learned from": f"{found['pairs']:,}",
        "parameters": f"{found['parameters']:,}",
        "training (min)": f"{found['train_seconds'] / 60:.0f}",
        "dev BLEU": f"{found['dev']['bleu']:.2f}",
        "BLEU of all test pairs": bleu("each"),
        "with all references": bleu("together"),
        "chrF": f"{found['each']['chrf']:.2f}",
        "word for word a reference": f"{100 * same:.1f} %",
    }


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--runs", type=Path, required=True, help="where parts, runs and samples are, or will be")
    options.add_argument("--languages", default=",".join(DIRECTIONS), help="some of es, zh")
    options.add_argument("--updates", type=int, help="other than the config says")
    given = options.parse_args()
    chosen = given.languages.split(",")
    if unknown := set(chosen) - set(DIRECTIONS):
        options.error(f"languages are es and zh, given {', '.join(sorted(unknown))}")
    if given.quick:
        given.updates, given.runs = 4, given.runs / "quick"
    results, rows, signatures = Results(given), [], []
    length = "" if given.updates is None else f" {given.updates} updates"
    for key in chosen:
        place = Place(key, given)
        learned = results.get(f"train {key}{length}", lambda place=place: train(place, given))
        scored = results.get(f"test {key}{length}", lambda place=place: measure(place))
        rows.append(row(place.direction, learned | scored))
        signatures.append(f"{key}: {scored['each']['bleu_signature']}")
    table(f"Tatoeba, {PARTS['test']:,} test pairs; BLEU (95 % interval)", rows, given)
    if not given.json:
        print("\n".join(signatures))


if __name__ == "__main__":
    main()
