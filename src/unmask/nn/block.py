"""The blocks of an encoder and a decoder, and the stack they stand in."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint, noop_context_fn

from unmask.nn.attention import Joined, KeyValues, MultiHeadAttention
from unmask.nn.branches import Cells, StepPlan
from unmask.nn.norm import AddNorm
from unmask.nn.plan import AttentionPlan
from unmask.nn.positions.base import Positions


class NoSublayer(nn.Module):
    """A sub-layer that is not there: x passes by."""

    def forward(self, x: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        """x."""
        return x


class EncoderBlock(nn.Module):
    """Self-attention, then feed-forward, each inside its Add & Norm."""

    def __init__(
        self,
        self_attention: MultiHeadAttention,
        ffn: nn.Module,
        around_attention: AddNorm,
        around_ffn: AddNorm | NoSublayer,
    ) -> None:
        super().__init__()
        self.self_attention = self_attention
        self.ffn = ffn
        self.around_attention = around_attention
        self.around_ffn = around_ffn

    def forward(self, x: Tensor, plan: AttentionPlan, rows: Tensor | None = None) -> Tensor:
        """Rows (R, H) → rows (R, H); with `rows` only these (R', H), which still attend to all by their own plan."""
        if rows is None:
            x = self.around_attention(x, lambda y: self.self_attention(y, plan))
        else:
            everything = self.around_attention.seen(x)
            x = self.around_attention(x.index_select(0, rows), lambda y: self.self_attention(y, plan, everything))
        return self.around_ffn(x, self.ffn)

    @property
    def can_choose(self) -> bool:
        """Whether a row's answer needs no other row but as keys and values, and no place but its own."""
        hooks = type(self.self_attention.attend.positions)
        placed = hooks.rotate is not Positions.rotate or hooks.bias is not Positions.bias or hooks.mixes
        return not placed and not any(isinstance(module, nn.BatchNorm1d) for module in self.modules())

    def step(self, x: Tensor, past: KeyValues | None) -> tuple[Tensor, KeyValues]:
        """One new row a sequence (B, H), in a causal model that keeps its past."""
        kept: list[KeyValues] = []

        def attend(y: Tensor) -> Tensor:
            out, now = self.self_attention.step(y, past)
            kept.append(now)
            return out

        x = self.around_attention(x, attend)
        return self.around_ffn(x, self.ffn), kept[0]


@dataclass
class DecoderPast:
    """What one decoder block keeps between steps: its own past, and the encoder's output ready to look at."""

    own: Cells | KeyValues | None  # cells where targets branch, keys and values of each row where they cannot
    memory: KeyValues
    joined: Joined | None = None

    def reorder(self, rows: Tensor, sources: Tensor | None) -> DecoderPast:
        """The past of some rows, and the memory of some sources (None: of all), each in the order given."""
        own = self.own
        if isinstance(own, KeyValues):
            own = own.select(rows)
        if sources is None:
            return DecoderPast(own, self.memory, self.joined)
        if isinstance(own, Cells):
            own = own.select(sources)
        return DecoderPast(own, self.memory.select(sources), self.joined)


class DecoderBlock(nn.Module):
    """Causal self-attention, attention to the encoder's output, then feed-forward, each inside its Add & Norm."""

    def __init__(
        self,
        self_attention: MultiHeadAttention,
        cross_attention: MultiHeadAttention,
        ffn: nn.Module,
        around: tuple[AddNorm, AddNorm, AddNorm | NoSublayer],
    ) -> None:
        super().__init__()
        self.self_attention = self_attention
        self.cross_attention = cross_attention
        self.ffn = ffn
        self.around_attention, self.around_cross, self.around_ffn = around

    def forward(self, x: Tensor, plan: AttentionPlan, memory: Tensor, cross: AttentionPlan) -> Tensor:
        """Target rows (R, H) and the encoder's rows → target rows."""
        x = self.around_attention(x, lambda y: self.self_attention(y, plan))
        x = self.around_cross(x, lambda y: self.cross_attention(y, cross, memory))
        return self.around_ffn(x, self.ffn)

    @property
    def can_branch(self) -> bool:
        """Whether a target's past may lie scattered among others: not where scores depend on the place of a key."""
        return not self.self_attention.attend.biased

    def start(self, memory: Tensor) -> DecoderPast:
        """Before the first step, with the encoder's output (B, S, H)."""
        remembered = self.cross_attention.remember(memory)
        if not self.can_branch:
            return DecoderPast(None, remembered)
        nothing = Cells.empty(remembered.keys[:, :, :0], 0)
        return DecoderPast(nothing, remembered, self.self_attention.projections.joined())

    def step(self, x: Tensor, past: DecoderPast, plan: StepPlan) -> tuple[Tensor, DecoderPast]:
        """One new row a target: (R, H) those that the plan computes, or all of them where targets cannot branch."""
        kept: list[Cells | KeyValues] = []

        def attend(y: Tensor) -> Tensor:
            if isinstance(past.own, Cells):
                out, own = self.self_attention.branch(y, past.own, past.joined, plan)
                kept.append(own)
            else:
                out, flat = self.self_attention.step(y, past.own)
                kept.append(flat)
            return out

        x = self.around_attention(x, attend)
        x = self.around_cross(x, lambda y: self.cross_attention.look(y, past.memory, plan.sources, plan))
        return self.around_ffn(x, self.ffn), DecoderPast(kept[0], past.memory, past.joined)


@dataclass(frozen=True)
class Chosen:
    """The only rows that somebody will look at: the last block computes no others, which nobody can tell."""

    rows: Tensor  # (R',)
    plan: AttentionPlan  # from them to all rows


class EncoderStack(nn.Module):
    """Blocks one after another, with a last norm where the blocks need one."""

    def __init__(self, blocks: Sequence[EncoderBlock], norm: nn.Module) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(blocks)
        self.norm = norm
        self.recompute = False  # compute activations again in the backward pass instead of keeping them

    def forward(self, x: Tensor, plan: AttentionPlan, chosen: Chosen | None = None) -> Tensor:
        """Rows (R, H) → rows (R, H), or only the chosen ones (R', H)."""
        last = len(self.blocks) - 1
        for number, block in enumerate(self.blocks):
            if number == last and chosen is not None and block.can_choose:
                return self.norm(_run(block, self.recompute, x, chosen.plan, chosen.rows))
            x = _run(block, self.recompute, x, plan)
        return self.norm(x if chosen is None else x.index_select(0, chosen.rows))


class DecoderStack(nn.Module):
    """Decoder blocks one after another, with a last norm where the blocks need one."""

    def __init__(self, blocks: Sequence[DecoderBlock], norm: nn.Module) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(blocks)
        self.norm = norm
        self.recompute = False  # compute activations again in the backward pass instead of keeping them

    def forward(self, x: Tensor, plan: AttentionPlan, memory: Tensor, cross: AttentionPlan) -> Tensor:
        """Target rows (R, H) and the encoder's rows → target rows."""
        for block in self.blocks:
            x = _run(block, self.recompute, x, plan, memory, cross)
        return self.norm(x)


def _run(block: nn.Module, recompute: bool, *inputs: Tensor | AttentionPlan | None) -> Tensor:
    """What a block says; with `recompute`, only its inputs are kept for the backward pass."""
    if not (recompute and block.training and torch.is_grad_enabled()):
        return block(*inputs)
    norms = [module for module in block.modules() if isinstance(module, nn.BatchNorm1d)]
    contexts = (lambda: (nullcontext(), _SameStatistics(norms))) if norms else noop_context_fn
    return checkpoint(block, *inputs, use_reentrant=False, preserve_rng_state=True, context_fn=contexts)


class _SameStatistics(AbstractContextManager[None]):
    """BatchNorm counts each batch once, though it sees it twice."""

    def __init__(self, norms: Sequence[nn.BatchNorm1d]) -> None:
        self.norms = norms
        self.before: list[Tensor] = []

    def __enter__(self) -> None:
        self.before = [buffer.clone() for norm in self.norms for buffer in norm.buffers()]

    def __exit__(self, *error: object) -> None:
        buffers = (buffer for norm in self.norms for buffer in norm.buffers())
        for buffer, before in zip(buffers, self.before, strict=True):
            # Through `data`: the backward pass under way must not take this for a change of what it needs.
            buffer.data.copy_(before)
