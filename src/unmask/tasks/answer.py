"""Question answering: the stretch of a text, however long, that answers a question, or that there is none."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from unmask.data.examples import QuestionExample
from unmask.errors import DataError
from unmask.longtext.answers import best_spans
from unmask.longtext.encode import encode_questions
from unmask.longtext.encoding import LongEncoding
from unmask.metrics.answers import cmrc_exact_match, cmrc_f1, exact_match, word_f1
from unmask.metrics.unanswerable import squad2_mark
from unmask.models.bert import Bert, device_of
from unmask.nn.batch import Batch
from unmask.nn.layout import Layout
from unmask.tasks.usage import Usage
from unmask.tasks.windows import InParts, Ready, batch_of, by_text, chunked, rows_of, run_windows, with_marks
from unmask.text.tokenizer import Tokenizer

_CONTEXT = 1
_TOP = 20


@dataclass(frozen=True)
class AnswerPrediction:
    """What a model answers. An empty answer says that the text does not tell."""

    answer: str
    #: `context[start:end]`; both 0 where there is no answer.
    start: int
    end: int
    #: Among the best candidates, the share of this one.
    probability: float
    #: The sum of its logits.
    score: float
    #: How much better "there is no answer" scores than the best stretch.
    doubt: float
    #: The best stretch, given or not.
    best: str
    coverage: float
    windows: int
    tokens: int


@dataclass(frozen=True, slots=True)
class AnswerWindow:
    """A window ready for training: the rows of the answer's first and last token, 0 where it holds none."""

    ready: Ready
    start: int
    end: int


@dataclass(frozen=True)
class AnswerBatch:
    """Windows of one micro-batch."""

    batch: Batch
    targets: Tensor  # (W, 2)

    @property
    def num_tokens(self) -> int:
        """How many tokens there are."""
        return self.batch.layout.num_tokens

    def to(self, device: torch.device) -> AnswerBatch:
        """The same on another device."""
        return AnswerBatch(self.batch.to(device), self.targets.to(device))


def collate_answers(windows: Sequence[AnswerWindow]) -> AnswerBatch:
    """Windows with the places of their answers → a micro-batch."""
    targets = torch.tensor([(window.start, window.end) for window in windows])
    return AnswerBatch(batch_of([window.ready for window in windows]), targets)


class Answering:
    """The loss `loss`: cross-entropy of where the answer starts and of where it ends, their mean."""

    def __init__(self, smoothing: float = 0.0) -> None:
        self.smoothing = smoothing

    def counts(self, batch: AnswerBatch) -> dict[str, float]:
        """Windows."""
        return {"loss": float(len(batch.targets))}

    def sums(self, model: nn.Module, batch: AnswerBatch) -> dict[str, Tensor]:
        """The loss over all windows of the batch."""
        assert isinstance(model, Bert)
        encoded = model(batch.batch)
        return {"loss": span_loss(model.span_logits(encoded), encoded.layout, batch.targets, self.smoothing)}


def span_loss(logits: Tensor, layout: Layout, targets: Tensor, smoothing: float = 0.0) -> Tensor:
    """Summed over windows: every token of a window competes to be the first, and the last, of the answer."""
    logits = logits.float()
    dense = layout.pad(logits, float("-inf")).log_softmax(1)  # (W, T, 2)
    right = dense.gather(1, targets[:, None, :]).squeeze(1)
    loss = -right.sum()
    if smoothing:
        mask = layout.key_mask(logits.device)[..., None]
        lengths = torch.tensor(layout.lengths, device=logits.device, dtype=logits.dtype)
        evenly = dense.masked_fill(~mask, 0.0).sum(1) / lengths[:, None]
        loss = (1 - smoothing) * loss - smoothing * evenly.sum()
    return loss / 2


@dataclass(frozen=True)
class QuestionText:
    """A question ready to be answered, with what is right."""

    windows: tuple[Ready, ...]
    encoding: LongEncoding
    example: QuestionExample


def check_answered(file: str, examples: Sequence[QuestionExample]) -> None:
    """DataError with the line of the first question of which a file does not say whether it has an answer."""
    for example in examples:
        if not example.answers and not example.impossible:
            message = f'the question {example.id} has no answers; write "answers": [] if its text does not tell'
            raise DataError(message, file=file, line=example.line or None)


def question_texts(
    tokenizer: Tokenizer, examples: Sequence[QuestionExample], usage: Usage, limit: int
) -> list[QuestionText]:
    """Questions ready to be answered."""
    read = usage.long_text.read_at_once(limit)
    encodings = encode_questions(
        tokenizer,
        [example.question for example in examples],
        [example.context for example in examples],
        read,
        usage.long_text.overlap,
        usage.max_question,
    )
    pairs = zip(encodings, examples, strict=True)
    return [QuestionText(Ready.all_of(encoding), encoding, example) for encoding, example in pairs]


def answer_windows(
    tokenizer: Tokenizer, examples: Sequence[QuestionExample], usage: Usage, limit: int
) -> list[AnswerWindow]:
    """Windows ready for training. A question whose answer is not in its text teaches nothing and is left out."""
    made = []
    for start in range(0, len(examples), 1024):
        for text in question_texts(tokenizer, examples[start : start + 1024], usage, limit):
            span = _token_span(text)
            if span is None and not text.example.impossible:
                continue
            for ready, window in zip(text.windows, text.encoding.windows, strict=True):
                (first, after), begin = window.kept[_CONTEXT].ranges[0], window.rows(_CONTEXT).start
                held = span is not None and first <= span[0] and span[1] < after
                rows = (begin + span[0] - first, begin + span[1] - first) if held and span is not None else (0, 0)
                made.append(AnswerWindow(ready, *rows))
    return made


def _token_span(text: QuestionText) -> tuple[int, int] | None:
    """The first and the last context token of the first answer."""
    if not text.example.answers or text.example.answers[0].start < 0:
        return None
    answer = text.example.answers[0]
    end = answer.start + len(answer.text)
    inside = [
        number
        for number, (first, last) in enumerate(text.encoding.offsets(_CONTEXT))
        if last > answer.start and first < end and last > first
    ]
    return (inside[0], inside[-1]) if inside else None


def answer(
    model: Bert, tokenizer: Tokenizer, usage: Usage, examples: Iterable[QuestionExample]
) -> Iterator[AnswerPrediction]:
    """Answers in the order of the questions, of which there may be any number."""
    limit = model.settings.max_length
    for chunk in chunked(examples, lambda example: 2048 + len(example.context)):
        texts = question_texts(tokenizer, chunk, usage, limit)
        windows = [window for text in texts for window in text.windows]
        found = run_windows(model, windows, lambda encoded: rows_of(encoded, model.span_logits(encoded).float().cpu()))
        for text, logits in zip(texts, by_text(found, [len(text.windows) for text in texts]), strict=True):
            yield answered(text, logits, usage)


def answered(text: QuestionText, logits: Sequence[Tensor], usage: Usage) -> AnswerPrediction:
    """The answer that the logits (length, 2) of a question's windows say."""
    encoding, context = text.encoding, text.example.context
    seen = (encoding.coverage, encoding.num_windows, len(encoding.encoding))
    spans, null = best_spans(logits, encoding, usage.max_answer, _TOP)
    if not spans:  # the text has no token at all
        return AnswerPrediction("", 0, 0, 1.0, null, math.inf, "", *seen)
    best = spans[0]
    doubt = null - best.score
    silent = usage.no_answer is not None and doubt > usage.no_answer
    rivals = torch.tensor([span.score for span in spans] + ([null] if usage.no_answer is not None else []))
    shares = rivals.softmax(0).tolist()
    end = with_marks(context, best.end)
    words = context[best.start : end]
    if silent:
        return AnswerPrediction("", 0, 0, shares[-1], null, doubt, words, *seen)
    return AnswerPrediction(words, best.start, end, shares[0], best.score, doubt, words, *seen)


def marks(usage: Usage) -> tuple[Callable[[str, str], float], Callable[[str, str], float]]:
    """How an answer is compared with a right one: word for word, and by what they have in common."""
    return (cmrc_exact_match, cmrc_f1) if usage.metric == "cmrc" else (exact_match, word_f1)


def marked(example: QuestionExample, said: str, usage: Usage) -> tuple[float, float]:
    """Exact match and F1 of an answer, the best over all that count as right."""
    if usage.metric == "squad" and usage.no_answer is not None:
        return squad2_mark([answer.text for answer in example.answers], said)
    if not example.answers:
        return (float(not said),) * 2
    if not said:
        return 0.0, 0.0
    exact, f1 = marks(usage)
    return max(exact(a.text, said) for a in example.answers), max(f1(a.text, said) for a in example.answers)


class AnswerEvaluator(InParts[QuestionText]):
    """How well a model answers while it learns."""

    score = "f1"

    def __init__(self, texts: Sequence[QuestionText], usage: Usage) -> None:
        self.usage = usage
        super().__init__(texts)

    def measure(self, model: nn.Module, number: int) -> dict[str, float]:
        """Marks, summed over questions."""
        assert isinstance(model, Bert)
        texts = self.parts[number]
        encoded = model(batch_of([window for text in texts for window in text.windows]).to(device_of(model)))
        logits = rows_of(encoded, model.span_logits(encoded).float().cpu())
        sums = {"exact": 0.0, "f1": 0.0, "n": float(len(texts))}
        for text, found in zip(texts, by_text(logits, [len(text.windows) for text in texts]), strict=True):
            exact, f1 = marked(text.example, answered(text, found, self.usage).answer, self.usage)
            sums["exact"] += exact
            sums["f1"] += f1
        return sums

    def conclude(self, results: Sequence[Mapping[str, float]]) -> dict[str, float]:
        """Means between 0 and 1."""
        total = {name: math.fsum(one[name] for one in results) for name in results[0]}
        return {"exact": total["exact"] / total["n"], "f1": total["f1"] / total["n"]}
