from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nltk.tokenize import NLTKWordTokenizer

from unmask.errors import DataError
from unmask.metrics import cmrc_marks, cmrc_scores, squad_marks, squad_scores
from unmask.metrics.answers import cmrc_exact_match, cmrc_f1, cmrc_tokens, exact_match, normalise_answer, word_f1
from unmask.metrics.words import split_words


def questions(file: Path) -> list[dict[str, Any]]:
    data = json.loads(file.read_text(encoding="utf-8"))["data"]
    return [question for article in data for paragraph in article["paragraphs"] for question in paragraph["qas"]]


def answers(file: Path) -> dict[str, list[str]]:
    return {question["id"]: [answer["text"] for answer in question["answers"]] for question in questions(file)}


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("The  U.S. Army's\ttank!", "us armys tank"),
        ("a an the", ""),
        ("theatre, another, bath", "theatre another bath"),
        ("The-Beatles", "thebeatles"),  # punctuation goes first, so that this is one word
        ("“quoted”", "“quoted”"),  # only ASCII punctuation goes
        ("AN\u00a0apple", "apple"),
        ("", ""),
    ],
)
def test_what_squad_compares(text: str, left: str) -> None:
    assert normalise_answer(text) == left


def test_squad_marks_by_hand() -> None:
    assert exact_match("the Denver Broncos", "Denver broncos.") == 1.0
    assert word_f1("Denver Broncos", "the Broncos of Denver") == pytest.approx(2 * (2 / 3) * 1 / (2 / 3 + 1))
    assert word_f1("to be or not to be", "be to be") == pytest.approx(2 * 1.0 * 0.5 / 1.5)  # each as often as it occurs
    assert word_f1("one", "two") == 0.0
    assert word_f1("the", "a") == 0.0  # SQuAD 1.1 finds nothing in common
    assert exact_match("the", "a") == 1.0


def test_the_best_answer_counts_and_missing_ones_are_wrong() -> None:
    gold = {"q1": ["one two", "two"], "q2": ["x"], "q3": ["y z"]}
    found = squad_marks(gold, {"q3": "y", "q1": "two", "other": "?"})
    assert found.exact.tolist() == [1.0, 0.0, 0.0]
    assert found.f1.tolist() == [1.0, 0.0, pytest.approx(2 / 3)]
    assert found.scores().as_json() == {
        "exact": pytest.approx(1 / 3),
        "f1": pytest.approx(5 / 9),
        "total": 3,
        "missing": 1,
    }


def test_published_predictions_score_as_published(data_folder: Path) -> None:
    gold = answers(data_folder / "squad" / "dev-v1.1.reconstructed.json")
    text = (data_folder / "squad" / "bert_ensemble_dev-v1.1_predictions.json").read_text(encoding="utf-8")
    found = squad_scores(gold, json.loads(text))
    assert (round(100 * found.exact, 2), round(100 * found.f1, 2)) == (86.21, 92.20)
    assert (found.total, found.missing) == (10_570, 0)


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("光荣和ω-force。", ["光", "荣", "和", "ωforce"]),
        ("在1998年，Don't stop!", ["在", "1998", "年", "do", "n't", "stop", "!"]),
        ("《战国无双3》", ["战", "国", "无", "双", "3"]),
        ("等等……", ["等", "等", "……"]),  # listed by the script, but never removed
        ("1,000.5 km", ["1,000.5", "km"]),
        ("—，。", ["—"]),
        ("", []),
    ],
)
def test_what_cmrc_compares(text: str, tokens: list[str]) -> None:
    assert cmrc_tokens(text) == tokens


def test_cmrc_marks_by_hand() -> None:
    assert cmrc_exact_match("《关东三国志》", "关东三国志") == 1.0
    assert cmrc_exact_match("Windows 95", " windows 95 ") == 1.0
    assert cmrc_exact_match("windows 95", "windows95") == 0.0  # spaces count
    assert cmrc_f1("光荣和ω-force", "光荣") == pytest.approx(2 * 1.0 * 0.5 / 1.5)
    # Only the longest stretch counts, not all that is common.
    assert cmrc_f1("北京和上海市", "上海市北京") == pytest.approx(2 * (3 / 5) * (3 / 6) / (3 / 5 + 3 / 6))
    assert cmrc_f1("北京", "。") == 0.0
    assert cmrc_f1("", "") == 0.0


@given(st.text("甲乙丙 ab", max_size=9), st.text("甲乙丙 ab", max_size=9))
def test_the_longest_common_stretch(first: str, second: str) -> None:
    one, other = cmrc_tokens(first), cmrc_tokens(second)
    spans = [one[start:end] for start, end in itertools.combinations(range(len(one) + 1), 2)]
    places = range(len(other))
    common = max((len(s) for s in spans for place in places if other[place : place + len(s)] == s), default=0)
    expected = 2 * common / (len(one) + len(other)) if common else 0.0
    assert cmrc_f1(first, second) == pytest.approx(expected)


def test_gold_answers_of_cmrc_are_right(data_folder: Path) -> None:
    gold = answers(data_folder / "cmrc2018" / "dev.json")
    perfect = cmrc_scores(gold, {question: accepted[-1] for question, accepted in gold.items()})
    assert (perfect.exact, perfect.f1, perfect.total) == (1.0, 1.0, 3219)
    # What is cut by one character is no longer exact, but nearly all of it is common.
    cut = cmrc_marks(gold, {question: accepted[0][:-1] for question, accepted in gold.items()})
    assert cut.exact.mean() < 0.35
    assert 0.75 < cut.f1.mean() < 0.99


def test_words_are_those_of_nltk_on_real_texts(data_folder: Path) -> None:
    """nltk's word splitter without its sentence splitter, on all that is not Chinese and on English."""
    theirs = NLTKWordTokenizer()
    chinese = json.loads((data_folder / "cmrc2018" / "dev.json").read_text(encoding="utf-8"))["data"]
    texts = [paragraph["context"] for article in chinese for paragraph in article["paragraphs"]]
    stretches = {stretch for text in texts for stretch in "".join(map(_only_foreign, text.lower())).split("\n")}
    english = {
        text
        for accepted in answers(data_folder / "squad" / "dev-v1.1.reconstructed.json").values()
        for text in accepted
    }
    assert len(stretches) > 3000
    for text in stretches | english:
        assert split_words(text) == theirs.tokenize(text), text


def _only_foreign(letter: str) -> str:
    return "\n" if "\u4e00" <= letter <= "\u9fa5" or letter in "，。：？！“”；’《》·、「」（）－～『』" else letter


@pytest.mark.parametrize(
    "text",
    [
        "I cannot say; she's gone, they'd've known.",
        '\'tis the students\' 1,000,000: "quoted" ("so") ...',
        "gonna gimme lemme wanna gotta 50% of $3.50 @ u.s. & u.k.",
        "he said: 'no!' – «oui»",
        "we'll they're I've CAN'T",
        '""oxford companion to law "',
    ],
)
def test_words_are_those_of_nltk(text: str) -> None:
    assert split_words(text) == NLTKWordTokenizer().tokenize(text)


@given(st.text())
def test_no_letter_is_lost_or_invented(text: str) -> None:
    letters = [letter for letter in text if letter.isalnum()]
    assert [letter for word in split_words(text) for letter in word if letter.isalnum()] == letters


def test_what_cannot_be_scored() -> None:
    with pytest.raises(DataError, match="question 'q' has no gold answer; score such data as SQuAD 2.0"):
        squad_scores({"q": []}, {"q": "x"})
    with pytest.raises(DataError, match="question 'q' has no gold answer"):
        cmrc_scores({"q": []}, {"q": "x"})
    with pytest.raises(DataError, match="nothing to score"):
        squad_scores({}, {})
