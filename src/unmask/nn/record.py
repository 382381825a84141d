"""Look inside a model from outside: nothing is threaded through signatures, nothing is left behind.

Both context managers use torch's hooks and concern only forward passes of the thread that entered them. A module made
by `torch.compile` does not run hooks that come later: use them around the model itself.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from unmask.nn.attend import Attend
from unmask.nn.attention import MultiHeadAttention
from unmask.nn.block import DecoderBlock, EncoderBlock
from unmask.nn.masks import EVERYTHING, Mask
from unmask.nn.plan import AttentionPlan


@dataclass
class AttentionRecord:
    """What one attention did, a tensor for each sequence, in the order of the batch."""

    weights: list[Tensor] = field(default_factory=list)  # (N, T, S), rows sum to 1
    queries: list[Tensor] = field(default_factory=list)  # (N, T, D), as compared
    keys: list[Tensor] = field(default_factory=list)  # (N, S, D), as compared


@dataclass
class Trace:
    """All that was recorded, by the name of the module."""

    attention: dict[str, AttentionRecord] = field(default_factory=dict)
    hidden: dict[str, list[Tensor]] = field(default_factory=dict)  # (R, H) after each block, one a forward pass


@contextmanager
def record_attention(model: nn.Module, *, gradients: bool = False) -> Iterator[Trace]:
    """Record weights, queries, keys and hidden states of every forward pass inside the block.

    With `gradients` they are part of the computation, so that a loss can be made of them.
    The model computes exactly as it would without: weights are worked out beside it, by the reference formula.
    Steps of a decoder that keeps its past are not recorded: run the whole sequence instead.
    """
    trace = Trace()
    handles = []
    try:
        for name, module in model.named_modules():
            if isinstance(module, MultiHeadAttention):
                record = trace.attention.setdefault(name, AttentionRecord())
                handles.extend(_Watcher(record, gradients=gradients).watch(module))
            elif isinstance(module, EncoderBlock | DecoderBlock):
                states = trace.hidden.setdefault(name, [])
                handles.append(module.register_forward_hook(_keep_output(states, gradients=gradients)))
        yield trace
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def mask_heads(model: nn.Module, gates: Mapping[str, Tensor | Sequence[float]]) -> Iterator[None]:
    """Multiply the output of each head by a gate, (N,) for each named attention; 0 silences a head.

    A gate may require a gradient, which then says how much the head matters.
    """
    modules = dict(model.named_modules())
    handles = []
    try:
        for name, gate in gates.items():
            module = modules.get(name)
            if not isinstance(module, MultiHeadAttention):
                raise ValueError(f"{name} is not an attention of this model")
            gate = torch.as_tensor(gate)
            if gate.shape != (module.num_heads,):
                raise ValueError(f"{name} has {module.num_heads} heads but {tuple(gate.shape)} gates were given")
            handles.append(module.attend.register_forward_hook(_multiply(gate)))
        yield
    finally:
        for handle in handles:
            handle.remove()


class _Watcher:
    """Collects the dense pieces of one forward pass and hands them out sequence by sequence."""

    def __init__(self, record: AttentionRecord, *, gradients: bool = False) -> None:
        self.record, self.gradients = record, gradients
        self.thread = threading.get_ident()  # passes of other threads are none of our business
        self.pieces: list[tuple[Tensor, Tensor, Tensor]] | None = None  # None while no forward pass is under way

    def watch(self, module: MultiHeadAttention) -> list[torch.utils.hooks.RemovableHandle]:
        return [
            module.register_forward_pre_hook(self.begin),
            module.attend.register_forward_pre_hook(self.collect),
            module.register_forward_hook(self.hand_out),
        ]

    def begin(self, attention: nn.Module, args: tuple[object, ...]) -> None:
        if threading.get_ident() == self.thread:
            self.pieces = []  # those of a pass that failed are gone

    def collect(self, attend: nn.Module, args: tuple[Tensor, ...]) -> None:
        if self.pieces is None or threading.get_ident() != self.thread:
            return
        assert isinstance(attend, Attend)
        q, k = (args[0], args[1]) if self.gradients else (args[0].detach(), args[1].detach())
        mask = args[3] if len(args) > 3 else EVERYTHING
        assert isinstance(mask, Mask)
        with torch.set_grad_enabled(self.gradients and torch.is_grad_enabled()):
            self.pieces.append((attend.weights(q, k, mask), q, k))

    def hand_out(self, attention: nn.Module, args: tuple[object, ...], output: object) -> None:
        if threading.get_ident() != self.thread:
            return
        plan, pieces = args[1], self.pieces
        assert isinstance(plan, AttentionPlan)
        assert pieces is not None
        self.pieces = None
        found: dict[int, tuple[Tensor, Tensor, Tensor]] = {}
        for group, (weights, q, k) in zip(plan.groups, pieces, strict=True):
            for row, (sequence, queries, keys) in enumerate(group.members):
                found[sequence] = (weights[row, :, :queries, :keys], q[row, :, :queries], k[row, :, :keys])
        for sequence in sorted(found):
            weights, q, k = found[sequence]
            self.record.weights.append(weights)
            self.record.queries.append(q)
            self.record.keys.append(k)


def _keep_output(states: list[Tensor], *, gradients: bool) -> Callable[[nn.Module, tuple[object, ...], Tensor], None]:
    def keep(block: nn.Module, args: tuple[object, ...], output: Tensor) -> None:
        states.append(output if gradients else output.detach())

    return keep


def _multiply(gate: Tensor) -> Callable[[nn.Module, tuple[object, ...], Tensor], Tensor]:
    thread = threading.get_ident()

    def multiply(attend: nn.Module, args: tuple[object, ...], output: Tensor) -> Tensor:
        return output * gate.to(output)[:, None, None] if threading.get_ident() == thread else output

    return multiply
