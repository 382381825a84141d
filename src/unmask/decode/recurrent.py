"""The LSTM seq2seq baseline, one step at a time."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from unmask.models.recurrent import LstmSeq2Seq
from unmask.nn.batch import Batch


@dataclass(frozen=True)
class LstmMemory:
    """What the encoder gives: all its outputs with a mask, and its last state."""

    rows: Tensor  # (B, S, H)
    there: Tensor  # (B, S) True where a source has a token
    hidden: Tensor  # (layers, B, H)
    cell: Tensor


@dataclass(frozen=True)
class LstmState:
    """The state of each row, and the sources it may look at."""

    hidden: Tensor  # (layers, B·K, H)
    cell: Tensor
    rows: Tensor  # (B, S, H)
    there: Tensor

    def reorder(self, rows: Tensor, sources: Tensor | None = None) -> LstmState:
        """What belongs to some rows, and to some sources (None: to all), each in the order given."""
        hidden, cell = self.hidden.index_select(1, rows), self.cell.index_select(1, rows)
        if sources is None:
            return LstmState(hidden, cell, self.rows, self.there)
        return LstmState(hidden, cell, self.rows.index_select(0, sources), self.there.index_select(0, sources))


class LstmSteps(nn.Module):
    """An `LstmSeq2Seq` that can be asked for one token after another."""

    target_limit: int | None = None

    def __init__(self, model: LstmSeq2Seq) -> None:
        super().__init__()
        self.model = model

    def encode(self, source: Batch) -> LstmMemory:
        """Read the sources."""
        rows, (hidden, cell) = self.model.encoder.read(source)
        return LstmMemory(source.layout.pad(rows), source.layout.key_mask(rows.device), hidden, cell)

    def start(self, memory: LstmMemory) -> LstmState:
        """The state before the first step, one row a source."""
        return LstmState(memory.hidden, memory.cell, memory.rows, memory.there)

    def step(self, ids: Tensor, state: LstmState) -> tuple[Tensor, LstmState]:
        """One token a row (B·K,) → logits of the next (B·K, V). Equals the whole model at that position."""
        decoder = self.model.decoder
        embedded = decoder.dropout(decoder.embedding(ids))[:, None]
        out, (hidden, cell) = decoder.lstm(embedded, (state.hidden, state.cell))
        rows = out[:, 0]
        if self.model.mix is not None:
            queries = rows.unflatten(0, (len(state.rows), -1))  # (B, K, H)
            scores = (queries @ state.rows.transpose(1, 2)).masked_fill(~state.there[:, None], float("-inf"))
            context = (scores.softmax(-1) @ state.rows).flatten(0, 1)
            rows = torch.tanh(self.model.mix(torch.cat([rows, context], dim=-1)))
        return self.model.output(decoder.dropout(rows)), LstmState(hidden, cell, state.rows, state.there)
