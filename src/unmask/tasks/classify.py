"""Classification: a label, several labels or a number for a text or a pair of texts, however long."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unmask.data.examples import TextExample
from unmask.longtext.encode import encode_long
from unmask.longtext.encoding import LongEncoding
from unmask.longtext.report import Tally
from unmask.metrics.classes import class_scores
from unmask.models.bert import Bert, device_of
from unmask.models.settings import ClassifySettings
from unmask.nn.batch import Batch
from unmask.nn.modes import evaluating
from unmask.nn.windows import Windows
from unmask.tasks.usage import Usage
from unmask.tasks.windows import InParts, Ready, batch_of, chunked, run_windows
from unmask.text.tokenizer import Tokenizer
from unmask.train.losses import cross_entropy, weight_of


@dataclass(frozen=True)
class ClassPrediction:
    """What a model says of a text."""

    label: str | tuple[str, ...] | float
    #: Of each label, the most probable first; empty for a number.
    probabilities: Mapping[str, float]
    #: The share of the characters that were read, in how many windows.
    coverage: float
    windows: int
    tokens: int


@dataclass(frozen=True, slots=True)
class Labelled:
    """A text ready for training."""

    windows: tuple[Ready, ...]
    target: int | float | tuple[int, ...]


@dataclass(frozen=True)
class ClassifyBatch:
    """Texts of one micro-batch."""

    batch: Batch
    windows: Windows | None  # None: every text has one
    targets: Tensor  # (B,) labels, (B, labels) zeros and ones, or (B,) numbers

    @property
    def num_tokens(self) -> int:
        """How many tokens there are."""
        return self.batch.layout.num_tokens

    def to(self, device: torch.device) -> ClassifyBatch:
        """The same on another device."""
        return ClassifyBatch(self.batch.to(device), self.windows, self.targets.to(device))


@dataclass(frozen=True)
class ClassifyCollate:
    """Labelled texts → a micro-batch."""

    head: ClassifySettings
    usage: Usage

    def __call__(self, items: Sequence[Labelled]) -> ClassifyBatch:
        """One ragged batch of all their windows."""
        counts = tuple(len(item.windows) for item in items)
        batch = batch_of([window for item in items for window in item.windows])
        windows = None if max(counts) == 1 else windows_of(counts, self.usage)
        return ClassifyBatch(batch, windows, self._targets([item.target for item in items]))

    def _targets(self, given: Sequence[int | float | tuple[int, ...]]) -> Tensor:
        if self.head.problem != "multi":
            return torch.tensor(given)
        targets = torch.zeros(len(given), len(self.head.labels))
        for row, chosen in enumerate(given):
            targets[row, list(chosen) if isinstance(chosen, tuple) else []] = 1.0
        return targets


class Classification:
    """The loss `loss`: cross-entropy, one for each label of several, or the squared distance of a number."""

    def __init__(self, head: ClassifySettings, smoothing: float = 0.0, weights: Tensor | None = None) -> None:
        """`weights` (labels,) says how much an example of each label counts."""
        self.head, self.smoothing, self.weights_of_labels = head, smoothing, weights

    def counts(self, batch: ClassifyBatch) -> dict[str, float]:
        """Texts (or their weights), or decisions where each label is one."""
        if self.head.problem == "single":
            return {"loss": weight_of(batch.targets, self.weights_of_labels)}
        return {"loss": float(batch.targets.numel())}

    def sums(self, model: nn.Module, batch: ClassifyBatch) -> dict[str, Tensor]:
        """The loss over all texts of the batch."""
        return self.loss(self.logits(model, batch), batch)

    def rows(self, batch: ClassifyBatch) -> int:
        """How many texts."""
        return len(batch.targets)

    def logits(self, model: nn.Module, batch: ClassifyBatch) -> Tensor:
        """(B, labels)."""
        assert isinstance(model, Bert)
        asked = batch.batch.layout.first_rows(batch.batch.ids.device) if reads_firsts(self.head) else None
        return model.joined_class_logits(model.class_rows(model(batch.batch, asked)), batch.windows)

    def loss(self, logits: Tensor, batch: ClassifyBatch) -> dict[str, Tensor]:
        """The loss made of these logits."""
        match self.head.problem:
            case "single":
                return {"loss": cross_entropy(logits, batch.targets, self.smoothing, self.weights_of_labels)}
            case "multi":
                return {"loss": F.binary_cross_entropy_with_logits(logits.float(), batch.targets, reduction="sum")}
            case _:
                return {"loss": F.mse_loss(logits.float().squeeze(1), batch.targets, reduction="sum")}


def reads_firsts(head: ClassifySettings) -> bool:
    """Whether only the first token of each window is looked at: then the last block need not compute the others."""
    return head.pooling in ("pooler", "cls")


def windows_of(counts: tuple[int, ...], usage: Usage) -> Windows:
    """How windows are joined where the head has no layer for it."""
    return Windows(counts, "max" if usage.long_text.join == "max" else "mean")


def head_of(model: Bert) -> ClassifySettings:
    """The settings of a model's classify head."""
    return next(head for head in model.settings.heads if head.kind == "classify")


def encode_texts(
    tokenizer: Tokenizer, examples: Sequence[TextExample], usage: Usage, limit: int, *, training: bool = False
) -> list[LongEncoding]:
    """The windows of texts, or pairs."""
    pairs = [example.pair or "" for example in examples] if examples[0].pair is not None else None
    texts = [example.text for example in examples]
    return encode_long(tokenizer, texts, pairs, limit, usage.long_text, training=training)


def labelled(
    tokenizer: Tokenizer,
    examples: Sequence[TextExample],
    usage: Usage,
    head: ClassifySettings,
    limit: int,
    *,
    training: bool = True,
    tally: Tally | None = None,
) -> list[Labelled]:
    """Examples with their targets, for the loop; not for `training` but to be measured on, all their windows count.

    A `tally` hears how much of them is read.
    """
    numbers = {label: number for number, label in enumerate(head.labels)}
    items = []
    for start in range(0, len(examples), 4096):  # encodings are large: none is kept longer than needed
        part = examples[start : start + 4096]
        encodings = encode_texts(tokenizer, part, usage, limit, training=training)
        if tally is not None:
            tally.add(encodings)
        for example, encoding in zip(part, encodings, strict=True):
            items.append(Labelled(Ready.all_of(encoding), _target(example.label, numbers)))
    return items


def _target(label: object, numbers: Mapping[str, int]) -> int | float | tuple[int, ...]:
    if isinstance(label, tuple):
        return tuple(numbers[one] for one in label)
    return numbers[label] if isinstance(label, str) else float(label)  # type: ignore[arg-type]


def classify(
    model: Bert, tokenizer: Tokenizer, usage: Usage, examples: Iterable[TextExample]
) -> Iterator[ClassPrediction]:
    """Predictions in the order of the texts, of which there may be any number."""
    head, limit = head_of(model), model.settings.max_length
    for chunk in chunked(examples, lambda example: len(example.text) + len(example.pair or "")):
        encodings = encode_texts(tokenizer, chunk, usage, limit)
        probabilities = class_probabilities(model, usage, [Ready.all_of(encoding) for encoding in encodings])
        for row, encoding in zip(probabilities.tolist(), encodings, strict=True):
            label, ranked = _said(row, head, usage)
            tokens = len(encoding.encoding)
            yield ClassPrediction(label, ranked, encoding.coverage, encoding.num_windows, tokens)


@torch.inference_mode()
def class_probabilities(model: Bert, usage: Usage, texts: Sequence[Sequence[Ready]]) -> Tensor:
    """(texts, labels), each row a function of its text alone."""
    flat = [window for text in texts for window in text]
    rows = run_windows(
        model, flat, lambda encoded: list(model.class_rows(encoded)), firsts=reads_firsts(head_of(model))
    )
    counts = tuple(map(len, texts))
    windows = None if max(counts) == 1 else windows_of(counts, usage)
    with evaluating(model):
        return model.class_probabilities(model.joined_class_logits(torch.stack(rows), windows)).float().cpu()


def _said(
    row: list[float], head: ClassifySettings, usage: Usage
) -> tuple[str | tuple[str, ...] | float, dict[str, float]]:
    if head.problem == "regression":
        return row[0], {}
    ranked = dict(sorted(zip(head.labels, row, strict=True), key=lambda pair: -pair[1]))
    if head.problem == "single":
        return next(iter(ranked)), ranked
    return tuple(label for label, value in zip(head.labels, row, strict=True) if value >= usage.threshold), ranked


class ClassifyEvaluator(InParts[Labelled]):
    """How well a model does on the development set while it learns, from sums that several processes can share."""

    def __init__(self, items: Sequence[Labelled], head: ClassifySettings, usage: Usage) -> None:
        self.head, self.usage = head, usage
        self.score = {"single": "accuracy", "multi": "micro_f1", "regression": "pearson"}[head.problem]
        super().__init__(items)

    def measure(self, model: nn.Module, number: int) -> dict[str, float]:
        """Counts of what was said where, or sums from which correlations are made."""
        assert isinstance(model, Bert)
        part = ClassifyCollate(self.head, self.usage)(self.parts[number])
        logits = Classification(self.head).logits(model, part.to(device_of(model)))
        found, targets = model.class_probabilities(logits).float().cpu(), part.targets
        sums: dict[str, float] = {}
        if self.head.problem == "regression":
            x, y = targets.double(), found[:, 0].double()
            pairs = {"n": torch.ones_like(x), "x": x, "y": y, "xx": x * x, "yy": y * y, "xy": x * y}
            return {name: float(value.sum()) for name, value in pairs.items()}
        if self.head.problem == "multi":
            said, true = found >= self.usage.threshold, targets > 0
            for label in range(len(self.head.labels)):
                for name, both in (("tp", true & said), ("fp", ~true & said), ("fn", true & ~said)):
                    sums[f"{name} {label}"] = float(both[:, label].sum())
            return sums | {"right": float((said == true).all(1).sum()), "n": float(len(targets))}
        for gold, said_label in zip(targets.tolist(), found.argmax(-1).tolist(), strict=True):
            sums[f"{gold} {said_label}"] = sums.get(f"{gold} {said_label}", 0.0) + 1.0
        return sums

    def conclude(self, results: Sequence[Mapping[str, float]]) -> dict[str, float]:
        """Scores between 0 and 1."""
        total: dict[str, float] = {}
        for one in results:
            for name, value in one.items():
                total[name] = total.get(name, 0.0) + value
        match self.head.problem:
            case "single":
                return _single(total, len(self.head.labels))
            case "multi":
                return _multi(total, len(self.head.labels))
            case _:
                return _correlation(total)


def _single(total: Mapping[str, float], labels: int) -> dict[str, float]:
    pairs = [tuple(map(int, name.split())) for name, count in total.items() for _ in range(int(count))]
    gold, said = zip(*pairs, strict=True)
    found = class_scores(gold, said, labels)
    return {"accuracy": found.accuracy, "macro_f1": found.table.macro.f1, "mcc": found.mcc}


def _multi(total: Mapping[str, float], labels: int) -> dict[str, float]:
    counts = np.array([[total[f"{name} {label}"] for name in ("tp", "fp", "fn")] for label in range(labels)])
    micro, each = _f1(counts.sum(0)), [_f1(row) for row in counts]
    return {"micro_f1": micro, "macro_f1": float(np.mean(each)), "all_right": total["right"] / total["n"]}


def _f1(counts: np.ndarray) -> float:
    tp, fp, fn = counts.tolist()
    return 2 * tp / (2 * tp + fp + fn) if tp else 0.0


def _correlation(total: Mapping[str, float]) -> dict[str, float]:
    n, x, y = total["n"], total["x"], total["y"]
    spread = (total["xx"] - x * x / n) * (total["yy"] - y * y / n)
    both = total["xy"] - x * y / n
    error = (total["xx"] - 2 * total["xy"] + total["yy"]) / n
    return {"pearson": both / math.sqrt(spread) if spread > 0 else 0.0, "mean_squared_error": max(0.0, error)}
