"""What a whole model is made of, as settings, and the sizes that papers gave names to."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, TypeAdapter, model_validator

from unmask.config import Settings
from unmask.errors import SettingsError
from unmask.nn.settings import (
    ActivationName,
    AdaptiveSettings,
    DropoutSettings,
    LayerSettings,
    LayerShape,
    PositionSettings,
    Probability,
    SinusoidalSettings,
    Size,
)


def _writable(label: str) -> str:
    """A label that can be written to a file: lone surrogates have no UTF-8 form."""
    if not label.isascii():
        try:
            label.encode()
        except UnicodeEncodeError:
            raise ValueError("is not valid Unicode") from None
    return label


#: Deep enough for anything published, small enough that a hostile config cannot keep us building for ever.
Depth = Annotated[int, Field(ge=1, le=1000)]
Vocabulary = Annotated[int, Field(ge=2, le=10_000_000)]
Label = Annotated[str, AfterValidator(_writable)]
Labels = Annotated[tuple[Label, ...], Field(min_length=1, max_length=100_000)]
#: Which tables of a translation model are one. target: its embedding and the output; all: the source's too.
Tie = Literal["none", "target", "all"]


class MaskedTokenSettings(Settings):
    """Guess masked tokens (MLM)."""

    kind: Literal["mlm"] = "mlm"
    tied: bool = True  # the output matrix is the token embedding
    output: AdaptiveSettings | None = None  # None: one softmax over the whole vocabulary

    @model_validator(mode="after")
    def _check_output(self) -> Self:
        if self.output is not None and self.tied:
            raise ValueError("an adaptive output has matrices of its own, of other shapes: set tied to false")
        return self


class NextSentenceSettings(Settings):
    """Does the second text follow the first (NSP)?"""

    kind: Literal["nsp"] = "nsp"


class SentenceOrderSettings(Settings):
    """Are two neighbouring texts in their order, or swapped (SOP)?"""

    kind: Literal["sop"] = "sop"


class ClassifySettings(Settings):
    """A label for a text or a pair."""

    kind: Literal["classify"] = "classify"
    labels: Labels
    pooling: Literal["pooler", "cls", "mean", "max"] = "pooler"
    dropout: Probability = 0.1
    problem: Literal["single", "multi", "regression"] = "single"  # one label, any number of them, or numbers
    window_attention: bool = False  # a long text's windows are weighed by a layer that has learned to

    @model_validator(mode="after")
    def _check_problem(self) -> Self:
        if self.problem == "single" and len(self.labels) < 2:
            raise ValueError("one label of one leaves nothing to choose: give two labels, or problem regression")
        return self


class TagSettings(Settings):
    """A label for each token."""

    kind: Literal["tag"] = "tag"
    labels: Labels
    crf: bool = False
    dropout: Probability = 0.1


class SpanSettings(Settings):
    """Where an answer starts and ends (question answering)."""

    kind: Literal["qa"] = "qa"


HeadSettings = Annotated[
    MaskedTokenSettings | NextSentenceSettings | SentenceOrderSettings | ClassifySettings | TagSettings | SpanSettings,
    Field(discriminator="kind"),
]


def reads_pooler(head: HeadSettings) -> bool:
    """Whether a head reads the pooled output."""
    return head.kind in ("nsp", "sop") or (head.kind == "classify" and head.pooling == "pooler")


class StackSettings(LayerSettings):
    """A model of one stack of blocks."""

    vocab_size: Vocabulary
    num_layers: Depth
    max_length: Size = 512
    scale_embeddings: bool = False  # multiply token embeddings by sqrt(hidden_size)
    embedding_norm: bool = True  # a norm right after the embeddings are summed
    heads_by_layer: tuple[Size, ...] | None = None  # after heads were removed: how many each layer still has
    ffn_by_layer: tuple[Size, ...] | None = None  # after neurons were removed: how many each layer still has

    @model_validator(mode="after")
    def _check_layers(self) -> Self:
        for name in ("heads_by_layer", "ffn_by_layer"):
            given = getattr(self, name)
            if given is not None and len(given) != self.num_layers:
                raise ValueError(f"{name} has {len(given)} entries but num_layers is {self.num_layers}")
        if self.heads_by_layer is not None and (self.projections == "none" or self.positions.kind == "alibi"):
            raise ValueError("heads_by_layer: without projections, and with ALiBi, a head is known by its number alone")
        shared = getattr(self.positions, "share_layers", False) and self.positions.kind != "shaw"
        if self.heads_by_layer is not None and shared and len(set(self.heads_by_layer)) > 1:
            raise ValueError("positions shared by all layers need the same number of heads in each")
        return self

    @property
    def shapes(self) -> tuple[LayerShape, ...]:
        """The shape of each layer."""
        heads = self.heads_by_layer or (self.num_heads,) * self.num_layers
        ffns = self.ffn_by_layer or (self.ffn_size,) * self.num_layers
        return tuple(LayerShape(*shape) for shape in zip(heads, ffns, strict=True))


class BertSettings(StackSettings):
    """An encoder that reads in both directions, with the heads it was given."""

    model: Literal["bert"] = "bert"
    num_segments: Annotated[int, Field(ge=0, le=1000)] = 2
    pooler: bool = True
    heads: tuple[HeadSettings, ...] = ()

    @model_validator(mode="after")
    def _check_heads(self) -> Self:
        kinds = [head.kind for head in self.heads]
        if len(set(kinds)) < len(kinds):
            raise ValueError(f"each kind of head at most once, given {', '.join(kinds)}")
        for head in self.heads:
            if head.kind == "mlm" and head.output is not None:
                head.output.check_fits(self.vocab_size, self.hidden_size)
            if reads_pooler(head) and not self.pooler:
                raise ValueError(f"the {head.kind} head reads the pooled output: set pooler to true")
        return self


class GptSettings(StackSettings):
    """A decoder without encoder: the same blocks, each token seeing only those before it. Defaults are GPT-2's."""

    model: Literal["gpt"] = "gpt"
    max_length: Size = 1024
    embedding_norm: bool = False
    activation: ActivationName = "gelu_tanh"
    norm_place: Literal["post", "pre"] = "pre"
    norm_eps: Annotated[float, Field(gt=0.0, lt=1.0)] = 1e-5
    final_norm: bool = True
    tie_output: bool = True


class TransformerSettings(LayerSettings):
    """The encoder-decoder of "Attention is all you need". Defaults are the paper's."""

    model: Literal["transformer"] = "transformer"
    source_vocab_size: Vocabulary
    target_vocab_size: Vocabulary
    num_encoder_layers: Depth = 6
    num_decoder_layers: Depth = 6
    max_length: Size = 512
    scale_embeddings: bool = True
    embedding_norm: bool = False
    tie: Tie = "all"
    output_bias: bool = False
    output: AdaptiveSettings | None = None  # None: one softmax over the whole vocabulary

    positions: PositionSettings = SinusoidalSettings()
    activation: ActivationName = "relu"
    norm_eps: Annotated[float, Field(gt=0.0, lt=1.0)] = 1e-5
    dropout: DropoutSettings = DropoutSettings(embedding=0.1, residual=0.1, attention=0.0, activation=0.0)
    init: Literal["truncated_normal", "xavier"] = "xavier"
    init_branches: Annotated[float, Field(gt=0.0, le=1.0)] = 1.0
    """What sub-layers add is so much smaller at first: with norms behind them a small stack learns far sooner."""

    @model_validator(mode="after")
    def _check_vocabularies(self) -> Self:
        _check_tie(self.tie, self.source_vocab_size, self.target_vocab_size)
        if self.output is not None:
            self.output.check_fits(self.target_vocab_size, self.hidden_size)
            if self.tie != "none":
                raise ValueError(
                    f"an adaptive output has matrices of its own, of other shapes, which tie {self.tie!r} would make "
                    "one with the embedding: set tie to 'none'"
                )
        return self


class LstmSettings(Settings):
    """The seq2seq of LSTMs that the Transformer replaced: its encoder reads from both sides."""

    model: Literal["lstm"] = "lstm"
    source_vocab_size: Vocabulary
    target_vocab_size: Vocabulary
    hidden_size: Size
    num_layers: Depth = 2
    attention: bool = True  # without it, the decoder knows the source only as its first state
    dropout: Probability = 0.2
    tie: Tie = "all"

    @model_validator(mode="after")
    def _check(self) -> Self:
        _check_tie(self.tie, self.source_vocab_size, self.target_vocab_size)
        if self.hidden_size % 2:
            raise ValueError(f"hidden_size {self.hidden_size} must be even: the encoder reads in two directions")
        return self

    @property
    def max_length(self) -> int:
        """As many tokens as anything may have: a state has no table that could end."""
        return 1_000_000


def _check_tie(tie: Tie, source: int, target: int) -> None:
    if tie == "all" and source != target:
        raise ValueError(
            f"tie 'all' needs one vocabulary for both sides, given {source} and {target} tokens; "
            "use tie 'target' or a joint vocabulary"
        )


ModelSettings = Annotated[BertSettings | GptSettings | TransformerSettings | LstmSettings, Field(discriminator="model")]
MODEL_SETTINGS: TypeAdapter[ModelSettings] = TypeAdapter(ModelSettings)

#: num_layers, hidden_size; heads have size 64 and the feed-forward network is four times as wide (Turc et al. 2019).
_BERT_SIZES = {
    "tiny": (2, 128),
    "mini": (4, 256),
    "small": (4, 512),
    "medium": (8, 512),
    "base": (12, 768),
    "large": (24, 1024),
}


def bert_preset(size: str, vocab_size: int = 30522) -> BertSettings:
    """BERT in one of its published sizes: tiny, mini, small, medium, base, large."""
    if size not in _BERT_SIZES:
        raise SettingsError(f"unknown size {size} for BERT; known are {', '.join(_BERT_SIZES)}")
    num_layers, hidden = _BERT_SIZES[size]
    return BertSettings(
        vocab_size=vocab_size, num_layers=num_layers, hidden_size=hidden, num_heads=hidden // 64, ffn_size=4 * hidden
    )


def transformer_preset(size: str, source_vocab_size: int, target_vocab_size: int | None = None) -> TransformerSettings:
    """The Transformer as base or big of the paper, or tiny (4 layers of 128, for data sets of 30,000 sentences)."""
    shapes = {"tiny": (4, 128, 256, 4, 0.3), "base": (6, 512, 2048, 8, 0.1), "big": (6, 1024, 4096, 16, 0.3)}
    if size not in shapes:
        raise SettingsError(f"unknown size {size} for the Transformer; known are {', '.join(shapes)}")
    layers, hidden, ffn, heads, dropout = shapes[size]
    joint = target_vocab_size is None or target_vocab_size == source_vocab_size
    return TransformerSettings(
        source_vocab_size=source_vocab_size,
        target_vocab_size=source_vocab_size if target_vocab_size is None else target_vocab_size,
        num_encoder_layers=layers,
        num_decoder_layers=layers,
        hidden_size=hidden,
        ffn_size=ffn,
        num_heads=heads,
        tie="all" if joint else "target",
        dropout=DropoutSettings(embedding=dropout, residual=dropout, attention=0.0, activation=0.0),
    )
