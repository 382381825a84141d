from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

import report_samples as samples
from unmask.data.examples import Entity
from unmask.errors import DataError
from unmask.report.outcome import (
    Evaluation,
    ModelFacts,
    QuestionOutcome,
    Score,
    TaggedOutcome,
    TextOutcome,
    read_evaluation,
    write_evaluation,
)


@pytest.mark.parametrize("name", [name for name in samples.ALL if name != "hostile"])
def test_json_keeps_everything(name: str, tmp_path: Path) -> None:
    evaluation = samples.ALL[name]()
    write_evaluation(evaluation, tmp_path / "evaluation.json")
    again = read_evaluation(tmp_path / "evaluation.json")
    assert again == evaluation
    assert again.to_json() == evaluation.to_json()
    assert [type(outcome) for outcome in again.outcomes] == [type(outcome) for outcome in evaluation.outcomes]


def test_what_cannot_be_written_is_replaced() -> None:
    evaluation = samples.hostile()
    text = evaluation.to_json()
    text.encode()
    again = Evaluation.from_json(text)
    assert again.outcomes[0].text == evaluation.outcomes[0].text.replace("\ud800", "\ufffd")
    assert Evaluation.from_json(again.to_json()) == again


def test_a_number_that_is_none_becomes_null() -> None:
    outcome = TextOutcome("t", gold=1.0, predicted=math.nan, confidence=math.inf)
    curve = ({"update": 1, "losses": {"loss": math.nan}},)
    evaluation = replace(samples.empty(), outcomes=(outcome,), curve=curve, scores={"mse": Score(math.nan, 0, 1, 1)})
    plain = json.loads(evaluation.to_json())
    assert plain["outcomes"][0]["predicted"] is plain["outcomes"][0]["confidence"] is None
    assert plain["curve"][0]["losses"]["loss"] is None
    assert Evaluation.from_json(evaluation.to_json()).scores["mse"] == Score(None, 0.0, 1.0, 1)


def test_gold_keeps_its_kind() -> None:
    golds = ("5", "5.0", 5.0, ("5",), (), None, "")
    outcomes = tuple(TextOutcome("t", gold=gold, predicted=gold) for gold in golds)
    evaluation = replace(samples.empty(), outcomes=outcomes)
    found = [outcome.gold for outcome in Evaluation.from_json(evaluation.to_json()).outcomes]
    assert found == list(golds)
    assert [type(gold) for gold in found] == [type(gold) for gold in golds]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "JSON"),
        ("{}", "task"),
        ("[1]", "evaluation"),
        ('{"task": "cook"}', "task"),
        (samples.empty().to_json().replace('"tags"', '"poems"'), "problem"),
        (samples.empty().to_json().replace('"m"', "7"), "model.name"),
        (samples.empty().to_json().replace('"outcomes": []', '"outcomes": [{"kind": "song"}]'), "song"),
    ],
)
def test_another_file_gets_one_sentence(content: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "evaluation.json"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(DataError) as caught:
        read_evaluation(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"none\.json: cannot be read"):
        read_evaluation(tmp_path / "none.json")


def test_a_matrix_of_another_size_is_ours_to_mend() -> None:
    with pytest.raises(ValueError, match="2 rows and columns"):
        Evaluation(
            "classify", "single", ModelFacts("m"), (), {}, {}, labels=("a", "b"), confusion=((1, 2), (3, 4), (5, 6))
        )


def test_what_is_right() -> None:
    assert TextOutcome("t", gold="a", predicted="a").right
    assert not TextOutcome("t", gold="a", predicted="b").right
    assert TextOutcome("t", gold=("a", "b"), predicted=("b", "a")).right
    assert not TextOutcome("t", gold=("a", "b"), predicted=("a",)).right
    one, two = Entity(0, 2, "x"), Entity(3, 4, "y")
    assert TaggedOutcome("text", (one, two), (two, one)).right
    assert not TaggedOutcome("text", (one,), (one._replace(end=3),)).right
    assert QuestionOutcome("q", "c", ("a",), "a", exact=1.0, f1=1.0).right
    assert not QuestionOutcome("q", "c", ("a b",), "a", exact=0.0, f1=0.67).right


def test_the_measured_file_is_the_last_that_was_not_learned_from() -> None:
    assert samples.empty().measured is None
    evaluation = samples.single(10)
    assert evaluation.measured == evaluation.data[1]
    assert replace(evaluation, data=evaluation.data[:1]).measured is None
