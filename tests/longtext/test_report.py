from __future__ import annotations

import pytest

from unmask.longtext.encode import encode_long, encode_questions
from unmask.longtext.report import LongTextReport, report
from unmask.longtext.settings import LongTextSettings
from unmask.text import Tokenizer

TEXTS = ["w1 w2", " ".join(["w3"] * 20), " ".join(["w4"] * 9)]


def test_windows_leave_nothing_out(tokenizer: Tokenizer) -> None:
    found = report(encode_long(tokenizer, TEXTS, None, 7, LongTextSettings(strategy="windows", overlap=0)))
    assert found == LongTextReport(3, 2, 7, 0, 0, 0, 1.0)
    assert str(found) == "2 of 3 texts are too long to be read at once; 7 windows are read; nothing is left out"


def test_what_is_cut_is_counted(tokenizer: Tokenizer) -> None:
    found = report(encode_long(tokenizer, TEXTS, None, 7, LongTextSettings(strategy="head")))
    assert (found.dropped, found.windows) == (19, 3)
    assert found.coverage == pytest.approx(12 / 31)
    assert str(found) == (
        "2 of 3 texts are too long to be read at once; 19 tokens are left out and 38.7% of the characters read"
    )


def test_max_windows_is_told_when_it_bites(tokenizer: Tokenizer) -> None:
    asked = LongTextSettings(strategy="windows", overlap=0, max_windows=2)
    found = report(encode_long(tokenizer, TEXTS, None, 7, asked, training=True))
    assert (found.windows, found.skipped, found.dropped) == (5, 2, 10)
    assert "; max_windows leaves 2 windows out; 10 tokens are left out" in str(found)


def test_pairs_of_two_long_texts_are_told(tokenizer: Tokenizer) -> None:
    pairs = encode_long(tokenizer, TEXTS, TEXTS, 13, LongTextSettings(strategy="windows", overlap=0))
    found = report(pairs)
    assert (found.long, found.shortened) == (2, 2)
    assert "in 2 pairs even the shorter text is cut" in str(found)


def test_a_cut_question_is_told(tokenizer: Tokenizer) -> None:
    found = report(encode_questions(tokenizer, [TEXTS[2]], [TEXTS[1]], 40, max_question=4))
    assert (found.dropped, found.shortened) == (5, 1)


def test_short_texts_and_no_texts(tokenizer: Tokenizer) -> None:
    found = report(encode_long(tokenizer, TEXTS, None, 512, LongTextSettings()))
    assert str(found) == "none of 3 texts is too long to be read at once"
    assert report([]).coverage == 1.0


def test_almost_all_does_not_look_like_all(tokenizer: Tokenizer) -> None:
    assert "99.9% of the characters" in str(LongTextReport(9, 1, 9, 0, 0, 1, 0.99999))
