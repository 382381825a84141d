"""What the Transformer replaced, on torch's own layers: an LSTM encoder, and LSTM seq2seq with and without attention.

Baselines for comparisons, so they take the same batches and give rows of the same layout.
"""

from __future__ import annotations

import bisect
import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from unmask.errors import SettingsError
from unmask.models.bert import num_parameters
from unmask.models.settings import LstmSettings, TransformerSettings
from unmask.models.transformer import Transformer
from unmask.nn.batch import Batch
from unmask.nn.dropout import Dropout
from unmask.nn.embeddings import Embeddings
from unmask.nn.layout import Layout
from unmask.nn.positions.base import NoPositions
from unmask.nn.table import vector_table
from unmask.nn.vocabulary import vocabulary_loss

#: The hidden and the cell state, each (layers, B, H).
State = tuple[Tensor, Tensor]


class LstmStack(nn.Module):
    """Rows (R, H) → rows (R, H), read from left to right, or from both sides with half the width each."""

    def __init__(self, hidden_size: int, num_layers: int, *, bidirectional: bool, dropout: float) -> None:
        super().__init__()
        directions = 2 if bidirectional else 1
        if hidden_size % directions:
            raise ValueError(f"hidden_size {hidden_size} must be even for two directions")
        self.lstm = nn.LSTM(
            hidden_size,
            hidden_size // directions,
            num_layers,
            batch_first=True,
            bidirectional=bidirectional,
            dropout=dropout if num_layers > 1 else 0.0,
        )

    def forward(self, rows: Tensor, layout: Layout, state: State | None = None) -> tuple[Tensor, State]:
        """Rows, and the state after each sequence's own end, both directions side by side."""
        lengths = torch.tensor(layout.lengths)
        packed = pack_padded_sequence(layout.pad(rows), lengths, batch_first=True, enforce_sorted=False)
        read, (hidden, cell) = self.lstm(packed, state)
        dense, _ = pad_packed_sequence(read, batch_first=True, total_length=layout.width)
        return _rows(dense, layout), (self._side_by_side(hidden), self._side_by_side(cell))

    def initialise(self, generator: torch.Generator) -> None:
        """Torch's range for weights; biases of zero but for the forget gate's, which starts open."""
        bound, gate = self.lstm.hidden_size**-0.5, self.lstm.hidden_size
        for name, parameter in self.lstm.named_parameters():
            if name.startswith("weight"):
                nn.init.uniform_(parameter, -bound, bound, generator=generator)
                continue
            nn.init.zeros_(parameter)
            if name.startswith("bias_ih"):  # torch adds two biases; its gates are input, forget, cell, output
                nn.init.ones_(parameter[gate : 2 * gate])

    def _side_by_side(self, state: Tensor) -> Tensor:
        if not self.lstm.bidirectional:
            return state
        return state.unflatten(0, (-1, 2)).transpose(1, 2).flatten(2)


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
        self.embedding = vector_table(vocab_size, hidden_size)
        self.stack = LstmStack(hidden_size, num_layers, bidirectional=bidirectional, dropout=dropout)
        self.dropout = Dropout(dropout)

    def forward(self, batch: Batch) -> Tensor:
        """Rows (R,) of ids → rows (R, H)."""
        rows, _ = self.stack(self.dropout(self.embedding(batch.ids)), batch.layout)
        return self.dropout(rows)


@dataclass(frozen=True)
class LstmMemory:
    """What the encoder gives: all its outputs, for attention, and its last state, which the decoder starts from."""

    rows: Tensor  # (B, S, H)
    there: Tensor  # (B, S) True where a source has a token
    hidden: Tensor  # (layers, B, H)
    cell: Tensor


@dataclass(frozen=True)
class LstmState:
    """What is kept between two steps: the state of each row, and the sources that rows look at."""

    hidden: Tensor  # (layers, B·K, H)
    cell: Tensor
    memory: LstmMemory

    def reorder(self, rows: Tensor, sources: Tensor | None = None) -> LstmState:
        """What belongs to some rows, and to some sources (None: to all), each in the order given."""
        hidden, cell, memory = self.hidden.index_select(1, rows), self.cell.index_select(1, rows), self.memory
        if sources is not None:
            memory = LstmMemory(
                memory.rows.index_select(0, sources),
                memory.there.index_select(0, sources),
                memory.hidden.index_select(1, sources),
                memory.cell.index_select(1, sources),
            )
        return LstmState(hidden, cell, memory)


class LstmSeq2Seq(nn.Module):
    """Source ids and target ids → logits of each next target token.

    Without attention the source reaches the decoder only as its first state; with attention (Luong's dot product)
    every target token also looks at all source tokens.
    """

    target_limit: int | None = None  # a state has no table that could end

    def __init__(self, settings: LstmSettings) -> None:
        super().__init__()
        self.settings = settings
        hidden, layers, dropout = settings.hidden_size, settings.num_layers, settings.dropout
        target = vector_table(settings.target_vocab_size, hidden)
        source = target if settings.tie == "all" else vector_table(settings.source_vocab_size, hidden)
        # Scaled as the Transformer's are: a table that is right for the output is too small for an input.
        self.source_embeddings = Embeddings(source, NoPositions(), scaled=True, dropout=dropout)
        self.target_embeddings = Embeddings(target, NoPositions(), scaled=True, dropout=dropout)
        self.encoder = LstmStack(hidden, layers, bidirectional=True, dropout=dropout)
        self.decoder = LstmStack(hidden, layers, bidirectional=False, dropout=dropout)
        self.mix = nn.Linear(2 * hidden, hidden) if settings.attention else None
        self.dropout = Dropout(dropout)
        self.output = nn.Linear(hidden, settings.target_vocab_size, bias=False) if settings.tie == "none" else None
        self.output_bias = nn.Parameter(torch.zeros(settings.target_vocab_size))

    def forward(self, source: Batch, target: Batch) -> Tensor:
        """All target positions at once, as in training: (R, V) logits, row r for the token after row r."""
        return self.logits(self.decode(target, self.encode(source)))

    def encode(self, source: Batch) -> LstmMemory:
        """Read the sources from both sides."""
        rows, (hidden, cell) = self.encoder(self.source_embeddings(source), source.layout)
        there = source.layout.key_mask(rows.device)
        return LstmMemory(source.layout.pad(self.dropout(rows)), there, hidden, cell)

    def decode(self, target: Batch, memory: LstmMemory) -> Tensor:
        """Target rows (R, H), each token knowing those before it."""
        layout = target.layout
        rows, _ = self.decoder(self.target_embeddings(target), layout, (memory.hidden, memory.cell))
        if self.mix is not None:
            rows = _rows(self._attend(layout.pad(rows), memory), layout)
        return self.dropout(rows)

    def logits(self, rows: Tensor) -> Tensor:
        """(R, H) → (R, V)."""
        return F.linear(rows, *self.output_layer)

    def token_loss(self, rows: Tensor, targets: Tensor, smoothing: float = 0.0) -> Tensor:
        """Cross-entropy of these logits with targets (R,), summed; with `smoothing`, part of each answer spread out."""
        return vocabulary_loss(rows, *self.output_layer, targets, smoothing)

    @property
    def output_layer(self) -> tuple[Tensor, Tensor]:
        """Weight (V, H) and bias (V,) of what gives logits."""
        return self.target_embeddings.token.weight if self.output is None else self.output.weight, self.output_bias

    def initialise(self, generator: torch.Generator) -> None:
        """No token preferred at first."""
        nn.init.zeros_(self.output_bias)

    def start(self, memory: LstmMemory) -> LstmState:
        """The state before the first step, one row a source."""
        return LstmState(memory.hidden, memory.cell, memory)

    def step(self, ids: Tensor, state: LstmState) -> tuple[Tensor, LstmState]:
        """One token a row (B·K,) → logits of the next (B·K, V). Equals `forward` at that position."""
        x = self.target_embeddings.at(ids, torch.zeros_like(ids), 1)
        out, (hidden, cell) = self.decoder.lstm(x[:, None], (state.hidden, state.cell))
        rows = out[:, 0]
        if self.mix is not None:
            rows = self._attend(rows.unflatten(0, (len(state.memory.rows), -1)), state.memory).flatten(0, 1)
        return self.logits(self.dropout(rows)), LstmState(hidden, cell, state.memory)

    def _attend(self, queries: Tensor, memory: LstmMemory) -> Tensor:
        """Queries (B, T, H), each joined with what it finds in its source."""
        assert self.mix is not None
        scores = queries @ memory.rows.transpose(1, 2)
        context = scores.masked_fill(~memory.there[:, None], float("-inf")).softmax(-1) @ memory.rows
        return torch.tanh(self.mix(torch.cat([queries, context], dim=-1)))


def lstm_like(settings: TransformerSettings, attention: bool, num_layers: int = 2) -> LstmSettings:
    """The LSTM seq2seq whose number of parameters is nearest to that of a Transformer, for the same vocabularies."""
    if settings.output is not None:
        raise SettingsError("an adaptive output is a Transformer's; an LSTM has one softmax: leave output out")

    def lstm(half: int) -> LstmSettings:
        return LstmSettings(
            source_vocab_size=settings.source_vocab_size,
            target_vocab_size=settings.target_vocab_size,
            hidden_size=2 * half,
            num_layers=num_layers,
            attention=attention,
            dropout=settings.dropout.residual,
            tie=settings.tie,
        )

    with torch.device("meta"):  # counting needs no memory
        wanted = num_parameters(Transformer(settings))
        sizes = range(1, math.isqrt(wanted) + 2)  # the recurrent matrix of one layer alone has more from there on

        def count(half: int) -> int:
            return num_parameters(LstmSeq2Seq(lstm(half)))

        place = bisect.bisect_left(sizes, wanted, key=count)
        near = sizes[max(place - 1, 0) : place + 1]
        return lstm(min(near, key=lambda half: abs(count(half) - wanted)))


def _rows(dense: Tensor, layout: Layout) -> Tensor:
    """(B, S, H) → (R, H)."""
    return dense[layout.key_mask(dense.device)] if layout.width is None else dense.flatten(0, 1)
