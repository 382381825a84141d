"""What the lab asks, and what an answer is made of.

A question's words stand in a TOML file, what is run for it in a Python module of the same name. A part of the evidence
is a list of trials, each of which finds numbers, and a conclusion, which is a function of these numbers alone: a
verdict can be drawn again from the results file, by anyone, without running anything.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal

from pydantic import Field

from unmask.config import Settings
from unmask.lab.pictures import Picture
from unmask.lab.words import Text

Kind = Literal["exact", "measure", "ablation"]
Size = Literal["small", "default", "large"]
#: What one trial found: numbers, texts and lists of them, as they go into a results file.
Record = dict[str, Any]


class Verdict(StrEnum):
    """What the evidence says of a claim."""

    SUPPORTED = "supported"
    NOT_SUPPORTED = "not supported"
    DEPENDS = "depends"
    NOT_VISIBLE = "not visible at this scale"
    NOT_RUN = "not yet run"

    @property
    def text(self) -> Text:
        """In both languages."""
        return Text(self.value, _CHINESE[self])


_CHINESE = {
    Verdict.SUPPORTED: "成立",
    Verdict.NOT_SUPPORTED: "不成立",
    Verdict.DEPENDS: "视情况而定",
    Verdict.NOT_VISIBLE: "此规模下看不出",
    Verdict.NOT_RUN: "尚未运行",
}


class Method(Settings):
    """What a part does, written down before it is run."""

    name: str
    kind: Kind
    method: Text


class Entry(Settings):
    """A question, in words."""

    id: str
    sources: tuple[str, ...]
    words: tuple[str, ...]  # other words in which people ask it
    question: Text
    claim: Text
    why: Text
    limits: Text
    parts: tuple[Method, ...] = Field(min_length=1)

    @property
    def module(self) -> str:
        """The name of the module with the trials."""
        return self.id.replace("-", "_")


@dataclass(frozen=True)
class Plan:
    """How much is to be run."""

    size: Size = "default"
    seeds: int = 3

    def at(self, small: int, default: int, large: int | None = None) -> int:
        """A number that goes with the size."""
        return {"small": small, "default": default, "large": default if large is None else large}[self.size]


@dataclass(frozen=True)
class Trial:
    """One run. Its name says what makes it differ from the others of its part; so do its settings, for machines."""

    name: str
    job: Callable[[], Record]
    settings: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Table:
    """Rows of figures, under names of columns."""

    columns: tuple[Text, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Conclusion:
    """What the trials of a part say."""

    verdict: Verdict
    says: Text
    pictures: tuple[Picture, ...] = ()
    table: Table | None = None


@dataclass(frozen=True)
class Part:
    """One piece of evidence: what to run, and what follows from what was found."""

    name: str
    trials: Callable[[Plan], Sequence[Trial]]
    conclude: Callable[[Mapping[str, Record]], Conclusion]


def overall(verdicts: Sequence[Verdict]) -> Verdict:
    """One verdict on a claim from those of its parts."""
    found = {one for one in verdicts if one != Verdict.NOT_RUN}
    if not found:
        return Verdict.NOT_RUN
    visible = found - {Verdict.NOT_VISIBLE}
    if len(visible) == 1:
        return visible.pop()
    return Verdict.DEPENDS if visible else Verdict.NOT_VISIBLE
