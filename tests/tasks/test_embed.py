from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import unmask
from unmask.bundle import Bundle
from unmask.errors import TaskError
from unmask.models.folder import LoadReport
from unmask.models.init import build_model
from unmask.models.sentence import SentenceSettings
from unmask.models.settings import BertSettings
from unmask.nn.batch import Batch
from unmask.tasks import embed as embedding
from unmask.text import Tokenizer

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{number}" for number in range(40))]


@pytest.fixture(scope="module")
def bundle() -> Bundle:
    settings = BertSettings(
        vocab_size=len(WORDS), num_layers=2, hidden_size=21, num_heads=3, ffn_size=13, max_length=7, init_std=0.5
    )
    tokenizer = Tokenizer.from_vocab(WORDS)
    return Bundle(build_model(settings, seed=1).eval(), tokenizer, LoadReport(0, 0))


def text_of(length: int, start: int = 0) -> str:
    return " ".join(f"w{(start + number) % 40}" for number in range(length))


TEXTS = [text_of(length, start) for start, length in enumerate((3, 5, 0, 1, 17, 4, 6, 11, 2))]


def by_hand(bundle: Bundle, text: str, pooling: str) -> np.ndarray:
    """Windows of five words with special tokens around each, pooled over all of them."""
    ids = [bundle.tokenizer.id(word) for word in text.split()]
    parts = [ids[start : start + 5] for start in range(0, len(ids), 5)] or [[]]
    with torch.inference_mode():
        windows = [bundle.encoder(Batch.of([[2, *part, 3]])).sequence for part in parts]
    if pooling == "max":
        return torch.cat(windows).amax(0).numpy()
    if pooling == "mean":
        return torch.cat(windows).mean(0).numpy()
    weights = torch.tensor([float(len(window)) for window in windows])
    return (torch.stack([window[0] for window in windows]) * (weights / weights.sum())[:, None]).sum(0).numpy()


@pytest.mark.parametrize("pooling", ["cls", "mean", "max"])
def test_vectors_are_what_windows_give_by_hand(bundle: Bundle, pooling: str) -> None:
    vectors = bundle.embed(TEXTS, pooling=pooling)
    for text, vector in zip(TEXTS, vectors, strict=True):
        np.testing.assert_allclose(vector, by_hand(bundle, text, pooling), atol=1e-5)


def test_a_long_text_is_read_to_its_end(bundle: Bundle) -> None:
    long = text_of(33)
    other = long.rsplit(" ", 1)[0] + " w39"
    assert long != other
    assert np.abs(bundle.embed([long]) - bundle.embed([other])).max() > 1e-4


def test_order_chunks_and_budget_do_not_matter(bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = bundle.embed(TEXTS)
    order = [4, 8, 0, 6, 2, 1, 7, 3, 5]
    np.testing.assert_allclose(bundle.embed([TEXTS[i] for i in order]), expected[order], atol=1e-6)
    monkeypatch.setattr(embedding, "CHUNK", 2)
    np.testing.assert_allclose(bundle.embed(iter(TEXTS)), expected, atol=1e-6)
    for text, vector in zip(TEXTS, expected, strict=True):
        np.testing.assert_allclose(bundle.embed([text])[0], vector, atol=1e-6)


def test_texts_are_taken_as_they_are_needed(bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedding, "CHUNK", 3)
    taken: list[int] = []

    def texts():
        for number in range(10):
            taken.append(number)
            yield text_of(2, number)

    chunks = bundle.embed_stream(texts())
    assert next(chunks).shape == (3, 21)
    assert len(taken) == 3
    assert sum(len(chunk) for chunk in chunks) == 7


def test_normalised_vectors_have_length_one(bundle: Bundle) -> None:
    vectors = bundle.embed(TEXTS, normalise=True)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-6)
    plain = bundle.embed(TEXTS)
    np.testing.assert_allclose(plain / np.linalg.norm(plain, axis=1, keepdims=True), vectors, atol=1e-6)


def test_a_folder_says_how_its_vectors_are_made(bundle: Bundle, tmp_path: Path) -> None:
    said = Bundle(bundle.model, bundle.tokenizer, LoadReport(0, 0), SentenceSettings("max", normalise=True))
    said.save(tmp_path / "model")
    again = unmask.load(tmp_path / "model")
    assert again.sentence == SentenceSettings("max", normalise=True)
    np.testing.assert_array_equal(again.embed(TEXTS), bundle.embed(TEXTS, pooling="max", normalise=True))


def test_no_texts_give_no_rows_and_a_single_string_is_one_text(bundle: Bundle) -> None:
    assert bundle.embed([]).shape == (0, 21)
    assert bundle.embed("w1 w2").shape == (1, 21)


def test_unknown_pooling_is_refused(bundle: Bundle) -> None:
    with pytest.raises(TaskError, match="cls, mean or max"):
        bundle.embed(["w1"], pooling="median")  # type: ignore[arg-type]


def test_a_model_in_training_is_used_without_dropout(bundle: Bundle) -> None:
    expected = bundle.embed(TEXTS)
    bundle.model.train()
    try:
        np.testing.assert_array_equal(bundle.embed(TEXTS), expected)
        assert bundle.model.training
    finally:
        bundle.model.eval()


def test_a_model_too_short_for_windows_says_so() -> None:
    settings = BertSettings(vocab_size=45, num_layers=1, hidden_size=6, num_heads=3, ffn_size=5, max_length=2)
    short = Bundle(build_model(settings), Tokenizer.from_vocab(WORDS))
    with pytest.raises(TaskError, match="no room"):
        short.embed(["w1"])
