"""What a model consists of, counted to the unit, with the formula behind each count."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from unmask.models.folder import stored_names
from unmask.models.init import Model


@dataclass(frozen=True)
class Part:
    """A part of a model: its tensors, how their shapes make up the count, and their name in a model folder."""

    name: str
    tensors: int
    parameters: int
    formula: str
    stored_as: str


@dataclass(frozen=True)
class Inspection:
    """All parts; every parameter is counted once, where it first stands."""

    parts: tuple[Part, ...]
    total: int


def inspect(model: Model) -> Inspection:
    """The parameter table of a model. Layers that are alike share a line."""
    grouped: dict[str, list[tuple[str, nn.Parameter]]] = {}
    for name, parameter in model.named_parameters():
        grouped.setdefault(_part_of(name), []).append((name, parameter))
    stored = {_part_of(name): _part_of(stored) for name, stored in stored_names(model).items()}
    parts = tuple(_describe(name, members, stored[name]) for name, members in grouped.items())
    return Inspection(parts, sum(part.parameters for part in parts))


def _part_of(name: str) -> str:
    """`encoder.stack.blocks.3.ffn.inner.weight` → `encoder.stack.blocks.*.ffn.inner`."""
    steps = ["*" if step.isdigit() else step for step in name.split(".")]
    if steps[-1] in ("weight", "bias") and len(steps) > 1:
        steps = steps[:-1]
    return ".".join(steps)


def _describe(name: str, members: list[tuple[str, nn.Parameter]], stored_as: str) -> Part:
    shapes: dict[str, int] = {}
    for _, parameter in members:
        shape = "×".join(f"{size:,}" for size in parameter.shape)
        shapes[shape] = shapes.get(shape, 0) + 1
    counts = set(shapes.values())
    if len(counts) == 1 and (times := counts.pop()) > 1:
        formula = f"{times} × ({' + '.join(shapes)})"
    else:
        formula = " + ".join(f"{times} × {shape}" if times > 1 else shape for shape, times in shapes.items())
    parameters = sum(parameter.numel() for _, parameter in members)
    return Part(name, len(members), parameters, formula, stored_as)
