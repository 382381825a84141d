"""The Transformer of "Attention is all you need": an encoder, a decoder that looks at it, an output layer."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unmask.errors import TaskError
from unmask.models.settings import TransformerSettings
from unmask.nn.batch import Batch
from unmask.nn.block import DecoderBlock, DecoderPast
from unmask.nn.branches import Cells, StepMask, StepPlan, Tree, whole_registers
from unmask.nn.build import build_adaptive, build_decoder, build_embedding_positions, build_encoder, build_norm
from unmask.nn.embeddings import Embeddings
from unmask.nn.layout import Layout
from unmask.nn.masks import Mask
from unmask.nn.plan import AttentionPlan
from unmask.nn.table import vector_table
from unmask.nn.vocabulary import vocabulary_loss


class Memory(NamedTuple):
    """The encoder's output, which the decoder looks at."""

    rows: Tensor  # (R, H)
    layout: Layout


@dataclass
class DecoderState:
    """What is kept between two steps of decoding: for each block its past, and which source tokens are there.

    Of B sources, each may have K targets under way, side by side: B·K rows of past, but only B of memory.
    """

    blocks: list[DecoderPast]
    sources: Mask
    tree: Tree

    def select(self, sequences: Tensor) -> DecoderState:
        """Those of some sequences, in the order given: for sequences that are done."""
        return self.reorder(sequences, sequences)

    def reorder(self, rows: Tensor, sources: Tensor | None = None) -> DecoderState:
        """The past of some rows, and the memory of some sources (None: of all), each in the order given.

        As many rows for each source, side by side, and all of them rows of that source before.
        """
        blocks = [block.reorder(rows, sources) for block in self.blocks]
        mask = self.sources
        if mask.allowed is not None and sources is not None:
            mask = type(mask)(mask.allowed.index_select(0, sources))
        count = len(self.tree.seen) if sources is None else len(sources)
        return DecoderState(blocks, mask, self.tree.reorder(rows, count))

    def grown(self) -> DecoderState:
        """With room for one step more in the tree, and now and then without the cells that nobody needs."""
        packed, blocks = self.tree.packed(), self.blocks
        if packed is None:
            return DecoderState(blocks, self.sources, self.tree.grown())
        tree, places = packed
        blocks = [replace(one, own=one.own.gather(places)) if isinstance(one.own, Cells) else one for one in blocks]
        return DecoderState(blocks, self.sources, tree.grown())


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
        size, bias = settings.target_vocab_size, settings.output_bias
        self.adaptive = build_adaptive(settings.output, size, hidden, bias=bias)
        apart = settings.tie == "none" and self.adaptive is None
        self.output = nn.Linear(hidden, size, bias=False) if apart else None
        self.output_bias = nn.Parameter(torch.zeros(size)) if bias and self.adaptive is None else None

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
        """(R, H) → (R, V). Of an adaptive output these are log-probabilities, whose softmax is the same."""
        return F.linear(rows, *self.output_layer) if self.adaptive is None else self.adaptive(rows)

    def token_loss(self, rows: Tensor, targets: Tensor, smoothing: float = 0.0) -> Tensor:
        """Cross-entropy of these logits with targets (R,), summed; with `smoothing`, part of each answer spread out."""
        if self.adaptive is None:
            return vocabulary_loss(rows, *self.output_layer, targets, smoothing)
        if smoothing:
            raise TaskError(
                "label smoothing spreads over the whole vocabulary, which an adaptive output does not compute: "
                "set smoothing to 0"
            )
        return self.adaptive.loss(rows, targets)

    @property
    def output_layer(self) -> tuple[Tensor, Tensor | None]:
        """Weight (V, H) and bias (V,) of what gives logits."""
        if self.adaptive is not None:
            raise TaskError("an adaptive output has no single matrix")
        return self.target_embeddings.token.weight if self.output is None else self.output.weight, self.output_bias

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
        missing = whole_registers(dense.shape[1]) - dense.shape[1]
        dense, there = F.pad(dense, (0, 0, 0, missing)), F.pad(there, (0, missing))
        kind = StepMask if bool(there.any(-1).all()) else Mask  # an empty source is nothing to look at
        mask = kind(there[:, None, None, :])
        return DecoderState(
            [block.start(dense) for block in self._blocks()], mask, Tree.start(len(dense), dense.device)
        )

    def step(self, ids: Tensor, state: DecoderState) -> tuple[Tensor, DecoderState]:
        """One token a row, (B,) or (B·K,) → logits of the next (…, V). Equals `forward` at that position."""
        return self.step_some(ids, state, None)

    def step_some(self, ids: Tensor, state: DecoderState, rows: Tensor | None) -> tuple[Tensor, DecoderState]:
        """The same, where only some rows (R,) will be asked about again: their logits (R, V), in the order given."""
        position = state.tree.steps
        self.target_embeddings.check_length(position + 1)
        state = state.grown()
        branching = all(isinstance(block.own, Cells) for block in state.blocks)
        plan = StepPlan.of(state.tree, state.sources, rows if branching else None)
        if plan.rows is not None:
            ids = ids.index_select(0, plan.rows)
        x = self.target_embeddings.at(ids, torch.full_like(ids, position), position + 1)
        blocks = []
        for block, before in zip(self._blocks(), state.blocks, strict=True):
            x, past = block.step(x, before, plan)
            blocks.append(past)
        if rows is not None and not branching:
            x = x.index_select(0, rows)
        return self.logits(self.decoder.norm(x)), DecoderState(blocks, state.sources, state.tree)

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
