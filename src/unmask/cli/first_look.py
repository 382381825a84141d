"""A look at labelled files before anything heavy is loaded: what is wrong with them is said within a second.

Training reads them again. Loading torch alone takes longer than reading most files.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, cast, get_args

from unmask.data.label_kinds import Problem

#: Larger files are read once only, when all is ready.
_LARGE = 100_000_000


def first_look(task: Literal["classify", "tag", "qa"], files: Mapping[str, Any], problem: str | None = None) -> None:
    """DataError with file and line where training would refuse a file; files of the Hub are left for later."""
    train, dev, encoding = (files[name] for name in ("train", "dev", "encoding"))
    given = [file for file in (train, dev) if file is not None]
    if any(file.startswith("hub:") or _size(file) > _LARGE for file in given):
        return
    match task:
        case "classify":
            _labelled(given, files["columns"], problem, files.get("separator"), encoding)
        case "tag":
            from unmask.data.tagged import read_tagged

            for file in given:
                read_tagged(file, encoding=encoding)
        case "qa":
            from unmask.data.questions import read_questions

            for file in given:
                read_questions(file, encoding=encoding)


def _labelled(given: list[str], columns: str | None, problem: str | None, separator: str | None, encoding: str) -> None:
    from unmask.data.labelled import read_labelled

    if problem not in (None, "auto", *get_args(Problem)):
        return  # the settings have a sentence for it
    kind = cast(Any, problem or "auto")
    train = read_labelled(given[0], columns, kind, separator=separator, encoding=encoding)
    train.check_trainable()
    for file in given[1:]:
        dev = read_labelled(file, columns, train.problem, separator=train.separator, encoding=encoding)
        dev.check_labels(train.labels)


def _size(file: str) -> int:
    path = Path(file)
    return path.stat().st_size if path.is_file() else 0
