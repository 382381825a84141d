from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from unmask.errors import DataError
from unmask.metrics import squad2_marks, squad2_scores
from unmask.metrics.unanswerable import word_f1_or_none

GOLD = {"a": ["the cat"], "b": ["two dogs", "dogs"], "c": [], "d": [], "e": ["the"]}


def test_by_hand() -> None:
    found = squad2_scores(GOLD, {"a": "cat", "b": "two", "c": "", "d": "a bird", "e": ""})
    # Of the gold answer "the" nothing is left, so that the right answer is none, though the question has one.
    assert found.all.exact == 3 / 5
    assert found.all.f1 == pytest.approx((1 + 2 / 3 + 1 + 0 + 1) / 5)
    assert found.has_answer is not None
    assert found.no_answer is not None
    assert (found.has_answer.exact, found.has_answer.total) == (2 / 3, 3)
    assert (found.no_answer.exact, found.no_answer.f1, found.no_answer.total) == (0.5, 0.5, 2)
    assert found.best_exact is None


def test_nothing_agrees_with_nothing() -> None:
    assert word_f1_or_none("", "") == 1.0
    assert word_f1_or_none("", "the") == 1.0
    assert word_f1_or_none("", "cat") == 0.0
    assert word_f1_or_none("cat", "") == 0.0


def test_above_the_threshold_there_is_no_answer() -> None:
    predicted = {"a": "cat", "b": "dogs", "c": "x", "d": "y", "e": "z"}
    doubt = {"a": 0.1, "b": 0.9, "c": 0.8, "d": 0.3, "e": 0.5}
    assert squad2_marks(GOLD, predicted, doubt, 0.5).exact.tolist() == [1, 0, 1, 0, 0]
    assert squad2_marks(GOLD, predicted, doubt, 0.2).exact.tolist() == [1, 0, 1, 1, 0]
    assert squad2_marks(GOLD, predicted, doubt).exact.tolist() == [1, 1, 0, 0, 0]
    best = squad2_scores(GOLD, predicted, doubt).best_exact
    assert best is not None
    assert (best.score, best.threshold) == (3 / 5, 0.1)


def test_silence_may_be_best() -> None:
    found = squad2_scores(
        {"a": ["x"], "b": [], "c": []}, {"a": "y", "b": "y", "c": "y"}, {"a": 0.2, "b": 0.1, "c": 0.3}
    )
    assert found.best_f1 is not None
    assert (found.best_f1.score, found.best_f1.threshold) == (2 / 3, 0.0)


@pytest.mark.parametrize("seed", range(20))
def test_the_best_threshold_is_that_of_trying_them_all(seed: int) -> None:
    draw = np.random.default_rng(seed)
    words = ["red", "green", "blue", "green blue", ""]
    names = [f"q{number}" for number in range(25)]
    gold = {name: [str(draw.choice(words[:4]))] if draw.random() < 0.6 else [] for name in names}
    predicted = {name: str(draw.choice(words)) for name in names}
    doubt = {name: float(draw.random()) for name in names}
    found = squad2_scores(gold, predicted, doubt)
    for best, name in ((found.best_exact, "exact"), (found.best_f1, "f1")):
        tried = [
            getattr(squad2_scores(gold, predicted, doubt, threshold).all, name)
            for threshold in (-1.0, *sorted(doubt.values()))
        ]
        assert best is not None
        assert best.score == pytest.approx(max(tried))
        # The threshold does what it promises, unless the best is never to answer.
        reached = getattr(squad2_scores(gold, predicted, doubt, best.threshold).all, name)
        assert reached == pytest.approx(best.score) or best.threshold == 0.0


def test_real_questions(data_folder: Path) -> None:
    data = json.loads((data_folder / "squad" / "dev-v2.0.reconstructed.json").read_text(encoding="utf-8"))["data"]
    gold = {
        question["id"]: [answer["text"] for answer in question["answers"]]
        for article in data
        for paragraph in article["paragraphs"]
        for question in paragraph["qas"]
    }
    silent = squad2_scores(gold, dict.fromkeys(gold, ""))
    assert silent.all.total == 11_873
    assert silent.no_answer is not None
    assert silent.has_answer is not None
    assert (silent.no_answer.exact, silent.has_answer.exact) == (1.0, 0.0)
    assert round(100 * silent.all.exact, 2) == 50.07  # what is known of never answering
    perfect = squad2_scores(gold, {question: accepted[0] if accepted else "" for question, accepted in gold.items()})
    assert perfect.all.exact == perfect.all.f1 == 1.0


def test_missing_predictions_are_wrong() -> None:
    found = squad2_scores(GOLD, {"a": "cat"}, {"a": 0.5})
    assert found.all.as_json() == {"exact": 0.2, "f1": 0.2, "total": 5, "missing": 4}
    assert found.no_answer is not None
    assert (found.no_answer.exact, found.no_answer.missing) == (0.0, 2)
    assert found.best_exact is not None
    assert found.best_exact.score == 0.2
    assert json.loads(json.dumps(found.as_json()))["best_f1"] == {"score": 0.2, "threshold": 0.5}


def test_only_one_kind_of_question() -> None:
    assert squad2_scores({"a": ["x"]}, {"a": "x"}).no_answer is None
    found = squad2_scores({"a": []}, {"a": ""})
    assert found.has_answer is None
    assert found.as_json()["has_answer"] is None


def test_what_cannot_be_scored() -> None:
    with pytest.raises(DataError, match="question 'a' has a prediction but no probability"):
        squad2_scores({"a": ["x"]}, {"a": "x"}, {})
    with pytest.raises(DataError, match="nothing to score"):
        squad2_scores({}, {})
