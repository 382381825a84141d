"""What a translator learns from a batch, and how it is measured while it learns."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from torch import Tensor, nn

from unmask.data.translation import EncodedPairs, TranslationBatch
from unmask.decode.search import decode
from unmask.decode.settings import DecodeSettings
from unmask.metrics.translation import BleuSums, word_splitter
from unmask.nn.batch import Batch
from unmask.nn.vocabulary import agreeing_loss
from unmask.tasks.languages import Languages
from unmask.train.rdrop import NAME as R_DROP

_COUNT = "counted for BLEU "
_SENTENCES = 64  # of one batch of the development set


class Seq2Seq(Protocol):
    """What a translator must be able to do to learn."""

    def encode(self, source: Batch) -> Any:
        """Read the source."""

    def decode(self, target: Batch, memory: Any) -> Tensor:
        """Rows (R, H), one for what follows each target token."""

    def token_loss(self, rows: Tensor, targets: Tensor, smoothing: float) -> Tensor:
        """Cross-entropy with targets (R,), summed."""


class Translating:
    """Cross-entropy over all target tokens at once, the end tokens too; part of each answer may be spread out."""

    def __init__(self, smoothing: float = 0.0, r_drop: float | None = None) -> None:
        self.smoothing, self.r_drop = smoothing, r_drop

    def counts(self, batch: TranslationBatch) -> dict[str, float]:
        """How many tokens are to be guessed."""
        tokens = float(batch.num_tokens)
        return {"loss": tokens} if self.r_drop is None else {"loss": tokens, R_DROP: tokens}

    def sums(self, model: nn.Module, batch: TranslationBatch) -> dict[str, Tensor]:
        """The loss, summed over them."""
        if self.r_drop is None:
            return {"loss": loss_of(model, batch, self.smoothing)}
        translator: Any = model
        one, two = (translator.decode(batch.target, translator.encode(batch.source)) for _ in range(2))
        output = translator.output_layer
        loss, apart = agreeing_loss((one, two), output, batch.labels, self.smoothing, self.r_drop)
        return {"loss": loss, R_DROP: apart}


def loss_of(model: Any, batch: TranslationBatch, smoothing: float) -> Tensor:
    """Cross-entropy of all target tokens of a batch, summed."""
    translator: Seq2Seq = model
    rows = translator.decode(batch.target, translator.encode(batch.source))
    return translator.token_loss(rows, batch.labels, smoothing)


class HeldOutPairs:
    """How well a model translates sentences that it has not learned from: loss of the right words, BLEU of its own."""

    def __init__(
        self, pairs: EncodedPairs, references: Sequence[str], languages: Languages, *, score: str, beam: int = 1
    ) -> None:
        """`references` are the targets as text; `score` (bleu or loss) says which is better; beam 0: only loss."""
        self.pairs, self.references, self.languages = pairs, list(references), languages
        self.score, self.lower_is_better = score, score == "loss"
        self.settings = DecodeSettings(beam=beam, length_penalty=1.0) if beam else None
        self.bleu = BleuSums(word_splitter(self.references))
        order = sorted(range(len(pairs)), key=lambda number: len(pairs.sources[number]))
        self.batches = [order[start : start + _SENTENCES] for start in range(0, len(order), _SENTENCES)]

    def by_loss(self) -> HeldOutPairs:
        """The same without translating."""
        return HeldOutPairs(self.pairs, self.references, self.languages, score="loss", beam=0)

    def __len__(self) -> int:
        return len(self.batches)

    def measure(self, model: nn.Module, number: int) -> dict[str, float]:
        """The loss of a batch, and what BLEU counts in its translations."""
        numbers = self.batches[number]
        batch = self.pairs.batch(numbers).to(next(model.parameters()).device)
        found = {"loss": float(loss_of(model, batch, 0.0)), "tokens": float(batch.num_tokens)}
        if self.settings is None:
            return found
        said = self._translated(model, numbers)
        counted = self.bleu.counts(said, [[self.references[number]] for number in numbers]).sum(0)
        return found | {f"{_COUNT}{place}": value for place, value in enumerate(counted.tolist())}

    def conclude(self, results: Sequence[Mapping[str, float]]) -> dict[str, float]:
        """Mean loss of a token, perplexity, and BLEU of all sentences together."""
        total = {name: math.fsum(one[name] for one in results) for name in results[0]}
        loss = total["loss"] / total["tokens"]
        means = {"loss": loss, "perplexity": math.exp(min(loss, 700.0))}
        if self.settings is None:
            return means
        counts = np.array([[value for name, value in total.items() if name.startswith(_COUNT)]])
        return {"bleu": float(self.bleu.of_sums(counts)[0]), **means}

    def remarks(self, model: nn.Module) -> list[str]:
        """Two sentences with their translations."""
        if self.settings is None:
            return []
        numbers = [self.batches[len(self.batches) // 2][0], self.batches[-1][0]]
        said = self._translated(model, numbers)
        sources = [self.languages.source.decode(self.pairs.sources[number].tolist()) for number in numbers]
        return [f"{source}  →  {target}" for source, target in zip(sources, said, strict=True)]

    def _translated(self, model: Any, numbers: Sequence[int]) -> list[str]:
        end = self.languages.frame.source_end
        sources = [[*self.pairs.sources[number].tolist(), end] for number in numbers]
        found = decode(model, sources, self.languages.target_ids, self.settings)
        return [self.languages.target.decode(best[0].ids) for best in found]
