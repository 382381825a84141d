from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer

from unmask.cli.doctor import doctor
from unmask.errors import SettingsError, UserError
from unmask.text import Tokenizer

app = typer.Typer(pretty_exceptions_enable=False)
app.command()(doctor)


def run(*arguments: object) -> int:
    try:
        app([str(argument) for argument in arguments])
    except SystemExit as leave:
        return int(leave.code or 0)
    return 0


@pytest.fixture
def train(tmp_path: Path) -> Path:
    path = tmp_path / "train.tsv"
    rows = [f"text {n} of {label}\t{label}\n" for label in ("a", "b") for n in range(6)]
    path.write_text("text\tlabel\n" + "".join(rows) + rows[0], encoding="utf-8")
    return path


def test_what_is_found_is_shown_and_warnings_are_no_failure(train: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(train) == 0
    out = capsys.readouterr().out
    for words in ("examples", "13", "text is column 'text'", "warning", "line 14: as line 2", "1 warning", str(train)):
        assert words in out


def test_errors_end_with_two(train: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    dev = tmp_path / "dev.tsv"
    dev.write_text("text\tlabel\nnew\tc\nnewer\ta\n", encoding="utf-8")
    assert run(train, "--dev", dev) == 2
    out = capsys.readouterr().out
    assert "the label 'c' is in 1 row here but never in training (line 2)" in out
    assert run(tmp_path / "none.tsv") == 2
    assert "no such file" in capsys.readouterr().out


def test_json_is_one_object(train: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(train, "--json") == 0
    value = json.loads(capsys.readouterr().out)
    assert value["facts"]["train"]["examples"] == 13
    assert [finding["kind"] for finding in value["findings"]] == ["duplicate"]


def test_fix_says_what_it_did(train: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "clean.tsv"
    assert run(train, "--fix", out) == 0
    shown = capsys.readouterr().out
    assert "exact copies dropped: 1" in shown
    assert f"{out}: 12 examples" in shown
    with pytest.raises(UserError, match="exists already"):
        run(train, "--fix", out)
    assert run(train, "--fix", out, "--overwrite", "--json") == 0
    assert json.loads(capsys.readouterr().out)["fixed"]["done"] == {"exact copies dropped": 1}
    with pytest.raises(UserError, match="one file at a time"):
        run(train, train, "--fix", tmp_path / "x.tsv")


def test_options_reach_the_reader(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "a.csv"
    path.write_text("text,other,label\n" + "".join(f"t{n},u{n},x|y\nv{n},w{n},x\n" for n in range(5)), encoding="utf-8")
    assert run(path, "--columns", "text=other", "--problem", "single", "--json") == 0
    facts = json.loads(capsys.readouterr().out)["facts"]["train"]
    assert facts["labels"] == {"x": 5, "x|y": 5}
    assert "text is column 'other'" in " ".join(facts["said"])
    assert run(path, "--separator", "|", "--no-header", "--columns", "text=1,label=3", "--json") == 0
    facts = json.loads(capsys.readouterr().out)["facts"]["train"]
    assert facts["labels"] == {"label": 1, "x": 10, "y": 5}
    with pytest.raises(SettingsError, match="task"):
        run(path, "--task", "guess")


def test_lengths_in_the_tokens_of_a_model(train: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Tokenizer.from_vocab(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "text", "of"]).save(tmp_path / "tokenizer")
    assert run(train, "--model", tmp_path / "tokenizer", "--max-length", "5") == 0
    out = capsys.readouterr().out
    assert "tokens a text" in out
    assert "longer than 5 tokens (100.0%)" in out


def test_what_stands_in_a_file_cannot_steer_the_screen(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "a.tsv"
    path.write_text("text\tlabel\n[bold]x[/bold]\t\x1b[31mred\nb\t[/]\n", encoding="utf-8")
    run(path)
    out = capsys.readouterr().out
    assert "\x1b[31mred" not in out
    assert "\\x1b[31mred" in out
