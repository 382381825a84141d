"""What a tagging run is made of, from its files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from torch import Tensor

from unmask.data.examples import TaggedExample
from unmask.data.tagged import TaggedFile, read_tagged
from unmask.errors import DataError, SettingsError
from unmask.models.bert import Bert
from unmask.models.fetch import fetch
from unmask.models.settings import TagSettings
from unmask.report.outcome import DataFacts
from unmask.tasks.finetune import Job, load_start, resolved_usage, set_apart, sha256_of
from unmask.tasks.finetune_settings import Files, TagRun
from unmask.tasks.scoring import Scored, score_tags
from unmask.tasks.tag import CrfTagging, TagEvaluator, Tagging, collate_tags, tag
from unmask.tasks.tag_texts import check_labelled, tag_texts, tag_windows
from unmask.tasks.usage import Usage
from unmask.text.tokenizer import Tokenizer
from unmask.train.losses import class_weights
from unmask.train.progress import Listener

#: What each scheme writes before a type, in the order of labels.
_LETTERS = {"BIO": "BI", "BIOES": "BIES"}


def prepare_tag(settings: TagRun, files: Files, listener: Listener) -> Job:
    """Read both files, decide what is open, and make everything ready for the loop."""
    _check_options(settings)
    train = read_tagged(files.train, encoding=files.encoding)
    _check_trainable(train)
    notes = [f"{files.train}: {sentence}" for sentence in train.said]
    examples: Sequence[TaggedExample] = train.examples
    dev = _dev(files, train, notes)
    if dev is None:
        examples, dev = set_apart(train.examples, settings.dev_share, settings.seed, files.train)
        notes.append(f"no development file: {len(dev):,} of the {len(train.examples):,} examples are set apart for it")
    for note in notes:
        listener.say(note)
    labels = train.labels if train.plain else _labels(train.labels, settings.scheme)
    head = TagSettings(labels=labels, crf=settings.crf, dropout=settings.head_dropout)
    tokenizer = Tokenizer.from_folder(fetch(files.model))
    model = load_start(settings, files, head)
    limit = model.settings.max_length
    usage = Usage(task="tag", long_text=settings.long_text, scheme=None if train.plain else settings.scheme)
    lengths = [len(encoding) for encoding in tokenizer.encode_batch([example.text for example in examples])]
    usage, why = resolved_usage(usage, "tag", lengths, limit)
    listener.say(why)
    items = tag_windows(tokenizer, examples, usage, labels, limit)
    if not items:
        raise DataError("has no word that the model's tokenizer has a token for", file=files.train)
    texts = tag_texts(tokenizer, dev, usage, limit)

    def measure(model: Bert) -> Scored:
        said = list(tag(model, tokenizer, usage, dev))
        return score_tags(usage, [example.text for example in dev], texts, said)

    task = (
        CrfTagging(head) if settings.crf else Tagging(head, settings.loss.smoothing, _weights(settings, labels, items))
    )
    return Job(
        model=model,
        tokenizer=tokenizer,
        usage=usage,
        task=task,
        items=items,
        collate=collate_tags,
        evaluator=TagEvaluator(texts, head, usage),
        data=(
            _facts("train", files.train, examples, sum(len(item.ready) for item in items)),
            _facts("dev", files.dev or files.train, dev, sum(len(w) for text in texts for w in text.windows)),
        ),
        notes=(*notes, why),
        measure=measure,
    )


def _check_options(settings: TagRun) -> None:
    """SettingsError for what a CRF, which scores all labels of a text together, has no use for."""
    if settings.crf and (settings.loss.smoothing or settings.loss.class_weights != "none" or settings.r_drop):
        raise SettingsError("crf: goes without label smoothing, class weights and R-Drop; leave out one or the other")


def _check_trainable(train: TaggedFile) -> None:
    check_labelled(train.path, train.examples, plain=train.plain)
    if len(train.labels) < (2 if train.plain else 1):
        only = f"only the tag {train.labels[0]!r}" if train.plain else "no stretch with a type"
        raise DataError(f"has {only}, so there is nothing to learn", file=train.path)


def _labels(types: Sequence[str], scheme: str) -> tuple[str, ...]:
    return ("O", *(f"{letter}-{type}" if type else letter for type in types for letter in _LETTERS[scheme]))


def _dev(files: Files, train: TaggedFile, notes: list[str]) -> list[TaggedExample] | None:
    if files.dev is None:
        return None
    found = read_tagged(files.dev, encoding=files.encoding)
    check_labelled(files.dev, found.examples, plain=found.plain)
    if found.plain != train.plain:
        raise DataError(
            f"its tags {'mark no stretches' if found.plain else 'mark stretches'}, unlike those of {files.train}",
            file=files.dev,
        )
    unknown = [label for label in found.labels if label not in train.labels]
    if unknown:
        raise DataError(
            f"the label {unknown[0]!r} is unknown; those of the training file are {', '.join(train.labels[:20])}",
            file=files.dev,
            line=_first_line(found, unknown[0]),
        )
    notes += [f"{files.dev}: {sentence}" for sentence in found.said]
    return found.examples


def _first_line(found: TaggedFile, label: str) -> int | None:
    for example in found.examples:
        types = {entity.type for entity in example.entities or ()}
        if label in types or label in (example.tags or ()):
            return example.line
    return None


def _weights(settings: TagRun, labels: Sequence[str], items: Sequence[object]) -> Tensor | None:
    counts: Counter[int] = Counter()
    for item in items:
        counts.update(item.targets.tolist())  # type: ignore[attr-defined]
    return class_weights(settings.loss, labels, [counts[number] for number in range(len(labels))])


def _facts(role: str, file: str, examples: Sequence[TaggedExample], tokens: int) -> DataFacts:
    counts = Counter(entity.type for example in examples for entity in example.entities or ())
    if not counts:
        counts = Counter(tag for example in examples for tag in example.tags or ())
    return DataFacts(role, file, len(examples), tokens, sha256_of(file), dict(counts.most_common()))  # type: ignore[arg-type]
