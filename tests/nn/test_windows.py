"""Rows of windows become rows of texts: by hand, in any order, with gradients."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from unmask.nn.windows import WindowAttention, Windows, join_rows

COUNTS = (3, 1, 5, 2)
HIDDEN = 7


def rows(seed: int = 0) -> Tensor:
    return torch.randn(sum(COUNTS), HIDDEN, generator=torch.Generator().manual_seed(seed))


def pieces(values: Tensor) -> tuple[Tensor, ...]:
    return values.split(COUNTS)


def attention() -> WindowAttention:
    torch.manual_seed(3)
    return WindowAttention(HIDDEN)


def owners() -> Tensor:
    return Windows(COUNTS).owners(torch.device("cpu"))


def test_owners_count_windows() -> None:
    assert owners().tolist() == [0, 0, 0, 1, 2, 2, 2, 2, 2, 3, 3]
    assert len(Windows(COUNTS)) == 4


def test_mean_and_maximum_are_those_of_each_text() -> None:
    given = rows()
    mean = torch.stack([piece.mean(0) for piece in pieces(given)])
    torch.testing.assert_close(join_rows(given, owners(), 4, "mean"), mean)
    highest = torch.stack([piece.max(0).values for piece in pieces(given)])
    assert torch.equal(join_rows(given, owners(), 4, "max"), highest)


def test_weights_give_windows_more_or_less_of_a_voice() -> None:
    given, weights = rows(), torch.arange(1.0, 12.0)
    expected = [
        (piece * share[:, None]).sum(0) / share.sum()
        for piece, share in zip(pieces(given), pieces(weights), strict=True)
    ]
    torch.testing.assert_close(join_rows(given, owners(), 4, "mean", weights), torch.stack(expected))


def test_attention_is_a_softmax_over_the_windows_of_each_text() -> None:
    layer, given = attention(), rows()
    expected = []
    for piece in pieces(given):
        share = layer.score(layer.dense(piece).tanh()).squeeze(1).softmax(0)
        expected.append((share[:, None] * piece).sum(0))
    torch.testing.assert_close(layer(given, owners(), 4), torch.stack(expected))
    weights = layer.weights(given, owners(), 4)
    torch.testing.assert_close(torch.stack([share.sum() for share in pieces(weights)]), torch.ones(4))


@pytest.mark.parametrize("how", ["mean", "max", "attention"])
def test_one_window_is_the_text_to_the_bit(how: str) -> None:
    """So a short text is not moved by a long one beside it."""
    given = rows()
    joined = attention()(given, owners(), 4) if how == "attention" else join_rows(given, owners(), 4, how)
    assert torch.equal(joined[1], given[3])


@pytest.mark.parametrize("how", ["mean", "max", "attention"])
def test_the_order_of_windows_and_other_texts_do_not_matter(how: str) -> None:
    layer = attention()

    def joined(values: Tensor, whose: Tensor) -> Tensor:
        return layer(values, whose, 4) if how == "attention" else join_rows(values, whose, 4, how)

    given, whose = rows(), owners()
    order = torch.randperm(len(given), generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(joined(given[order], whose[order]), joined(given, whose))
    other = given.clone()
    other[4:9] += 5
    moved = (joined(other, whose) - joined(given, whose)).abs().amax(1)
    assert moved[2] > 1
    assert moved[[0, 1, 3]].max() == 0


def test_attention_learns_also_from_large_scores() -> None:
    """The score that is subtracted for safety carries no gradient, and changes none."""
    layer, given = attention().double(), rows().double().requires_grad_()
    with torch.no_grad():
        layer.score.weight.mul_(300)
    assert torch.autograd.gradcheck(lambda values: layer(values, owners(), 4), (given,))
    layer(given, owners(), 4).square().sum().backward()
    for parameter in layer.parameters():
        assert parameter.grad.isfinite().all()
        assert parameter.grad.abs().sum() > 0


def test_what_has_no_number_stays_finite() -> None:
    layer = attention()
    with torch.no_grad():
        layer.score.weight.fill_(1e20)
    found = layer(rows() * 100, owners(), 4)
    assert found.isfinite().all()
