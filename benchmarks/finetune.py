"""Fine-tuning MiniLM on film reviews: as good as the Trainer of `transformers`, and how much faster.

    UNMASK_DATA=folder python benchmarks/finetune.py [--seeds 3] [--out results.json]
    UNMASK_DATA=folder python benchmarks/finetune.py --speed [--rounds 9]    examples a second, interleaved
    UNMASK_DATA=folder python benchmarks/finetune.py --profile               where our time goes

Both sides start from the same folder and learn from the same 8,000 sentences of SST-2's training set (a fixed sample):
batch 32, rate 5e-5, 3 epochs, 10 % warm-up, then down in a straight line, decay 0.01 but not of biases and norms, norm
clipped at 1, dropout 0.1. Measured on the 872 sentences of the development set after every epoch.

For speed every contestant goes 10 times through its own loop (ours: `fit`; theirs: Trainer.train, and a bare loop
around their model) over the same 320 sentences; rounds are interleaved and the best counts. Texts are tokenized before,
on both sides; making batches counts, as do clipping and the optimizer; saving and evaluating do not. Seconds of the
processor are shown beside those of the clock: others who work on the machine hardly change them (with GOMP_SPINCOUNT=0;
else threads that wait count as work).
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np
import torch

from common import data_folder
from finetune_common import (
    BATCH,
    DECAY,
    EPS,
    WARMUP,
    Found,
    Results,
    Row,
    Run,
    across,
    loop_settings,
    parser,
    peer_optimizer,
    peer_step,
    said,
    sample,
    shuffled,
    tabbed,
    table,
    write_rows,
)
from pretrain import _kind
from unmask.models.fetch import fetch
from unmask.tasks.finetune import Job
from unmask.tasks.finetune_classify import prepare_classify
from unmask.tasks.finetune_settings import ClassifyRun, Files
from unmask.tasks.windows import Epochs
from unmask.train.loop import fit
from unmask.train.progress import Listener, Progress
from unmask.train.settings import TrainSettings

RATE, EPOCHS, SENTENCES = 5e-5, 3, 8000
STRETCH = 10  # updates of one timed stretch


def sst2(part: str, count: int | None = None) -> list[Row]:
    rows = [{"text": text, "label": label} for text, label in tabbed(data_folder() / "glue" / "SST-2" / f"{part}.tsv")]
    return sample(rows, count) if count else rows


def files_of(spare: Path, train: list[Row], dev: list[Row]) -> Files:
    paths = [str(write_rows(rows, spare / f"{name}.jsonl")) for name, rows in (("train", train), ("dev", dev))]
    return Files(model="minilm", train=paths[0], dev=paths[1])


def settings_of(seed: int, epochs: int) -> ClassifyRun:
    return ClassifyRun(problem="single", epochs=epochs, batch_size=BATCH, seed=seed, train=loop_settings(RATE))


# The peer: the real Trainer.


def tokenized(rows: list[Row]) -> list[dict[str, Any]]:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(str(fetch("minilm")))
    encoded = tokenizer([row["text"] for row in rows], truncation=True, max_length=512)
    labels = [int(row["label"]) for row in rows]
    return [{name: encoded[name][i] for name in encoded} | {"labels": labels[i]} for i in range(len(rows))]


def peer_model(seed: int) -> Any:
    from transformers import AutoModelForSequenceClassification

    torch.manual_seed(seed)
    return AutoModelForSequenceClassification.from_pretrained(str(fetch("minilm")), num_labels=2)


def collator() -> Any:
    from transformers import AutoTokenizer, DataCollatorWithPadding

    return DataCollatorWithPadding(AutoTokenizer.from_pretrained(str(fetch("minilm"))))


def trainer(model: Any, train: list[Any], dev: list[Any] | None, spare: str, options: dict[str, Any]) -> Any:
    from transformers import Trainer, TrainingArguments

    given: dict[str, Any] = {
        "output_dir": spare,
        "per_device_train_batch_size": BATCH,
        "per_device_eval_batch_size": 64,
        "learning_rate": RATE,
        "weight_decay": DECAY,
        "adam_epsilon": EPS,
        "max_grad_norm": 1.0,
        "lr_scheduler_type": "linear",
        "save_strategy": "no",
        "logging_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        "use_cpu": True,
        "dataloader_pin_memory": False,
        "remove_unused_columns": False,
    }

    def measure(found: Any) -> dict[str, float]:
        return {"accuracy": float((np.argmax(found.predictions, -1) == found.label_ids).mean())}

    return Trainer(
        model=model,
        args=TrainingArguments(**given | options),
        train_dataset=train,  # type: ignore[arg-type]
        eval_dataset=dev,  # type: ignore[arg-type]
        data_collator=collator(),
        compute_metrics=measure,
    )


def peer_run(train: list[Row], dev: list[Row], seed: int, epochs: int) -> Found:
    updates = epochs * -(-len(train) // BATCH)
    options = {
        "num_train_epochs": epochs,
        "warmup_steps": round(WARMUP * updates),
        "seed": seed,
        "eval_strategy": "epoch",
    }
    with tempfile.TemporaryDirectory() as spare:
        running = trainer(peer_model(seed), tokenized(train), tokenized(dev), spare, options)
        running.train()
    measured = [{"accuracy": one["eval_accuracy"]} for one in running.state.log_history if "eval_accuracy" in one]
    said(f"peer: {measured}")
    return {"scores": max(measured, key=lambda one: one["accuracy"]), "last": measured[-1]}


def parity(options: argparse.Namespace, results: Results, spare: Path) -> None:
    train = sst2("train", 64 if options.quick else SENTENCES)
    dev = sst2("dev")[: 64 if options.quick else None]
    epochs = 1 if options.quick else EPOCHS
    files = files_of(spare, train, dev)
    found: dict[str, list[Found]] = {"ours": [], "transformers Trainer": []}
    for seed in range(options.seeds):
        settings = settings_of(seed, epochs)
        found["ours"].append(results.get(f"ours seed {seed}", Run(settings, files).go))
        job: Callable[[], Found] = lambda seed=seed: peer_run(train, dev, seed, epochs)  # noqa: E731
        found["transformers Trainer"].append(results.get(f"transformers seed {seed}", job))
    rows: list[dict[str, object]] = [
        {
            "who": who,
            "accuracy, best epoch": across(runs, "accuracy"),
            "last epoch": across(runs, "accuracy", "last"),
            "each seed": " ".join(f"{run['scores']['accuracy']:.4f}" for run in runs),
        }
        for who, runs in found.items()
    ]
    title = f"SST-2, {len(train):,} sentences, {epochs} epochs, mean of {options.seeds} seeds (95 % interval)"
    table(title, rows, options)


# Speed.


class Spent(NamedTuple):
    """Seconds of the clock, and of the processor in all threads."""

    clock: float
    work: float

    @classmethod
    def now(cls) -> Spent:
        return cls(time.perf_counter(), time.process_time())

    def since(self, began: Spent) -> Spent:
        return Spent(self.clock - began.clock, self.work - began.work)


class Watched(Epochs[Any], Listener):
    """Batches, and when the first was asked for and the last update ended."""

    began = ended = Spent(0.0, 0.0)

    def __getitem__(self, number: int) -> object:
        if number == 0:
            self.began = Spent.now()
        return super().__getitem__(number)

    def update(self, progress: Progress) -> None:
        self.ended = Spent.now()


def ours_stretch(job: Job, updates: int) -> Callable[[int], Spent]:
    """So many updates of the loop that every run of ours uses."""
    plan = TrainSettings(updates=updates, **dict(loop_settings(RATE)))

    def once(number: int) -> Spent:
        watched = Watched(job.items, job.collate, BATCH, 1, number)
        with tempfile.TemporaryDirectory() as run:
            fit(job.model, job.task, watched, plan, Path(run), None, watched)
        return watched.ended.since(watched.began)

    return once


def trainer_stretch(train: list[Any], updates: int, more: dict[str, Any]) -> Callable[[int], Spent]:
    from transformers import TrainerCallback

    class Stamp(TrainerCallback):
        began = ended = Spent(0.0, 0.0)

        def on_train_begin(self, *_: Any, **__: Any) -> None:
            self.began = Spent.now()

        def on_train_end(self, *_: Any, **__: Any) -> None:
            self.ended = Spent.now()

    model = peer_model(0)

    def once(number: int) -> Spent:
        stamp = Stamp()
        with tempfile.TemporaryDirectory() as spare:
            running = trainer(model, train, None, spare, {"max_steps": updates, "seed": number, **more})
            running.add_callback(stamp)
            running.train()
        return stamp.ended.since(stamp.began)

    return once


def loop_stretch(train: list[Any]) -> Callable[[int], Spent]:
    model, padded = peer_model(0).train(), collator()
    optimizer = peer_optimizer(model, RATE)

    def once(number: int) -> Spent:
        began = Spent.now()
        for numbers in shuffled(len(train), 0, number):
            peer_step(model, optimizer, dict(padded([train[n] for n in numbers])))
        return Spent.now().since(began)

    return once


def speed(options: argparse.Namespace, spare: Path) -> None:
    updates = 2 if options.quick else STRETCH
    train = sst2("train", updates * BATCH)
    job = prepare_classify(settings_of(0, 1), files_of(spare, train, sst2("dev")[:64]), Listener())
    encoded = tokenized(train)
    contestants = {
        "ours": ours_stretch(job, updates),
        "transformers Trainer": trainer_stretch(encoded, updates, {}),
        "transformers Trainer, sorted by length": trainer_stretch(
            encoded, updates, {"train_sampling_strategy": "group_by_length"}
        ),
        "transformers model, bare loop": loop_stretch(encoded),
    }
    spent: dict[str, list[Spent]] = {name: [] for name in contestants}
    for number in range(options.rounds + 1):  # the first warms up
        for name, run in contestants.items():
            found = run(number)
            said(f"round {number}: {name} {found.clock:.2f} s, {found.work:.2f} s of the processor")
            if number:
                spent[name].append(found)
    ours = spent["ours"]
    rows: list[dict[str, object]] = [
        {
            "who": name,
            "examples/s": round(len(train) / min(one.clock for one in found), 1),
            "ours is faster": f"{min(one.clock for one in found) / min(one.clock for one in ours):.2f} times",
            "by the median": f"{median(one.clock for one in found) / median(one.clock for one in ours):.2f} times",
            "processor (s)": f"{min(one.work for one in found):.2f}",
            "ours works less": f"{min(one.work for one in found) / min(one.work for one in ours):.2f} times",
        }
        for name, found in spent.items()
    ]
    title = f"Fine-tuning MiniLM on SST-2, {updates} updates of {BATCH}, best of {options.rounds} interleaved rounds"
    table(title, rows, options)


def profile(options: argparse.Namespace, spare: Path) -> None:
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as recording

    updates = 2 if options.quick else STRETCH
    train = sst2("train", updates * BATCH)
    job = prepare_classify(settings_of(0, 1), files_of(spare, train, sst2("dev")[:64]), Listener())
    run = ours_stretch(job, updates)
    run(0)
    with recording(activities=[ProfilerActivity.CPU]) as record:
        run(1)
    kinds: Counter[str] = Counter()
    for event in record.key_averages():
        kinds[_kind(event.key)] += event.self_cpu_time_total
    total = sum(kinds.values())
    rows: list[dict[str, object]] = [
        {"part": name, "share": f"{100 * spent / total:.1f} %"} for name, spent in kinds.most_common()
    ]
    source = Epochs(job.items, job.collate, BATCH)
    began = time.perf_counter()
    for number in range(updates):
        source[number]
    rows.append({"part": "making a batch (ms)", "share": f"{1000 * (time.perf_counter() - began) / updates:.2f}"})
    table("Where our time goes (the loop with its record; work of torch only)", rows, options)


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--rounds", type=int, default=9)
    options.add_argument("--speed", action="store_true", help="examples a second, interleaved")
    options.add_argument("--profile", action="store_true", help="where our time goes")
    given = options.parse_args()
    if given.quick:
        given.seeds, given.rounds = 1, 1
    results = Results(given)
    with tempfile.TemporaryDirectory() as name:
        spare = Path(name)
        if given.speed:
            speed(given, spare)
        elif given.profile:
            profile(given, spare)
        else:
            parity(given, results, spare)


if __name__ == "__main__":
    main()
