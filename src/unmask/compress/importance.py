"""What a model can best do without: how much its answers would change if a part were silent.

A head or neuron whose output is scaled by ξ (1 as it is, 0 silent) matters by |∂answer/∂ξ|, summed over texts for
heads (Michel et al. 2019) and over tokens for neurons (Molchanov et al. 2017). They take the loss for the answer; but
the loss of examples that a model has learned is flat, so here it is how far the best logit stands out. Layers are few:
each is left out and tried.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from unmask.compress.lessons import Lessons
from unmask.models.bert import Bert
from unmask.models.surgery import remove_layers
from unmask.nn.block import EncoderBlock
from unmask.nn.ffn import FeedForward
from unmask.nn.modes import evaluating

#: Whole registers and panels of the kernels: a share of neurons is rounded to this many.
PANEL = 64


@dataclass(frozen=True)
class Importance:
    """A number for each head and each neuron of each layer."""

    heads: list[Tensor]
    neurons: list[Tensor]


def importance(model: Bert, lessons: Lessons, batches: Iterable[Any]) -> Importance:
    """How much each head and neuron matters to what the model says of these batches."""
    blocks = [block for block in model.encoder.stack.blocks if isinstance(block, EncoderBlock)]
    heads = [torch.zeros(block.self_attention.num_heads) for block in blocks]
    neurons = [torch.zeros(getattr(getattr(block.ffn, "inner", None), "out_features", 0)) for block in blocks]
    handles = []
    for number, block in enumerate(blocks):
        handles.append(block.self_attention.attend.register_forward_hook(_head_hook(heads[number])))
        if isinstance(block.ffn, FeedForward):
            handles.append(block.ffn.outer.register_forward_pre_hook(_neuron_hook(neurons[number])))
    try:
        with evaluating(model), torch.enable_grad():
            for batch in batches:
                strength(lessons.task.logits(model, batch), lessons.problem).backward()
    finally:
        for handle in handles:
            handle.remove()
        model.zero_grad(set_to_none=True)
    return Importance(heads, neurons)


def strength(logits: Tensor, problem: str) -> Tensor:
    """How clear answers are, summed over rows: the best logit above the mean, the size of each, or the number."""
    match problem:
        case "regression":
            return logits.sum()
        case "multi":
            return logits.abs().sum()
        case _:
            here = logits > -1e3  # what is not there, as tokens beyond the end of a window, has no part in it
            mean = logits.where(here, 0.0).sum(-1) / here.sum(-1)
            return (logits.max(-1).values - mean).sum()


def _head_hook(total: Tensor) -> Callable[[nn.Module, tuple[Any, ...], Tensor], None]:
    def watch(attend: nn.Module, args: tuple[Any, ...], output: Tensor) -> None:
        def add(gradient: Tensor) -> None:
            # (B, N, T, D): ∂loss/∂ξ of a text is the sum over its tokens, and its size counts.
            total.add_((output.detach() * gradient).sum((2, 3)).abs().sum(0).cpu())

        if output.requires_grad:
            output.register_hook(add)

    return watch


def _neuron_hook(total: Tensor) -> Callable[[nn.Module, tuple[Any, ...]], None]:
    def watch(outer: nn.Module, args: tuple[Any, ...]) -> None:
        inner = args[0]

        def add(gradient: Tensor) -> None:
            total.add_((inner.detach() * gradient).abs().sum(0).cpu())

        if inner.requires_grad:
            inner.register_hook(add)

    return watch


def least_heads(found: list[Tensor], count: int) -> dict[int, list[int]]:
    """So many of the least important heads of all layers together; every layer keeps one.

    Layers are put on one scale by their norm, as Michel et al. do.
    """
    scaled = [layer / layer.norm().clamp(min=1e-30) for layer in found]
    ranked = sorted((float(value), layer, head) for layer, row in enumerate(scaled) for head, value in enumerate(row))
    gone: dict[int, list[int]] = {}
    for _, layer, head in ranked:
        if sum(map(len, gone.values())) == count:
            break
        if len(gone.get(layer, ())) < len(found[layer]) - 1:
            gone.setdefault(layer, []).append(head)
    return {layer: sorted(heads) for layer, heads in gone.items()}


def least_neurons(found: list[Tensor], share: float) -> dict[int, list[int]]:
    """All but a share of each layer's neurons, the least important ones; what stays is in whole panels."""
    gone = {}
    for layer, row in enumerate(found):
        stay = max(1, round(share * len(row)))
        if stay >= PANEL:
            stay = round(stay / PANEL) * PANEL
        gone[layer] = sorted(row.argsort(descending=True, stable=True)[stay:].tolist())
    return gone


def least_layers(model: Bert, lessons: Lessons, batches: list[Any], count: int) -> list[int]:
    """So many layers that are missed least, found one by one: each time all that are left are tried."""
    gone: list[int] = []
    depth = model.settings.num_layers
    for _ in range(count):
        losses = {
            layer: _loss_of(remove_layers(model, [*gone, layer]), lessons, batches)
            for layer in range(depth)
            if layer not in gone
        }
        gone.append(min(losses, key=losses.__getitem__))
    return sorted(gone)


@torch.no_grad()
def _loss_of(model: Any, lessons: Lessons, batches: list[Any]) -> float:
    with evaluating(model):
        return sum(float(lessons.task.loss(lessons.task.logits(model, one), one)["loss"]) for one in batches)
