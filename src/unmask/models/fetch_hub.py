"""Repositories of the Hugging Face Hub, without anything that can run code.

huggingface_hub does the work and keeps its own cache, with its own settings (HF_ENDPOINT, HF_HOME, HF_TOKEN ...).
Only configuration, tokenizer files and safetensors are asked for; never a pickle, never a script.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterable
from pathlib import Path

from unmask.errors import FetchError, UserError
from unmask.models.catalogue import short_names
from unmask.models.fetch_progress import Progress, Report

ALLOWED = (
    "config.json",
    "*/config.json",  # the parts of sentence-transformers, such as 1_Pooling
    "generation_config.json",
    "modules.json",
    "sentence_bert_config.json",
    "config_sentence_transformers.json",
    "*.safetensors",
    "*.safetensors.index.json",
    "vocab.txt",
    "vocab.json",
    "merges.txt",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "README.md",
)


def fetch_repository(name: str, report: Report, *, revision: str | None, refresh: bool, offline: bool) -> Path:
    """The folder of a Hub repository; from the cache unless `refresh` asks for the newest."""
    if refresh and offline:
        raise FetchError(
            f"{name} should be fetched anew and the network is switched off (UNMASK_OFFLINE or HF_HUB_OFFLINE)"
        )
    if not refresh:
        cached = _snapshot(name, report, revision, local=True)
        if cached is not None and _complete(cached):
            return cached
        if offline:
            raise FetchError(
                f"{name}: no folder of that name is here, it is not (completely) in the Hub's cache, and the network "
                f"is switched off (UNMASK_OFFLINE or HF_HUB_OFFLINE); switch it on once, or give a local folder"
            )
    folder = _snapshot(name, report, revision, local=False)
    if folder is None or not any(folder.glob("*.safetensors")):
        raise FetchError(
            f"{name}: the repository holds no .safetensors file, and other formats (pickles) are never loaded; look "
            "for a converted copy on the Hub"
        )
    if not _complete(folder):
        raise FetchError(f"{name}: the repository's index names shards that it does not hold; choose another one")
    return folder


def cached_repositories() -> list[tuple[str, Path, int]]:
    """Name, folder and size of the models in the Hub's cache that can be used as they are."""
    from huggingface_hub import CacheNotFound, scan_cache_dir

    try:
        cache = scan_cache_dir()
    except (CacheNotFound, ValueError):  # there is none, or something else is in its place
        return []
    found = []
    for repo in cache.repos:
        if repo.repo_type == "model":
            # The revision that `fetch` would give: the one "main" points to.
            main = repo.refs.get("main")
            if main is not None and _complete(main.snapshot_path):
                found.append((repo.repo_id, main.snapshot_path, main.size_on_disk))
    return sorted(found)


def _snapshot(name: str, report: Report, revision: str | None, *, local: bool) -> Path | None:
    """The snapshot's folder; None if only the cache may be asked and it has none."""
    # Imported here: the Hub's library takes a while to load and most commands never need it.
    from huggingface_hub import errors, snapshot_download

    try:
        folder = snapshot_download(
            name,
            revision=revision,
            local_files_only=local,
            allow_patterns=list(ALLOWED),
            tqdm_class=_bar(name, report),
        )
        return Path(folder)
    except errors.HFValidationError:
        raise UserError(
            f"{name}: neither a folder, nor a name of the catalogue ({', '.join(short_names())}), nor a possible "
            "repository of the Hub (org/name)"
        ) from None
    except errors.GatedRepoError:
        raise FetchError(f"{name}: asks for consent first; accept its terms on the Hub and set HF_TOKEN") from None
    except errors.RevisionNotFoundError:
        raise FetchError(f"{name}: has no revision {revision}; give a branch, tag or commit that exists") from None
    except errors.RepositoryNotFoundError:
        raise FetchError(
            f"{name}: the Hub knows no such repository; check the spelling of org/name, set HF_TOKEN if it is "
            f"private, or take a name of the catalogue ({', '.join(short_names())})"
        ) from None
    except Exception as error:  # the library lets errors of its HTTP client through, and those vary by version
        if local and isinstance(error, OSError):
            return None
        raise FetchError(_sentence(name, error)) from error


def _sentence(name: str, error: Exception) -> str:
    from huggingface_hub import constants

    if isinstance(error, OSError) and error.errno == 28:
        return f"{name}: the disk is full; free some space in {constants.HF_HUB_CACHE} and try again"
    root = error
    while isinstance(root.__cause__, Exception):
        root = root.__cause__
    reason = (str(root).splitlines() or [""])[0][:150] or type(root).__name__
    return (
        f"{name}: no folder of that name is here, and the Hub at {constants.ENDPOINT} could not be reached ({reason}); "
        "set HF_ENDPOINT to a mirror, give a local folder, or take a name of the catalogue "
        f"({', '.join(short_names())}), which needs no Hub"
    )


def _complete(folder: Path) -> bool:
    """Whether a snapshot has weights and every shard its index names; an interrupted download may not."""
    if not any(folder.glob("*.safetensors")):
        return False
    return all((folder / shard).is_file() for index in folder.glob("*.index.json") for shard in _shards(index))


def _shards(index: Path) -> Iterable[str]:
    try:
        places = json.loads(index.read_bytes())["weight_map"]
        return {str(shard) for shard in places.values()}
    except (ValueError, LookupError, TypeError, AttributeError, OSError, RecursionError):
        return ()  # not this module's to judge: reading the weights says what is wrong with the index


def _bar(label: str, report: Report) -> type:
    """A progress bar for the Hub's library that draws nothing and passes the numbers on."""
    from huggingface_hub.utils.tqdm import tqdm

    furthest = (0, 0)

    class Bar(tqdm):
        """Bytes received and bytes written are two bars there; the further one is reported."""

        def display(self, msg: str | None = None, pos: int | None = None) -> None:
            nonlocal furthest
            if self.unit != "B":
                return
            now = (max(furthest[0], int(self.n)), max(furthest[1], int(self.total or 0)))
            if now != furthest:  # bars are also drawn when they are thrown away, long after the end
                furthest = now
                report(Progress(label, min(now), now[1] or None))

        def close(self) -> None:
            self.fp = io.StringIO()  # closing would write a line break to the terminal
            super().close()

    return Bar
