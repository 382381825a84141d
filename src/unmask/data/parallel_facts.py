"""What a parallel text is like: repeats, sides that are equal or far from equally long, and what dev shares with train.

Texts are compared by hashes of 64 bits, so that millions of pairs take little memory; among three million, two that
differ have the same one with a chance of 1 in 4 million.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unmask.data.parallel import Noted, Pair, ParallelText

Hashes = NDArray[np.uint64]

WILD_RATIO = 9
"""So many times as long as the other, a side hardly is its translation.

Lengths are bytes of UTF-8: a Chinese character says about as much as three letters, and has three bytes. English and
Chinese sentences are then about equally long, where in characters a good translation may be a tenth of its source.
"""


@dataclass(frozen=True)
class ParallelFacts:
    """What stands in a parallel text; each with how often, and where first."""

    pairs: int
    empty: Noted  # left out, and not among the pairs
    repeated: Noted  # both sides stood there before
    untranslated: Noted  # both sides are equal
    wild: Noted  # one side is more than WILD_RATIO times as long
    leaked: Noted | None = None  # the source stands in the training text too; None where that was not asked
    #: Of each source, to look for it elsewhere.
    sources: Hashes = field(default_factory=lambda: np.empty(0, np.uint64), repr=False, compare=False)

    def sentences(self) -> list[str]:
        """What is worth saying, for people."""
        said = [f"{self.pairs:,} pair{'' if self.pairs == 1 else 's'}"]
        notes = (
            (self.empty, "with an empty side: left out"),
            (self.repeated, "stood there before, word for word: they count more than others"),
            (self.untranslated, "with the same text on both sides: untranslated?"),
            (
                self.wild,
                f"with a side more than {WILD_RATIO} times as long as the other (in bytes): do they belong together?",
            ),
            (
                self.leaked or Noted(),
                "with a source that is in the training text too: they do not show what was learned",
            ),
        )
        said += [f"{noted} {what}" for noted, what in notes if noted.count]
        if self.leaked is not None and not self.leaked.count:
            said.append("no source is in the training text too")
        return said

    def as_json(self) -> dict[str, Any]:
        """The same as plain data."""
        noted = {name: getattr(self, name) for name in ("empty", "repeated", "untranslated", "wild", "leaked")}
        counted = {name: {"count": it.count, "lines": list(it.lines)} for name, it in noted.items() if it is not None}
        return {"pairs": self.pairs, **counted}


def parallel_facts(pairs: Iterable[Pair], *, train: ParallelFacts | None = None) -> ParallelFacts:
    """Go through pairs once; for those of dev or test, `train` are the facts of the text that is trained on.

    Spaces around a side do not count. What a `ParallelText` left out is told with the rest.
    """
    sources, both, lines = array("Q"), array("Q"), array("q")
    untranslated, wild = Noted(), Noted()
    for pair in pairs:
        source, target = (side.strip().encode("utf-8", "surrogatepass") for side in (pair.source, pair.target))
        sources.append(_hash(source))
        # The length keeps "a b" + "c" apart from "a" + "b c".
        both.append(_hash(b"%d %b%b" % (len(source), source, target)))
        lines.append(pair.line)
        if source == target:
            untranslated = untranslated.plus(pair.line)
        if max(len(source), len(target)) > WILD_RATIO * min(len(source), len(target)):
            wild = wild.plus(pair.line)
    hashes, numbers = _as_hashes(sources), np.frombuffer(lines, dtype=np.int64) if lines else np.empty(0, np.int64)
    repeated = np.ones(len(both), dtype=np.bool_)
    repeated[np.unique(_as_hashes(both), return_index=True)[1]] = False
    return ParallelFacts(
        pairs=len(both),
        empty=pairs.empty if isinstance(pairs, ParallelText) else Noted(),
        repeated=_noted(repeated, numbers),
        untranslated=untranslated,
        wild=wild,
        leaked=None if train is None else _noted(np.isin(hashes, train.sources), numbers),
        sources=hashes,
    )


def hash_texts(texts: Iterable[str], seed: int = 0) -> Hashes:
    """64 bits for each text, spaces around it left out; another seed gives others."""
    key = seed.to_bytes(16, "little", signed=True)
    return _as_hashes(array("Q", (_hash(text.strip().encode("utf-8", "surrogatepass"), key) for text in texts)))


def _hash(text: bytes, key: bytes = b"") -> int:
    return int.from_bytes(blake2b(text, digest_size=8, key=key).digest(), "little")


def _as_hashes(hashes: array[int]) -> Hashes:
    return np.frombuffer(hashes, dtype=np.uint64) if hashes else np.empty(0, np.uint64)


def _noted(chosen: NDArray[np.bool_], lines: NDArray[np.int64]) -> Noted:
    return Noted(int(chosen.sum()), tuple(lines[np.flatnonzero(chosen)[:20]].tolist()))
