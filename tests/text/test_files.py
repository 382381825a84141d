from __future__ import annotations

import gzip
import io
import sys
from pathlib import Path

import pytest

from unmask.errors import DataError, SettingsError
from unmask.text import files, read_lines
from unmask.text.files import read_lines_at, size_of

CHINESE = "今天天气很好，我们去公园玩。"


def _file(tmp_path: Path, content: bytes, name: str = "text.txt") -> Path:
    path = tmp_path / name
    path.write_bytes(content)
    return path


def test_lines_without_ends_and_mark(tmp_path: Path) -> None:
    content = "\ufeffone\r\n\n二 \u2028 \x0b x\rstill\nlast".encode()
    assert list(read_lines(_file(tmp_path, content))) == ["one", "", "二 \u2028 \x0b x\rstill", "last"]
    assert next(read_lines(_file(tmp_path, gzip.compress(content), "text.txt.gz"))) == "one"
    assert list(read_lines(str(_file(tmp_path, b"")))) == []


def test_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO("a\n中\n".encode())))
    assert list(read_lines("-")) == ["a", "中"]
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"a\n\xff\n")))
    with pytest.raises(DataError, match="standard input, line 2"):
        list(read_lines("-"))


def test_bad_utf8_names_file_line_and_byte(tmp_path: Path) -> None:
    path = _file(tmp_path, b"fine\nfine\nab\xe4\xbd\nfine\n")
    with pytest.raises(DataError, match=r"text.txt, line 3: byte 3 of the line is not UTF-8; save") as caught:
        list(read_lines(path))
    assert (caught.value.file, caught.value.line) == (path, 3)


def test_gb18030_is_recognised_said_and_read_if_asked_for(tmp_path: Path) -> None:
    path = _file(tmp_path, f"plain\n{CHINESE}\n".encode("gb18030"))
    with pytest.raises(DataError, match=r"line 2.*looks like GB18030.*--encoding gb18030.*iconv"):
        list(read_lines(path))
    assert list(read_lines(path, encoding="gb18030")) == ["plain", CHINESE]
    latin = _file(tmp_path, "déjà vu, garçon, naïve".encode("latin-1"), "latin.txt")
    with pytest.raises(DataError) as caught:
        list(read_lines(latin))
    assert "GB18030" not in str(caught.value)
    with pytest.raises(DataError, match="is not GB18030"):
        list(read_lines(_file(tmp_path, b"\xff\xff\xff"), encoding="gb18030"))


def test_other_things_that_are_not_text(tmp_path: Path) -> None:
    cases: list[tuple[Path, str]] = [
        (_file(tmp_path, "中".encode("utf-16"), "utf16.txt"), "is UTF-16, not UTF-8"),
        (_file(tmp_path, b"\x7fELF\x00\x01\n", "program"), "line 1: has a zero byte"),
        (_file(tmp_path, gzip.compress(b"a\n" * 999)[:-12], "cut.gz"), "cannot be read to its end"),
        (_file(tmp_path, b"not gzip at all", "fake.gz"), "cannot be read to its end"),
        (tmp_path, "is a folder"),
        (tmp_path / "none.txt", "no such file"),
        (tmp_path / ("x" * 300), "no such file"),
    ]
    for path, message in cases:
        with pytest.raises(DataError, match=message):
            list(read_lines(path))


def test_a_file_that_may_not_be_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = _file(tmp_path, b"a\n")

    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(DataError, match=r"text.txt: cannot be opened \(Permission denied\)"):
        list(read_lines(path))


def test_only_two_encodings_are_known(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="encoding is utf-8 or gb18030, given 'latin-1'"):
        list(read_lines(_file(tmp_path, b"a\n"), encoding="latin-1"))


def test_a_line_of_ten_megabytes_is_a_line(tmp_path: Path) -> None:
    path = _file(tmp_path, b"x" * 10_000_000 + b"\nb\n")
    assert [len(line) for line in read_lines(path)] == [10_000_000, 1]


def test_a_line_without_end_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "MAX_LINE_BYTES", 1000)
    path = _file(tmp_path, b"short\n" + b"x" * 1001 + b"\n")
    with pytest.raises(DataError, match="line 2: a line of more than 1,000 bytes"):
        list(read_lines(path))
    assert len(list(read_lines(_file(tmp_path, b"x" * 999 + b"\n")))) == 1


def test_progress_counts_bytes_of_the_file_itself(tmp_path: Path) -> None:
    path = _file(tmp_path, b"ab\ncde\n")
    assert list(read_lines_at(path)) == [("ab", 3), ("cde", 7)]
    assert size_of(path) == 7
    packed = _file(tmp_path, gzip.compress(b"line\n" * 5000), "t.gz")
    assert list(read_lines_at(packed))[-1][1] == size_of(packed)
    with pytest.raises(DataError, match="no such file"):
        size_of(tmp_path / "none")
