from __future__ import annotations

import time
import tracemalloc
from pathlib import Path

import pytest

from unmask.errors import DataError
from unmask.text.vocabulary import MAX_FILE_BYTES, check_vocab, check_words, read_vocab

GOOD = "[PAD]\n[UNK]\n[CLS]\n[SEP]\na\n"


def _file(tmp_path: Path, content: bytes | str) -> Path:
    path = tmp_path / "vocab.txt"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def test_lines_are_ids(tmp_path: Path) -> None:
    assert read_vocab(_file(tmp_path, GOOD)) == ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "a"]


def test_windows_ends_marks_and_blank_ends_change_nothing(tmp_path: Path) -> None:
    expected = read_vocab(_file(tmp_path, GOOD))
    assert read_vocab(_file(tmp_path, "\ufeff" + GOOD.replace("\n", "\r\n") + "\r\n\r\n")) == expected
    assert read_vocab(_file(tmp_path, GOOD.rstrip("\n"))) == expected


def test_a_line_separator_can_be_a_token(tmp_path: Path) -> None:
    assert read_vocab(_file(tmp_path, GOOD + "\u2028\n\u0085\nb\n"))[-3:] == ["\u2028", "\u0085", "b"]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", ["empty"]),
        ("\n\n", ["empty"]),
        (GOOD.replace("[UNK]", "x"), ["no [UNK]"]),
        (GOOD.replace("[CLS]", "x").replace("[SEP]", "y"), ["[CLS]", "[SEP]"]),
        (GOOD + "b\na\n", ["line 7", "'a'", "twice", "line 5"]),
        (GOOD.encode() + b"\xff\xfe\n", ["UTF-8"]),
        (GOOD + "x" * 2_000_000 + "\n", ["line 6", "2,000,000"]),
    ],
)
def test_broken_vocabularies(tmp_path: Path, content: bytes | str, words: list[str]) -> None:
    with pytest.raises(DataError) as caught:
        read_vocab(_file(tmp_path, content))
    assert all(word in str(caught.value) for word in [*words, "vocab.txt"])
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 500


def test_an_enormous_file_is_refused_without_reading_it(tmp_path: Path) -> None:
    path = tmp_path / "vocab.txt"
    with path.open("wb") as file:
        file.truncate(50 * 1024**3)  # sparse: takes no room on the disk
    tracemalloc.start()
    start = time.perf_counter()
    with pytest.raises(DataError, match="too many for a vocabulary"):
        read_vocab(path)
    assert time.perf_counter() - start < 1
    assert tracemalloc.get_traced_memory()[1] < 1_000_000
    tracemalloc.stop()
    assert MAX_FILE_BYTES < 50 * 1024**3


@pytest.mark.parametrize("end", ["\r\n", *(pytest.param(end, marks=pytest.mark.slow) for end in "\n\r")])
def test_millions_of_lines_are_refused_before_anything_is_built(tmp_path: Path, end: str) -> None:
    path = tmp_path / "vocab.txt"
    path.write_text(GOOD + end.join(f"{number:07}" for number in range(6_000_000)), encoding="utf-8", newline="")
    tracemalloc.start()
    start = time.perf_counter()
    with pytest.raises(DataError, match=r"vocab.txt: more than 1,000,000 tokens.*right file"):
        read_vocab(path)
    assert time.perf_counter() - start < 10
    assert tracemalloc.get_traced_memory()[1] < 200_000_000
    tracemalloc.stop()
    with pytest.raises(DataError, match="more than 1,000,000 tokens"):
        check_vocab(["a"] * 1_000_001)


@pytest.mark.parametrize("token", ["\ud800", 7, None])
def test_tokens_that_are_not_text(token: str) -> None:
    with pytest.raises(DataError, match="is not valid text"):
        check_vocab([*GOOD.split(), token])


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such file"):
        read_vocab(tmp_path / "none.txt")
    with pytest.raises(DataError, match="no such file"):
        read_vocab(tmp_path)


@pytest.mark.parametrize("word", ["", "two words", "tab\t", "\ud800", "x" * 1001, 7])
def test_words_that_cannot_be_tokens(word: str) -> None:
    with pytest.raises(DataError, match="cannot add"):
        check_words(["fine", word])
