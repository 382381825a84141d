"""An encoder-decoder's weights for the kernels, and what they need to know beside them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unmask.engine.binding import CCross, CDecoder, CEncoder, address
from unmask.engine.encoder import PackedStack, Precision
from unmask.engine.pack import LANES, Packed, PackedNorm, heads_apart, pack, pack_norm, whole
from unmask.models.transformer import Transformer
from unmask.nn.attention import MultiHeadAttention
from unmask.nn.block import DecoderBlock
from unmask.nn.embeddings import Embeddings
from unmask.nn.norm import AddNorm
from unmask.nn.positions import LearnedPositions, NoPositions, SinusoidalPositions
from unmask.nn.positions.absolute import sinusoids

#: Positions that the kernels look up in a table.
TABLED = (LearnedPositions, SinusoidalPositions, NoPositions)
#: A table of sines and cosines has so many rows to begin with.
_WAVES = 512


class PackedCross:
    """How one block looks at the source."""

    def __init__(self, attention: MultiHeadAttention, around: AddNorm, *, int8: bool) -> None:
        projections, scale = attention.projections, attention.attend.score.scale
        self.heads = heads = projections.num_heads
        size, full = projections.head_size, whole(projections.head_size, LANES)

        def apart(linears: Sequence[nn.Linear], factor: float) -> Packed:
            weights = [heads_apart(one.weight, heads, size, full, dim=0) for one in linears]
            biases = [heads_apart(one.bias, heads, size, full, dim=0) for one in linears if one.bias is not None]
            bias = torch.cat(biases) * factor if biases else None
            return pack(torch.cat(weights) * factor, bias, int8=int8)

        self.query = apart([projections.query], scale)
        self.memory = apart([projections.key, projections.value], 1.0)
        output = heads_apart(attention.output.weight, heads, size, full, dim=1)
        self.output = pack(output, attention.output.bias, int8=int8)
        self.around = pack_norm(around.norm)

    def as_c(self) -> CCross:
        """For the kernels; valid while this object lives."""
        matrices = [matrix.as_c() for matrix in (self.query, self.memory, self.output)]
        return CCross(*matrices, self.around.as_c(), self.heads)


class Tables:
    """What the kernels look up to embed tokens: vectors of tokens, and of positions up to a length."""

    def __init__(self, embeddings: Embeddings) -> None:
        self.tokens = embeddings.token.weight.detach().contiguous()
        self.scale = embeddings.scale
        self.norm: PackedNorm = pack_norm(embeddings.norm)
        self._positions = embeddings.positions
        self._waves = torch.empty(0, self.tokens.shape[1])

    def positions(self, length: int) -> Tensor | None:
        """Vectors of so many positions at least, unless a learned table ends before; None where there are none."""
        if isinstance(self._positions, LearnedPositions):
            return self._positions.table.weight.detach().contiguous()
        if not isinstance(self._positions, SinusoidalPositions):
            return None
        known, waves = self._positions, self._waves  # one look: another thread may put others there
        if length > len(waves):
            where = torch.arange(known.start, known.start + max(length, 2 * len(waves), _WAVES))
            waves = sinusoids(where, known.hidden_size, known.order, known.spacing).float().contiguous()
            self._waves = waves
        return waves

    def give(self, to: CEncoder, length: int) -> Tensor | None:
        """Say where they are. The positions, if there are any, must be kept as long as somebody reads them."""
        places = self.positions(length)
        to.tokens, to.positions = address(self.tokens), address(places)
        to.vocabulary, to.num_positions = len(self.tokens), 0 if places is None else len(places)
        to.token_scale, to.embedding = self.scale, self.norm.as_c()
        return places


class PackedTransformer:
    """Both stacks, the embeddings and the output layer. Nothing in it changes, so threads may share it."""

    @torch.no_grad()
    def __init__(self, model: Transformer, precision: Precision) -> None:
        hidden = model.settings.hidden_size
        int8, self.precision = precision == "int8", precision
        self.reading, self.writing = Tables(model.source_embeddings), Tables(model.target_embeddings)
        self.encoder = PackedStack(model.encoder, hidden, precision)
        self.decoder = PackedStack(model.decoder, hidden, precision)
        blocks = [cast(DecoderBlock, block) for block in model.decoder.blocks]
        self.crosses = [PackedCross(one.cross_attention, one.around_cross, int8=int8) for one in blocks]
        self.output = pack(*model.output_layer, int8=int8)
        self.vocabulary = len(model.output_layer[0])
        self.hidden = hidden
        self.head_size = int(self.decoder.c.head_size)
        self.own_heads = sum(layer.heads for layer in self.decoder.layers)
        self.source_heads = sum(one.heads for one in self.crosses)
        self._crosses = (CCross * len(blocks))(*(one.as_c() for one in self.crosses))

    def reader(self, length: int) -> tuple[CEncoder, Tensor | None]:
        """The encoder for sources up to a length, and what must be kept while it is used."""
        made = CEncoder.from_buffer_copy(self.encoder.c)
        return made, self.reading.give(made, length)

    def writer(self, length: int) -> tuple[CDecoder, Tensor | None]:
        """The decoder for targets up to a length, and what must be kept while it is used."""
        stack = CEncoder.from_buffer_copy(self.decoder.c)
        kept = self.writing.give(stack, length)
        return CDecoder(stack, self._crosses, self.output.as_c(), self.vocabulary), kept


def grown(keys: Tensor, values: Tensor, capacity: int) -> tuple[Tensor, Tensor]:
    """Keys (R, heads, cells / 16, size, 16) and values (R, heads, cells, size) with room for more cells.

    Within a head the kernels may hold keys by eights instead; room at the end is the same for both.
    """
    more = capacity - values.shape[2]
    return F.pad(keys, (0, 0, 0, 0, 0, more // LANES)).contiguous(), F.pad(values, (0, 0, 0, more)).contiguous()
