from __future__ import annotations

import pytest

from unmask.text.scripts import is_han, script


@pytest.mark.parametrize(
    ("characters", "name"),
    [
        ("中国㐀𠀀豈", "han"),
        ("々", "han"),
        ("あアｱー", "kana"),
        ("한ㄱᄀ", "hangul"),
        ("aZéßＡ", "latin"),
        ("жЯ", "cyrillic"),
        ("αΩ", "greek"),
        ("عא"[0], "arabic"),
        ("א", "hebrew"),
        ("0９²", "digit"),
        (".,。！、_—", "punctuation"),
        ("😀+€→", "symbol"),
        (" \u3000\t", "space"),
        ("\u0301", "mark"),
        ("\ue000\u0378", "other"),
    ],
)
def test_scripts(characters: str, name: str) -> None:
    assert {script(character) for character in characters} == {name}


def test_edges_of_what_bert_calls_chinese() -> None:
    inside = "\u4e00\u9fff\u3400\u4dbf\U00020000\U0002a6df\U0002a700\U0002ceaf\uf900\ufaff\U0002f800\U0002fa1f"
    outside = "\u33ff\u4dc0\u3005あ한aé。\U0002ceb0\U0002fa20\U00030000"
    assert all(map(is_han, inside))
    assert not any(map(is_han, outside))
