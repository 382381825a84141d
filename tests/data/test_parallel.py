"""Pairs of sentences from files of every kind, and what is said where they are wrong."""

from __future__ import annotations

import gzip
import io
import json
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unmask.data.parallel import Noted, Pair, ParallelText, read_pairs
from unmask.data.parallel_columns import PairColumns
from unmask.errors import DataError, SettingsError, UserError

PAIRS = [("Hello.", "Hallo."), ("The cat, black", "Die Katze, schwarz"), ("今天很好。", "Heute ist's schön.")]
EXPECTED = [Pair(source, target, line) for line, (source, target) in enumerate(PAIRS, 1)]


def write(path: Path, content: str | bytes) -> Path:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def two(folder: Path, source: str | bytes, target: str | bytes) -> list[Path]:
    return [write(folder / "a.en", source), write(folder / "a.de", target)]


def sides(place: int, rows: list[tuple[str, str]] = PAIRS) -> str:
    return "".join(row[place] + "\n" for row in rows)


def test_two_files(tmp_path: Path) -> None:
    files = two(tmp_path, sides(0), sides(1))
    found = read_pairs(files)
    assert list(found) == EXPECTED
    assert list(found) == EXPECTED  # read anew
    assert found.said == (f"source is {files[0]}, target is {files[1]}, line by line",)
    assert found.empty == Noted()
    swapped = read_pairs(files, swap=True)
    assert list(swapped) == [Pair(target, source, line) for source, target, line in EXPECTED]
    assert swapped.said == (f"source is {files[1]}, target is {files[0]}, line by line",)


def test_two_files_of_any_writing(tmp_path: Path) -> None:
    plain = two(tmp_path, "\ufeff" + sides(0).replace("\n", "\r\n"), sides(1).removesuffix("\n"))
    assert list(read_pairs(plain)) == EXPECTED
    packed = [tmp_path / "b.en.gz", tmp_path / "b.de.gz"]
    for place, path in enumerate(packed):
        path.write_bytes(gzip.compress(sides(place).encode()))
    assert list(read_pairs(packed)) == EXPECTED
    chinese = two(tmp_path, "你好。\n再见。\n".encode("gb18030"), "Hello.\nGoodbye.\n".encode("gb18030"))
    assert [*read_pairs(chinese, encoding="gb18030")][1] == Pair("再见。", "Goodbye.", 2)
    with pytest.raises(DataError, match=r"a\.en, line 1: .*it looks like GB18030"):
        list(read_pairs(chinese))


def test_a_line_ends_where_other_programs_think_so(tmp_path: Path) -> None:
    """Only a line feed ends a line: a line separator or a form feed inside a text must not shift what follows."""
    strange = "one\u2028still one\x0c\x85and \x1cone\ntwo\n"
    assert [pair.line for pair in read_pairs(two(tmp_path, strange, "eins\nzwei\n"))] == [1, 2]


def test_one_side_from_standard_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(sides(0).encode())))
    assert list(read_pairs(["-", str(two(tmp_path, "", sides(1))[1])])) == EXPECTED


def csv(names: str) -> str:
    return f"{names}\n" + "".join(f'"{source}","{target}"\n' for source, target in PAIRS)


def tsv(*rows: tuple[str, ...]) -> str:
    return "".join("\t".join(row) + "\n" for row in rows)


def jsonl(rows: list[Any]) -> str:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def as_objects(source: str, target: str) -> list[dict[str, str]]:
    return [{source: first, target: second} for first, second in PAIRS]


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.tsv", tsv(("source", "target"), *PAIRS), "source is column 'source', target is column 'target' (by name)"),
        ("a.tsv", tsv(("en", "de"), *PAIRS), "source is column 'en', target is column 'de' (by name)"),
        ("a.tsv", tsv(("zh-CN", "pt_BR"), *PAIRS), "source is column 'zh-CN', target is column 'pt_BR' (by name)"),
        ("a.tsv", tsv(("text_en", "text_zh"), *PAIRS), "source is column 'text_en', target is column 'text_zh'"),
        ("a.tsv", tsv(("English", "German"), *PAIRS), "source is column 'English', target is column 'German'"),
        ("a.tsv", tsv(("原文", "译文"), *PAIRS), "source is column '原文', target is column '译文'"),
        ("a.txt", tsv(("src", "tgt"), *PAIRS), "source is column 'src', target is column 'tgt' (by name)"),
        ("a.csv", csv("eng,deu"), "source is column 'eng', target is column 'deu' (by name)"),
        ("a.csv", csv("text,translation"), "source is column 'text', target is column 'translation' (by name)"),
        ("a.csv.gz", csv("SRC,TGT"), "source is column 'SRC', target is column 'TGT' (by name)"),
        ("a.jsonl", jsonl(as_objects("src", "tgt")), "source is column 'src', target is column 'tgt' (by name)"),
        ("a.json", json.dumps(as_objects("en", "de"), indent=1), "source is column 'en', target is column 'de'"),
    ],
)
def test_tables_with_names(tmp_path: Path, name: str, content: str, said: str) -> None:
    path = write(tmp_path / name, gzip.compress(content.encode()) if name.endswith(".gz") else content)
    found = read_pairs([path])
    assert [(pair.source, pair.target) for pair in found] == PAIRS
    assert found.said[-1].startswith(said)
    lines = [pair.line for pair in found]
    assert lines == ([1, 2, 3] if name == "a.jsonl" else [2, 6, 10] if name == "a.json" else [2, 3, 4])
    swapped = read_pairs([path], swap=True)
    assert [(pair.target, pair.source) for pair in swapped] == PAIRS
    assert "swapped" in swapped.said[-1]


@pytest.mark.parametrize("name", ["a.tsv", "a.txt"])
def test_tabs_without_names(tmp_path: Path, name: str) -> None:
    """As Tatoeba: a text, its translation, and whose they are."""
    rows = [(*pair, "CC-BY 2.0 (France) #1 & #2") for pair in PAIRS]
    found = read_pairs([write(tmp_path / name, tsv(*rows))])
    assert list(found) == EXPECTED
    assert found.said[-1] == "source is column 1, target is column 2 (by their place); not used: column 3"
    assert found.said[0].startswith("no header was recognised")
    with_numbers = [("1276", source, "2481", target) for source, target in PAIRS]
    found = read_pairs([write(tmp_path / name, tsv(*with_numbers))])
    assert list(found) == EXPECTED
    assert "source is column 2, target is column 4 (by their place); not used: column 1, column 3" in found.said


def test_a_first_row_of_words_is_no_header(tmp_path: Path) -> None:
    for first in (("Message", "Nachricht"), ("no", "nein"), ("title", "Titel")):
        found = list(read_pairs([write(tmp_path / "a.tsv", tsv(first, *PAIRS))]))
        assert (found[0].source, found[0].target) == first
    path = write(tmp_path / "a.tsv", tsv(("es", "it"), *PAIRS))
    assert len(list(read_pairs([path]))) == 3
    assert len(list(read_pairs([path], header=False))) == 4
    path = write(tmp_path / "a.tsv", tsv(("foo", "bar"), *PAIRS))
    assert len(list(read_pairs([path]))) == 4
    with pytest.raises(DataError, match="which columns are source and target cannot be told; its columns are foo "):
        read_pairs([path], header=True)


def test_columns_as_the_user_says(tmp_path: Path) -> None:
    rows = [(*pair, "Bonjour") for pair in PAIRS]
    path = write(tmp_path / "a.tsv", tsv(("en", "de", "fr"), *rows))
    with pytest.raises(DataError, match=r"a\.tsv: en, de, fr could each be meant; .* --columns source=…,target=…"):
        read_pairs([path])
    found = read_pairs([path], columns="source=de,target=fr")
    assert next(iter(found)) == Pair("Hallo.", "Bonjour", 2)
    assert found.said[-1] == "source is column 'de', target is column 'fr' (as you said); not used: en"
    assert next(iter(read_pairs([path], columns=PairColumns(source="3", target="EN")))) == Pair("Bonjour", "Hello.", 2)
    assert next(iter(read_pairs([path], columns="source=de,target=fr", swap=True))) == Pair("Bonjour", "Hallo.", 2)
    # Names that say nothing are a header where the user says them.
    unknown = write(tmp_path / "b.tsv", tsv(("left", "right"), *PAIRS))
    assert next(iter(read_pairs([unknown], columns="source=right,target=left"))) == Pair("Hallo.", "Hello.", 2)
    with pytest.raises(DataError, match=r"has no column 'xyz' for the target; its columns are en \('Hello.'\)"):
        read_pairs([path], columns="source=de,target=xyz")
    with pytest.raises(DataError, match=r"has no column 'source_txt' for the source; did you mean source_text "):
        read_pairs(
            [write(tmp_path / "c.csv", csv("source_text,target_text"))], columns="source=source_txt,target=target_text"
        )
    with pytest.raises(DataError, match="'de' cannot be source and target at once"):
        read_pairs([path], columns="source=de,target=2")
    for wrong, said in (("de,fr", "names no column"), ("source=de", "target"), ("source=a,tarjet=b", "tarjet")):
        with pytest.raises(SettingsError, match=said):
            read_pairs([path], columns=wrong)


def test_an_id_is_no_indonesian(tmp_path: Path) -> None:
    rows = [{"id": number, "en": source, "de": target} for number, (source, target) in enumerate(PAIRS)]
    found = read_pairs([write(tmp_path / "a.jsonl", jsonl(rows))])
    assert list(found) == EXPECTED
    assert found.said[-1].endswith("(by name); not used: id")
    found = read_pairs([write(tmp_path / "a.jsonl", jsonl(as_objects("id", "en")))])
    assert list(found) == EXPECTED


def test_objects_of_languages_as_on_the_hub(tmp_path: Path) -> None:
    rows = [{"id": str(number), "translation": item} for number, item in enumerate(as_objects("en", "de"))]
    path = write(tmp_path / "a.jsonl", jsonl(rows))
    found = read_pairs([path])
    assert list(found) == EXPECTED
    assert found.said == (
        "each translation holds the languages en, de",
        "source is column 'en', target is column 'de' (by name)",
    )
    assert next(iter(read_pairs([path], columns="source=de,target=en"))) == Pair("Hallo.", "Hello.", 1)
    # An object whose languages stand the other way round, or one of which is missing, moves nothing.
    rows[1]["translation"] = {"de": PAIRS[1][1], "en": PAIRS[1][0]}  # type: ignore[assignment]
    rows.append({"id": "3", "translation": {"en": "alone"}})
    found = read_pairs([write(path, jsonl(rows))])
    assert list(found) == EXPECTED
    assert found.empty == Noted(1, (4,))
    many = [{"translation": {"en": "a", "de": "b", "fr": "c"}}]
    with pytest.raises(DataError, match="en, de, fr could each be meant"):
        read_pairs([write(path, jsonl(many))])
    with pytest.raises(DataError, match="line 2: translation must be an object with a text for each language but is 5"):
        read_pairs([write(path, jsonl([rows[0], {"translation": 5}]))])


def test_parquet(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "a.parquet"
    parquet.write_table(pyarrow.Table.from_pylist(as_objects("en", "de")), path)
    assert list(read_pairs([path])) == EXPECTED
    nested = [{"translation": item} for item in as_objects("en", "de")]
    parquet.write_table(pyarrow.Table.from_pylist(nested), path)
    assert list(read_pairs([path])) == EXPECTED


def test_empty_sides_are_left_out_and_counted(tmp_path: Path) -> None:
    found = read_pairs(two(tmp_path, "a\n\nc\n \u3000\ne\n", "A\nB\n\n\nE\n"))
    assert [pair.line for pair in found] == [1, 5]
    assert found.empty == Noted(3, (2, 3, 4))
    assert str(found.empty) == "3 pairs (lines 2, 3, 4)"
    assert [pair.line for pair in found] == [1, 5]
    assert found.empty.count == 3  # not counted twice
    many = read_pairs(two(tmp_path, "a\n" + "\n" * 100, "A\n" * 101))
    assert len(list(many)) == 1
    assert (many.empty.count, len(many.empty.lines)) == (100, 20)
    assert str(many.empty) == "100 pairs (lines 2, 3, 4 …)"
    rows = jsonl([{"en": "a", "de": None}, {"en": "a", "de": "b"}, {"en": "a"}])
    table = read_pairs([write(tmp_path / "a.jsonl", rows)])
    assert list(table) == [Pair("a", "b", 2)]
    assert table.empty == Noted(2, (1, 3))
    assert str(Noted(1, (7,))) == "1 pair (line 7)"


Reader = Callable[[Path], ParallelText]


def beside(other: str | bytes) -> Reader:
    """Reads a file as the source of another."""
    return lambda path: read_pairs([path, write(path.with_name("other.de"), other)])


def alone(path: Path) -> ParallelText:
    return read_pairs([path])


OK = "a b\tc d\ne f\tg h\n"
WRONG: list[tuple[str, str, str | bytes | None, Reader, int | None, str]] = [
    ("shorter", "a.en", "a\nb\n", beside("a\nb\nc\nd\n"), 2, "ends after 2 lines, but"),
    ("one line", "a.en", "a\n", beside("a\nb\n"), 1, "ends after 1 line, but"),
    ("bad UTF-8", "a.en", b"fine\ncaf\xe9 noir\n", beside("x\ny\n"), 2, "not UTF-8"),
    ("zero byte", "a.en", b"fine\n\0\0\n", beside("x\ny\n"), 2, "has a zero byte"),
    ("UTF-16", "a.en", "fine\n".encode("utf-16"), beside("x\n"), None, "is UTF-16"),
    ("an empty side", "a.en", "", beside("x\n"), None, "is empty"),
    ("only blank lines", "a.en", "\n\n", beside("x\ny\n"), None, "no pair with a text on both sides"),
    ("broken gzip", "a.en.gz", b"\x1f\x8b\x08 no", beside("x\n"), 1, "cannot be read to its end"),
    ("a folder", "a.en", None, beside("x\n"), None, "is a folder"),
    ("two tables", "a.tsv", OK, beside("x\n"), None, "give one table alone"),
    ("plain text alone", "a.en", "a\n", alone, None, "give two files of plain text, or one table"),
    ("a folder alone", "a.en", None, alone, None, "is a folder"),
    ("one column", "a.tsv", "a b\nc d\n", alone, None, "put a tab between source and target, or give two files"),
    ("one column of text", "a.txt", "a, b\nc, d\n", alone, None, "has one column, but a pair needs two"),
    ("one key", "a.jsonl", '{"en": "x"}\n', alone, None, "has one column"),
    ("labels", "a.tsv", "sentence\tlabel\ngood\t1\nbad\t0\n", alone, None, "source and target cannot be told"),
    ("labels without names", "a.tsv", "good\t1\nbad\t0\n", alone, None, "fewer than two of its columns hold text"),
    ("names that say nothing", "a.jsonl", '{"x": "a", "y": "b"}', alone, None, "--columns source=…,target=…"),
    ("ragged, too many", "a.tsv", OK + "x\ty\tz\n", alone, 3, "has 3 cells but 2 were expected"),
    ("ragged, too few", "a.tsv", OK + "alone\n", alone, 3, "has 1 cell but 2 were expected"),
    ("ragged csv", "a.csv", "en,de\na,b\nHello, you,x\n", alone, 3, "must stand in quotes"),
    ("unclosed quote", "a.csv", 'en,de\na,b\n"never,x\n', alone, 3, "never closed"),
    ("bad UTF-8 in a table", "a.tsv", OK.encode() + b"caf\xe9\tx\n", alone, 3, "not UTF-8"),
    ("zero byte in a table", "a.tsv", OK.encode() + b"a\0\tx\n", alone, 3, "has a zero byte"),
    ("empty table", "a.tsv", "", alone, None, "is empty"),
    ("empty lines", "a.jsonl", "\n\n", alone, None, "is empty"),
    ("header only", "a.csv", "source,target\n", alone, None, "has a header but no rows"),
    ("twice the same name", "a.csv", "en,de,en\na,b,c\n", alone, 1, "two columns are called 'en'"),
    ("all empty", "a.csv", "en,de\na,\nb,\n", alone, None, "no pair with a text on both sides"),
    ("not JSON", "a.jsonl", '{"en": "a", "de": "b"}\n{"en": \n', alone, 2, "not valid JSON"),
    ("no text", "a.jsonl", '{"en": "a", "de": "b"}\n{"en": 5, "de": "b"}\n', alone, 2, "source must be text but is 5"),
    ("a list", "a.jsonl", '{"en": "a", "de": ["b"]}\n', alone, 1, "target must be text but is ['b']"),
    ("half a character", "a.jsonl", '{"en": "a", "de": "\\ud83d"}\n', alone, 1, "half a character (U+D83D)"),
    ("a zero in JSON", "a.jsonl", '{"en": "a\\u0000", "de": "b"}\n', alone, 1, "source has a zero byte"),
    ("Excel", "a.xlsx", b"PK\3\4", alone, None, "give two files of plain text, or one table"),
]


@pytest.mark.parametrize(
    ("name", "content", "reader", "line", "words"), [case[1:] for case in WRONG], ids=[c[0] for c in WRONG]
)
def test_what_is_wrong_is_one_sentence_with_file_and_line(
    tmp_path: Path, name: str, content: str | bytes | None, reader: Reader, line: int | None, words: str
) -> None:
    path = tmp_path / name
    path.mkdir() if content is None else write(path, content)
    with pytest.raises(DataError) as caught:
        list(reader(path))
    assert words in str(caught.value)
    assert caught.value.file == path
    assert caught.value.line == line
    assert "\n" not in str(caught.value)


def test_other_numbers_of_lines_are_told_from_both_ends(tmp_path: Path) -> None:
    files = two(tmp_path, "a\nb\nc\nd\n", "a\nb\n")
    with pytest.raises(DataError) as caught:
        list(read_pairs(files))
    assert str(caught.value) == (
        f"{files[1]}, line 2: ends after 2 lines, but {files[0]} has 4, and line by line they must belong together; "
        "find the line that is missing or was broken in two"
    )


def test_files_that_cannot_be_meant(tmp_path: Path) -> None:
    files = two(tmp_path, "a\n", "b\n")
    with pytest.raises(DataError, match=r"none\.en: no such file"):
        read_pairs([tmp_path / "none.en"])
    with pytest.raises(DataError, match=r"none\.tsv: no such file"):
        read_pairs([tmp_path / "none.tsv"])
    with pytest.raises(DataError, match=r"none\.de: no such file"):
        read_pairs([files[0], tmp_path / "none.de"])
    with pytest.raises(UserError, match="is given for both sides"):
        read_pairs([files[0], files[0]])
    for wrong in ([], [*files, files[0]]):
        with pytest.raises(UserError, match=f"cannot be read from {len(wrong)} files; give two files"):
            read_pairs(wrong)
    with pytest.raises(UserError, match="plain text, which has no columns; leave out --columns"):
        read_pairs(files, columns="source=a,target=b")
    with pytest.raises(SettingsError, match="encoding is utf-8 or gb18030, given 'latin-1'"):
        read_pairs(files, encoding="latin-1")
    with pytest.raises(UserError, match="hub:NAME:SPLIT"):
        read_pairs(["hub:wmt"])
    assert len(list(read_pairs(str(write(tmp_path / "a.tsv", OK))))) == 2  # one file need not be a list


LINE = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\n\r\t\0"), min_size=1, max_size=12)
SIDE = LINE.filter(lambda text: text.strip() != "" and not text.startswith("\ufeff"))


@given(rows=st.lists(st.tuples(SIDE, SIDE), min_size=1, max_size=8))
def test_what_was_written_is_read(tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[str, str]]) -> None:
    folder = tmp_path_factory.mktemp("pairs")
    expected = [Pair(*row, line) for line, row in enumerate(rows, 1)]
    assert list(read_pairs(two(folder, sides(0, rows), sides(1, rows)))) == expected
    objects = jsonl([{"en": source, "de": target} for source, target in rows])
    assert list(read_pairs([write(folder / "a.jsonl", objects)])) == expected


def test_pairs_are_not_held(tmp_path: Path) -> None:
    number = 20_000
    files = two(tmp_path, "".join(f"a sentence with the number {n}\n" for n in range(number)), "ein Satz\n" * number)
    tracemalloc.start()
    try:
        assert sum(1 for _ in read_pairs(files)) == number
        assert tracemalloc.get_traced_memory()[1] < 2_000_000
    finally:
        tracemalloc.stop()


def test_real_files(data_folder: Path) -> None:
    folder = data_folder / "multi30k_en-de"
    found = list(read_pairs([folder / "val.en", folder / "val.de"]))
    assert len(found) == 1014
    assert found[-1].line == 1014
    chinese = read_pairs([data_folder / "tatoeba_cmn-eng" / "cmn.txt"], swap=True)
    first, *rest = list(chinese)
    assert (first, len(rest)) == (Pair("嗨。", "Hi.", 1), 29_154)
    assert "not used: column 3" in chinese.said[-1]
    assert sum(1 for _ in read_pairs([data_folder / "tatoeba_spa-eng" / "spa.txt"])) == 118_964
