"""Speed and likeness of contestants, all in turn, so that a busy machine hurts all alike."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from unmask.bench.contestants import Contestant, Ids, Peer, Rows
from unmask.text.tokenizer import Tokenizer

BATCH_SIZES = (1, 2, 4, 8, 16, 32)


@dataclass
class Figures:
    """What was measured of one contestant."""

    name: str
    note: str
    texts_per_second: float
    tokens_per_second: float
    cosine: float  # of token vectors with the first contestant's: their mean
    difference: float  # the largest of any number
    latency: dict[int, dict[str, float]] = field(default_factory=dict)  # tokens → p50 and p99 in milliseconds

    def as_json(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)


def best_batch_size(peer: Peer, ids: Ids, sizes: Sequence[int] = BATCH_SIZES) -> None:
    """Set the batch size with which a peer is fastest on these texts."""
    seconds = {}
    for size in sizes:
        peer.batch_size = size
        seconds[size] = min(_timed(peer, ids) for _ in range(2))
    peer.batch_size = min(seconds, key=seconds.__getitem__)


def throughput(
    contestants: Sequence[Contestant], tokenizer: Tokenizer, texts: Sequence[str], rounds: int
) -> list[Figures]:
    """Texts per second, tokenizing included: the best of some rounds of all in turn; the first is the measure."""
    tokens = sum(len(one.ids) for one in tokenizer.encode_batch(texts))
    said = {one.name: one.vectors(_ids(tokenizer, texts)) for one in contestants}
    best = dict.fromkeys(said, float("inf"))
    for _ in range(rounds):
        for one in contestants:
            best[one.name] = min(best[one.name], _timed(one, texts, tokenizer))
    first = said[contestants[0].name]
    return [
        Figures(
            one.name,
            one.note,
            len(texts) / best[one.name],
            tokens / best[one.name],
            *_likeness(said[one.name], first),
        )
        for one in contestants
    ]


def latency(contestants: Sequence[Contestant], ids: Sequence[int], repeats: int) -> dict[str, dict[str, float]]:
    """Milliseconds for one text: the median and the 99th percentile, contestants in turn."""
    taken: dict[str, list[float]] = {one.name: [] for one in contestants}
    for one in contestants:
        for _ in range(5):
            one.vectors([ids])
    blocks = 5  # in turn, but some in a row: what a cache holds of a model must not be another's fault
    for _ in range(blocks):
        for one in contestants:
            one.vectors([ids])
            taken[one.name] += [_timed(one, [ids]) for _ in range(max(1, repeats // blocks))]
    return {
        name: {"p50": 1e3 * float(np.percentile(some, 50)), "p99": 1e3 * float(np.percentile(some, 99))}
        for name, some in taken.items()
    }


def memory() -> float:
    """Megabytes that this process has in memory; 0 where the system does not tell."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6
    except OSError:
        return 0.0


def _ids(tokenizer: Tokenizer, texts: Sequence[str]) -> list[list[int]]:
    return [encoding.ids for encoding in tokenizer.encode_batch(texts)]


def _timed(one: Contestant, given: Sequence[Any], tokenizer: Tokenizer | None = None) -> float:
    """Seconds for ids, or for texts and their tokenizer."""
    started = time.perf_counter()
    one.vectors(given if tokenizer is None else _ids(tokenizer, given))
    return time.perf_counter() - started


def _likeness(found: list[Rows], expected: list[Rows]) -> tuple[float, float]:
    ours, theirs = np.concatenate(found).astype(np.float64), np.concatenate(expected).astype(np.float64)
    lengths = np.linalg.norm(ours, axis=1) * np.linalg.norm(theirs, axis=1)
    return float(((ours * theirs).sum(1) / lengths).mean()), float(np.abs(ours - theirs).max())
