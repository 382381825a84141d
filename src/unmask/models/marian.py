"""The border to Hugging Face's Marian (`MarianMTModel`): its folders read as our Transformer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from unmask.config import sentence, shown
from unmask.errors import ModelError, SettingsError
from unmask.models.names import marian_names
from unmask.models.settings import Tie, TransformerSettings
from unmask.models.weights import WeightSource
from unmask.nn.positions.absolute import sinusoids
from unmask.nn.settings import ActivationName, DropoutSettings, LearnedSettings, Probability, SinusoidalSettings

SHARED, LOGITS_BIAS = "model.shared.weight", "final_logits_bias"
#: Marian's norms have torch's own.
NORM_EPS = 1e-5
#: Where several names stand for one activation, the last is the one we write.
ACTIVATIONS: dict[str, ActivationName] = {
    "silu": "silu",
    "swish": "silu",
    "relu": "relu",
    "gelu_python": "gelu",
    "gelu": "gelu",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_new": "gelu_tanh",
    "linear": "identity",
}

_SOURCE, _TARGET, _OUTPUT = "source_embeddings.token.weight", "target_embeddings.token.weight", "output.weight"
_ENCODER, _DECODER, _HEAD = "model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight", "lm_head.weight"
#: Ours → the names under which a table may be stored, the first that is there counts.
_TABLES: dict[Tie, dict[str, tuple[str, ...]]] = {
    "all": {_SOURCE: (SHARED, _DECODER, _ENCODER, _HEAD)},
    "target": {_SOURCE: (_ENCODER,), _TARGET: (_DECODER, _HEAD)},
    "none": {_SOURCE: (_ENCODER, SHARED), _TARGET: (_DECODER, SHARED), _OUTPUT: (_HEAD,)},
}
_WHERES = ("model.encoder.embed_positions.weight", "model.decoder.embed_positions.weight")

_Count = Annotated[int, Field(ge=1, le=10_000_000)]


class _MarianConfig(BaseModel):
    """The fields of a published config.json that say what the model is; other fields are left alone."""

    model_config = ConfigDict(extra="ignore", frozen=True, allow_inf_nan=False)

    vocab_size: _Count
    decoder_vocab_size: _Count | None = None
    d_model: _Count
    encoder_layers: _Count
    decoder_layers: _Count
    encoder_attention_heads: _Count
    decoder_attention_heads: _Count
    encoder_ffn_dim: _Count
    decoder_ffn_dim: _Count
    activation_function: str = "gelu"
    max_position_embeddings: _Count = 1024
    scale_embedding: bool = False
    share_encoder_decoder_embeddings: bool = True
    tie_word_embeddings: bool = True
    dropout: Probability = 0.1
    attention_dropout: Probability = 0.0
    activation_dropout: Probability = 0.0
    init_std: float = 0.02
    # What older versions could also do, and we do not.
    encoder_layerdrop: Annotated[float, Field(le=0.0)] = 0.0
    decoder_layerdrop: Annotated[float, Field(le=0.0)] = 0.0
    normalize_before: Literal[False] = False
    normalize_embedding: Literal[False] = False
    add_final_layer_norm: Literal[False] = False
    static_position_embeddings: Literal[True] = True
    extra_pos_embeddings: Literal[0] = 0
    is_decoder: Literal[False] = False
    is_encoder_decoder: Literal[True] = True

    @property
    def tie(self) -> Tie:
        """Which of its tables are one."""
        if not self.tie_word_embeddings:
            return "none"
        return "all" if self.share_encoder_decoder_embeddings else "target"


@dataclass(frozen=True)
class MarianContents:
    """What is in a Marian folder, in our words."""

    settings: TransformerSettings
    source: WeightSource
    names: Mapping[str, str]  # ours → name in the source
    unknown: tuple[str, ...]  # names in the source that we have none for


class _FlatBias:
    """A folder's tensors, the bias of the logits without the axis of length one that Marian gives it."""

    def __init__(self, source: WeightSource) -> None:
        self._source = source
        self.dtypes = source.dtypes
        self.shapes = dict(source.shapes)
        if self.shapes.get(LOGITS_BIAS, ())[:1] == (1,):
            self.shapes[LOGITS_BIAS] = self.shapes[LOGITS_BIAS][1:]

    def tensor(self, name: str) -> torch.Tensor:
        """Load one tensor."""
        return self._source.tensor(name).view(self.shapes[name])


def read_marian(data: Mapping[str, Any], weights: WeightSource, where: str) -> MarianContents:
    """The settings and names of a folder, from its config.json and the tensors beside it."""
    try:
        config = _MarianConfig.model_validate(dict(data))
    except ValidationError as error:
        raise ModelError(f"{where}: {sentence(error)}") from None
    _check(config, weights.shapes, where)
    source = _FlatBias(weights)
    bias = LOGITS_BIAS in source.shapes and bool(source.tensor(LOGITS_BIAS).any())
    try:
        settings = _settings(config, _positions(source, where), output_bias=bias)
    except SettingsError as error:
        raise ModelError(f"{where}: {error}") from None
    names, redundant = _tables(config.tie, source, where)
    if not bias:
        redundant.add(LOGITS_BIAS)
    if settings.positions.kind == "sinusoidal":
        redundant |= set(_WHERES)
    rest = source.shapes.keys() - redundant - {_ENCODER, _DECODER, _HEAD}
    table = marian_names(config.encoder_layers, config.decoder_layers)
    names |= {ours: theirs for ours, theirs in table if theirs in rest}
    return MarianContents(settings, source, names, tuple(source.shapes.keys() - set(names.values()) - redundant))


def _check(config: _MarianConfig, shapes: Mapping[str, tuple[int, ...]], where: str) -> None:
    for name in ("attention_heads", "ffn_dim"):
        one, two = getattr(config, f"encoder_{name}"), getattr(config, f"decoder_{name}")
        if one != two:
            raise ModelError(f"{where}: encoder_{name} {one} and decoder_{name} {two} differ, which is not supported")
    if config.activation_function not in ACTIVATIONS:
        given, known = shown(config.activation_function), ", ".join(sorted(ACTIVATIONS))
        raise ModelError(f"{where}: activation_function {given} is not supported; known are {known}")
    for side, depth in (("encoder", config.encoder_layers), ("decoder", config.decoder_layers)):
        found = {name.split(".")[3] for name in shapes if name.startswith(f"model.{side}.layers.")}
        if len(found) != depth:
            raise ModelError(f"{where}: {side}_layers is {depth:,} but the weights hold {len(found)} layers")


def _settings(
    config: _MarianConfig, positions: SinusoidalSettings | LearnedSettings, *, output_bias: bool
) -> TransformerSettings:
    target = config.vocab_size
    if not config.share_encoder_decoder_embeddings and config.decoder_vocab_size is not None:
        target = config.decoder_vocab_size
    return TransformerSettings(
        source_vocab_size=config.vocab_size,
        target_vocab_size=target,
        num_encoder_layers=config.encoder_layers,
        num_decoder_layers=config.decoder_layers,
        hidden_size=config.d_model,
        num_heads=config.encoder_attention_heads,
        ffn_size=config.encoder_ffn_dim,
        max_length=config.max_position_embeddings,
        scale_embeddings=config.scale_embedding,
        tie=config.tie,
        output_bias=output_bias,
        positions=positions,
        activation=ACTIVATIONS[config.activation_function],
        norm_eps=NORM_EPS,
        dropout=DropoutSettings(
            embedding=config.dropout,
            residual=config.dropout,
            attention=config.attention_dropout,
            activation=config.activation_dropout,
        ),
        init="truncated_normal",
        init_std=config.init_std,
    )


def _positions(source: WeightSource, where: str) -> SinusoidalSettings | LearnedSettings:
    """Marian's own waves, unless a stored table says otherwise: `transformers` would take that too."""
    stored = [source.tensor(name) for name in _WHERES if name in source.shapes]
    for order in ("concatenated", "interleaved"):
        settings = SinusoidalSettings(order=order)
        if all(_is_waves(table, settings) for table in stored):
            return settings
    if len(stored) < 2:
        raise ModelError(f"{where}: only one of {' and '.join(_WHERES)} is there, and it holds no sines and cosines")
    return LearnedSettings()


def _is_waves(table: torch.Tensor, settings: SinusoidalSettings) -> bool:
    if table.dim() != 2 or table.shape[1] % 2 or not table.is_floating_point():
        return False
    waves = sinusoids(torch.arange(len(table)), table.shape[1], settings.order, settings.spacing)
    return torch.allclose(table.double(), waves, rtol=0.0, atol=2 * torch.finfo(table.dtype).eps)


def _tables(tie: Tie, source: WeightSource, where: str) -> tuple[dict[str, str], set[str]]:
    """Ours → theirs for the tables of tokens, and the names that only repeat one of them."""
    names: dict[str, str] = {}
    redundant: set[str] = set()
    for ours, candidates in _TABLES[tie].items():
        there = [name for name in candidates if name in source.shapes]
        if not there:
            continue  # the general check says what is missing
        names[ours] = there[0]
        for other in there[1:] if tie != "none" else ():
            if not torch.equal(source.tensor(there[0]), source.tensor(other)):
                raise ModelError(
                    f"{where}: the config ties {there[0]} and {other}, but the weights hold two different tensors; "
                    "set tie_word_embeddings to false if both are meant"
                )
            redundant.add(other)
    return names, redundant
