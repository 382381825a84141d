"""Results: one JSON file a question, with every trial that was ever counted."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from unmask.config import read_json
from unmask.errors import UserError
from unmask.lab.entry import Entry, Record, Size
from unmask.storage import atomic_write

_FORMAT = 1
#: Where the results that come with the package lie: beside the installed code, or in the project's documentation.
SHIPPED = (Path(__file__).parent / "shipped", Path(__file__).parents[3] / "docs" / "lab" / "results")


@dataclass(frozen=True)
class Kept:
    """What one trial found, and how."""

    record: Record
    settings: Mapping[str, Any]
    seconds: float
    code: str
    version: str
    machine: str

    def as_json(self) -> dict[str, Any]:
        """For the results file."""
        return {
            "record": self.record,
            "settings": dict(self.settings),
            "seconds": self.seconds,
            "code": self.code,
            "version": self.version,
            "machine": self.machine,
        }


@dataclass
class Results:
    """All that was found for a question: by part, size and name of the trial."""

    entry: Entry
    path: Path | None
    found: dict[str, dict[str, dict[str, Kept]]] = field(default_factory=dict)

    @classmethod
    def read(cls, entry: Entry, folder: Path | None) -> Results:
        """Those in a folder; none if it has none of this question."""
        path = None if folder is None else folder / f"{entry.id}.json"
        results = cls(entry, path)
        if path is None or not path.is_file():
            return results
        data = read_json(path)
        try:
            if data["format"] != _FORMAT or data["question"] != entry.id:
                raise ValueError("not the results of this question in a format that is known")
            for part, sizes in data["parts"].items():
                for size, trials in sizes.items():
                    for name, kept in trials.items():
                        results.of(part, size)[name] = Kept(**kept)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise UserError(
                f"{path}: these are no results of the lab ({error}); move the file away and run again"
            ) from None
        return results

    def of(self, part: str, size: Size) -> dict[str, Kept]:
        """The trials of a part at a size."""
        return self.found.setdefault(part, {}).setdefault(size, {})

    def add(self, part: str, size: Size, name: str, kept: Kept) -> None:
        """One trial more, written at once."""
        self.of(part, size)[name] = kept
        self.write()

    def write(self) -> None:
        """Write the file, whole or not at all."""
        if self.path is None:
            return
        parts = {
            part: {size: {name: kept.as_json() for name, kept in trials.items()} for size, trials in sizes.items()}
            for part, sizes in self.found.items()
        }
        data = {"format": _FORMAT, "question": self.entry.id, "parts": parts}
        self.path.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps(data, indent=1, ensure_ascii=False, allow_nan=False)
        atomic_write(self.path, (text + "\n").encode())


def shipped_folder() -> Path | None:
    """The results that come with the package."""
    return next((folder for folder in SHIPPED if folder.is_dir()), None)
