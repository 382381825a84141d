"""Greedy decoding: the most probable token, again and again."""

from __future__ import annotations

from unmask.decode.hypothesis import Hypothesis
from unmask.decode.search import decode
from unmask.decode.settings import DecodeSettings
from unmask.decode.stepping import StepModel, TargetIds
from unmask.nn.batch import Batch

__all__ = ["Hypothesis", "greedy"]


def greedy(model: StepModel, source: Batch, *, start_id: int, end_id: int, max_length: int) -> list[Hypothesis]:
    """The greedy continuation for each source, at most `max_length` tokens. Finished ones leave the batch."""
    settings = DecodeSettings(beam=1, length_penalty=0.0, max_length=max_length, max_ratio=None)
    sources = [ids.tolist() for ids in source.layout.split(source.ids)]
    found = decode(model, sources, TargetIds(start_id, end_id), settings, batch_size=len(source))
    return [outputs[0] for outputs in found]
