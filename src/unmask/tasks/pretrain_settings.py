"""Everything that a pre-training run is told, in one file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from unmask.config import Settings, changed, config_file, read_table, shown
from unmask.data.corpus.format import CorpusSettings
from unmask.data.masking import MaskingSettings
from unmask.data.pairs import PairSettings
from unmask.data.pretraining import ExampleSettings
from unmask.models.settings import (
    BertSettings,
    MaskedTokenSettings,
    NextSentenceSettings,
    SentenceOrderSettings,
    bert_preset,
)
from unmask.nn.settings import AdaptiveSettings
from unmask.text.training import VocabularySettings
from unmask.train.settings import TrainSettings


class StageSettings(Settings):
    """A stretch of a run with examples of one length."""

    length: Annotated[int, Field(ge=8)] = 128
    updates: Annotated[int, Field(ge=1)]
    batch_tokens: Annotated[int, Field(ge=8)] = 4096
    """Tokens of a micro-batch, at most."""


class ModelChoice(Settings):
    """Which model is trained from nothing. To go on from a model, name it on the command line instead."""

    size: str = "mini"
    """tiny, mini, small, medium, base or large."""
    dropout: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.1
    seed: int = 0
    """Of the first values."""
    output: AdaptiveSettings | None = None
    """Adaptive softmax over the vocabulary, such as {cutoffs = [2000, 10000]}; without it, one softmax over it all."""
    positions_start: Literal["random", "sinusoidal"] = "random"
    """What a learned table of positions begins with: waves say at once what is near, random values must learn it."""
    other: dict[str, Any] = Field(default_factory=dict)
    """Any other setting of a BERT model, such as positions or norm_place."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        """Size of the vocabulary and heads are not chosen here: they follow from the text and the objectives."""
        for name in ("vocab_size", "heads"):
            if name in self.other:
                raise ValueError(f"other has {name}, which follows from the rest; leave it out")
        return self


class PretrainSettings(Settings):
    """A pre-training run."""

    stages: Annotated[tuple[StageSettings, ...], Field(min_length=1)]
    train: TrainSettings
    model: ModelChoice = ModelChoice()
    vocabulary: VocabularySettings = VocabularySettings(size=8000)
    """Learned from the text if no tokenizer is given."""
    corpus: CorpusSettings = CorpusSettings()
    """How the text becomes a corpus if none is given."""
    pairs: PairSettings = PairSettings()
    masking: MaskingSettings = MaskingSettings()
    held_out: Annotated[int, Field(ge=0)] = 100
    """One document in so many is kept for evaluation; 0: none."""
    evaluation_tokens: Annotated[int, Field(ge=1)] = 200_000
    seed: int = 0
    """Of the examples: order, pairs and masks."""
    cloze: tuple[str, ...] = ()
    """Texts with [MASK] that are filled in at each evaluation, for a person to see."""

    @model_validator(mode="before")
    @classmethod
    def _count_updates(cls, data: Any) -> Any:
        """The number of updates follows from the stages."""
        if isinstance(data, Mapping) and isinstance(data.get("train"), Mapping):
            given = data.get("stages")
            listed = given if isinstance(given, Sequence) and not isinstance(given, str) else ()
            stages = [stage for stage in listed if isinstance(stage, Mapping)]
            total = sum(stage["updates"] for stage in stages if isinstance(stage.get("updates"), int))
            updates = data["train"].get("updates", total)
            if total and updates != total:
                said = f"train.updates is {shown(updates)} but the stages have {total} together"
                raise ValueError(f"{said}; leave it out")
            if total:
                return {**data, "train": {**data["train"], "updates": total}}
        return data

    @model_validator(mode="after")
    def _check(self) -> Self:
        tokens = 100 if self.model.output is None else self.model.output.cutoffs[-1] + 1
        positions = self.bert(tokens).max_length
        for stage in self.stages:
            if stage.length > positions:
                raise ValueError(f"a stage has length {stage.length} but the model reads {positions} tokens at most")
            if stage.batch_tokens < stage.length:
                raise ValueError(f"batch_tokens {stage.batch_tokens} is below the length {stage.length} of its stage")
        return self

    def bert(self, vocab_size: int) -> BertSettings:
        """The model, for a vocabulary of this size, with the heads that the objectives need."""
        size = bert_preset(self.model.size, vocab_size)
        rate = self.model.dropout
        plain = size.model_dump() | {
            "dropout": {"embedding": rate, "residual": rate, "attention": rate, "activation": 0.0},
            "heads": [head.model_dump() for head in self.heads],
        }
        return BertSettings.parse(plain | self.model.other, "model")

    @property
    def heads(self) -> tuple[MaskedTokenSettings | NextSentenceSettings | SentenceOrderSettings, ...]:
        """What stands on the encoder."""
        tokens = MaskedTokenSettings(output=self.model.output, tied=self.model.output is None)
        match self.pairs.objective:
            case "nsp":
                return tokens, NextSentenceSettings()
            case "sop":
                return tokens, SentenceOrderSettings()
            case "none":
                return (tokens,)

    def examples(self, stage: StageSettings) -> ExampleSettings:
        """How the examples of a stage are made."""
        return ExampleSettings(
            length=stage.length,
            batch_tokens=stage.batch_tokens,
            pairs=self.pairs,
            masking=self.masking,
            seed=self.seed,
            held_out=self.held_out,
        )


def read_pretrain_settings(config: str, changes: Sequence[str] = ()) -> PretrainSettings:
    """Settings from a .toml or .json file, or one of the shipped configs by its name, with some changed."""
    path = config_file(config, "pretrain")
    data = read_table(path)
    data = data.get("pretrain", data)  # the settings that a run wrote down
    return PretrainSettings.parse(changed(data, changes), str(path))
