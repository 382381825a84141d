"""Score functions against their formulas, one pair of query and key at a time."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from unmask.nn.scores import Additive, Dot, NormedDot, ScaledDot, Score

B, N, T, S, D = 2, 3, 5, 7, 11


def compare(score: Score, q: Tensor, k: Tensor) -> Tensor:
    return score(score.prepare_queries(q), score.prepare_keys(k))


def inputs() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(B, N, T, D, generator=generator), torch.randn(B, N, S, D, generator=generator)


def by_pairs(q: Tensor, k: Tensor, pair: object) -> Tensor:
    out = torch.zeros(B, N, T, S)
    for b, n, t, s in torch.cartesian_prod(*map(torch.arange, (B, N, T, S))).tolist():
        out[b, n, t, s] = pair(q[b, n, t], k[b, n, s])
    return out


def test_dot_and_scaled_dot() -> None:
    q, k = inputs()
    torch.testing.assert_close(compare(Dot(), q, k), by_pairs(q, k, torch.dot))
    scaled = by_pairs(q, k, lambda a, b: torch.dot(a, b) / math.sqrt(D))
    torch.testing.assert_close(compare(ScaledDot(D), q, k), scaled)


def test_normed_dot() -> None:
    score = NormedDot(D)
    score.initialise(torch.Generator().manual_seed(2))

    def standard(x: Tensor) -> Tensor:
        return (x - x.mean()) / x.std(correction=0) * D**-0.25

    q, k = inputs()
    expected = by_pairs(q, k, lambda a, b: torch.dot(standard(a), standard(b)))
    torch.testing.assert_close(compare(score, q, k), expected, rtol=1e-4, atol=1e-4)


def test_normed_dot_starts_with_variance_one_whatever_the_inputs_scale() -> None:
    score = NormedDot(64)
    generator = torch.Generator().manual_seed(3)
    score.initialise(generator)
    for scale in (0.1, 10.0):
        q, k = (torch.randn(1, 1, 200, 64, generator=generator) * scale for _ in range(2))
        assert 0.9 < compare(score, q, k).std() < 1.1


def test_additive() -> None:
    score = Additive(D)
    generator = torch.Generator().manual_seed(4)
    for parameter in score.parameters():
        torch.nn.init.normal_(parameter, generator=generator)
    q, k = inputs()

    def bahdanau(a: Tensor, b: Tensor) -> Tensor:
        return torch.dot(score.weight, torch.tanh(score.query.weight @ a + score.key.weight @ b))

    with torch.no_grad():
        torch.testing.assert_close(compare(score, q, k), by_pairs(q, k, bahdanau), rtol=1e-5, atol=1e-5)
