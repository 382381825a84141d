"""Folders that are either complete or not there."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path

from unmask.errors import UserError
from unmask.models.atomic import disk_trouble, sync


@contextlib.contextmanager
def new_folder(path: Path, *, overwrite: bool = False) -> Iterator[Path]:
    """A draft folder beside `path` to write into; becomes `path` when the block ends without an error.

    An existing folder is replaced only if `overwrite` is set, and stays whole until the new one is.
    """
    path = Path(path)
    if path.exists() and not overwrite and (path.is_file() or any(path.iterdir())):
        raise UserError(f"{path}: exists already; choose another name or allow it to be overwritten")
    draft = path.with_name(f".{path.name}.{secrets.token_hex(6)}.draft")
    with disk_trouble(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        draft.mkdir()
        try:
            yield draft
            for folder, _, files in os.walk(draft):
                for file in files:
                    sync(Path(folder) / file)
                sync(Path(folder))
            _put_in_place(draft, path)
            sync(path.parent)
        finally:
            shutil.rmtree(draft, ignore_errors=True)


def _put_in_place(draft: Path, path: Path) -> None:
    if not path.exists():
        draft.rename(path)
        return
    old = path.with_name(f".{path.name}.{secrets.token_hex(6)}.old")
    path.rename(old)
    try:
        draft.rename(path)
    except OSError:
        old.rename(path)
        raise
    if old.is_dir():
        shutil.rmtree(old, ignore_errors=True)
    else:
        old.unlink()
