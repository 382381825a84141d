"""Less memory for more time: block activations are computed again in the backward pass instead of being kept."""

from __future__ import annotations

from torch import nn

from unmask.errors import TaskError
from unmask.nn.block import DecoderStack, EncoderStack


def checkpoint_activations(model: nn.Module, on: bool = True) -> None:
    """Keep only the input of each block of `model` in training (or, with `on` false, everything again).

    Losses and gradients are the same to the last bit, dropout included.
    """
    stacks = [module for module in model.modules() if isinstance(module, EncoderStack | DecoderStack)]
    if on and not stacks:
        raise TaskError("the model has no stack of blocks whose activations could be computed again; switch this off")
    for stack in stacks:
        stack.recompute = on


def compile_blocks(model: nn.Module) -> None:
    """Have torch.compile translate every block, in place; names of parameters stay as they are."""
    for module in model.modules():
        if isinstance(module, EncoderStack | DecoderStack):
            for block in module.blocks:
                block.compile(dynamic=True)
