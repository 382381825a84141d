from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from unmask.text import Tokenizer
from unmask.text.encoding import shares


def test_a_pair_by_hand(tokenizer: Tokenizer) -> None:
    encoding = tokenizer.encode("Unaffable 中国!", "Hello,playing")
    assert encoding.tokens == [
        *("[CLS]", "un", "##aff", "##able", "中", "国", "!", "[SEP]"),
        *("hello", ",", "play", "##ing", "[SEP]"),
    ]
    assert encoding.segments == [0] * 8 + [1] * 5
    assert encoding.offsets == [
        *((0, 0), (0, 2), (2, 5), (5, 9), (10, 11), (11, 12), (12, 13), (0, 0)),
        *((0, 5), (5, 6), (6, 10), (10, 13), (0, 0)),
    ]
    assert encoding.words == [None, 0, 0, 0, 1, 2, 3, None, 0, 1, 2, 2, None]
    assert encoding.texts == [None, 0, 0, 0, 0, 0, 0, None, 1, 1, 1, 1, None]
    assert encoding.special == [True] + [False] * 6 + [True] + [False] * 4 + [True]
    assert encoding.ids == [tokenizer.id(token) for token in encoding.tokens]
    assert (len(encoding), encoding.coverage, encoding.num_dropped) == (13, 1.0, 0)


def test_offsets_count_code_points_not_bytes_or_utf16_units(tokenizer: Tokenizer) -> None:
    text = "😀😀 é中 hello"
    encoding = tokenizer.encode(text, special_tokens=False)
    assert encoding.offsets == [(0, 2), (3, 4), (4, 5), (6, 11)]
    assert text[6:11] == "hello"


def test_what_is_cut_is_said(tokenizer: Tokenizer) -> None:
    # 7 tokens of text and 2 special ones in 7 places: 5 are kept, with 9 of the 18 letters.
    encoding = tokenizer.encode("hello 中国人民 world play", max_length=7)
    assert encoding.tokens == ["[CLS]", "hello", "中", "国", "人", "民", "[SEP]"]
    assert encoding.num_dropped == 2
    assert encoding.coverage == pytest.approx(9 / 18)
    assert len(encoding) == len(encoding.ids) == len(encoding.segments) == len(encoding.words) == 7
    assert encoding.special == [True, *[False] * 5, True]
    assert "2 dropped" in repr(encoding)


def test_a_cut_inside_a_word_counts_only_what_is_reached(tokenizer: Tokenizer) -> None:
    encoding = tokenizer.encode("unaffable", max_length=4)
    assert encoding.tokens == ["[CLS]", "un", "##aff", "[SEP]"]
    assert encoding.coverage == pytest.approx(5 / 9)


def test_the_longer_text_of_a_pair_is_cut_first(tokenizer: Tokenizer) -> None:
    encoding = tokenizer.encode("hello world", "中国人民银行", max_length=8)
    assert encoding.tokens == ["[CLS]", "hello", "world", "[SEP]", "中", "国", "人", "[SEP]"]
    assert encoding.segments == [0, 0, 0, 0, 1, 1, 1, 1]
    assert (encoding.num_dropped, encoding.coverage) == (3, pytest.approx(13 / 16))


def test_only_special_tokens_fit(tokenizer: Tokenizer) -> None:
    encoding = tokenizer.encode("hello", max_length=2)
    assert (encoding.tokens, encoding.coverage, encoding.num_dropped) == (["[CLS]", "[SEP]"], 0.0, 1)


def test_empty_text_is_two_special_tokens_and_nothing_lost(tokenizer: Tokenizer) -> None:
    for text in ("", "   ", "\x00\x07"):
        encoding = tokenizer.encode(text, max_length=5)
        assert (encoding.tokens, encoding.coverage) == (["[CLS]", "[SEP]"], 1.0)
    assert len(tokenizer.encode("", special_tokens=False)) == 0


def test_a_mask_in_the_text_is_not_around_the_text(tokenizer: Tokenizer) -> None:
    encoding = tokenizer.encode("hello [MASK]")
    assert encoding.tokens == ["[CLS]", "hello", "[MASK]", "[SEP]"]
    assert encoding.special == [True, False, False, True]
    assert encoding.offsets[2] == (6, 12)


@pytest.mark.parametrize(
    ("first", "second", "room", "kept"),
    [
        (3, 2, 7, (3, 2)),
        (11, 2, 7, (5, 2)),
        (2, 11, 7, (2, 5)),
        (11, 13, 7, (3, 4)),
        (13, 11, 7, (4, 3)),
        (7, 7, 5, (2, 3)),
        (5, 0, 3, (3, 0)),
        (5, 7, 0, (0, 0)),
    ],
)
def test_shares_by_hand(first: int, second: int, room: int, kept: tuple[int, int]) -> None:
    assert shares(first, second, room) == kept


@settings(deadline=None)
@given(st.integers(0, 40), st.integers(0, 40), st.integers(0, 60))
def test_shares_fill_the_room_and_cut_the_longer(first: int, second: int, room: int) -> None:
    kept = shares(first, second, room)
    assert sum(kept) == min(room, first + second)
    assert 0 <= kept[0] <= first
    assert 0 <= kept[1] <= second
    if kept[0] < first and kept[1] < second:
        assert abs(kept[0] - kept[1]) <= 1
    elif kept[0] < first:
        assert kept[0] >= second - 1
    elif kept[1] < second:
        assert kept[1] >= first - 1


@settings(deadline=None)
@given(st.text(alphabet="ab 中国x😀\u0301", max_size=23), st.text(alphabet="ab 中", max_size=13), st.integers(3, 17))
def test_cutting_keeps_a_prefix_of_each_text(tokenizer: Tokenizer, text: str, pair: str, size: int) -> None:
    full, cut = tokenizer.encode(text, pair), tokenizer.encode(text, pair, max_length=size)
    assert len(cut) == min(size, len(full))
    assert cut.num_dropped == len(full) - len(cut)
    assert (cut.coverage < 1.0) == (cut.num_dropped > 0)
    for number in (0, 1):
        everything = [id for id, owner in zip(full.ids, full.texts, strict=True) if owner == number]
        kept = [id for id, owner in zip(cut.ids, cut.texts, strict=True) if owner == number]
        assert kept == everything[: len(kept)]
    assert [id for id, owner in zip(cut.ids, cut.texts, strict=True) if owner is None] == [2, 3, 3]
