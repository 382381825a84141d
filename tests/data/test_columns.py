from __future__ import annotations

import pytest

from unmask.data.columns import ColumnChoice, Columns, choose_columns, parse_columns
from unmask.errors import DataError, SettingsError


def choose(names: str, *rows: tuple[object, ...], choice: str | None = None, labelled: bool = True) -> Columns:
    picked = None if choice is None else parse_columns(choice)
    return choose_columns(names.split("|"), rows, file="a.csv", choice=picked, labelled=labelled)


@pytest.mark.parametrize(
    ("names", "text", "pair", "label"),
    [
        ("sentence|label", "sentence", None, "label"),
        ("label|text_a", "text_a", None, "label"),
        ("qid|text_a|text_b|label", "text_a", "text_b", "label"),
        ("index|sentence1|sentence2|label", "sentence1", "sentence2", "label"),
        ("premise|hypothesis|label", "premise", "hypothesis", "label"),
        ("id|question1|question2|is_duplicate", "question1", "question2", "is_duplicate"),
        ("Quality|#1 ID|#2 ID|#1 String|#2 String", "#1 String", "#2 String", "Quality"),
        ("index|question|sentence|label", "question", "sentence", "label"),
        ("Review|Sentiment", "Review", None, "Sentiment"),
        ("标签|文本", "文本", None, "标签"),
        ("句子1|句子2|标签", "句子1", "句子2", "标签"),
        ("title|content|category", "content", None, "category"),
        ("label|label_desc|sentence|keywords", "sentence", None, "label"),
        ("utterance|intent", "utterance", None, "intent"),
        ("index|genre|sentence1|sentence2|score", "sentence1", "sentence2", "score"),
    ],
)
def test_by_name(names: str, text: str, pair: str | None, label: str) -> None:
    found = choose(names, *[tuple("x" for _ in names.split("|"))] * 2)
    assert (found.text, found.pair, found.label) == (text, pair, label)
    assert "by name" in found.said
    for name in (text, pair, label):
        assert name is None or repr(name) in found.said


def test_unused_columns_are_said() -> None:
    assert "not used: genre" in choose("text|label|genre", ("a", "b", "c")).said


TEXTS = ["it is good", "it was very bad", "not my thing at all", "well done"]
CHINESE = ["今天天气很好", "借呗有先息到期还本吗", "蚂蚁花呗说我违约一次", "下月账单"]


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        ([TEXTS, ["pos", "neg", "neg", "pos"]], (1, None, 2)),
        ([["1", "0", "0", "1"], CHINESE], (2, None, 1)),
        ([CHINESE, CHINESE[::-1], ["0", "1", "0", "1"]], (1, 2, 3)),
        # As CoLA: a source, a label, a mark that is mostly empty, a text.
        ([["gj04"] * 4, ["1", "0", "1", "1"], ["", "*", "", ""], TEXTS], (4, None, 2)),
        # As IMDB: names, a label that does not change in the first rows, a text.
        ([["0_3", "1_4", "2_1", "3_2"], ["0"] * 4, TEXTS], (3, None, 2)),
        # As STS-B: numbers that are all different.
        ([TEXTS, TEXTS[::-1], ["0.5", "4.25", "1.0", "3.9"]], (1, 2, 3)),
    ],
)
def test_by_content(columns: list[list[str]], expected: tuple[int, int | None, int]) -> None:
    names = "|".join(f"column {n}" for n in range(1, len(columns) + 1))
    found = choose(names, *zip(*columns, strict=True))
    numbers = [None if name is None else int(name.split()[1]) for name in (found.text, found.pair, found.label)]
    assert tuple(numbers) == expected
    assert "by what stands in them" in found.said


def test_without_labels_the_text_is_enough() -> None:
    found = choose("column 1", ("one",), ("two",), labelled=False)
    assert (found.text, found.label) == ("column 1", None)
    found = choose("id|sentence1|sentence2", ("0", "a b", "c d"), labelled=False)
    assert (found.text, found.pair, found.label, found.id) == ("sentence1", "sentence2", None, "id")


@pytest.mark.parametrize(
    ("names", "rows"),
    [
        ("review|comment|label", [("a", "b", "1")]),
        ("text|class|category", [("a", "b", "1")]),
        ("alpha|beta|gamma", [("a b", "c d", "e f"), ("g h", "i j", "k l")]),
    ],
)
def test_what_is_not_clear_is_asked(names: str, rows: list[tuple[str, ...]]) -> None:
    with pytest.raises(DataError) as caught:
        choose(names, *rows)
    for name in names.split("|"):
        assert name in str(caught.value)
    assert "--columns text=…,pair=…,label=…" in str(caught.value)


def test_named_columns_by_name_number_and_case() -> None:
    rows = [("a", "b", "c")] * 3
    assert choose("alpha|beta|gamma", *rows, choice="text=gamma,label=alpha").text == "gamma"
    found = choose("alpha|beta|gamma", *rows, choice="text=3, pair=BETA, label=1")
    assert (found.text, found.pair, found.label) == ("gamma", "beta", "alpha")
    found = choose("text|toxic|rude", *rows, choice="label=toxic+rude")
    assert (found.text, found.label, found.flags) == ("text", None, ("toxic", "rude"))


def test_a_wrong_name_gets_near_ones() -> None:
    with pytest.raises(DataError, match="has no column 'sentense' for the text; did you mean sentence"):
        choose("sentence|label", ("a", "b"), choice="text=sentense")
    with pytest.raises(DataError, match="has no column 'zzz' for the label; its columns are sentence"):
        choose("sentence|label", ("a", "b"), choice="label=zzz")


@pytest.mark.parametrize("option", ["text", "text=", "=a", "txet=a", ""])
def test_options_that_say_nothing(option: str) -> None:
    with pytest.raises(SettingsError, match="--columns"):
        parse_columns(option)


def test_options_are_settings() -> None:
    assert parse_columns("text=a,label=b+c") == ColumnChoice(text="a", label=("b", "c"))
