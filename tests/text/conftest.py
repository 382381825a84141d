from __future__ import annotations

from pathlib import Path

import pytest

from unmask.text import Tokenizer

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
LETTERS = list("abcdefghijklmnopqrstuvwxyz0123456789")
TOKENS = [
    *SPECIAL,
    *LETTERS,
    *(f"##{letter}" for letter in LETTERS),
    *".,!?'-",
    *"中国人民银行我爱你北京天安门",
    "un",
    "##aff",
    "##able",
    "hello",
    "world",
    "play",
    "##ing",
]


@pytest.fixture(scope="session")
def tokens() -> list[str]:
    return list(TOKENS)


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_vocab(TOKENS)


@pytest.fixture
def vocab_folder(tmp_path: Path) -> Path:
    """A folder with nothing but a vocab.txt."""
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "vocab.txt").write_text("\n".join(TOKENS) + "\n", encoding="utf-8")
    return folder
