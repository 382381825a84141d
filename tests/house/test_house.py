"""The house keeps its own rules."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from unmask.errors import FetchError
from unmask.models.fetch import fetch

ROOT = Path(__file__).parents[2]
SOURCES = sorted((ROOT / "src").rglob("*.py"))


def functions(tree: ast.AST) -> list[ast.FunctionDef]:
    return [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT / "src")))
def test_sizes_stay_small_and_nothing_forbidden_is_used(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 400
    tree = ast.parse(text)
    for function in functions(tree):
        name = function.name
        assert (function.end_lineno or 0) - function.lineno < 50, f"{name} is long"
        arguments = [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]
        count = len([argument for argument in arguments if argument.arg not in ("self", "cls")])
        command = "cli" in path.parts  # a command's parameters are its flags
        assert command or count <= 7, f"{name} has {count} parameters"
        own = path.name != "config.py"  # Settings take their fields by name, and pydantic checks them
        assert not own or function.args.kwarg is None, f"{name} takes **{function.args.kwarg}"
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [alias.name for alias in node.names] + [getattr(node, "module", None) or ""]
            assert not {"pickle", "cPickle", "dill", "joblib", "cloudpickle"} & set(names)
            assert "matplotlib.pyplot" not in names, "pyplot keeps figures and settings for the whole process"
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            assert called not in {"torch.load", "eval", "exec", "torch.save"}, called
    assert path.name != "utils.py"


def test_every_public_room_says_what_it_is() -> None:
    for path in SOURCES:
        assert ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))), path


def test_importing_does_no_work() -> None:
    code = "import time; t=time.time(); import unmask, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def blocks(path: Path, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", path.read_text(encoding="utf-8"), re.S)


def commands_of(name: str) -> list[str]:
    lines = [line for block in blocks(ROOT / name, "bash") for line in block.splitlines()]
    return [line.split("   #")[0].strip() for line in lines if line.startswith("unmask ")]


def test_the_commands_of_the_readmes_work(minilm_folder: Path, tmp_path: Path) -> None:
    names = ("README.md", "README.zh.md")
    assert all(len(commands_of(name)) >= 6 for name in names)
    for file in names:
        (tmp_path / file).write_text((ROOT / file).read_text(encoding="utf-8"), encoding="utf-8")
    for command in dict.fromkeys([*commands_of(names[0]), *commands_of(names[1])]):  # most stand in both
        shell = command.replace("unmask ", f"{sys.executable} -m unmask ", 1)
        done = subprocess.run(shell, shell=True, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{command}\n{done.stderr}"
        assert done.stdout.strip(), command


PAGES = ["README.md", "README.zh.md", *(str(page.relative_to(ROOT)) for page in sorted((ROOT / "docs").glob("*.md")))]


#: In one process, since loading torch takes longer than they do; a block knows nothing of the others.
EACH_BY_ITSELF = """
import json, sys
for page, block in json.load(sys.stdin):
    exec(compile(block, page, "exec"), {"__name__": "__main__"})
"""


def test_the_python_of_every_page_runs(minilm_folder: Path, tmp_path: Path) -> None:
    found = [(name, block) for name in PAGES for block in blocks(ROOT / name, "python")]
    assert len(found) > 8
    command = [sys.executable, "-c", EACH_BY_ITSELF]
    done = subprocess.run(command, input=json.dumps(found), cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_quickstart_does_what_it_says(minilm_folder: Path, tmp_path: Path) -> None:
    try:
        fetch("movie-reviews")
    except FetchError as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(f"movie-reviews is not cached and cannot be fetched: {error}")
    command = [sys.executable, "-m", "unmask", "quickstart", "--quick", "--out", str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "A quiet film that stays with you for days." in done.stdout
    made = tmp_path / "out" / "quickstart-quick"
    for file in ("attention.html", "test/report.html", "run/model/model.safetensors"):
        assert (made / file).stat().st_size > 10_000


def test_links_in_the_docs_lead_somewhere() -> None:
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    for page in pages:
        for target in re.findall(r"\]\(([^)#]+)\)", page.read_text(encoding="utf-8")):
            if not target.startswith("http"):
                assert (page.parent / target).exists(), f"{page.name}: {target}"
