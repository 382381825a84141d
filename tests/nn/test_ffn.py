"""The feed-forward network by its formula."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

from unmask.nn.ffn import FeedForward, gelu_tanh, identity

R, H, WIDE = 5, 7, 11


@pytest.mark.parametrize("bias", [True, False])
def test_plain_and_gated(bias: bool) -> None:
    x = torch.randn(R, H, generator=torch.Generator().manual_seed(0))
    plain = FeedForward(H, WIDE, F.relu, bias=bias)
    with torch.no_grad():
        inner = x @ plain.inner.weight.T + (plain.inner.bias if bias else 0)
        expected = inner.clamp(min=0) @ plain.outer.weight.T + (plain.outer.bias if bias else 0)
        torch.testing.assert_close(plain(x), expected)
        gated = FeedForward(H, WIDE, F.silu, gated=True, bias=bias)
        gate = gated.gate(x)
        expected = gated.outer(gate * gate.sigmoid() * gated.inner(x))
        torch.testing.assert_close(gated(x), expected)
    assert (plain.inner.bias is not None) == (gated.gate.bias is not None) == bias


def test_dropout_falls_between_the_matrices() -> None:
    ffn = FeedForward(3, 500, identity, bias=False, dropout=0.5)
    for parameter in ffn.parameters():
        torch.nn.init.ones_(parameter)
    torch.manual_seed(0)
    out = ffn(torch.ones(5, 3))  # 500 neurons of 3, half of them dropped and the rest doubled
    assert torch.equal(out, out[:, :1].expand(5, 3))
    assert ((out > 1300) & (out < 1700)).all()
    assert out.unique().numel() > 1
    assert (ffn.eval()(torch.ones(1, 3)) == 1500).all()


def test_activations() -> None:
    x = torch.tensor([-2.0, -0.5, 0.0, 1.0, 3.0])
    assert torch.equal(identity(x), x)
    expected = [0.5 * v * (1 + math.tanh(math.sqrt(2 / math.pi) * (v + 0.044715 * v**3))) for v in x.tolist()]
    torch.testing.assert_close(gelu_tanh(x), torch.tensor(expected))
