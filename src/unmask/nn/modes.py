"""Using a model that may be in the middle of training, or computes with threads of its own."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import torch
from torch import nn


class OwnThreads(nn.Module):
    """A module that computes with threads of its own. torch's would stand in their way, looking out for work."""

    #: How many tokens it likes at once: some portions for each thread, and still a bar that moves.
    token_budget = 4096


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Within the block, dropout and its like are off; afterwards every module is in the mode it was in."""
    modules = list(model.modules())
    training = [module for module in modules if module.training]
    model.eval()
    try:
        with one_thread() if any(isinstance(module, OwnThreads) for module in modules) else nullcontext():
            yield
    finally:
        for module in training:
            module.training = True


_lock = threading.Lock()
_inside = 0
_before = 1


@contextmanager
def one_thread() -> Iterator[None]:
    """torch computes with one thread until the last block of this kind, in whatever thread, has ended."""
    global _inside, _before
    with _lock:
        if not _inside:
            _before = torch.get_num_threads()
            torch.set_num_threads(1)
        _inside += 1
    try:
        yield
    finally:
        with _lock:
            _inside -= 1
            if not _inside:
                torch.set_num_threads(_before)


@contextmanager
def no_denormals() -> Iterator[None]:
    """Within the block, numbers too small for full precision (below 1e-38) are 0 in this thread, where the CPU can.

    A saturated softmax is full of them, and a CPU computes with each some hundred times more slowly.
    """
    tiny = torch.tensor(1e-39)
    kept = bool(tiny * 1.0)
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(not kept)
