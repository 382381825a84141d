from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unmask.data.examples import Answer, QuestionExample
from unmask.data.questions import NOWHERE, is_questions, read_questions, realign
from unmask.data.rows import RowError
from unmask.errors import DataError

CONTEXT = "Ada met Bob. Bob met Eve."


def squad(*entries: dict[str, Any], context: str = CONTEXT) -> dict[str, Any]:
    return {"version": "2", "data": [{"title": "t", "paragraphs": [{"context": context, "qas": list(entries)}]}]}


def entry(id: str, text: str = "Ada", start: int = 0, **more: Any) -> dict[str, Any]:
    return {"id": id, "question": f"{id}?", "answers": [{"text": text, "answer_start": start}], **more}


def file(tmp_path: Path, value: Any, name: str = "a.json", indent: int | None = 1) -> Path:
    path = tmp_path / name
    path.write_text(value if isinstance(value, str) else json.dumps(value, indent=indent), encoding="utf-8")
    return path


def test_squad_v1_and_v2(tmp_path: Path) -> None:
    none = {"id": "q2", "question": "who?", "answers": [], "is_impossible": True, "plausible_answers": []}
    path = file(tmp_path, squad(entry("q1"), none))
    assert is_questions(path)
    found = read_questions(path)
    first, second = found.examples
    line = path.read_text(encoding="utf-8").splitlines().index('       "id": "q1",') + 1
    assert first == QuestionExample("q1", "q1?", CONTEXT, (Answer("Ada", 0),), False, line)
    assert (second.answers, second.impossible) == ((), True)
    assert found.said == ["2 questions about 1 texts, 1 with an answer"]


def test_flat_lines_as_the_hub_has_them(tmp_path: Path) -> None:
    answers = {"text": ["Bob", "Bob"], "answer_start": [8, 13]}
    row = {"id": "1", "question": "who?", "context": CONTEXT, "answers": answers}
    empty = {"id": "2", "question": "who?", "context": CONTEXT, "answers": {"text": [], "answer_start": []}}
    path = file(tmp_path, json.dumps(row) + "\n\n" + json.dumps(empty) + "\n", "a.jsonl")
    assert is_questions(path)
    first, second = read_questions(path).examples
    assert (first.answers, first.line) == ((Answer("Bob", 8), Answer("Bob", 13)), 1)
    assert (second.answers, second.impossible, second.line) == ((), True, 3)


def test_a_question_to_be_answered_has_no_answers_and_is_not_impossible(tmp_path: Path) -> None:
    path = file(tmp_path, json.dumps({"question": "who?", "context": CONTEXT}), "a.jsonl")
    assert read_questions(path).examples == [QuestionExample("1", "who?", CONTEXT, (), False, 1)]


def test_misplaced_answers_are_moved_and_named(tmp_path: Path) -> None:
    found = read_questions(
        file(tmp_path, squad(entry("near", "Bob", 12), entry("far", "Eve", 0), entry("no", "Zoe", 3)))
    )
    assert [example.answers[0].start for example in found.examples] == [13, 21, NOWHERE]
    assert [error.kind for error in found.misaligned] == ["misaligned", "misaligned"]
    assert "'Bob' of question near is not at 12, where the text says ' Bo', but at 13" in str(found.misaligned[0])
    assert "line 11" in str(found.misaligned[0])
    assert "'Zoe' of question no is not in its text" in str(found.missing[0])
    assert len(found.said) == 3


@given(st.text("ab ", max_size=12), st.text("ab ", min_size=1, max_size=3), st.integers(-3, 15))
def test_realign_finds_the_nearest_place(context: str, answer: str, start: int) -> None:
    places = [place for place in range(len(context)) if context[place : place + len(answer)] == answer]
    found = realign(context, answer, start)
    if not places:
        assert found == NOWHERE
    else:
        assert found in places
        assert abs(found - start) == min(abs(place - start) for place in places)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (squad({"id": "x", "question": "", "answers": []}), "line 11: the question x is empty"),
        (squad({"id": "x", "question": 5, "answers": []}), "must be text but is 5"),
        (squad(entry("x"), entry("x")), "the id x is given twice"),
        (squad({"id": "x", "question": "q", "answers": "Ada"}), "must be a list but are 'Ada'"),
        (squad({"id": "x", "question": "q", "answers": [{"text": "Ada"}]}), "has no answer_start"),
        (squad({"id": "x", "question": "q", "answers": [{"answer_start": 1}]}), "must have a text"),
        (squad(entry("x"), context=""), "needs a text in 'context'"),
        ({"data": [{"paragraphs": "none"}]}, "paragraphs must be a list"),
        ({"data": [{"paragraphs": [{"context": "a"}]}]}, "qas must be a list"),
        ({"data": []}, "has no questions"),
        ({"predictions": {"1": "a"}}, "expected a list of objects"),
        ([{"question": "q", "context": "c", "answers": {"text": ["c"], "answer_start": []}}], "not as many"),
    ],
)
def test_files_that_are_wrong(tmp_path: Path, value: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        read_questions(file(tmp_path, value))


def test_wrong_texts_can_be_passed_over(tmp_path: Path) -> None:
    errors: list[RowError] = []
    value = {
        "data": [{"paragraphs": [{"context": "", "qas": [entry("x")]}, {"context": CONTEXT, "qas": [entry("y")]}]}]
    }
    found = read_questions(file(tmp_path, value), on_error=errors.append)
    assert [example.id for example in found.examples] == ["y"]
    assert len(errors) == 1
    flat = json.dumps({"question": "q"}) + "\n" + json.dumps({"question": "q", "context": "c"}) + "\n"
    found = read_questions(file(tmp_path, flat, "a.jsonl"), on_error=errors.append)
    assert [example.line for example in found.examples] == [2]


def test_wrong_questions_can_be_passed_over(tmp_path: Path) -> None:
    errors: list[RowError] = []
    path = file(tmp_path, squad({"id": "x", "question": ""}, entry("y")), indent=None)
    assert [example.id for example in read_questions(path, on_error=errors.append).examples] == ["y"]
    assert [(error.kind, error.line) for error in errors] == [("question", 1)]


@pytest.mark.parametrize(
    ("name", "questions", "misaligned", "missing"),
    [
        ("cmrc2018/train.json", 10142, 21, 0),
        ("cmrc2018/dev.json", 3219, 7, 193),
        ("squad/dev-v1.1.reconstructed.json", 10570, 0, 0),
        ("squad/dev-v2.0.reconstructed.json", 11873, 0, 0),
    ],
)
def test_real_files(data_folder: Path, name: str, questions: int, misaligned: int, missing: int) -> None:
    found = read_questions(data_folder / name)
    assert (len(found.examples), len(found.misaligned), len(found.missing)) == (questions, misaligned, missing)
    for example in found.examples:
        for text, start in example.answers:
            assert start == NOWHERE or example.context[start : start + len(text)] == text


def test_drcd_has_an_id_at_every_level(tmp_path: Path) -> None:
    """As its files are: Traditional Chinese, answers with ids of their own, all on one line."""
    context = "臺灣高鐵全長349公里，於2007年1月5日通車。"
    answers = [{"id": "1", "text": "349公里", "answer_start": 6}, {"id": "2", "text": "349公里", "answer_start": 6}]
    entry = {"id": "1001-10-1", "question": "高鐵全長多少？", "answers": answers}
    wrong = entry | {"id": "1001-10-2", "answers": [{"id": "1", "text": "2007年", "answer_start": 3}]}
    paragraph = {"context": context, "id": "1001-10", "qas": [entry, wrong]}
    data = {"version": "1.3", "data": [{"title": "臺灣高鐵", "id": "1001", "paragraphs": [paragraph]}]}
    path = file(tmp_path, json.dumps(data, ensure_ascii=False))
    found = read_questions(path)
    assert found.examples[0].answers == (Answer("349公里", 6), Answer("349公里", 6))
    assert context[found.examples[1].answers[0].start :].startswith("2007年")
    (moved,) = found.misaligned
    assert str(moved).startswith(f"{path}, item 1: the answer '2007年' of question 1001-10-2 is not at 3")
