"""Token, position and segment embeddings, summed."""

from __future__ import annotations

import math

from torch import Tensor, nn

from unmask.errors import UserError
from unmask.nn.batch import Batch
from unmask.nn.dropout import Dropout
from unmask.nn.positions.base import Positions


class Embeddings(nn.Module):
    """norm(token · scale + position + segment), then dropout."""

    def __init__(
        self,
        token: nn.Embedding,
        positions: Positions,
        segment: nn.Embedding | None = None,
        norm: nn.Module | None = None,
        *,
        scaled: bool = False,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.token = token
        self.positions = positions
        self.segment = segment
        self.norm = nn.Identity() if norm is None else norm
        self.scale = math.sqrt(token.embedding_dim) if scaled else 1.0
        self.dropout = Dropout(dropout)

    def forward(self, batch: Batch) -> Tensor:
        """Rows of ids (R,) → rows (R, H)."""
        layout = batch.layout
        self.check_length(layout.max_length)
        length = layout.width or layout.max_length
        return self.at(batch.ids, layout.row_positions(batch.ids.device), length, batch.segments)

    def check_length(self, longest: int) -> None:
        """UserError where the positions cannot represent so many tokens."""
        limit = self.positions.limit
        if limit is not None and longest > limit:
            raise UserError(
                f"a sequence has {longest} tokens but the model's position table has {limit} rows; "
                "cut the text, split it into windows, or use positions without a table"
            )

    def at(self, ids: Tensor, positions: Tensor, length: int, segments: Tensor | None = None) -> Tensor:
        """Tokens `ids` (R,) that stand at `positions` (R,), all of them below `length`."""
        try:
            x = self.token(ids)
        except IndexError:
            raise UserError(
                f"a token has the id {int(ids.max())} but the model's vocabulary has {self.token.num_embeddings} tokens"
            ) from None
        x = self.positions.embed(x if self.scale == 1.0 else x * self.scale, ids, positions, length)
        if self.segment is not None:
            x = x + self._segments(self.segment, segments)
        return self.dropout(self.norm(x))

    def _segments(self, table: nn.Embedding, segments: Tensor | None) -> Tensor:
        if segments is None:
            return table.weight[0]
        try:
            return table(segments)
        except IndexError:
            raise UserError(
                f"a token has the segment {int(segments.max())} but the model's segment table has "
                f"{table.num_embeddings} rows; join the texts into fewer, or use a model with more segments"
            ) from None
