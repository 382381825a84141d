"""Strict, typed, frozen settings: a misspelt key is an error that names the key that was meant."""

from __future__ import annotations

import copy
import difflib
import json
import tomllib
from collections.abc import Callable, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from unmask.errors import SettingsError

T = TypeVar("T")

#: No settings file is as large as this.
MAX_JSON_BYTES = 10_000_000


if TYPE_CHECKING:
    from pydantic._internal._model_construction import ModelMetaclass
else:
    ModelMetaclass = type(BaseModel)  # pydantic keeps its name to itself


class _Sentences(ModelMetaclass):
    """Makes a constructor's complaint one sentence, as a file's is."""

    def __call__(cls, *args: object, **fields: object) -> Any:
        try:
            return super().__call__(*args, **fields)
        except ValidationError as error:
            raise SettingsError(f"{cls.__name__}: {sentence(error)}") from None


class Settings(BaseModel, metaclass=_Sentences):
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
        """Settings from a JSON file, or a TOML file if its name ends so."""
        return cls.parse(read_toml(path) if path.suffix == ".toml" else read_json(path), str(path))

    def replace(self, **changes: Any) -> Self:
        """A copy with some fields changed, checked like a new one."""
        return type(self)(**{name: getattr(self, name) for name in type(self).model_fields} | changes)


def unknown_setting(key: str, known: list[str]) -> str:
    """The sentence for a key nobody knows, with the nearest one that exists."""
    near = difflib.get_close_matches(key[:80], known, n=1)
    hint = f"did you mean {near[0]}?" if near else f"known settings are {', '.join(sorted(known))}"
    return f"unknown setting {key[:80]}; {hint}"


def shown(value: object) -> str:
    """A value as a message may show it: on one line, without control characters, and short."""
    text = repr(value) if not isinstance(value, int) or abs(value) < 10**30 else "a number of more than 30 digits"
    return text if len(text) <= 80 else text[:79] + "…"


def with_tuples(data: object) -> object:
    """JSON-like data with tuples for lists: settings are frozen all the way down, and strict about it."""
    if isinstance(data, Mapping):
        return {key: with_tuples(value) for key, value in data.items()}
    return tuple(with_tuples(value) for value in data) if isinstance(data, list) else data


def read_json(path: Path) -> Any:
    """The content of a JSON file; SettingsError says what is wrong with it."""
    return _read(path, "JSON", json.loads)


def read_toml(path: Path) -> dict[str, Any]:
    """The content of a TOML file; SettingsError says what is wrong with it."""
    return _read(path, "TOML", tomllib.loads)


def read_table(path: Path) -> dict[str, Any]:
    """The settings in a .toml file, or in a JSON file whatever its name; SettingsError if they are no table."""
    data = read_toml(path) if path.suffix == ".toml" else read_json(path)
    if not isinstance(data, dict):
        raise SettingsError(f"{path}: expected a table of settings")
    return data


def config_file(name: str, kind: str) -> Path:
    """The settings file of this name, or the one of this kind that comes with the package under it."""
    folder = Path(str(resources.files("unmask"))) / "configs" / kind
    known = {path.stem: path for path in sorted(folder.glob("*.toml"))}
    path = known.get(name, Path(name))
    if not path.is_file():
        raise SettingsError(f"{name}: no such file, nor a config of that name; there are {', '.join(known)}")
    return path


def _read(path: Path, name: str, parse: Callable[[str], T]) -> T:
    try:
        if not path.exists():
            raise SettingsError(f"{path}: no such file")
        # A pipe or a device could keep us reading for ever.
        if not path.is_file() or path.stat().st_size > MAX_JSON_BYTES:
            raise SettingsError(f"{path}: not an ordinary file of at most {MAX_JSON_BYTES:,} bytes")
        return parse(path.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError, RecursionError) as error:
        raise SettingsError(f"{path}: not valid {name} ({str(error)[:200]})") from None


def changed(data: Mapping[str, Any], changes: Sequence[str]) -> dict[str, Any]:
    """Settings with some set anew, each written as `group.name=value`; a value that is not JSON is text.

    In a list the number of an entry stands for its name: `stages.0.updates=100`.
    """
    result = copy.deepcopy(dict(data))
    for change in changes:
        key, equals, text = change.partition("=")
        if not equals or not key.strip():
            raise SettingsError(f"{shown(change)} does not say what to set; write it as name=value or group.name=value")
        *groups, name = key.strip().split(".")
        place: Any = result
        for group in groups:
            place = place.setdefault(group, {}) if isinstance(place, dict) else place[_entry(place, group, change)]
            if not isinstance(place, dict | list):
                raise SettingsError(f"{shown(change)}: {group} is a single value, not a group of settings")
        place[name if isinstance(place, dict) else _entry(place, name, change)] = _value(text)
    return result


def _entry(entries: Sequence[Any], name: str, change: str) -> int:
    """The number of an entry of a list."""
    if not (name.isdecimal() and int(name) < len(entries)):
        raise SettingsError(f"{shown(change)}: {name} is no entry of a list whose last is {len(entries) - 1}")
    return int(name)


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def sentence(error: ValidationError) -> str:
    """What pydantic found, in one line: setting, what is wrong, what was given. The first few problems are enough."""
    problems = error.errors(include_url=False)
    parts = []
    for problem in problems[:3]:
        place = ".".join(str(step)[:80] for step in problem["loc"])
        message = problem["msg"].removeprefix("Value error, ")[:300]
        given = problem.get("input")
        plain = isinstance(given, str | int | float | bool) or (given is None and problem["type"] != "missing")
        said = f" (given {shown(given)})" if plain and problem["type"] != "missing" else ""
        parts.append(f"{place}: {message}{said}" if place else message)
    more = len(problems) - len(parts)
    return "; ".join(parts) + (f"; and {more} more" if more else "")
