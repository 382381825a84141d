"""Run folders: whose they are, what they were made of, and what was measured in them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from unmask.config import read_json
from unmask.errors import SettingsError, UserError
from unmask.storage import atomic_write, disk_trouble
from unmask.train.checkpoint import BEST, newest_checkpoint
from unmask.train.record import METRICS, read_entries

SETTINGS = "settings.json"
MODEL = "model"
#: What may be different when a run goes on: none of it changes what is learned.
_FREE = {"log_every", "save_every", "keep", "workers", "engine", "checkpoint_activations", "compile"}


def claim(
    run: Path, resolved: Mapping[str, Any], *, resume: bool, begin: Callable[[dict[str, Any]], None] | None = None
) -> None:
    """Make sure that the folder is free, or holds the run that is to go on; write the settings into it.

    `begin` is called with what an earlier try wrote down, if one that never came to its first checkpoint was there.
    """
    stored = run / SETTINGS
    check_free(run, resume=resume)
    before = recorded(stored, list(resolved))
    if newest_checkpoint(run) is not None:
        if found := difference(before, resolved):
            raise SettingsError(
                f"{run}: the run that is there had another {found}; give the settings it began with "
                f"({stored}), or choose another folder"
            )
    elif not before and run.is_dir() and any(run.iterdir()):
        raise UserError(f"{run}: holds other things; choose a folder of its own for the run")
    else:  # at most what a run that never came to its first checkpoint left behind
        shutil.rmtree(run / BEST, ignore_errors=True)
        if begin is not None:
            begin(before)
    with disk_trouble(run):
        run.mkdir(parents=True, exist_ok=True)
    atomic_write(stored, (json.dumps(resolved, indent=1, ensure_ascii=False) + "\n").encode())


def check_free(run: Path, *, resume: bool) -> None:
    """UserError if a run cannot be in the folder, or one is and is not to go on. Quick, so it can be asked first."""
    if run.exists() and not run.is_dir():
        raise UserError(f"{run}: is a file; choose a folder for the run")
    if newest_checkpoint(run) is not None and not resume:
        raise UserError(f"{run}: a run is there already; add --resume to go on with it, or choose another folder")


def model_folder(name: str) -> Path:
    """The model's folder where a run folder is named; else the name as it is, which may be no folder at all."""
    inside = Path(name) / MODEL
    return inside if (inside / "config.json").is_file() else Path(name)


def recorded(settings: Path, parts: Sequence[str]) -> dict[str, Any]:
    """What a run wrote down; empty if there is no such file, or not one with these parts."""
    data = read_json(settings) if settings.is_file() else None
    if not isinstance(data, dict) or not all(isinstance(data.get(part), dict) for part in parts):
        return {}
    return data


def difference(before: Any, now: Any, place: str = "") -> str | None:
    """The first setting that is not the same and matters."""
    if isinstance(before, Mapping) and isinstance(now, Mapping):
        for key in {**now, **before}:
            if place.endswith(".train") and key in _FREE:
                continue
            if found := difference(before.get(key), now.get(key), f"{place}.{key}" if place else str(key)):
                return found
        return None
    if before == now:
        return None
    return f"{place.removeprefix('pretrain.').removeprefix('finetune.')} ({before!r}, now {now!r})"


def measured(run: Path, update: int | None) -> dict[str, float]:
    """What the evaluation after this update found, as the run wrote it down."""
    entries = [entry for entry in read_entries(run / METRICS) if "evaluation" in entry and entry["update"] == update]
    found = entries[-1]["evaluation"] if entries else {}
    return {name: value for name, value in found.items() if value is not None}
