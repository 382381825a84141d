from __future__ import annotations

import gzip
import json
import random
import time
from pathlib import Path
from typing import Any

import pytest

from unmask.data.doctor import DoctorSettings, Finding, Report, examine, fix
from unmask.data.doctor.fix import Fixed
from unmask.data.labelled import read_labelled
from unmask.data.questions import read_questions
from unmask.data.tagged import read_tagged
from unmask.errors import DataError, UserError
from unmask.text import Tokenizer


def table(tmp_path: Path, *rows: tuple[str, str], name: str = "train.tsv") -> Path:
    path = tmp_path / name
    path.write_text("text\tlabel\n" + "".join(f"{text}\t{label}\n" for text, label in rows), encoding="utf-8")
    return path


def many(number: int, label: str, start: int = 0) -> list[tuple[str, str]]:
    return [(f"text number {n} of {label}", label) for n in range(start, start + number)]


def found(report: Report, kind: str) -> list[Finding]:
    return [finding for finding in report.findings if finding.kind == kind]


def one(report: Report, kind: str) -> Finding:
    (finding,) = found(report, kind)
    return finding


def test_a_good_file_has_nothing_to_complain_about(tmp_path: Path) -> None:
    train = table(tmp_path, *many(6, "a"), *many(6, "b"))
    dev = table(tmp_path, *many(6, "a", 100), *many(6, "b", 100), name="dev.tsv")
    report = examine(train, dev)
    assert (report.findings, report.has_errors, report.task) == ([], False, "classify")
    assert report.facts["train"]["labels"] == {"a": 6, "b": 6}
    assert report.facts["dev"]["examples"] == 12
    assert json.loads(json.dumps(report.to_dict()))["facts"] == report.facts


def test_copies_contradictions_and_near_copies(tmp_path: Path) -> None:
    rows = [
        *many(5, "a"),
        *many(5, "b"),
        ("same", "a"),
        ("same", "a"),
        ("same", "b"),
        ("Near  Copy", "a"),
        ("near copy", "a"),
    ]
    report = examine(table(tmp_path, *rows))
    assert one(report, "duplicate").lines == (13,)
    assert "as line 12" in one(report, "duplicate").message
    assert one(report, "conflict").lines == (14,)
    assert "'b', but 'a' on line 12" in one(report, "conflict").message
    assert one(report, "near_duplicate").lines == (16,)
    assert not report.has_errors


def test_leaks_are_found_whatever_case_and_spaces(tmp_path: Path) -> None:
    train = table(tmp_path, *many(9, "a"), *many(9, "b"))
    dev = table(
        tmp_path,
        ("Text number  3 of a", "a"),
        ("new", "b"),
        ("newer", "b"),
        ("text number 4 of b", "b"),
        name="dev.tsv",
    )
    leak = one(examine(train, dev), "leak")
    assert (leak.file, leak.lines, leak.count) == (str(train), (5, 15), 2)
    assert "50.0% of it" in leak.message


def test_labels(tmp_path: Path) -> None:
    train = table(tmp_path, *many(50, "a"), *many(5, "b"), *many(2, "c"))
    dev = table(tmp_path, *many(3, "a", 100), ("x", "d"), ("y", "d"), name="dev.tsv")
    report = examine(train, dev)
    assert "c (2)" in one(report, "rare").message
    assert 'class_weights = "auto"' in one(report, "imbalance").message
    unknown = one(report, "unknown_label")
    assert (unknown.severity, unknown.lines, unknown.file) == ("error", (5, 6), str(dev))
    assert "b, c" in one(report, "unused_label").message
    single = one(examine(table(tmp_path, *many(9, "a"))), "one_class")
    assert single.severity == "error"


def test_numbers(tmp_path: Path) -> None:
    rows = [(f"t {n}", f"{n / 4}") for n in range(9)]
    report = examine(table(tmp_path, *rows))
    assert (report.facts["train"]["problem"], report.findings) == ("regression", [])
    assert report.facts["train"]["numbers"] == {"min": 0.0, "max": 2.0, "mean": 1.0}
    assert one(examine(table(tmp_path, ("a", "1.5"), ("b", "1.5"))), "one_class").severity == "error"


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("lost \ufffd letter", "replacement"),
        ("It was cafÃ© noir", "mojibake"),
        ("donâ€™t", "mojibake"),
        ("ä½\xa0å¥½", "mojibake"),
        ("锟斤拷锟斤拷", "mojibake"),
        ("bell \x07 rings", "control"),
        ("zero\u200bwidth", "invisible"),
        ("one<br />two", "html"),
        ('see <a href="x">this</a>', "html"),
        ("fish &amp; chips", "html"),
        ("A&#32431;B", "html"),
    ],
)
def test_odd_characters(tmp_path: Path, text: str, kind: str) -> None:
    report = examine(table(tmp_path, *many(5, "a"), *many(5, "b"), (text, "a")))
    assert [(finding.kind, finding.lines) for finding in report.findings] == [(kind, (12,))]


@pytest.mark.parametrize(
    "text",
    ["café, naïve, Ünïcode", "a < b and b > c", "<荐书> 推荐", "R&D; AT&T", "你好，世界！", "€ 5 – “good”", "<3 it"],
)
def test_ordinary_characters_are_left_alone(tmp_path: Path, text: str) -> None:
    assert examine(table(tmp_path, *many(5, "a"), *many(5, "b"), (text, "a"))).findings == []


def test_lengths_in_characters_and_in_tokens(tmp_path: Path) -> None:
    train = table(tmp_path, *many(9, "a"), *many(9, "b"), ("word " * 150, "a"))
    report = examine(train)
    facts = report.facts["train"]["lengths"]
    assert (facts["unit"], facts["max"], facts["past_limit"], facts["share_past_limit"]) == (
        "characters",
        750,
        1,
        0.0526,
    )
    assert sum(facts["histogram"].values()) == 19
    assert one(report, "long").severity == "note"
    tokenizer = Tokenizer.from_vocab(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "word", "text"])
    report = examine(train, settings=DoctorSettings(max_length=100), tokenizer=tokenizer)
    facts = report.facts["train"]["lengths"]
    assert (facts["unit"], facts["max"], facts["median"]) == ("tokens", 152, 7)
    assert '"windows"' in one(report, "long").message
    assert one(report, "long").severity == "warning"


def test_an_estimate_is_asked_for_with_the_facts(tmp_path: Path) -> None:
    seen: list[Any] = []

    def estimate(facts: Any) -> dict[str, object]:
        seen.append(facts)
        return {"minutes": 3}

    report = examine(table(tmp_path, *many(5, "a"), *many(5, "b")), estimate=estimate)
    assert report.facts["estimate"] == {"minutes": 3}
    assert seen[0]["examples"] == 10


def test_several_files_are_one_set(tmp_path: Path) -> None:
    first, second = table(tmp_path, *many(5, "a")), table(tmp_path, *many(5, "b"), *many(1, "a"), name="two.tsv")
    report = examine([first, second])
    assert report.facts["train"]["labels"] == {"a": 6, "b": 5}
    copy = one(report, "duplicate")
    assert (copy.file, copy.lines) == (str(second), (7,))
    assert f"{first}, line 2" in copy.message
    with pytest.raises(UserError, match="no file was given"):
        examine([])


def test_tagged_and_questions_are_recognised(tmp_path: Path) -> None:
    tags = tmp_path / "a.conll"
    tags.write_text("a B-X\nb I-X\n\n" * 6 + "c O\nd I-X\n", encoding="utf-8")
    report = examine(tags)
    assert report.task == "tag"
    assert one(report, "scheme").lines == (20,)
    questions = tmp_path / "a.jsonl"
    questions.write_text(question("1", "Bob", 3) + question("2", "Zoe", 0), encoding="utf-8")
    report = examine(questions)
    assert report.task == "qa"
    assert (one(report, "misaligned").lines, one(report, "missing").lines) == ((1,), (2,))


def question(id: str, text: str, start: int) -> str:
    row = {
        "id": id,
        "question": f"{id}?",
        "context": "Ada met Bob",
        "answers": {"text": [text], "answer_start": [start]},
    }
    return json.dumps(row) + "\n"


def test_fix_of_a_table_keeps_the_letters_of_what_stays(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text(
        'text,label\n"one, ""two""\nthree",x\n,x\nfour,\n"one, ""two""\nthree",x\nfive,six,y\nleaked,y\nLast one, y \n',
        encoding="utf-8",
    )
    dev = tmp_path / "dev.csv"
    dev.write_text("text,label\nLEAKED,y\nother,x\n", encoding="utf-8")
    before = path.read_bytes()
    out = tmp_path / "out.csv"
    done = fix(path, out, dev=dev)
    assert out.read_text(encoding="utf-8") == 'text,label\n"one, ""two""\nthree",x\nLast one, y \n'
    assert done.done == {
        "ragged rows dropped": 1,
        "rows without a text dropped": 1,
        "rows without a label dropped": 1,
        "exact copies dropped": 1,
        "rows of the dev set dropped": 1,
    }
    assert done.kept == 2
    assert path.read_bytes() == before
    assert examine(out, dev).findings == [finding for finding in examine(out, dev).findings if finding.kind == "rare"]


def test_fix_of_jsonl_and_gzip(tmp_path: Path) -> None:
    rows = ['{"text": "a",  "label": "x"}', "", '{"text": "a", "label": "x"}', "{broken", '{"text": "b", "label": "y"}']
    path = tmp_path / "a.jsonl"
    path.write_text("\n".join(rows) + "\n", encoding="utf-8")
    done = fix(path, tmp_path / "out.jsonl.gz")
    assert gzip.decompress((tmp_path / "out.jsonl.gz").read_bytes()).decode() == f"{rows[0]}\n{rows[4]}\n"
    assert done.done == {"unreadable rows dropped": 1, "exact copies dropped": 1}


def test_fix_of_json_lists(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    items = [{"text": "a", "label": "x"}, {"text": "a", "label": "x"}, {"text": "b", "label": "y"}]
    path.write_text(json.dumps(items, indent=1), encoding="utf-8")
    fix(path, tmp_path / "out.json")
    assert json.loads((tmp_path / "out.json").read_text(encoding="utf-8")) == [items[0], items[2]]
    path.write_text("[" + json.dumps(items[0]) + ",\n" + json.dumps(items)[1:], encoding="utf-8")
    with pytest.raises(UserError, match="several objects share a line"):
        fix(path, tmp_path / "other.json")
    assert not (tmp_path / "other.json").exists()


def test_items_of_a_list_on_one_line_are_told_by_their_number(tmp_path: Path) -> None:
    items = [{"text": f"text {n}", "label": "xy"[n % 2]} for n in range(8)]
    path = tmp_path / "a.json"
    path.write_text(json.dumps([*items, {"text": "", "label": "x"}, items[3]]), encoding="utf-8")
    with pytest.raises(DataError, match=r"a\.json, item 9: the text is empty"):
        read_labelled(path)
    report = examine([path])
    (empty,) = [found for found in report.findings if found.kind == "empty"]
    assert empty.lines == (9,)
    (copy,) = [found for found in report.findings if found.kind == "duplicate"]
    assert copy.lines == (10,)
    assert "item 4" in copy.message
    assert json.loads(json.dumps(report.to_dict()))["findings"]
    fix(path, tmp_path / "out.json")
    assert json.loads((tmp_path / "out.json").read_text(encoding="utf-8")) == items


def test_fix_of_tags(tmp_path: Path) -> None:
    path = tmp_path / "a.bmes"
    good = "".join(f"a{n} B-X\nb M-X\nc E-X\n\n" for n in range(6))
    path.write_text(good + "c O\nd  M-X\ne E-X\n\nf O\ng\n\nc O\nd  M-X\ne E-X\n", encoding="utf-8")
    done = fix(path, tmp_path / "out.bmes")
    assert (tmp_path / "out.bmes").read_text(encoding="utf-8").rstrip("\n") == good + "c O\nd  B-X\ne E-X"
    assert done.done == {"unreadable rows dropped": 1, "exact copies dropped": 1, "tags repaired": 1}
    assert read_tagged(tmp_path / "out.bmes").broken == []
    tokens = tmp_path / "a.jsonl"
    tokens.write_text(
        '{"tokens": ["a", "b"], "tags": ["B-X", "I-X"]}\n{"tokens": ["c"], "tags": ["I-X"]}\n', encoding="utf-8"
    )
    fix(tokens, tmp_path / "out.jsonl")
    assert read_tagged(tmp_path / "out.jsonl").broken == []


def test_fix_of_questions(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(question("1", "Bob", 3) + question("2", "Zoe", 0), encoding="utf-8")
    assert fix(path, tmp_path / "out.jsonl").done == {"answers moved to where they are": 1}
    again = read_questions(tmp_path / "out.jsonl")
    assert (again.misaligned, len(again.missing)) == ([], 1)
    entries = [
        {"id": "1", "question": "who?", "answers": [{"text": "Bob", "answer_start": 3}]},
        {"id": "2", "question": "who?", "answers": [{"text": "Bob", "answer_start": 8}]},
        {"id": "3", "question": "", "answers": []},
    ]
    nested = tmp_path / "a.json"
    nested.write_text(
        json.dumps({"v": 1, "data": [{"paragraphs": [{"context": "Ada met Bob", "qas": entries}]}]}), encoding="utf-8"
    )
    done = fix(nested, tmp_path / "out.json")
    fixed = json.loads((tmp_path / "out.json").read_text(encoding="utf-8"))
    assert fixed["v"] == 1
    assert fixed["data"][0]["paragraphs"][0]["qas"] == [
        {"id": "1", "question": "who?", "answers": [{"text": "Bob", "answer_start": 8}]}
    ]
    assert done.done == {
        "unreadable rows dropped": 1,
        "exact copies dropped": 1,
        "answers moved to where they are": 1,
    }


def asked(id: str, start: int = 0, text: str = "Ada", **more: object) -> dict[str, object]:
    return {"id": id, "question": f"{id}?", "answers": [{"text": text, "answer_start": start}], **more}


def fixed_questions(tmp_path: Path, value: object, name: str = "a.json") -> tuple[Fixed, list[Any]]:
    """What was done, and the objects that are left."""
    path = tmp_path / name
    lines = name.endswith(".jsonl")
    written = "".join(json.dumps(one) + "\n" for one in value) if lines else json.dumps(value)  # type: ignore[attr-defined]
    path.write_text(written, encoding="utf-8")
    done = fix(path, tmp_path / f"out-{name}")
    text = (tmp_path / f"out-{name}").read_text(encoding="utf-8")
    assert done.kept == len(read_questions(tmp_path / f"out-{name}").examples)
    return done, [json.loads(line) for line in text.splitlines()] if lines else json.loads(text)


def test_fix_of_questions_in_a_list(tmp_path: Path) -> None:
    rows = [asked("1", context="Ada was"), asked("2", 3, context="so Ada is"), asked("3", context="Ada was")]
    rows.append(rows[0] | {"id": "4"})
    done, left = fixed_questions(tmp_path, [*rows, {"id": "5", "question": "who?"}])
    assert done.done["unreadable rows dropped"] == 1
    assert left == [row for row in rows if row["id"] != "4"]


def test_fix_of_articles_a_line(tmp_path: Path) -> None:
    def article(*entries: dict[str, object], context: str = "Ada met Rome") -> dict[str, object]:
        return {"title": "t", "paragraphs": [{"context": context, "qas": list(entries)}]}

    copy = asked("2") | {"question": "1?"}
    first = article(asked("1"), copy, asked("3", 2, "Rome"), asked("4", 5, "Zoe"))
    alone = article(asked("5"), context="Ada alone")
    done, left = fixed_questions(tmp_path, [first, alone], "a.jsonl")
    assert done.done == {"exact copies dropped": 1, "answers moved to where they are": 1}
    assert left == [article(asked("1"), asked("3", 8, "Rome"), asked("4", 5, "Zoe")), alone]  # Zoe is nowhere: it stays


def test_fix_leaves_unanswerable_questions_as_they_are(tmp_path: Path) -> None:
    odd = {"id": "1", "question": "who?", "context": "Ada", "is_impossible": True, "answers": ["Ada"]}
    empty = odd | {"id": "2", "question": "what?", "answers": [{"text": "", "answer_start": -1}]}
    done, left = fixed_questions(tmp_path, [odd, empty, asked("3", context="Ada")])
    assert (done.done, left[:2]) == ({}, [odd, empty])


def test_questions_of_one_line_are_counted_one_by_one(tmp_path: Path) -> None:
    entries = [asked(str(n)) for n in range(5)]
    value = {"data": [{"paragraphs": [{"context": "Ada", "qas": entries}]}]}
    for name in ("train.json", "dev.json"):
        (tmp_path / name).write_text(json.dumps(value), encoding="utf-8")
    report = examine([tmp_path / "train.json"], tmp_path / "dev.json")
    (leak,) = [found for found in report.findings if found.kind == "leak"]
    assert "5 rows are in the dev set too (100.0% of it)" in leak.message


def test_fix_keeps_the_encoding(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes("text,label\n房间,正\n房间,正\n太脏,负\n".encode("gb18030"))
    fix(path, tmp_path / "out.csv", DoctorSettings(encoding="gb18030"))
    assert (tmp_path / "out.csv").read_bytes() == "text,label\n房间,正\n太脏,负\n".encode("gb18030")


def test_fix_leaves_out_a_text_with_half_a_character(tmp_path: Path) -> None:
    def article(id: str, context: str) -> dict[str, object]:
        answers = [{"text": "Ada", "answer_start": 0}]
        return {"paragraphs": [{"context": context, "qas": [{"id": id, "question": "who?", "answers": answers}]}]}

    path = tmp_path / "a.json"
    path.write_text(json.dumps({"data": [article("1", "Ada \ud800"), article("2", "Ada 😀")]}), encoding="utf-8")
    done = fix(path, tmp_path / "out.json")
    assert (done.kept, done.done) == (1, {"unreadable rows dropped": 1})
    fixed = json.loads((tmp_path / "out.json").read_text(encoding="utf-8"))
    assert fixed == {"data": [article("2", "Ada 😀")]}


def test_fix_never_writes_where_it_must_not(tmp_path: Path) -> None:
    path = table(tmp_path, *many(3, "a"))
    other = table(tmp_path, *many(1, "b"), name="other.tsv")
    link = tmp_path / "link.tsv"
    link.symlink_to(path)
    for out, message in ((path, "never cleaned in place"), (link, "never"), (other, "exists already")):
        with pytest.raises(UserError, match=message):
            fix(path, out)
    with pytest.raises(UserError, match=r"ends in \.tsv"):
        fix(path, tmp_path / "out.csv")
    with pytest.raises(UserError, match="only text files"):
        fix(tmp_path / "a.parquet", tmp_path / "b.parquet")
    broken = tmp_path / "a.csv"
    broken.write_text('text,label\na b,x\n"c,y\nd,x\n', encoding="utf-8")
    with pytest.raises(DataError, match="never closed"):
        fix(broken, tmp_path / "out.csv")
    assert not (tmp_path / "out.csv").exists()
    assert fix(path, other, overwrite=True).kept == 3


def test_a_hundred_thousand_rows_take_seconds(tmp_path: Path) -> None:
    words = [f"word{n}" for n in range(5000)]
    rng = random.Random(0)
    rows = [(" ".join(rng.choices(words, k=20)), str(n % 7)) for n in range(100_000)]
    path = table(tmp_path, *rows)
    start = time.process_time()
    assert examine(path).facts["train"]["examples"] == 100_000
    assert time.process_time() - start < 10


def test_real_files(data_folder: Path, tmp_path: Path) -> None:
    train, dev = data_folder / "chnsenticorp" / "train.tsv", data_folder / "chnsenticorp" / "dev.tsv"
    report = examine(train, dev)
    rows = [tuple(line.split("\t")) for line in train.read_text(encoding="utf-8").splitlines()[1:]]
    assert sum(finding.count for finding in found(report, "duplicate") if finding.file == str(train)) == len(
        rows
    ) - len(set(rows)) - _relabelled_twice(rows)
    fix(train, tmp_path / "out.tsv", dev=dev)
    again = examine(tmp_path / "out.tsv", dev)
    assert not [finding for finding in (*found(again, "duplicate"), *found(again, "leak")) if "out" in finding.file]
    assert len(read_labelled(tmp_path / "out.tsv").examples) == again.facts["train"]["examples"]


def _relabelled_twice(rows: list[tuple[str, ...]]) -> int:
    """Copies of rows whose text came first with another label: contradictions, not copies."""
    first: dict[str, str] = {}
    for label, text in rows:
        first.setdefault(text, label)
    others = [(label, text) for label, text in rows if first[text] != label]
    return len(others) - len(set(others))
