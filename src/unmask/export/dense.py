"""BERT as other programs want it: rectangles of ids with a mask, and nothing in its code but tensor operations."""

from __future__ import annotations

from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unmask.engine.choose import unfit
from unmask.errors import TaskError
from unmask.models.bert import Bert
from unmask.models.sentence import SentenceSettings
from unmask.nn.attention import MultiHeadAttention
from unmask.nn.block import EncoderBlock
from unmask.nn.heads import Pooling
from unmask.nn.positions import SinusoidalPositions

#: What a model is given, in this order.
INPUTS = ("input_ids", "attention_mask", "token_type_ids")
VECTORS = "last_hidden_state"
SENTENCE = "sentence_embedding"
#: Heads that can be exported; of several, the first that a model has.
HEADS = ("classify", "tag", "qa", "mlm")
#: What each of them says, by name; without one a model gives vectors.
OUTPUTS = {"classify": ("logits",), "tag": ("logits",), "qa": ("start_logits", "end_logits"), "mlm": ("logits",)}
#: Outputs that have one row a text, and not one a token.
_WHOLE_TEXT = {("classify", "logits"), (None, SENTENCE)}


def exported_head(model: Bert, asked: str | None = None) -> str | None:
    """The head to export: the one asked for (`none`: no head), else the first that can be."""
    if asked is None:
        return next((kind for kind in HEADS if kind in model.heads), None)
    if asked == "none":
        return None
    if asked not in HEADS:
        raise TaskError(f"the head to export is one of {', '.join(HEADS)} or none, given {asked!r}")
    if asked not in model.heads:
        raise TaskError(f"this model has no {asked} head; it has {', '.join(model.heads) or 'none at all'}")
    return asked


class DenseBert(nn.Module):
    """The same weights; (B, S) ids, mask and segments → what the head says, or the vectors of all tokens.

    With `sentence`, vectors come with one for each text, made as these settings say.
    """

    def __init__(self, model: Bert, head: str | None = None, sentence: SentenceSettings | None = None) -> None:
        super().__init__()
        if reason := unfit(model.encoder):
            raise TaskError(f"only plain BERT can be exported: {reason.replace('the kernels', 'it')}")
        self.encoder = model.encoder
        self.model = model
        self.head = exported_head(model, head)
        self.sentence = sentence if self.head is None else None
        if self.head == "tag" and getattr(model.heads["tag"], "crf", None) is not None:
            raise TaskError("a CRF searches for the best path, which is no tensor operation: it cannot be exported")
        if self.head == "mlm" and getattr(model.heads["mlm"], "adaptive", None) is not None:
            raise TaskError("an adaptive output is not exported: take the vectors alone with --head none")
        self._write_positions()
        self.eval()

    @property
    def outputs(self) -> tuple[str, ...]:
        """The names of what comes out."""
        if self.head is not None:
            return OUTPUTS[self.head]
        return (VECTORS,) if self.sentence is None else (VECTORS, SENTENCE)

    def per_token(self, output: str) -> bool:
        """Whether an output has a row for each token."""
        return (self.head, output) not in _WHOLE_TEXT

    def forward(self, ids: Tensor, mask: Tensor, segments: Tensor) -> Tensor | tuple[Tensor, ...]:
        """Padding, where the mask is 0, is seen by nobody."""
        x = self._embedded(ids, segments)
        hidden = (1.0 - mask[:, None, None, :].to(x.dtype)) * torch.finfo(x.dtype).min
        for block in self.encoder.stack.blocks:
            x = _through(cast(EncoderBlock, block), x, hidden)
        x = self.encoder.stack.norm(x)
        match self.head:
            case "classify":
                return self._classes(x, mask)
            case "tag":
                return cast(Tensor, self.model.heads["tag"](x))
            case "qa":
                return cast(tuple[Tensor, ...], self.model.heads["qa"](x).unbind(-1))
            case "mlm":
                return self.model.masked_token_logits(x)
            case _:
                return x if self.sentence is None else (x, self._sentence(x, mask, self.sentence))

    def _write_positions(self) -> None:
        """A table that grows as texts do must be whole before its use is written down."""
        positions, length = self.encoder.embeddings.positions, self.model.settings.max_length
        if isinstance(positions, SinusoidalPositions):
            row = self.encoder.embeddings.token.weight.detach()[:1]
            positions.embed(row, torch.zeros(1).long(), torch.zeros(1, device=row.device).long(), length)

    def _embedded(self, ids: Tensor, segments: Tensor) -> Tensor:
        parts = self.encoder.embeddings
        x = parts.token(ids) * parts.scale
        places = torch.arange(ids.shape[1], device=ids.device)
        x = parts.positions.embed(x, ids, places, ids.shape[1])
        if parts.segment is not None:
            x = x + parts.segment(segments)
        return cast(Tensor, parts.norm(x))

    def _classes(self, x: Tensor, mask: Tensor) -> Tensor:
        pooling = next(head.pooling for head in self.model.settings.heads if head.kind == "classify")
        if pooling == "pooler":
            assert self.encoder.pooler is not None
            row = torch.tanh(self.encoder.pooler.dense(x[:, 0]))
        else:
            row = _pooled(x, mask, pooling)
        return cast(Tensor, self.model.heads["classify"](row))

    def _sentence(self, x: Tensor, mask: Tensor, sentence: SentenceSettings) -> Tensor:
        row = _pooled(x, mask, sentence.pooling)
        return F.normalize(row, dim=-1) if sentence.normalise else row


def _pooled(x: Tensor, mask: Tensor, pooling: Pooling) -> Tensor:
    if pooling == "cls":
        return x[:, 0]
    there = mask[:, :, None].to(x.dtype)
    if pooling == "mean":
        return (x * there).sum(1) / there.sum(1)
    return (x + (1.0 - there) * torch.finfo(x.dtype).min).amax(1)


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
