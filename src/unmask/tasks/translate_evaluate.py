"""How well a translator does on pairs of sentences: BLEU, chrF, perplexity, and BLEU by the length of the source."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from unmask.data.parallel import Pair
from unmask.decode.settings import DecodeSettings
from unmask.errors import DataError
from unmask.metrics.translation import LengthBucket, Tokenize, TranslationScores, by_source_length, score_translations
from unmask.nn.modes import evaluating
from unmask.tasks.translate import Translator
from unmask.tasks.translate_learn import loss_of


@dataclass(frozen=True)
class TranslationReport:
    """What was measured."""

    scores: TranslationScores
    perplexity: float | None  # of a reference's token; None where every pair is longer than the model reads
    unread: int  # pairs too long for the perplexity
    lengths: list[LengthBucket]
    translations: list[str]
    split: int  # texts that were split into parts first

    def as_json(self) -> dict[str, Any]:
        """The same as plain data, without the translations."""
        return {
            **self.scores.as_json(),
            "perplexity": self.perplexity,
            "split": self.split,
            "by_source_length": [bucket.as_json() for bucket in self.lengths],
        }


def evaluate_translations(
    translator: Translator,
    pairs: Sequence[Pair],
    settings: DecodeSettings | None = None,
    *,
    tokenize: Tokenize = "auto",
    lowercase: bool = False,
) -> TranslationReport:
    """Translate every source and compare with its target. Lengths of sources are counted in tokens of the model."""
    if not pairs:
        raise DataError("there are no pairs to measure on")
    found = list(translator.run((pair.source for pair in pairs), settings))
    said = [one.text for one in found]
    references = [pair.target for pair in pairs]
    lengths = [len(one) for one in translator.languages.encode_sources([pair.source for pair in pairs])]
    perplexity, unread = _perplexity(translator, pairs)
    return TranslationReport(
        score_translations(said, references, tokenize=tokenize, lowercase=lowercase),
        perplexity,
        unread,
        by_source_length(lengths, said, references, tokenize=tokenize, lowercase=lowercase),
        said,
        sum(one.parts > 1 for one in found),
    )


@torch.inference_mode()
def _perplexity(translator: Translator, pairs: Sequence[Pair], at_once: int = 64) -> tuple[float | None, int]:
    """The perplexity of the references' tokens, and how many pairs are too long for the model."""
    model, languages = translator.model, translator.languages
    encoded = languages.encode_pairs([pair.source for pair in pairs], [pair.target for pair in pairs])
    limit = model.target_limit or math.inf
    lengths = list(zip(encoded.sources.lengths.tolist(), encoded.targets.lengths.tolist(), strict=True))
    fitting = [number for number, both in enumerate(lengths) if max(both) < limit]
    fitting.sort(key=lambda number: lengths[number])
    losses, tokens = [], 0
    with evaluating(model):
        for start in range(0, len(fitting), at_once):
            batch = encoded.batch(fitting[start : start + at_once]).to(next(model.parameters()).device)
            losses.append(float(loss_of(model, batch, 0.0)))
            tokens += batch.num_tokens
    mean = math.fsum(losses) / tokens if tokens else None
    return None if mean is None else math.exp(min(mean, 700.0)), len(pairs) - len(fitting)
