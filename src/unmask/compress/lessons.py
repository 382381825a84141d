"""What a model can learn from again: its own task's examples, read as it reads them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch.nn.functional as F
from torch import Tensor, nn

from unmask.data.labelled import read_labelled
from unmask.data.questions import read_questions
from unmask.data.tagged import read_tagged
from unmask.errors import DataError
from unmask.models.bert import Bert
from unmask.nn.heads import TagHead
from unmask.tasks import classify, tag
from unmask.tasks.answer import AnswerBatch, Answering, answer_windows, check_answered, collate_answers
from unmask.tasks.tag_texts import check_labelled, tag_windows
from unmask.tasks.usage import Usage
from unmask.text.tokenizer import Tokenizer


class Lesson(Protocol):
    """A task with rows of logits: what both learning from labels and from a teacher need."""

    def counts(self, batch: Any) -> dict[str, float]:
        """How many items the loss is over."""

    def rows(self, batch: Any) -> int:
        """How many rows the logits have."""

    def logits(self, model: nn.Module, batch: Any) -> Tensor:
        """(rows, classes), by one forward pass."""

    def loss(self, logits: Tensor, batch: Any) -> dict[str, Tensor]:
        """The loss of these logits."""


class SpanRows(Answering):
    """Question answering as rows of logits: for each window where its answer starts, then where it ends."""

    def rows(self, batch: AnswerBatch) -> int:
        """Two for each window."""
        return 2 * len(batch.targets)

    def logits(self, model: nn.Module, batch: AnswerBatch) -> Tensor:
        """(2 · W, T): every token of a window competes; what is not there has no chance."""
        assert isinstance(model, Bert)
        encoded = model(batch.batch)
        # Finite, so that no share times no share stays nothing.
        return encoded.layout.pad(model.span_logits(encoded).float(), -1e4).transpose(1, 2).flatten(0, 1)

    def loss(self, logits: Tensor, batch: AnswerBatch) -> dict[str, Tensor]:
        """Cross-entropy of both ends, their mean."""
        return {"loss": F.cross_entropy(logits, batch.targets.flatten(), reduction="sum") / 2}


class CrfRows(tag.CrfTagging):
    """Tagging with a CRF: rows are its emissions."""

    def __init__(self, model: Bert) -> None:
        super().__init__(tag.head_of(model))
        head = model.heads["tag"]
        assert isinstance(head, TagHead)
        assert head.crf is not None
        self.crf = head.crf  # the student's: it learns along

    def loss(self, logits: Tensor, batch: tag.TagBatch) -> dict[str, Tensor]:
        """Minus the log probability of the right labels."""
        return {"loss": -self.crf.log_likelihood(logits.float(), batch.targets, batch.words).sum()}


@dataclass(frozen=True)
class Lessons:
    """Examples ready for the loop, and what is learned from them."""

    task: Any  # a Lesson
    problem: str  # single, multi, regression, or rows
    items: Sequence[Any]
    collate: Callable[[Sequence[Any]], Any]

    def batches(self, examples: int, size: int = 32) -> Iterator[Any]:
        """Some of them, in their order, to look at a model with."""
        for start in range(0, min(examples, len(self.items)), size):
            yield self.collate(self.items[start : start + size])


@dataclass(frozen=True)
class Source:
    """A labelled file of the user's."""

    file: str
    columns: str | None = None
    encoding: str = "utf-8"


def read_examples(source: Source, usage: Usage, model: Bert) -> list[Any]:
    """The examples of a file that a model of this kind can learn from."""
    match usage.task:
        case "classify":
            head = classify.head_of(model)
            found = read_labelled(source.file, source.columns, head.problem, encoding=source.encoding)
            if head.problem != "regression":
                found.check_labels(head.labels)
            if usage.pair not in (None, found.columns.pair is not None):
                given, wanted = ("one text", "pairs") if usage.pair else ("two texts", "single texts")
                raise DataError(f"has {given} a row but the model was trained on {wanted}", file=source.file)
            return found.examples
        case "tag":
            tagged = read_tagged(source.file, encoding=source.encoding)
            if tagged.plain != (usage.scheme is None):
                raise DataError("its tags are of another kind than those the model gives", file=source.file)
            check_labelled(source.file, tagged.examples, plain=tagged.plain)
            return tagged.examples
        case _:
            questions = read_questions(source.file, encoding=source.encoding).examples
            check_answered(source.file, questions)
            return questions


def texts_of(examples: Sequence[Any]) -> list[str]:
    """All texts of examples of any task."""
    found: list[str] = []
    for example in examples:
        for name in ("text", "pair", "question", "context"):
            if getattr(example, name, None):
                found.append(getattr(example, name))
    return found


def sample(examples: Sequence[Any], most: int, seed: int = 0) -> list[Any]:
    """At most so many of the examples, the same for the same seed, a long one more likely than a short one.

    Drawn without replacement in proportion to their lengths: in a file of sentences and single words, those would teach
    next to nothing.
    """
    lengths = np.array([1 + sum(map(len, texts_of([example]))) for example in examples])
    # The first of clocks that ring at rates in these proportions.
    clocks = np.random.default_rng([seed % 2**63, 0x1E55]).exponential(size=len(examples)) / lengths
    return [examples[number] for number in clocks.argsort(kind="stable")[:most]]


def lessons(model: Bert, tokenizer: Tokenizer, usage: Usage, examples: Sequence[Any]) -> Lessons:
    """Examples as this model reads them, in their order."""
    limit = model.settings.max_length
    match usage.task:
        case "classify":
            head = classify.head_of(model)
            items: Sequence[Any] = classify.labelled(tokenizer, examples, usage, head, limit)
            task: Any = classify.Classification(head)
            return Lessons(task, head.problem, items, classify.ClassifyCollate(head, usage))
        case "tag":
            tags = tag.head_of(model)
            items = tag_windows(tokenizer, examples, usage, tags.labels, limit)
            task = CrfRows(model) if tags.crf else tag.Tagging(tags)
            return Lessons(task, "rows", items, tag.collate_tags)
        case _:
            items = answer_windows(tokenizer, examples, usage, limit)
            return Lessons(SpanRows(), "rows", items, collate_answers)
