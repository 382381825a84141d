"""Attention by blocks of heads: the same numbers from the same random bits, with less held at once."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from unmask.nn import long_attention
from unmask.nn.dropout import DroppedAttention
from unmask.nn.long_attention import LongAttention, dropped_attention

B, N, T, S, D = 2, 5, 7, 11, 3


def inputs() -> list[Tensor]:
    generator = torch.Generator().manual_seed(7)
    shapes = ((B, N, T, D), (B, N, S, D), (B, N, S, D))
    return [torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_() for shape in shapes]


def hidden() -> Tensor:
    bias = torch.zeros(B, 1, 1, S, dtype=torch.float64)
    bias[1, ..., 4:] = -math.inf
    return bias + torch.zeros(T, S).masked_fill(torch.ones(T, S).triu(1 + S - T) > 0, -math.inf)


@pytest.mark.parametrize("block", [1, 2 * T * S, 3 * T * S + 1, 1 << 20])
@pytest.mark.parametrize("biased", [False, True])
def test_blocks_of_any_size_give_what_the_whole_gives(
    block: int, biased: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(long_attention, "BLOCK", block)
    results = []
    for function in (LongAttention, DroppedAttention):
        given = inputs()
        torch.manual_seed(9)
        out = function.apply(*given, hidden() if biased else None, 0.37, 0.3)
        out.backward(torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view(out.shape).sin())
        results.append([out.detach(), *(tensor.grad for tensor in given), torch.rand(1)])
    for one, two in zip(*results, strict=True):
        torch.testing.assert_close(one, two, rtol=0, atol=1e-13)


def test_the_gradient_by_small_steps() -> None:
    def seeded(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        torch.manual_seed(9)
        return LongAttention.apply(q, k, v, None, 0.5, 0.3)

    assert torch.autograd.gradcheck(seeded, inputs())


@pytest.mark.parametrize(
    ("large", "learned", "narrow", "by_blocks"),
    [
        (B * N * T * S, False, False, True),
        (B * N * T * S + 1, False, False, False),
        (1, True, False, False),
        (1, False, True, False),
    ],
)
def test_when_it_goes_by_blocks(
    large: int, learned: bool, narrow: bool, by_blocks: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(long_attention, "LARGE", large)
    bias = torch.zeros(S, dtype=torch.float64, requires_grad=learned)
    with torch.autocast("cpu", torch.bfloat16, enabled=narrow):
        out = dropped_attention(*inputs(), bias, 0.3, 0.1)
    assert type(out.grad_fn).__name__ == ("LongAttentionBackward" if by_blocks else "DroppedAttentionBackward")
