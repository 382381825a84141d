from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from unmask.data.examples import Entity, TaggedExample
from unmask.data.rows import RowError
from unmask.data.tagged import is_tagged, read_tagged
from unmask.errors import DataError

CONLL = """-DOCSTART- -X- O O

EU NNP I-NP B-ORG
rejects VBZ I-VP O
New NNP I-NP B-LOC
York NNP I-NP I-LOC
\x20
-DOCSTART- -X- O O

Peter NNP I-NP B-PER
"""


def file(tmp_path: Path, name: str, content: str) -> Path:
    path = tmp_path / name
    path.write_text(content, encoding="utf-8")
    return path


def says(example: TaggedExample) -> list[tuple[str, str]]:
    return [(example.text[start:end], type) for start, end, type in example.entities or ()]


def test_conll_columns(tmp_path: Path) -> None:
    found = read_tagged(file(tmp_path, "a.conll", CONLL))
    first, second = found.examples
    assert first.text == "EU rejects New York"
    assert [first.text[start:end] for start, end in first.words or ()] == ["EU", "rejects", "New", "York"]
    assert first.tags == ("B-ORG", "O", "B-LOC", "I-LOC")
    assert says(first) == [("EU", "ORG"), ("New York", "LOC")]
    assert (first.line, second.line) == (3, 10)
    assert (found.scheme, found.labels, found.plain, found.broken) == ("BIO", ("LOC", "ORG", "PER"), False, [])


def test_chinese_words_have_no_spaces_between_them(tmp_path: Path) -> None:
    words = file(tmp_path, "a.txt", "北京 B-LOC\n的 O\nbig O\napple O\n，\tO\n\n".replace("\t", " "))
    assert read_tagged(words).examples[0].text == "北京的 big apple ，"
    letters = file(tmp_path, "b.txt", "\n".join(f"{letter} O" for letter in "我用iPhone和电脑上网"))
    assert read_tagged(letters).examples[0].text == "我用iPhone和电脑上网"
    ideographic = file(tmp_path, "c.txt", "我 O\n\u3000 O\n你 O\n")
    assert read_tagged(ideographic).examples[0].text == "我\u3000你"


def test_broken_tags_are_read_kindly_and_named(tmp_path: Path) -> None:
    good = "a B-X\nb I-X\n\n" * 5
    found = read_tagged(file(tmp_path, "a.bio", good + "c O\nd I-X\ne I-Y\n"))
    assert [(error.line, error.kind) for error in found.broken] == [(17, "scheme"), (18, "scheme")]
    assert says(found.examples[-1]) == [("d", "X"), ("e", "Y")]
    assert any("2 broken places" in said for said in found.said)


def test_plain_tags(tmp_path: Path) -> None:
    found = read_tagged(file(tmp_path, "a.pos", "the DET\ncat NOUN\n\nit PRON\n"))
    assert (found.plain, found.scheme, found.labels) == (True, None, ("DET", "NOUN", "PRON"))
    assert found.examples[0].entities is None


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("a O\nb\n", "line 2: has 1 column but 2 were expected"),
        ("a O\nb x O\n", "line 2: has 3 columns but 2 were expected"),
        ("a\tO\n\tB-X\n", r"line 2: has a tag \('B-X'\) but no word"),
        ("a O\n  B-X\n", r"line 2: has a tag \('B-X'\) but no word"),
        ("\n\n", "has no sentence with words"),
        ("a\nb\n", "has no tags"),
    ],
)
def test_columns_that_are_wrong(tmp_path: Path, content: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        read_tagged(file(tmp_path, "a.conll", content))


def test_a_wrong_sentence_can_be_passed_over(tmp_path: Path) -> None:
    errors: list[RowError] = []
    path = file(tmp_path, "a.conll", "a O\nb\nc O\n\nd B-X\n")
    found = read_tagged(path, on_error=errors.append)
    assert [example.text for example in found.examples] == ["d"]
    assert [error.line for error in errors] == [2]


def test_words_without_tags_are_read_if_that_is_meant(tmp_path: Path) -> None:
    found = read_tagged(file(tmp_path, "a.conll", "a\nb\n\nc\n"), labelled=False)
    assert [(example.text, example.tags, example.entities) for example in found.examples] == [
        ("a b", None, None),
        ("c", None, None),
    ]


TEXT = "Ada met Bob"
ADA_BOB = (Entity(0, 3, "PER"), Entity(8, 11, "PER"))


@pytest.mark.parametrize(
    "item",
    [
        {"text": TEXT, "label": {"PER": {"Ada": [[0, 2]], "Bob": [[8, 10]]}}},
        {"text": TEXT, "entities": [{"start": 8, "end": 11, "label": "PER"}, {"start": 0, "end": 3, "label": "PER"}]},
        {"text": TEXT, "spans": [{"start": 0, "end": 3, "type": "PER"}, {"start": 8, "end": 11, "type": "PER"}]},
        {"text": TEXT, "label": [[0, 3, "PER"], [8, 11, "PER"]]},
        {"text": TEXT, "labels": [[0, 3, "PER"], [8, 11, "PER"]], "id": 1},
        {"text": TEXT, "entities": [{"start_offset": n, "end_offset": n + 3, "label": "PER"} for n in (0, 8)]},
        {
            "text": TEXT,
            "entities": [{"start_idx": n, "end_idx": n + 2, "type": "PER", "entity": TEXT[n : n + 3]} for n in (0, 8)],
        },
        {"tokens": ["Ada", "met", "Bob"], "tags": ["B-PER", "O", "B-PER"]},
        {"tokens": ["Ada", "met", "Bob"], "ner_tags": ["B-PER", "O", "B-PER"]},
    ],
)
def test_json_in_all_its_shapes(tmp_path: Path, item: dict[str, Any]) -> None:
    for name, content in (("a.jsonl", json.dumps(item)), ("a.json", json.dumps([item, item]))):
        path = file(tmp_path, name, content)
        assert is_tagged(path)
        found = read_tagged(path)
        assert (found.examples[0].text, found.examples[0].entities, found.labels) == (TEXT, ADA_BOB, ("PER",))


@pytest.mark.parametrize(
    ("item", "message"),
    [
        (
            {"text": TEXT, "label": {"PER": {"Ada": [[1, 3]]}}},
            "line 1: the entity 1–4 \\(PER\\) should say 'Ada' but says 'da '",
        ),
        ({"text": TEXT, "label": {"PER": {"Ada": [0, 2]}}}, r"the place of 'Ada' is \[start, end\]"),
        ({"text": TEXT, "label": {"PER": 5}}, "expected {type"),
        (
            {"text": TEXT, "label": [[8, 12, "PER"]]},
            "line 1: the entity 8–12 \\(PER\\) lies outside its text of 11 characters",
        ),
        ({"text": TEXT, "label": [[3, 3, "PER"]]}, "lies outside"),
        ({"text": TEXT, "label": [[-1, 3, "PER"]]}, "lies outside"),
        ({"text": TEXT, "label": [[0, 3]]}, r"an entity is \[start, end, label\]"),
        ({"text": TEXT, "label": [["0", "3", "PER"]]}, "whole numbers"),
        ({"text": TEXT, "entities": [{"start": 0, "end": 3}]}, "has no label"),
        ({"text": TEXT, "entities": "none"}, "must be a list"),
        ({"text": "", "entities": [[0, 1, "A"]]}, "the text is empty"),
        ({"tokens": ["a", "b"], "tags": ["O"]}, "has 2 tokens but 1 tags"),
        ({"tokens": ["a", 5], "tags": ["O", "O"]}, "a token must be text but is 5"),
        ({"tokens": [], "tags": []}, "has no tokens"),
        ({"words?": "x", "entities": []}, "expected tokens and tags"),
    ],
)
def test_json_that_is_wrong(tmp_path: Path, item: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        read_tagged(file(tmp_path, "a.jsonl", json.dumps(item)))


def test_of_entities_that_overlap_the_longer_stays_aloud(tmp_path: Path) -> None:
    item = {"text": TEXT, "label": [[0, 3, "A"], [0, 7, "B"], [5, 9, "C"], [8, 11, "D"]]}
    found = read_tagged(file(tmp_path, "a.jsonl", json.dumps(item)))
    assert says(found.examples[0]) == [("Ada met", "B"), ("Bob", "D")]
    assert found.said[0] == (
        "2 entities that overlap one that starts before them, or is longer, are left out, the first on line 1"
    )


def test_tables_of_texts_are_not_tagged(tmp_path: Path) -> None:
    assert is_tagged(file(tmp_path, "a.txt", CONLL))
    assert not is_tagged(file(tmp_path, "b.txt", "good film\t1\nbad one\t0\n" * 9))
    assert not is_tagged(file(tmp_path, "c.txt", "A whole text here.\nIt goes on.\n\nAnother one, longer than that.\n"))
    assert not is_tagged(file(tmp_path, "d.jsonl", '{"text": "a", "label": ["x", "y"]}\n'))


def test_cluener(data_folder: Path) -> None:
    found = read_tagged(data_folder / "cluener2020" / "dev.json")
    assert (len(found.examples), len(found.labels)) == (1343, 10)
    lines = (data_folder / "cluener2020" / "dev.json").read_text(encoding="utf-8").splitlines()
    raw = [json.loads(line) for line in lines]
    expected = [
        {(type, name, start) for type, names in item["label"].items() for name in names for start, _ in names[name]}
        for item in raw
    ]
    for example, wanted in zip(found.examples, expected, strict=True):
        assert {(e.type, example.text[e.start : e.end], e.start) for e in example.entities or ()} == wanted


def test_weibo(data_folder: Path) -> None:
    found = read_tagged(data_folder / "weibo_ner" / "train.all.bmes")
    assert (len(found.examples), found.scheme, len(found.labels), len(found.broken)) == (1350, "BMES", 8, 10)
    # An entity has one E, or is one S; the few that are broken have either none or one too many.
    tags = Counter(tag[0] for example in found.examples for tag in example.tags or ())
    entities = sum(len(example.entities or ()) for example in found.examples)
    assert abs(entities - tags["E"] - tags["S"]) <= len(found.broken)
