"""Strict, typed, frozen settings: a misspelt key is an error that names the key that was meant."""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from unmask.errors import SettingsError


class Settings(BaseModel):
    """Base of every group of settings in the project."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _name_unknown_settings(cls, data: object) -> object:
        if isinstance(data, Mapping):
            for key in data:
                if key not in cls.model_fields:
                    raise ValueError(unknown_setting(str(key), list(cls.model_fields)))
        return data

    @classmethod
    def parse(cls, data: object, source: str = "settings") -> Self:
        """Settings from plain JSON-like data; SettingsError with one readable sentence if they are wrong."""
        if not isinstance(data, Mapping):
            raise SettingsError(f"{source}: expected an object with settings, given {type(data).__name__}")
        try:
            return cls.model_validate(with_tuples(data))
        except ValidationError as error:
            raise SettingsError(f"{source}: {sentence(error)}") from None

    @classmethod
    def read(cls, path: Path) -> Self:
        """Settings from a JSON file."""
        return cls.parse(read_json(path), str(path))

    def replace(self, **changes: Any) -> Self:
        """A copy with some fields changed, checked like a new one."""
        return type(self)(**{name: getattr(self, name) for name in type(self).model_fields} | changes)


def unknown_setting(key: str, known: list[str]) -> str:
    """The sentence for a key nobody knows, with the nearest one that exists."""
    near = difflib.get_close_matches(key, known, n=1)
    hint = f"did you mean {near[0]}?" if near else f"known settings are {', '.join(sorted(known))}"
    return f"unknown setting {key}; {hint}"


def with_tuples(data: object) -> object:
    """JSON-like data with tuples for lists: settings are frozen all the way down, and strict about it."""
    if isinstance(data, Mapping):
        return {key: with_tuples(value) for key, value in data.items()}
    return tuple(with_tuples(value) for value in data) if isinstance(data, list) else data


def read_json(path: Path) -> Any:
    """The content of a JSON file; SettingsError names file and place when it is not JSON."""
    try:
        return json.loads(path.read_text(encoding="utf-8-sig"))
    except FileNotFoundError:
        raise SettingsError(f"{path}: no such file") from None
    except (json.JSONDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise SettingsError(f"{path}: not valid JSON ({error})") from None


def sentence(error: ValidationError) -> str:
    """What pydantic found, in one line: setting, what is wrong, what was given."""
    parts = []
    for problem in error.errors(include_url=False):
        place = ".".join(str(step) for step in problem["loc"])
        message = problem["msg"].removeprefix("Value error, ")
        given = problem.get("input")
        said = f" (given {given!r})" if isinstance(given, str | int | float | bool) or given is None else ""
        parts.append(f"{place}: {message}{said}" if place else message)
    return "; ".join(parts)
