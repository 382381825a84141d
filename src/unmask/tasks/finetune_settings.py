"""What a fine-tuning run is made of."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, TypeVar

from pydantic import Field

from unmask.config import Settings, changed, config_file, read_table
from unmask.errors import SettingsError
from unmask.longtext.settings import LongTextSettings
from unmask.train.losses import LossSettings
from unmask.train.settings import LoopSettings, TrainSettings

Share = Annotated[float, Field(ge=0.0, lt=1.0)]
Count = Annotated[int, Field(ge=1)]


class FinetuneSettings(Settings):
    """What all tasks have in common. Defaults are those of the BERT paper where it gives them."""

    epochs: Annotated[float, Field(gt=0.0)] = 3
    """How often every example is seen."""
    batch_size: Count = 32
    """Examples of one update, over all micro-batches and processes."""
    warmup: Share = 0.1
    """The share of the updates in which the learning rate grows."""
    evaluations: Count = 1
    """How often in an epoch the development set is measured; the best model is kept."""
    dev_share: Annotated[float, Field(gt=0.0, lt=1.0)] = 0.1
    """The share of the training file that is set apart where no development file is given."""
    long_text: LongTextSettings = LongTextSettings()
    loss: LossSettings = LossSettings()
    r_drop: Annotated[float, Field(gt=0.0)] | None = None
    """How much two passes with different dropout must agree (R-Drop)."""
    layers: Count | None = None
    """Use only so many of the lowest layers."""
    dropout: Share | None = 0.1
    """In the encoder, while it learns; None: what the model was pre-trained with, which may be none."""
    head_dropout: Share = 0.1
    from_nothing: bool = False
    """Start with random weights: to see what pre-training is worth."""
    doctor: bool = True
    """Look at the files first, and say what may hurt."""
    seed: int = 0
    """Of the new head, the order of examples, and dropout."""
    train: LoopSettings = LoopSettings()

    def loop(self, examples: int, updates_of_epoch: int) -> TrainSettings:
        """The loop's settings for so many examples."""
        if self.batch_size < self.train.accumulate or examples < self.train.accumulate:
            least = min(self.batch_size, examples)
            raise SettingsError(f"accumulate: {self.train.accumulate} micro-batches cannot share {least} examples")
        updates = max(1, math.ceil(self.epochs * updates_of_epoch))
        every = self.train.evaluate_every or max(1, updates_of_epoch // self.evaluations)
        schedule = self.train.schedule
        if "warmup" not in schedule.model_fields_set:
            schedule = schedule.replace(warmup=round(self.warmup * updates))
        given = {name: getattr(self.train, name) for name in LoopSettings.model_fields}
        save = self.train.save_every if "save_every" in self.train.model_fields_set else max(every, 500)
        fixed = {"updates": updates, "evaluate_every": every, "schedule": schedule, "seed": self.seed}
        return TrainSettings(**given | fixed | {"save_every": save})


class ClassifyRun(FinetuneSettings):
    """A label, several, or a number for a text or a pair."""

    problem: Literal["auto", "single", "multi", "regression"] = "auto"
    pooling: Literal["pooler", "cls", "mean", "max"] = "pooler"
    threshold: Annotated[float, Field(gt=0.0, lt=1.0)] = 0.5


class TagRun(FinetuneSettings):
    """A label for each word."""

    crf: bool = False
    scheme: Literal["BIO", "BIOES"] = "BIO"


class AnswerRun(FinetuneSettings):
    """Where in a text an answer stands."""

    max_question: Count = 64
    max_answer: Count = 30
    metric: Literal["auto", "squad", "cmrc"] = "auto"
    """How answers are compared; auto: cmrc where questions are Chinese."""


class Files(Settings):
    """What a run learns from."""

    model: str
    train: str
    dev: str | None = None
    columns: str | None = None
    separator: str | None = None
    """What stands between several labels of a text, where it is not recognised."""
    encoding: str = "utf-8"


Run = TypeVar("Run", bound=FinetuneSettings)


def read_finetune_settings(kind: type[Run], config: str | None, changes: Sequence[str] = ()) -> Run:
    """Settings from a .toml or .json file, a shipped config by its name, or the defaults, with some changed."""
    data: Mapping[str, Any] = {} if config is None else read_table(config_file(config, "finetune"))
    data = data.get("finetune", data)  # the settings that a run wrote down
    return kind.parse(changed(data, changes), str(config or "settings"))
