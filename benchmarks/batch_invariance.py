"""Does what a model says of a text depend on the texts beside it? Labels, tags and answers in batches of all kinds.

    UNMASK_DATA=folder python benchmarks/batch_invariance.py [--texts 2000] [--out results.json]

For each task a model is fine-tuned briefly (so that it says different things, and is often unsure), then 2,000 texts
are read one by one, and in batches of 7, of 32, of 32 in random order, and sorted by length up to 2,048 tokens as the
library does. Every label, tag sequence and answer is compared with that of its text read alone. Numbers may differ in
the last bits, since products of matrices of other sizes add up in another order: the greatest difference is shown too.
"""

from __future__ import annotations

import random
import tempfile
from collections.abc import Callable, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from answers import questions
from answers import write as write_questions
from common import data_folder
from finetune import sst2
from finetune_common import Found, Results, Run, loop_settings, parser, predictor, table, write_rows
from unmask.data.batching import token_budget_batches
from unmask.data.examples import TextExample
from unmask.data.questions import read_questions
from unmask.data.tagged import read_tagged
from unmask.longtext.settings import LongTextSettings
from unmask.nn.modes import evaluating
from unmask.tasks.answer import answered, question_texts
from unmask.tasks.classify import encode_texts
from unmask.tasks.finetune_settings import AnswerRun, ClassifyRun, Files, TagRun
from unmask.tasks.predict import Predictor
from unmask.tasks.tag import predictions
from unmask.tasks.tag_texts import tag_texts
from unmask.tasks.windows import Ready, batch_of, by_text, rows_of

Said = tuple[list[Any], list[Tensor]]
Reader = Callable[[Sequence[Sequence[int]]], Said]
"""Windows in these batches → what is said of each text, and the numbers of each window."""


def groups_of(windows: Sequence[Ready], texts: Sequence[int]) -> dict[str, list[list[int]]]:
    """Batches of window numbers; `texts` says how many windows each text has."""
    own, start = [], 0
    for count in texts:
        own.append(list(range(start, start + count)))
        start += count
    mixed = list(range(len(windows)))
    random.Random(0).shuffle(mixed)
    return {
        "1 text": own,
        "7 texts": _joined(own, 7),
        "32 texts": _joined(own, 32),
        "32, random order": [mixed[first : first + 32] for first in range(0, len(mixed), 32)],
        "2,048 tokens, by length": token_budget_batches([len(window) for window in windows]),
    }


def _joined(own: list[list[int]], count: int) -> list[list[int]]:
    return [list(chain(*own[first : first + count])) for first in range(0, len(own), count)]


@torch.inference_mode()
def run(model: Any, windows: Sequence[Ready], groups: Sequence[Sequence[int]], read: Callable[[Any], Any]) -> list[Any]:
    """What `read` makes of each window, read in these batches."""
    found: dict[int, Any] = {}
    with evaluating(model):
        for numbers in groups:
            found.update(zip(numbers, read(model(batch_of([windows[n] for n in numbers]))), strict=True))
    return [found[number] for number in range(len(windows))]


def of_labels(using: Predictor, count: int) -> tuple[list[Ready], list[int], Reader]:
    rows = sst2("train")[-count:]
    examples = [TextExample(row["text"]) for row in rows]
    model, limit = using.model, using.model.settings.max_length
    encodings = encode_texts(using.tokenizer, examples, using.usage, limit)
    windows = [window for encoding in encodings for window in Ready.all_of(encoding)]

    def reader(groups: Sequence[Sequence[int]]) -> Said:
        found = run(model, windows, groups, lambda encoded: list(model.class_logits(encoded)))
        return [int(logits.argmax()) for logits in found], found

    return windows, [encoding.num_windows for encoding in encodings], reader


def of_tags(using: Predictor, count: int) -> tuple[list[Ready], list[int], Reader]:
    examples = read_tagged(data_folder() / "cluener2020" / "train.json").examples[-count:]
    model = using.model
    texts = tag_texts(using.tokenizer, examples, using.usage, model.settings.max_length)
    windows, counts = [window for text in texts for window in text.windows], [len(text.windows) for text in texts]

    def reader(groups: Sequence[Sequence[int]]) -> Said:
        found = run(model, windows, groups, lambda encoded: rows_of(encoded, model.tag_logits(encoded)))
        words = [text.of_words(logits) for text, logits in zip(texts, by_text(found, counts), strict=True)]
        with torch.inference_mode():
            return [one.words for one in predictions(model, using.usage, texts, words)], found

    return windows, counts, reader


def of_answers(using: Predictor, count: int, file: str) -> tuple[list[Ready], list[int], Reader]:
    examples = read_questions(file).examples[:count]
    model = using.model
    texts = question_texts(using.tokenizer, examples, using.usage, model.settings.max_length)
    windows, counts = [window for text in texts for window in text.windows], [len(text.windows) for text in texts]

    def reader(groups: Sequence[Sequence[int]]) -> Said:
        found = run(model, windows, groups, lambda encoded: rows_of(encoded, model.span_logits(encoded)))
        said = [answered(text, logits, using.usage) for text, logits in zip(texts, by_text(found, counts), strict=True)]
        return [(one.start, one.end, one.answer) for one in said], found

    return windows, counts, reader


def compared(windows: Sequence[Ready], counts: Sequence[int], reader: Reader) -> Found:
    """How many texts get another answer in each kind of batch than alone."""
    groups = groups_of(windows, counts)
    alone, numbers = reader(groups.pop("1 text"))
    found: Found = {"texts": len(counts), "answers": len(set(map(str, alone)))}
    for name, chosen in groups.items():
        said, others = reader(chosen)
        differ = sum(a != b for a, b in zip(alone, said, strict=True))
        most = max(float((a - b).abs().max()) for a, b in zip(numbers, others, strict=True))
        found[name] = {"differ": differ, "most": most}
    return found


def trained(task: str, few: int, spare: Path) -> Predictor:
    """A model that has learned a little."""
    loop = loop_settings(1e-4)
    place, train = spare / task, spare / f"{task}.jsonl"
    if task == "labels":
        files = Files(model="minilm", train=str(write_rows(sst2("train", few), train)))
        Run(ClassifyRun(problem="single", epochs=1, train=loop), files).go(place)
    elif task == "tags":
        lines = (data_folder() / "cluener2020" / "train.json").read_text(encoding="utf-8").splitlines()[:few]
        train.write_text("\n".join(lines) + "\n", encoding="utf-8")
        files = Files(model="mini-zh", train=str(train))
        Run(TagRun(epochs=2, crf=True, dev_share=0.1, train=loop), files).go(place)
    else:
        chosen = questions(data_folder() / "squad" / "dev-v1.1.reconstructed.json")[: few // 4]
        windows = LongTextSettings(strategy="windows", max_length=384, overlap=128)
        files = Files(model="minilm", train=write_questions(chosen, train))
        Run(AnswerRun(epochs=1, long_text=windows, train=loop), files).go(place)
    return predictor(place)


def measured(task: str, texts: int, few: int) -> Found:
    with tempfile.TemporaryDirectory() as name:
        using = trained(task, few, Path(name))
        if task == "labels":
            return compared(*of_labels(using, texts))
        if task == "tags":
            return compared(*of_tags(using, texts))
        asked = questions(data_folder() / "squad" / "dev-v1.1.reconstructed.json")[-texts:]
        return compared(*of_answers(using, texts, write_questions(asked, Path(name) / "asked.jsonl")))


def main() -> None:
    made = parser(__doc__, seeds=1)
    made.add_argument("--texts", type=int, default=2000)
    options = made.parse_args()
    results = Results(options)
    texts, few = (40, 60) if options.quick else (options.texts, 2000)
    rows: list[dict[str, object]] = []
    for task in ("labels", "tags", "answers"):
        found = results.get(f"{task}, {texts} texts", lambda task=task: measured(task, texts, few))  # type: ignore[misc]
        for name, one in found.items():
            if isinstance(one, dict):
                same = 100 * (1 - one["differ"] / found["texts"])
                rows.append(
                    {
                        "task": task,
                        "batches": name,
                        "texts": found["texts"],
                        "different answers given": found["answers"],
                        "the same as alone": f"{same:.2f} %",
                        "texts that differ": one["differ"],
                        "greatest difference of a number": f"{one['most']:.1e}",
                    }
                )
    table("What is said of a text, in batches against alone", rows, options)


if __name__ == "__main__":
    main()
