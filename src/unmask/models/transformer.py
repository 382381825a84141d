"""The Transformer of "Attention is all you need": an encoder, a decoder that looks at it, an output layer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unmask.models.settings import TransformerSettings
from unmask.nn.batch import Batch
from unmask.nn.block import DecoderBlock, DecoderPast
from unmask.nn.build import build_decoder, build_embedding_positions, build_encoder, build_norm
from unmask.nn.embeddings import Embeddings
from unmask.nn.layout import Layout
from unmask.nn.masks import Mask
from unmask.nn.plan import AttentionPlan
from unmask.nn.table import vector_table


class Memory(NamedTuple):
    """The encoder's output, which the decoder looks at."""

    rows: Tensor  # (R, H)
    layout: Layout


#: Sources are filled up to a multiple of this before steps look at them. A vector register's worth of keys that are
#: masked adds exact zeros, so that a sentence's numbers do not depend on how long the others of its batch are.
SOURCE_MULTIPLE = 16


@dataclass
class DecoderState:
    """What is kept between two steps of decoding: for each block its past, and which source tokens are there.

    Of B sources, each may have K targets under way, side by side: B·K rows of past, but only B of memory.
    """

    blocks: list[DecoderPast]
    mask: Mask
    position: int = 0

    def select(self, sequences: Tensor) -> DecoderState:
        """Those of some sequences, in the order given: for sequences that are done."""
        return self.reorder(sequences, sequences)

    def reorder(self, rows: Tensor, sources: Tensor | None = None) -> DecoderState:
        """The past of some rows, and the memory of some sources (None: of all), each in the order given."""
        blocks = []
        for block in self.blocks:
            own = None if block.own is None else block.own.select(rows)
            blocks.append(DecoderPast(own, block.memory if sources is None else block.memory.select(sources)))
        allowed = self.mask.allowed
        if allowed is not None and sources is not None:
            allowed = allowed.index_select(0, sources)
        return DecoderState(blocks, Mask(allowed), self.position)


class Transformer(nn.Module):
    """Source ids and target ids → logits of each next target token."""

    def __init__(self, settings: TransformerSettings) -> None:
        super().__init__()
        self.settings = settings
        hidden = settings.hidden_size
        target = vector_table(settings.target_vocab_size, hidden)
        source = target if settings.tie == "all" else vector_table(settings.source_vocab_size, hidden)
        self.source_embeddings = _embeddings(settings, source)
        self.target_embeddings = _embeddings(settings, target)
        self.encoder = build_encoder(settings, settings.uniform(settings.num_encoder_layers))
        self.decoder = build_decoder(settings, settings.uniform(settings.num_decoder_layers))
        self.output = nn.Linear(hidden, settings.target_vocab_size, bias=False) if settings.tie == "none" else None
        self.output_bias = nn.Parameter(torch.zeros(settings.target_vocab_size)) if settings.output_bias else None

    def forward(self, source: Batch, target: Batch) -> Tensor:
        """All target positions at once, as in training: (R, V) logits, row r for the token after row r."""
        return self.logits(self.decode(target, self.encode(source)))

    def encode(self, source: Batch) -> Memory:
        """Read the source, every token seeing all others."""
        plan = AttentionPlan.between(source.layout, source.layout, device=source.ids.device)
        return Memory(self.encoder(self.source_embeddings(source), plan), source.layout)

    def decode(self, target: Batch, memory: Memory) -> Tensor:
        """Target rows (R, H), each token seeing those before it and the whole source."""
        device = target.ids.device
        own = AttentionPlan.between(target.layout, target.layout, causal=True, device=device)
        cross = AttentionPlan.between(target.layout, memory.layout, device=device)
        return self.decoder(self.target_embeddings(target), own, memory.rows, cross)

    def logits(self, rows: Tensor) -> Tensor:
        """(R, H) → (R, V)."""
        weight = self.target_embeddings.token.weight if self.output is None else self.output.weight
        return F.linear(rows, weight, self.output_bias)

    def initialise(self, generator: torch.Generator) -> None:
        """No token preferred at first."""
        if self.output_bias is not None:
            nn.init.zeros_(self.output_bias)

    @property
    def target_limit(self) -> int | None:
        """How many steps the target's positions can represent; None where there is no limit."""
        return self.target_embeddings.positions.limit

    def start(self, memory: Memory) -> DecoderState:
        """The state before the first target token."""
        dense = memory.layout.pad(memory.rows)
        there = memory.layout.key_mask(dense.device)
        missing = -dense.shape[1] % SOURCE_MULTIPLE
        dense, there = F.pad(dense, (0, 0, 0, missing)), F.pad(there, (0, missing))
        blocks = [DecoderPast(None, block.cross_attention.remember(dense)) for block in self._blocks()]
        return DecoderState(blocks, Mask(None if bool(there.all()) else there[:, None, None, :]))

    def step(self, ids: Tensor, state: DecoderState) -> tuple[Tensor, DecoderState]:
        """One token a row, (B,) or (B·K,) → logits of the next (…, V). Equals `forward` at that position."""
        self.target_embeddings.check_length(state.position + 1)
        x = self.target_embeddings.at(ids, torch.full_like(ids, state.position), state.position + 1)
        blocks = []
        for block, before in zip(self._blocks(), state.blocks, strict=True):
            x, past = block.step(x, before, state.mask)
            blocks.append(past)
        return self.logits(self.decoder.norm(x)), DecoderState(blocks, state.mask, state.position + 1)

    def _blocks(self) -> list[DecoderBlock]:
        return [block for block in self.decoder.blocks if isinstance(block, DecoderBlock)]


def _embeddings(settings: TransformerSettings, token: nn.Embedding) -> Embeddings:
    hidden = settings.hidden_size
    return Embeddings(
        token,
        build_embedding_positions(settings, token.num_embeddings, settings.max_length),
        norm=build_norm(settings.norm, hidden, settings.norm_eps) if settings.embedding_norm else None,
        scaled=settings.scale_embeddings,
        dropout=settings.dropout.embedding,
    )
