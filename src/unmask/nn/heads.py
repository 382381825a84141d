"""What stands on top of an encoder: pooling and the task layers."""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unmask.nn.adaptive import AdaptiveOutput
from unmask.nn.crf import CRF
from unmask.nn.dropout import Dropout
from unmask.nn.ffn import Activation
from unmask.nn.layout import Layout
from unmask.nn.vocabulary import vocabulary_loss
from unmask.nn.windows import WindowAttention, Windows, join_rows

Pooling = Literal["cls", "mean", "max"]


def pool(rows: Tensor, layout: Layout, pooling: Pooling) -> Tensor:
    """Token rows (R, H) → one row a sequence (B, H): the first token's, their mean, or their maximum."""
    if pooling == "cls":
        return rows[layout.first_rows(rows.device)]
    tokens, owner = rows, layout.row_sequences(rows.device)
    if layout.width is not None:
        keep = layout.token_rows(rows.device)
        tokens, owner = rows[keep], owner[keep]
    shape = (layout.num_sequences, rows.shape[1])
    if pooling == "max":
        index = owner[:, None].expand_as(tokens)
        lowest = tokens.new_full(shape, float("-inf"))
        return lowest.scatter_reduce(0, index, tokens, "amax", include_self=False)
    total = tokens.new_zeros(shape).index_add(0, owner, tokens)
    return total / torch.tensor(layout.lengths, device=rows.device, dtype=rows.dtype)[:, None]


class Pooler(nn.Module):
    """tanh(W · first token): BERT's pooled output."""

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.dense = nn.Linear(hidden_size, hidden_size)

    def forward(self, rows: Tensor, layout: Layout) -> Tensor:
        """(R, H) → (B, H)."""
        return torch.tanh(self.dense(rows[layout.first_rows(rows.device)]))


class MaskedTokenHead(nn.Module):
    """Which token was masked. The output matrix is the token embedding's own unless untied; or it is adaptive."""

    def __init__(
        self,
        vocab_size: int,
        hidden_size: int,
        activation: Activation,
        norm: nn.Module,
        *,
        tied: bool,
        adaptive: AdaptiveOutput | None = None,
    ) -> None:
        super().__init__()
        self.dense = nn.Linear(hidden_size, hidden_size)
        self.activation = activation
        self.norm = norm
        self.adaptive = adaptive
        self.output = None if tied or adaptive is not None else nn.Linear(hidden_size, vocab_size, bias=False)
        self.bias = None if adaptive is not None else nn.Parameter(torch.zeros(vocab_size))

    def initialise(self, generator: torch.Generator) -> None:
        """No token preferred at first."""
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def forward(self, rows: Tensor, embedding: Tensor) -> Tensor:
        """(R', H) → logits (R', V). Give only the masked rows: the vocabulary is the dear part."""
        if self.adaptive is not None:
            return self.adaptive(self._prepared(rows))
        return F.linear(self._prepared(rows), self._weight(embedding), self.bias)

    def loss(self, rows: Tensor, embedding: Tensor, targets: Tensor) -> Tensor:
        """Cross-entropy of the logits with targets (R',), summed; quicker than by way of all logits."""
        if self.adaptive is not None:
            return self.adaptive.loss(self._prepared(rows), targets)
        return vocabulary_loss(self._prepared(rows), self._weight(embedding), self.bias, targets)

    def _prepared(self, rows: Tensor) -> Tensor:
        return self.norm(self.activation(self.dense(rows)))

    def _weight(self, embedding: Tensor) -> Tensor:
        return embedding if self.output is None else self.output.weight


class PairHead(nn.Module):
    """Two logits a pair from the pooled output: next sentence or not, right order or not."""

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.dense = nn.Linear(hidden_size, 2)

    def forward(self, pooled: Tensor) -> Tensor:
        """(B, H) → (B, 2); index 0 means the second text does follow the first."""
        return self.dense(pooled)


class ClassifyHead(nn.Module):
    """Logits for each label of a whole sequence."""

    def __init__(self, hidden_size: int, num_labels: int, dropout: float, *, window_attention: bool = False) -> None:
        super().__init__()
        self.dropout = Dropout(dropout)
        self.dense = nn.Linear(hidden_size, num_labels)
        self.windows = WindowAttention(hidden_size) if window_attention else None

    def join(self, rows: Tensor, windows: Windows) -> Tensor:
        """One row a window → one row a text."""
        owners = windows.owners(rows.device)
        if self.windows is None:
            return join_rows(rows, owners, len(windows), windows.join)
        return self.windows(rows, owners, len(windows))

    def forward(self, pooled: Tensor) -> Tensor:
        """(B, H) → (B, labels)."""
        return self.dense(self.dropout(pooled))


class TagHead(nn.Module):
    """Logits for each label of each token, with a CRF over the sequence if asked for."""

    def __init__(self, hidden_size: int, num_labels: int, dropout: float, *, crf: bool = False) -> None:
        super().__init__()
        self.dropout = Dropout(dropout)
        self.dense = nn.Linear(hidden_size, num_labels)
        self.crf = CRF(num_labels) if crf else None

    def forward(self, rows: Tensor) -> Tensor:
        """(R, H) → (R, labels)."""
        return self.dense(self.dropout(rows))


class SpanHead(nn.Module):
    """Logits for each token to be the first and the last of an answer."""

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.dense = nn.Linear(hidden_size, 2)

    def forward(self, rows: Tensor) -> Tensor:
        """(R, H) → (R, 2), start then end."""
        return self.dense(rows)
