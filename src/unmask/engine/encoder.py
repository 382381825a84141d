"""An encoder that computes with the kernels. Takes and gives what `BertEncoder` takes and gives; cannot be trained."""

from __future__ import annotations

import ctypes
from typing import Literal, cast

import torch
from torch import Tensor, nn

from unmask.engine.binding import CEncoder, CLayer, address
from unmask.engine.pack import LANES, NO_NORM, PANEL, Packed, heads_apart, pack, pack_norm, whole
from unmask.errors import UserError
from unmask.models.bert import BertEncoder, Encoded
from unmask.nn.attention import MultiHeadAttention
from unmask.nn.batch import Batch
from unmask.nn.block import DecoderBlock, DecoderStack, EncoderBlock, EncoderStack
from unmask.nn.ffn import FeedForward, gelu_tanh, identity
from unmask.nn.modes import OwnThreads
from unmask.nn.norm import AddNorm, PreNorm
from unmask.nn.positions import LearnedPositions, NoPositions

Precision = Literal["fp32", "int8"]

#: As `enum activation` in vector.h numbers them.
ACTIVATIONS = {identity: 0, nn.functional.gelu: 1, gelu_tanh: 2, nn.functional.relu: 3, nn.functional.silu: 4}


class PackedLayer:
    """One block's weights for the kernels."""

    def __init__(self, block: EncoderBlock | DecoderBlock, precision: Precision) -> None:
        int8 = precision == "int8"
        attention, ffn = block.self_attention, cast(FeedForward, block.ffn)
        self.heads = attention.num_heads
        self.qkv, self.output = pack_attention(attention, int8=int8)
        self.inner = pack(ffn.inner.weight, ffn.inner.bias, int8=int8)
        self.outer = pack(ffn.outer.weight, ffn.outer.bias, int8=int8)
        self.norms = [pack_norm(cast(AddNorm, around).norm) for around in (block.around_attention, block.around_ffn)]

    def as_c(self) -> CLayer:
        """For the kernels; valid while this object lives."""
        matrices = [matrix.as_c() for matrix in (self.qkv, self.output, self.inner, self.outer)]
        return CLayer(*matrices, *(norm.as_c() for norm in self.norms), self.heads)


def pack_attention(attention: MultiHeadAttention, *, int8: bool) -> tuple[Packed, Packed]:
    """W_Q (with the scores' scale in it), W_K and W_V side by side, and W_O; heads in whole vector registers."""
    projections, scale = attention.projections, attention.attend.score.scale
    heads, size, full = projections.num_heads, projections.head_size, whole(projections.head_size, LANES)

    def apart(tensor: Tensor) -> Tensor:
        return heads_apart(tensor, heads, size, full, dim=0)

    maps = (projections.query, projections.key, projections.value)
    weights = [apart(linear.weight) for linear in maps]
    weights[0] = weights[0] * scale
    bias = None
    if projections.query.bias is not None:
        biases = [apart(linear.bias) for linear in maps]
        biases[0] = biases[0] * scale
        bias = torch.cat(biases)
    output = heads_apart(attention.output.weight, heads, size, full, dim=1)
    return pack(torch.cat(weights), bias, int8=int8), pack(output, attention.output.bias, int8=int8)


class PackedStack:
    """All blocks, with what is the same for all of them."""

    @torch.no_grad()
    def __init__(
        self, stack: EncoderStack | DecoderStack, hidden: int, precision: Precision, *, spend: bool = False
    ) -> None:
        blocks = stack.blocks
        first = cast(EncoderBlock, blocks[0])
        self.layers: list[PackedLayer] = []
        for number in range(len(blocks)):
            self.layers.append(PackedLayer(cast(EncoderBlock, blocks[number]), precision))
            if spend:
                blocks[number] = nn.Identity()
        self.final = pack_norm(stack.norm)
        self._array = (CLayer * len(blocks))(*(layer.as_c() for layer in self.layers))
        self.c = CEncoder(
            hidden=hidden,
            stride=whole(hidden, PANEL),
            head_size=whole(first.self_attention.projections.head_size, LANES),
            num_layers=len(blocks),
            pre_norm=isinstance(first.around_attention, PreNorm),
            activation=ACTIVATIONS[cast(FeedForward, first.ffn).activation],
            quantised=precision == "int8",
            layers=self._array,
            final=self.final.as_c(),
            token_scale=1.0,
        )


class FastEncoder(OwnThreads):
    """Token ids → vectors that know their context, by the kernels."""

    def __init__(self, encoder: BertEncoder, precision: Precision, code: ctypes.CDLL, *, spend: bool = False) -> None:
        super().__init__()
        self.embeddings = encoder.embeddings
        self.pooler = encoder.pooler
        self.precision = precision
        self.threads = torch.get_num_threads()
        self._kernels = code
        self._hidden = encoder.embeddings.token.embedding_dim
        self._stack = PackedStack(encoder.stack, self._hidden, precision, spend=spend)
        self._norm = NO_NORM
        self._tables: list[Tensor | None] = []  # kept alive: the kernels know only where they lie
        self._embeds = type(self.embeddings.positions) in (LearnedPositions, NoPositions)
        if self._embeds:
            self._give_tables()

    def _give_tables(self) -> None:
        """Tables of the embeddings, so that the kernels look up by themselves."""
        c, parts = self._stack.c, self.embeddings
        self._norm = pack_norm(parts.norm)
        modules = (parts.token, getattr(parts.positions, "table", None), parts.segment)
        self._tables = [None if module is None else module.weight.detach().contiguous() for module in modules]
        c.tokens, c.positions, c.segments = (address(table) for table in self._tables)
        c.vocabulary, c.num_positions, c.num_segments = (0 if table is None else len(table) for table in self._tables)
        c.token_scale, c.embedding = parts.scale, self._norm.as_c()

    @torch.no_grad()
    def forward(self, batch: Batch, asked: Tensor | None = None) -> Encoded:
        """As `BertEncoder`; with `asked`, only these rows are handed out."""
        layout = batch.layout
        if layout.width is not None:
            raise UserError("the fast engine reads ragged batches; padded ones are for comparison, by torch")
        given = None if self._embeds else self.embeddings(batch).contiguous()
        lengths = torch.tensor(layout.lengths)
        out = torch.empty(layout.num_rows if asked is None else len(asked), self._hidden)
        ids, kinds = batch.ids.contiguous(), batch.segments.contiguous()
        outcome = self._kernels.unmask_encode(
            ctypes.byref(self._stack.c),
            address(ids),
            address(kinds),
            address(given),
            address(lengths),
            layout.num_sequences,
            address(asked),
            0 if asked is None else len(asked),
            address(out),
            self.threads,
        )
        if outcome:
            self._explain(batch)
        if asked is not None:
            layout = layout.of_rows(asked)
        pooled = None if self.pooler is None else self.pooler(out, layout)
        return Encoded(out, pooled, layout)

    def _explain(self, batch: Batch) -> None:
        """The kernels found something wrong: torch's embeddings say what."""
        self.embeddings(batch)
        raise MemoryError(f"no memory for a batch of {batch.layout.num_rows} tokens")


def is_hooked(module: nn.Module) -> bool:
    """Whether somebody watches or changes what happens inside: then torch must do it."""
    return any(one._forward_hooks or one._forward_pre_hooks for one in module.modules())
