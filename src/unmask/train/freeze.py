"""Layers that do not learn: for a whole run, or for its first updates."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Annotated

from pydantic import Field
from torch import nn

from unmask.config import Settings
from unmask.errors import SettingsError

_BLOCK = re.compile(r"(?:(.*)\.)?blocks\.(\d+)\.")
_EMBEDDINGS = re.compile(r"(?:^|[._])embeddings\.")


class FreezeSettings(Settings):
    """What does not learn."""

    embeddings: bool = False  # all of them: tokens (and an output layer tied to them), positions, segments, their norm
    layers: Annotated[int, Field(ge=0)] = 0  # how many of the lowest blocks; of each stack where there are two
    until: Annotated[int, Field(ge=1)] | None = None  # updates after which everything learns; None: never


def frozen_names(model: nn.Module, settings: FreezeSettings) -> set[str]:
    """The names of the parameters that do not learn, as this model (or wrapper) calls them.

    A parameter that several layers share is frozen only if all of them are.
    """
    _check(model, settings)
    kept = {id(parameter) for name, parameter in _all_names(model) if not _is_low(name, settings)}
    return {name for name, parameter in model.named_parameters() if id(parameter) not in kept}


def freeze(model: nn.Module, settings: FreezeSettings) -> None:
    """Freeze for the whole run, before the model is wrapped and its optimizer is built; nothing if `until` is set."""
    names = frozen_names(model, settings)
    if settings.until is None:
        for name, parameter in model.named_parameters():
            if name in names:
                parameter.requires_grad_(False)


def drop_gradients(model: nn.Module, names: Collection[str]) -> None:
    """Forget the gradients of some parameters, so that the optimizer passes over them: neither step nor decay.

    This is how layers are frozen for a while. The graph is always the same, which DDP and FSDP2 need. Done after the
    last backward of an update and before gradients are clipped.
    """
    parameters = dict(model.named_parameters())
    unknown = sorted(set(names) - parameters.keys())
    if unknown:
        raise ValueError(f"the model has no parameter {unknown[0]}: take the names from the same model or wrapper")
    for name in names:
        parameters[name].grad = None


def _is_low(name: str, settings: FreezeSettings) -> bool:
    block = _BLOCK.search(name)
    if block is not None:
        return int(block[2]) < settings.layers
    return settings.embeddings and _EMBEDDINGS.search(name) is not None


def _check(model: nn.Module, settings: FreezeSettings) -> None:
    names = [name for name, _ in _all_names(model)]
    sizes: dict[str, int] = {}
    for name in names:
        block = _BLOCK.search(name)
        if block is not None:
            stack = block[1] or "model"
            sizes[stack] = max(sizes.get(stack, 0), int(block[2]) + 1)
    if settings.layers and not sizes:
        raise SettingsError(f"freeze: layers is {settings.layers} but the model has no blocks; set layers to 0")
    for stack, size in sizes.items():
        if settings.layers > size:
            raise SettingsError(
                f"freeze: layers is {settings.layers} but {stack} has {size} blocks; use at most {size}"
            )
    if settings.embeddings and not any(_EMBEDDINGS.search(name) for name in names):
        raise SettingsError("freeze: embeddings is true but the model has none by that name; set it to false")


def _all_names(model: nn.Module) -> list[tuple[str, nn.Parameter]]:
    """Parameters under every name they have: a shared one has several."""
    return list(model.named_parameters(remove_duplicate=False))
