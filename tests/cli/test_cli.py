from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from unmask.cli.main import run
from unmask.models.folder import LoadReport
from unmask.models.init import build_model
from unmask.models.settings import BertSettings, MaskedTokenSettings

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "paris", "is", "big", "北", "京", "##s"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A small model folder with an MLM head."""
    from unmask.bundle import Bundle
    from unmask.text import Tokenizer

    settings = BertSettings(
        vocab_size=len(WORDS),
        num_layers=2,
        hidden_size=15,
        num_heads=3,
        ffn_size=7,
        max_length=16,
        heads=(MaskedTokenSettings(),),
    )
    bundle = Bundle(build_model(settings).eval(), Tokenizer.from_vocab(WORDS), LoadReport(0, 0))
    path = tmp_path_factory.mktemp("models") / "small"
    bundle.save(path)
    return str(path)


def lines(text: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in text.splitlines()]


def test_results_are_on_stdout_and_the_rest_on_stderr(folder: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["info", folder, "--json"]) == 0
    out, err = capsys.readouterr()
    facts = json.loads(out)
    assert err == ""
    assert facts["settings"]["hidden_size"] == 15
    assert facts["parameters"] == sum(part["parameters"] for part in facts["parts"])
    assert facts["loaded"].startswith("loaded ")
    assert run(["info", folder]) == 0
    out, err = capsys.readouterr()
    assert "loaded" in err
    assert "encoder.layer.*.attention.self.query" in out
    assert f"{facts['parameters']:,}" in out


def test_embed_takes_arguments_a_file_or_stdin(
    folder: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run(["embed", "-m", folder, "--json", "paris is big", "北京"]) == 0
    direct = lines(capsys.readouterr().out)
    assert [line["text"] for line in direct] == ["paris is big", "北京"]
    file = tmp_path / "texts.txt"
    file.write_text("paris is big\n北京\n", encoding="utf-8")
    assert run(["embed", "-m", folder, "--json", "--file", str(file)]) == 0
    assert lines(capsys.readouterr().out) == direct
    out = tmp_path / "vectors.npy"
    assert run(["embed", "-m", folder, "--file", str(file), "--out", str(out)]) == 0
    np.testing.assert_allclose(np.load(out), [line["vector"] for line in direct], atol=1e-6)
    capsys.readouterr()
    assert run(["embed", "-m", folder, "--file", str(file), "--out", str(out)]) == 2
    assert "exists already" in capsys.readouterr().err


def test_stdin_is_read_from_a_pipe(folder: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "unmask", "tokenize", "-m", folder, "--json"],
        input="Paris is big\n",
        capture_output=True,
        text=True,
        check=True,
    )
    assert lines(done.stdout)[0]["tokens"] == ["[CLS]", "paris", "is", "big", "[SEP]"]


def test_tokenize_says_what_it_leaves_out(folder: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["tokenize", "-m", folder, "--max-length", "4", "paris is big"]) == 0
    out, err = capsys.readouterr()
    assert "[CLS]" in out
    assert "1 tokens were left out" in err


def test_fill_mask(folder: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["fill-mask", "-m", folder, "--top", "3", "--json", "paris is [MASK] [MASK]"]) == 0
    found = lines(capsys.readouterr().out)
    assert [line["mask"] for line in found] == [0, 1]
    assert len(found[0]["guesses"]) == 3
    assert run(["fill-mask", "-m", folder, "paris is [MASK]"]) == 0
    assert "probability" in capsys.readouterr().out


def test_a_tokenizer_is_trained_and_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = tmp_path / "text.txt"
    text.write_text("the cat sat on the mat\n北京是中国的首都\n" * 20, encoding="utf-8")
    out = tmp_path / "tokenizer"
    assert run(["tokenizer", "train", str(text), "--out", str(out), "--size", "60", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["vocab_size"] <= 60
    assert run(["tokenizer", "report", str(text), "-m", str(out), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["lines"] == 40
    assert report["unknown_tokens"] == 0
    assert run(["tokenizer", "report", str(text), "-m", str(out)]) == 0
    assert "han" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["embed", "-m", "FOLDER", "--file", "/no/such/file"], 2, "no such file"),
        (["embed", "-m", "FOLDER", "--pooling", "median", "x"], 2, "cls, mean or max"),
        (["embed", "-m", "FOLDER", "--file", "a", "x"], 2, "not both"),
        (["embed", "-m", "FOLDER", "--out", "x.txt", "x"], 2, ".npy"),
        (["info", "/no/such/folder"], 2, "no such folder"),
        (["fill-mask", "paris"], 2, "--model"),
        (["fill-mask", "-m", "FOLDER", "paris"], 2, "no [MASK]"),
        (["tokenizer", "train", "/no/such.txt", "--out", "t"], 2, "no such file"),
        (["tokenizer", "train", "/no/such.txt", "--out", "t", "--kind", "magic"], 2, "kind"),
        (["nonsense"], 2, "nonsense"),
        (["embed", "--nonsense"], 2, "nonsense"),
    ],
)
def test_errors_are_one_sentence_and_a_code(
    arguments: list[str],
    code: int,
    words: str,
    folder: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run([folder if argument == "FOLDER" else argument for argument in arguments]) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert words in err
    assert "Traceback" not in err
    assert list(tmp_path.iterdir()) == []


def test_version_and_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--version"]) == 0
    assert capsys.readouterr().out.startswith("unmask 0.")
    assert run(["--help"]) == 0
    assert "fill-mask" in capsys.readouterr().out


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_being_stopped_has_its_code_and_leaves_nothing(signum: int, code: int, folder: str, tmp_path: Path) -> None:
    out = tmp_path / "vectors.npy"
    command = [sys.executable, "-m", "unmask", "embed", "-m", folder, "--file", "-", "--out", str(out)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdin is not None
    deadline = time.monotonic() + 60
    while not list(tmp_path.iterdir()) and time.monotonic() < deadline:  # until it has begun to write
        process.stdin.write(b"paris is big\n" * 3000)
        process.stdin.flush()
        time.sleep(0.05)
    assert list(tmp_path.iterdir())
    os.kill(process.pid, signum)
    _, err = process.communicate(timeout=60)
    assert process.returncode == code
    assert b"stopped" in err
    assert list(tmp_path.iterdir()) == []


def test_a_reader_that_has_seen_enough_hears_no_complaint(folder: str, tmp_path: Path) -> None:
    file = tmp_path / "texts.txt"
    file.write_text("paris is big\n" * 20_000)
    command = f"{sys.executable} -m unmask tokenize -m {folder} --json --file {file} | head -n 1"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, check=True)
    assert len(done.stdout.splitlines()) == 1
    assert done.stderr == ""


def test_help_does_not_wait_for_torch() -> None:
    code = "import sys, unmask.cli.main; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
