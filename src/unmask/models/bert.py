"""BERT: embeddings, a stack of encoder blocks, a pooler, and heads."""

from __future__ import annotations

from typing import NamedTuple, assert_never

import torch
from torch import Tensor, nn

from unmask.errors import TaskError
from unmask.models.settings import BertSettings, ClassifySettings, HeadSettings
from unmask.nn.batch import Batch
from unmask.nn.block import Chosen
from unmask.nn.build import build_activation, build_adaptive, build_embedding_positions, build_encoder, build_norm
from unmask.nn.embeddings import Embeddings
from unmask.nn.heads import ClassifyHead, MaskedTokenHead, PairHead, Pooler, SpanHead, TagHead, pool
from unmask.nn.layout import Layout
from unmask.nn.plan import AttentionPlan
from unmask.nn.table import vector_table
from unmask.nn.windows import Windows


class Encoded(NamedTuple):
    """What an encoder says of a batch."""

    sequence: Tensor  # (R, H), one row a token
    pooled: Tensor | None  # (B, H), one row a sequence; None where there is no pooler
    layout: Layout


class BertEncoder(nn.Module):
    """Token ids → vectors that know their context."""

    def __init__(self, settings: BertSettings) -> None:
        super().__init__()
        hidden = settings.hidden_size
        self.embeddings = Embeddings(
            vector_table(settings.vocab_size, hidden),
            build_embedding_positions(settings, settings.vocab_size, settings.max_length),
            vector_table(settings.num_segments, hidden) if settings.num_segments else None,
            build_norm(settings.norm, hidden, settings.norm_eps) if settings.embedding_norm else None,
            scaled=settings.scale_embeddings,
            dropout=settings.dropout.embedding,
        )
        self.stack = build_encoder(settings, settings.shapes)
        self.pooler = Pooler(hidden) if settings.pooler else None

    def forward(self, batch: Batch, asked: Tensor | None = None) -> Encoded:
        """Every token of every sequence at once, each seeing its whole sequence.

        With `asked` (rows in order, the first of every sequence among them) only these are answered: the same numbers,
        but the last block, a quarter of the work of four, is spared for the others.
        """
        device, layout = batch.ids.device, batch.layout
        plan = AttentionPlan.between(layout, layout, device=device)
        if asked is None:
            sequence = self.stack(self.embeddings(batch), plan)
        else:
            layout = layout.of_rows(asked)
            chosen = Chosen(asked, AttentionPlan.between(layout, batch.layout, device=device))
            sequence = self.stack(self.embeddings(batch), plan, chosen)
        pooled = None if self.pooler is None else self.pooler(sequence, layout)
        return Encoded(sequence, pooled, layout)


class Bert(nn.Module):
    """A BERT encoder and the heads that stand on it."""

    def __init__(self, settings: BertSettings) -> None:
        super().__init__()
        self.settings = settings
        self.encoder = BertEncoder(settings)
        self.heads = nn.ModuleDict({head.kind: _build_head(head, settings) for head in settings.heads})

    def forward(self, batch: Batch, asked: Tensor | None = None) -> Encoded:
        """The encoder's output; hand it to one of the methods below for a head's. `asked`: see the encoder."""
        return self.encoder(batch, asked)

    def masked_token_logits(self, rows: Tensor) -> Tensor:
        """Rows of the sequence output (R', H), the masked ones → logits over the vocabulary (R', V)."""
        return self._head("mlm")(rows, self.encoder.embeddings.token.weight)

    def masked_token_loss(self, rows: Tensor, targets: Tensor) -> Tensor:
        """Cross-entropy of these logits with targets (R',), summed over the rows."""
        head = self._head("mlm")
        assert isinstance(head, MaskedTokenHead)
        return head.loss(rows, self.encoder.embeddings.token.weight, targets)

    def next_sentence_logits(self, encoded: Encoded) -> Tensor:
        """(B, 2): index 0 means that the second text follows the first."""
        return self._head("nsp")(encoded.pooled)

    def sentence_order_logits(self, encoded: Encoded) -> Tensor:
        """(B, 2): index 0 means that the texts are in their order."""
        return self._head("sop")(encoded.pooled)

    def class_logits(self, encoded: Encoded) -> Tensor:
        """(B, labels) for whole sequences."""
        return self.joined_class_logits(self.class_rows(encoded))

    def class_rows(self, encoded: Encoded) -> Tensor:
        """(B, H): the row of each sequence that the classify head reads."""
        self._head("classify")
        pooling = self._classify.pooling
        if pooling == "pooler":
            assert encoded.pooled is not None
            return encoded.pooled
        return pool(encoded.sequence, encoded.layout, pooling)

    def joined_class_logits(self, rows: Tensor, windows: Windows | None = None) -> Tensor:
        """(texts, labels) from one row a window; without `windows` every row is a text of its own."""
        head = self._head("classify")
        assert isinstance(head, ClassifyHead)
        return head(rows if windows is None else head.join(rows, windows))

    def class_probabilities(self, logits: Tensor) -> Tensor:
        """What logits of the classify head say: shares of 1, a probability for each label, or just numbers."""
        match self._classify.problem:
            case "single":
                return logits.softmax(-1)
            case "multi":
                return logits.sigmoid()
            case "regression":
                return logits
            case _:
                assert_never(self._classify.problem)

    @property
    def _classify(self) -> ClassifySettings:
        return next(head for head in self.settings.heads if head.kind == "classify")

    def tag_logits(self, encoded: Encoded) -> Tensor:
        """(R, labels), one row a token."""
        return self._head("tag")(encoded.sequence)

    def best_tags(self, encoded: Encoded) -> list[list[int]]:
        """The best label of each token of each sequence: jointly with a CRF, one by one without."""
        emissions, head = self.tag_logits(encoded), self._head("tag")
        if isinstance(head, TagHead) and head.crf is not None:
            return head.crf.decode(emissions, encoded.layout)
        return [row.tolist() for row in encoded.layout.split(emissions.argmax(-1))]

    def span_logits(self, encoded: Encoded) -> Tensor:
        """(R, 2): how well an answer could start and end at each token."""
        return self._head("qa")(encoded.sequence)

    def _head(self, kind: str) -> nn.Module:
        if kind not in self.heads:
            has = f"it has {', '.join(self.heads)}" if self.heads else "it is an encoder without any head"
            raise TaskError(f"this model has no {kind} head: {has}; load a model that was trained with one")
        return self.heads[kind]


def _build_head(head: HeadSettings, settings: BertSettings) -> nn.Module:
    hidden = settings.hidden_size
    match head.kind:
        case "mlm":
            norm = build_norm("layer", hidden, settings.norm_eps)
            activation = build_activation(settings.activation)
            adaptive = build_adaptive(head.output, settings.vocab_size, hidden, bias=True)
            return MaskedTokenHead(settings.vocab_size, hidden, activation, norm, tied=head.tied, adaptive=adaptive)
        case "nsp" | "sop":
            return PairHead(hidden)
        case "classify":
            return ClassifyHead(hidden, len(head.labels), head.dropout, window_attention=head.window_attention)
        case "tag":
            return TagHead(hidden, len(head.labels), head.dropout, crf=head.crf)
        case "qa":
            return SpanHead(hidden)
        case _:
            assert_never(head)


def num_parameters(model: nn.Module) -> int:
    """How many numbers a model has learned, each counted once however often it is used."""
    return sum(parameter.numel() for parameter in model.parameters())


def device_of(model: nn.Module) -> torch.device:
    """Where a model's parameters are."""
    return next(model.parameters()).device
