"""Scores of real predictions are those of scikit-learn, seqeval and the official scorers, inside their intervals."""

from __future__ import annotations

import collections
import math
import random
import re
import string
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import finetune_toy as toy
import unmask
from unmask.data.examples import Answer, Entity, QuestionExample
from unmask.metrics import squad2_scores
from unmask.report.outcome import QuestionOutcome, Score
from unmask.tasks.answer import AnswerPrediction, marked
from unmask.tasks.scoring import Scored, score_answers, score_tags
from unmask.tasks.tag import Found, TagPrediction
from unmask.tasks.tag_texts import TagText
from unmask.tasks.usage import Usage


def measured(task: str, rows: list[dict[str, Any]], folder: Path) -> tuple[Scored, list[Any]]:
    """What a fine-tuned model scores on rows, and what it says of them."""
    predictor = unmask.load(toy.learned(task) / "model").predictor
    file = str(toy.write_rows(folder / "rows.jsonl", rows))
    found = predictor.evaluate(file)
    for score in found.scores.values():
        assert_between(score, len(rows))
    return found, list(predictor.run(predictor.read(file)))


def assert_between(score: Score, n: int) -> None:
    assert score.n == n
    assert score.value is not None
    assert score.low is not None
    assert score.high is not None
    assert score.low - 1e-9 <= score.value <= score.high + 1e-9
    assert score.low < score.high or score.value in (0, 1)


def spoiled(task: str, share: float = 0.3) -> list[dict[str, Any]]:
    """Rows of which some have the label of another."""
    draw, rows = random.Random(0), toy.dev_rows(task)
    return [row | {"label": draw.choice(rows)["label"]} if draw.random() < share else row for row in rows]


@pytest.mark.parametrize("task", ["single", "pair"])
def test_one_label(task: str, tmp_path: Path) -> None:
    sklearn = pytest.importorskip("sklearn.metrics")
    rows = spoiled(task)
    found, said = measured(task, rows, tmp_path)
    gold, given = [row["label"] for row in rows], [one.label for one in said]
    assert found.scores["accuracy"].value == pytest.approx(sklearn.accuracy_score(gold, given))
    assert found.scores["macro_f1"].value == pytest.approx(sklearn.f1_score(gold, given, average="macro"))
    assert found.scores["mcc"].value == pytest.approx(sklearn.matthews_corrcoef(gold, given))
    assert found.scores["accuracy"].value < 0.95
    assert np.array_equal(found.confusion, sklearn.confusion_matrix(gold, given, labels=list(found.labels)))
    table = sklearn.precision_recall_fscore_support(gold, given, labels=list(found.labels), zero_division=0)
    for number, row in enumerate(found.table):
        assert tuple(row[1:]) == pytest.approx([column[number] for column in table])
    assert found.marks == tuple(float(a == b) for a, b in zip(gold, given, strict=True))
    assert [outcome.predicted for outcome in found.outcomes] == given


def test_several_labels(tmp_path: Path) -> None:
    sklearn = pytest.importorskip("sklearn.metrics")
    rows = spoiled("multi")
    found, said = measured("multi", rows, tmp_path)
    sides = [[row["label"] for row in rows], [one.label for one in said]]
    gold, given = ([[float(label in one) for label in found.labels] for one in side] for side in sides)
    for name in ("micro", "macro"):
        assert found.scores[f"{name}_f1"].value == pytest.approx(sklearn.f1_score(gold, given, average=name))
    assert found.scores["all_right"].value == pytest.approx(sklearn.accuracy_score(gold, given))
    assert found.scores["all_right"].value < 0.95


def test_numbers(tmp_path: Path) -> None:
    stats = pytest.importorskip("scipy.stats")
    rows = spoiled("regression")
    found, said = measured("regression", rows, tmp_path)
    gold, given = [row["label"] for row in rows], [one.label for one in said]
    assert found.scores["pearson"].value == pytest.approx(stats.pearsonr(gold, given).statistic)
    assert found.scores["spearman"].value == pytest.approx(stats.spearmanr(gold, given).statistic)
    error = sum((a - b) ** 2 for a, b in zip(gold, given, strict=True)) / len(gold)
    assert found.scores["mean_squared_error"].value == pytest.approx(error)


@pytest.mark.parametrize("task", ["words", "crf", "spans"])
def test_stretches(task: str, tmp_path: Path) -> None:
    seqeval = pytest.importorskip("seqeval.metrics")
    rows, draw = toy.dev_rows(task), random.Random(0)
    for row in rows[::3]:
        if "tags" in row:
            row["tags"] = [draw.choice(["O", "B-PER", "B-LOC"]) for _ in row["tags"]]
        else:
            row["entities"] = row["entities"][1:]
    found, said = measured(task, rows, tmp_path)
    gold, given = [], []
    for outcome, one in zip(found.outcomes, said, strict=True):
        sides = {}
        for name, entities in (("gold", outcome.gold), ("said", one.entities)):
            sides[name] = ["O"] * len(one.words)
            for start, end, type in (entity[:3] for entity in entities):
                inside = [n for n, word in enumerate(one.words) if start <= word[0] and word[1] <= end]
                for number in inside:
                    sides[name][number] = f"{'B' if number == inside[0] else 'I'}-{type}"
        gold.append(sides["gold"])
        given.append(sides["said"])
    assert found.scores["f1"].value == pytest.approx(seqeval.f1_score(gold, given))
    assert found.scores["precision"].value == pytest.approx(seqeval.precision_score(gold, given))
    assert found.scores["recall"].value == pytest.approx(seqeval.recall_score(gold, given))
    assert found.scores["macro_f1"].value == pytest.approx(seqeval.f1_score(gold, given, average="macro"))
    assert 0.3 < found.scores["f1"].value < 0.98


def tagged(gold: tuple[Entity, ...], found: tuple[Entity, ...]) -> tuple[TagText, TagPrediction]:
    words = ((0, 1), (2, 3), (4, 5))
    right = TagText((), words, (0, 1, 2), np.zeros((3, 2), dtype=np.int64), gold, ("O",) * 3, 1.0, 5)
    said = TagPrediction(tuple((*word, "O") for word in words), tuple(Found(*one, 0.5) for one in found), 1.0, 1, 5)
    return right, said


def test_where_there_is_nothing_to_find_nothing_breaks() -> None:
    right, said = tagged((), ())
    found = score_tags(Usage(task="tag"), ["a b c"] * 3, [right] * 3, [said] * 3)
    assert found.scores["f1"].value == found.scores["macro_f1"].value == 0
    assert found.marks == (1.0, 1.0, 1.0)  # each text is right
    assert found.labels == ()
    right, said = tagged((), (Entity(0, 1, "X"),))
    found = score_tags(Usage(task="tag"), ["a b c"], [right], [said])
    assert found.scores["precision"].value == 0
    assert found.marks == (0.0,)


# Answers, by a scorer of our own made after the official one


def normal(text: str) -> str:
    text = "".join(one for one in text.lower() if one not in string.punctuation)
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", text).split())


def official(gold: list[str], said: str) -> tuple[float, float]:
    best = (0.0, 0.0)
    for one in gold or [""]:
        a, b = normal(one).split(), normal(said).split()
        common = sum((collections.Counter(a) & collections.Counter(b)).values())
        f1 = float(a == b) if not a or not b else 2 * common / (len(a) + len(b))
        best = max(best[0], float(normal(one) == normal(said))), max(best[1], f1)
    return best


def test_answers(tmp_path: Path) -> None:
    rows, draw = toy.dev_rows("qa2"), random.Random(0)
    for row in rows[::4]:  # longer answers, right in part
        start = row["answers"][0]["answer_start"] if row["answers"] else 0
        text = row["context"][start:]
        row["answers"] = draw.choice([[], [{"text": text, "answer_start": start}]])
    found, said = measured("qa2", rows, tmp_path)
    expected = [
        official([one["text"] for one in row["answers"]], one.answer) for row, one in zip(rows, said, strict=True)
    ]
    assert found.scores["exact"].value == pytest.approx(sum(pair[0] for pair in expected) / 100)
    assert found.scores["f1"].value == pytest.approx(sum(pair[1] for pair in expected) / 100)
    assert found.marks == pytest.approx([pair[1] for pair in expected])
    assert found.scores["exact"].value < found.scores["f1"].value < 1


def said_with(best: str, doubt: float) -> AnswerPrediction:
    return AnswerPrediction(best, 0, len(best), 0.9, 1.0, doubt, best, 1.0, 1, 9)


def test_the_threshold_is_chosen_where_the_score_is_best() -> None:
    draw = random.Random(0)
    examples, said = [], []
    for number in range(60):
        silent = number % 3 == 0
        doubt = draw.gauss(4.0 if silent else 1.0, 1.0)
        answers = () if silent else (Answer("ada", 0),)
        examples.append(QuestionExample(str(number), "who ?", "ada was", answers, silent))
        said.append(said_with("ada" if draw.random() < 0.8 else "was", doubt))
    usage = Usage(task="qa", no_answer=0.0)
    found = score_answers(usage, examples, said, tune=True)
    chosen = found.usage.no_answer

    def f1(threshold: float) -> float:
        given = ["" if one.doubt > threshold else one.best for one in said]
        return sum(marked(a, b, usage)[1] for a, b in zip(examples, given, strict=True)) / len(examples)

    best = max(f1(threshold) for threshold in [-math.inf, *(one.doubt for one in said), math.inf])
    assert found.scores["f1"].value == pytest.approx(best)
    assert f1(chosen) == pytest.approx(best)
    assert math.isfinite(chosen)
    assert f1(chosen) > f1(0.0)
    untuned = score_answers(usage, examples, said)
    assert untuned.usage == usage


def test_the_threshold_stands_midway_between_answers_and_silence() -> None:
    examples = [QuestionExample(str(n), "who ?", "ada was", (Answer("ada", 0),)) for n in range(2)]
    examples += [QuestionExample(str(n), "who ?", "ada was", (), True) for n in range(2, 4)]
    said = [said_with("ada", doubt) for doubt in (-20.0, -18.0, 6.0, 9.0)]
    found = score_answers(Usage(task="qa", no_answer=0.0), examples, said, tune=True)
    assert found.scores["f1"].value == 1
    assert found.usage.no_answer == -6.0
    # Where all are answered there is no other side to keep away from.
    found = score_answers(Usage(task="qa", no_answer=0.0), examples[:2], said[:2], tune=True)
    assert found.usage.no_answer == -18.0


def test_a_threshold_can_be_kept_even_if_a_text_has_no_token() -> None:
    """Then nothing but silence is possible, and its doubt has no bound."""
    examples = [
        QuestionExample("1", "who ?", "\u200b", (), True),
        QuestionExample("2", "who ?", "ada was", (Answer("ada", 0),)),
    ]
    said = [AnswerPrediction("", 0, 0, 1.0, 0.0, math.inf, "", 1.0, 1, 3), said_with("ada", -3.0)]
    found = score_answers(Usage(task="qa", no_answer=0.0), examples, said, tune=True)
    assert found.scores["f1"].value == 1
    assert found.usage.no_answer is not None
    assert math.isfinite(found.usage.no_answer)
    assert Usage.parse(found.usage.model_dump(mode="json")) == found.usage


def test_where_silence_is_best_the_threshold_is_silent() -> None:
    examples = [QuestionExample(str(n), "who ?", "ada was", (), True) for n in range(4)]
    examples += [QuestionExample("5", "who ?", "ada was", (Answer("was", 4),))]
    said = [said_with("ada", doubt) for doubt in (-9.0, -5.0, -3.0, 2.0, -1.0)]
    found = score_answers(Usage(task="qa", no_answer=0.0), examples, said, tune=True)
    assert found.usage.no_answer == -10.0
    assert found.scores["f1"].value == pytest.approx(0.8)
    assert [outcome.predicted for outcome in found.outcomes] == [""] * 5


def test_the_threshold_is_chosen_by_the_score_of_the_task() -> None:
    """A Chinese answer that lacks a character is nearly right, but as an English word it is wrong."""
    examples = [QuestionExample(str(n), "几点？", "下午三点钟", (Answer("下午三点钟", 0),)) for n in range(6)]
    examples += [QuestionExample("7", "谁？", "下午三点钟", (), True)]
    said = [*(said_with("下午三点", doubt) for doubt in range(6)), said_with("三", 9.0)]
    found = score_answers(Usage(task="qa", no_answer=0.0, metric="cmrc"), examples, said, tune=True)
    assert found.usage.no_answer == 7.0
    assert found.scores["f1"].value is not None
    assert found.scores["f1"].value > 0.9


def test_confidence_is_that_of_what_is_given() -> None:
    example = QuestionExample("1", "who ?", "ada was", (Answer("ada", 0),))
    none_more_likely = replace(said_with("ada", 2.0), answer="", probability=0.8)
    found = score_answers(Usage(task="qa", no_answer=0.0), [example], [none_more_likely], tune=True)
    (outcome,) = found.outcomes
    assert isinstance(outcome, QuestionOutcome)
    assert outcome.predicted == "ada"
    assert outcome.confidence == pytest.approx(0.8 * math.exp(-2.0))


def test_marks_are_those_of_squad_2_where_there_may_be_no_answer() -> None:
    nothing, dollar = (
        QuestionExample("1", "who ?", "the ada", (), True),
        QuestionExample("2", "what ?", "a $", (Answer("$", 2),)),
    )
    usage = Usage(task="qa", no_answer=0.0)
    for example, text in ((nothing, "the"), (nothing, "ada"), (dollar, "$"), (dollar, "ada")):
        gold = [answer.text for answer in example.answers]
        expected = squad2_scores({"1": gold}, {"1": text}).all
        assert marked(example, text, usage) == (expected.exact, expected.f1)
