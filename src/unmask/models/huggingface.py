"""The border to Hugging Face's BERT: its config.json and ours, in both directions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from unmask.config import sentence, shown
from unmask.errors import ModelError, SettingsError
from unmask.models.settings import (
    BertSettings,
    ClassifySettings,
    HeadSettings,
    MaskedTokenSettings,
    NextSentenceSettings,
    SpanSettings,
    TagSettings,
)
from unmask.nn.settings import ActivationName, DropoutSettings

_ACTIVATIONS: dict[str, ActivationName] = {
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
    "linear": "identity",
}
_ACTIVATION_NAMES: dict[ActivationName, str] = {
    "gelu": "gelu",
    "gelu_tanh": "gelu_new",
    "relu": "relu",
    "silu": "silu",
    "identity": "linear",
}
_PROBLEMS: dict[str, Literal["single", "multi", "regression"]] = {
    "single_label_classification": "single",
    "multi_label_classification": "multi",
    "regression": "regression",
}
_ARCHITECTURES: dict[tuple[str, ...], str] = {
    (): "BertModel",
    ("mlm",): "BertForMaskedLM",
    ("nsp",): "BertForNextSentencePrediction",
    ("mlm", "nsp"): "BertForPreTraining",
    ("classify",): "BertForSequenceClassification",
    ("tag",): "BertForTokenClassification",
    ("qa",): "BertForQuestionAnswering",
}

_Count = Annotated[int, Field(ge=1, le=10_000_000)]


class _BertConfig(BaseModel):
    """The fields of a published config.json that say what the model is; other fields are left alone."""

    model_config = ConfigDict(extra="ignore", frozen=True, allow_inf_nan=False)

    vocab_size: _Count
    hidden_size: _Count
    num_hidden_layers: _Count
    num_attention_heads: _Count
    intermediate_size: _Count
    hidden_act: str = "gelu"
    hidden_dropout_prob: float = 0.1
    attention_probs_dropout_prob: float = 0.1
    classifier_dropout: float | None = None
    max_position_embeddings: _Count = 512
    type_vocab_size: Annotated[int, Field(ge=0, le=1000)] = 2
    layer_norm_eps: float = 1e-12
    initializer_range: float = 0.02
    position_embedding_type: Literal["absolute"] | None = "absolute"
    is_decoder: Literal[False] = False
    tie_word_embeddings: bool = True
    architectures: list[str] | None = None
    id2label: dict[str, str] | None = None
    num_labels: Annotated[int, Field(ge=1, le=100_000)] | None = None
    problem_type: str | None = None

    @property
    def labels(self) -> tuple[str, ...]:
        """Label names in order of their numbers; empty if the numbers are not 0, 1, 2, …"""
        if self.id2label:
            ordered = [self.id2label.get(str(number)) for number in range(len(self.id2label))]
            return tuple(name for name in ordered if name is not None) if None not in ordered else ()
        return tuple(f"LABEL_{i}" for i in range(self.num_labels or 2))


def read_config(
    data: Mapping[str, Any], tensors: Mapping[str, tuple[int, ...]], source: str, *, with_heads: bool = True
) -> BertSettings:
    """Settings from a published config.json and the (modern, prefixed) names of the tensors beside it."""
    try:
        config = _BertConfig.model_validate(dict(data))
    except ValidationError as error:
        raise ModelError(f"{source}: {sentence(error)}") from None
    if config.hidden_act not in _ACTIVATIONS:
        known = ", ".join(sorted(_ACTIVATIONS))
        raise ModelError(f"{source}: hidden_act {shown(config.hidden_act)} is not supported; known are {known}")
    found = {name.split(".")[3] for name in tensors if name.startswith("bert.encoder.layer.")}
    if len(found) != config.num_hidden_layers:
        raise ModelError(
            f"{source}: num_hidden_layers is {config.num_hidden_layers:,} but the weights hold {len(found)} layers"
        )
    try:
        return BertSettings(
            vocab_size=config.vocab_size,
            num_layers=config.num_hidden_layers,
            hidden_size=config.hidden_size,
            num_heads=config.num_attention_heads,
            ffn_size=config.intermediate_size,
            max_length=config.max_position_embeddings,
            num_segments=config.type_vocab_size,
            activation=_ACTIVATIONS[config.hidden_act],
            norm_eps=config.layer_norm_eps,
            init_std=config.initializer_range,
            dropout=DropoutSettings(
                embedding=config.hidden_dropout_prob,
                residual=config.hidden_dropout_prob,
                attention=config.attention_probs_dropout_prob,
                activation=0.0,
            ),
            pooler="bert.pooler.dense.weight" in tensors,
            heads=_heads_in(config, tensors, source) if with_heads else (),
        )
    except SettingsError as error:
        raise ModelError(f"{source}: {error}") from None


def write_config(settings: BertSettings) -> dict[str, Any]:
    """The config.json that makes `transformers` build the same model. Only for settings that are `is_plain`."""
    kinds = tuple(sorted(head.kind for head in settings.heads))
    plain = all(is_plain_head(head) for head in settings.heads)
    config: dict[str, Any] = {
        "model_type": "bert",
        "architectures": [_ARCHITECTURES.get(kinds, "BertModel") if plain else "BertModel"],
        "vocab_size": settings.vocab_size,
        "hidden_size": settings.hidden_size,
        "num_hidden_layers": settings.num_layers,
        "num_attention_heads": settings.num_heads,
        "intermediate_size": settings.ffn_size,
        "hidden_act": _ACTIVATION_NAMES[settings.activation],
        "hidden_dropout_prob": settings.dropout.residual,
        "attention_probs_dropout_prob": settings.dropout.attention,
        "max_position_embeddings": settings.max_length,
        "type_vocab_size": settings.num_segments,
        "layer_norm_eps": settings.norm_eps,
        "initializer_range": settings.init_std,
        "position_embedding_type": "absolute",
        "pad_token_id": 0,
    }
    for head in settings.heads:
        if head.kind in ("classify", "tag") and "id2label" not in config:
            config["id2label"] = {str(i): label for i, label in enumerate(head.labels)}
            config["label2id"] = {label: i for i, label in enumerate(head.labels)}
            config["classifier_dropout"] = head.dropout
        if head.kind == "classify":
            config["problem_type"] = next(theirs for theirs, ours in _PROBLEMS.items() if ours == head.problem)
        if head.kind == "mlm":
            config["tie_word_embeddings"] = head.tied
    return config


def is_plain(settings: BertSettings) -> bool:
    """Whether `transformers` can build the same encoder: BERT as published, whatever its size."""
    plain = BertSettings(
        vocab_size=settings.vocab_size,
        num_layers=settings.num_layers,
        hidden_size=settings.hidden_size,
        num_heads=settings.num_heads,
        ffn_size=settings.ffn_size,
        max_length=settings.max_length,
        num_segments=settings.num_segments,
        activation=settings.activation,
        norm_eps=settings.norm_eps,
        init_std=settings.init_std,
        dropout=settings.dropout,
        pooler=settings.pooler,
        heads=settings.heads,
    )
    one_dropout = settings.dropout.embedding == settings.dropout.residual and settings.dropout.activation == 0.0
    return settings == plain and one_dropout and settings.num_segments > 0


def needs_own_heads(settings: BertSettings) -> bool:
    """Whether some head, or their combination, is one `transformers` does not have."""
    kinds = tuple(sorted(head.kind for head in settings.heads))
    return kinds not in _ARCHITECTURES or not all(is_plain_head(head) for head in settings.heads)


def is_plain_head(head: HeadSettings) -> bool:
    """Whether `transformers` has this head."""
    match head:
        case ClassifySettings():
            return head.pooling == "pooler" and not head.window_attention
        case TagSettings():
            return not head.crf
        case MaskedTokenSettings():
            return head.output is None
        case NextSentenceSettings() | SpanSettings():
            return True
        case _:
            return False


def _heads_in(config: _BertConfig, tensors: Mapping[str, tuple[int, ...]], source: str) -> tuple[HeadSettings, ...]:
    """The heads whose tensors are there."""
    heads: list[HeadSettings] = []
    dropout = config.hidden_dropout_prob if config.classifier_dropout is None else config.classifier_dropout
    if "cls.predictions.transform.dense.weight" in tensors:
        heads.append(MaskedTokenSettings(tied=config.tie_word_embeddings))
    if "cls.seq_relationship.weight" in tensors:
        heads.append(NextSentenceSettings())
    if "classifier.weight" in tensors:
        architectures = config.architectures or []
        if "BertForMultipleChoice" in architectures:
            raise ModelError(f"{source}: BertForMultipleChoice is not supported; say heads=() to use its encoder alone")
        labels = config.labels
        if len(labels) != tensors["classifier.weight"][0]:
            raise ModelError(
                f"{source}: names {len(labels)} labels (numbered from 0 without gaps) but the classifier has "
                f"{tensors['classifier.weight'][0]}; correct id2label"
            )
        # A classifier without a pooler can only be one of tokens, whatever the config leaves unsaid.
        if "BertForTokenClassification" in architectures or "bert.pooler.dense.weight" not in tensors:
            heads.append(TagSettings(labels=labels, dropout=dropout))
        else:
            problem = _PROBLEMS.get(config.problem_type or "", "regression" if len(labels) == 1 else "single")
            heads.append(ClassifySettings(labels=labels, dropout=dropout, problem=problem))
    if "qa_outputs.weight" in tensors:
        heads.append(SpanSettings())
    return tuple(heads)
