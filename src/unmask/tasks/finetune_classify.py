"""What a classification run is made of, from its files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from torch import Tensor

from unmask.data.examples import TextExample
from unmask.data.labelled import LabelledFile, read_labelled
from unmask.errors import DataError, SettingsError, TaskError
from unmask.longtext.report import Tally
from unmask.models.bert import Bert
from unmask.models.fetch import fetch
from unmask.models.settings import ClassifySettings
from unmask.report.outcome import DataFacts
from unmask.tasks.classify import Classification, ClassifyCollate, ClassifyEvaluator, classify, labelled
from unmask.tasks.finetune import Job, load_start, resolved_usage, set_apart, sha256_of
from unmask.tasks.finetune_settings import ClassifyRun, Files
from unmask.tasks.scoring import Scored, score_classes
from unmask.tasks.usage import Usage
from unmask.text.tokenizer import Tokenizer
from unmask.train.losses import class_weights
from unmask.train.progress import Listener


def prepare_classify(settings: ClassifyRun, files: Files, listener: Listener) -> Job:
    """Read both files, decide what is open, and make everything ready for the loop."""
    train = _train(settings, files)
    _check_options(settings, train.problem)
    notes = [f"{files.train}: {sentence}" for sentence in train.said]
    examples, dev = train.examples, _dev(settings, files, train, notes)
    if dev is None:
        examples, dev = set_apart(examples, settings.dev_share, settings.seed, files.train)
        notes.append(f"no development file: {len(dev):,} of the {len(train.examples):,} examples are set apart for it")
    for note in notes:
        listener.say(note)
    head = _head(settings, train)
    tokenizer = Tokenizer.from_folder(fetch(files.model))
    model = load_start(settings, files, head)
    if train.columns.pair is not None and model.settings.num_segments == 1:
        raise TaskError(f"{files.model}: knows one segment, so it cannot tell the texts of a pair apart")
    usage = _usage(settings, train)
    limit = model.settings.max_length
    usage, why = resolved_usage(usage, "classify", token_lengths(tokenizer, examples), limit)
    listener.say(why)
    tally = Tally()
    items = labelled(tokenizer, examples, usage, head, limit, tally=tally)
    if tally.report.dropped:
        why = f"{why}; of the training texts, {tally.report}"
        listener.say(f"of the training texts, {tally.report}")
    dev_items = labelled(tokenizer, dev, usage, head, limit, training=False)
    weights = _weights(settings, head, examples)

    def measure(model: Bert) -> Scored:
        return score_classes(head, usage, dev, list(classify(model, tokenizer, usage, dev)))

    return Job(
        model=model,
        tokenizer=tokenizer,
        usage=usage,
        task=Classification(head, settings.loss.smoothing, weights),
        items=items,
        collate=ClassifyCollate(head, usage),
        evaluator=ClassifyEvaluator(dev_items, head, usage),
        data=(
            _facts("train", files.train, examples, sum(len(w) for item in items for w in item.windows)),
            _facts("dev", files.dev or files.train, dev, sum(len(w) for item in dev_items for w in item.windows)),
        ),
        notes=(*notes, why),
        measure=measure,
    )


def _train(settings: ClassifyRun, files: Files) -> LabelledFile:
    found = read_labelled(
        files.train, files.columns, settings.problem, separator=files.separator, encoding=files.encoding
    )
    found.check_trainable()
    return found


def _usage(settings: ClassifyRun, train: LabelledFile) -> Usage:
    return Usage(
        task="classify",
        pair=train.columns.pair is not None,
        long_text=settings.long_text,
        threshold=settings.threshold,
        separator=train.separator,
    )


def _head(settings: ClassifyRun, train: LabelledFile) -> ClassifySettings:
    return ClassifySettings(
        labels=train.labels or ("score",),
        pooling=settings.pooling,
        dropout=settings.head_dropout,
        problem=train.problem,
        window_attention=settings.long_text.join == "attention",
    )


def _check_options(settings: ClassifyRun, problem: str) -> None:
    """SettingsError for what means something only where a text has exactly one label."""
    given = {
        "loss.smoothing": settings.loss.smoothing > 0,
        "loss.class_weights": settings.loss.class_weights != "none",
        "r_drop": settings.r_drop is not None,
    }
    if problem != "single" and any(given.values()):
        name = next(name for name, said in given.items() if said)
        raise SettingsError(f"{name}: is for one label a text, but the problem is {problem}; leave it out")


def _dev(settings: ClassifyRun, files: Files, train: LabelledFile, notes: list[str]) -> list[TextExample] | None:
    if files.dev is None:
        return None
    found = read_labelled(files.dev, files.columns, train.problem, separator=train.separator, encoding=files.encoding)
    if (found.columns.pair is None) != (train.columns.pair is None):
        raise DataError(f"has {_texts(found)} a row but the training file has {_texts(train)}", file=files.dev)
    if train.problem != "regression":
        found.check_labels(train.labels)
    notes += [f"{files.dev}: {sentence}" for sentence in found.said]
    return found.examples


def _texts(found: LabelledFile) -> str:
    return "one text" if found.columns.pair is None else "two texts"


def token_lengths(tokenizer: Tokenizer, examples: Sequence[TextExample]) -> list[int]:
    """How many tokens each text, or pair, has, special ones included."""
    lengths = []
    for start in range(0, len(examples), 4096):
        part = examples[start : start + 4096]
        pairs = [example.pair or "" for example in part] if part[0].pair is not None else None
        lengths += [len(encoding) for encoding in tokenizer.encode_batch([example.text for example in part], pairs)]
    return lengths


def _weights(settings: ClassifyRun, head: ClassifySettings, examples: Sequence[TextExample]) -> Tensor | None:
    if head.problem != "single":
        return None
    counts = Counter(str(example.label) for example in examples)
    return class_weights(settings.loss, head.labels, [counts[label] for label in head.labels])


def _facts(role: str, file: str, examples: Sequence[TextExample], tokens: int) -> DataFacts:
    counts: Counter[str] = Counter()
    for example in examples:
        if not isinstance(example.label, float):
            counts.update([example.label] if isinstance(example.label, str) else example.label or ())
    return DataFacts(role, file, len(examples), tokens, sha256_of(file), dict(counts.most_common()))  # type: ignore[arg-type]
