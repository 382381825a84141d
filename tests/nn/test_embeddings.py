"""Embeddings by their formula, and the sentence for a text that is too long."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from unmask.errors import UserError
from unmask.nn.batch import Batch
from unmask.nn.embeddings import Embeddings
from unmask.nn.positions import LearnedPositions, NoPositions

V, H, LIMIT = 13, 11, 5
BATCH = Batch.of([[3, 1, 4], [1, 12]], [[0, 0, 1], [1, 1]])


def embeddings(**options: object) -> Embeddings:
    return Embeddings(nn.Embedding(V, H), LearnedPositions(LIMIT, H), nn.Embedding(2, H), nn.LayerNorm(H), **options)


@pytest.mark.parametrize("scaled", [False, True])
def test_sum_of_three_then_norm(scaled: bool) -> None:
    layer = embeddings(scaled=scaled, dropout=0.5).eval()
    rows = []
    for token, position, segment in zip([3, 1, 4, 1, 12], [0, 1, 2, 0, 1], [0, 0, 1, 1, 1], strict=True):
        x = layer.token.weight[token] * (math.sqrt(H) if scaled else 1)
        x = x + layer.positions.table.weight[position] + layer.segment.weight[segment]
        rows.append((x - x.mean()) / torch.sqrt(x.var(correction=0) + 1e-5))
    torch.testing.assert_close(layer(BATCH), torch.stack(rows), rtol=1e-5, atol=1e-5)


def test_at_without_segments_means_the_first_text() -> None:
    layer = embeddings().eval()
    ids, where = torch.tensor([3, 1]), torch.tensor([4, 0])
    assert torch.equal(layer.at(ids, where, 5), layer.at(ids, where, 5, torch.zeros_like(ids)))
    assert not torch.equal(layer.at(ids, where, 5), layer.at(ids, where, 5, torch.ones_like(ids)))


def test_dropout_comes_last() -> None:
    layer = embeddings(dropout=0.5)
    torch.manual_seed(0)
    out = layer(BATCH)
    kept = out != 0
    assert 0.2 < kept.float().mean() < 0.8
    torch.testing.assert_close(out[kept], 2 * layer.eval()(BATCH)[kept])


def test_a_text_longer_than_the_table_is_refused_with_both_numbers() -> None:
    with pytest.raises(UserError, match=r"has 6 tokens but .* table has 5 rows"):
        embeddings()(Batch.of([[1], [1] * 6]))
    embeddings()(Batch.of([[1] * 5]))
    Embeddings(nn.Embedding(V, H), NoPositions())(Batch.of([[1] * 500]))


def test_padding_to_the_longest_needs_no_more_positions() -> None:
    layer = embeddings().eval()
    padded = BATCH.padded()
    assert torch.equal(layer(padded)[padded.layout.token_rows(padded.ids.device)], layer(BATCH))


def test_a_segment_beyond_the_table_is_told() -> None:
    with pytest.raises(UserError, match="segment 2 but the model's segment table has 2 rows"):
        embeddings()(Batch.of([[3, 1, 4]], [[0, 1, 2]]))
