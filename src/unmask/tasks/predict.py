"""A fine-tuned model in use, whatever its task: texts in, what it says of them out, in order and in any number."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

from unmask.data.columns import OPTION
from unmask.data.examples import QuestionExample, TaggedExample, TextExample
from unmask.data.labelled import iter_texts, read_labelled
from unmask.data.questions import read_questions
from unmask.data.tagged import is_tagged, read_tagged
from unmask.errors import DataError, TaskError
from unmask.models.bert import Bert
from unmask.tasks.answer import AnswerPrediction, answer, check_answered
from unmask.tasks.classify import ClassPrediction, classify
from unmask.tasks.classify import head_of as classify_head
from unmask.tasks.scoring import Scored, score_answers, score_classes, score_tags
from unmask.tasks.tag import TagPrediction, tag
from unmask.tasks.tag_texts import check_labelled, tag_texts
from unmask.tasks.usage import Usage
from unmask.text.files import check_encoding, read_lines
from unmask.text.tokenizer import Tokenizer

Example = TextExample | TaggedExample | QuestionExample
Prediction = ClassPrediction | TagPrediction | AnswerPrediction


class Predictor:
    """A model with its tokenizer and the way it is to be used."""

    def __init__(self, model: Bert, tokenizer: Tokenizer, usage: Usage) -> None:
        self.model, self.tokenizer, self.usage = model, tokenizer, usage

    def run(self, examples: Iterable[Any]) -> Iterator[Prediction]:
        """What the model says of each example, in their order."""
        what = (self.model, self.tokenizer, self.usage, examples)
        match self.usage.task:
            case "classify":
                return classify(*what)
            case "tag":
                return tag(*what)
            case _:
                return answer(*what)

    def examples(self, texts: Iterable[str], pairs: Iterable[str] | None = None) -> Iterator[Example]:
        """Texts (and their pairs; for questions, the texts that may answer them) as the task wants them."""
        if pairs is None:
            if self.usage.task == "qa":
                raise TaskError("this model answers questions: give each question the text that may answer it")
            if self.usage.pair:
                raise TaskError("this model was trained on pairs of texts: give each text its pair")
            kind = TaggedExample if self.usage.task == "tag" else TextExample
            return (kind(text, line=line) for line, text in enumerate(texts, 1))
        if self.usage.task == "tag":
            raise TaskError("this model tags single texts, not pairs")
        both = enumerate(_paired(texts, pairs), 1)
        if self.usage.pair is False:
            raise TaskError("this model was trained on single texts: give no pairs")
        if self.usage.task == "qa":
            return (QuestionExample(str(line), one, two, line=line) for line, (one, two) in both)
        return (TextExample(one, two, line=line) for line, (one, two) in both)

    def read(self, file: str, columns: str | None = None, encoding: str = "utf-8") -> Iterator[Example]:
        """The examples of a file: lines of text (`-`: of standard input), a table, or what the task was trained on.

        Tables and lines are read as they are needed, so a file may be larger than memory.
        """
        if file == "-" or (file.lower().endswith((".txt", ".txt.gz")) and not _is_table(file, columns, encoding)):
            return self.examples(read_lines(file, encoding=check_encoding(encoding)))
        if self.usage.task == "qa":
            return iter(read_questions(file, encoding=encoding).examples)
        if self.usage.task == "tag":
            if is_tagged(file, encoding=encoding):
                return iter(read_tagged(file, encoding=encoding, labelled=False).examples)
            found = iter_texts(file, columns, encoding=encoding)
            return (TaggedExample(example.text, line=example.line) for example in found)
        return self._fitting(file, iter_texts(file, columns, encoding=encoding))

    def _fitting(self, file: str, examples: Iterable[TextExample]) -> Iterator[TextExample]:
        """The same examples, if they are single texts, or pairs, as the model was trained on."""
        for example in examples:
            if self.usage.pair not in (None, example.pair is not None):
                given, wanted = ("one text", "pairs") if self.usage.pair else ("two texts", "single texts")
                message = f"has {given} a row but the model was trained on {wanted}; name the columns with {OPTION}"
                raise DataError(message, file=file)
            yield example

    def evaluate(self, file: str, columns: str | None = None, encoding: str = "utf-8") -> Scored:
        """How well the model does on a labelled file."""
        match self.usage.task:
            case "classify":
                head = classify_head(self.model)
                mark = self.usage.separator
                found = read_labelled(file, columns, head.problem, separator=mark, encoding=encoding)
                examples = list(self._fitting(file, found.examples))
                if head.problem != "regression":
                    found.check_labels(head.labels)
                return score_classes(head, self.usage, examples, self._all(examples))
            case "tag":
                tagged = read_tagged(file, encoding=encoding)
                if tagged.plain != (self.usage.scheme is None):
                    raise DataError("its tags are of another kind than those the model gives", file=file)
                check_labelled(file, tagged.examples, plain=tagged.plain)
                texts = tag_texts(self.tokenizer, tagged.examples, self.usage, self.model.settings.max_length)
                said = self._all(tagged.examples)
                return score_tags(self.usage, [example.text for example in tagged.examples], texts, said)
            case _:
                questions = read_questions(file, encoding=encoding).examples
                check_answered(file, questions)
                return score_answers(self.usage, questions, self._all(questions))

    def _all(self, examples: Sequence[Any]) -> list[Any]:
        return list(self.run(examples))


def record(example: Example, said: Prediction, usage: Usage) -> dict[str, Any]:
    """A prediction as plain data."""
    seen = {"coverage": round(said.coverage, 6), "windows": said.windows, "line": example.line}
    match example, said:
        case TextExample(), ClassPrediction():
            texts = {"text": example.text} if example.pair is None else {"text": example.text, "pair": example.pair}
            label = list(said.label) if isinstance(said.label, tuple) else said.label
            return {**texts, "label": label, "probabilities": _rounded(said.probabilities), **seen}
        case TaggedExample(), TagPrediction():
            if usage.scheme is None:
                words = [{"start": a, "end": b, "text": example.text[a:b], "tag": tag} for a, b, tag in said.words]
                return {"text": example.text, "words": words, **seen}
            entities = [
                {"start": a, "end": b, "type": type, "text": example.text[a:b], "probability": round(share, 6)}
                for a, b, type, share in said.entities
            ]
            return {"text": example.text, "entities": entities, **seen}
        case QuestionExample(), AnswerPrediction():
            return {
                "id": example.id,
                "question": example.question,
                "answer": said.answer,
                "start": said.start,
                "end": said.end,
                "probability": round(said.probability, 6),
                "score": round(said.score, 4),
                "no_answer": not said.answer,
                **seen,
            }
    raise TypeError(f"{type(said).__name__} does not answer {type(example).__name__}")


def _is_table(file: str, columns: str | None, encoding: str) -> bool:
    """Whether the lines of a text file are rows, as training reads them: of as many cells each, two at least."""
    first = list(islice(read_lines(file, encoding=check_encoding(encoding)), 100))
    widths = {line.count("\t") for line in first if line.strip()}
    return columns is not None or (len(widths) == 1 and widths != {0})


def _rounded(shares: Any) -> dict[str, float]:
    return {label: round(share, 6) for label, share in shares.items()}


def _paired(texts: Iterable[str], pairs: Iterable[str]) -> Iterator[tuple[str, str]]:
    try:
        yield from zip(texts, pairs, strict=True)
    except ValueError:
        raise TaskError("every text needs its pair, but one list is longer than the other") from None
