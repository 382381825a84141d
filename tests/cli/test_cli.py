from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from unmask.cli import console
from unmask.cli.main import run
from unmask.models.folder import LoadReport
from unmask.models.init import build_model
from unmask.models.settings import BertSettings, MaskedTokenSettings
from unmask.text import read_lines

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
        (["fill-mask", "paris"], 2, "[MASK]"),
        (["fill-mask", "-m", "FOLDER", "paris"], 2, "no [MASK]"),
        (["tokenizer", "train", "/no/such.txt", "--out", "t"], 2, "no such file"),
        (["tokenizer", "train", "/no/such.txt", "--out", "t", "--kind", "magic"], 2, "kind"),
        (["embed", "-m", "FOLDER", "--out", "nodir/v.npy", "x"], 2, "there is no folder nodir"),
        (["embed", "-m", "FOLDER", "--encoding", "latin-1", "x"], 2, "utf-8 or gb18030"),
        (["embed", "-m", "no/model", "--file", "/no/such/file"], 2, "no such file"),
        (["fetch", "--refresh"], 2, "--refresh needs"),
        (["fetch", "minillm"], 2, "did you mean minilm?"),
        (["info", "MiniLM"], 2, "did you mean minilm?"),
        (["fetch", "x" * 300], 2, "cannot be the name"),
        (["tokenizer", "train", "FILE", "--out", "t", "--coverage", "3"], 2, "--coverage: "),
        (["tokenizer", "train", "FILE", "--out", "t", "--min-frequency", "0"], 2, "--min-frequency: "),
        (["tokenizer", "train", "FILE", "--out", "t", "--size", "3"], 2, "--size: 3 cannot hold"),
        (["tokenizer", "train", "FILE", "--out", "t", "--kind", "magic"], 2, "--kind: "),
        (["tokenizer", "train", "FILE", "--out", "t", "--encoding", "latin-1"], 2, "--encoding: "),
        (
            ["tokenizer", "train", "FILE", "--out", "t", "--kind", "byte_bpe", "--byte-fallback"],
            2,
            "--byte-fallback: every token",
        ),
        (["tokenizer", "train", "FILE", "--out", "FOLDER"], 2, "--overwrite"),
        (["tokenizer", "train", "FILE", "--out", "FILE", "--overwrite"], 2, "is a file"),
        (["quickstart", "-m", "FOLDER", "--out", "FILE"], 2, "is a file"),
        (["quickstart", "-m", "FOLDER", "--out", "FILE/deeper"], 2, "is a file"),
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
    file = str(Path(folder) / "vocab.txt")
    given = [argument.replace("FOLDER", folder).replace("FILE", file) for argument in arguments]
    assert run(given) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert words in err
    assert "Traceback" not in err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["[bold]x", "[/y]", ":smile:"])
def test_paths_are_printed_to_the_letter(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "h" / name).mkdir(parents=True)
    assert run(["fetch", f"h/{name}"]) == 0
    assert capsys.readouterr().out == f"h/{name}\n"
    assert run(["fetch", f"./none/{name}"]) == 2
    assert f"none/{name}: no such folder" in capsys.readouterr().err
    assert run([name]) == 2
    text = tmp_path / "text.txt"
    text.write_text("the cat sat on the mat\n" * 20)
    assert run(["tokenizer", "train", str(text), "--out", f"h/{name}/t", "--size", "20"]) == 0
    assert capsys.readouterr().out.startswith(f"h/{name}/t: wordpiece")


def test_control_characters_are_shown_and_not_obeyed(
    folder: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hostile = "paris \x1b[31m\x9b2J \u202e is"
    assert run(["tokenize", "-m", folder, hostile]) == 0
    out, _ = capsys.readouterr()
    assert "\\x1b[31m\\x9b2J \\u202e" in out
    assert run(["embed", "-m", folder, hostile, "--json"]) == 0
    out, _ = capsys.readouterr()
    assert json.loads(out)["text"] == hostile
    assert not set("\x1b\x9b\u202e") & set(out)
    assert run(["embed", "-m", folder, "--file", str(tmp_path / "a\x1b]0;b\x07")]) == 2
    _, err = capsys.readouterr()
    assert "a\\x1b]0;b\\x07: no such file" in err
    console.say("half \ud800")
    console.result("half \ud800")
    console.print_json({"half": "\ud800"})
    assert capsys.readouterr().out == 'half \\ud800\n{"half": "\\ud800"}\n'


def test_a_terminal_never_gets_a_raw_result(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    console.result("a\x1bb")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    console.result("a\x1bb")
    assert capsys.readouterr().out == "a\x1bb\na\\x1bb\n"


def test_on_a_narrow_screen_every_part_can_be_told_apart(
    folder: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(console, "out", lambda: Console(highlight=False, width=80))
    assert run(["info", folder]) == 0
    out, err = capsys.readouterr()
    assert "…" not in out
    assert max(map(len, out.splitlines())) <= 80
    assert "encoder.stack.blocks.*" in out
    for name in (".self_attention.projections.query", ".self_attention.projections.key", ".around_ffn.norm"):
        assert name in out
    assert "wider terminal" in err
    console.print_table(["name"], [["x" * 200]])
    assert capsys.readouterr().out.count("x") == 200


def test_embed_writes_what_it_did_as_json_too(
    folder: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "v.npy"
    assert run(["embed", "-m", folder, "--out", str(out), "--json", "paris", "big"]) == 0
    assert json.loads(capsys.readouterr().out) == {"file": str(out), "vectors": 2, "width": 15}
    assert run(["embed", "-m", folder, "--out", str(out), "--overwrite", "paris"]) == 0
    assert capsys.readouterr() == (f"{out}: 1 vector of 15 numbers\n", "")


def test_embed_tells_what_it_could_not_read(
    folder: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run(["embed", "-m", folder, "paris is big", "", "london is", " "]) == 0
    assert capsys.readouterr().err == (
        "2 of 4 texts are empty\n"
        "20 % of the tokens are unknown to this model's vocabulary; was it made for this language?\n"
    )
    assert run(["embed", "-m", folder, "paris is big " * 40, "london", "--json"]) == 0  # 1 of 121
    assert capsys.readouterr().err == ""
    empty = tmp_path / "empty.txt"
    empty.write_bytes(b"")
    for command in (["embed"], ["tokenize"], ["fill-mask"]):
        assert run([*command, "-m", folder, "--file", str(empty)]) == 0
        assert capsys.readouterr() == ("", "no texts were given\n")
    assert run(["embed", "-m", folder, "--file", str(empty), "--out", str(tmp_path / "v.npy")]) == 0
    assert "0 vectors" in capsys.readouterr().out
    assert np.load(tmp_path / "v.npy").shape == (0, 15)


def test_embedding_moves_the_bar_within_a_chunk(
    folder: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []
    totals: list[int | None] = []

    @contextmanager
    def spy(label: str, total: int | None = None, *, shown: bool = True) -> Iterator[Callable[[int], None]]:
        totals.append(total)
        yield seen.append

    monkeypatch.setattr(console, "counting", spy)
    file = tmp_path / "texts.txt"
    file.write_text("paris is big paris is big\n" * 1999 + "paris " * 40)
    assert run(["embed", "-m", folder, "--file", str(file), "--out", str(tmp_path / "v.npy")]) == 0
    assert totals == [2000]
    assert len(seen) > 3  # although all are one chunk
    assert seen == sorted(seen)
    assert seen[-1] == 2000


def test_files_in_gb18030(folder: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "text.txt"
    file.write_bytes("北京 paris [MASK] 北京北京\n".encode("gb18030"))
    commands: list[list[str]] = [["tokenize"], ["embed"], ["fill-mask"]]
    for command in [*([*command, "--file"] for command in commands), ["tokenizer", "report"]]:
        given = [*command, str(file), "-m", folder, "--json"]
        assert run(given) == 2
        assert "--encoding gb18030" in capsys.readouterr().err
        assert run([*given, "--encoding", "gb18030"]) == 0
        out, err = capsys.readouterr()
        assert err == ""
        assert "北" in out or json.loads(out)["lost_characters"] == 0


def test_masks_are_told_apart(folder: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["fill-mask", "-m", folder, "paris is [MASK] [MASK]", "big [MASK]"]) == 0
    out = capsys.readouterr().out
    assert "mask 1 of 2: paris is [MASK] [MASK]" in out
    assert "mask 2 of 2: paris is [MASK] [MASK]" in out
    assert "mask 1 of 1: big [MASK]" in out


def test_a_vocabulary_smaller_than_asked_for_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = tmp_path / "text.txt"
    text.write_text("aa\n")
    command = ["tokenizer", "train", str(text), "--out", str(tmp_path / "t"), "--size", "300"]
    assert run(command) == 0
    err = capsys.readouterr().err
    vocab = json.loads((tmp_path / "t" / "tokenizer.json").read_text())["model"]["vocab"]
    assert err == f"asked for 300 tokens; the text supports only {len(vocab)} at --min-frequency 2\n"
    assert run(command) == 2
    assert "add --overwrite" in capsys.readouterr().err
    assert run([*command, "--overwrite"]) == 0


def test_the_report_says_what_it_calls_a_word(folder: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "text.txt"
    file.write_text("北京 is\n", encoding="utf-8")
    assert run(["tokenizer", "report", str(file), "-m", folder]) == 0
    assert "words (each Chinese character counts as one)" in capsys.readouterr().out


def test_a_home_that_cannot_be(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UNMASK_HOME", "/dev/null/x")
    assert run(["fetch", "minilm"]) == 2
    err = capsys.readouterr().err
    assert "UNMASK_HOME" in err
    assert "create it first" not in err


def test_fetch_can_be_told_to_fetch_anew(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[bool] = []

    def fetch(name: str, *, progress: object, refresh: bool) -> Path:
        asked.append(refresh)
        return tmp_path

    monkeypatch.setattr("unmask.models.fetch.fetch", fetch)
    assert run(["fetch", "minilm", "--refresh"]) == 0
    assert run(["fetch", "minilm"]) == 0
    assert asked == [True, False]


@pytest.mark.parametrize("content", [b"", b"a", b"a\n", b"a\nb", b"\n\n"])
def test_lines_are_counted_as_they_are_read(content: bytes, tmp_path: Path) -> None:
    file = tmp_path / "text.txt"
    file.write_bytes(content)
    assert console.num_lines(str(file)) == len(list(read_lines(file)))
    assert console.num_lines(None) is None
    assert console.num_lines("-") is None


def test_version_and_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--version"]) == 0
    assert capsys.readouterr().out.startswith("unmask 0.")
    assert run(["--help"]) == 0
    assert "fill-mask" in capsys.readouterr().out
    assert run(["embed", "--help"]) == 0
    assert "<bool>" not in capsys.readouterr().out.partition("--help")[0]


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
