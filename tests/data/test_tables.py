from __future__ import annotations

import gzip
import json
import sys
import tracemalloc
import types
from pathlib import Path

import pytest

from unmask.data.rows import RowError
from unmask.data.tables import Table, open_table
from unmask.errors import DataError, FetchError, UserError


def file(tmp_path: Path, name: str, content: str | bytes) -> Path:
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def cells(table: Table) -> list[tuple[object, ...]]:
    return [row.cells for row in table.rows()]


def lines(table: Table) -> list[int]:
    return [row.line for row in table.rows()]


def test_quoted_csv_with_newlines_knows_where_each_row_starts(tmp_path: Path) -> None:
    path = file(tmp_path, "a.csv", 'text,label\r\n"one, two\r\nthree",1\r\n"say ""hi""",0\r\n\r\nplain,1\r\n')
    table = open_table(path)
    assert table.columns == ("text", "label")
    assert cells(table) == [("one, two\nthree", "1"), ('say "hi"', "0"), ("plain", "1")]
    assert lines(table) == [2, 4, 6]
    assert table.said[0] == "line 1 names the columns: text, label"


@pytest.mark.parametrize("mark", [",", ";", "\t"])
@pytest.mark.parametrize("name", ["a.csv", "a.txt"])
def test_delimiters_are_recognised(tmp_path: Path, mark: str, name: str) -> None:
    other = "; and " if mark == "," else ", and "
    rows = [("text", "label"), *((f"a{other}b {n}", str(n % 2)) for n in range(9))]
    table = open_table(file(tmp_path, name, "".join(f"{mark.join(row)}\n" for row in rows)))
    assert (table.columns, cells(table)) == (rows[0], rows[1:])
    assert any("separated by" in said for said in table.said)


def test_tsv_quotes_belong_to_the_text_unless_they_are_written_as_csv_does(tmp_path: Path) -> None:
    bare = file(tmp_path, "bare.tsv", 'sentence\tlabel\n"It" was\t1\n" he said\t0\n"whole"\t1\n')
    assert cells(open_table(bare)) == [('"It" was', "1"), ('" he said', "0"), ('"whole"', "1")]
    doubled = file(tmp_path, "doubled.tsv", 'sentence\tlabel\n"say ""hi"""\t1\nplain\t0\n')
    assert cells(open_table(doubled)) == [('say "hi"', "1"), ("plain", "0")]
    inside = file(tmp_path, "inside.tsv", 'sentence\tlabel\n"a\tb"\t1\n"two\nlines"\t0\n')
    assert cells(open_table(inside)) == [("a\tb", "1"), ("two\nlines", "0")]
    assert lines(open_table(inside)) == [2, 3]


def test_plain_text_with_commas_is_one_column(tmp_path: Path) -> None:
    path = file(tmp_path, "a.txt", "Well, yes\nNo, never\n\nOh, dear\n")
    table = open_table(path)
    assert cells(table) == [("Well, yes",), ("No, never",), ("",), ("Oh, dear",)]
    assert table.said == ("no header: each line is a text",)


@pytest.mark.parametrize(
    ("content", "header"),
    [
        ("文本,标签\n很好,1\n不好,0\n", True),
        ("good film,pos\nbad film,neg\nfine film,pos\nugly film,neg\n", False),
        # A label may be called like a column: it comes again.
        ("how are you,question\nI am fine,answer\nwho is it,question\nit is me,answer\n", False),
        # Names that nobody knows, over numbers.
        ("bemerkung,punkte\nsehr gut,1\nschlecht,2\nna ja,3\nok,1\n", True),
        ("ok go,7\nyes or no,1\nwell,3\nno,2\nmore,1\n", False),
        (",text,label\n0,a b,1\n1,c d,0\n", True),
    ],
)
def test_headers_are_recognised(tmp_path: Path, content: str, header: bool) -> None:
    table = open_table(file(tmp_path, "a.csv", content))
    rows = content.count("\n")
    assert len(cells(table)) == rows - header
    assert ("names the columns" in table.said[0]) == header
    other = open_table(file(tmp_path, "b.csv", content), header=not header)
    assert len(cells(other)) == rows - (not header)


def test_a_column_without_a_name_gets_one(tmp_path: Path) -> None:
    table = open_table(file(tmp_path, "a.csv", ",text,label\n0,a b,1\n"))
    assert table.columns == ("column 1", "text", "label")
    assert any("has no name" in said for said in table.said)


def test_a_ragged_row_names_line_and_widths_and_can_be_passed_over(tmp_path: Path) -> None:
    path = file(tmp_path, "a.csv", 'text,label\n"x\ny",1\na, b,1\nc,0\nd\n')
    table = open_table(path)
    with pytest.raises(DataError, match=r"a\.csv, line 4: has 3 cells but 2 were expected.*must stand in quotes"):
        list(table.rows())
    errors: list[RowError] = []
    assert [row.cells for row in table.rows(errors.append)] == [("x\ny", "1"), ("c", "0")]
    assert [(error.line, error.kind) for error in errors] == [(4, "ragged"), (6, "ragged")]


def test_jsonl_has_all_keys_of_its_first_rows_and_null_for_the_missing(tmp_path: Path) -> None:
    path = file(tmp_path, "a.jsonl", '{"text": "a"}\n\n{"label": 1, "text": "b"}\n')
    table = open_table(path)
    assert table.columns == ("text", "label")
    assert (cells(table), lines(table)) == ([("a", None), ("b", 1)], [1, 3])


@pytest.mark.parametrize("wrap", ["[%s]", '{"version": {"data": [1]}, "data": [%s], "n": 2}', "%s"])
def test_json_in_its_three_shapes(tmp_path: Path, wrap: str) -> None:
    first, second = '{"text": "a, [{\\"", "label": "x"}', '{"text": "b", "label": "y"}'
    lined = wrap == "%s"
    body = f"{first}\n{second}\n" if lined else "\n" + first + ",\n\n  " + second + "\n"
    table = open_table(file(tmp_path, "a.json", wrap % body))
    assert cells(table) == [('a, [{"', "x"), ("b", "y")]
    assert lines(table) == ([1, 2] if lined else [2, 4])


def test_json_that_is_cut_off_says_so_and_where(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"line 3: .*cut off"):
        open_table(file(tmp_path, "a.json", '[\n{"text": "a"},\n{"text": "b'))
    with pytest.raises(DataError, match=r"line 2: .*cut off"):
        open_table(file(tmp_path, "b.json", '[\n{"text": "a"}'))


def test_gzip_of_all_text_formats(tmp_path: Path) -> None:
    for name, content in {
        "a.csv.gz": "text,label\na b,1\n",
        "a.tsv.gz": "text\tlabel\na b\t1\n",
        "a.jsonl.gz": '{"text": "a b", "label": "1"}\n',
        "a.json.gz": '[{"text": "a b", "label": "1"}]',
    }.items():
        assert cells(open_table(file(tmp_path, name, gzip.compress(content.encode())))) == [("a b", "1")]


def test_parquet_equals_what_was_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "a.parquet"
    parquet.write_table(arrow.table({"text": ["a", "b"], "label": [1, None]}), path)
    table = open_table(path)
    assert (table.columns, cells(table), lines(table)) == (("text", "label"), [("a", 1), ("b", None)], [1, 2])
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(DataError, match="need the package pyarrow"):
        open_table(path)


class FakeClass:
    def int2str(self, value: int) -> str:
        return ["neg", "pos"][value]


class FakeSet:
    column_names = ("text", "label", "tags")
    features = {"text": None, "label": FakeClass(), "tags": types.SimpleNamespace(feature=FakeClass())}  # noqa: RUF012

    def __iter__(self):  # type: ignore[no-untyped-def]
        yield {"text": "a", "label": 1, "tags": [0, 1]}
        yield {"text": "b", "label": -1, "tags": []}


def test_a_set_on_the_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[object, ...]] = []

    def load_dataset(name: str, config: str | None, *, split: str) -> FakeSet:
        asked.append((name, config, split))
        if name == "nothing":
            raise FileNotFoundError("no such\nset")
        if name == "offline":
            raise ConnectionError("no network")
        return FakeSet()

    monkeypatch.setitem(sys.modules, "datasets", types.SimpleNamespace(load_dataset=load_dataset))
    table = open_table("hub:glue:sst2:train")
    assert cells(table) == [("a", "pos", ["neg", "pos"]), ("b", None, [])]
    open_table("hub:org/imdb:test")
    assert asked == [("glue", "sst2", "train"), ("org/imdb", None, "test")]
    with pytest.raises(UserError, match="hub:NAME:SPLIT"):
        open_table("hub:glue")
    with pytest.raises(UserError, match=r"hub:nothing:train: cannot be loaded \(no such set\)"):
        open_table("hub:nothing:train")
    with pytest.raises(FetchError, match="no network"):
        open_table("hub:offline:train")
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(UserError, match="pip install datasets"):
        open_table("hub:glue:sst2:train")


@pytest.mark.parametrize("name", ["a.csv", "a.tsv", "a.jsonl"])
def test_memory_does_not_grow_with_the_file(tmp_path: Path, name: str) -> None:
    row = (
        json.dumps({"text": "x" * 1000, "label": "1"})
        if name == "a.jsonl"
        else "x" * 1000 + ",\t"[name == "a.tsv"] + "1"
    )
    head = "" if name == "a.jsonl" else "text,label\n".replace(",", ",\t"[name == "a.tsv"])
    path = file(tmp_path, name, head + f"{row}\n" * 20_000)
    table = open_table(path)
    tracemalloc.start()
    count = sum(1 for _ in table.rows())
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert count == 20_000
    assert peak < 3e6  # of 20 MB


@pytest.mark.parametrize("name", ["a.csv", "a.tsv", "a.txt", "a.jsonl", "a.json"])
def test_a_line_of_ten_megabytes_is_read(tmp_path: Path, name: str) -> None:
    long = "word " * 2_000_000
    content = {
        "a.csv": f'text,label\n"{long}",1\n',
        "a.tsv": f"text\tlabel\n{long}\t1\n",
        "a.txt": f"text\tlabel\n{long}\t1\n",
        "a.jsonl": json.dumps({"text": long, "label": "1"}),
        "a.json": json.dumps([{"text": long, "label": "1"}]),
    }[name]
    assert cells(open_table(file(tmp_path, name, content))) == [(long, "1")]


def test_gb18030_is_read_if_asked_for(tmp_path: Path) -> None:
    path = file(tmp_path, "a.csv", "文本,标签\n今天天气很好,好\n".encode("gb18030"))
    with pytest.raises(DataError, match="looks like GB18030"):
        open_table(path)
    assert cells(open_table(path, encoding="gb18030")) == [("今天天气很好", "好")]


@pytest.mark.parametrize(
    ("name", "rows", "width", "header"),
    [
        ("glue/CoLA/train.tsv", 8551, 4, False),
        ("glue/MRPC/train.tsv", 3667, 5, True),
        ("glue/SST-2/train.tsv", 67349, 2, True),
        ("glue/STS-B/train.tsv", 5749, 10, True),
        ("glue/QNLI/dev.tsv", 5463, 4, True),
        ("afqmc/train.txt", 34334, 3, False),
        ("thucnews_titles/dev.txt", 10000, 2, False),
        ("tnews/train.tsv", 53360, 2, False),
        ("chnsenticorp/train.tsv", 9600, 2, True),
        ("imdb/train.tsv.gz", 25000, 3, False),
        ("tnews/dev.json", 10000, 4, None),
    ],
)
def test_real_files(data_folder: Path, name: str, rows: int, width: int, header: bool | None) -> None:
    table = open_table(data_folder / name)
    assert (sum(1 for _ in table.rows()), len(table.columns)) == (rows, width)
    if header is not None:
        assert ("names the columns" in table.said[0]) == header
