"""The next character of newspaper text: small models that read from left to right, trained for seconds."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unmask.lab.entry import Record
from unmask.lab.kit.daily import CLS, VOCAB, daily, windows
from unmask.lab.kit.fitting import Fit, fit, seeded
from unmask.models.gpt import Gpt
from unmask.models.init import build_model
from unmask.models.settings import GptSettings
from unmask.nn.batch import Batch

#: Runs by which a rate is chosen have a seed that no other run has.
CHOOSING = 1000
#: How much worse than single-character frequencies a run must end to count as failed.
_FAILED = 1.0


@dataclass(frozen=True)
class LeftToRight:
    """What makes a run: the model's settings, how it is trained, and on what."""

    fit: Fit
    model: Mapping[str, Any] = field(default_factory=dict)
    length: int = 64
    batch: int = 32


#: A new model from its seed; None: the Transformer of a run's settings.
Build = Callable[[int], nn.Module]


def causal(changes: Mapping[str, Any]) -> GptSettings:
    """Two layers of 64 with sinusoids, tokens of variance 1 at the start, norms after sub-layers; and what differs."""
    sizes = {"vocab_size": VOCAB, "hidden_size": 64, "num_layers": 2, "num_heads": 4, "ffn_size": 256}
    start = {"init": "xavier", "scale_embeddings": True, "positions": {"kind": "sinusoidal"}}
    norms = {"norm_place": "post", "final_norm": False, "activation": "gelu"}
    dropout = {"embedding": 0.0, "residual": 0.0, "attention": 0.0}
    return GptSettings.parse({**sizes, **start, **norms, "max_length": 512, "dropout": dropout, **changes})


def transformer(changes: Mapping[str, Any], seed: int) -> Gpt:
    """Such a model."""
    model = build_model(causal(changes), seed=seed)
    assert isinstance(model, Gpt)
    return model


def pairs(texts: Sequence[np.ndarray]) -> tuple[Batch, Tensor]:
    """Texts with a sign before each, and the character that each row has to guess."""
    batch = Batch.of([[CLS, *text[:-1].tolist()] for text in texts])
    return batch, torch.from_numpy(np.concatenate(texts))


def loss_of(model: nn.Module, texts: Sequence[np.ndarray]) -> Tensor:
    """The mean loss a character."""
    batch, targets = pairs(texts)
    return F.cross_entropy(model(batch), targets)


def learned(run: LeftToRight, seed: int, build: Build | None = None) -> tuple[nn.Module, list[float]]:
    """A trained model and its losses."""
    seeded(seed)
    model = transformer(run.model, seed) if build is None else build(seed)
    rng = np.random.default_rng(seed)

    def loss(_: int) -> Tensor:
        return loss_of(model, windows(daily().learned, run.length, run.batch, rng))

    return model, fit(model, loss, run.fit)


@torch.inference_mode()
def held_out(model: nn.Module, length: int = 64, texts: int = 256, skip: int = 0) -> float:
    """Loss a character on articles that nobody learned from, always the same; of places from number `skip` on."""
    total, count = 0.0, 0
    for some in _measured(length, texts):
        batch, targets = pairs(some)
        losses = F.cross_entropy(model(batch), targets, reduction="none")
        counted = batch.layout.row_positions(losses.device) >= skip
        total, count = total + float(losses[counted].sum()), count + int(counted.sum())
    return total / count


@cache
def _measured(length: int, texts: int) -> list[list[np.ndarray]]:
    rng = np.random.default_rng(12345)
    long_enough = tuple(one for one in daily().held_out if len(one) >= length)
    return [windows(long_enough, length, 32, rng) for _ in range(0, texts, 32)]


@cache
def frequencies_loss(length: int = 64, texts: int = 256) -> float:
    """The same for who knows only how often each character occurs."""
    counts = np.ones(VOCAB)
    for article in daily().learned:
        np.add.at(counts, article, 1)
    logs = -np.log(counts / counts.sum())
    found = np.concatenate([text for some in _measured(length, texts) for text in some])
    return float(logs[found].mean())


def trial(run: LeftToRight, seed: int, build: Build | None = None) -> Record:
    """Train, and measure on held-out text."""
    began = time.perf_counter()
    model, losses = learned(run, seed, build)
    return {"train_seconds": round(time.perf_counter() - began, 2), **scored(run, model, losses)}


def scored(run: LeftToRight, model: nn.Module, losses: Sequence[float]) -> Record:
    """How good a model is. A run that fails gets the value of failure, and says so."""
    found = held_out(model, run.length)
    plain = frequencies_loss(run.length)
    failed = not math.isfinite(found) or found > plain + _FAILED
    return {
        "loss": plain + _FAILED if failed else found,
        "failed": failed,
        "frequencies": plain,
        "rate": run.fit.rate,
        "losses": thinned(losses),
    }


@cache
def rate_for(changes: tuple[tuple[str, Any], ...], updates: int, rates: tuple[float, ...]) -> float:
    """The better rate in a short run of a model with these settings."""
    return best_rate(
        {rate: partial(short_run, LeftToRight(Fit(updates, rate), dict(changes))) for rate in rates},
    )


def best_rate(runs: Mapping[float, Callable[[], float]]) -> float:
    """The rate whose short run ends lowest; a run that gives no number is worst."""
    found = {rate: run() for rate, run in runs.items()}
    return min(found, key=lambda rate: found[rate] if math.isfinite(found[rate]) else math.inf)


def short_run(run: LeftToRight, build: Build | None = None) -> float:
    """What a short run with a seed of its own ends with, on text that it has not seen."""
    model, _ = learned(run, CHOOSING, build)
    return held_out(model, run.length, 64)


def thinned(losses: Sequence[float], most: int = 50) -> list[float]:
    """Some of the losses, all of them numbers."""
    return [round(value, 4) for value in losses[:: max(1, len(losses) // most)] if math.isfinite(value)]
