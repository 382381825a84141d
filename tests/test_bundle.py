from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import unmask
from unmask.bundle import Bundle
from unmask.errors import ModelError, TaskError
from unmask.models.folder import LoadReport
from unmask.models.init import build_model
from unmask.models.settings import ClassifySettings, GptSettings
from unmask.text import Tokenizer


def test_a_real_model_is_loaded_whole_and_finds_what_is_alike(minilm_folder: Path) -> None:
    bert = unmask.load(minilm_folder)
    assert str(bert.report) == "loaded 103 of 103 tensors"
    assert bert.sentence is not None
    assert (bert.sentence.pooling, bert.sentence.normalise) == ("mean", True)
    texts = ["A cat sleeps on the sofa.", "The kitten naps on the couch.", "Interest rates rose again."]
    vectors = bert.embed(texts)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)
    likeness = vectors @ vectors.T
    assert likeness[0, 1] > 0.5 > likeness[0, 2]


def test_a_new_head_is_announced(minilm_folder: Path) -> None:
    bert = unmask.load(minilm_folder, heads=[ClassifySettings(labels=("good", "bad"))])
    assert str(bert.report) == "loaded 103 of 103 tensors; 2 new for the head you asked for (expected)"


def test_saved_and_loaded_it_gives_the_same_to_the_bit(minilm_folder: Path, tmp_path: Path) -> None:
    bert = unmask.load(minilm_folder)
    bert.save(tmp_path / "copy")
    again = unmask.load(tmp_path / "copy")
    texts = ["one", "a longer one, 北京 too", "x" * 300]
    np.testing.assert_array_equal(bert.embed(texts), again.embed(texts))
    assert sorted(path.name for path in (tmp_path / "copy").iterdir()) == [
        "1_Pooling",
        "2_Normalize",
        "config.json",
        "model.safetensors",
        "modules.json",
        "sentence_bert_config.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "vocab.txt",
    ]


def test_gradients_reach_a_loaded_model(minilm_folder: Path) -> None:
    bert = unmask.load(minilm_folder)
    bert.encoder(bert.batch(["a text", "another"])).sequence.square().sum().backward()
    assert all(
        torch.isfinite(parameter.grad).all()
        for name, parameter in bert.encoder.named_parameters()
        if not name.startswith("pooler")
    )


def test_a_tokenizer_of_another_model_is_noticed(tmp_path: Path) -> None:
    small = Tokenizer.from_vocab(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a"])
    settings = GptSettings(vocab_size=6, num_layers=1, hidden_size=8, num_heads=2, ffn_size=8)
    Bundle(build_model(settings), small, LoadReport(0, 0)).save(tmp_path / "model")
    loaded = unmask.load(tmp_path / "model")
    with pytest.raises(TaskError, match="gpt model"):
        loaded.embed(["a"])
    Tokenizer.from_vocab([*small.vocab, "b", "c"]).save(tmp_path / "model")
    with pytest.raises(ModelError, match="8 tokens but the model knows 6"):
        unmask.load(tmp_path / "model")


def test_everything_works_with_the_network_cut(minilm_folder: Path) -> None:
    code = (
        "import socket, sys\n"
        "def refuse(*_): raise SystemExit('touched the network')\n"
        "sys.addaudithook(lambda event, _: refuse() if event in ('socket.connect', 'socket.getaddrinfo') else None)\n"
        "sys.addaudithook(lambda event, _: sys.exit('pickle') if event == 'pickle.find_class' else None)\n"
        "import unmask\n"
        "print(unmask.load('minilm').embed(['hello']).shape)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "(1, 384)", done.stderr


def test_unknown_attribute() -> None:
    with pytest.raises(AttributeError):
        unmask.nonsense  # noqa: B018
