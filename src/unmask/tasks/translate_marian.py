"""What a Marian folder (opus-mt) says of its use: special ids, lengths, and how `generate` would search."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from unmask.config import Settings, read_json, sentence
from unmask.decode.settings import DecodeSettings
from unmask.errors import ModelError, SettingsError

_Id = Annotated[int, Field(ge=0)]
_Count = Annotated[int, Field(ge=0)]
_Kind = TypeVar("_Kind", bound=BaseModel)


class SpecialIds(Settings):
    """The ids around a sentence, of translators that others made or that others are to read."""

    start: _Id
    """What the decoder is given before the first token."""
    end: _Id
    never: tuple[_Id, ...] = ()
    """What no translation contains."""


@dataclass(frozen=True)
class MarianFolder:
    """A Marian folder's way of translating, in our words."""

    special: SpecialIds
    vocab_size: int
    decoder_vocab_size: int
    max_source: int
    decode: DecodeSettings


class _Config(BaseModel):
    """What config.json says of tokens; other fields are left alone."""

    model_config = ConfigDict(extra="ignore", frozen=True, allow_inf_nan=False)

    vocab_size: _Count
    decoder_vocab_size: _Count | None = None
    share_encoder_decoder_embeddings: bool = True
    max_position_embeddings: Annotated[int, Field(ge=2)] = 1024
    decoder_start_token_id: _Id
    eos_token_id: _Id
    pad_token_id: _Id | None = None


class _Generation(BaseModel):
    """What generation_config.json, or in older folders config.json, says of the search."""

    model_config = ConfigDict(extra="ignore", frozen=True, allow_inf_nan=False)

    num_beams: int = 1
    length_penalty: float = 1.0
    max_length: _Count | None = None
    max_new_tokens: _Count | None = None
    min_length: _Count = 0
    no_repeat_ngram_size: _Count = 0
    forced_eos_token_id: int | list[int] | None = None
    bad_words_ids: list[list[_Id]] = []
    suppress_tokens: list[_Id] = []


def read_marian_folder(folder: Path) -> MarianFolder | None:
    """What the folder says; None if it is not Marian's, ModelError if what it says cannot be."""
    path = folder / "config.json"
    data = _read_object(path) if path.is_file() else {}
    if data.get("model_type") != "marian":
        return None
    config = _validated(_Config, data, path)
    path = folder / "generation_config.json"
    if path.is_file():
        data = _read_object(path)
    said = _validated(_Generation, data, path if path.is_file() else folder / "config.json")
    target = config.decoder_vocab_size
    try:
        return MarianFolder(
            _special(config, said),
            config.vocab_size,
            config.vocab_size if target is None or config.share_encoder_decoder_embeddings else target,
            config.max_position_embeddings,
            _decode(config, said),
        )
    except SettingsError as error:
        raise ModelError(f"{folder}: {error}") from None


def _special(config: _Config, said: _Generation) -> SpecialIds:
    if any(len(words) != 1 for words in said.bad_words_ids):
        raise SettingsError("bad_words_ids has words of several tokens, which is not supported")
    never = {*said.suppress_tokens, *(words[0] for words in said.bad_words_ids)}
    if config.pad_token_id is not None:
        never.add(config.pad_token_id)
    end = config.eos_token_id
    return SpecialIds(start=config.decoder_start_token_id, end=end, never=tuple(sorted(never - {end})))


def _decode(config: _Config, said: _Generation) -> DecodeSettings:
    """The settings of `generate`, whose lengths count the start token too."""
    longest = said.max_new_tokens or (said.max_length or config.max_position_embeddings) - 1
    if said.forced_eos_token_id is not None:  # it takes the last place
        longest -= 1
    return DecodeSettings(
        beam=said.num_beams,
        length_penalty=said.length_penalty,
        length_formula="plain",
        min_length=max(0, said.min_length - 1),
        max_length=max(1, longest),
        max_ratio=None,
        no_repeat_ngram=said.no_repeat_ngram_size or None,
    )


def _read_object(path: Path) -> dict[str, Any]:
    """The object in a JSON file, without what is null."""
    try:
        data = read_json(path)
    except SettingsError as error:
        raise ModelError(str(error)) from None
    if not isinstance(data, dict):
        raise ModelError(f"{path}: holds {type(data).__name__} where an object with settings is expected")
    return {name: value for name, value in data.items() if value is not None}


def _validated(kind: type[_Kind], data: dict[str, Any], path: Path) -> _Kind:
    try:
        return kind.model_validate(data)
    except ValidationError as error:
        raise ModelError(f"{path}: {sentence(error)}") from None
