"""English into French: short sentences, one vocabulary for both languages, small models that learn to translate."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from unmask.data.parallel import Pair, read_pairs
from unmask.data.parallel_split import split_pairs
from unmask.data.translation import EncodedPairs, PairBatches
from unmask.lab.kit.fitting import Fit, fit, seeded
from unmask.models.fetch import fetch
from unmask.models.init import build_model
from unmask.models.recurrent import LstmSeq2Seq
from unmask.models.transformer import Transformer
from unmask.nn.modes import evaluating
from unmask.tasks.languages import Languages
from unmask.tasks.translate_learn import HeldOutPairs, loss_of
from unmask.tasks.translate_settings import Arch, TranslateSettings
from unmask.tasks.translate_train import learn_languages
from unmask.train.progress import Listener

#: Tokens of an update on the longer side, and pairs that nobody learns from.
UPDATE, HELD_OUT = 2048, 8000
RATE = 2e-3
Translating = Transformer | LstmSeq2Seq


@dataclass(frozen=True)
class French:
    """What is learned from, and what is asked; no sentence of either language is in both."""

    languages: Languages
    learned: EncodedPairs
    asked: tuple[Pair, ...]  # in an order without meaning


@cache
def french() -> French:
    """All pairs, fetched once through a package; the vocabulary knows those to learn from alone."""
    folder = fetch("eng-fra")
    learned, asked = split_pairs(read_pairs([folder / "pairs.en", folder / "pairs.fr"]), count=HELD_OUT)
    languages = learn_languages(translator("transformer"), learned, Listener())
    order = np.random.default_rng(0).permutation(len(asked)).tolist()
    return French(languages, encoded(languages, learned), tuple(asked[number] for number in order))


def encoded(languages: Languages, pairs: Sequence[Pair]) -> EncodedPairs:
    """Both sides as ids."""
    return languages.encode_pairs([pair.source for pair in pairs], [pair.target for pair in pairs])


def translator(arch: Arch, other: Mapping[str, Any] | None = None) -> TranslateSettings:
    """A Transformer of 2 + 2 layers of 64, or the LSTM that is nearest to it in parameters; one table for all."""
    vocabulary = {"kind": "bpe", "size": 3000, "lowercase": False, "split_chinese": False}
    sizes = {"layers": 2, "hidden": 64, "ffn": 256, "heads": 4, "dropout": 0.0, "max_length": 128}
    model = {**sizes, "other": dict(other or {})}
    return TranslateSettings.parse({"train": {"updates": 1}, "arch": arch, "vocabulary": vocabulary, "model": model})


def new_model(settings: TranslateSettings, seed: int) -> Translating:
    """Such a model, which knows nothing yet."""
    languages = french().languages
    model = build_model(settings.build(languages.source.vocab_size, languages.target.vocab_size), seed=seed)
    assert isinstance(model, Translating)
    return model


def taught(model: Translating, updates: int, seed: int, watch: Callable[[int], None] = lambda _: None) -> list[float]:
    """Train; the same seed gives all models the same batches. `watch` is called before each update. The losses."""
    seeded(seed)
    batches = PairBatches(french().learned, UPDATE, seed)

    def loss(number: int) -> Tensor:
        watch(number)
        batch = batches[number]
        return loss_of(model, batch, 0.0) / batch.num_tokens

    return fit(model, loss, Fit(updates, rate=RATE))


def pairs_loss(model: Translating, asked: Sequence[Pair]) -> float:
    """Cross-entropy of a target token, those before it being given."""
    return _measured(model, asked, beam=0)["loss"]


def bleu(model: Translating, asked: Sequence[Pair]) -> float:
    """Of greedy translations, as sacrebleu computes it."""
    return _measured(model, asked, beam=1)["bleu"]


@torch.no_grad()
def right_tokens(model: Translating, asked: Sequence[Pair], size: int = 64) -> float:
    """The share of target tokens that are the most probable, those before them being given."""
    pairs, right, total = encoded(french().languages, asked), 0, 0
    with evaluating(model):
        for first in range(0, len(pairs), size):
            batch = pairs.batch(range(first, min(first + size, len(pairs))))
            guesses = model(batch.source, batch.target).argmax(-1)
            right, total = right + int((guesses == batch.labels).sum()), total + batch.num_tokens
    return right / total


def single_tokens_loss(asked: Sequence[Pair]) -> float:
    """The loss of whoever knows how often each target token occurs, and nothing else."""
    known, told = french(), encoded(french().languages, asked)
    size, end = known.languages.target.vocab_size, known.learned.frame.end
    counts, wanted = (np.bincount(pairs.targets.ids, minlength=size) for pairs in (known.learned, told))
    counts[end] += len(known.learned)
    wanted[end] += len(told)
    # One of each more: what was never seen must not be impossible.
    return float(-(wanted * np.log((counts + 1) / (counts + 1).sum())).sum() / wanted.sum())


@torch.no_grad()
def _measured(model: Translating, asked: Sequence[Pair], beam: int) -> dict[str, float]:
    languages = french().languages
    score = "bleu" if beam else "loss"
    held = HeldOutPairs(encoded(languages, asked), [pair.target for pair in asked], languages, score=score, beam=beam)
    with evaluating(model):
        return held.conclude([held.measure(model, number) for number in range(len(held))])
