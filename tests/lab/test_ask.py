"""People find their question in their own words."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from unmask.lab.ask import ask, stem
from unmask.lab.catalogue import entries

#: Each written by somebody who saw the fifty questions and not the index, and never used to build or tune it.
PARAPHRASES = ("paraphrases.json", "paraphrases-again.json")


@pytest.mark.parametrize("name", PARAPHRASES)
def test_nine_of_ten_paraphrases_find_their_question(name: str) -> None:
    paraphrases = json.loads((Path(__file__).parent / name).read_text(encoding="utf-8"))
    assert len(paraphrases) == 100
    found = dict.fromkeys(("en", "zh"), 0)
    for one in paraphrases:
        best = ask(one["text"], 1)
        found[one["language"]] += bool(best) and best[0].entry.id == one["id"]
    assert found["en"] + found["zh"] >= 90, found
    assert min(found.values()) >= 44, found


@pytest.mark.parametrize("entry", entries(), ids=lambda entry: entry.id)
def test_its_own_words_find_it(entry: object) -> None:
    for text in entry.question:  # type: ignore[attr-defined]
        assert ask(text, 1)[0].entry is entry


@pytest.mark.parametrize("text", ["", "   ", "???", "the of and", "qwzx"])
def test_words_that_say_nothing_find_nothing(text: str) -> None:
    assert ask(text) == []


def test_neither_case_nor_width_nor_spelling_matters() -> None:
    wanted = ask("why layer normalisation", 1)[0].entry.id
    for text in ("WHY LAYER NORMALIZATION", "ｗｈｙ ｌａｙｅｒ normalisation", "why layer normalized"):
        assert ask(text, 1)[0].entry.id == wanted


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("normalisation", "normalized"),
        ("heads", "head"),
        ("masking", "masked"),
        ("scaling", "scale"),
        ("queries", "query"),
    ],
)
def test_stems_join_forms_of_a_word(one: str, other: str) -> None:
    assert stem(one) == stem(other)


def test_a_long_text_is_read_in_no_time() -> None:
    assert ask("为什么要除以根号 " * 20_000, 1)[0].entry.id == "scale-sqrt-dk"
