"""Pooling against plain loops, ragged and padded, and the task layers' formulas."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from unmask.nn.heads import ClassifyHead, MaskedTokenHead, PairHead, Pooler, SpanHead, TagHead, pool
from unmask.nn.layout import Layout

H = 5
LENGTHS = st.lists(st.integers(1, 7), min_size=1, max_size=5)


def naive(pieces: list[Tensor], pooling: str) -> Tensor:
    match pooling:
        case "cls":
            return torch.stack([piece[0] for piece in pieces])
        case "mean":
            return torch.stack([sum(piece) / len(piece) for piece in pieces])
        case _:
            return torch.stack([torch.stack([max(column) for column in piece.T]) for piece in pieces])


@pytest.mark.parametrize("pooling", ["cls", "mean", "max"])
@given(lengths=LENGTHS, spare=st.integers(0, 2))
def test_pool_equals_loops_whatever_the_layout(pooling: str, lengths: list[int], spare: int) -> None:
    ragged, padded = Layout.ragged(lengths), Layout(tuple(lengths), max(lengths) + spare)
    rows = torch.randn(ragged.num_rows, H, generator=torch.Generator().manual_seed(1)) - 3  # maxima below 0 too
    expected = naive(ragged.split(rows), pooling)
    torch.testing.assert_close(pool(rows, ragged, pooling), expected)
    dense = torch.full((len(lengths), padded.width, H), 40.0)
    dense[padded.key_mask(rows.device)] = rows
    torch.testing.assert_close(pool(dense.flatten(0, 1), padded, pooling), expected)


@pytest.mark.parametrize("pooling", ["cls", "mean", "max"])
def test_pool_gives_gradients_to_tokens_and_none_to_padding(pooling: str) -> None:
    layout = Layout.padded([3, 1])
    rows = torch.randn(6, H, generator=torch.Generator().manual_seed(2), requires_grad=True)
    pool(rows, layout, pooling).sum().backward()
    assert rows.grad.sum().item() == pytest.approx(2 * H)
    assert (rows.grad[4:] == 0).all()
    assert rows.grad.isfinite().all()


def test_pooler_is_tanh_of_the_first_token() -> None:
    pooler, layout = Pooler(H), Layout.ragged([3, 2])
    rows = torch.randn(5, H, generator=torch.Generator().manual_seed(3))
    torch.testing.assert_close(pooler(rows, layout), torch.tanh(pooler.dense(rows[[0, 3]])))


@pytest.mark.parametrize("tied", [True, False])
def test_masked_token_head(tied: bool) -> None:
    vocab = 13
    head = MaskedTokenHead(vocab, H, F.gelu, nn.LayerNorm(H), tied=tied)
    nn.init.normal_(head.bias)
    rows, embedding = torch.randn(3, H), torch.randn(vocab, H)
    matrix = embedding if tied else head.output.weight
    expected = head.norm(F.gelu(head.dense(rows))) @ matrix.T + head.bias
    torch.testing.assert_close(head(rows, embedding), expected)
    head.initialise(torch.Generator())
    assert (head.bias == 0).all()


def test_shapes_and_dropout_of_task_layers() -> None:
    rows = torch.ones(7, H)
    assert PairHead(H)(rows).shape == (7, 2)
    assert SpanHead(H)(rows).shape == (7, 2)
    for head in (ClassifyHead(H, 3, 0.5), TagHead(H, 3, 0.5)):
        assert head(rows).shape == (7, 3)
        torch.manual_seed(0)
        assert head(rows).unique(dim=0).shape[0] > 1  # equal rows, dropped differently
        torch.testing.assert_close(head.eval()(rows), head.dense(rows))
    assert TagHead(H, 3, 0.0).crf is None
    assert TagHead(H, 3, 0.0, crf=True).crf.transitions.shape == (3, 3)
