"""Our Transformer as a folder of Hugging Face's Marian, and what writing for other programs has in common."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from unmask.errors import SettingsError, TaskError
from unmask.models.assign import named_tensors
from unmask.models.marian import ACTIVATIONS, LOGITS_BIAS, NORM_EPS, SHARED
from unmask.models.names import marian_names
from unmask.models.settings import TransformerSettings
from unmask.models.transformer import Transformer
from unmask.models.weights_write import write_weights
from unmask.nn.embeddings import Embeddings
from unmask.nn.positions.absolute import LearnedPositions, sinusoids
from unmask.nn.settings import SinusoidalSettings
from unmask.storage import atomic_write, new_folder

_NAMES: dict[str, str] = {ours: theirs for theirs, ours in ACTIVATIONS.items()}
#: Setting → the values that are the same model there. Settings that are not here may have any value.
_ALLOWED: dict[str, tuple[object, ...]] = {
    "projections": ("separate",),
    "score": ("scaled_dot",),
    "positions": ("sinusoidal", "learned", "none"),
    "activation": tuple(_NAMES),
    "gated": (False,),
    "ffn": (True,),
    "norm": ("layer",),
    "norm_place": ("post",),
    "norm_eps": (NORM_EPS,),
    "final_norm": (False,),
    "embedding_norm": (False,),
    "residual": (True,),
    "output": (None,),
}


@dataclass(frozen=True)
class TranslationIds:
    """The special tokens of a translation model's target, by their ids."""

    start: int  # what the decoder is given before the first token
    end: int
    pad: int  # has the same id on both sides
    unknown: int | None = None

    def check(self, settings: TransformerSettings) -> None:
        """SettingsError for an id that is not in the target's vocabulary, or for a pad that is not in both."""
        target = settings.target_vocab_size
        limits = {"start": target, "end": target, "pad": min(target, settings.source_vocab_size), "unknown": target}
        for name, limit in limits.items():
            given = getattr(self, name)
            if given is not None and not 0 <= given < limit:
                raise SettingsError(f"{name} id {given} is not in a vocabulary of {limit} tokens")


def export_marian(model: Transformer, folder: Path, ids: TranslationIds, *, overwrite: bool = False) -> None:
    """Write a folder that `MarianMTModel.from_pretrained` loads as the same model; complete or not at all.

    TaskError where Marian has no such model. Waves that are not Marian's own (`order = "concatenated"`) are stored as a
    table; `transformers` reads it, but its own `save_pretrained` leaves it out. Of our dropouts, which only matter to
    further training, the residual's is written for the embedding too.
    """
    settings = model.settings
    check_expressible(settings, _ALLOWED, "MarianMTModel")
    ids.check(settings)
    tensors = _tensors(model)
    with new_folder(folder, overwrite=overwrite) as draft:
        write_weights(draft, tensors)
        _write_json(draft / "config.json", _config(settings, ids) | {"dtype": _dtype(model)})
        _write_json(draft / "generation_config.json", _generation(settings, ids))


def check_expressible(settings: TransformerSettings, allowed: Mapping[str, tuple[object, ...]], where: str) -> None:
    """TaskError that names the first setting which another program's model cannot have."""
    for name, values in allowed.items():
        given = settings.positions.kind if name == "positions" else getattr(settings, name)
        if name == "output" and given is not None:
            raise TaskError(
                f"an adaptive output cannot be written for {where}, which has one softmax; save the model in our own "
                "layout instead"
            )
        if given not in values:
            known = " or ".join(str(value).lower() for value in values)
            raise TaskError(
                f"{name} {str(given).lower()} cannot be written for {where}, which has {known}; "
                "save the model in our own layout instead"
            )
    if settings.width_of_head * settings.num_heads != settings.hidden_size:
        raise TaskError(
            f"head_size {settings.head_size} cannot be written for {where}, whose heads share hidden_size "
            f"{settings.hidden_size} among them; save the model in our own layout instead"
        )


def position_table(embeddings: Embeddings, settings: TransformerSettings) -> Tensor:
    """(max_length, H) what is added at each position, whatever the scheme it comes from."""
    weight = embeddings.token.weight
    if isinstance(embeddings.positions, LearnedPositions):
        return embeddings.positions.table.weight.detach()
    if not isinstance(settings.positions, SinusoidalSettings):
        return weight.new_zeros(settings.max_length, settings.hidden_size).detach()
    waves = settings.positions
    where = torch.arange(waves.start, waves.start + settings.max_length)
    return sinusoids(where, settings.hidden_size, waves.order, waves.spacing).to(weight)


def _tensors(model: Transformer) -> dict[str, Tensor]:
    settings = model.settings
    ours = named_tensors(model)
    table = marian_names(settings.num_encoder_layers, settings.num_decoder_layers)
    theirs: dict[str, Tensor] = {}
    for name, stored in table:
        if name in ours:
            theirs[stored] = ours[name]
        elif name.endswith(".bias"):  # Marian always has one
            weight = ours[name.removesuffix("bias") + "weight"]
            theirs[stored] = weight.new_zeros(len(weight))
    if settings.tie == "all":
        theirs[SHARED] = theirs.pop("model.encoder.embed_tokens.weight")
    # Written although `transformers` can compute its own: a folder says what the model is.
    theirs["model.encoder.embed_positions.weight"] = position_table(model.source_embeddings, settings)
    theirs["model.decoder.embed_positions.weight"] = position_table(model.target_embeddings, settings)
    nothing = model.target_embeddings.token.weight.new_zeros(settings.target_vocab_size)
    theirs[LOGITS_BIAS] = theirs.get(LOGITS_BIAS, nothing)[None]
    return theirs


def _config(settings: TransformerSettings, ids: TranslationIds) -> dict[str, Any]:
    config: dict[str, Any] = {
        "model_type": "marian",
        "architectures": ["MarianMTModel"],
        "is_encoder_decoder": True,
        "vocab_size": settings.source_vocab_size,
        "decoder_vocab_size": settings.target_vocab_size,
        "d_model": settings.hidden_size,
        "activation_function": _NAMES[settings.activation],
        "max_position_embeddings": settings.max_length,
        "scale_embedding": settings.scale_embeddings,
        "share_encoder_decoder_embeddings": settings.tie == "all",
        "tie_word_embeddings": settings.tie != "none",
        "dropout": settings.dropout.residual,
        "attention_dropout": settings.dropout.attention,
        "activation_dropout": settings.dropout.activation,
        "init_std": settings.init_std,
        "pad_token_id": ids.pad,
        "eos_token_id": ids.end,
        "decoder_start_token_id": ids.start,
        "bos_token_id": None,
        "forced_eos_token_id": None,
    }
    for side, layers in (("encoder", settings.num_encoder_layers), ("decoder", settings.num_decoder_layers)):
        config[f"{side}_layers"] = layers
        config[f"{side}_attention_heads"] = settings.num_heads
        config[f"{side}_ffn_dim"] = settings.ffn_size
    return config


def _generation(settings: TransformerSettings, ids: TranslationIds) -> dict[str, Any]:
    """How `generate` begins and ends; nothing that only marks a place is ever an output."""
    return {
        "pad_token_id": ids.pad,
        "eos_token_id": ids.end,
        "decoder_start_token_id": ids.start,
        "bad_words_ids": [[token] for token in sorted({ids.pad, ids.start} - {ids.end})],
        "max_length": settings.max_length,
    }


def _dtype(model: Transformer) -> str:
    return str(model.target_embeddings.token.weight.dtype).removeprefix("torch.")


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    atomic_write(path, (json.dumps(content, indent=2) + "\n").encode())
