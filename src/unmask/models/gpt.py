"""A GPT-style model: the encoder's blocks, each token seeing only itself and those before it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unmask.models.settings import GptSettings
from unmask.nn.attention import KeyValues
from unmask.nn.batch import Batch
from unmask.nn.block import EncoderBlock
from unmask.nn.build import build_embedding_positions, build_encoder, build_norm
from unmask.nn.embeddings import Embeddings
from unmask.nn.plan import AttentionPlan
from unmask.nn.table import vector_table


@dataclass
class GptState:
    """What is kept between two steps of generation."""

    past: list[KeyValues | None]
    position: int = 0

    def select(self, sequences: Tensor) -> GptState:
        """Those of some sequences, in the order given."""
        return GptState([None if one is None else one.select(sequences) for one in self.past], self.position)


class Gpt(nn.Module):
    """Token ids → logits of each next token."""

    def __init__(self, settings: GptSettings) -> None:
        super().__init__()
        self.settings = settings
        hidden = settings.hidden_size
        self.embeddings = Embeddings(
            vector_table(settings.vocab_size, hidden),
            build_embedding_positions(settings, settings.vocab_size, settings.max_length),
            norm=build_norm(settings.norm, hidden, settings.norm_eps) if settings.embedding_norm else None,
            scaled=settings.scale_embeddings,
            dropout=settings.dropout.embedding,
        )
        self.stack = build_encoder(settings, settings.shapes, causal=True)
        self.output = None if settings.tie_output else nn.Linear(hidden, settings.vocab_size, bias=False)

    def forward(self, batch: Batch) -> Tensor:
        """All positions at once: (R, V) logits, row r for the token after row r."""
        plan = AttentionPlan.between(batch.layout, batch.layout, causal=True, device=batch.ids.device)
        return self._logits(self.stack(self.embeddings(batch), plan))

    def start(self) -> GptState:
        """The state before the first token."""
        return GptState([None] * len(self.stack.blocks))

    def step(self, ids: Tensor, state: GptState) -> tuple[Tensor, GptState]:
        """One token a sequence (B,) → logits of the next (B, V)."""
        self.embeddings.check_length(state.position + 1)
        x = self.embeddings.at(ids, torch.full_like(ids, state.position), state.position + 1)
        past: list[KeyValues | None] = []
        for block, before in zip(self.stack.blocks, state.past, strict=True):
            assert isinstance(block, EncoderBlock)
            x, now = block.step(x, before)
            past.append(now)
        return self._logits(self.stack.norm(x)), GptState(past, state.position + 1)

    def _logits(self, x: Tensor) -> Tensor:
        return F.linear(x, self.embeddings.token.weight) if self.output is None else self.output(x)
