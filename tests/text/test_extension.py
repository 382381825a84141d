"""Which words deserve a token, and that they become one."""

from __future__ import annotations

import random

import pytest

from unmask.text import Tokenizer, extension
from unmask.text.extension import missing_words, pieces


def test_words_of_the_field_come_first(tokenizer: Tokenizer) -> None:
    lines = ["hello world ibuprofen"] * 6 + ["aspirin world"] * 9 + ["hello Aspirin"] * 2 + ["seldom"] * 4
    assert missing_words(lines, tokenizer, 10) == ["aspirin", "ibuprofen"]  # 11 · 6 and 6 · 8 tokens saved
    assert missing_words(lines, tokenizer, 1) == ["aspirin"]
    assert missing_words(lines, tokenizer, 0) == []
    assert missing_words(lines, tokenizer, 10, at_least=4) == ["aspirin", "ibuprofen", "seldom"]
    assert missing_words([], tokenizer, 10) == []


def test_chinese_is_read_by_characters(tokenizer: Tokenizer) -> None:
    assert missing_words(["中国人民银行。北京天安门!"] * 9, tokenizer, 10) == ["。"]
    # An unknown character counts wherever it stands, in words too.
    lines = ["犇是三头牛"] * 3 + ["犇"] * 3 + ["中国的龘字"] * 5
    assert missing_words(lines, tokenizer, 9) == ["犇", "字", "的", "龘"]


def test_letters_beyond_ascii_are_words_too() -> None:
    letters = ["ж", "и", "##и", "##з", "##н", "##ь"]
    tokenizer = Tokenizer.from_vocab(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters])
    assert missing_words(["жизнь"] * 5 + ["и"] * 9, tokenizer, 9) == ["жизнь"]


def test_the_order_is_always_the_same(tokenizer: Tokenizer) -> None:
    words = [f"word{number}x" for number in range(30)]
    lines = words * 7
    expected = missing_words(lines, tokenizer, 12)
    assert len(expected) == 12
    for seed in range(3):
        random.Random(seed).shuffle(lines)
        assert missing_words(lines, tokenizer, 12) == expected


def test_memory_stays_bounded_and_frequent_words_stay(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extension, "_MOST_COUNTED", 20)
    sizes = []
    real = extension.Counter

    class Watched(real[str]):
        def update(self, words: object) -> None:  # type: ignore[override]
            super().update(words)
            sizes.append(len(self))

    monkeypatch.setattr(extension, "Counter", Watched)
    lines = [f"aspirin once{number}" for number in range(200)]
    assert missing_words(lines, tokenizer, 3) == ["aspirin"]
    assert max(sizes) <= 22


@pytest.mark.parametrize("lowercase", [True, False])
def test_each_becomes_one_token_and_the_others_stay(lowercase: bool, tokens: list[str]) -> None:
    old = Tokenizer.from_vocab([*tokens, "A", "##P"], lowercase=lowercase)
    text = "Aspirin naïve c++ don't 3.14 x86_64 covid-19 犇牛 жизнь http://a.b/c 🙂 AbC APP ﬁre " + "z" * 300
    words = missing_words([text] * 5, old, 50)
    assert {"犇", "covid", "🙂", "жизнь"} <= set(words)
    assert not [word for word in words if len(word) > 1 and not word.isalnum()]  # "covid-19" is read as three words
    new = old.with_tokens(words)
    assert new.vocab_size == old.vocab_size + len(words)
    for word, ids in zip(words, pieces(words, new), strict=True):
        assert ids == [new.id(word)], word
        assert ids[0] >= old.vocab_size
    known = new.encode(text, special_tokens=False).ids
    assert len(known) < len(old.encode(text, special_tokens=False).ids)
    plain = "hello world 中国 playing"
    assert new.encode(plain).ids == old.encode(plain).ids


def test_words_that_are_too_long_for_a_token_are_passed_over(tokenizer: Tokenizer) -> None:
    assert missing_words(["z" * 2000, "y" * 300, "aspirin"] * 6, tokenizer, 5) == ["aspirin"]
