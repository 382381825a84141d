"""What is said about settings that are wrong, each message by its key words."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Annotated, Literal

import pytest
from pydantic import Field, ValidationError

from unmask.config import Settings, changed, read_json, read_toml, unknown_setting
from unmask.errors import SettingsError, UserError


class Inner(Settings):
    rate: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.1
    names: Annotated[tuple[str, ...], Field(strict=False)] = ()


class Round(Settings):
    kind: Literal["round"] = "round"
    radius: float = 1.0


class Square(Settings):
    kind: Literal["square"] = "square"
    side: int = 1


class Outer(Settings):
    hidden_size: Annotated[int, Field(ge=1, le=100)]
    inner: Inner = Inner()
    shape: Annotated[Round | Square, Field(discriminator="kind")] = Round()
    on: bool = True
    limit: int | None = None


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({"hiden_size": 3}, r"^run\.json: unknown setting hiden_size; did you mean hidden_size\?$"),
        ({"hidden_size": 3, "zzz": 1}, "unknown setting zzz; known settings are hidden_size, inner, limit, on, shape$"),
        ({}, "hidden_size: Field required"),
        ({"hidden_size": "3"}, r"hidden_size: .*integer.* \(given '3'\)"),
        ({"hidden_size": 3.5}, r"hidden_size: .*integer.* \(given 3.5\)"),
        ({"hidden_size": True}, r"hidden_size: .*integer.* \(given True\)"),
        ({"hidden_size": 0}, r"hidden_size: .*greater than or equal to 1 \(given 0\)"),
        ({"hidden_size": 101}, r"hidden_size: .*less than or equal to 100 \(given 101\)"),
        ({"hidden_size": None}, r"hidden_size: .*integer.* \(given None\)"),
        ({"hidden_size": 3, "on": 1}, r"on: .*boolean.* \(given 1\)"),
        ({"hidden_size": 3, "inner": {"rate": 1.0}}, r"inner\.rate: .*less than 1 \(given 1.0\)"),
        ({"hidden_size": 3, "inner": {"raet": 0.5}}, r"inner: unknown setting raet; did you mean rate\?"),
        ({"hidden_size": 3, "inner": {"rate": math.nan}}, r"inner\.rate: .*finite"),
        ({"hidden_size": 3, "inner": {"names": ["a", 5]}}, r"inner\.names\.1: .*string \(given 5\)"),
        ({"hidden_size": 3, "shape": {"kind": "oval"}}, "shape: .*'oval'.*'round', 'square'"),
        ({"hidden_size": 3, "shape": {"kind": "square", "radius": 2.0}}, r"shape\.square: unknown setting radius"),
        ({"hidden_size": 3, "shape": {}}, "shape: .*discriminator 'kind'"),
        ({"hidden_size": 0, "on": "yes"}, "hidden_size: .*; on: "),
        ([1, 2], "run.json: .*object"),
        ({"hidden_size": object()}, "run.json: hidden_size: .*integer"),
    ],
)
def test_the_sentence_names_what_is_wrong(data: object, words: str) -> None:
    with pytest.raises(SettingsError, match=words) as caught:
        Outer.parse(data, "run.json")
    assert "\n" not in str(caught.value)
    assert isinstance(caught.value, UserError)


def test_right_settings_are_taken() -> None:
    settings = Outer.parse({"hidden_size": 3, "inner": {"names": ["a", "b"]}, "shape": {"kind": "square", "side": 5}})
    assert settings.inner.names == ("a", "b")
    assert settings.shape == Square(side=5)
    assert settings.inner.rate == 0.1
    assert Outer.parse(settings.model_dump(mode="json")) == settings


def test_settings_are_frozen() -> None:
    settings = Outer(hidden_size=3)
    with pytest.raises(ValidationError, match="frozen"):
        settings.hidden_size = 5
    with pytest.raises(ValidationError, match="frozen"):
        settings.inner.rate = 0.5


def test_replace_makes_a_checked_copy() -> None:
    settings = Outer(hidden_size=3, shape=Square(side=7))
    other = settings.replace(hidden_size=5)
    assert (settings.hidden_size, other.hidden_size, other.shape) == (3, 5, Square(side=7))
    with pytest.raises(SettingsError, match="less than or equal to 100"):
        settings.replace(hidden_size=101)
    with pytest.raises(SettingsError, match="did you mean hidden_size"):
        settings.replace(hiden_size=5)


def test_files(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    path.write_text('\ufeff{"hidden_size": 7}', encoding="utf-8")  # as Windows editors write it
    assert Outer.read(path).hidden_size == 7
    path.write_text('{"hidden_size": 7,\n "on": maybe}', encoding="utf-8")
    with pytest.raises(SettingsError, match=r"run\.json: not valid JSON \(.*line 2"):
        Outer.read(path)
    path.write_bytes(b'{"hidden_size": "\xff"}')
    with pytest.raises(SettingsError, match=r"run\.json: not valid JSON"):
        Outer.read(path)
    path.write_text('{"hiden_size": 7}', encoding="utf-8")
    with pytest.raises(SettingsError, match=r"run\.json: unknown setting hiden_size; did you mean"):
        Outer.read(path)
    path.write_text("[" * 100_000, encoding="utf-8")
    with pytest.raises(SettingsError, match=r"run\.json: not valid JSON"):
        read_json(path)
    with pytest.raises(SettingsError, match=r"absent\.json: no such file"):
        Outer.read(tmp_path / "absent.json")


def test_the_nearest_name_is_offered() -> None:
    assert unknown_setting("droput", ["dropout", "bias"]) == "unknown setting droput; did you mean dropout?"
    assert unknown_setting("xyz", ["b", "a"]) == "unknown setting xyz; known settings are a, b"


def test_toml_files(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text('\ufeffhidden_size = 7 # wide\n[inner]\nrate = 0.5\nnames = ["a", "北"]\n', encoding="utf-8")
    settings = Outer.read(path)
    assert (settings.hidden_size, settings.inner.rate, settings.inner.names) == (7, 0.5, ("a", "北"))
    assert read_toml(path) == {"hidden_size": 7, "inner": {"rate": 0.5, "names": ["a", "北"]}}
    for content, words in [
        (b"hidden_size = 7\non = maybe", r"run\.toml: not valid TOML \(.*line 2"),
        (b"hidden_size = '\xff'", r"run\.toml: not valid TOML"),
        (b"x = " + b"[" * 100_000, r"run\.toml: not valid TOML"),
        (b"hiden_size = 7", r"run\.toml: unknown setting hiden_size; did you mean hidden_size"),
        (b"hidden_size = 2020-01-01", r"run\.toml: hidden_size: .*integer"),
        (b"hidden_size = nan", r"run\.toml: hidden_size: "),
    ]:
        path.write_bytes(content)
        with pytest.raises(SettingsError, match=words) as caught:
            Outer.read(path)
        assert "\n" not in str(caught.value)
    with pytest.raises(SettingsError, match=r"absent\.toml: no such file"):
        read_toml(tmp_path / "absent.toml")
    with pytest.raises(SettingsError, match="not an ordinary file"):
        read_toml(tmp_path)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ("a=2", {"a": 2}),
        (" a =2", {"a": 2}),
        ("b.c=0.5", {"b": {"c": 0.5, "d": [1, 2]}}),
        ("b.e=x", {"b": {"c": 1, "d": [1, 2], "e": "x"}}),
        ("new.deep.er=null", {"new": {"deep": {"er": None}}}),
        ('b={"z": [1]}', {"b": {"z": [1]}}),
        ("a=true", {"a": True}),
        ("a=True", {"a": "True"}),  # not JSON, so text; what reads it says that a boolean is wanted
        ("a=", {"a": ""}),
        ("a=x=y", {"a": "x=y"}),
        ('a="2"', {"a": "2"}),
        ("a=北京", {"a": "北京"}),
        ("a=" + "[" * 100_000, {"a": "[" * 100_000}),
        ("b.d.1=5", {"b": {"c": 1, "d": [1, 5]}}),
        ("s.0.n=5", {"s": [{"n": 5}, {"n": 2}]}),
    ],
    ids=lambda value: str(value)[:20],
)
def test_settings_set_anew(change: str, expected: dict[str, object]) -> None:
    data = {"a": 1, "b": {"c": 1, "d": [1, 2]}, "s": [{"n": 1}, {"n": 2}]}
    assert changed(data, [change]) == data | expected
    assert data == {"a": 1, "b": {"c": 1, "d": [1, 2]}, "s": [{"n": 1}, {"n": 2}]}  # what was given stays


def test_one_change_after_another() -> None:
    assert changed({}, ["a.b=1", "a.c=2", "a.b=3"]) == {"a": {"b": 3, "c": 2}}
    assert changed({"a": 1}, []) == {"a": 1}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("a", "'a' does not say what to set; write it as name=value"),
        ("=5", "does not say what to set"),
        ("a.b=5", "'a.b=5': a is a single value, not a group of settings"),
        ("s.2=5", "'s.2=5': 2 is no entry of a list whose last is 1"),
        ("s.x.n=5", "x is no entry of a list whose last is 1"),
        ("s.-1.n=5", "-1 is no entry"),
        ("s.0.n.m=5", "n is a single value"),
    ],
)
def test_changes_that_make_no_sense(change: str, words: str) -> None:
    with pytest.raises(SettingsError, match=re.escape(words)):
        changed({"a": 1, "s": [{"n": 1}, {"n": 2}]}, [change])
