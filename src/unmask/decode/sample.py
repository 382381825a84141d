"""Drawing outputs by their probability.

A sentence's draws are fixed by the seed, its own tokens and the number of the draw: neither the other sentences of its
batch nor their order change what is drawn.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import torch
from torch import Tensor

from unmask.decode.candidates import normaliser, top
from unmask.decode.sentence import Sentence, restrict
from unmask.decode.settings import DecodeSettings, SamplingSettings
from unmask.decode.stepping import Rows, TargetIds

_NONE = float("-inf")


def sample(sentences: Sequence[Sentence], rows: Rows, ids: TargetIds, settings: DecodeSettings) -> None:
    """Draw `num_best` outputs of each sentence, whose rows are ready to begin; they stay in the order of the draws."""
    assert settings.sampling is not None
    drawn = [_Draws(sentence, number, settings) for sentence in sentences for number in range(settings.num_best)]
    repeated = torch.arange(len(sentences), device=rows.device).repeat_interleave(settings.num_best)
    rows.reorder(repeated[:, None], repeated)  # each draw goes its own way
    running = list(range(len(drawn)))
    tokens = torch.full((len(drawn), 1), ids.start, device=rows.device)
    while running:
        logits = rows.step(tokens)
        off = normaliser(logits)
        history = torch.tensor([drawn[number].ids for number in running], dtype=torch.long, device=rows.device)
        restrict(logits, [drawn[number].sentence for number in running], history, settings, ids)
        chances = torch.stack([drawn[number].chances[history.shape[1]] for number in running]).to(rows.device)
        found = draw(logits, chances, settings.sampling)
        gained = (logits.gather(1, found[:, None])[:, 0].double() - off).clamp(max=0.0).tolist()
        keep = []
        for row, (number, token, value) in enumerate(zip(running, found.tolist(), gained, strict=True)):
            if drawn[number].goes_on(token, value, ids):
                keep.append(row)
        if keep:
            chosen = torch.tensor(keep, device=rows.device)
            rows.reorder(chosen[:, None], chosen)
            tokens = found[keep][:, None]
        running = [running[row] for row in keep]
    for one in drawn:
        note = one.sentence.add if one.finished else one.sentence.add_cut
        note(one.ids, one.log_probability, settings, None)


def draw(logits: Tensor, chances: Tensor, settings: SamplingSettings) -> Tensor:
    """A token a row of logits or log probabilities (R, V), by numbers (R,) that are evenly spread over [0, 1)."""
    count = logits.shape[1] if settings.top_k is None else min(settings.top_k, logits.shape[1])
    if count < logits.shape[1]:
        values, ids = top(logits, count)
    else:
        values, ids = logits.sort(dim=-1, descending=True, stable=True)
    # In double precision, and the best first, so that hardly a draw depends on the last bits of the model's numbers.
    reached = (values.double() / settings.temperature).softmax(-1).cumsum(-1)
    whole = torch.searchsorted(reached, (settings.top_p * reached[:, -1:]).contiguous())
    last = torch.minimum(whole, (values > _NONE).sum(-1, keepdim=True) - 1).clamp(min=0)
    wanted = chances[:, None].double() * reached.gather(1, last)
    place = torch.minimum(torch.searchsorted(reached, wanted, right=True), last)
    return ids.gather(1, place)[:, 0]


class _Draws:
    """One output on its way, and the random numbers of all its steps."""

    def __init__(self, sentence: Sentence, number: int, settings: DecodeSettings) -> None:
        assert settings.sampling is not None
        self.sentence = sentence
        self.ids: list[int] = []
        self.log_probability = 0.0
        self.finished = False
        named = f"{settings.sampling.seed} {number} {' '.join(map(str, sentence.source))}"
        digest = hashlib.blake2b(named.encode(), digest_size=7).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(digest))
        self.chances = torch.rand(sentence.limit, dtype=torch.float64, generator=generator)

    def goes_on(self, token: int, gained: float, ids: TargetIds) -> bool:
        """Take the next token; False where it is the last."""
        if gained == _NONE:  # no token was allowed at all
            return False
        self.log_probability += gained
        if token == ids.end:
            self.finished = True
            return False
        self.ids.append(token)
        return len(self.ids) < self.sentence.limit
