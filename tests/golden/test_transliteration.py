"""A published encoder-decoder, trained by others with other software, decoded by ours."""

from __future__ import annotations

from pathlib import Path

import pytest

from unmask.decode.greedy import greedy
from unmask.models.bert import num_parameters
from unmask.models.ctranslate import load_ctranslate
from unmask.models.settings import TransformerSettings
from unmask.nn.batch import Batch
from unmask.nn.settings import SinusoidalSettings


def test_arabic_names_are_written_in_latin_letters(data_folder: Path) -> None:
    folder = data_folder / "aren_transformer" / "aren-transliteration"
    source = (folder / "source_vocabulary.txt").read_text(encoding="utf-8").split("\n")
    target = (folder / "target_vocabulary.txt").read_text(encoding="utf-8").split("\n")
    settings = TransformerSettings(
        source_vocab_size=51,
        target_vocab_size=43,
        hidden_size=32,
        num_heads=8,
        ffn_size=128,
        norm_place="pre",
        norm_eps=1e-6,
        final_norm=True,
        tie="none",
        output_bias=True,
        positions=SinusoidalSettings(order="concatenated", spacing="tensor2tensor", start=1),
    )
    model = load_ctranslate(folder / "weights.npz", settings)
    assert num_parameters(model) == 182_731
    words = ["آتزمون", "آزا"]
    batch = Batch.of([[source.index(letter) for letter in word] for word in words])
    found = greedy(model, batch, start_id=1, end_id=2, max_length=20)
    assert ["".join(target[token] for token in hypothesis.ids) for hypothesis in found] == ["atzmon", "azza"]
    assert [hypothesis.log_probability for hypothesis in found] == pytest.approx([-1.0617, -0.7546], abs=1e-4)
