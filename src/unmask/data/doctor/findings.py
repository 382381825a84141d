"""What was found in a file, how bad it is, and where."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any, Literal, NamedTuple

from unmask.errors import place

Severity = Literal["error", "warning", "note"]
"""error: nothing can be learned, or the file is refused. warning: it would hurt. note: good to know."""
#: So many places are named; the rest is counted.
MAX_LINES = 20


@dataclass(frozen=True)
class Finding:
    """One kind of trouble in one file."""

    severity: Severity
    #: A word for programs: duplicate, conflict, leak, rare, long …
    kind: str
    #: One sentence that says what, how often, and what to do.
    message: str
    file: str
    #: The first lines with it, at most 20.
    lines: tuple[int, ...] = ()
    count: int = 1


@dataclass(frozen=True)
class Report:
    """All findings, the worst first, and facts about the files."""

    task: str
    findings: list[Finding]
    facts: dict[str, Any]

    @property
    def has_errors(self) -> bool:
        """Whether something must be done before training."""
        return any(finding.severity == "error" for finding in self.findings)

    def to_dict(self) -> dict[str, Any]:
        """Plain data, for JSON."""
        return {"task": self.task, "findings": [asdict(finding) for finding in self.findings], "facts": self.facts}


class Place(NamedTuple):
    """A line of a file with something to say about it."""

    file: str
    line: int
    detail: str = ""


def at_places(
    severity: Severity, kind: str, places: Iterable[Place], message: Callable[[int], str]
) -> Iterator[Finding]:
    """A finding for each file that has such places; `message` makes the sentence from their number."""
    by_file: dict[str, list[Place]] = {}
    for one in places:
        by_file.setdefault(one.file, []).append(one)
    for file, found in by_file.items():
        first = found[0]
        where = f" ({place(first.line)}{': ' if first.detail else ''}{first.detail})" if first.line else ""
        lines = tuple(one.line for one in found[:MAX_LINES] if one.line)
        yield Finding(severity, kind, message(len(found)) + where, file, lines, len(found))


def many(number: int, one: str, several: str | None = None) -> str:
    """A number with its word: 1 row, 2 rows."""
    return f"{number:,} {one if number == 1 else several or one + 's'}"
