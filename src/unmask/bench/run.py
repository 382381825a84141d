"""One measurement of a model: our engines and the peers, throughput and latency, in one run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from unmask.bench.contestants import Contestant, Ours
from unmask.bench.measure import Figures, best_batch_size, latency, memory, throughput
from unmask.bench.peers import peers_of
from unmask.bench.texts import text_of
from unmask.bundle import load
from unmask.errors import TaskError
from unmask.models.bert import Bert
from unmask.train.environment import machine


@dataclass(frozen=True)
class Plan:
    """What is measured, and how thoroughly."""

    engines: Sequence[str] = ("torch", "fp32", "int8")
    peers: Sequence[str] = ()
    rounds: int = 5
    lengths: Sequence[int] = (16, 128)  # of the one text whose latency is measured
    repeats: int = 50


@dataclass(frozen=True)
class Report:
    """All figures, and what they were measured with."""

    model: str
    figures: list[Figures]
    megabytes: dict[str, float]  # that each of our engines added to the process, texts read once
    texts: int
    tokens: list[int]  # of each text
    threads: int

    def as_json(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "model": self.model,
            "machine": machine(),
            "threads": self.threads,
            "texts": self.texts,
            "mean_tokens": sum(self.tokens) / len(self.tokens),
            "max_tokens": max(self.tokens),
            "megabytes": self.megabytes,
            "contestants": [one.as_json() for one in self.figures],
        }


def bench(model: str, texts: Sequence[str], plan: Plan, tell: Callable[[str], None] = lambda _: None) -> Report:
    """Measure a model on texts."""
    base = load(model, engine="torch")
    if not isinstance(base.model, Bert) or base.languages is not None:
        raise TaskError(f"{model}: encoders are measured, and this is a {base.model.settings.model} model")
    ids = [encoding.ids for encoding in base.tokenizer.encode_batch(texts)]
    longest, limit = max(map(len, ids)), base.max_length
    if longest > limit:
        raise TaskError(f"a text has {longest} tokens and the model reads {limit}; measure with shorter texts")
    threads = torch.get_num_threads()
    contestants: list[Contestant] = []
    megabytes: dict[str, float] = {}
    for engine in plan.engines:
        tell(f"{engine}: loading")
        before = memory()
        one = Ours(model, engine)
        one.vectors(ids)
        if one.name not in megabytes:
            contestants.append(one)
            megabytes[one.name] = memory() - before
    with peers_of(base, plan.peers, ids, threads) as peers:
        for peer in peers:
            tell(f"{peer.name}: looking for its best batch size")
            best_batch_size(peer, ids)
        contestants += peers
        tell(f"{plan.rounds} rounds of {len(texts)} texts")
        figures = throughput(contestants, base.tokenizer, texts, plan.rounds)
        for length in (length for length in plan.lengths if length <= limit):
            tell(f"one text of {length} tokens")
            found = latency(contestants, text_of(base.tokenizer, length, texts), plan.repeats)
            for one_figures in figures:
                one_figures.latency[length] = found[one_figures.name]
    return Report(model, figures, megabytes, len(texts), [len(one) for one in ids], threads)
