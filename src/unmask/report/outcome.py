"""What a report is made of: plain data that tasks fill in, and that JSON can keep."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import Field, TypeAdapter, ValidationError

from unmask.config import sentence
from unmask.data.examples import Entity
from unmask.errors import DataError
from unmask.storage import atomic_write

Problem = Literal["single", "multi", "regression", "entities", "tags", "answers"]


class Score(NamedTuple):
    """A score with its 95 % interval and the number of examples it comes from; shares are between 0 and 1."""

    value: float | None
    low: float | None
    high: float | None
    n: int


class LabelScore(NamedTuple):
    """How well one label, entity type or tag is found. `support` is how often the file has it."""

    label: str
    precision: float
    recall: float
    f1: float
    support: int


@dataclass(frozen=True, slots=True)
class TextOutcome:
    """What a model said of a text, or of a pair of texts."""

    text: str
    pair: str | None = None
    #: As in the file: a label, several labels, or a number. `predicted` is of the same kind.
    gold: str | tuple[str, ...] | float | None = None
    predicted: str | tuple[str, ...] | float | None = None
    #: The probability that the model gave to what it said.
    confidence: float | None = None
    #: The most likely labels with their probabilities, the likeliest first; two or three are enough.
    likely: tuple[tuple[str, float], ...] = ()
    #: Tokens of the whole text, special ones included, even where the model read a part only.
    tokens: int = 0
    #: The share of the text that the model read, in how many windows.
    coverage: float = 1.0
    windows: int = 1
    line: int = 0
    kind: Literal["text"] = "text"

    @property
    def right(self) -> bool:
        """Whether the model said what the file says: of several labels, exactly those."""
        if isinstance(self.gold, tuple) and isinstance(self.predicted, tuple):
            return set(self.gold) == set(self.predicted)
        return self.gold == self.predicted


@dataclass(frozen=True, slots=True)
class TaggedOutcome:
    """The stretches that a model found in a text. For tags such as parts of speech every word is one."""

    text: str
    gold: tuple[Entity, ...] = ()
    predicted: tuple[Entity, ...] = ()
    #: A probability for each of `predicted`; none where the model gives none.
    confidences: tuple[float, ...] = ()
    tokens: int = 0
    coverage: float = 1.0
    windows: int = 1
    line: int = 0
    kind: Literal["tagged"] = "tagged"

    @property
    def right(self) -> bool:
        """Whether all stretches were found, and nothing else."""
        return set(self.gold) == set(self.predicted)


@dataclass(frozen=True, slots=True)
class QuestionOutcome:
    """What a model answered. An empty answer says that the context does not tell."""

    question: str
    #: The context, or the part of it around the answers.
    context: str
    #: All that count as right; none where the context does not tell.
    answers: tuple[str, ...] = ()
    predicted: str = ""
    confidence: float | None = None
    exact: float = 0.0
    f1: float = 0.0
    tokens: int = 0
    coverage: float = 1.0
    windows: int = 1
    line: int = 0
    id: str = ""
    kind: Literal["question"] = "question"

    @property
    def right(self) -> bool:
        """Whether the answer is one of those that count as right, word for word."""
        return self.exact >= 1


Outcome = TextOutcome | TaggedOutcome | QuestionOutcome


@dataclass(frozen=True, slots=True)
class DataFacts:
    """A file that the model learned from or was measured on."""

    role: Literal["train", "dev", "test"]
    file: str
    examples: int
    tokens: int | None = None
    sha256: str | None = None
    #: How often each label occurs.
    labels: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """The model that was measured."""

    name: str
    #: The pre-trained model that it was made from.
    start: str | None = None
    parameters: int | None = None
    #: Tokens that it reads at once.
    max_length: int | None = None
    #: Codes such as `en` and `zh`; none where nobody said.
    language: tuple[str, ...] = ()
    license: str | None = None
    #: Whether its head is one that `transformers` does not have: another pooling, a CRF, attention over windows.
    own_head: bool = False


@dataclass(frozen=True)
class Evaluation:
    """A model measured on a file, with all that a report and a model card tell of it."""

    task: Literal["classify", "tag", "qa"]
    problem: Problem
    model: ModelFacts
    #: The training file, then the one that the scores come from.
    data: tuple[DataFacts, ...]
    settings: Mapping[str, Any]
    #: The first one is what the model is judged by.
    scores: Mapping[str, Score]
    #: In the order of the rows and columns of `confusion`.
    labels: tuple[str, ...] = ()
    #: Row: what the file says; column: what the model said. For one label a text.
    confusion: tuple[tuple[int, ...], ...] | None = None
    table: tuple[LabelScore, ...] = ()
    outcomes: tuple[Annotated[Outcome, Field(discriminator="kind")], ...] = ()
    #: Entries as in metrics.jsonl: `update` with `losses` and `learning_rate`, or with `evaluation`.
    curve: tuple[Mapping[str, Any], ...] = ()
    #: Sentences of others: what the doctor found, what was decided about long texts.
    notes: tuple[str, ...] = ()
    #: How long the training took.
    seconds: float | None = None
    environment: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.confusion is not None:
            size = len(self.labels)
            if len(self.confusion) != size or any(len(row) != size for row in self.confusion):
                raise ValueError(f"the confusion matrix must have {size} rows and columns, one for each label")

    @property
    def measured(self) -> DataFacts | None:
        """The file that the scores come from."""
        return next((facts for facts in reversed(self.data) if facts.role != "train"), None)

    def to_json(self) -> str:
        """All of it as JSON; a number that is not finite becomes null."""
        plain = _adapter().dump_python(self)
        text = json.dumps(_finite(plain), ensure_ascii=False, allow_nan=False)
        # Half of a character (a JSON file may smuggle in such) cannot be written as UTF-8.
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace") + "\n"

    @classmethod
    def from_json(cls, text: str | bytes, source: str | Path | None = None) -> Evaluation:
        """What `to_json` wrote; DataError says what is wrong with it."""
        try:
            return _adapter().validate_json(text)
        except ValidationError as error:
            raise DataError(f"not a stored evaluation ({sentence(error)})", file=source) from None


def write_evaluation(evaluation: Evaluation, path: Path) -> None:
    """Keep an evaluation as a JSON file, so that its report can be drawn again."""
    atomic_write(path, evaluation.to_json().encode())


def read_evaluation(path: Path) -> Evaluation:
    """The evaluation that `write_evaluation` kept."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise DataError(f"cannot be read ({error.strerror or error})", file=path) from None
    return Evaluation.from_json(content, path)


@cache
def _adapter() -> TypeAdapter[Evaluation]:
    return TypeAdapter(Evaluation)


def _finite(value: Any) -> Any:
    """The same value with None for each number that JSON cannot say."""
    if isinstance(value, dict):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    return None if isinstance(value, float) and value - value != 0 else value
