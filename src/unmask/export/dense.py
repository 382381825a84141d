"""BERT as other programs want it: rectangles of ids with a mask, and nothing in its code but tensor operations."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn

from unmask.engine.choose import unfit
from unmask.errors import TaskError
from unmask.models.bert import Bert
from unmask.nn.attention import MultiHeadAttention
from unmask.nn.block import EncoderBlock

#: What a model is given, in this order.
INPUTS = ("input_ids", "attention_mask", "token_type_ids")
VECTORS = "last_hidden_state"


class DenseBert(nn.Module):
    """The same weights; (B, S) ids, mask and segments → (B, S, H) vectors, or what the model's head says."""

    def __init__(self, model: Bert) -> None:
        super().__init__()
        if reason := unfit(model.encoder):
            raise TaskError(f"only plain BERT can be exported: {reason.replace('the kernels', 'it')}")
        self.encoder = model.encoder
        self.model = model
        kinds = [kind for kind in model.heads if kind in ("classify", "tag", "qa")]
        self.head = kinds[0] if kinds else None
        if self.head == "tag" and getattr(model.heads["tag"], "crf", None) is not None:
            raise TaskError("a CRF searches for the best path, which is no tensor operation: it cannot be exported")
        self.eval()

    @property
    def output(self) -> str:
        """The name of what comes out."""
        return VECTORS if self.head is None else "logits"

    def forward(self, ids: Tensor, mask: Tensor, segments: Tensor) -> Tensor:
        """Padding, where the mask is 0, is seen by nobody."""
        x = self._embedded(ids, segments)
        hidden = (1.0 - mask[:, None, None, :].to(x.dtype)) * torch.finfo(x.dtype).min
        for block in self.encoder.stack.blocks:
            x = _through(cast(EncoderBlock, block), x, hidden)
        x = self.encoder.stack.norm(x)
        return x if self.head is None else self._said(x, mask)

    def _embedded(self, ids: Tensor, segments: Tensor) -> Tensor:
        parts = self.encoder.embeddings
        x = parts.token(ids) * parts.scale
        places = torch.arange(ids.shape[1], device=ids.device)
        x = parts.positions.embed(x, ids, places, ids.shape[1])
        if parts.segment is not None:
            x = x + parts.segment(segments)
        return cast(Tensor, parts.norm(x))

    def _said(self, x: Tensor, mask: Tensor) -> Tensor:
        if self.head == "tag":
            return cast(Tensor, self.model.heads["tag"](x))
        if self.head == "qa":
            return cast(Tensor, self.model.heads["qa"](x))
        pooling = next(head.pooling for head in self.model.settings.heads if head.kind == "classify")
        if pooling == "pooler":
            assert self.encoder.pooler is not None
            row = torch.tanh(self.encoder.pooler.dense(x[:, 0]))
        elif pooling == "cls":
            row = x[:, 0]
        else:
            there = mask[:, :, None].to(x.dtype)
            if pooling == "mean":
                row = (x * there).sum(1) / there.sum(1)
            else:
                row = (x + (1.0 - there) * torch.finfo(x.dtype).min).amax(1)
        return cast(Tensor, self.model.heads["classify"](row))


def _through(block: EncoderBlock, x: Tensor, hidden: Tensor) -> Tensor:
    x = block.around_attention(x, lambda y: _attended(block.self_attention, y, hidden))
    return cast(Tensor, block.around_ffn(x, block.ffn))


def _attended(attention: MultiHeadAttention, x: Tensor, hidden: Tensor) -> Tensor:
    projections = attention.projections
    shape = (x.shape[0], x.shape[1], projections.num_heads, projections.head_size)
    q, k, v = (
        linear(x).view(shape).transpose(1, 2) for linear in (projections.query, projections.key, projections.value)
    )
    weights = (q @ k.transpose(2, 3) * attention.attend.score.scale + hidden).softmax(-1)
    return cast(Tensor, attention.output((weights @ v).transpose(1, 2).flatten(2)))
