"""Answers in texts: SQuAD with MiniLM, ours beside `transformers`, and CMRC 2018 with the Chinese model of ours.

    UNMASK_DATA=folder python benchmarks/answers.py [--questions N] [--cmrc N] [--only-cmrc] [--out results.json]

Only SQuAD's development set of v1.1 is at hand, and in this copy an answer's place is that of its first occurrence.
So its 48 articles are split by title (fixed): 38 to learn from, only questions with an answer whose text occurs
exactly once in its context (that one is learned), and 10 held out with all questions and all answers. Windows of 384
tokens that share 128, batch 32, rate 1e-4, 2 epochs, 10 % warm-up; answers of at most 30 tokens. Both sides are marked
by one scorer, and compared question by question. The peer's batches are grouped by length, or padding would take most
of its time. CMRC: ours alone, rate 5e-4, on 500 questions of its development set (a fixed sample).
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from common import data_folder
from finetune_common import (
    BATCH,
    Found,
    Recipe,
    Results,
    Run,
    across,
    loop_settings,
    parser,
    shuffled,
    table,
    train_peer,
)
from unmask.longtext.settings import LongTextSettings
from unmask.metrics.answers import exact_match, word_f1
from unmask.metrics.compare import paired_test
from unmask.models.fetch import fetch
from unmask.tasks.finetune_settings import AnswerRun, Files

LENGTH, SHARED, LONGEST, HELD_OUT = 384, 128, 30, 10
RATE, EPOCHS = 1e-4, 2
CMRC_DEV = 500
#: So many batches at once are sorted by length for the peer, which pads.
POOL = 50
Question = dict[str, Any]  # id, question, context, answers (texts), start (of the first answer)


def questions(path: Path) -> list[Question]:
    """All questions of a file in SQuAD's form, with the title of their article."""
    found = []
    for article in json.loads(path.read_text(encoding="utf-8"))["data"]:
        for paragraph in article["paragraphs"]:
            for one in paragraph["qas"]:
                texts = [answer["text"] for answer in one["answers"]]
                found.append({**one, "title": article["title"], "context": paragraph["context"], "answers": texts})
    return found


def squad_split() -> tuple[list[Question], list[Question]]:
    """What is learned from and what is held out, no article in both."""
    every = questions(data_folder() / "squad" / "dev-v1.1.reconstructed.json")
    titles = sorted({question["title"] for question in every})
    random.Random(0).shuffle(titles)
    held_out = set(titles[:HELD_OUT])
    learned = []
    for question in every:
        clear = [text for text in question["answers"] if question["context"].count(text) == 1]
        if question["title"] not in held_out and clear:
            learned.append({**question, "answers": clear[:1]})
    return learned, [question for question in every if question["title"] in held_out]


def write(chosen: list[Question], path: Path) -> str:
    """Questions as JSON lines; the place of an answer is where its text first stands."""
    lines = []
    for one in chosen:
        answers = [{"text": text, "answer_start": one["context"].index(text)} for text in one["answers"]]
        row = {"id": one["id"], "question": one["question"], "context": one["context"], "answers": answers}
        lines.append(json.dumps(row, ensure_ascii=False) + "\n")
    path.write_text("".join(lines), encoding="utf-8")
    return str(path)


def settings_of(seed: int, epochs: int, rate: float = RATE) -> AnswerRun:
    windows = LongTextSettings(strategy="windows", max_length=LENGTH, overlap=SHARED)
    return AnswerRun(epochs=epochs, seed=seed, long_text=windows, max_answer=LONGEST, train=loop_settings(rate))


# The peer: windows, labels and answers as the examples of `transformers` make them.


class Peer:
    """BertForQuestionAnswering on the same questions."""

    def __init__(self, folder: str, learned: list[Question], held_out: list[Question]) -> None:
        from transformers import AutoTokenizer

        self.folder, self.held_out = folder, held_out
        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        self.train = list(self._labelled(learned))
        self.dev = list(self._windows(held_out))

    def _windows(self, chosen: list[Question]) -> Iterator[dict[str, Any]]:
        texts = [[one["question"] for one in chosen], [one["context"] for one in chosen]]
        sizes = {"truncation": "only_second", "max_length": LENGTH, "stride": SHARED}
        found = self.tokenizer(*texts, **sizes, return_overflowing_tokens=True, return_offsets_mapping=True)
        for number, owner in enumerate(found["overflow_to_sample_mapping"]):
            inputs = {name: found[name][number] for name in ("input_ids", "token_type_ids", "attention_mask")}
            second = [kind == 1 for kind in found.sequence_ids(number)]
            yield {"inputs": inputs, "owner": owner, "places": found["offset_mapping"][number], "second": second}

    def _labelled(self, chosen: list[Question]) -> Iterator[dict[str, Any]]:
        for window in self._windows(chosen):
            one = chosen[window["owner"]]
            begin = one["context"].index(one["answers"][0])
            end = begin + len(one["answers"][0])
            rows = [row for row, inside in enumerate(window["second"]) if inside]
            held = [row for row in rows if window["places"][row][1] > begin and window["places"][row][0] < end]
            first, last = window["places"][rows[0]][0], window["places"][rows[-1]][1]
            span = (held[0], held[-1]) if held and first <= begin and end <= last else (0, 0)
            yield {**window["inputs"], "start_positions": span[0], "end_positions": span[1]}

    def padded(self, examples: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        return dict(self.tokenizer.pad(examples, return_tensors="pt"))

    def grouped(self, seed: int, epoch: int) -> list[list[int]]:
        """The batches of an epoch, each of windows of nearly equal length, as an option of the Trainer makes them."""
        order = [number for batch in shuffled(len(self.train), seed, epoch) for number in batch]
        found = []
        for first in range(0, len(order), POOL * BATCH):
            pool = sorted(order[first : first + POOL * BATCH], key=lambda number: len(self.train[number]["input_ids"]))
            found += [pool[start : start + BATCH] for start in range(0, len(pool), BATCH)]
        random.Random(1000 * seed + epoch).shuffle(found)
        return found

    def answers(self, model: Any) -> list[str]:
        """The best stretch of each question over all of its windows."""
        best = [(-1e9, "")] * len(self.held_out)
        for start in range(0, len(self.dev), BATCH):
            windows = self.dev[start : start + BATCH]
            found = model(**self.padded([window["inputs"] for window in windows]))
            pairs = zip(windows, found.start_logits.float(), found.end_logits.float(), strict=True)
            for window, begins, ends in pairs:
                score, span = _best_span(begins[: len(window["second"])], ends[: len(window["second"])], window)
                if span is not None and score > best[window["owner"]][0]:
                    context = self.held_out[window["owner"]]["context"]
                    best[window["owner"]] = (score, context[span[0] : span[1]])
        return [text for _, text in best]

    def run(self, seed: int, epochs: int) -> Found:
        from transformers import AutoModelForQuestionAnswering

        torch.manual_seed(seed)
        model = AutoModelForQuestionAnswering.from_pretrained(self.folder)
        marks: dict[float, list[float]] = {}

        def measure() -> dict[str, float]:
            said = self.answers(model)
            pairs = list(zip(self.held_out, said, strict=True))
            f1 = [max(word_f1(gold, text) for gold in one["answers"]) for one, text in pairs]
            exact = [max(exact_match(gold, text) for gold in one["answers"]) for one, text in pairs]
            found = {"f1": sum(f1) / len(f1), "exact": sum(exact) / len(exact)}
            marks[found["f1"]] = f1
            return found

        recipe = Recipe(epochs, RATE, -(-len(self.train) // BATCH), seed, "f1")

        def batches(epoch: int) -> Iterator[dict[str, torch.Tensor]]:
            for numbers in self.grouped(seed, epoch):
                yield self.padded([self.train[number] for number in numbers])

        found = train_peer(model, recipe, batches, measure)
        return {**found, "right": [round(mark, 4) for mark in marks[found["scores"]["f1"]]]}


def _best_span(begins: torch.Tensor, ends: torch.Tensor, window: dict[str, Any]) -> tuple[float, Any]:
    outside = ~torch.tensor(window["second"])
    scores = begins.masked_fill(outside, -1e9)[:, None] + ends.masked_fill(outside, -1e9)[None, :]
    possible = torch.ones_like(scores, dtype=torch.bool).triu().tril(LONGEST - 1)
    scores = scores.masked_fill(~possible, -1e9)
    score, place = scores.flatten().max(0)
    first, last = divmod(int(place), len(ends))
    if float(score) < -1e8:
        return float(score), None
    return float(score), (window["places"][first][0], window["places"][last][1])


def squad(options: argparse.Namespace, results: Results, spare: Path) -> None:
    learned, held_out = squad_split()
    random.Random(1).shuffle(learned)
    learned = learned[: 24 if options.quick else options.questions]
    held_out = held_out[: 24 if options.quick else None]
    epochs = 1 if options.quick else EPOCHS
    files = Files(model="minilm", train=write(learned, spare / "train.jsonl"), dev=write(held_out, spare / "dev.jsonl"))
    ours, theirs = [], []
    peer = Peer(str(fetch("minilm")), learned, held_out)
    for seed in range(options.seeds):
        key = f"{len(learned)} questions, seed {seed}"
        ours.append(results.get(f"SQuAD, ours, {key}", Run(settings_of(seed, epochs), files, marks=True).go))
        theirs.append(results.get(f"SQuAD, transformers, {key}", lambda seed=seed: peer.run(seed, epochs)))  # type: ignore[misc]
    title = f"SQuAD, {len(learned):,} questions learned, {len(held_out):,} held out, {epochs} epochs"
    table(title, [_row("ours", ours), _row("transformers", theirs)], options)
    test = paired_test(ours[0]["right"], theirs[0]["right"], names=("ours", "transformers"))
    print(f"Seed 0, F1 question by question: {test.verdict}", flush=True)


def cmrc(options: argparse.Namespace, results: Results, spare: Path) -> None:
    folder = data_folder() / "cmrc2018"
    learned = [one for one in questions(folder / "train.json") if one["answers"][0] in one["context"]]
    held_out = [one for one in questions(folder / "dev.json") if all(a in one["context"] for a in one["answers"])]
    random.Random(1).shuffle(learned)
    random.Random(1).shuffle(held_out)
    learned, held_out = learned[: 16 if options.quick else options.cmrc], held_out[: 16 if options.quick else CMRC_DEV]
    epochs = 1 if options.quick else EPOCHS
    train, dev = write(learned, spare / "zh-train.jsonl"), write(held_out, spare / "zh-dev.jsonl")
    files = Files(model="mini-zh", train=train, dev=dev)
    settings = settings_of(0, epochs, 5e-4)
    run = results.get(f"CMRC 2018, ours, {len(learned)} questions, seed 0", Run(settings, files).go)
    table(f"CMRC 2018, {len(learned):,} questions learned, {epochs} epochs, mini-zh", [_row("ours", [run])], options)


def _row(who: str, runs: list[Found]) -> dict[str, object]:
    return {
        "who": who,
        "F1, best epoch": across(runs, "f1"),
        "exact, best epoch": across(runs, "exact"),
        "F1, last epoch": across(runs, "f1", "last"),
        "seeds": len(runs),
        "training (min)": f"{sum(run['train_seconds'] for run in runs) / len(runs) / 60:.1f}",
    }


def main() -> None:
    made = parser(__doc__, seeds=1)
    made.add_argument("--questions", type=int, help="SQuAD: learn from so many only")
    made.add_argument("--cmrc", type=int, default=5000, help="CMRC: learn from so many only; 0: leave it out")
    made.add_argument("--only-cmrc", action="store_true", help="leave SQuAD out")
    options = made.parse_args()
    results = Results(options)
    with tempfile.TemporaryDirectory() as spare:
        if not options.only_cmrc:
            squad(options, results, Path(spare))
        if options.cmrc:
            cmrc(options, results, Path(spare))


if __name__ == "__main__":
    main()
