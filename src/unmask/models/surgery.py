"""Smaller and larger models of the same architecture: heads, neurons, layers and tokens really removed, tokens added.

The model given is never changed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from unmask.errors import TaskError
from unmask.models.assign import assign, named_tensors
from unmask.models.bert import Bert
from unmask.models.init import Model, assemble
from unmask.models.settings import BertSettings, GptSettings, StackSettings
from unmask.nn.heads import MaskedTokenHead

#: BERT's tensors that have a row for each token of the vocabulary.
_BY_TOKEN = {"encoder.embeddings.token.weight", "heads.mlm.bias", "heads.mlm.output.weight"}


def remove_heads(model: Model, heads: Mapping[int, Sequence[int]]) -> Model:
    """A copy without some attention heads: layer → head numbers. Every layer keeps at least one."""
    settings = _stack_settings(model)
    kept = {
        layer: _kept(shape.num_heads, heads.get(layer, ()), f"layer {layer} has {shape.num_heads} heads")
        for layer, shape in enumerate(settings.shapes)
    }
    _known_layers(heads, settings)
    _check_heads_can_go(settings, heads)
    size = settings.width_of_head
    rows = {layer: _rows_of_heads(keep, size) for layer, keep in kept.items()}

    def cut(layer: int, name: str, tensor: Tensor) -> Tensor:
        if ".projections." in name:
            return tensor[rows[layer]]
        if name.endswith("self_attention.output.weight"):
            return tensor[:, rows[layer]]
        if ".attend.positions." in name:
            return _cut_positions(name, tensor, kept[layer], rows[layer])
        return tensor

    new = settings.replace(heads_by_layer=tuple(len(keep) for keep in kept.values()), head_size=settings.width_of_head)
    return _rebuilt(model, new, cut)


def remove_neurons(model: Model, neurons: Mapping[int, Sequence[int]]) -> Model:
    """A copy without some feed-forward neurons: layer → neuron numbers. Every layer keeps at least one."""
    settings = _stack_settings(model)
    if not settings.ffn:
        raise ValueError("the model has no feed-forward networks to remove neurons from")
    kept = {
        layer: _kept(shape.ffn_size, neurons.get(layer, ()), f"layer {layer} has {shape.ffn_size} neurons")
        for layer, shape in enumerate(settings.shapes)
    }
    _known_layers(neurons, settings)

    def cut(layer: int, name: str, tensor: Tensor) -> Tensor:
        if ".ffn.inner." in name or ".ffn.gate." in name:
            return tensor[kept[layer]]
        if name.endswith(".ffn.outer.weight"):
            return tensor[:, kept[layer]]
        return tensor

    left = tuple(len(keep) for keep in kept.values())
    if len(set(left)) == 1:  # all alike: an ordinary model of another size
        return _rebuilt(model, settings.replace(ffn_size=left[0], ffn_by_layer=None), cut)
    return _rebuilt(model, settings.replace(ffn_by_layer=left), cut)


def remove_layers(model: Model, layers: Sequence[int]) -> Model:
    """A copy without some blocks. At least one is kept."""
    settings = _stack_settings(model)
    kept = _kept(settings.num_layers, layers, f"the model has {settings.num_layers} layers").tolist()
    shapes = [settings.shapes[layer] for layer in kept]
    new = settings.replace(
        num_layers=len(kept),
        heads_by_layer=tuple(shape.num_heads for shape in shapes) if settings.heads_by_layer else None,
        ffn_by_layer=tuple(shape.ffn_size for shape in shapes) if settings.ffn_by_layer else None,
    )
    with torch.device("meta"):
        smaller = assemble(new)
    old = named_tensors(model)
    found = {}
    for name in named_tensors(smaller):
        before, number, after = _split_layer(name)
        source = name if number is None else f"{before}{kept[number]}{after}"
        # Parameters shared by all layers stand under the first layer's name, which may have gone.
        found[name] = old[source if source in old else name]
    return _finished(smaller, found, model)


def keep_tokens(model: Bert, ids: Sequence[int]) -> Bert:
    """A copy that knows only these tokens, in this order: the first has the id 0, the next 1, …"""
    size = model.settings.vocab_size
    wrong = [number for number in ids if not 0 <= number < size]
    if wrong or len(set(ids)) < len(ids):
        raise ValueError(f"tokens to keep are different numbers from 0 to {size - 1}")
    with torch.device("meta"):
        smaller = assemble(model.settings.replace(vocab_size=len(ids)))
    found, rows = named_tensors(model), torch.tensor(list(ids))
    for name, tensor in named_tensors(smaller).items():
        if tensor.shape != found[name].shape:  # nothing else changes its shape with the vocabulary
            found[name] = found[name][rows.to(found[name].device)]
    finished = _finished(smaller, found, model)
    assert isinstance(finished, Bert)
    return finished


def remove_pooler(model: Bert) -> Bert:
    """A copy without the pooler, for heads that do not read it."""
    with torch.device("meta"):
        smaller = assemble(model.settings.replace(pooler=False))
    old = named_tensors(model)
    finished = _finished(smaller, {name: old[name] for name in named_tensors(smaller)}, model)
    assert isinstance(finished, Bert)
    return finished


def extend_vocabulary(model: Bert, pieces: Sequence[Sequence[int]]) -> Bert:
    """A model that knows more tokens, at the end of its vocabulary: one for each list of old ids it was written with.

    A new token begins as the mean of its pieces, which is what the model knew of it. In the MLM head it is at first
    as probable as its pieces are on average.
    """
    if any(isinstance(head, MaskedTokenHead) and head.adaptive is not None for head in model.heads.values()):
        raise TaskError("tokens cannot be added under an adaptive output, whose clusters are fixed: train from nothing")
    if any(not ids for ids in pieces):
        raise ValueError("a new token needs at least one old token that it was written with")
    settings = model.settings.replace(vocab_size=model.settings.vocab_size + len(pieces))
    with torch.device("meta"):
        larger = assemble(settings)
    found = named_tensors(model)
    for name in _BY_TOKEN & found.keys():
        old = found[name]
        rows = [old[torch.tensor(list(ids), device=old.device)].mean(0, keepdim=True) for ids in pieces]
        found[name] = torch.cat([old, *rows])
    finished = _finished(larger, found, model)
    assert isinstance(finished, Bert)
    return finished


def _rebuilt(model: Model, settings: BertSettings | GptSettings, cut: Callable[[int, str, Tensor], Tensor]) -> Model:
    with torch.device("meta"):
        smaller = assemble(settings)
    old = named_tensors(model)
    found = {}
    for name in named_tensors(smaller):
        _, layer, _ = _split_layer(name)
        found[name] = old[name] if layer is None else cut(layer, name, old[name])
    return _finished(smaller, found, model)


def _finished(smaller: Model, found: Mapping[str, Tensor], model: Model) -> Model:
    """The smaller model with copies of the tensors found, frozen where they were, in the mode of the old one."""
    for name, parameter in smaller.named_parameters():
        parameter.requires_grad_(found[name].requires_grad)
    assign(smaller, {name: tensor.detach().clone() for name, tensor in found.items()})
    return smaller.train(model.training)


def _stack_settings(model: Model) -> BertSettings | GptSettings:
    if not isinstance(model.settings, BertSettings | GptSettings):
        raise ValueError("heads, neurons and layers can be removed from models of one stack (BERT, GPT)")
    return model.settings


def _check_heads_can_go(settings: BertSettings | GptSettings, heads: Mapping[int, Sequence[int]]) -> None:
    """Some parts know a head by its number alone, and would take another's place for its own."""
    if settings.projections == "none":
        raise ValueError("without projections a head is a slice of the hidden state and cannot be removed")
    if settings.positions.kind == "alibi":
        raise ValueError("ALiBi gives each head its slope by its number: its heads cannot be removed")
    shared = settings.positions.kind in ("buckets", "transformer_xl") and settings.positions.share_layers
    removed = {frozenset(heads.get(layer, ())) for layer in range(settings.num_layers)}
    if shared and len(removed) > 1:
        raise ValueError("positions are shared by all layers: remove the same heads in each")


def _kept(count: int, removed: Sequence[int], sentence: str) -> Tensor:
    wrong = [number for number in removed if not 0 <= number < count]
    if wrong:
        raise ValueError(f"{sentence}, there is no number {wrong[0]}")
    keep = [number for number in range(count) if number not in set(removed)]
    if not keep:
        raise ValueError(f"{sentence}, at least one must stay")
    return torch.tensor(keep)


def _known_layers(given: Mapping[int, Sequence[int]], settings: StackSettings) -> None:
    for layer in given:
        if not 0 <= layer < settings.num_layers:
            raise ValueError(f"the model has {settings.num_layers} layers, there is no number {layer}")


def _rows_of_heads(heads: Tensor, size: int) -> Tensor:
    return (heads[:, None] * size + torch.arange(size)).flatten()


def _cut_positions(name: str, tensor: Tensor, heads: Tensor, rows: Tensor) -> Tensor:
    """Positional parameters that belong to heads: T5's column a head, Transformer-XL's rows and biases."""
    if name.endswith("positions.relative.weight"):
        return tensor[rows]
    if name.endswith(("content_bias", "position_bias")):
        return tensor[heads]
    if name.endswith("positions.table.weight"):
        return tensor[:, heads]
    return tensor


def _split_layer(name: str) -> tuple[str, int | None, str]:
    """`stack.blocks.3.ffn` → (`stack.blocks.`, 3, `.ffn`)."""
    marker = "stack.blocks."
    if marker not in name:
        return name, None, ""
    before, rest = name.split(marker, 1)
    number, after = rest.split(".", 1)
    return f"{before}{marker}", int(number), f".{after}"
