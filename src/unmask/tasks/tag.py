"""Tagging: a label for each word, and from them stretches such as names, at exact places of a text of any length."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from unmask.data.batching import token_budget_batches
from unmask.data.examples import Entity, TaggedExample
from unmask.data.schemes import decode
from unmask.models.bert import Bert, device_of
from unmask.models.settings import TagSettings
from unmask.nn.batch import Batch
from unmask.nn.heads import TagHead
from unmask.nn.layout import Layout
from unmask.tasks.tag_texts import TagText, TagWindow, tag_texts
from unmask.tasks.usage import Usage
from unmask.tasks.windows import InParts, batch_of, by_text, chunked, rows_of, run_windows
from unmask.text.tokenizer import Tokenizer
from unmask.train.losses import cross_entropy, weight_of


class Found(NamedTuple):
    """A stretch that was found: `text[start:end]`, its type, and how probable its words' tags are on average."""

    start: int
    end: int
    type: str
    probability: float


@dataclass(frozen=True)
class TagPrediction:
    """What a model finds in a text."""

    #: Start, end and tag of each word.
    words: tuple[tuple[int, int, str], ...]
    #: Stretches in order; where tags mark none, every word is one.
    entities: tuple[Found, ...]
    coverage: float
    windows: int
    tokens: int


@dataclass(frozen=True)
class TagBatch:
    """Windows of one micro-batch."""

    batch: Batch
    rows: Tensor  # (U,) the row of each word's first token
    words: Layout  # of those rows: how many words each window has
    targets: Tensor  # (U,)

    @property
    def num_tokens(self) -> int:
        """How many tokens there are."""
        return self.batch.layout.num_tokens

    def to(self, device: torch.device) -> TagBatch:
        """The same on another device."""
        return TagBatch(self.batch.to(device), self.rows.to(device), self.words, self.targets.to(device))


def collate_tags(windows: Sequence[TagWindow]) -> TagBatch:
    """Windows with the labels of their words → a micro-batch."""
    batch = batch_of([window.ready for window in windows])
    starts = batch.layout.starts
    rows = [torch.from_numpy(window.rows) + start for window, start in zip(windows, starts, strict=True)]
    targets = torch.cat([torch.from_numpy(window.targets) for window in windows])
    return TagBatch(batch, torch.cat(rows), Layout.ragged(len(window.rows) for window in windows), targets)


class Tagging:
    """The loss `loss`: cross-entropy of each word's label, or that of all labels of a window together (CRF)."""

    def __init__(self, head: TagSettings, smoothing: float = 0.0, weights: Tensor | None = None) -> None:
        """`weights` (labels,) says how much a word of each label counts; a CRF knows neither them nor smoothing."""
        self.head, self.smoothing, self.weights_of_labels = head, smoothing, weights

    def counts(self, batch: TagBatch) -> dict[str, float]:
        """Words, or their weights."""
        if self.head.crf:
            return {"loss": float(len(batch.targets))}
        return {"loss": weight_of(batch.targets, self.weights_of_labels)}

    def sums(self, model: nn.Module, batch: TagBatch) -> dict[str, Tensor]:
        """The loss over all words of the batch."""
        return self.loss(self.logits(model, batch), batch)

    def rows(self, batch: TagBatch) -> int:
        """How many words."""
        return len(batch.targets)

    def logits(self, model: nn.Module, batch: TagBatch) -> Tensor:
        """(U, labels)."""
        assert isinstance(model, Bert)
        return model.tag_logits(model(batch.batch))[batch.rows]

    def loss(self, logits: Tensor, batch: TagBatch) -> dict[str, Tensor]:
        """The loss made of these logits."""
        return {"loss": cross_entropy(logits, batch.targets, self.smoothing, self.weights_of_labels)}


class CrfTagging(Tagging):
    """The loss of a conditional random field: all labels of a window at once."""

    def sums(self, model: nn.Module, batch: TagBatch) -> dict[str, Tensor]:
        """Minus the log probability of the right labels, over all windows."""
        assert isinstance(model, Bert)
        head = model.heads["tag"]
        assert isinstance(head, TagHead)
        assert head.crf is not None
        found = head.crf.log_likelihood(self.logits(model, batch).float(), batch.targets, batch.words)
        return {"loss": -found.sum()}


def head_of(model: Bert) -> TagSettings:
    """The settings of a model's tag head."""
    return next(head for head in model.settings.heads if head.kind == "tag")


def tag(model: Bert, tokenizer: Tokenizer, usage: Usage, examples: Iterable[TaggedExample]) -> Iterator[TagPrediction]:
    """Predictions in the order of the texts, of which there may be any number."""
    limit = model.settings.max_length
    for chunk in chunked(examples, lambda example: len(example.text)):
        texts = tag_texts(tokenizer, chunk, usage, limit)
        windows = [window for text in texts for window in text.windows]
        logits = run_windows(model, windows, lambda encoded: rows_of(encoded, model.tag_logits(encoded).float().cpu()))
        words = [text.of_words(found) for text, found in zip(texts, by_text(logits, _counts(texts)), strict=True)]
        yield from predictions(model, usage, texts, words)


def predictions(
    model: Bert, usage: Usage, texts: Sequence[TagText], words: Sequence[Tensor]
) -> Iterator[TagPrediction]:
    """What logits (words, labels) of each text say, the best labels of a text found together with a CRF."""
    head = head_of(model)
    for text, (labels, shares) in zip(texts, _best_labels(model, words), strict=True):
        tags = ["O"] * len(text.words)
        sure = [0.0] * len(text.words)
        for place, label, share in zip(text.placed, labels, shares, strict=True):
            tags[place], sure[place] = head.labels[label], share
        spans = [(*span, tag) for span, tag in zip(text.words, tags, strict=True)]
        entities = tuple(_entities(spans, sure, usage))
        yield TagPrediction(tuple(spans), entities, text.coverage, len(text.windows), text.num_tokens)


def _entities(spans: Sequence[tuple[int, int, str]], sure: Sequence[float], usage: Usage) -> Iterator[Found]:
    if usage.scheme is None:
        yield from (Found(*span, share) for span, share in zip(spans, sure, strict=True))
        return
    for first, after, type in decode([tag for _, _, tag in spans], usage.scheme)[0]:
        mean = sum(sure[first:after]) / (after - first)
        yield Found(spans[first][0], spans[after - 1][1], type, mean)


def _best_labels(model: Bert, words: Sequence[Tensor]) -> list[tuple[list[int], list[float]]]:
    """For each text the label of each word, and how probable it is."""
    head = model.heads["tag"]
    assert isinstance(head, TagHead)
    crf = head.crf
    if crf is None:
        found = []
        for logits in words:
            best = logits.softmax(-1).max(-1)
            found.append((best.indices.tolist(), best.values.tolist()))
        return found
    answers: dict[int, tuple[list[int], list[float]]] = {number: ([], []) for number in range(len(words))}
    filled = [number for number, logits in enumerate(words) if len(logits)]
    for group in token_budget_batches([len(words[number]) for number in filled]):
        numbers = [filled[place] for place in group]
        layout = Layout.ragged(len(words[number]) for number in numbers)
        emissions = torch.cat([words[number] for number in numbers]).to(device_of(model))
        paths = crf.decode(emissions, layout)
        marginals = layout.split(crf.marginals(emissions, layout).cpu())
        for number, path, share in zip(numbers, paths, marginals, strict=True):
            answers[number] = (path, share[torch.arange(len(path)), torch.tensor(path)].tolist())
    return [answers[number] for number in range(len(words))]


def _counts(texts: Sequence[TagText]) -> list[int]:
    return [len(text.windows) for text in texts]


class TagEvaluator(InParts[TagText]):
    """How well a model finds stretches (or tags words) while it learns, from counts that processes can share."""

    def __init__(self, texts: Sequence[TagText], head: TagSettings, usage: Usage) -> None:
        self.head, self.usage = head, usage
        self.score = "accuracy" if usage.scheme is None else "f1"
        super().__init__(texts)

    def measure(self, model: nn.Module, number: int) -> dict[str, float]:
        """Stretches that are right, found and wanted; words that are right and all of them."""
        assert isinstance(model, Bert)
        texts = self.parts[number]
        batch = batch_of([window for text in texts for window in text.windows]).to(device_of(model))
        encoded = model(batch)
        logits = rows_of(encoded, model.tag_logits(encoded).float().cpu())
        words = [text.of_words(found) for text, found in zip(texts, by_text(logits, _counts(texts)), strict=True)]
        sums = dict.fromkeys(("right", "found", "wanted", "words_right", "words"), 0.0)
        for text, said in zip(texts, predictions(model, self.usage, texts, words), strict=True):
            found = {Entity(*entity[:3]) for entity in said.entities}
            sums["right"] += len(found & set(text.gold))
            sums["found"] += len(found)
            sums["wanted"] += len(text.gold)
            sums["words_right"] += sum(tag == right for (_, _, tag), right in zip(said.words, text.tags, strict=True))
            sums["words"] += len(text.words)
        return sums

    def conclude(self, results: Sequence[Mapping[str, float]]) -> dict[str, float]:
        """Scores between 0 and 1."""
        total = {name: sum(one[name] for one in results) for name in results[0]}
        accuracy = total["words_right"] / max(total["words"], 1.0)
        if self.usage.scheme is None:
            return {"accuracy": accuracy}
        precision = total["right"] / max(total["found"], 1.0)
        recall = total["right"] / max(total["wanted"], 1.0)
        f1 = 2 * total["right"] / max(total["found"] + total["wanted"], 1.0)
        return {"f1": f1, "precision": precision, "recall": recall, "accuracy": accuracy}
