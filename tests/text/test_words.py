from __future__ import annotations

import subprocess
import sys

from hypothesis import given, settings
from hypothesis import strategies as st

from unmask.text import Tokenizer, segment, whole_words


def _words(text: str) -> list[str]:
    return [text[start:end] for start, end in segment(text)]


def test_words_of_mixed_text() -> None:
    assert _words("我爱北京天安门。") == ["我", "爱", "北京", "天安门", "。"]
    assert _words("Hello, naïve cafe\u0301 COVID19!") == ["Hello", ",", "naïve", "cafe\u0301", "COVID19", "!"]
    assert _words("中国人民银行 opened in 1948年") == ["中国人民银行", "opened", "in", "1948", "年"]
    assert _words("") == _words(" \n\u3000") == []


@settings(deadline=None)
@given(st.text(alphabet="中国人民银行aé\u0301 1.。\n😀ア한", max_size=23) | st.text(max_size=13))
def test_every_visible_character_is_in_exactly_one_word(text: str) -> None:
    if any("\ud800" <= character <= "\udfff" for character in text):
        return
    spans = segment(text)
    places = [place for start, end in spans for place in range(start, end)]
    assert places == sorted(set(places))
    assert set(places) >= {place for place, character in enumerate(text) if not character.isspace()}


def test_whole_words_by_hand(tokenizer: Tokenizer) -> None:
    text = "我爱北京天安门 unaffable!"
    encoding = tokenizer.encode(text)
    assert encoding.tokens[1:-1] == [*"我爱北京天安门", "un", "##aff", "##able", "!"]
    assert whole_words(encoding, segment(text)) == [None, 0, 1, 2, 2, 3, 3, 3, 4, 4, 4, 5, None]


def test_whole_words_of_a_pair_are_numbered_on(tokenizer: Tokenizer) -> None:
    first, second = "北京", "hello playing"
    encoding = tokenizer.encode(first, second)
    assert whole_words(encoding, segment(first), segment(second)) == [None, 0, 0, None, 1, 2, 2, None]
    cut = tokenizer.encode(first, second, max_length=6)
    assert whole_words(cut, segment(first), segment(second)) == [None, 0, None, 1, 2, None]


def test_a_token_over_several_words_joins_them(tokenizer: Tokenizer) -> None:
    encoding = tokenizer.encode("hello中国人", special_tokens=False)
    assert encoding.offsets == [(0, 5), (5, 6), (6, 7), (7, 8)]
    assert whole_words(encoding, [(0, 2), (2, 6), (6, 8)]) == [0, 0, 2, 2]
    assert whole_words(encoding, [(0, 5), (7, 8)]) == [0, None, None, 1]
    assert whole_words(encoding, []) == [None, None, None, None]
    chained = tokenizer.encode("unaffable", special_tokens=False)
    assert chained.offsets == [(0, 2), (2, 5), (5, 9)]
    assert whole_words(chained, [(0, 1), (1, 4), (4, 6), (6, 9)]) == [0, 0, 0]
    assert whole_words(chained, [(0, 2), (2, 4), (4, 5), (5, 9)]) == [0, 1, 3]


@settings(deadline=None)
@given(st.text(alphabet="中国人民银行ab 1.。", max_size=19))
def test_tokens_of_one_word_are_neighbours(tokenizer: Tokenizer, text: str) -> None:
    spans = segment(text)
    encoding = tokenizer.encode(text, special_tokens=False)
    found = whole_words(encoding, spans)
    assert None not in found
    assert found == sorted(found, key=lambda number: -1 if number is None else number)
    for number, (start, _) in zip(found, encoding.offsets, strict=True):
        assert number is not None
        assert spans[number][0] <= start


def test_the_dictionary_is_read_only_when_needed() -> None:
    code = "import sys, unmask.text; assert 'rjieba' not in sys.modules and 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
