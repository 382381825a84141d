"""What is done to a model to make it smaller, and how it recovers, as settings."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from unmask.config import Settings
from unmask.models.quantised import Storage

#: How much of something is kept.
Kept = Annotated[float, Field(gt=0.0, lt=1.0)]
Weight = Annotated[float, Field(ge=0.0)]
#: labels: as in fine-tuning; distill: from the answers of the model that is made smaller.
Recovery = Literal["none", "labels", "distill"]


class Steps(Settings):
    """What one attempt does, in the order of these fields: parts go, the model learns again, and is stored."""

    student: str | None = None
    """Another encoder that is to do the same, by name or folder; it has to read the same tokens."""
    vocab: bool = False
    """Leave out tokens that the user's texts do not have."""
    vocab_size: Annotated[int, Field(ge=1)] | None = None
    """Keep so many tokens; None: those that the texts have, and at least half of the vocabulary."""
    layers: Annotated[int, Field(ge=1)] | None = None
    """How many stay."""
    heads: Kept | None = None
    """The share of all attention heads that stays, the most important ones."""
    neurons: Kept | None = None
    """The share of each layer's feed-forward neurons that stays, the most important ones."""
    magnitude: Kept | None = None
    """The share of the weights that is not set to zero, the largest ones: for comparison, it makes nothing smaller."""
    recovery: Recovery = "none"
    storage: Storage = "fp32"

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.student is not None and self.recovery == "none":
            raise ValueError("student: has to learn the task; add a recovery, best by distillation")
        if self.magnitude is not None and self.recovery != "none":
            raise ValueError("magnitude: zeros would be learned away; leave out the recovery")
        return self

    @property
    def removes(self) -> bool:
        """Whether something goes that a model has to learn to do without."""
        return any(part is not None for part in (self.student, self.layers, self.heads, self.neurons))

    @property
    def name(self) -> str:
        """In words."""
        parts = [] if self.student is None else [f"student {self.student}"]
        if self.vocab:
            parts.append("vocabulary" if self.vocab_size is None else f"vocabulary of {self.vocab_size:,}")
        if self.layers is not None:
            parts.append(f"{self.layers} layer{'s' if self.layers > 1 else ''}")
        for share, what in ((self.heads, "heads"), (self.neurons, "neurons"), (self.magnitude, "weights not zero")):
            if share is not None:
                parts.append(f"{100 * share:.0f} % of {what}")
        if self.recovery != "none":
            parts.append({"labels": "trained again", "distill": "distilled"}[self.recovery])
        if self.storage != "fp32":
            parts.append(self.storage)
        return " + ".join(parts) or "as it is"


def on_top(before: Steps, steps: Steps) -> Steps:
    """What two attempts together do, one made from the other: shares of shares."""

    def share(one: float | None, two: float | None) -> float | None:
        return one * two if one and two else one or two

    return Steps(
        student=steps.student or before.student,
        vocab=before.vocab or steps.vocab,
        vocab_size=steps.vocab_size if steps.vocab else before.vocab_size,
        layers=steps.layers or before.layers,
        heads=share(before.heads, steps.heads),
        neurons=share(before.neurons, steps.neurons),
        magnitude=steps.magnitude or before.magnitude,
        recovery=before.recovery if steps.recovery == "none" else steps.recovery,
        storage=steps.storage,
    )


class RecoverySettings(Settings):
    """How a model that lost something learns again, on the training loop of fine-tuning."""

    examples: Annotated[int, Field(ge=1)] = 20_000
    """How many are seen, over and over if there are fewer."""
    batch_size: Annotated[int, Field(ge=1)] = 32
    learning_rate: Annotated[float, Field(gt=0.0)] = 5e-5
    warmup: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.1
    temperature: Annotated[float, Field(gt=0.0)] = 2.0
    """Answers of the teacher are softened by it."""
    hard: Weight = 0.2
    """How much the labels count."""
    soft: Weight = 1.0
    """How much the teacher's answers count."""
    hidden: Weight = 1.0
    """How much its hidden states count."""
    attention: Weight = 0.0
    """How much its attention maps count."""
    mapping: Literal["uniform", "last", "first"] = "uniform"
    """Which of its layers the student's layers look at: spread evenly, the uppermost, or the lowest."""
    dropout: Annotated[float, Field(ge=0.0, lt=1.0)] | None = None
    """While learning; None: the model's own from labels, and none from a teacher, who is to be met exactly."""
    augment: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.0
    """The share of tokens that is masked in every second batch, which then has the teacher's answers alone."""
    seed: int = 0


class Contract(Settings):
    """What a smaller model must keep."""

    max_drop: Annotated[float, Field(ge=0.0, le=100.0)] = 0.5
    """Points of the main score that may be lost at most."""
    sure: bool = False
    """Not only the measured loss: the end of its 95 % interval, too."""
