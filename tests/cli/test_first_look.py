"""Broken files are told before torch is loaded."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from unmask.cli.first_look import first_look
from unmask.errors import DataError

_CODE = """
import sys
from unmask.cli.main import run
code = run(sys.argv[1:])
print(code, "torch" in sys.modules)
"""
BROKEN = {
    "classify": ("a.csv", 'text,label\ngood,a\n"bad\n', "line 3"),
    "tag": ("a.jsonl", '{"tokens": ["a"], "tags": ["O"]}\n{"tokens": ["a"], "tags": ["O", "O"]}\n', "line 2"),
    "qa": ("a.jsonl", '{"question": "q", "context": "c"}\n{"question": "q"}\n', "line"),
}


@pytest.mark.parametrize("task", BROKEN)
def test_nothing_heavy_is_loaded_for_a_broken_file(task: str, tmp_path: Path) -> None:
    name, content, where = BROKEN[task]
    (tmp_path / name).write_text(content, encoding="utf-8")
    words = ["train", task, "--train", str(tmp_path / name), "--out", str(tmp_path / "out")]
    done = subprocess.run([sys.executable, "-c", _CODE, *words], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["2", "False"]
    assert name in done.stderr
    assert where in done.stderr
    assert not (tmp_path / "out").exists()


def test_dev_files_are_looked_at_too(tmp_path: Path) -> None:
    (tmp_path / "train.csv").write_text("text,label\none,a\ntwo,b\n", encoding="utf-8")
    (tmp_path / "dev.csv").write_text("text,label\none,a\ntwo,c\n", encoding="utf-8")
    files = {"train": str(tmp_path / "train.csv"), "dev": str(tmp_path / "dev.csv"), "columns": None}
    with pytest.raises(DataError, match=r"dev\.csv, line 3: the label 'c' is unknown"):
        first_look("classify", files | {"encoding": "utf-8"})


@pytest.mark.parametrize("train", ["hub:some/set:train"])
def test_what_is_far_away_is_left_for_later(train: str) -> None:
    first_look("classify", {"train": train, "dev": None, "columns": None, "encoding": "utf-8"})
