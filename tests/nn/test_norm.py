"""Add & Norm by its formula, and where its dropout stands."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from unmask.nn.norm import AddNorm, PostNorm, PreNorm, RowBatchNorm

R, H = 7, 11


def rows(seed: int = 0) -> Tensor:
    return torch.randn(R, H, generator=torch.Generator().manual_seed(seed)) * 3 + 1


def double(x: Tensor) -> Tensor:
    return 2 * x


@pytest.mark.parametrize("residual", [True, False])
def test_post_norm_normalises_the_sum(residual: bool) -> None:
    x, norm = rows(), nn.LayerNorm(H)
    expected = norm(x + 2 * x) if residual else norm(2 * x)
    torch.testing.assert_close(PostNorm(norm, 0.5, residual=residual).eval()(x, double), expected)


@pytest.mark.parametrize("residual", [True, False])
def test_pre_norm_normalises_only_what_the_sublayer_sees(residual: bool) -> None:
    x, norm = rows(), nn.LayerNorm(H)
    expected = x + 2 * norm(x) if residual else 2 * norm(x)
    torch.testing.assert_close(PreNorm(norm, 0.5, residual=residual).eval()(x, double), expected)


@pytest.mark.parametrize("around", [PostNorm(nn.Identity(), 0.5), PreNorm(nn.Identity(), 0.5)])
def test_dropout_falls_on_the_sublayer_and_never_on_its_input(around: AddNorm) -> None:
    torch.manual_seed(0)
    out = around(torch.ones(100, H), lambda y: 3 * y)
    assert set(out.unique().tolist()) == {1.0, 7.0}  # 1 + 0, or 1 + 3 / (1 − 0.5)


def test_row_batch_norm_takes_statistics_over_rows() -> None:
    norm, x = RowBatchNorm(H, eps=1e-12), rows()
    expected = (x - x.mean(0)) / x.std(0, correction=0)
    torch.testing.assert_close(norm(x), expected, rtol=1e-4, atol=1e-5)
    assert not torch.allclose(norm.eval()(x), expected)
