from __future__ import annotations

import getpass
import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import numpy
import pytest
import torch

import unmask
from unmask.errors import SettingsError
from unmask.train import environment as module
from unmask.train.environment import environment, write_environment


def test_says_what_the_run_was_made_with() -> None:
    found = environment()
    assert found["unmask"] == unmask.__version__
    assert found["torch"]["version"] == torch.__version__
    assert found["torch"]["threads"] == torch.get_num_threads()
    assert found["torch"]["build"]
    assert not any("-f" in line or "FLAGS" in line for line in found["torch"]["build"])
    assert found["packages"]["numpy"] == numpy.__version__
    assert set(found["packages"]) == {"numpy", "tokenizers", "safetensors"}
    assert found["python"].endswith("{}.{}.{}".format(*sys.version_info))
    assert found["cpu"]["model"]
    assert 0 < found["cpu"]["cores_usable"] <= found["cpu"]["cores"]
    assert found["memory_bytes"] > 10**8
    assert found["started"].endswith("+00:00")
    if not torch.cuda.is_available() and not torch.backends.mps.is_available():
        assert found["devices"] == []


def test_the_command_has_no_folder_of_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    home = os.path.expanduser("~")
    argv = [f"{home}/bin/unmask", "pretrain", f"{home}/a.json", f"--out={home}", f"{home}ly", "文", "\udcff"]
    monkeypatch.setattr(sys, "argv", argv)
    expected = ["unmask", "pretrain", "~/a.json", "--out=~", f"{home}ly", "文", "\\udcff"]
    assert environment()["command"] == expected
    monkeypatch.setattr(sys, "argv", ["/somewhere/unmask/__main__.py", "info"])
    assert environment()["command"] == ["python -m unmask", "info"]


def test_says_nothing_about_the_user(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("UNMASK_SECRET", "my-secret-token")
    monkeypatch.setattr(sys, "argv", ["unmask"])
    text = write_environment(tmp_path).read_text(encoding="utf-8")
    assert "my-secret-token" not in text
    assert "UNMASK_SECRET" not in text
    assert socket.gethostname() not in text
    assert os.path.expanduser("~") not in text
    if getpass.getuser() not in ("root", "runner", "user", "test"):  # ordinary words
        assert getpass.getuser() not in text


def test_every_process_of_a_run_has_an_entry(tmp_path: Path) -> None:
    run = tmp_path / "run"
    path = write_environment(run)
    first = path.read_bytes()
    assert write_environment(run) == path == run / "environment.json"
    entries = json.loads(path.read_text(encoding="utf-8"))
    assert len(entries) == 2
    assert entries[:1] == json.loads(first)
    assert [entry.name for entry in run.iterdir()] == ["environment.json"]


@pytest.mark.parametrize(("content", "words"), [("{", "not valid JSON"), ("{}", "expected a list, given dict")])
def test_a_foreign_file_is_not_overwritten(tmp_path: Path, content: str, words: str) -> None:
    (tmp_path / "environment.json").write_text(content, encoding="utf-8")
    with pytest.raises(SettingsError, match=words):
        write_environment(tmp_path)
    assert (tmp_path / "environment.json").read_text(encoding="utf-8") == content


def git(*arguments: str) -> str:
    identity = ["-c", "user.name=A", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false"]
    done = subprocess.run(["git", *identity, *arguments], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_names_the_commit_of_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    monkeypatch.chdir(tmp_path)
    if subprocess.run(["git", "--version"], capture_output=True, check=False).returncode:
        pytest.skip("git is not here")
    assert environment()["git"] is None
    git("init", "--quiet")
    assert environment()["git"] is None  # no commit yet
    (tmp_path / "file").write_text("one", encoding="utf-8")
    git("add", "file")
    git("commit", "--quiet", "--message", "one")
    assert environment()["git"] == {"commit": git("rev-parse", "HEAD"), "changed": False}
    (tmp_path / "new").write_text("not known to git", encoding="utf-8")
    assert environment()["git"]["changed"] is False
    (tmp_path / "file").write_text("two", encoding="utf-8")
    assert environment()["git"]["changed"] is True


def test_no_git_is_no_trouble(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert environment()["git"] is None


def test_a_container_has_what_it_was_given(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = {"cpu.max": "50000 100000\n", "memory.max": "123456789\n"}
    monkeypatch.setattr(module, "_control_group", limits.__getitem__)
    assert environment()["cpu"]["cores_usable"] == 0.5
    assert environment()["memory_bytes"] == 123456789
    free = {"cpu.max": "max 100000\n", "memory.max": "max\n"}
    monkeypatch.setattr(module, "_control_group", free.__getitem__)
    assert environment()["cpu"]["cores_usable"] >= 1
    assert environment()["memory_bytes"] > 123456789
