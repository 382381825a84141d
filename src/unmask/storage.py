"""Files and folders that are either complete or not there: written beside their place, flushed, then renamed."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path

from unmask.errors import FetchError, UserError


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary path beside `path` to write to; becomes `path` when the block ends without an error.

    Whoever reads `path` sees the old content or the new one, never a part. If the block raises (Ctrl-C
    included) the temporary file is removed and `path` stays as it was.
    """
    path = _absolute(path)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(6)}.tmp")
    try:
        with disk_trouble(path):
            # With the ordinary mode, so that the file gets the user's permissions and not mkstemp's 0600.
            os.close(os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
        with full_disk(path):
            yield temporary
        with disk_trouble(path):
            sync(temporary)
            os.replace(temporary, path)
            sync(path.parent)
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


def atomic_write(path: Path, content: bytes) -> None:
    """Write `content` to `path` so that a crash leaves the old file or the new one."""
    with replacing(path) as temporary:
        temporary.write_bytes(content)


@contextlib.contextmanager
def new_folder(path: Path, *, overwrite: bool = False) -> Iterator[Path]:
    """A draft folder beside `path` to write into; becomes `path` when the block ends without an error.

    An existing folder is replaced only if `overwrite` is set and it looks like what replaces it (they have a file in
    common), so that a slip of the keyboard cannot replace a folder of something else. A link is followed.
    """
    path = _absolute(path)
    _check_free(path, overwrite=overwrite)
    draft = path.with_name(f".{path.name}.{secrets.token_hex(6)}.draft")
    try:
        with disk_trouble(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            draft.mkdir()
        with full_disk(path):
            yield draft
        with disk_trouble(path):
            for folder, _, files in os.walk(draft):
                for file in files:
                    sync(Path(folder) / file)
                sync(Path(folder))
            _check_free(path, overwrite=overwrite)  # another may have finished meanwhile
            put_in_place(draft, path)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _absolute(path: Path) -> Path:
    """The real place of a path, links followed; UserError if it is no place for a file or folder."""
    try:
        real = Path(path).expanduser().resolve()
        real.name.encode()
    except (OSError, ValueError, RuntimeError):
        raise UserError(f"{str(path)[:80]!r} cannot be the name of a file or folder") from None
    if not real.name:
        raise UserError(f"{path}: is the top of the file system; choose a folder inside it")
    return real


def _check_free(path: Path, *, overwrite: bool) -> None:
    occupied = path.exists() and (not path.is_dir() or any(path.iterdir()))
    if occupied and (not overwrite or not path.is_dir()):
        raise UserError(f"{path}: exists already; choose another name or allow it to be overwritten")


def put_in_place(draft: Path, path: Path) -> None:
    """Make a finished draft folder appear at `path`; what it replaces must be like it, and goes only afterwards."""
    if not path.exists():
        draft.rename(path)
        sync(path.parent)
        return
    before, after = (
        {entry.name for entry in folder.iterdir()} if folder.is_dir() else set() for folder in (path, draft)
    )
    if before and not before & after:
        raise UserError(
            f"{path}: holds other things ({sorted(before)[0]}, …) and is not overwritten; choose another name"
        )
    old = path.with_name(f".{path.name}.{secrets.token_hex(6)}.old")
    path.rename(old)
    try:
        draft.rename(path)
    except BaseException:
        old.rename(path)
        raise
    sync(path.parent)
    if old.is_dir():
        shutil.rmtree(old, ignore_errors=True)
    else:
        old.unlink()


def sync(path: Path) -> None:
    """Have the system put a file or folder on the disk before we rely on it."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        # Some network and FUSE file systems cannot sync a folder; the rename itself still holds there.
        if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.EBADF):
            raise
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def disk_trouble(path: Path) -> Iterator[None]:
    """Turn what a disk says while `path` is written into one sentence (FetchError)."""
    try:
        yield
    except OSError as error:
        raise FetchError(disk_sentence(path, error)) from error


@contextlib.contextmanager
def full_disk(path: Path) -> Iterator[None]:
    """The same for trouble that only the disk of `path` can make; an error in reading input stays what it is."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS):
            raise FetchError(disk_sentence(path, error)) from error
        raise


def disk_sentence(path: Path, error: OSError) -> str:
    """Why `path` could not be written and what to do."""
    place = path.parent
    match error.errno:
        case errno.ENOSPC | errno.EDQUOT:
            return f"{path}: the disk is full; free some space on the disk of {place} and try again"
        case errno.EFBIG:
            return f"{path}: larger than a file may be here; raise the limit or choose another disk"
        case errno.EACCES | errno.EPERM | errno.EROFS:
            return f"{path}: not allowed to write here; choose a folder you may write to"
        case errno.ENOENT | errno.ENOTDIR if not place.is_dir():
            return f"{path}: there is no folder {place} to write into; create it first"
        case _:
            return f"{path}: could not be written ({error.strerror or error}); check the disk of {place}"
