"""Beam search: the K best beginnings of every sentence, one token further at each step.

Each step takes the K best continuations of a sentence's beginnings, the end token being one of them. Those that end
are scored by their length and wait; the others go on. With K = 1 this is greedy decoding. A beginning that can no
longer beat what has ended is given up, which changes nothing: whatever it could push out of the beam is less probable
still. A sentence is done when no beginning is left, or at its limit of length.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from unmask.decode.candidates import Beginnings, normaliser
from unmask.decode.coverage import Watch
from unmask.decode.hypothesis import length_divisor, score
from unmask.decode.sentence import Sentence, restrict
from unmask.decode.settings import DecodeSettings
from unmask.decode.stepping import Rows, TargetIds

_NONE = float("-inf")
#: Sentences that are done leave the batch together, when they are so many of it: leaving means copying what stays.
_LEAVING = 0.25


@dataclass
class Beams:
    """B sentences with K beginnings each, best first. A place whose score is minus infinity is empty."""

    sentences: list[Sentence]
    history: Tensor  # (B, K, t) tokens so far
    scores: Tensor  # (B, K) float64 sums of log probabilities
    limits: Tensor  # (B,) at most so many tokens
    divisors: Tensor  # (B,) what divides a log probability at the limit, which is the kindest divisor there is
    to_beat: Tensor  # (B,) the score that an output must reach
    coverage: Tensor | None = None  # (B, K, S) how much each source token was looked at

    @classmethod
    def start(cls, sentences: Sequence[Sentence], settings: DecodeSettings, device: torch.device) -> Beams:
        """One empty beginning each."""
        count, exact = len(sentences), torch.float64
        divisors = [length_divisor(one.limit, settings) for one in sentences]
        return cls(
            list(sentences),
            torch.empty(count, 1, 0, dtype=torch.long, device=device),
            torch.zeros(count, 1, dtype=exact, device=device),
            torch.tensor([one.limit for one in sentences], device=device),
            torch.tensor(divisors, dtype=exact, device=device),
            torch.full((count,), _NONE, dtype=exact, device=device),
        )

    def select(self, keep: Tensor) -> Beams:
        """Those of some sentences."""
        return Beams(
            [self.sentences[number] for number in keep.tolist()],
            self.history[keep],
            self.scores[keep],
            self.limits[keep],
            self.divisors[keep],
            self.to_beat[keep],
            None if self.coverage is None else self.coverage[keep],
        )


@dataclass(frozen=True)
class Chosen:
    """The K best continuations of each sentence, best first."""

    scores: Tensor  # (B, K)
    parents: Tensor  # (B, K) the beginning each goes on from
    tokens: Tensor  # (B, K)


def beam_search(
    sentences: Sequence[Sentence], rows: Rows, ids: TargetIds, settings: DecodeSettings, watch: Watch | None
) -> None:
    """Find the outputs of some sentences, whose rows are ready to begin."""
    beams = Beams.start(sentences, settings, rows.device)
    tokens = torch.full((len(sentences), 1), ids.start, device=rows.device)
    while True:
        live = (beams.scores > _NONE).flatten().nonzero()[:, 0]
        if not len(live):
            return
        logits = rows.step(tokens, live)
        if watch is not None:
            looked = watch.weights(len(beams.sentences))
            beams.coverage = looked if beams.coverage is None else beams.coverage + looked
        chosen = choose(beams, logits, live, ids, settings)
        width = beams.scores.shape[1]
        beams = advance(beams, chosen, ids, settings)
        moved = chosen.parents + width * torch.arange(len(beams.sentences), device=rows.device)[:, None]
        keep = _leaving(beams)
        if keep is not None:
            beams, moved = beams.select(keep), moved[keep]
        if beams.sentences:
            rows.reorder(moved, keep)
            tokens = beams.history[:, :, -1]


def choose(beams: Beams, logits: Tensor, live: Tensor, ids: TargetIds, settings: DecodeSettings) -> Chosen:
    """The best continuations of the live beginnings (R,), of which the model says logits (R, V)."""
    width = beams.scores.shape[1]
    off = normaliser(logits)
    sentences = [beams.sentences[number] for number in (live // width).tolist()]
    restrict(logits, sentences, beams.history.flatten(0, 1)[live], settings, ids)
    beginnings = Beginnings(logits, off, beams.scores.flatten()[live], live)
    return Chosen(*beginnings.best((len(beams.sentences), width), settings.beam))


def advance(beams: Beams, chosen: Chosen, ids: TargetIds, settings: DecodeSettings) -> Beams:
    """The beams one token further. What ended is noted with its sentence, and so is what the limit cuts off."""
    ends = (chosen.tokens == ids.end) & (chosen.scores > _NONE)
    running = chosen.scores.masked_fill(ends, _NONE)
    for number, place in ends.nonzero().tolist():
        _note_end(beams, number, int(chosen.parents[number, place]), float(chosen.scores[number, place]), settings)
    running.masked_fill_(running / beams.divisors[:, None] < beams.to_beat[:, None], _NONE)
    alive = running.amax(-1) > _NONE
    for number in (~alive).nonzero()[:, 0].tolist():
        if not beams.sentences[number].found:  # no token was allowed at all
            _stop(beams, number, settings)
    after = _follow(beams, chosen, running)
    cut = alive & (beams.limits == after.history.shape[2])
    for number in cut.nonzero()[:, 0].tolist():
        _stop(after, number, settings)
    running[cut] = _NONE
    return after


def _note_end(beams: Beams, number: int, place: int, log_probability: float, settings: DecodeSettings) -> None:
    """Note that a beginning ended, if that can be among the best outputs."""
    sentence, length = beams.sentences[number], beams.history.shape[2] + 1
    if score(log_probability, length, settings) < beams.to_beat[number]:  # coverage could only lower it
        return
    sentence.add(beams.history[number, place].tolist(), log_probability, settings, _covered(beams, number, place))
    beams.to_beat[number] = sentence.to_beat(settings)


def _stop(beams: Beams, number: int, settings: DecodeSettings) -> None:
    """Note a sentence's beginnings as outputs that were cut off."""
    for place, log_probability in enumerate(beams.scores[number].tolist()):
        if log_probability > _NONE:
            tokens, coverage = beams.history[number, place].tolist(), _covered(beams, number, place)
            beams.sentences[number].add_cut(tokens, log_probability, settings, coverage)


def _covered(beams: Beams, number: int, place: int) -> Tensor | None:
    """How much each source token of a sentence was looked at, (S,)."""
    return None if beams.coverage is None else beams.coverage[number, place, : len(beams.sentences[number].source)]


def _follow(beams: Beams, chosen: Chosen, running: Tensor) -> Beams:
    """The chosen continuations, those that go on with their scores."""
    places = chosen.parents[:, :, None]
    history = beams.history.gather(1, places.expand(-1, -1, beams.history.shape[2]))
    coverage = beams.coverage
    if coverage is not None:
        coverage = coverage.gather(1, places.expand(-1, -1, coverage.shape[2]))
    history = torch.cat([history, chosen.tokens[:, :, None]], dim=2)
    return replace(beams, history=history, scores=running, coverage=coverage)


def _leaving(beams: Beams) -> Tensor | None:
    """The sentences to go on with; None: all, because few are done or none."""
    alive = (beams.scores > _NONE).any(-1)
    done = len(alive) - int(alive.sum())
    return alive.nonzero()[:, 0] if done > _LEAVING * len(alive) else None
