"""Where a decoder looks while it writes: step by step during a search, or afterwards as a word alignment."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from unmask.errors import SettingsError, TaskError
from unmask.models.transformer import Transformer
from unmask.nn.attend import Attend
from unmask.nn.attention import MultiHeadAttention
from unmask.nn.batch import Batch
from unmask.nn.block import DecoderBlock
from unmask.nn.modes import evaluating
from unmask.nn.record import record_attention


class Watch:
    """What the cross-attention of one layer looked at in the latest step."""

    def __init__(self) -> None:
        self.latest: Tensor | None = None
        self.thread = threading.get_ident()  # steps of other threads are none of our business

    def weights(self, count: int) -> Tensor:
        """(B, K, S) mean over the heads, for the first `count` sources."""
        assert self.latest is not None
        return self.latest[:count].double()

    def note(self, attend: nn.Module, args: tuple[Any, ...]) -> None:
        """Work out the weights beside the attention that is about to run."""
        if threading.get_ident() == self.thread:
            assert isinstance(attend, Attend)
            queries, keys, _, mask = args
            self.latest = attend.weights(queries, keys, mask).mean(1)


@contextmanager
def watching(model: object, layer: int) -> Iterator[Watch]:
    """Within the block, know what decoder layer `layer` looks at in each step."""
    watch = Watch()
    handle = cross_attention(model, layer)[1].attend.register_forward_pre_hook(watch.note)
    try:
        yield watch
    finally:
        handle.remove()


def cross_attention(model: object, layer: int) -> tuple[str, MultiHeadAttention]:
    """The attention of a decoder layer to the source, and its name; a negative number counts from the last layer."""
    modules = model.named_modules() if isinstance(model, nn.Module) else iter(())
    found = [
        (f"{name}.cross_attention", module.cross_attention)
        for name, module in modules
        if isinstance(module, DecoderBlock)
    ]
    if not found:
        raise TaskError(
            f"{type(model).__name__} has no cross-attention to look at; use a Transformer, or set coverage_penalty to 0"
        )
    if not -len(found) <= layer < len(found):
        raise SettingsError(f"attention_layer: {layer} is no layer of a decoder with {len(found)}; the last is -1")
    return found[layer]


@torch.inference_mode()
def align(
    model: Transformer,
    sources: Sequence[Sequence[int]],
    targets: Sequence[Sequence[int]],
    *,
    start_id: int,
    layer: int = -1,
) -> list[Tensor]:
    """For each pair a matrix (T, S): row t says where `layer` looked while writing target token t, its heads averaged.

    Each row sums to 1. `targets` are without start and end tokens; a pair with an empty side has an empty matrix.
    """
    if len(sources) != len(targets):
        raise ValueError(f"{len(sources)} sources but {len(targets)} targets")
    name, _ = cross_attention(model, layer)
    found = [torch.zeros(len(target), len(source)) for source, target in zip(sources, targets, strict=True)]
    pairs = [number for number, matrix in enumerate(found) if matrix.numel()]
    if pairs:
        device = model.target_embeddings.token.weight.device
        source = Batch.of([sources[number] for number in pairs]).to(device)
        target = Batch.of([[start_id, *targets[number][:-1]] for number in pairs]).to(device)
        with evaluating(model), record_attention(model) as trace:
            model(source, target)
        for number, weights in zip(pairs, trace.attention[name].weights, strict=True):
            found[number] = weights.mean(0)
    return found
