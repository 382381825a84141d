from __future__ import annotations

import json
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest

from unmask.text import Tokenizer, VocabularySettings, report, train_tokenizer


def test_counts_by_hand(tokenizer: Tokenizer) -> None:
    result = report(tokenizer, ["Hello 中国😀!", "unaffable 龍a", ""])
    # hello 中 国 [UNK] ! | un ##aff ##able [UNK] a
    assert (result.lines, result.characters, result.tokens, result.unknown_tokens) == (3, 20, 10, 2)
    assert (result.lost_characters, result.missing_characters) == (2, {"龍": 1, "😀": 1})
    assert result.words == 3 + 4  # 中 国 龍 and Hello, 😀!, unaffable, a
    assert (result.unknown_rate, result.lost_rate) == (pytest.approx(0.2), pytest.approx(0.1))
    assert (result.tokens_per_character, result.tokens_per_word) == (pytest.approx(0.5), pytest.approx(10 / 7))
    parts = {name: (part.characters, part.tokens, part.lost) for name, part in result.scripts.items()}
    assert parts == {"latin": (15, 5, 0), "han": (3, 3, 1), "symbol": (1, 1, 1), "punctuation": (1, 1, 0)}
    assert result.scripts["latin"].tokens_per_character == pytest.approx(1 / 3)
    assert result.lengths["<= 8"] == 3
    assert json.loads(json.dumps(result.to_dict()))["unknown_rate"] == pytest.approx(0.2)


def test_a_word_is_lost_whole_but_only_the_missing_character_is_named(tokenizer: Tokenizer) -> None:
    result = report(tokenizer, ["abc😀d", "x" * 101])
    assert (result.unknown_tokens, result.lost_characters) == (2, 106)
    assert result.missing_characters == {"😀": 1}


def test_lengths_and_the_limit(tokenizer: Tokenizer) -> None:
    lines = ["a " * count for count in (6, 7, 510, 511, 4094, 4095)]  # two special tokens more
    result = report(tokenizer, lines)
    found = {label: count for label, count in result.lengths.items() if count}
    assert found == {"<= 8": 1, "<= 16": 1, "<= 512": 1, "<= 1024": 1, "<= 4096": 1, "> 4096": 1}
    assert (result.lines_above_limit, result.share_above_limit) == (3, pytest.approx(0.5))


def test_most_common(tokenizer: Tokenizer) -> None:
    result = report(tokenizer, ["龍龍龘 αβα"], most_common=2)
    assert result.missing_characters == {"α": 2, "龍": 2}


def test_nothing(tokenizer: Tokenizer) -> None:
    result = report(tokenizer, [])
    assert (result.lines, result.tokens, result.unknown_rate, result.tokens_per_word) == (0, 0, 0.0, 0.0)


@pytest.mark.parametrize("kind", ["wordpiece", "bpe", "byte_bpe"])
def test_bytes_are_counted_for_the_script_they_spell(kind: str, tmp_path: Path) -> None:
    (tmp_path / "text").write_text("hello world 中\n" * 5, encoding="utf-8")
    settings = VocabularySettings.parse({"kind": kind, "size": 400, "byte_fallback": kind != "byte_bpe"})
    result = report(train_tokenizer([tmp_path / "text"], settings), ["hello 龍"])
    assert (result.unknown_tokens, result.lost_characters, result.missing_characters) == (0, 0, {})
    assert result.scripts["han"].tokens == 3
    assert result.scripts["latin"].characters == 5


def test_memory_does_not_grow_with_the_text(tokenizer: Tokenizer) -> None:
    def lines(count: int) -> Iterator[str]:
        for number in range(count):
            yield f"hello {number % 97} 中国 😀"

    def peak(count: int) -> int:
        tracemalloc.start()
        report(tokenizer, lines(count))
        top = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return top

    peak(300)
    assert peak(20_000) < 1.5 * peak(1000)
