"""What the Transformer replaced, on torch's own layers: an LSTM encoder, and LSTM seq2seq with and without attention.

Baselines for comparisons, so they take the same batches and give rows of the same layout.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from unmask.nn.batch import Batch
from unmask.nn.dropout import Dropout
from unmask.nn.layout import Layout


class LstmEncoder(nn.Module):
    """Token ids → one vector a token, read from left to right, or from both sides."""

    def __init__(
        self,
        vocab_size: int,
        hidden_size: int,
        num_layers: int = 1,
        *,
        bidirectional: bool = True,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        directions = 2 if bidirectional else 1
        if hidden_size % directions:
            raise ValueError(f"hidden_size {hidden_size} must be even for two directions")
        self.embedding = nn.Embedding(vocab_size, hidden_size)
        self.dropout = Dropout(dropout)
        self.lstm = nn.LSTM(
            hidden_size,
            hidden_size // directions,
            num_layers,
            batch_first=True,
            bidirectional=bidirectional,
            dropout=dropout if num_layers > 1 else 0.0,
        )

    def forward(self, batch: Batch) -> Tensor:
        """Rows (R,) of ids → rows (R, H)."""
        rows, _ = self.read(batch)
        return rows

    def read(self, batch: Batch) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """Rows (R, H), and the last hidden and cell state, (layers, B, H) with both directions side by side."""
        embedded = self.dropout(self.embedding(batch.ids))
        packed, (hidden, cell) = self.lstm(_pack(embedded, batch.layout))
        rows = _rows(_unpack(packed, batch.layout), batch.layout)
        return self.dropout(rows), (self._side_by_side(hidden), self._side_by_side(cell))

    def _side_by_side(self, state: Tensor) -> Tensor:
        if not self.lstm.bidirectional:
            return state
        return state.unflatten(0, (-1, 2)).transpose(1, 2).flatten(2)


class LstmSeq2Seq(nn.Module):
    """Source ids and target ids → logits of each next target token.

    Without attention the source reaches the decoder only as its first state; with attention (Luong's dot product)
    every target token also looks at all source tokens.
    """

    def __init__(
        self,
        source_vocab_size: int,
        target_vocab_size: int,
        hidden_size: int,
        num_layers: int = 1,
        *,
        attention: bool = True,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.encoder = LstmEncoder(source_vocab_size, hidden_size, num_layers, dropout=dropout)
        self.decoder = LstmEncoder(target_vocab_size, hidden_size, num_layers, bidirectional=False, dropout=dropout)
        self.mix = nn.Linear(2 * hidden_size, hidden_size) if attention else None
        self.output = nn.Linear(hidden_size, target_vocab_size)

    def forward(self, source: Batch, target: Batch) -> Tensor:
        """(R, V) logits, row r for the token after target row r."""
        memory, state = self.encoder.read(source)
        embedded = self.decoder.dropout(self.decoder.embedding(target.ids))
        packed, _ = self.decoder.lstm(_pack(embedded, target.layout), state)
        dense = _unpack(packed, target.layout)
        if self.mix is not None:
            dense = self._attend(dense, source.layout.pad(memory), source.layout)
        return self.output(self.decoder.dropout(_rows(dense, target.layout)))

    def _attend(self, queries: Tensor, memory: Tensor, layout: Layout) -> Tensor:
        assert self.mix is not None
        scores = queries @ memory.transpose(1, 2)
        there = layout.key_mask(memory.device)[:, None, :]
        context = scores.masked_fill(~there, float("-inf")).softmax(-1) @ memory
        return torch.tanh(self.mix(torch.cat([queries, context], dim=-1)))


def _pack(rows: Tensor, layout: Layout) -> PackedSequence:
    return pack_padded_sequence(layout.pad(rows), torch.tensor(layout.lengths), batch_first=True, enforce_sorted=False)


def _unpack(packed: PackedSequence, layout: Layout) -> Tensor:
    dense, _ = pad_packed_sequence(packed, batch_first=True, total_length=layout.width)
    return dense


def _rows(dense: Tensor, layout: Layout) -> Tensor:
    """(B, S, H) → (R, H)."""
    return dense[layout.key_mask(dense.device)] if layout.width is None else dense.flatten(0, 1)
