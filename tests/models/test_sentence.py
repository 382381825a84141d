from __future__ import annotations

import json
from pathlib import Path

import pytest

from unmask.errors import ModelError
from unmask.models.sentence import SentenceSettings, read_sentence_settings, write_sentence_settings


@pytest.mark.parametrize("pooling", ["cls", "mean", "max"])
@pytest.mark.parametrize("normalise", [True, False])
def test_what_is_written_is_read(pooling: str, normalise: bool, tmp_path: Path) -> None:
    settings = SentenceSettings(pooling, normalise, cut_at=256 if normalise else None)
    write_sentence_settings(tmp_path, settings, 17)
    assert read_sentence_settings(tmp_path) == settings


def test_a_folder_that_does_not_say(tmp_path: Path) -> None:
    assert read_sentence_settings(tmp_path) is None


def test_newer_spelling_of_the_pooling(tmp_path: Path) -> None:
    write_sentence_settings(tmp_path, SentenceSettings("cls"), 17)
    (tmp_path / "1_Pooling" / "config.json").write_text(json.dumps({"embedding_dimension": 17, "pooling_mode": "max"}))
    assert read_sentence_settings(tmp_path) == SentenceSettings("max")


@pytest.mark.parametrize(
    ("modules", "words"),
    [
        ({"a": 1}, "list of modules"),
        ([{"type": "sentence_transformers.models.Dense", "path": "2_Dense"}], "Dense' is not supported"),
        ([{"type": "sentence_transformers.models.Pooling", "path": "../../etc"}], "inside the model's"),
        ([{"type": "sentence_transformers.models.Pooling", "path": "p"}], "exactly one pooling"),
    ],
)
def test_what_cannot_be_done_is_said(modules: object, words: str, tmp_path: Path) -> None:
    (tmp_path / "modules.json").write_text(json.dumps(modules))
    (tmp_path / "p").mkdir()
    (tmp_path / "p" / "config.json").write_text(json.dumps({"pooling_mode_weightedmean_tokens": True}))
    with pytest.raises(ModelError, match=words):
        read_sentence_settings(tmp_path)
