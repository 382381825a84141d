from __future__ import annotations

from dataclasses import replace

import pytest

import report_samples as samples
from unmask.data.examples import Entity
from unmask.report.letters import cut, language, visible
from unmask.report.mistakes import MOST, worst_mistakes
from unmask.report.outcome import QuestionOutcome, TaggedOutcome, TextOutcome


def test_the_surest_mistakes_come_first_and_what_is_right_never() -> None:
    evaluation = samples.single()
    wrong = [outcome for outcome in evaluation.outcomes if outcome.gold != outcome.predicted]
    expected = sorted((outcome.confidence for outcome in wrong), reverse=True)[:MOST]
    assert [mistake.confidence for mistake in worst_mistakes(evaluation)] == expected


def test_the_largest_errors_come_first() -> None:
    golds = (("a", 1.0, 1.1), ("b", 5.0, 1.0), ("c", 2.0, 4.0), ("d", 3.0, None))
    outcomes = tuple(TextOutcome(text, gold=gold, predicted=said) for text, gold, said in golds)
    found = worst_mistakes(replace(samples.empty(), outcomes=outcomes))
    assert [mistake.passages[0].pieces[0].text for mistake in found] == ["d", "b", "c", "a"]
    assert [mistake.gold for mistake in found] == ["3", "5", "2", "1"]
    assert found[0].predicted == "–"


def test_half_an_answer_is_no_mistake() -> None:
    half = QuestionOutcome("q", "c", ("a b",), "a", 0.9, 0.0, 0.67)
    assert worst_mistakes(replace(samples.empty(), outcomes=(half,))) == []
    none = replace(half, f1=0.0, predicted="", id="q7")
    (mistake,) = worst_mistakes(replace(samples.empty(), outcomes=(none,)))
    assert (mistake.where, mistake.gold, mistake.predicted) == ("q7", "a b", "no answer")


def test_the_context_is_shown_where_the_answer_is() -> None:
    context = "x" * 5000 + " the answer " + "y" * 5000
    (mistake,) = worst_mistakes(
        replace(samples.empty(), outcomes=(QuestionOutcome("q", context, ("the answer",), "no", 0.9),))
    )
    text = "".join(piece.text for piece in mistake.passages[1].pieces)
    assert "the answer" in text
    assert text.startswith("…")
    assert len(text) < 450


def test_marks_cut_nothing_out_of_the_text() -> None:
    text = "小明在北京大学读书，小红在上海工作。"
    gold = (Entity(0, 2, "人"), Entity(3, 7, "校"), Entity(10, 12, "人"))
    said = (Entity(0, 2, "人"), Entity(3, 5, "地"), Entity(4, 7, "校"))
    (mistake,) = worst_mistakes(replace(samples.empty(), outcomes=(TaggedOutcome(text, gold, said, (0.9, 0.8, 0.7)),)))
    for passage in mistake.passages:
        assert "".join(piece.text for piece in passage.pieces) == text
        assert passage.language == "zh"
    marks = [[(p.text, p.style, p.label) for p in passage.pieces if p.style] for passage in mistake.passages]
    assert marks[0] == [("小明", "good", "人"), ("北京大学", "bad", "校"), ("小红", "bad", "人")]
    assert marks[1] == [("小明", "good", "人"), ("北京", "bad", "地")]  # one that begins inside another is left out
    assert mistake.remark == "2 missed, 2 wrongly found"
    assert mistake.confidence == 0.8


def test_a_long_text_is_shown_where_it_is_wrong() -> None:
    text = "a" * 3000 + " Paris " + "b" * 3000
    (mistake,) = worst_mistakes(
        replace(samples.empty(), outcomes=(TaggedOutcome(text, (Entity(3001, 3006, "place"),)),))
    )
    pieces = mistake.passages[0].pieces
    assert [piece.text for piece in pieces if piece.style] == ["Paris"]
    assert pieces[0].text == "…"
    assert pieces[-1].text.endswith("…")


def test_a_stretch_as_long_as_a_book_is_shown_in_part() -> None:
    outcome = TaggedOutcome("x" * 100_000, (), (Entity(10, 99_000, "all"),), (0.9,))
    (mistake,) = worst_mistakes(replace(samples.empty(), outcomes=(outcome,)))
    assert sum(len(piece.text) for passage in mistake.passages for piece in passage.pieces) < 2000


def test_of_many_wrong_stretches_the_surest_is_shown() -> None:
    said = (Entity(0, 5, "a"), Entity(2000, 2005, "b"), Entity(4000, 4005, "c"))
    outcome = TaggedOutcome("words " * 1000, (), said, (0.5, 0.9, 0.6))
    (mistake,) = worst_mistakes(replace(samples.empty(), outcomes=(outcome,)))
    assert [piece.label for piece in mistake.passages[1].pieces if piece.style] == ["b"]
    assert mistake.confidence == 0.9


def test_stretches_outside_the_text_do_no_harm() -> None:
    outcome = TaggedOutcome("short", (Entity(2, 90, "x"), Entity(-3, 2, "y"), Entity(4, 4, "z")))
    (mistake,) = worst_mistakes(replace(samples.empty(), outcomes=(outcome,)))
    assert "".join(piece.text for piece in mistake.passages[0].pieces) == "short"


def test_texts_without_confidence_come_by_how_much_is_wrong() -> None:
    one, two = Entity(0, 1, "x"), Entity(2, 3, "x")
    outcomes = (TaggedOutcome("abc", (one,), line=1), TaggedOutcome("abc", (one, two), line=2))
    assert [m.where for m in worst_mistakes(replace(samples.empty(), outcomes=outcomes))] == [
        "line\u00a02",
        "line\u00a01",
    ]


@pytest.mark.parametrize(
    ("text", "room", "expected"),
    [
        ("short", 10, "short"),
        ("a longer text", 8, "a longe…"),
        ("北京大学", 8, "北京大学"),
        ("北京大学", 7, "北京…"),
        ("two\nlines", 20, "two lines"),
        ("", 5, ""),
        ("abc", 1, "…"),
    ],
)
def test_cutting_counts_wide_letters_twice(text: str, room: int, expected: str) -> None:
    assert cut(text, room) == expected


def test_what_a_page_may_not_hold_is_made_visible() -> None:
    assert visible("a\x00b\x1bc\x7fd\ud800e\u202ef") == "a\ufffdb\ufffdc\ufffdd\ufffde\ufffdf"
    assert visible("tab\tline\n北京 😀 e\u0301") == "tab\tline\n北京 😀 e\u0301"
    assert (language("北京"), language("東京の"), language("Paris")) == ("zh", "ja", "")
