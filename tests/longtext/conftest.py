from __future__ import annotations

import pytest

from unmask.text import Tokenizer

LETTERS = list("abcdefghijklmnopqrstuvwxyz0123456789")
TOKENS = [
    *("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"),
    *LETTERS,
    *(f"##{letter}" for letter in LETTERS),
    *".,!?'-，。",
    *"中国人民银行我爱你北京天安门",
    *("un", "##aff", "##able", "hello", "world", "play", "##ing"),
    *(f"w{number}" for number in range(100)),
]


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_vocab(TOKENS)
