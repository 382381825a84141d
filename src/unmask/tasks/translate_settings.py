"""Everything that a translation run is told, in one file."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from unmask.config import Settings, changed, config_file, read_table
from unmask.decode.settings import DecodeSettings
from unmask.models.recurrent import lstm_like
from unmask.models.settings import LstmSettings, TransformerSettings
from unmask.nn.settings import DropoutSettings, SinusoidalSettings
from unmask.text.training import VocabularySettings
from unmask.train.settings import TrainSettings

Count = Annotated[int, Field(ge=1)]
Share = Annotated[float, Field(ge=0.0, lt=1.0)]
Arch = Literal["transformer", "lstm", "lstm-attention"]


class TranslationShape(Settings):
    """How large the model is. An LSTM gets as many layers as it is told, and as many parameters as the Transformer."""

    layers: Count = 4
    """Of the encoder and of the decoder."""
    hidden: Count = 128
    ffn: Count = 256
    heads: Count = 4
    dropout: Share = 0.3
    tie: Literal["none", "target", "all"] = "all"
    """Which tables are one: all (source, target and output), target (target and output), or none."""
    max_length: Annotated[int, Field(ge=2)] = 256
    """Tokens of a sentence, on either side; pairs that have more are not learned from."""
    lstm_layers: Count = 2
    other: dict[str, Any] = Field(default_factory=dict)
    """Any other setting of a Transformer, such as positions or norm_place."""


class TranslateSettings(Settings):
    """A translation run."""

    train: TrainSettings
    start: str | None = None
    """Folder of a translator to begin with: its shape, vocabularies and weights instead of new ones."""
    arch: Arch = "transformer"
    model: TranslationShape = TranslationShape()
    vocabulary: VocabularySettings = VocabularySettings(
        kind="bpe", size=8000, lowercase=False, split_chinese=False, character_coverage=0.99999
    )
    """Learned from the training pairs."""
    joint: bool = True
    """One vocabulary for both languages, or one for each."""
    batch_tokens: Annotated[int, Field(ge=8)] = 4096
    """Tokens of a micro-batch on its longer side, at most."""
    smoothing: Share = 0.1
    """How much of each answer is spread over the vocabulary."""
    r_drop: Annotated[float, Field(gt=0.0)] | None = None
    """Look at each pair twice, dropout differing, and let both answers agree, so strongly; twice the work."""
    unknown_share: Share = 0.01
    """In this share of the pairs an unknown token is added at the same end of both sides: so it learns to be kept."""
    score: Literal["bleu", "loss"] = "bleu"
    """What says which model is the best, on the development set."""
    evaluation_beam: Count = 1
    average_last: Annotated[int, Field(ge=0)] = 0
    """Take the mean of the weights of so many newest checkpoints, if it does better; 0: do not."""
    decode: DecodeSettings = DecodeSettings()
    """How the model will translate, if nothing else is said then."""
    dev_share: Annotated[float, Field(gt=0.0, lt=1.0)] = 0.02
    """What is set apart to measure on where no development pairs are given."""
    seed: int = 0
    """Of first values, the order of pairs, and what is set apart."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if not self.joint and self.model.tie == "all":
            raise ValueError("model.tie 'all' needs one vocabulary for both languages: set joint, or tie 'target'")
        if self.smoothing and self.model.other.get("output") is not None:
            raise ValueError(
                "smoothing spreads over the whole vocabulary, which an adaptive output (model.other.output) does not "
                "compute: set smoothing to 0"
            )
        if self.r_drop is not None and self.model.other.get("output") is not None:
            raise ValueError("r_drop compares whole vocabularies, which an adaptive output does not compute")
        if self.average_last > self.train.keep:
            raise ValueError(
                f"average_last {self.average_last} needs as many checkpoints, but train.keep is {self.train.keep}"
            )
        return self

    @property
    def loop(self) -> TrainSettings:
        """The loop's settings; Noam's schedule is told how wide the model is."""
        schedule = self.train.schedule
        if schedule.kind == "noam":
            schedule = schedule.replace(hidden_size=self.model.hidden)
        return self.train.replace(schedule=schedule)

    def build(self, source_tokens: int, target_tokens: int) -> TransformerSettings | LstmSettings:
        """The model for vocabularies of these sizes."""
        shape = self.model
        rate = shape.dropout
        plain = TransformerSettings(
            source_vocab_size=source_tokens,
            target_vocab_size=target_tokens,
            num_encoder_layers=shape.layers,
            num_decoder_layers=shape.layers,
            hidden_size=shape.hidden,
            ffn_size=shape.ffn,
            num_heads=shape.heads,
            max_length=shape.max_length,
            tie=shape.tie,
            positions=SinusoidalSettings(order="concatenated"),  # as Marian has them: the same waves, sorted
            dropout=DropoutSettings(embedding=rate, residual=rate, attention=0.0, activation=0.0),
        )
        chosen = TransformerSettings.parse(plain.model_dump() | shape.other, "model.other")
        if self.arch == "transformer":
            return chosen
        return lstm_like(chosen, attention=self.arch == "lstm-attention", num_layers=shape.lstm_layers)


class Texts(Settings):
    """What a run learns from: two files with a line for a line, or one with both sides."""

    train: tuple[str, ...]
    dev: tuple[str, ...] = ()
    columns: str | None = None
    swap: bool = False
    """Learn to translate the other way round."""
    encoding: str = "utf-8"


def read_translate_settings(config: str | None, changes: Sequence[str] = ()) -> TranslateSettings:
    """Settings from a .toml or .json file or a shipped config by its name (multi30k-tiny if none), some changed."""
    path = config_file(config or "multi30k-tiny", "translate")
    data = read_table(path)
    data = data.get("translate", data)  # the settings that a run wrote down
    return TranslateSettings.parse(changed(data, changes), str(path))
