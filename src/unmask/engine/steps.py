"""Decoding step by step with the kernels, for those who want to see all logits: sampling, and tests."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from unmask.engine.binding import CStep, address
from unmask.engine.decoder import PackedTransformer, grown
from unmask.engine.pack import LANES, whole
from unmask.errors import UserError
from unmask.models.transformer import Memory
from unmask.nn.batch import Batch
from unmask.nn.embeddings import Embeddings


@dataclass
class _Room:
    """Cells of all rows' pasts: keys (R, heads, capacity / 16, size, 16), values (R, heads, capacity, size)."""

    keys: Tensor
    values: Tensor
    used: int


@dataclass(frozen=True)
class FastState:
    """What is kept between two steps. A value: who continues it twice gets two pasts."""

    keys: Tensor  # of all sources, end to end
    values: Tensor
    key_starts: Tensor  # (B,) where those of a source begin
    value_starts: Tensor
    lengths: Tensor  # (B,) of the sources
    sources: Tensor  # (R,) the source of each row
    past: _Room
    steps: int = 0

    def reorder(self, rows: Tensor, sources: Tensor | None = None) -> FastState:
        """The past of some rows, and the memory of some sources (None: of all), each in the order given."""
        past = _Room(self.past.keys.index_select(0, rows), self.past.values.index_select(0, rows), self.steps)
        kept = torch.arange(len(self.lengths)) if sources is None else sources
        return replace(
            self,
            key_starts=self.key_starts[kept],
            value_starts=self.value_starts[kept],
            lengths=self.lengths[kept],
            sources=torch.arange(len(kept)).repeat_interleave(len(rows) // len(kept)),
            past=past,
        )

    def select(self, sequences: Tensor) -> FastState:
        """Those of some sequences, in the order given."""
        return self.reorder(sequences, sequences)


class FastSteps:
    """A `StepModel` that computes with the kernels."""

    def __init__(
        self, packed: PackedTransformer, embeddings: tuple[Embeddings, Embeddings], code: ctypes.CDLL, threads: int
    ) -> None:
        """`embeddings` of source and target are torch's, which know how to complain."""
        self.packed, self.embeddings, self.threads = packed, embeddings, threads
        self.code = code

    @property
    def target_limit(self) -> int | None:
        """How many steps the target's positions can represent; None where there is no limit."""
        return self.embeddings[1].positions.limit

    def encode(self, source: Batch) -> Memory:
        """Read the sources."""
        layout = source.layout
        model, kept = self.packed.reader(layout.max_length)
        lengths, ids = torch.tensor(layout.lengths), source.ids.contiguous()
        out = torch.empty(layout.num_rows, self.packed.hidden)
        given = (address(ids), None, None, address(lengths), len(lengths), None, 0, address(out), self.threads)
        if self.code.unmask_encode(ctypes.byref(model), *given):
            self.embeddings[0](source)
            raise MemoryError(f"no memory for a batch of {layout.num_rows} tokens")
        del kept
        return Memory(out, layout)

    def start(self, memory: Memory) -> FastState:
        """The state before the first step, one row a source."""
        packed, lengths = self.packed, torch.tensor(memory.layout.lengths)
        each = packed.source_heads * packed.head_size
        key_sizes, value_sizes = -(-lengths // LANES) * LANES * each, lengths * each
        starts = [torch.cat([torch.zeros(1, dtype=torch.long), sizes.cumsum(0)]) for sizes in (key_sizes, value_sizes)]
        keys, values = (torch.empty(int(ends[-1])) for ends in starts)
        model, kept = packed.writer(1)
        rows = memory.rows.contiguous()
        given = (address(rows), address(lengths), len(lengths), address(starts[0]), address(starts[1]))
        if self.code.unmask_remember(ctypes.byref(model), *given, address(keys), address(values)):
            raise MemoryError(f"no memory for {len(rows)} source tokens")
        del kept
        shape = (len(lengths), packed.own_heads)
        nothing = _Room(
            torch.zeros(*shape, 0, packed.head_size, LANES), torch.zeros(*shape, 0, packed.head_size), used=0
        )
        numbers = torch.arange(len(lengths))
        return FastState(keys, values, starts[0][:-1], starts[1][:-1], lengths, numbers, nothing)

    def step(self, ids: Tensor, state: FastState) -> tuple[Tensor, FastState]:
        """One token a row → logits of the next (R, V), and the state after it."""
        position, past = state.steps, state.past
        self.embeddings[1].check_length(position + 1)
        if past.used != position or position == past.values.shape[2]:  # somebody's step is there, or no room
            past = _Room(*grown(past.keys, past.values, whole(position + 1, LANES)), position)
            if past.keys.data_ptr() == state.past.keys.data_ptr():
                past = _Room(past.keys.clone(), past.values.clone(), position)
        model, kept = self.packed.writer(position + 1)
        ids, logits = ids.contiguous(), torch.empty(len(ids), self.packed.vocabulary)
        tensors = (ids, state.sources, state.lengths, state.key_starts, state.value_starts, state.keys, state.values)
        places = [address(tensor.contiguous()) for tensor in (*tensors, past.keys, past.values, logits)]
        given = CStep(ctypes.pointer(model), len(ids), position, past.values.shape[2], *places)
        if self.code.unmask_step(ctypes.byref(given), self.threads):
            self._explain(ids, position)
        del kept
        past.used = position + 1
        return logits, replace(state, past=past, steps=position + 1)

    def _explain(self, ids: Tensor, position: int) -> None:
        """The kernels found something wrong: torch's embeddings say what."""
        self.embeddings[1].at(ids, torch.full_like(ids, position), position + 1)
        raise UserError(f"no memory for a step of {len(ids)} rows")
