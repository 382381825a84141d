"""A model's tensors by name, each once however often it is used, and their replacement."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn


def named_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers under the first name each has."""
    return dict(model.named_parameters()) | dict(model.named_buffers())


def assign(model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Put `tensors` in the place of the model's own, wherever each is used: tied places stay tied."""
    parameters = {
        id(old): nn.Parameter(tensors[name], requires_grad=old.requires_grad) for name, old in model.named_parameters()
    }
    buffers = {id(old): tensors[name] for name, old in model.named_buffers()}
    for module in model.modules():
        for name, parameter in list(module.named_parameters(recurse=False)):
            setattr(module, name, parameters[id(parameter)])
        for name, buffer in list(module.named_buffers(recurse=False)):
            setattr(module, name, buffers[id(buffer)])
