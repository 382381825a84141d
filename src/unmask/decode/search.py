"""From sources to outputs: the one entrance of this room."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import Protocol, runtime_checkable

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
#: With fewer rows in a batch, more threads gain less than smaller batches lose.
ROWS_A_THREAD = 128


class Searcher(StepModel, Protocol):
    """A `StepModel` that searches by itself."""

    def search(
        self, sentences: Sequence[Sentence], ids: TargetIds, settings: DecodeSettings, batch_size: int | None
    ) -> None:
        """Find the outputs of sentences that are sorted by length, as `beam_search` would."""


@runtime_checkable
class QuickModel(Protocol):
    """A `StepModel` with a quick form into which nobody can look."""

    def quick(self) -> Searcher | None:
        """The quick form; None where somebody watches what happens inside."""


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
    quick. Of several batches, as many are under way as torch has threads.
    """
    settings = DecodeSettings() if settings is None else settings
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
        # Coverage is read from torch's attention.
        quick = model.quick() if isinstance(model, QuickModel) and not settings.coverage_penalty else None
        if quick is not None and settings.sampling is None:
            quick.search(waiting, ids, settings, batch_size)
        else:
            _decode_all(model if quick is None else quick, waiting, ids, settings, batch_size)
    return [_outputs(one, settings) for one in sentences]


def _decode_all(
    model: StepModel, waiting: Sequence[Sentence], ids: TargetIds, settings: DecodeSettings, batch_size: int | None
) -> None:
    """Find the outputs of sentences that are sorted by length, in batches.

    A step is many products of few rows, of which two threads make hardly more than one; so each thread has batches of
    its own. What coverage watches is one model, which can be in one batch at a time.
    """
    at_once = 1 if settings.coverage_penalty or _device(model).type != "cpu" else torch.get_num_threads()
    if batch_size is None:
        share = -(-len(waiting) // at_once) * settings.width
        batch_size = max(1, min(ROWS_AT_ONCE, max(share, ROWS_A_THREAD)) // settings.width)
    batches = [waiting[first : first + batch_size] for first in range(0, len(waiting), batch_size)]
    if min(at_once, len(batches)) < 2:
        for batch in batches:
            _decode(model, batch, ids, settings)
        return
    batches.reverse()  # the longest first, so that no thread is left alone with them at the end
    with _single_threads(min(at_once, len(batches))) as pool:
        for _ in pool.map(lambda batch: _decode(model, batch, ids, settings), batches):
            pass


@contextmanager
def _single_threads(count: int) -> Iterator[ThreadPoolExecutor]:
    """So many threads, in each of which torch computes by itself."""
    before = torch.get_num_threads()
    try:
        with ThreadPoolExecutor(count, "decode", initializer=lambda: torch.set_num_threads(1)) as pool:
            yield pool
    finally:
        torch.set_num_threads(before)


def _device(model: StepModel) -> torch.device:
    return next(model.parameters()).device if isinstance(model, nn.Module) else torch.device("cpu")


@torch.inference_mode()
def _decode(model: StepModel, sentences: Sequence[Sentence], ids: TargetIds, settings: DecodeSettings) -> None:
    """Find the outputs of one batch, sorted by length."""
    rows = Rows(model, [one.source for one in sentences], _device(model))
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
