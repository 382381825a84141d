"""`unmask lab`: ask, list, run, report; and what it says when something is wrong."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from unmask.cli.main import run as unmask

Captured = pytest.CaptureFixture[str]


def test_asked_in_english_it_answers_in_english(tmp_path: Path, capsys: Captured) -> None:
    assert unmask(["lab", "run", "look-ahead-mask", "--out", str(tmp_path)]) == 0
    assert "look-ahead-mask: depends" in capsys.readouterr().out
    assert unmask(["lab", "ask", "may a token see itself under the causal mask?", "--results", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert said.startswith("What does the decoder's look-ahead mask hide")
    assert "S1's mask holds" in said
    assert "unmask lab run look-ahead-mask" in said


def test_asked_in_chinese_it_answers_in_chinese(capsys: Captured) -> None:
    assert unmask(["lab", "ask", "为什么除以根号 d_k"]) == 0
    said = capsys.readouterr().out
    assert "[scale-sqrt-dk]" in said.splitlines()[0]
    assert "常见的说法" in said


def test_for_programs_it_says_json(capsys: Captured) -> None:
    assert unmask(["lab", "ask", "why layer norm instead of batch norm", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["id"] == "layernorm-vs-batchnorm"
    assert said["run"] == "unmask lab run layernorm-vs-batchnorm"
    assert {part["kind"] for part in said["parts"]} <= {"exact", "measure", "ablation"}
    assert unmask(["lab", "list", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)) == 50


def test_the_list_says_what_was_not_run(tmp_path: Path, capsys: Captured) -> None:
    assert unmask(["lab", "list", "--results", str(tmp_path)]) == 0
    assert capsys.readouterr().out.count("not yet run") >= 50


def test_a_run_goes_on_where_its_budget_ended(tmp_path: Path, capsys: Captured) -> None:
    command = ["lab", "run", "look-ahead-mask", "--out", str(tmp_path)]
    assert unmask([*command, "--budget", "0"]) == 0
    assert "trials are left" in capsys.readouterr().err
    assert unmask(command) == 0
    assert unmask(["lab", "report", "--results", str(tmp_path), "--out", str(tmp_path / "lab.html")]) == 0
    page = (tmp_path / "lab.html").read_text(encoding="utf-8")
    assert "对角线左侧一片空白" in page
    assert unmask(["lab", "report", "--results", str(tmp_path), "--out", str(tmp_path / "lab.html")]) == 2
    assert "lab.html" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["run"], "--all"),
        (["run", "warmup", "--all"], "--all"),
        (["run", "warm-up"], "did you mean warmup?"),
        (["run", "warmup", "--size", "huge"], "huge"),
        (["run", "warmup", "--kind", "guess"], "guess"),
        (["run", "warmup", "--out", __file__], "cannot be a folder"),
        (["ask", "qwzx"], "nothing in the lab fits"),
        (["ask", "warmup", "--results", "/nowhere/at/all"], "no such folder"),
        (["list", "--lang", "fr"], "fr"),
    ],
)
def test_what_is_wrong_is_one_sentence(arguments: list[str], words: str, capsys: Captured) -> None:
    assert unmask(["lab", *arguments]) == 2
    said = capsys.readouterr().err.strip()
    assert words in said
    assert "\n" not in said
