"""Greedy decoding: the most probable token, again and again."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from unmask.models.transformer import Transformer
from unmask.nn.batch import Batch


@dataclass(frozen=True)
class Hypothesis:
    """A decoded sequence, without its start and end tokens, and the sum of its log probabilities."""

    ids: list[int]
    log_probability: float


@torch.inference_mode()
def greedy(model: Transformer, source: Batch, *, start_id: int, end_id: int, max_length: int) -> list[Hypothesis]:
    """The greedy continuation for each source, at most `max_length` tokens. Finished ones leave the batch."""
    device = source.ids.device
    state = model.start(model.encode(source))
    running = list(range(len(source)))
    tokens = torch.full((len(source),), start_id, device=device)
    ids: list[list[int]] = [[] for _ in running]
    scores = [0.0] * len(running)
    for _ in range(max_length):
        logits, state = model.step(tokens, state)
        best, tokens = logits.log_softmax(-1).max(-1)
        keep = []
        for row, (number, token, score) in enumerate(zip(running, tokens.tolist(), best.tolist(), strict=True)):
            scores[number] += score
            if token != end_id:
                ids[number].append(token)
                keep.append(row)
        if not keep:
            break
        if len(keep) < len(running):
            rows = torch.tensor(keep, device=device)
            state, tokens = state.select(rows), tokens[rows]
            running = [running[row] for row in keep]
    return [Hypothesis(*pair) for pair in zip(ids, scores, strict=True)]
