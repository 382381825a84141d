"""One source on its way to its outputs: what is asked of it, and what was found so far."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import Tensor

from unmask.decode.candidates import repeated
from unmask.decode.hypothesis import Hypothesis, score
from unmask.decode.settings import DecodeSettings
from unmask.decode.stepping import TargetIds
from unmask.errors import DataError


@dataclass
class Sentence:
    """A source, the first target tokens it is bound to, and its outputs."""

    source: Sequence[int]
    prefix: Sequence[int]
    limit: int  # at most so many target tokens, the end token counted
    found: list[Hypothesis] = field(default_factory=list)

    def add(self, ids: list[int], log_probability: float, settings: DecodeSettings, coverage: Tensor | None) -> None:
        """One that has ended."""
        value = score(log_probability, len(ids) + 1, settings, coverage)
        self.found.append(Hypothesis(ids, log_probability, value))

    def add_cut(
        self, ids: list[int], log_probability: float, settings: DecodeSettings, coverage: Tensor | None
    ) -> None:
        """One that had to stop before its end."""
        value = score(log_probability, max(1, len(ids)), settings, coverage)
        self.found.append(Hypothesis(ids, log_probability, value, finished=False))

    def to_beat(self, settings: DecodeSettings) -> float:
        """The score that an output must reach to be among the best; minus infinity while there are too few."""
        if len(self.found) < settings.num_best:
            return float("-inf")
        return sorted(one.score for one in self.found)[-settings.num_best]


def sentence_of(
    number: int,
    source: Sequence[int],
    prefix: Sequence[int],
    settings: DecodeSettings,
    most: int | None,
    ids: TargetIds,
) -> Sentence:
    """The source of a number, checked; `most` is how many steps the model can take."""
    ceiling = settings.max_length if most is None else min(settings.max_length, most)
    if len(prefix) >= ceiling:
        raise DataError(
            f"the prefix of sentence {number + 1} has {len(prefix)} tokens, which leaves no room below the limit of "
            f"{ceiling}; shorten it or raise max_length"
        )
    if ids.end in prefix:
        raise DataError(f"the prefix of sentence {number + 1} contains the end token {ids.end}; leave it out")
    limit = min(ceiling, max(settings.limit(len(source)), len(prefix) + 1))
    return Sentence(source, prefix, limit)


def restrict(
    logits: Tensor, sentences: Sequence[Sentence], history: Tensor, settings: DecodeSettings, ids: TargetIds
) -> None:
    """Set what may not come next to minus infinity in (R, V), given each row's sentence and its tokens so far (R, t).

    Probabilities stay the model's own, so they are worked out before.
    """
    step = history.shape[1]
    forced = [(row, one.prefix[step]) for row, one in enumerate(sentences) if step < len(one.prefix)]
    kept = [(row, token, logits[row, token].clone()) for row, token in forced]
    never = [*ids.never, *([ids.unknown] if settings.forbid_unknown and ids.unknown is not None else [])]
    never += [ids.end] if step < settings.min_length else []
    if never:
        logits[:, never] = float("-inf")
    if settings.no_repeat_ngram is not None:
        for row, tokens in enumerate(history.tolist()):
            logits[row, list(repeated(tokens, settings.no_repeat_ngram))] = float("-inf")
    for row, token, value in kept:
        logits[row] = float("-inf")
        logits[row, token] = value
