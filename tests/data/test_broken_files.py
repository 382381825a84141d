"""Files as people have them: each ends in one sentence that says what is wrong and where, and never in a traceback."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from unmask.data.doctor import DoctorSettings, examine
from unmask.data.labelled import iter_texts, read_labelled
from unmask.data.questions import read_questions
from unmask.data.tagged import read_tagged
from unmask.errors import DataError

Reader = Callable[[Path], object]
OK = "text,label\ngood film,pos\nbad film,neg\n"
ROW = '{"text": "a", "label": "x"}\n'
SQUAD = {
    "data": [{"paragraphs": [{"context": "Ada met Bob.", "qas": [{"id": "q", "question": "who?", "answers": []}]}]}]
}


def trainable(path: Path) -> None:
    read_labelled(path).check_trainable()


def regression(path: Path) -> None:
    read_labelled(path, problem="regression")


def unreadable_dev(path: Path) -> None:
    read_labelled(path).check_labels(("pos", "neg"))


#: name of the file, its content (None for a folder, "" with no name for no file), who reads it, line, words said
CASES: list[tuple[str, str, bytes | str | None, Reader, int | None, str]] = [
    ("no columns that are known", "a.csv", "alpha,beta\na b,c d\ne f,g h\n", read_labelled, None, "--columns text="),
    ("no label", "a.jsonl", '{"text": "a"}\n', read_labelled, None, "no column for a label"),
    ("ragged, too many", "a.csv", OK + "fine, I say,pos\n", read_labelled, 4, "has 3 cells but 2 were expected"),
    ("ragged, too few", "a.csv", OK + "alone\n", read_labelled, 4, "has 1 cell but 2 were expected"),
    ("ragged tsv", "a.tsv", "sentence\tlabel\na\t1\nb\tc\t0\n", read_labelled, 3, "must not contain tabs"),
    ("bad UTF-8", "a.csv", OK.encode() + b"caf\xe9 noir,pos\n", read_labelled, 4, "not UTF-8"),
    ("UTF-16", "a.csv", OK.encode("utf-16"), read_labelled, None, "is UTF-16"),
    ("GB18030", "a.csv", "文本,标签\n今天天气很好,好\n".encode("gb18030"), read_labelled, 1, "looks like GB18030"),
    ("empty", "a.csv", "", read_labelled, None, "is empty"),
    ("only blank lines", "a.tsv", "\n\n  \n", read_labelled, None, "is empty"),
    ("empty jsonl", "a.jsonl", "\n", read_labelled, None, "is empty"),
    ("empty json", "a.json", "", read_labelled, None, "is empty"),
    ("an empty list", "a.json", "[]", read_labelled, None, "is empty"),
    ("header only", "a.csv", "text,label\n", read_labelled, None, "has a header but no rows"),
    ("one class", "a.csv", "text,label\na b,x\nc d,x\n", trainable, None, "only the label 'x'"),
    ("all labels missing", "a.csv", "text,label\na b,\nc d,\n", read_labelled, 2, "has no label"),
    ("one label missing", "a.csv", OK + "so so,\n", read_labelled, 4, "has no label"),
    ("a text missing", "a.csv", OK + ",pos\n", read_labelled, 4, "the text is empty"),
    ("label in dev only", "a.csv", OK + "so so,meh\n", unreadable_dev, 4, "the label 'meh' is unknown"),
    ("NaN as a score", "a.csv", "text,score\na,0.5\nb,1.5\nc,NaN\n", regression, 4, "must be a number but is 'NaN'"),
    ("half a letter", "a.jsonl", ROW + '{"text": "\\ud800", "label": 1}', read_labelled, 2, "half a character (U+D8"),
    ("null in labels", "a.jsonl", '{"text": "a", "label": ["x", null]}', read_labelled, 1, "labels is empty"),
    ("label is an object", "a.jsonl", '{"text": "a", "label": {"x": 1}}', read_labelled, 1, "must be one value"),
    ("text is a number", "a.jsonl", '{"text": 5, "label": "x"}', read_labelled, 1, "must be text but is 5"),
    ("zero bytes", "a.csv", OK.encode() + b"\0\0\0\n", read_labelled, 4, "has a zero byte"),
    ("unclosed quote", "a.csv", OK + '"never closed,pos\nmore,neg\n', read_labelled, 4, "never closed"),
    ("quote in quotes", "a.csv", OK + '"say "hi" now",pos\n', read_labelled, 4, "must be doubled"),
    ("old line ends", "a.csv", "text,label\ra b,x\rc d,y\r", read_labelled, None, "line end"),
    ("JSON line cut off", "a.jsonl", ROW + '{"text": "b", "la', read_labelled, 2, "not valid JSON"),
    ("JSON cut off", "a.json", '[{"text": "a",\n "label": "x"},\n{"text": ', read_labelled, 3, "cut off"),
    ("JSON of another shape", "a.json", '{"rows": [1, 2]}', read_labelled, None, "found an object with rows"),
    ("JSON that is a word", "a.json", '"text"', read_labelled, 1, "expected [ or {"),
    ("a list of lists", "a.json", '[["a", "x"]]', read_labelled, 1, "expected an object"),
    ("numbers a line", "a.jsonl", "1\n2\n", read_labelled, 1, "expected an object"),
    ("JSON with something after", "a.json", "[]\n[]", read_labelled, 2, "something follows"),
    ("too deep", "a.jsonl", "[" * 100_000, read_labelled, 1, "not JSON that can be read"),
    ("duplicate header", "a.csv", "text,text,label\na,b,x\nc,d,y\n", read_labelled, 1, "two columns are called 'text'"),
    ("a folder", "a.csv", None, read_labelled, None, "is a folder"),
    ("no file", "none.csv", None, read_labelled, None, "no such file"),
    ("no ending", "train", OK, read_labelled, None, "without an ending"),
    ("a table of Excel", "a.xlsx", b"PK\3\4", read_labelled, None, "save it as .csv"),
    ("JSON lines called csv", "a.csv", ROW, read_labelled, None, "rename it to end in .jsonl"),
    ("gz cut off", "a.csv.gz", gzip.compress(OK.encode() * 99)[:-9], read_labelled, None, "cannot be read to its end"),
    ("gz that is none", "a.csv.gz", OK, read_labelled, 1, "cannot be read to its end"),
    ("Parquet that is none", "a.parquet", OK, read_labelled, None, "not a Parquet file"),
    ("texts of no kind", "a.jsonl", '{"a": "b c", "d": "e f", "g": "h i"}', iter_texts, None, "is the text"),
    ("tag without word", "a.conll", "a O\n\tB-X\n", read_tagged, 2, "but no word"),
    ("word without tag", "a.conll", "a O\nb\n", read_tagged, 2, "has 1 column"),
    ("no tags", "a.jsonl", '{"text": "a b"}\n', read_tagged, None, "has no tags"),
    ("offsets outside", "a.jsonl", '{"text": "a b", "label": [[2, 9, "X"]]}', read_tagged, 1, "lies outside"),
    ("offsets off", "a.json", '[{"text": "a b", "label": {"X": {"b": [[0, 0]]}}}]', read_tagged, 1, "should say 'b'"),
    ("tags too few", "a.jsonl", '{"tokens": ["a", "b"], "tags": ["O"]}', read_tagged, 1, "has 2 tokens but 1 tags"),
    ("SQuAD without data", "a.json", '{"version": "1"}', read_questions, None, "found an object with version"),
    ("SQuAD cut off", "a.json", json.dumps(SQUAD)[:-9], read_questions, 1, "not valid JSON"),
    ("no context", "a.jsonl", '{"question": "who?"}', read_questions, 1, "needs a text in 'context'"),
    ("SQuAD as a table", "a.json", json.dumps(SQUAD), read_labelled, None, "cannot be told"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "content", "read", "line", "words"), [pytest.param(*c[1:], id=c[0]) for c in CASES])
def test_one_sentence_with_the_line(
    tmp_path: Path, name: str, content: bytes | str | None, read: Reader, line: int | None, words: str
) -> None:
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    elif name == "a.csv":
        path.mkdir()
    with pytest.raises(DataError) as caught:
        read(path)
    message = str(caught.value)
    assert words in message
    assert "\n" not in message
    assert len(message.removeprefix(str(path))) < 400
    assert caught.value.file == path
    if line is not None:
        assert caught.value.line == line


#: These ask for what the doctor is not told, or does not need.
_OTHERS = ("no columns that are known", "label in dev only", "texts of no kind")


@pytest.mark.parametrize("case", [case for case in CASES if case[0] not in _OTHERS], ids=lambda case: case[0])
def test_doctor_finds_the_same_and_goes_on(
    tmp_path: Path, case: tuple[str, str, bytes | str | None, Reader, int | None, str]
) -> None:
    what, name, content, read, line, _ = case
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    elif name == "a.csv":
        path.mkdir()
    task = {read_tagged: "tag", read_questions: "qa"}.get(read, "classify")
    problem = "regression" if read is regression else "auto"
    report = examine(path, settings=DoctorSettings(task=task, problem=problem))
    assert report.has_errors
    worst = report.findings[0]
    assert worst.file == str(path)
    if line is not None and what != "duplicate header":
        assert any(line in finding.lines for finding in report.findings if finding.severity == "error")


def test_there_are_enough_of_them() -> None:
    assert len(CASES) >= 35


@pytest.mark.parametrize("name", ["a.csv", "a.tsv", "a.jsonl", "a.conll"])
def test_a_line_of_ten_megabytes_is_no_reason_to_hang(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_text("x" * 10_000_000, encoding="utf-8")
    with pytest.raises(DataError):
        (read_tagged if name == "a.conll" else read_labelled)(path)
