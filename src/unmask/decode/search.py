"""From sources to outputs: the one entrance of this room."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack

import torch
from torch import nn

from unmask.decode.beam import beam_search
from unmask.decode.coverage import watching
from unmask.decode.hypothesis import Hypothesis, score
from unmask.decode.sample import sample
from unmask.decode.sentence import Sentence, sentence_of
from unmask.decode.settings import DecodeSettings
from unmask.decode.stepping import Rows, StepModel, TargetIds
from unmask.nn.modes import evaluating

#: So many rows at once are about the quickest.
ROWS_AT_ONCE = 512


@torch.inference_mode()
def decode(
    model: StepModel,
    sources: Sequence[Sequence[int]],
    ids: TargetIds,
    settings: DecodeSettings | None = None,
    *,
    prefixes: Sequence[Sequence[int]] | None = None,
    batch_size: int | None = None,
) -> list[list[Hypothesis]]:
    """For each source its outputs, best first (or, where they are sampled, in the order they were drawn).

    `prefixes` are target tokens that each output must begin with. An empty source has an empty output. Sources are
    sorted by length and decoded `batch_size` at once, which changes the speed and nothing else; None: as many as are
    quick.
    """
    settings = DecodeSettings() if settings is None else settings
    size = max(1, ROWS_AT_ONCE // settings.width) if batch_size is None else batch_size
    if prefixes is not None and len(prefixes) != len(sources):
        raise ValueError(f"{len(sources)} sources but {len(prefixes)} prefixes")
    sentences = [
        sentence_of(number, source, [] if prefixes is None else prefixes[number], settings, model.target_limit, ids)
        for number, source in enumerate(sources)
    ]
    waiting = sorted((one for one in sentences if one.source), key=lambda one: len(one.source))
    with ExitStack() as stack:
        if isinstance(model, nn.Module):
            stack.enter_context(evaluating(model))
        for first in range(0, len(waiting), size):
            _decode(model, waiting[first : first + size], ids, settings)
    return [_outputs(one, settings) for one in sentences]


def _decode(model: StepModel, sentences: Sequence[Sentence], ids: TargetIds, settings: DecodeSettings) -> None:
    """Find the outputs of one batch, sorted by length."""
    device = next(model.parameters()).device if isinstance(model, nn.Module) else torch.device("cpu")
    rows = Rows(model, [one.source for one in sentences], device)
    if settings.sampling is not None:
        sample(sentences, rows, ids, settings)
        return
    with ExitStack() as stack:
        watch = None
        if settings.coverage_penalty:
            watch = stack.enter_context(watching(model, settings.attention_layer))
        beam_search(sentences, rows, ids, settings, watch)


def _outputs(sentence: Sentence, settings: DecodeSettings) -> list[Hypothesis]:
    if not sentence.source:
        empty = list(sentence.prefix)
        return [Hypothesis(empty, 0.0, score(0.0, len(empty) + 1, settings))]
    if settings.sampling is not None:
        return sentence.found
    return sorted(sentence.found, key=lambda one: one.rank)[: settings.num_best]
