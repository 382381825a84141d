"""How fast a smaller model is beside the one it was made from: both in turns, on the user's own texts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from unmask.bench.contestants import Ours
from unmask.bench.measure import latency, throughput
from unmask.bench.texts import text_of

#: Texts that throughput is measured on, turns of both models, and the tokens of one text for latency.
TEXTS, TURNS, LENGTH, REPEATS = 256, 4, 32, 30


@dataclass
class Speed:
    """How fast a model is with its engine."""

    engine: str
    texts_per_second: float
    latency_ms: dict[str, float] = field(default_factory=dict)  # p50 and p99 of one text
    tokens: int = LENGTH  # of that text

    def as_json(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "engine": self.engine,
            "texts_per_second": self.texts_per_second,
            "latency_ms": self.latency_ms,
            "latency_tokens": self.tokens,
        }


def race(models: Sequence[tuple[Path, str]], texts: Sequence[str], turns: int = TURNS) -> list[Speed]:
    """Throughput (tokenizing included) and latency of folders with their engines, each text read by all.

    They take turns and the best counts: what else the machine does hurts all alike.
    """
    runners = [Ours(str(folder), engine) for folder, engine in models]
    chosen = _fitting(runners, texts)
    best = [0.0] * len(runners)
    for _ in range(turns):
        for number, one in enumerate(runners):
            found = throughput([one], one.bundle.tokenizer, chosen, 2)[0]
            best[number] = max(best[number], found.texts_per_second)
    speeds = []
    for one, rate in zip(runners, best, strict=True):
        length = min(LENGTH, one.bundle.max_length)
        taken = latency([one], text_of(one.bundle.tokenizer, length, chosen), REPEATS)
        speeds.append(Speed(one.bundle.engine.engine, rate, taken[one.name], length))
    return speeds


def _fitting(runners: Sequence[Ours], texts: Sequence[str]) -> list[str]:
    """Some of the texts, evenly taken, that every model reads at once."""
    step = max(1, len(texts) // TEXTS)
    chosen = list(texts[::step][:TEXTS])
    for one in runners:
        lengths = [len(encoding.ids) for encoding in one.bundle.tokenizer.encode_batch(chosen)]
        chosen = [text for text, length in zip(chosen, lengths, strict=True) if length <= one.bundle.max_length]
    return chosen or ["a"]


def size_of(folder: Path) -> int:
    """Bytes of a model folder: weights, config and tokenizer, but no reports or copies in other formats beside them."""
    kinds = {".safetensors", ".json", ".txt", ".model"}
    return sum(path.stat().st_size for path in folder.iterdir() if path.is_file() and path.suffix in kinds)
