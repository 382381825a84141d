"""`unmask predict`, `evaluate` and `compare`: what goes in, what comes out, and what is said beside it."""

from __future__ import annotations

import io
import json
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import finetune_toy as toy
from unmask.cli.main import run as unmask
from unmask.tasks import predict as predict_task

Captured = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def call(*arguments: object) -> int:
    return unmask([*map(str, arguments)])


def lines(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


# predict


def test_texts_of_the_command_line(capsys: Captured) -> None:
    assert call("predict", toy.learned("single"), "--text", "the good", "--text", "the bad") == 0
    said = lines(capsys.readouterr().out)
    assert [one["label"] for one in said] == ["pos", "neg"]
    assert said[0]["text"] == "the good"
    assert list(said[0]["probabilities"]) == ["pos", "neg"]  # the most probable first
    assert sum(said[0]["probabilities"].values()) == pytest.approx(1, abs=1e-5)
    assert (said[1]["line"], said[1]["windows"], said[1]["coverage"]) == (2, 1, 1.0)
    assert call("predict", toy.learned("pair"), "--text", "the red", "--pair", "a blue") == 0
    assert lines(capsys.readouterr().out)[0]["label"] == "blue"
    assert call("predict", toy.learned("qa"), "--question", "who was it ?", "--context", "the ada was") == 0
    (said,) = lines(capsys.readouterr().out)
    assert (said["answer"], said["start"], said["end"], said["no_answer"]) == ("ada", 4, 7, False)


def test_a_run_its_model_and_a_folder_are_the_same(capsys: Captured) -> None:
    for place in (toy.learned("words"), toy.learned("words") / "model"):
        assert call("predict", place, "--text", "ada was in york rome") == 0
    one, two = capsys.readouterr().out.splitlines()
    assert one == two
    found = json.loads(one)["entities"]
    assert [(entity["text"], entity["type"]) for entity in found] == [("ada", "PER"), ("york rome", "LOC")]


def test_standard_input(capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"the good\nthe bad\n")))
    assert call("predict", toy.learned("single"), "-") == 0
    assert [one["label"] for one in lines(capsys.readouterr().out)] == ["pos", "neg"]


def test_a_screen_gets_a_table(capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    shown = {
        "single": (["--text", "the good [red]"], ["the good [red]", "pos"]),
        "multi": (["--text", "cat", "--text", "the"], ["cat", "(none)"]),
        "regression": (["--text", "good"], ["good"]),
        "words": (["--text", "ada was", "--text", "the"], ["PER: ada", "(nothing)"]),
        "plain": (["--text", "ada the"], ["ada/NAME", "the/WORD"]),
        "qa2": (["--question", "who was it ?", "--context", "the rome was"], ["(the text does not tell)"]),
    }
    for task, (arguments, words) in shown.items():
        assert call("predict", toy.learned(task), *arguments) == 0
        out = capsys.readouterr().out
        for word in ("said", *words):
            assert word in out
        assert call("predict", toy.learned(task), *arguments, "--json") == 0
        assert lines(capsys.readouterr().out)


def test_no_text_is_no_mistake(tmp_path: Path, capsys: Captured) -> None:
    (tmp_path / "empty.txt").write_text("", encoding="utf-8")
    assert call("predict", toy.learned("single"), tmp_path / "empty.txt", "--out", tmp_path / "said.jsonl") == 0
    assert "no texts were given" in capsys.readouterr().err
    assert (tmp_path / "said.jsonl").read_text(encoding="utf-8") == ""


def test_hard_texts_come_back_to_the_letter(tmp_path: Path, capsys: Captured) -> None:
    texts = [
        "ada 👩‍👩‍👧‍👦",
        "a\u202eb \x1b[31m bob",
        "e\u0301\t\u00a0 ",
        "的\ud83d是".replace("\ud83d", ""),
        "x" * 5000,
    ]
    file = toy.write_rows(tmp_path / "a.jsonl", [{"text": text} for text in texts])
    assert call("predict", toy.learned("words"), file, "--out", tmp_path / "said.jsonl") == 0
    said = lines((tmp_path / "said.jsonl").read_text(encoding="utf-8"))
    assert [one["text"] for one in said] == texts
    capsys.readouterr()
    assert call("predict", toy.learned("words"), file) == 0
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert "\u202e" not in out
    assert [one["text"] for one in lines(out)] == texts


def test_how_much_was_read_is_said(tmp_path: Path, capsys: Captured) -> None:
    long = "the good " * 100
    assert call("predict", toy.learned("single"), "--text", long, "--text", "a") == 0
    out, err = capsys.readouterr()
    said = lines(out)
    assert said[0]["windows"] > 3
    assert said[0]["coverage"] == 1
    assert "1 of 2 texts were read in windows; nothing was left out" in err
    run = tmp_path / "run"
    assert toy.train("single", run, "--long-text", "head", "--epochs", "1", count=20) == 0
    capsys.readouterr()
    assert call("predict", run, "--text", long, "--text", "a") == 0
    out, err = capsys.readouterr()
    assert lines(out)[0]["coverage"] == pytest.approx(62 / 200, abs=0.02)
    assert "1 of 2 texts were too long to be read whole" in err
    assert "(at least 31" in err


def test_a_file_of_predictions_is_there_whole_or_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = toy.write_rows(tmp_path / "a.jsonl", [{"text": f"the good {number}"} for number in range(10)])
    out = tmp_path / "said.jsonl"
    out.write_text("old\n", encoding="utf-8")
    seen: list[str] = []
    real = predict_task.record

    def broken(*given: Any) -> Any:
        seen.append(out.read_text(encoding="utf-8"))
        if len(seen) == 7:
            raise KeyboardInterrupt
        return real(*given)

    monkeypatch.setattr(predict_task, "record", broken)
    assert call("predict", toy.learned("single"), file, "--out", out, "--overwrite") == 130
    assert set(seen) == {"old\n"}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.jsonl", "said.jsonl"]
    monkeypatch.setattr(predict_task, "record", real)
    assert call("predict", toy.learned("single"), file, "--out", out, "--overwrite") == 0
    assert len(lines(out.read_text(encoding="utf-8"))) == 10


def test_a_row_that_is_wrong_in_the_middle_leaves_nothing(tmp_path: Path, capsys: Captured) -> None:
    rows = [json.dumps({"text": "the good"})] * 3000
    rows[2500] = '{"text": 5}'
    (tmp_path / "a.jsonl").write_text("\n".join(rows), encoding="utf-8")
    assert call("predict", toy.learned("single"), tmp_path / "a.jsonl", "--out", tmp_path / "said.jsonl") == 2
    assert "line 2501: the text must be text but is 5" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["a.jsonl"]


# evaluate


@pytest.mark.parametrize("task", ["single", "multi", "regression", "words", "plain", "qa2"])
def test_evaluation_says_what_the_run_said(task: str, tmp_path: Path, capsys: Captured) -> None:
    run = toy.learned(task)
    file = run.parent / f"{task}-dev.jsonl"
    assert call("evaluate", run, file, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    values = {name: score["value"] for name, score in found["scores"].items()}
    assert values == pytest.approx(toy.scores(run), abs=1e-6)
    assert call("evaluate", run, file, "--out", tmp_path / "report") == 0
    out = capsys.readouterr().out
    assert next(iter(values)) in out
    assert "95 % interval" in out
    assert {path.name for path in (tmp_path / "report").iterdir()} == {"evaluation.json", "report.html"}
    assert call("evaluate", run, file, "--out", tmp_path / "report") == 2
    assert call("evaluate", run, file, "--out", tmp_path / "report", "--overwrite") == 0


# compare


def test_two_runs_of_the_same_kind(tmp_path: Path, capsys: Captured) -> None:
    good = toy.learned("single")
    assert call("compare", good, good) == 0
    assert "No difference between" in capsys.readouterr().out
    draw = random.Random(0)
    rows = [row | {"label": draw.choice(["pos", "neg"])} for row in toy.single_rows(80, seed=1)]
    toy.write_rows(tmp_path / "single-train.jsonl", rows)
    bad = tmp_path / "bad"
    assert toy.train("single", bad, "--epochs", "1") == 0
    capsys.readouterr()
    assert call("compare", good, bad, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["metric"] == "accuracy"
    assert found["n"] == 100
    assert found["difference"] == pytest.approx(1 - toy.scores(bad)["accuracy"])
    assert found["p"] < 0.01
    assert "scores higher than" in found["verdict"]
    assert call("compare", good, bad, "--data", good.parent / "single-dev.jsonl", "--json") == 0
    assert json.loads(capsys.readouterr().out)["difference"] == pytest.approx(found["difference"])
