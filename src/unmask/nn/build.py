"""Settings → modules: the one place that asks which kind of part is wanted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import assert_never

import torch.nn.functional as F
from torch import nn

from unmask.nn.adaptive import AdaptiveOutput
from unmask.nn.attend import Attend
from unmask.nn.attention import MultiHeadAttention, NoProjections, Projections, SharedProjections
from unmask.nn.block import DecoderBlock, DecoderStack, EncoderBlock, EncoderStack, NoSublayer
from unmask.nn.ffn import Activation, FeedForward, gelu_tanh, identity
from unmask.nn.norm import AddNorm, PostNorm, PreNorm, RowBatchNorm
from unmask.nn.positions import (
    AlibiPositions,
    BucketPositions,
    ComplexPositions,
    LearnedPositions,
    NoPositions,
    Positions,
    RotaryPositions,
    ShawPositions,
    SinusoidalPositions,
    TransformerXLPositions,
)
from unmask.nn.scores import Additive, Dot, NormedDot, ScaledDot, Score
from unmask.nn.settings import ActivationName, AdaptiveSettings, LayerSettings, LayerShape, NormName, SinusoidalSettings


def build_activation(name: ActivationName) -> Activation:
    """The function between the two matrices of a feed-forward network."""
    match name:
        case "gelu":
            return F.gelu
        case "gelu_tanh":
            return gelu_tanh
        case "relu":
            return F.relu
        case "silu":
            return F.silu
        case "identity":
            return identity
        case _:
            assert_never(name)


def build_norm(name: NormName, size: int, eps: float) -> nn.Module:
    """A normalisation of rows (R, size)."""
    match name:
        case "layer":
            return nn.LayerNorm(size, eps=eps)
        case "rms":
            return nn.RMSNorm(size, eps=eps)
        case "batch":
            return RowBatchNorm(size, eps=eps)
        case "none":
            return nn.Identity()
        case _:
            assert_never(name)


def build_score(settings: LayerSettings) -> Score:
    """How queries and keys are compared."""
    match settings.score:
        case "scaled_dot":
            return ScaledDot(settings.width_of_head)
        case "dot":
            return Dot()
        case "normed_dot":
            return NormedDot(settings.width_of_head)
        case "additive":
            return Additive(settings.width_of_head)
        case _:
            assert_never(settings.score)


def build_projections(settings: LayerSettings, num_heads: int) -> Projections:
    """What makes queries, keys and values of rows."""
    hidden, head = settings.hidden_size, settings.width_of_head
    match settings.projections:
        case "separate":
            return Projections(hidden, num_heads, head, bias=settings.bias)
        case "shared_qk":
            return SharedProjections(hidden, num_heads, head, bias=settings.bias)
        case "none":
            return NoProjections(hidden, num_heads, head)
        case _:
            assert_never(settings.projections)


def build_adaptive(
    output: AdaptiveSettings | None, vocab_size: int, hidden_size: int, *, bias: bool
) -> AdaptiveOutput | None:
    """The adaptive output, where settings ask for one."""
    if output is None:
        return None
    return AdaptiveOutput(vocab_size, hidden_size, output.cutoffs, output.div_value, bias=bias)


def build_embedding_positions(settings: LayerSettings, vocab_size: int, max_length: int) -> Positions:
    """The part of the positional scheme that acts on embeddings."""
    match settings.positions.kind:
        case "learned":
            return LearnedPositions(max_length, settings.hidden_size)
        case "sinusoidal":
            waves = settings.positions
            assert isinstance(waves, SinusoidalSettings)
            return SinusoidalPositions(settings.hidden_size, waves.order, waves.spacing, waves.start)
        case "complex":
            return ComplexPositions(vocab_size, settings.hidden_size)
        case "none" | "rotary" | "alibi" | "buckets" | "shaw" | "transformer_xl":
            return NoPositions()
        case _:
            assert_never(settings.positions.kind)


def build_attention_positions(settings: LayerSettings, num_heads: int, *, causal: bool) -> Positions:
    """The part of the positional scheme that acts inside one layer's attention."""
    head, kind = settings.width_of_head, settings.positions
    match kind.kind:
        case "rotary":
            return RotaryPositions(head, kind.base)
        case "alibi":
            return AlibiPositions(num_heads)
        case "buckets":
            return BucketPositions(num_heads, kind.num_buckets, kind.max_distance, causal=causal)
        case "shaw":
            return ShawPositions(head, kind.max_distance)
        case "transformer_xl":
            return TransformerXLPositions(num_heads, head, settings.hidden_size)
        case "none" | "learned" | "sinusoidal" | "complex":
            return NoPositions()
        case _:
            assert_never(kind)


def build_encoder(settings: LayerSettings, shapes: Sequence[LayerShape], *, causal: bool = False) -> EncoderStack:
    """A stack of self-attention blocks, one a shape; causal for a model that reads from left to right."""
    blocks = []
    for shape, positions in zip(shapes, _positions_by_layer(settings, shapes, causal=causal), strict=True):
        attention = build_attention(settings, shape.num_heads, positions)
        around = build_add_norm(settings), build_around_ffn(settings)
        blocks.append(EncoderBlock(attention, build_ffn(settings, shape.ffn_size), *around))
    return EncoderStack(blocks, build_final_norm(settings))


def build_decoder(settings: LayerSettings, shapes: Sequence[LayerShape]) -> DecoderStack:
    """A stack of blocks with causal self-attention and attention to an encoder's output."""
    blocks = []
    for shape, positions in zip(shapes, _positions_by_layer(settings, shapes, causal=True), strict=True):
        blocks.append(
            DecoderBlock(
                build_attention(settings, shape.num_heads, positions),
                build_attention(settings, shape.num_heads, NoPositions()),
                build_ffn(settings, shape.ffn_size),
                (build_add_norm(settings), build_add_norm(settings), build_around_ffn(settings)),
            )
        )
    return DecoderStack(blocks, build_final_norm(settings))


def build_attention(settings: LayerSettings, num_heads: int, positions: Positions) -> MultiHeadAttention:
    """One multi-head attention."""
    attend = Attend(build_score(settings), positions, settings.dropout.attention)
    projections = build_projections(settings, num_heads)
    return MultiHeadAttention(projections, attend, settings.hidden_size, bias=settings.bias)


def build_ffn(settings: LayerSettings, ffn_size: int) -> nn.Module:
    """One feed-forward network, or nothing."""
    if not settings.ffn:
        return nn.Identity()
    return FeedForward(
        settings.hidden_size,
        ffn_size,
        build_activation(settings.activation),
        gated=settings.gated,
        bias=settings.bias,
        dropout=settings.dropout.activation,
    )


def build_add_norm(settings: LayerSettings) -> AddNorm:
    """Residual connection, dropout and norm around a sub-layer."""
    norm = build_norm(settings.norm, settings.hidden_size, settings.norm_eps)
    match settings.norm_place:
        case "post":
            return PostNorm(norm, settings.dropout.residual, residual=settings.residual)
        case "pre":
            return PreNorm(norm, settings.dropout.residual, residual=settings.residual)
        case _:
            assert_never(settings.norm_place)


def build_around_ffn(settings: LayerSettings) -> AddNorm | NoSublayer:
    """The same around the feed-forward network, or nothing where there is none."""
    return build_add_norm(settings) if settings.ffn else NoSublayer()


def build_final_norm(settings: LayerSettings) -> nn.Module:
    """The norm after the last block, where the settings ask for one."""
    if not settings.final_norm:
        return nn.Identity()
    return build_norm(settings.norm, settings.hidden_size, settings.norm_eps)


def _positions_by_layer(settings: LayerSettings, shapes: Sequence[LayerShape], *, causal: bool) -> list[Positions]:
    """The positions of each layer: one object for all of them where the scheme shares its parameters."""
    if getattr(settings.positions, "share_layers", False):
        shared = build_attention_positions(settings, shapes[0].num_heads, causal=causal)
        return [shared] * len(shapes)
    return [build_attention_positions(settings, shape.num_heads, causal=causal) for shape in shapes]
