from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unmask.data.examples import TextExample
from unmask.data.label_kinds import natural
from unmask.data.labelled import iter_texts, read_labelled
from unmask.data.rows import RowError
from unmask.errors import DataError, SettingsError


def jsonl(tmp_path: Path, *rows: dict[str, Any]) -> Path:
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def labels_of(tmp_path: Path, *labels: Any, **options: Any) -> Any:
    return read_labelled(jsonl(tmp_path, *({"text": f"t {n}", "label": x} for n, x in enumerate(labels))), **options)


def test_single_labels_in_natural_order(tmp_path: Path) -> None:
    found = labels_of(tmp_path, "10", "2", "1", "2")
    assert (found.problem, found.labels) == ("single", ("1", "2", "10"))
    assert found.examples[1] == TextExample("t 1", None, "2", 2)
    assert labels_of(tmp_path, 3, -1, 3).labels == ("-1", "3")
    assert labels_of(tmp_path, True, False).labels == ("false", "true")
    assert labels_of(tmp_path, " pos ", "pos").labels == ("pos",)
    assert "4 examples, 3 labels: 1 (1), 2 (2), 10 (1)" in found.said


@given(st.lists(st.text(max_size=6)))
def test_any_labels_can_be_ordered(labels: list[str]) -> None:
    backwards = [*reversed(labels)]
    assert sorted(labels, key=natural) == sorted(backwards, key=natural)


def test_natural_order() -> None:
    assert sorted(["a10", "b", "a2", "10", "9", "-1", "1.5"], key=natural) == ["-1", "1.5", "9", "10", "a2", "a10", "b"]


def test_lists_are_several_labels(tmp_path: Path) -> None:
    found = labels_of(tmp_path, ["a", "b"], [], ["b", "b"])
    assert found.problem == "multi"
    assert [example.label for example in found.examples] == [("a", "b"), (), ("b",)]
    with pytest.raises(DataError, match="line 1: the label must be one value"):
        labels_of(tmp_path, ["a", "b"], problem="single")


@pytest.mark.parametrize("mark", ["|", ";", ","])
def test_separators_are_recognised_only_where_that_is_safe(tmp_path: Path, mark: str) -> None:
    found = labels_of(tmp_path, f"a{mark}b", "a", f"b{mark} c", "c")
    assert (found.problem, found.labels) == ("multi", ("a", "b", "c"))
    assert found.examples[2].label == ("b", "c")
    # "Arts, crafts" is one label: its parts occur nowhere else.
    unsafe = labels_of(tmp_path, f"Arts{mark} crafts", "Sport", f"Arts{mark} crafts")
    assert (unsafe.problem, unsafe.labels) == ("single", (f"Arts{mark} crafts", "Sport"))
    assert labels_of(tmp_path, f"Arts{mark} crafts", "Sport", separator=mark).labels == ("Arts", "Sport", "crafts")
    assert labels_of(tmp_path, f"a{mark}b", "a", f"b{mark}c", "c", problem="single").problem == "single"


def test_columns_of_zero_and_one(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("comment,toxic,rude,threat\nx,1,1,0\ny,0,0,0\nz,0,1,0\n", encoding="utf-8")
    found = read_labelled(path, "label=toxic+rude+threat")
    assert [example.label for example in found.examples] == [("toxic", "rude"), (), ("rude",)]
    assert (found.problem, found.labels) == ("multi", ("rude", "toxic"))
    path.write_text("comment,toxic,rude\nx,1,1\ny,2,0\n", encoding="utf-8")
    with pytest.raises(DataError, match="line 3: the column toxic must be 0 or 1 but is '2'"):
        read_labelled(path, "label=toxic+rude")


def test_regression_is_recognised_from_fractions(tmp_path: Path) -> None:
    found = labels_of(tmp_path, "5.000", "3.800", 0, "1.0")
    assert (found.problem, found.labels) == ("regression", ())
    assert [example.label for example in found.examples] == [5.0, 3.8, 0.0, 1.0]
    assert labels_of(tmp_path, "0", "1", "1").problem == "single"
    assert labels_of(tmp_path, "1.0", "0.0", "1.0").problem == "single"
    assert labels_of(tmp_path, "0", "1", problem="regression").examples[1].label == 1.0
    assert labels_of(tmp_path, "0.5", "1.5", problem="single").labels == ("0.5", "1.5")
    for wrong in ("NaN", "inf", "many"):
        with pytest.raises(DataError, match=f"line 12: the label must be a number but is '{wrong}'"):
            labels_of(tmp_path, *["0.5"] * 11, wrong)


def test_disagreed_labels_are_left_out_aloud(tmp_path: Path) -> None:
    found = labels_of(tmp_path, "entailment", "-", "neutral", "-")
    assert (len(found.examples), found.labels) == (2, ("entailment", "neutral"))
    assert any("2 rows have the label '-'" in said for said in found.said)
    assert labels_of(tmp_path, "+", "-").labels == ("+", "-")


def test_what_is_wrong_is_told_with_its_line_or_passed_over(tmp_path: Path) -> None:
    rows = [
        {"text": "fine", "label": "a"},
        {"text": "  ", "label": "a"},
        {"text": "x", "label": None},
        {"text": "x", "label": ""},
        {"text": 5, "label": "a"},
        {"text": "fine too", "label": "b"},
    ]
    path = jsonl(tmp_path, *rows)
    with pytest.raises(DataError, match=r"line 2: the text is empty; .*doctor --fix"):
        read_labelled(path)
    errors: list[RowError] = []
    found = read_labelled(path, on_error=errors.append)
    assert [example.line for example in found.examples] == [1, 6]
    kinds = [(error.line, error.kind) for error in errors]
    assert sorted(kinds) == [(2, "empty"), (3, "unlabelled"), (4, "unlabelled"), (5, "text")]


def test_pairs_and_their_empty_halves(tmp_path: Path) -> None:
    path = jsonl(
        tmp_path, {"sentence1": "a", "sentence2": "b", "label": 1}, {"sentence1": "a", "sentence2": "", "label": 0}
    )
    with pytest.raises(DataError, match="line 2: the pair is empty"):
        read_labelled(path)
    assert [example.pair for example in iter_texts(path)] == ["b", ""]


def test_checks_for_training(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"a\.jsonl: has only the label 'a'; to learn, at least two"):
        labels_of(tmp_path, "a", "a").check_trainable()
    dev = labels_of(tmp_path, "a", "b", "c")
    dev.check_trainable()
    dev.check_labels(("a", "b", "c"))
    with pytest.raises(DataError, match=r"line 2: the label 'b' is unknown; those of the training file are a, c"):
        dev.check_labels(("a", "c"))
    with pytest.raises(DataError, match="line 1: the label 'z'"):
        labels_of(tmp_path, ["a", "z"], ["a"]).check_labels(("a",))
    labels_of(tmp_path, "0.5", "1.5").check_labels(())


def test_texts_for_prediction_come_one_by_one_with_labels_as_written(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("one text\n\nanother, text\n", encoding="utf-8")
    said: list[str] = []
    assert list(iter_texts(path, said=said.append)) == [
        TextExample("one text", line=1),
        TextExample("", line=2),
        TextExample("another, text", line=3),
    ]
    assert said[0] == "no header: each line is a text"
    rows = {"text": "a", "label": 1}, {"text": "b", "label": ["x"]}, {"text": "", "label": None}
    found = list(iter_texts(jsonl(tmp_path, *rows)))
    assert [(example.text, example.label) for example in found] == [("a", "1"), ("b", ("x",)), ("", None)]
    for lacking in ({"text": None}, {"txt": "b"}):
        with pytest.raises(DataError, match=r"a\.jsonl, line 2: has no text; write \"\" if it is empty"):
            list(iter_texts(jsonl(tmp_path, {"text": "a"}, lacking)))


def test_labels_need_not_be_clear_to_predict(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("text,rating,topic\ngood,5,film\nbad,1,book\n", encoding="utf-8")
    with pytest.raises(DataError, match="could each be meant"):
        read_labelled(path)
    assert [example.text for example in iter_texts(path)] == ["good", "bad"]


def test_several_labels_are_parted_in_a_small_file_as_in_the_training_file(tmp_path: Path) -> None:
    train = labels_of(tmp_path, *(["a|b", "a", "b", "c", "a|c", "b|c"] * 3))
    assert (train.problem, train.separator) == ("multi", "|")
    path = jsonl(tmp_path, {"text": "a", "label": "a|b"}, {"text": "b", "label": "c"})
    dev = read_labelled(path, None, train.problem, separator=train.separator)
    assert [example.label for example in dev.examples] == [("a", "b"), ("c",)]
    dev.check_labels(train.labels)
    whole = read_labelled(path, None, "multi")
    assert "labels contain '|' and are taken whole; say --separator '|' if it parts them" in whole.said


def test_what_is_wrong_with_columns_is_said_before_the_first_text(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="has no column 'body'"):
        iter_texts(jsonl(tmp_path, {"text": "a"}), "text=body")


def test_a_problem_nobody_knows(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="auto, single, multi or regression, given 'multiple'"):
        labels_of(tmp_path, "a", problem="multiple")


@pytest.mark.parametrize(
    ("name", "problem", "count", "labels"),
    [
        ("glue/SST-2/train.tsv", "single", 67349, {"0": 29780, "1": 37569}),
        ("glue/CoLA/dev.tsv", "single", 1043, {"0": 322, "1": 721}),
        ("glue/MRPC/dev.tsv", "single", 408, {"0": 129, "1": 279}),
        ("glue/STS-B/dev.tsv", "regression", 1500, {}),
        ("ocnli/dev.json", "single", 2950, {"contradiction": 900, "entailment": 947, "neutral": 1103}),
        ("afqmc/dev.txt", "single", 4316, {"0": 2978, "1": 1338}),
        ("chnsenticorp/test.tsv", "single", 1200, {"0": 592, "1": 608}),
    ],
)
def test_real_files(data_folder: Path, name: str, problem: str, count: int, labels: dict[str, int]) -> None:
    found = read_labelled(data_folder / name)
    assert (found.problem, len(found.examples)) == (problem, count)
    if labels:
        assert Counter(example.label for example in found.examples) == labels
    else:
        assert all(isinstance(example.label, float) and 0 <= example.label <= 5 for example in found.examples)


def test_a_number_that_is_none_among_numbers_is_told_by_its_line(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("text,score\na,0.5\nb,1.5\nc,NaN\n", encoding="utf-8")
    with pytest.raises(DataError, match=r"line 4: the label must be a number but is 'NaN'"):
        read_labelled(path)
