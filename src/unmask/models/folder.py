"""Model folders: Hugging Face's layout in and out (BERT; Marian in), Google's checkpoints in, our own in and out.

Everything that loads goes through three steps: what is there (names and shapes, nothing loaded), what is wanted (the
model assembled without memory), and only when the two agree are tensors read.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError
from torch import Tensor, nn

from unmask.config import read_json, sentence, shown, with_tuples
from unmask.errors import ModelError, SettingsError
from unmask.models.assign import assign, named_tensors
from unmask.models.bert import Bert
from unmask.models.huggingface import is_plain, is_plain_head, needs_own_heads, read_config, write_config
from unmask.models.init import Model, assemble, initialise
from unmask.models.marian import read_marian
from unmask.models.names import DECODER_BIAS, DECODER_WEIGHT, POSITION_IDS, bert_names, modern_name, with_prefix
from unmask.models.quantised import Dequantised, Storage, stored
from unmask.models.settings import (
    MODEL_SETTINGS,
    BertSettings,
    HeadSettings,
    ModelSettings,
    TransformerSettings,
    reads_pooler,
)
from unmask.models.tensorflow import read_tensorflow
from unmask.models.weights import WeightSource, read_weights
from unmask.models.weights_write import write_weights
from unmask.nn.adaptive import AdaptiveOutput
from unmask.storage import atomic_write, new_folder

#: Raised when a folder changes so that older versions would read it wrongly.
FORMAT = 1


@dataclass(frozen=True)
class LoadReport:
    """What became of the tensors of a folder."""

    loaded: int
    total: int
    new: tuple[str, ...] = ()  # ours, not in the folder: parts of a head that was asked for
    unused: tuple[str, ...] = ()  # theirs, not in the model: parts of a head that was not asked for

    def __str__(self) -> str:
        text = f"loaded {self.loaded} of {self.total} tensors"
        if self.unused:
            text += f"; left out {len(self.unused)} that this model has no place for ({', '.join(self.unused[:3])}"
            text += ", …)" if len(self.unused) > 3 else ")"
        if self.new:
            text += f"; {len(self.new)} new for the head you asked for (expected)"
        return text


@dataclass(frozen=True)
class _Contents:
    """A folder's weights under our names, before any is read."""

    settings: ModelSettings
    source: WeightSource
    names: Mapping[str, str]  # ours → name in the source
    unknown: tuple[str, ...]  # names in the source that we have none for


def load_model(
    folder: Path, *, heads: Sequence[HeadSettings] | None = None, seed: int = 0, dtype: torch.dtype = torch.float32
) -> tuple[Model, LoadReport]:
    """The model in a folder, in eval mode.

    `heads` replaces those in the folder: one whose tensors are there keeps them, another starts fresh from `seed`.
    """
    contents = _look(folder, heads)
    settings = contents.settings
    with torch.device("meta"):
        model = assemble(settings)
    wanted = named_tensors(model)
    new = _check(folder, contents, wanted, may_start_fresh=heads is not None)
    found: dict[str, Tensor] = {}
    for name, place in wanted.items():
        if name in new:
            found[name] = torch.empty(place.shape, dtype=dtype if place.is_floating_point() else place.dtype)
        else:
            tensor = contents.source.tensor(contents.names[name])
            found[name] = _as_type(tensor, dtype, f"{folder}: {name}") if place.is_floating_point() else tensor
    assign(model, found)
    if new and isinstance(model, Bert):
        _start_fresh(model, new, seed)
    if not all(module.is_ordered for module in model.modules() if isinstance(module, AdaptiveOutput)):
        raise ModelError(f"{folder}: the order of its tokens by frequency does not have each of them once")
    used = [contents.names[name] for name in wanted if name not in new]
    unused = tuple(sorted((set(contents.names.values()) - set(used)) | set(contents.unknown)))
    return model.eval(), LoadReport(len(used), len(used) + len(unused), tuple(sorted(new)), unused)


def save_model(model: Model, folder: Path, *, overwrite: bool = False) -> None:
    """Write config.json and model.safetensors into `folder`, which appears complete or not at all."""
    with new_folder(folder, overwrite=overwrite) as draft:
        write_model(model, draft)


def write_model(model: Model, folder: Path, storage: Storage = "fp32") -> None:
    """Write config.json and model.safetensors into an existing folder.

    With int8 the folder is ours alone: `transformers` would take the numbers for weights, and must not know it.
    """
    settings = model.settings
    plain = isinstance(settings, BertSettings) and is_plain(settings) and storage != "int8"
    names = stored_names(model) if plain else {name: name for name in named_tensors(model)}
    tensors = {names[name]: tensor for name, tensor in named_tensors(model).items()}
    if DECODER_WEIGHT in tensors:
        tensors[DECODER_BIAS] = tensors["cls.predictions.bias"]
    if plain:
        assert isinstance(settings, BertSettings)
        config = write_config(settings)
        if storage == "fp16":
            config["dtype"] = "float16"
        own: dict[str, Any] = {"format": FORMAT}
        if needs_own_heads(settings):
            own["heads"] = [head.model_dump(mode="json") for head in settings.heads]
    else:
        config = {"model_type": "unmask"}
        own = {"format": FORMAT, "settings": settings.model_dump(mode="json")}
    if storage != "fp32":
        own["storage"] = storage
    write_weights(folder, stored(tensors, storage))
    text = json.dumps(config | {"unmask": own}, indent=2, ensure_ascii=False)
    atomic_write(folder / "config.json", (text + "\n").encode())


def stored_names(model: Model) -> dict[str, str]:
    """The name under which each tensor is written: Hugging Face's for plain BERT, ours for everything else."""
    settings = model.settings
    names = {name: name for name in named_tensors(model)}
    if not isinstance(settings, BertSettings) or not is_plain(settings):
        return names
    # A head that `transformers` does not have keeps our name: under theirs it would be loaded there and say other
    # things.
    classifier = _classifier(settings.heads)
    known = all(is_plain_head(head) for head in settings.heads if head.kind == classifier)
    table = bert_names(settings.num_layers, classifier if known else None)
    theirs = {name: table.theirs(name) or name for name in names}
    if settings.heads:
        return theirs
    # An encoder alone is stored without the prefix that tells it from heads.
    return {name: stored.removeprefix("bert.") for name, stored in theirs.items()}


def read_settings(folder: Path) -> ModelSettings:
    """What the model in a folder is made of; no weight is read."""
    return _look(folder).settings


def _look(folder: Path, heads: Sequence[HeadSettings] | None = None) -> _Contents:
    """What is in a folder; with `heads`, those are wanted instead of the folder's own."""
    if not folder.is_dir():
        raise ModelError(f"{folder}: no such folder")
    if not (folder / "config.json").is_file() and (folder / "bert_config.json").is_file():
        return _bert_contents(_read_config_file(folder / "bert_config.json"), read_tensorflow(folder), folder, heads)
    if not (folder / "config.json").is_file():
        raise ModelError(
            f"{folder}: holds neither config.json (Hugging Face's layout) nor bert_config.json (Google's checkpoints)"
        )
    config = _read_config_file(folder / "config.json")
    kind = config.get("model_type")
    if kind == "unmask":
        return _own_contents(config, Dequantised(read_weights(folder), folder), folder, heads)
    if kind == "marian":
        if heads is not None:
            raise ModelError(f"{folder}: heads can be put on a BERT encoder, not on a Marian model")
        marian = read_marian(config, read_weights(folder), str(folder / "config.json"))
        return _Contents(marian.settings, marian.source, marian.names, marian.unknown)
    if kind not in ("bert", None):
        supported = "supported are bert and marian"
        raise ModelError(f"{folder / 'config.json'}: model_type {shown(kind)} is not supported; {supported}")
    return _bert_contents(config, read_weights(folder), folder, heads)


def _read_config_file(path: Path) -> dict[str, Any]:
    try:
        config = read_json(path)
    except SettingsError as error:
        raise ModelError(str(error)) from None
    if not isinstance(config, dict):
        raise ModelError(f"{path}: holds {type(config).__name__} where an object with settings is expected")
    return config


def _bert_contents(
    config: dict[str, Any], source: WeightSource, folder: Path, heads: Sequence[HeadSettings] | None
) -> _Contents:
    """A published BERT: its names in today's spelling, with prefix, then ours."""
    modern = _modern_names(source, folder)
    shapes = {name: source.shapes[place] for name, place in modern.items()}
    own = _own_block(config, folder)
    where = str(folder / ("config.json" if (folder / "config.json").is_file() else "bert_config.json"))
    settings = read_config(config, shapes, where, with_heads="heads" not in own and heads is None)
    if heads is not None:
        settings = _with_heads(settings, heads)
    elif "heads" in own:  # heads that Hugging Face's fields cannot describe
        settings = BertSettings.parse(settings.model_dump(mode="json") | {"heads": own["heads"]}, where)
    settings = _untied_if_unequal(settings, source, modern)
    table = bert_names(settings.num_layers, _classifier(settings.heads))
    tied = not any(head.kind == "mlm" and not head.tied for head in settings.heads)
    names: dict[str, str] = {}
    unknown: list[str] = []
    if not tied and DECODER_BIAS in modern:
        modern["cls.predictions.bias"] = modern[DECODER_BIAS]
    for name, place in modern.items():
        if name in (POSITION_IDS, DECODER_BIAS) or (tied and name == DECODER_WEIGHT):
            continue
        ours = table.ours(name) or (name if name.startswith("heads.") else None)
        if ours is None:
            unknown.append(place)
        else:
            names[ours] = place
    return _Contents(settings, source, names, tuple(unknown))


def _modern_names(source: WeightSource, folder: Path) -> dict[str, str]:
    """Names in today's spelling → those in the source; two that become one could hide each other."""
    modern: dict[str, str] = {}
    for name in source.shapes:
        new = with_prefix(modern_name(name))
        if new in modern:
            raise ModelError(f"{folder}: tensors {modern[new]} and {name} are two names for one; remove one of them")
        modern[new] = name
    return modern


def _untied_if_unequal(settings: BertSettings, source: WeightSource, modern: Mapping[str, str]) -> BertSettings:
    """A file that holds an output matrix unlike the embedding means it, whatever its config says about tying."""
    embedding, decoder = modern.get("bert.embeddings.word_embeddings.weight"), modern.get(DECODER_WEIGHT)
    tied = any(head.kind == "mlm" and head.tied for head in settings.heads)
    if not tied or embedding is None or decoder is None:
        return settings
    if torch.equal(source.tensor(embedding), source.tensor(decoder)):
        return settings
    heads = tuple(head.replace(tied=False) if head.kind == "mlm" else head for head in settings.heads)
    return settings.replace(heads=heads)


def _with_heads(settings: BertSettings, heads: Sequence[HeadSettings]) -> BertSettings:
    pooler = settings.pooler or any(reads_pooler(head) for head in heads)
    return settings.replace(heads=tuple(heads), pooler=pooler)


def _as_type(tensor: Tensor, dtype: torch.dtype, name: str) -> Tensor:
    """A tensor in the model's type; one that does not fit it becomes infinite, which must not pass."""
    if not tensor.is_floating_point():
        raise ModelError(f"{name} holds {tensor.dtype} where weights are expected; the file belongs to something else")
    cast = tensor.to(dtype)
    if torch.finfo(tensor.dtype).max > torch.finfo(dtype).max and not torch.isfinite(cast).all():
        raise ModelError(f"{name} holds numbers beyond what {dtype} can hold")
    return cast


def _own_contents(
    config: dict[str, Any], source: WeightSource, folder: Path, heads: Sequence[HeadSettings] | None
) -> _Contents:
    where, own = str(folder / "config.json"), _own_block(config, folder)
    try:
        settings = MODEL_SETTINGS.validate_python(with_tuples(own.get("settings")))
    except ValidationError as error:
        raise ModelError(f"{where}: unmask.settings: {sentence(error)}") from None
    if heads is not None:
        if not isinstance(settings, BertSettings):
            raise ModelError(f"{folder}: heads can be put on a BERT encoder, not on a {settings.model} model")
        settings = _with_heads(settings, heads)
    depth = (
        settings.num_encoder_layers + settings.num_decoder_layers
        if isinstance(settings, TransformerSettings)
        else settings.num_layers
    )
    if depth > len(source.shapes):
        raise ModelError(f"{where}: asks for {depth} layers but the weights hold {len(source.shapes)} tensors")
    return _Contents(settings, source, {name: name for name in source.shapes}, ())


def _own_block(config: dict[str, Any], folder: Path) -> dict[str, Any]:
    own = config.get("unmask", {})
    version = own.get("format", FORMAT) if isinstance(own, dict) else None
    if not isinstance(own, dict) or type(version) is not int or version < 1:
        raise ModelError(f"{folder / 'config.json'}: its unmask block is damaged; save the model again")
    if version > FORMAT:
        raise ModelError(
            f"{folder / 'config.json'}: written in format {version} by a newer unmask; this one reads up to {FORMAT}"
        )
    return own


def _check(folder: Path, contents: _Contents, wanted: Mapping[str, Tensor], *, may_start_fresh: bool) -> set[str]:
    """The names of tensors that must start fresh, for heads that were asked for; ModelError if one must not."""
    new: set[str] = set()
    for name, place in wanted.items():
        shape = contents.source.shapes.get(contents.names.get(name, ""))
        optional = may_start_fresh and _part(name) is not None
        if shape is None and not optional:
            missing = [other for other in wanted if other not in contents.names]
            raise ModelError(
                f"{folder}: {len(missing)} of {len(wanted)} tensors are missing, the first is {name}; "
                "the folder is incomplete or its config describes another model"
            )
        if shape == tuple(place.shape):
            continue
        if not optional:
            raise ModelError(
                f"{folder}: tensor {contents.names[name]} has shape {shape} but the config asks for "
                f"{tuple(place.shape)}"
            )
        new.add(name)
    # A head is loaded whole or not at all.
    fresh = {_part(name) for name in new}
    return {name for name in wanted if _part(name) is not None and _part(name) in fresh}


def _part(name: str) -> str | None:
    """The optional part of a model that a tensor belongs to."""
    return ".".join(name.split(".")[:2]) if name.startswith(("heads.", "encoder.pooler.")) else None


def _start_fresh(model: Bert, new: set[str], seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    parts: list[nn.Module] = [part for kind, part in model.heads.items() if any(f"heads.{kind}." in n for n in new)]
    if model.encoder.pooler is not None and any(name.startswith("encoder.pooler.") for name in new):
        parts.append(model.encoder.pooler)
    for part in parts:
        initialise(part, model.settings, generator)


def _classifier(heads: Sequence[HeadSettings]) -> str | None:
    """Whose last layer is called `classifier`; the first, if a model has both."""
    return next((head.kind for head in heads if head.kind in ("classify", "tag")), None)
