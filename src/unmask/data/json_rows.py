"""Objects of .jsonl and .json files, each with the line it starts on."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from itertools import islice
from typing import Any

from unmask.config import shown
from unmask.data.rows import OnError, RowError, report
from unmask.errors import DataError, ItemNumber
from unmask.text.files import TextEncoding, read_lines
from unmask.text.vocabulary import surrogate_position

Object = tuple[dict[str, Any], int]
"""An object, and the line on which it starts; its number in a list that is written on one line."""
_SPACE = " \t\r\n"
#: Half a character can only come from an escape: where none is, nothing has to be looked through.
_HALF = re.compile(r"\\u[dD][89a-fA-F]")


def is_json_lines(path: str, *, encoding: TextEncoding = "utf-8") -> bool:
    """Whether a .json file holds an object a line, as many that are called so do."""
    lines = (line for line in read_lines(path, encoding=encoding) if line.strip())
    first, *second = [*islice(lines, 2)] or [""]
    if not first.lstrip().startswith("{") or not second:
        return False
    try:
        return isinstance(json.loads(first), dict)
    except (ValueError, RecursionError):
        # A line that is broken still belongs to JSON lines if the next one is whole.
        try:
            return second[0].lstrip().startswith('{"') and isinstance(json.loads(second[0]), dict)
        except (ValueError, RecursionError):
            return False


def lines_of_objects(path: str, *, encoding: TextEncoding = "utf-8", on_error: OnError = None) -> Iterator[Object]:
    """The objects of a file that has one a line; blank lines are passed over."""
    for number, line in enumerate(read_lines(path, encoding=encoding), 1):
        if not line or line.isspace():
            continue
        try:
            found = _as_object(_parsed(line, path, number), path, number)
            if _HALF.search(line):
                _check_letters(found, path, number)
            yield found, number
        except RowError as error:
            report(error, on_error)


def objects_of(path: str, *, encoding: TextEncoding = "utf-8", on_error: OnError = None) -> Iterator[Object]:
    """The objects of a .json file: a list of them, an object with such a list in `data`, or one a line."""
    if is_json_lines(path, encoding=encoding):
        yield from lines_of_objects(path, encoding=encoding, on_error=on_error)
        return
    text = whole_text(path, encoding=encoding)
    halves = _HALF.search(text) is not None
    one_line = "\n" not in text.strip()
    for number, (item, line) in enumerate(_items(text, path), 1):
        line = ItemNumber(number) if one_line else line
        try:
            found = _as_object(item, path, line)
            if halves:
                _check_letters(found, path, line)
            yield found, line
        except RowError as error:
            report(error, on_error)


def whole_text(path: str, *, encoding: TextEncoding = "utf-8") -> str:
    """The text of a file, for formats that cannot be read in parts."""
    text = "\n".join(read_lines(path, encoding=encoding))
    if not text.strip():
        raise DataError("is empty", file=path)
    return text


def _parsed(text: str, path: str, line: int) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        message = f"not valid JSON ({error.msg}, character {error.colno})"
    except (ValueError, RecursionError) as error:
        message = f"not JSON that can be read ({str(error)[:100]})"
    raise RowError(message, kind="json", file=path, line=line)


def _as_object(value: Any, path: str, line: int) -> dict[str, Any]:
    if not isinstance(value, dict):
        wanted = '{"text": …, "label": …}'
        message = f"expected an object such as {wanted}, found {_kind(value)} ({shown(value)})"
        raise RowError(message, kind="json", file=path, line=line)
    return value


def _check_letters(value: Any, path: str, line: int) -> None:
    """RowError if a text in it has half a character, which no tokenizer takes and no file can hold."""
    position = surrogate_position(written := json.dumps(value, ensure_ascii=False))
    if position is not None:
        half = f"half a character (U+{ord(written[position]):04X})"
        message = f"has {half}, without its other half; write the letter itself, or remove it"
        raise RowError(message, kind="text", file=path, line=line)


def _kind(value: Any) -> str:
    if value is None:
        return "null"
    names = {list: "a list", str: "a text", bool: "true or false", int: "a number", float: "a number"}
    return names.get(type(value), "an object")


class _Reader:
    """Steps through the outermost layer of a JSON text, so that the line of each item is known."""

    def __init__(self, text: str, path: str) -> None:
        self.text, self.path, self.place = text, path, 0
        self.decoder = json.JSONDecoder()
        self._counted = 0
        self._line = 1

    def line(self) -> int:
        """The line of the present place, which only moves forward."""
        self._line += self.text.count("\n", self._counted, self.place)
        self._counted = self.place
        return self._line

    def next(self) -> str:
        """The next character that is no space; "" at the end."""
        while self.place < len(self.text) and self.text[self.place] in _SPACE:
            self.place += 1
        return self.text[self.place : self.place + 1]

    def take(self, wanted: str) -> str:
        """Go past one of the characters that are wanted here; DataError if there is another."""
        found = self.next()
        if not found or found not in wanted:
            ends = "the file ends too early: is it cut off?" if not found else f"found {found!r}"
            raise DataError(f"not valid JSON: expected {' or '.join(wanted)}, {ends}", file=self.path, line=self.line())
        self.place += 1
        return found

    def value(self) -> Any:
        """The value that starts here."""
        self.next()
        start = self.line()
        try:
            value, self.place = self.decoder.raw_decode(self.text, self.place)
        except json.JSONDecodeError as error:
            cut = "; is the file cut off?" if error.pos >= len(self.text) - 1 or "Unterminated" in error.msg else ""
            raise DataError(f"not valid JSON ({error.msg}){cut}", file=self.path, line=error.lineno) from None
        except (ValueError, RecursionError) as error:
            raise DataError(f"not JSON that can be read ({str(error)[:100]})", file=self.path, line=start) from None
        return value


def _items(text: str, path: str) -> Iterator[tuple[Any, int]]:
    """The items of a list, or of the list called `data` in an object, with their lines."""
    reader = _Reader(text, path)
    opened = reader.next()
    if opened == "[":
        yield from _list(reader)
    elif opened == "{":
        yield from _data(reader)
    else:
        reader.take("[{")
    if reader.next():
        raise DataError(
            f"something follows the end of the JSON value ({shown(text[reader.place : reader.place + 20])}); "
            "if there is an object a line, call the file .jsonl",
            file=path,
            line=reader.line(),
        )


def _list(reader: _Reader) -> Iterator[tuple[Any, int]]:
    reader.take("[")
    if reader.next() == "]":
        reader.take("]")
        return
    more = True
    while more:
        reader.next()
        line = reader.line()
        yield reader.value(), line
        more = reader.take(",]") == ","


def _data(reader: _Reader) -> Iterator[tuple[Any, int]]:
    reader.take("{")
    keys: list[str] = []
    more = reader.next() != "}"
    if not more:
        reader.take("}")
    while more:
        reader.next()
        key = reader.value()
        keys.append(str(key))
        reader.take(":")
        if key == "data" and reader.next() == "[":
            yield from _list(reader)
        else:
            reader.value()
        more = reader.take(",}") == ","
    if "data" not in keys:
        raise DataError(
            f"expected a list of objects, or an object with such a list in 'data'; found an object with "
            f"{', '.join(keys[:5]) or 'nothing'}",
            file=reader.path,
        )
