"""What lies in a wheel (zip) or a source package (tar.gz): names, sizes, bytes. Nothing is extracted here."""

from __future__ import annotations

import contextlib
import gzip
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO

from unmask.errors import FetchError


@dataclass(frozen=True)
class Member:
    """A file in an archive."""

    name: str
    size: int
    open: Callable[[], IO[bytes]]


@contextlib.contextmanager
def opened(package: Path) -> Iterator[list[Member]]:
    """The plain files of a package, readable while the block lasts; links, devices and folders are passed over."""
    source = package.name.endswith(".tar.gz")
    try:
        with contextlib.ExitStack() as stack:
            yield _of_tar(stack, package) if source else _of_zip(stack, package)
    except (
        *(zipfile.BadZipFile, tarfile.TarError, gzip.BadGzipFile, zlib.error),
        *(EOFError, NotImplementedError, RuntimeError),
    ) as error:
        kind = "source package" if source else "wheel"
        raise FetchError(f"{package.name}: not a sound {kind} ({error}); remove {package} and fetch again") from None


def _of_zip(stack: contextlib.ExitStack, package: Path) -> list[Member]:
    archive = stack.enter_context(zipfile.ZipFile(package))
    return [
        Member(info.filename, info.file_size, partial(archive.open, info))
        for info in archive.infolist()
        if not info.is_dir()
    ]


def _of_tar(stack: contextlib.ExitStack, package: Path) -> list[Member]:
    archive = stack.enter_context(tarfile.TarFile.open(package, "r:gz"))
    return [Member(info.name, info.size, partial(_extracted, archive, info)) for info in archive if info.isreg()]


def _extracted(archive: tarfile.TarFile, info: tarfile.TarInfo) -> IO[bytes]:
    file = archive.extractfile(info)
    assert file is not None, "only plain files are listed"
    return file
