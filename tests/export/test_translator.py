"""A translator for other programs: compared there before it is written, complete or not there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import unmask
from unmask.cli.main import run
from unmask.decode.settings import DecodeSettings
from unmask.errors import TaskError, UnmaskError
from unmask.export import translator as room
from unmask.export.translator import TranslatorKind, export_translator
from unmask.models.init import build_model
from unmask.models.settings import LstmSettings, TransformerSettings
from unmask.models.transformer import Transformer
from unmask.tasks.languages import Languages, TranslateUsage
from unmask.tasks.translate import Translator
from unmask.text import Tokenizer

PROGRAMS: dict[TranslatorKind, str] = {"marian": "transformers", "ctranslate2": "ctranslate2"}
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
JOINT, OTHER = [*SPECIAL, *"abcdefghijk"], [*SPECIAL, *"nopqrstuvwxyz"]


def translator(*, joint: bool = True, **changes: Any) -> Translator:
    source = Tokenizer.from_vocab(JOINT)
    languages = Languages(source, source if joint else Tokenizer.from_vocab(OTHER))
    sizes: dict[str, Any] = {"hidden_size": 24, "num_heads": 3, "ffn_size": 40, "max_length": 50}
    layers = {"num_encoder_layers": 2, "num_decoder_layers": 1, "tie": "all" if joint else "none"}
    vocabulary = {"source_vocab_size": len(JOINT), "target_vocab_size": len(JOINT if joint else OTHER)}
    model = build_model(TransformerSettings.parse(sizes | layers | vocabulary | {"init_std": 0.3} | changes), seed=3)
    return Translator(model.eval(), languages, TranslateUsage(max_source=50))


@pytest.mark.parametrize("kind", PROGRAMS)
@pytest.mark.parametrize("changes", [{}, {"joint": False}, {"max_length": 5}, {"positions": {"kind": "learned"}}])
def test_compared_and_written(kind: TranslatorKind, changes: dict[str, Any], tmp_path: Path) -> None:
    pytest.importorskip(PROGRAMS[kind])
    given = translator(**changes)
    found = export_translator(given, tmp_path / "out", kind)
    assert found.parity is not None
    assert found.parity.largest < 2e-5
    assert found.parity.rows > 20
    assert found.parity.size > 0.5  # there was something to compare
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    if kind == "marian":
        texts, settings = ["a b c", "k"], DecodeSettings(beam=1, max_length=4)
        again = unmask.load(tmp_path / "out").translator
        assert [one.text for one in again.run(texts, settings)] == [one.text for one in given.run(texts, settings)]


@pytest.mark.parametrize("kind", PROGRAMS)
def test_what_says_something_else_is_not_written(
    kind: TranslatorKind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A weight of the decoder changes on its way out."""
    pytest.importorskip(PROGRAMS[kind])
    name = "export_marian" if kind == "marian" else "export_ctranslate2"
    write = getattr(room, name)

    def wrong(model: Transformer, *given: Any) -> None:
        other = build_model(model.settings, seed=3)
        other.load_state_dict(model.state_dict())
        with torch.no_grad():
            other.get_parameter("decoder.blocks.0.ffn.outer.weight").mul_(1.05)
        write(other.eval(), *given)

    monkeypatch.setattr(room, name, wrong)
    with pytest.raises(TaskError, match="says something else .* it was not written"):
        export_translator(translator(), tmp_path / "out", kind)
    assert list(tmp_path.iterdir()) == []


def test_no_half_folder_where_its_vocabulary_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: Languages, folder: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Languages, "save", full)
    with pytest.raises(UnmaskError, match="disk is full"):
        export_translator(translator(), tmp_path / "out", "marian")
    assert list(tmp_path.iterdir()) == []


def test_without_transformers_it_is_written_and_that_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "installed", lambda name: False)
    assert export_translator(translator(), tmp_path / "out", "marian").parity is None
    assert json.loads((tmp_path / "out" / "config.json").read_text())["model_type"] == "marian"


def test_an_lstm_cannot_go(tmp_path: Path) -> None:
    settings = LstmSettings(source_vocab_size=len(JOINT), target_vocab_size=len(JOINT), hidden_size=8, num_layers=1)
    given = translator()
    given.model = build_model(settings, seed=0)
    with pytest.raises(TaskError, match="this is an LSTM"):
        export_translator(given, tmp_path / "out", "marian")
    assert list(tmp_path.iterdir()) == []


def test_a_model_stays_in_the_mode_it_was_in(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    given = translator(dropout={"residual": 0.5})
    given.model.train()
    found = export_translator(given, tmp_path / "out", "marian")
    assert found.parity is not None
    assert found.parity.largest < 2e-5
    assert given.model.training
    assert run(["info", str(tmp_path / "out")]) == 0
