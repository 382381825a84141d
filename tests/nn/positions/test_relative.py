"""Positions that act inside attention, against the papers' formulas, one pair of tokens at a time."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn
from transformers.models.t5.modeling_t5 import T5Attention

from unmask.nn.attend import Attend
from unmask.nn.masks import CAUSAL
from unmask.nn.positions import (
    AlibiPositions,
    BucketPositions,
    Positions,
    RotaryPositions,
    ShawPositions,
    TransformerXLPositions,
)
from unmask.nn.positions.relative import alibi_slopes
from unmask.nn.scores import ScaledDot

B, N, D, S = 2, 3, 10, 7
H = 22
SCALE = 1 / math.sqrt(D)


def random(positions: Positions) -> Positions:
    generator = torch.Generator().manual_seed(23)
    for parameter in positions.parameters():
        nn.init.normal_(parameter, generator=generator)
    return positions


def schemes(*, causal: bool) -> dict[str, Positions]:
    made = {
        "rotary": RotaryPositions(D, 100.0),
        "alibi": AlibiPositions(N),
        "buckets": BucketPositions(N, 8, 6, causal=causal),
        "shaw": ShawPositions(D, 2),
        "transformer_xl": TransformerXLPositions(N, D, H),
    }
    return {name: random(positions) for name, positions in made.items()}


def vectors(queries: int, keys: int = S) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(29)
    q, k, v = (torch.randn(B, N, length, D, generator=generator) for length in (queries, keys, keys))
    return q, k, v


def test_rotary_turns_pairs_by_their_position() -> None:
    """Dimensions i and i + D/2 are one complex number, multiplied by exp(i · position · base^(-2i/D))."""
    rotary = RotaryPositions(D, 100.0)
    x, first = vectors(5)[0], 3
    turned = rotary.rotate(x, first)
    for place in range(5):
        for i in range(D // 2):
            number = torch.complex(x[:, :, place, i].double(), x[:, :, place, i + D // 2].double())
            angle = torch.tensor((first + place) * 100.0 ** (-2 * i / D), dtype=torch.float64)
            number = number * torch.polar(torch.ones_like(angle), angle)
            torch.testing.assert_close(turned[:, :, place, i].double(), number.real, rtol=0, atol=1e-5)
            torch.testing.assert_close(turned[:, :, place, i + D // 2].double(), number.imag, rtol=0, atol=1e-5)


def test_rotary_products_depend_on_distance_only() -> None:
    rotary = RotaryPositions(D)
    generator = torch.Generator().manual_seed(2)
    q, k = torch.randn(1, 1, 1, D, generator=generator), torch.randn(1, 1, 1, D, generator=generator)

    def product(query: int, key: int) -> float:
        return float((rotary.rotate(q, query) * rotary.rotate(k, key)).sum())

    for distance in (0, 3, -5, 11):
        values = [product(at, at + distance) for at in (5, 17, 100)]
        assert values == pytest.approx([values[0]] * 3, abs=1e-4)
    assert abs(product(5, 8) - product(5, 9)) > 1e-2


def test_alibi_slopes_of_the_paper() -> None:
    """8 heads: 1/2 … 1/256. 12 heads: those of 8, then every second of those of 16 (1/√2, …)."""
    eight = [2**-i for i in range(1, 9)]
    assert alibi_slopes(8).tolist() == pytest.approx(eight)
    assert alibi_slopes(12).tolist() == pytest.approx([*eight, 2**-0.5, 2**-1.5, 2**-2.5, 2**-3.5])
    assert alibi_slopes(1).tolist() == pytest.approx([2**-8])


@pytest.mark.parametrize("queries", [S, 3])
def test_alibi_bias(queries: int) -> None:
    q, k, _ = vectors(queries)
    bias = AlibiPositions(N).bias(q, k, SCALE)
    assert bias.shape == (1, N, queries, S)
    slopes = [1 / 16, 1 / 256, 1 / 4]  # two heads' slopes, then the first of four's
    for n, slope in enumerate(slopes):
        for t in range(queries):
            for s in range(S):
                assert bias[0, n, t, s].item() == pytest.approx(-slope * abs(s - (t + S - queries)))


@pytest.mark.parametrize(("num_buckets", "max_distance"), [(32, 128), (8, 6), (4, 100), (64, 50)])
@pytest.mark.parametrize("causal", [False, True])
def test_buckets_are_t5s(causal: bool, num_buckets: int, max_distance: int) -> None:
    distance = torch.arange(-200, 201)
    ours = BucketPositions(N, num_buckets, max_distance, causal=causal).bucket(distance)
    theirs = T5Attention._relative_position_bucket(
        distance, bidirectional=not causal, num_buckets=num_buckets, max_distance=max_distance
    )
    assert ours.tolist() == theirs.tolist()
    assert ours.max() < num_buckets


@pytest.mark.parametrize("queries", [S, 3])
def test_bucket_bias_is_one_number_a_head_and_bucket(queries: int) -> None:
    positions = random(BucketPositions(N, 8, 6, causal=False))
    q, k, _ = vectors(queries)
    bias = positions.bias(q, k, SCALE)
    for t in range(queries):
        for s in range(S):
            bucket = int(positions.bucket(torch.tensor(s - (t + S - queries))))
            torch.testing.assert_close(bias[0, :, t, s], positions.table.weight[bucket])


@pytest.mark.parametrize("queries", [S, 3])
def test_shaw_by_the_papers_formulas(queries: int) -> None:
    """e_ij = q_i·(k_j + a^K_ij) / sqrt(D) and z_i = Σ α_ij (v_j + a^V_ij), a clipped at a distance of 2."""
    positions = random(ShawPositions(D, 2))
    q, k, v = vectors(queries)
    out = Attend(ScaledDot(D), positions)(q, k, v)
    for b in range(B):
        for n in range(N):
            for t in range(queries):
                at = t + S - queries
                rows = [max(-2, min(2, s - at)) + 2 for s in range(S)]
                scores = [torch.dot(q[b, n, t], k[b, n, s] + positions.keys.weight[rows[s]]) * SCALE for s in range(S)]
                alpha = torch.stack(scores).softmax(0)
                z = sum(alpha[s] * (v[b, n, s] + positions.values.weight[rows[s]]) for s in range(S))
                torch.testing.assert_close(out[b, n, t], z, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("queries", [S, 3])
def test_transformer_xl_by_the_papers_formula(queries: int) -> None:
    """A_ij = q·k + q·W_R R_(i-j) + u·k + v·W_R R_(i-j), with R the sinusoids of the distance."""
    positions = random(TransformerXLPositions(N, D, H))
    q, k, _ = vectors(queries)
    weights = Attend(ScaledDot(D), positions).weights(q, k)

    def wave(distance: int) -> Tensor:
        angles = [distance / 10000 ** (2 * i / H) for i in range(H // 2)]
        return torch.tensor([value for angle in angles for value in (math.sin(angle), math.cos(angle))])

    for b in range(B):
        for n in range(N):
            matrix = positions.relative.weight[n * D : (n + 1) * D]
            u, v = positions.content_bias[n], positions.position_bias[n]
            for t in range(queries):
                scores = []
                for s in range(S):
                    relative = matrix @ wave(t + S - queries - s)
                    query, key = q[b, n, t], k[b, n, s]
                    scores.append(query @ key + query @ relative + u @ key + v @ relative)
                expected = (torch.stack(scores) * SCALE).softmax(0)
                torch.testing.assert_close(weights[b, n, t], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("scheme", schemes(causal=True))
def test_where_a_sequence_begins_does_not_matter(scheme: str) -> None:
    """All queries and keys moved by the same number of positions: the same weights."""
    attend = Attend(ScaledDot(D), schemes(causal=False)[scheme])
    q, k, _ = vectors(S)
    here = attend.weights(attend.prepare_queries(q, 0), attend.prepare_keys(k, 0))
    there = attend.weights(attend.prepare_queries(q, 31), attend.prepare_keys(k, 31))
    torch.testing.assert_close(here, there, rtol=0, atol=1e-5)


@pytest.mark.parametrize("scheme", schemes(causal=True))
def test_scores_depend_on_order(scheme: str) -> None:
    attend = Attend(ScaledDot(D), schemes(causal=False)[scheme])
    q, k, _ = vectors(S)
    order = torch.tensor([1, 0, *range(2, S)])
    weights = attend.weights(attend.prepare_queries(q), attend.prepare_keys(k))
    swapped = attend.weights(attend.prepare_queries(q), attend.prepare_keys(k[:, :, order]))
    assert (weights[:, :, :, order] - swapped).abs().max() > 1e-3


@pytest.mark.parametrize("scheme", schemes(causal=True))
def test_a_decoding_step_equals_the_full_pass(scheme: str) -> None:
    attend = Attend(ScaledDot(D), schemes(causal=True)[scheme])
    q, k, v = vectors(S)
    full = attend(attend.prepare_queries(q), attend.prepare_keys(k), v, CAUSAL)
    for t in range(S):
        keys = torch.cat([attend.prepare_keys(k[:, :, s : s + 1], s) for s in range(t + 1)], dim=2)
        step = attend(attend.prepare_queries(q[:, :, t : t + 1], t), keys, v[:, :, : t + 1])
        torch.testing.assert_close(step[:, :, 0], full[:, :, t], rtol=0, atol=1e-5)
