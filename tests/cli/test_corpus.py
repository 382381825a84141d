from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from unmask.cli.main import run
from unmask.text import Tokenizer

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "paris", "is", "big", "北", "京", "##s", "."]
TEXT = "Paris is big.\nParis\n\n北京 is big.\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    Tokenizer.from_vocab(WORDS).save(tmp_path / "tokenizer")
    (tmp_path / "text.txt").write_text(TEXT, encoding="utf-8")
    return tmp_path


def build(folder: Path, *arguments: str) -> int:
    paths = [str(folder / "text.txt"), "--tokenizer", str(folder / "tokenizer"), "--out", str(folder / "out")]
    return run(["corpus", "build", *paths, "--workers", "1", *arguments])


def test_build_and_info_say_the_same(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert build(folder, "--json") == 0
    out, err = capsys.readouterr()
    assert err == ""
    facts = json.loads(out)
    assert (facts["documents"], facts["sentences"], facts["tokens"], facts["files"]) == (2, 3, 10, 1)
    assert facts["sentence_lengths"] == {"1": 1, "2–3": 0, "4–7": 2}
    assert facts["words"] == 9
    assert run(["corpus", "info", str(folder / "out"), "--json", "--verify"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out) == facts
    assert "as it was written" in err
    assert run(["corpus", "info", str(folder / "out")]) == 0
    out = capsys.readouterr().out
    assert "sentences" in out
    assert "4–7" in out


def test_options_reach_the_build(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--format", "paragraphs", "--field", "body", "--no-words", "--shard-tokens", "5"]
    assert build(folder, *arguments, "--json") == 0
    facts = json.loads(capsys.readouterr().out)
    expected = {"format": "paragraphs", "field": "body", "words": False, "shard_tokens": 5, "encoding": "utf-8"}
    assert facts["settings"] == expected
    assert facts["shards"] == 2
    assert facts["words"] == 10
    assert build(folder, "--overwrite") == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--format", "chapters"], "format"),
        (["--shard-tokens", "0"], "shard_tokens"),
        (["--encoding", "latin"], "encoding"),
        (["no-such.txt"], "no such file"),
        (["--workers", "0"], "workers"),
    ],
)
def test_errors_are_one_sentence_and_leave_nothing(
    arguments: list[str], words: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sorted(folder.iterdir())
    assert build(folder, *arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert words in err
    assert "Traceback" not in err
    assert sorted(folder.iterdir()) == before


def test_a_folder_that_exists_is_kept(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert build(folder) == 0
    assert build(folder) == 2
    assert "exists already" in capsys.readouterr().err
    assert run(["corpus", "info", str(folder)]) == 2
    assert "not a corpus" in capsys.readouterr().err


def test_literal_special_tokens_are_mentioned(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "text.txt").write_text("paris [MASK] [SEP]\n", encoding="utf-8")
    assert build(folder) == 0
    assert "2 special tokens" in capsys.readouterr().err


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_being_stopped_leaves_only_the_draft_and_the_command_goes_on(signum: int, code: int, folder: Path) -> None:
    (folder / "text.txt").write_text(TEXT * 150_000, encoding="utf-8")
    paths = [str(folder / "text.txt"), "--tokenizer", str(folder / "tokenizer"), "--out", str(folder / "out")]
    command = [sys.executable, "-m", "unmask", "corpus", "build", *paths, "--workers", "2", "--shard-tokens", "50000"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE)
    deadline = time.monotonic() + 60
    while not (folder / "out.partial" / "00001.hashes").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    process.send_signal(signum)
    _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (code, b"unmask: stopped\n")
    assert sorted(path.name for path in folder.iterdir()) == ["out.partial", "text.txt", "tokenizer"]
    done = subprocess.run([*command, "--json"], capture_output=True, check=True)
    assert b"going on after the" in done.stderr
    assert json.loads(done.stdout)["documents"] == 150_001
    assert sorted(path.name for path in folder.iterdir()) == ["out", "text.txt", "tokenizer"]


def test_help_does_not_wait_for_numbers() -> None:
    code = "import sys, unmask.cli.corpus; sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
