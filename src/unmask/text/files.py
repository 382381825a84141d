"""Lines of text from files: plain or gzip, checked to be UTF-8 text, never read whole."""

from __future__ import annotations

import gzip
import stat
import sys
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Literal, cast, get_args

from unmask.errors import DataError, SettingsError

TextEncoding = Literal["utf-8", "gb18030"]

# A whole book may be one line, but a line must fit in memory several times over.
MAX_LINE_BYTES = 64 * 1024 * 1024
_BOM = b"\xef\xbb\xbf"
_OTHER_BOMS = {b"\xff\xfe": "UTF-16", b"\xfe\xff": "UTF-16"}


def read_lines(path: Path | str, *, encoding: TextEncoding = "utf-8") -> Iterator[str]:
    """The lines of a text file without their ends; gzip if the name ends in .gz, standard input if it is `-`.

    A mark at the start (BOM) is dropped. What is not UTF-8 text ends in a DataError with file and line, which
    says so if the file looks like GB18030; it is never guessed, but can be asked for.
    """
    for line, _ in read_lines_at(path, encoding=encoding):
        yield line


def read_lines_at(path: Path | str, *, encoding: TextEncoding = "utf-8") -> Iterator[tuple[str, int]]:
    """As `read_lines`, with the number of bytes of the file that were read so far, to show progress."""
    check_encoding(encoding)
    name = "standard input" if str(path) == "-" else str(path)
    with _opened(path) as (raw, text):
        number = 0
        while True:
            number += 1
            try:
                line = text.readline(MAX_LINE_BYTES + 1)
            except (OSError, EOFError, zlib.error) as error:
                raise DataError(f"cannot be read to its end ({error})", file=name, line=number) from None
            if not line:
                return
            if number == 1:
                line = _without_mark(line, name)
            yield _decoded(line, encoding, name, number), raw.tell() if raw.seekable() else 0


def check_encoding(encoding: str) -> TextEncoding:
    """`encoding`, if text files may be written in it; SettingsError otherwise."""
    if encoding not in get_args(TextEncoding):
        raise SettingsError(f"encoding is {' or '.join(get_args(TextEncoding))}, given {encoding!r}")
    return cast(TextEncoding, encoding)


def size_of(path: Path) -> int:
    """The size of a text file in bytes; DataError if there is no such file."""
    _check_file(path)
    return path.stat().st_size


@contextmanager
def _opened(path: Path | str) -> Iterator[tuple[BinaryIO, BinaryIO]]:
    """The file itself, whose position shows progress, and the stream of its text."""
    if str(path) == "-":
        yield sys.stdin.buffer, sys.stdin.buffer
        return
    path = Path(path)
    _check_file(path)
    try:
        raw = path.open("rb")
    except OSError as error:
        raise DataError(f"cannot be opened ({error.strerror or error})", file=path) from None
    with raw:
        if path.suffix == ".gz":
            with gzip.GzipFile(fileobj=raw) as text:
                yield raw, cast(BinaryIO, text)
        else:
            yield raw, raw


def _check_file(path: Path) -> None:
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError):
        raise DataError("no such file", file=path) from None
    if stat.S_ISDIR(mode):
        raise DataError("is a folder; give the text files in it", file=path)


def _without_mark(line: bytes, name: str) -> bytes:
    other = _OTHER_BOMS.get(line[:2])
    if other is not None:
        raise DataError(f"is {other}, not UTF-8; convert it with: iconv -f {other} -t UTF-8", file=name)
    return line.removeprefix(_BOM)


def _decoded(line: bytes, encoding: TextEncoding, name: str, number: int) -> str:
    if len(line) > MAX_LINE_BYTES:
        raise DataError(
            f"a line of more than {MAX_LINE_BYTES:,} bytes; is it text? Break it into lines", file=name, line=number
        )
    if b"\0" in line:
        raise DataError("has a zero byte, so it is not text", file=name, line=number)
    try:
        text = line.decode(encoding)
    except UnicodeDecodeError as error:
        place = f"byte {error.start + 1} of the line is not {encoding.upper()}"
        hint = (
            "it looks like GB18030 (or GBK): read it with encoding gb18030 (on the command line: --encoding gb18030), "
            "or convert it with: iconv -f GB18030 -t UTF-8"
            if encoding == "utf-8" and looks_like_gb18030(line)
            else "save the file as UTF-8, or remove the line"
        )
        raise DataError(f"{place}; {hint}", file=name, line=number) from None
    return text.removesuffix("\n").removesuffix("\r")


def looks_like_gb18030(data: bytes) -> bool:
    """Whether bytes that are not UTF-8 read as common Chinese text in GB18030."""
    try:
        text = data[:65536].decode("gb18030")
    except UnicodeDecodeError as error:
        if error.end < min(len(data), 65536) - 3:  # not merely cut in the middle of a character
            return False
        text = data[: error.start].decode("gb18030")
    beyond_ascii = [character for character in text if character > "\x7f"]
    # GB2312's level 1, the 3,755 common characters, has lead bytes B0 to D7: real text is made mostly of them.
    common = sum(0xB0 <= character.encode("gb18030")[0] <= 0xD7 for character in beyond_ascii)
    return bool(beyond_ascii) and common >= 0.6 * len(beyond_ascii)
