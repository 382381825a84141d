"""What a block is made of, as settings. `unmask.nn.build` turns them into modules."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from unmask.config import Settings

Size = Annotated[int, Field(ge=1, le=1_000_000)]
Probability = Annotated[float, Field(ge=0.0, lt=1.0)]

ActivationName = Literal["gelu", "gelu_tanh", "relu", "silu", "identity"]
NormName = Literal["layer", "rms", "batch", "none"]
ScoreName = Literal["scaled_dot", "dot", "normed_dot", "additive"]
ProjectionsName = Literal["separate", "shared_qk", "none"]


class DropoutSettings(Settings):
    """The four places where a Transformer drops values while training."""

    embedding: Probability = 0.1  # after token, position and segment are summed
    residual: Probability = 0.1  # after each sub-layer, before it is added to its input
    attention: Probability = 0.1  # on the attention weights
    activation: Probability = 0.0  # inside the feed-forward network, after its activation

    @classmethod
    def everywhere(cls, p: float) -> DropoutSettings:
        """The same probability at all four places."""
        return cls(embedding=p, residual=p, attention=p, activation=p)


class NoPositionsSettings(Settings):
    """Order unknown."""

    kind: Literal["none"] = "none"


class LearnedSettings(Settings):
    """A learned vector for each position up to the model's max_length."""

    kind: Literal["learned"] = "learned"


class SinusoidalSettings(Settings):
    """Fixed sines and cosines. Models in the wild differ in how they order and space the waves."""

    kind: Literal["sinusoidal"] = "sinusoidal"
    order: Literal["interleaved", "concatenated"] = "interleaved"
    spacing: Literal["paper", "tensor2tensor"] = "paper"
    start: Annotated[int, Field(ge=0)] = 0  # the position of the first token


class ComplexSettings(Settings):
    """Each word turns in the complex plane at frequencies of its own (Wang et al. 2019)."""

    kind: Literal["complex"] = "complex"


class RotarySettings(Settings):
    """Queries and keys turned by their position."""

    kind: Literal["rotary"] = "rotary"
    base: Annotated[float, Field(gt=1.0)] = 10000.0


class AlibiSettings(Settings):
    """A penalty proportional to distance."""

    kind: Literal["alibi"] = "alibi"


class BucketSettings(Settings):
    """T5's learned number for each bucket of distances, shared by all layers as in T5 unless said otherwise."""

    kind: Literal["buckets"] = "buckets"
    num_buckets: Annotated[int, Field(ge=4, multiple_of=4)] = 32
    max_distance: Annotated[int, Field(ge=2)] = 128
    share_layers: bool = True

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.max_distance <= self.num_buckets // 2:
            raise ValueError(f"max_distance must exceed half of num_buckets, {self.num_buckets // 2}")
        return self


class ShawSettings(Settings):
    """Learned vectors for clipped distances, on keys and values."""

    kind: Literal["shaw"] = "shaw"
    max_distance: Size = 16
    share_layers: bool = False


class TransformerXLSettings(Settings):
    """Scores rewritten relative to the query, with sinusoids of the distance."""

    kind: Literal["transformer_xl"] = "transformer_xl"
    share_layers: bool = False


PositionSettings = Annotated[
    NoPositionsSettings
    | LearnedSettings
    | SinusoidalSettings
    | ComplexSettings
    | RotarySettings
    | AlibiSettings
    | BucketSettings
    | ShawSettings
    | TransformerXLSettings,
    Field(discriminator="kind"),
]


class AdaptiveSettings(Settings):
    """Adaptive softmax: tokens beyond the first cutoff, by frequency, stand in clusters that are ever narrower."""

    kind: Literal["adaptive"] = "adaptive"
    cutoffs: Annotated[tuple[Size, ...], Field(min_length=1, max_length=20)]  # where a new cluster begins, by rank
    div_value: Annotated[float, Field(ge=1.0, le=1000.0)] = 4.0  # each cluster is so many times narrower than the last

    @model_validator(mode="after")
    def _check_cutoffs(self) -> Self:
        if list(self.cutoffs) != sorted(set(self.cutoffs)):
            raise ValueError(f"cutoffs must grow, given {', '.join(map(str, self.cutoffs))}")
        return self

    def check_fits(self, vocab_size: int, hidden_size: int) -> None:
        """ValueError where a cluster would have no tokens, or no width."""
        if self.cutoffs[-1] >= vocab_size:
            raise ValueError(
                f"output: the last cutoff, {self.cutoffs[-1]}, leaves nothing of a vocabulary of {vocab_size} tokens "
                "for the last cluster; choose smaller cutoffs"
            )
        if hidden_size // self.div_value ** len(self.cutoffs) < 1:
            raise ValueError(
                f"output: {len(self.cutoffs)} clusters, each {self.div_value:g} times narrower, leave no width of "
                f"hidden_size {hidden_size}; use fewer cutoffs or a smaller div_value"
            )


class LayerSettings(Settings):
    """What every block of a model is made of. The defaults are BERT's."""

    hidden_size: Size
    num_heads: Size
    ffn_size: Size
    head_size: Size | None = None  # None: hidden_size / num_heads; equal to hidden_size: heads of full width

    projections: ProjectionsName = "separate"
    score: ScoreName = "scaled_dot"
    positions: PositionSettings = LearnedSettings()
    activation: ActivationName = "gelu"
    gated: bool = False
    ffn: bool = True
    norm: NormName = "layer"
    norm_place: Literal["post", "pre"] = "post"
    norm_eps: Annotated[float, Field(gt=0.0, lt=1.0)] = 1e-12
    final_norm: bool = False  # a norm after the last block; pre-norm stacks need it
    residual: bool = True
    bias: bool = True
    dropout: DropoutSettings = DropoutSettings()
    init: Literal["truncated_normal", "xavier"] = "truncated_normal"  # BERT's, or the Transformer's
    init_std: Annotated[float, Field(gt=0.0, lt=10.0)] = 0.02  # of truncated_normal

    @model_validator(mode="after")
    def _check_shapes(self) -> Self:
        if self.head_size is None and self.hidden_size % self.num_heads:
            raise ValueError(
                f"hidden_size {self.hidden_size} is not a multiple of num_heads {self.num_heads}; "
                "choose another number of heads or set head_size"
            )
        if self.projections == "none" and self.width_of_head not in (
            self.hidden_size,
            self.hidden_size / self.num_heads,
        ):
            raise ValueError("without projections head_size is hidden_size / num_heads or hidden_size")
        if self.positions.kind == "rotary" and self.width_of_head % 2:
            raise ValueError(f"rotary positions turn pairs: head_size {self.width_of_head} must be even")
        if self.positions.kind in ("sinusoidal", "complex", "transformer_xl") and self.hidden_size % 2:
            raise ValueError(
                f"{self.positions.kind} positions come in pairs: hidden_size {self.hidden_size} must be even"
            )
        return self

    @property
    def width_of_head(self) -> int:
        """Size of one head (D)."""
        return self.hidden_size // self.num_heads if self.head_size is None else self.head_size

    def uniform(self, num_layers: int) -> tuple[LayerShape, ...]:
        """The shapes of layers that are all alike."""
        return (LayerShape(self.num_heads, self.ffn_size),) * num_layers


@dataclass(frozen=True)
class LayerShape:
    """What may differ from layer to layer, once heads or neurons were removed."""

    num_heads: int
    ffn_size: int
