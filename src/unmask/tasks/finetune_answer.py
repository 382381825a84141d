"""What a question-answering run is made of, from its files."""

from __future__ import annotations

from collections.abc import Sequence

from unmask.data.examples import QuestionExample
from unmask.data.questions import read_questions
from unmask.errors import DataError, SettingsError, TaskError
from unmask.models.bert import Bert
from unmask.models.fetch import fetch
from unmask.models.settings import SpanSettings
from unmask.report.outcome import DataFacts
from unmask.tasks.answer import (
    AnswerEvaluator,
    Answering,
    answer,
    answer_windows,
    check_answered,
    collate_answers,
    question_texts,
)
from unmask.tasks.finetune import Job, load_start, resolved_usage, set_apart, sha256_of
from unmask.tasks.finetune_settings import AnswerRun, Files
from unmask.tasks.scoring import Scored, score_answers
from unmask.tasks.usage import Usage
from unmask.text.scripts import is_han
from unmask.text.tokenizer import Tokenizer
from unmask.train.progress import Listener


def _check_options(settings: AnswerRun) -> None:
    if settings.loss.class_weights != "none":
        raise SettingsError("class_weights: question answering has no labels that could be weighed")
    if settings.long_text.strategy in ("head", "tail", "head_tail"):
        raise SettingsError(
            f"long_text.strategy: {settings.long_text.strategy} would leave answers out; questions are answered by "
            "windows (or hierarchical positions)"
        )


def prepare_answer(settings: AnswerRun, files: Files, listener: Listener) -> Job:
    """Read both files, decide what is open, and make everything ready for the loop."""
    _check_options(settings)
    notes: list[str] = []
    train = _read(files.train, files.encoding, notes)
    examples: Sequence[QuestionExample] = train
    if files.dev is None:
        examples, dev = set_apart(train, settings.dev_share, settings.seed, files.train)
        notes.append(f"no development file: {len(dev):,} of the {len(train):,} questions are set apart for it")
    else:
        dev = _read(files.dev, files.encoding, notes)
    usage = _usage(settings, examples, notes)
    for note in notes:
        listener.say(note)
    tokenizer = Tokenizer.from_folder(fetch(files.model))
    model = load_start(settings, files, SpanSettings())
    if model.settings.num_segments == 1:
        raise TaskError(f"{files.model}: knows one segment, so it cannot tell a question from its text")
    limit = model.settings.max_length
    both = [example.question for example in examples], [example.context for example in examples]
    lengths = [len(encoding) for encoding in tokenizer.encode_batch(*both)]
    usage, why = resolved_usage(usage, "qa", lengths, limit)
    listener.say(why)
    items = answer_windows(tokenizer, examples, usage, limit)
    if not items:
        raise DataError("no question has an answer that is in its text, so there is nothing to learn", file=files.train)
    texts = question_texts(tokenizer, dev, usage, limit)

    def measure(model: Bert) -> Scored:
        return score_answers(usage, dev, list(answer(model, tokenizer, usage, dev)), tune=True)

    return Job(
        model=model,
        tokenizer=tokenizer,
        usage=usage,
        task=Answering(settings.loss.smoothing),
        items=items,
        collate=collate_answers,
        evaluator=AnswerEvaluator(texts, usage),
        data=(
            _facts("train", files.train, len(examples), sum(len(item.ready) for item in items)),
            _facts("dev", files.dev or files.train, len(dev), sum(len(w) for text in texts for w in text.windows)),
        ),
        notes=(*notes, why),
        measure=measure,
    )


def _read(file: str, encoding: str, notes: list[str]) -> list[QuestionExample]:
    found = read_questions(file, encoding=encoding)
    check_answered(file, found.examples)
    notes += [f"{file}: {sentence}" for sentence in found.said]
    return found.examples


def _usage(settings: AnswerRun, examples: Sequence[QuestionExample], notes: list[str]) -> Usage:
    metric = settings.metric
    if metric == "auto":
        chinese = sum(any(map(is_han, example.question)) for example in examples)
        metric = "cmrc" if 2 * chinese > len(examples) else "squad"
        notes.append(f"answers are compared as {'CMRC 2018' if metric == 'cmrc' else 'SQuAD'} does")
    silent = any(not example.answers for example in examples)
    return Usage(
        task="qa",
        pair=True,
        long_text=settings.long_text,
        max_question=settings.max_question,
        max_answer=settings.max_answer,
        no_answer=0.0 if silent else None,
        metric=metric,
    )


def _facts(role: str, file: str, examples: int, tokens: int) -> DataFacts:
    return DataFacts(role, file, examples, tokens, sha256_of(file))  # type: ignore[arg-type]
