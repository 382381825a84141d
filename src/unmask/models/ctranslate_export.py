"""Our Transformer as a folder for CTranslate2, by CTranslate2's own description of one."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from unmask.errors import SettingsError, UserError
from unmask.models.assign import named_tensors
from unmask.models.marian_export import TranslationIds, check_expressible, position_table
from unmask.models.names import ctranslate_names
from unmask.models.settings import TransformerSettings
from unmask.models.transformer import Transformer
from unmask.nn.settings import ActivationName
from unmask.storage import new_folder

_ACTIVATIONS: dict[ActivationName, str] = {"relu": "RELU", "gelu": "GELU", "gelu_tanh": "GELUTanh", "silu": "SWISH"}
#: Setting → the values that are the same model there. Settings that are not here may have any value.
_ALLOWED: dict[str, tuple[object, ...]] = {
    "projections": ("separate",),
    "score": ("scaled_dot",),
    "positions": ("sinusoidal", "learned", "none"),
    "activation": tuple(_ACTIVATIONS),
    "gated": (False,),
    "ffn": (True,),
    "norm": ("layer", "rms"),
    "residual": (True,),
    "output": (None,),
}
#: The names of a norm's two tensors there.
_NORM = {"weight": "gamma", "bias": "beta"}


def export_ctranslate2(
    model: Transformer,
    folder: Path,
    source_tokens: Sequence[str],
    target_tokens: Sequence[str],
    ids: TranslationIds,
    *,
    add_source_end: bool = True,
    overwrite: bool = False,
) -> None:
    """Write a folder that `ctranslate2.Translator` loads as the same model; complete or not at all.

    Tokens stand in the order of their ids. With `add_source_end` CTranslate2 itself puts the end token after each
    source. TaskError where CTranslate2 has no such model. It can be made smaller there, when it is loaded.
    """
    settings = model.settings
    check_expressible(settings, _allowed(settings), "CTranslate2")
    ids.check(settings)
    _check_tokens("source", source_tokens, settings.source_vocab_size)
    _check_tokens("target", target_tokens, settings.target_vocab_size)
    specs = _specs()
    spec = _filled(model, specs)
    spec.register_source_vocabulary(list(source_tokens))
    spec.register_target_vocabulary(list(target_tokens))
    _say_tokens(spec.config, source_tokens, target_tokens, ids, add_source_end=add_source_end)
    spec.config.layer_norm_epsilon = settings.norm_eps
    spec.validate()
    spec.optimize()
    with new_folder(folder, overwrite=overwrite) as draft:
        spec.save(str(draft))


def _specs() -> Any:
    try:
        return importlib.import_module("ctranslate2.specs")
    except ImportError:
        raise UserError("CTranslate2 is not installed; install it with: pip install 'unmask[export]'") from None


def _allowed(settings: TransformerSettings) -> dict[str, tuple[object, ...]]:
    """A norm after the last block comes only with norms before the others."""
    return _ALLOWED | {"final_norm": (False, True) if settings.norm_place == "pre" else (False,)}


def _check_tokens(side: str, tokens: Sequence[str], size: int) -> None:
    if len(tokens) != size:
        raise SettingsError(f"{len(tokens)} {side} tokens are given but the model has {size}")
    if len(set(tokens)) < size:
        twice = next(token for number, token in enumerate(tokens) if token in tokens[:number])
        raise SettingsError(f"the {side} token {twice!r} is given twice; CTranslate2 knows tokens by their text alone")


def _say_tokens(
    config: Any, source: Sequence[str], target: Sequence[str], ids: TranslationIds, *, add_source_end: bool
) -> None:
    """Name the special tokens, which CTranslate2 looks up by their text on both sides."""
    unknown = target[ids.pad if ids.unknown is None else ids.unknown]
    for name, token in (("unknown", unknown), *((("end", target[ids.end]),) if add_source_end else ())):
        if token not in source:
            raise SettingsError(f"the {name} token {token!r} of the target is not among the source tokens")
    config.unk_token, config.bos_token, config.eos_token = unknown, target[ids.start], target[ids.end]
    config.decoder_start_token = target[ids.start]
    config.add_source_bos, config.add_source_eos = False, add_source_end


def _filled(model: Transformer, specs: Any) -> Any:
    """CTranslate2's description of the model, its tensors filled in."""
    settings = model.settings
    spec = specs.TransformerSpec.from_config(
        (settings.num_encoder_layers, settings.num_decoder_layers),
        settings.num_heads,
        pre_norm=settings.norm_place == "pre",
        no_final_norm=not settings.final_norm,
        activation=getattr(specs.Activation, _ACTIVATIONS[settings.activation]),
        layernorm_embedding=settings.embedding_norm,
        rms_norm=settings.norm == "rms",
    )
    for part, embeddings in ((spec.encoder, model.source_embeddings), (spec.decoder, model.target_embeddings)):
        part.scale_embeddings = settings.scale_embeddings
        part.position_encodings.encodings = _plain(position_table(embeddings, settings))
    for name, tensor in _tensors(model).items():
        place: Any = spec
        *steps, last = name.split(".")
        for step in steps:
            place = _inside(place, step)
        setattr(place, _NORM[last] if hasattr(place, "gamma") else last, _plain(tensor))
    return spec


def _tensors(model: Transformer) -> dict[str, Tensor]:
    """Our tensors under CTranslate2's names, those joined that are one there."""
    settings = model.settings
    ours = named_tensors(model)
    target = model.target_embeddings.token.weight
    ours |= {"target_embeddings.token.weight": target}  # a tied table is named only once here
    ours.setdefault("output.weight", target)
    parts: dict[str, list[Tensor]] = {}
    for name, stored in ctranslate_names(settings.num_encoder_layers, settings.num_decoder_layers):
        if name in ours:
            parts.setdefault(stored.partition("[")[0], []).append(ours[name])
    return {name: torch.cat(tensors) for name, tensors in parts.items()}


def _inside(place: Any, step: str) -> Any:
    """`layer_3` is the fourth of a list; so is `embeddings` the first, where there may be several of them."""
    if hasattr(place, step):
        found = getattr(place, step)
        return found[0] if isinstance(found, list) else found
    name, _, number = step.rpartition("_")
    return getattr(place, name)[int(number)]


def _plain(tensor: Tensor) -> Tensor:
    return tensor.detach().float().cpu().contiguous()
