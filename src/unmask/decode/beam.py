"""Beam search: the K best beginnings of every sentence, one token further at each step.

Each step takes the K best continuations of a sentence's beginnings, the end token being one of them. Those that end
are scored by their length and wait; the others go on. With K = 1 this is greedy decoding. A sentence leaves the batch
when nothing under way can still beat what has ended, or at its limit of length.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from unmask.decode.candidates import top
from unmask.decode.coverage import Watch
from unmask.decode.sentence import Sentence, restrict
from unmask.decode.settings import DecodeSettings
from unmask.decode.stepping import Rows, TargetIds

_NONE = float("-inf")


@dataclass
class Beams:
    """B sentences with K beginnings each, best first. A place whose score is minus infinity is empty."""

    sentences: list[Sentence]
    history: Tensor  # (B, K, t) tokens so far
    scores: Tensor  # (B, K) float64 sums of log probabilities
    coverage: Tensor | None = None  # (B, K, S) how much each source token was looked at


@dataclass(frozen=True)
class Chosen:
    """The K best continuations of each sentence, best first."""

    parents: Tensor  # (B, K) the beginning each goes on from
    tokens: Tensor  # (B, K)
    scores: Tensor  # (B, K)


def beam_search(
    sentences: Sequence[Sentence], rows: Rows, ids: TargetIds, settings: DecodeSettings, watch: Watch | None
) -> None:
    """Find the outputs of some sentences, whose rows are ready to begin."""
    device = rows.device
    shape = (len(sentences), 1)
    beams = Beams(
        list(sentences),
        torch.empty(*shape, 0, dtype=torch.long, device=device),
        torch.zeros(*shape, dtype=torch.float64, device=device),
    )
    tokens = torch.full(shape, ids.start, device=device)
    while beams.sentences:
        log_probs = rows.step(tokens)
        if watch is not None:
            looked = watch.weights(len(beams.sentences))
            beams.coverage = looked if beams.coverage is None else beams.coverage + looked
        restrict(log_probs, beams.sentences, beams.history, settings, ids)
        beams = advance(beams, choose(log_probs, beams.scores, settings.beam), rows, ids, settings)
        tokens = beams.history[:, :, -1]


def choose(log_probs: Tensor, scores: Tensor, count: int) -> Chosen:
    """The best continuations (B, K) of beginnings (B, W) with these scores; equal ones by beginning, then by id."""
    batch, width, _ = log_probs.shape
    values, ids = (found.view(batch, width, -1) for found in top(log_probs.flatten(0, 1), count))
    totals = (scores[:, :, None] + values.double()).flatten(1)
    best, places = totals.sort(dim=-1, descending=True, stable=True)
    best, places = best[:, :count], places[:, :count]
    return Chosen(places // ids.shape[2], ids.flatten(1).gather(1, places), best)


def advance(beams: Beams, chosen: Chosen, rows: Rows, ids: TargetIds, settings: DecodeSettings) -> Beams:
    """The beams one token further: what ended is noted with its sentence, and sentences that are done are gone."""
    ends = chosen.tokens == ids.end
    running = chosen.scores.masked_fill(ends, _NONE)
    for number, place in (ends & (chosen.scores > _NONE)).nonzero().tolist():
        parent = int(chosen.parents[number, place])
        tokens, coverage = beams.history[number, parent].tolist(), _covered(beams, number, parent)
        beams.sentences[number].add(tokens, float(chosen.scores[number, place]), settings, coverage)
    length, keep = beams.history.shape[2] + 1, []
    for number, (sentence, best) in enumerate(zip(beams.sentences, running.amax(-1).tolist(), strict=True)):
        if best == _NONE:
            if not sentence.found:  # no token was allowed at all
                _stop(beams, number, settings)
        elif not sentence.is_decided(best, settings):
            if length == sentence.limit:
                _stop(_follow(beams, chosen, running, [number]), 0, settings)
            else:
                keep.append(number)
    if keep:
        width = beams.scores.shape[1]
        parents = chosen.parents[keep].tolist()
        moved = [[width * number + parent for parent in places] for number, places in zip(keep, parents, strict=True)]
        rows.reorder(moved, keep)
    return _follow(beams, chosen, running, keep)


def _stop(beams: Beams, number: int, settings: DecodeSettings) -> None:
    """Note a sentence's beginnings as outputs that were cut off."""
    for place, log_probability in enumerate(beams.scores[number].tolist()):
        if log_probability > _NONE:
            tokens, coverage = beams.history[number, place].tolist(), _covered(beams, number, place)
            beams.sentences[number].add_cut(tokens, log_probability, settings, coverage)


def _covered(beams: Beams, number: int, place: int) -> Tensor | None:
    """How much each source token of a sentence was looked at, (S,)."""
    return None if beams.coverage is None else beams.coverage[number, place, : len(beams.sentences[number].source)]


def _follow(beams: Beams, chosen: Chosen, running: Tensor, keep: list[int]) -> Beams:
    """The chosen continuations of the sentences kept."""
    index = torch.tensor(keep, dtype=torch.long, device=running.device)
    places = chosen.parents[index][:, :, None]
    history = beams.history[index].gather(1, places.expand(-1, -1, beams.history.shape[2]))
    coverage = beams.coverage
    if coverage is not None:
        coverage = coverage[index].gather(1, places.expand(-1, -1, coverage.shape[2]))
    history = torch.cat([history, chosen.tokens[index][:, :, None]], dim=2)
    return Beams([beams.sentences[number] for number in keep], history, running[index], coverage)
