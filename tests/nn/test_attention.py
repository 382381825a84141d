"""Multi-head attention against its formula, one head at a time, and decoding by steps against all at once."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from unmask.nn.attend import Attend
from unmask.nn.attention import KeyValues, MultiHeadAttention, NoProjections, Projections, SharedProjections
from unmask.nn.layout import Layout
from unmask.nn.masks import Mask
from unmask.nn.plan import AttentionPlan
from unmask.nn.positions import NoPositions, RotaryPositions
from unmask.nn.scores import ScaledDot

N, D, H = 3, 4, 11
QUERIES, KEYS = Layout.ragged([5, 2, 3]), Layout.ragged([7, 3, 5])


def attention(projections: Projections, size: int = D, hidden: int = H, *, bias: bool = True) -> MultiHeadAttention:
    module = MultiHeadAttention(projections, Attend(ScaledDot(size), NoPositions()), hidden, bias=bias)
    generator = torch.Generator().manual_seed(31)
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=0.4, generator=generator)
    return module.eval()


def rows(layout: Layout, hidden: int = H, seed: int = 0) -> Tensor:
    return torch.randn(layout.num_rows, hidden, generator=torch.Generator().manual_seed(seed))


def one_head(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q @ k.T / math.sqrt(q.shape[1])).softmax(-1) @ v


def heads_of(linear: nn.Linear, x: Tensor) -> list[Tensor]:
    """What each head's own rows of the matrix make of x."""
    bias = torch.zeros(N * D) if linear.bias is None else linear.bias
    return [x @ linear.weight[n * D : (n + 1) * D].T + bias[n * D : (n + 1) * D] for n in range(N)]


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("cross", [False, True])
def test_heads_are_concatenated_and_mapped(bias: bool, cross: bool) -> None:
    module = attention(Projections(H, N, D, bias=bias), bias=bias)
    x, memory = rows(QUERIES), rows(KEYS if cross else QUERIES, seed=1 if cross else 0)
    layout = KEYS if cross else QUERIES
    out = module(x, AttentionPlan.between(QUERIES, layout), memory if cross else None)
    assert (module.output.bias is None) == (module.projections.query.bias is None) == (not bias)
    expected = []
    for own, seen in zip(QUERIES.split(x), layout.split(memory), strict=True):
        parts = module.projections
        triples = zip(heads_of(parts.query, own), heads_of(parts.key, seen), heads_of(parts.value, seen), strict=True)
        expected.append(module.output(torch.cat([one_head(*triple) for triple in triples], dim=1)))
    torch.testing.assert_close(out, torch.cat(expected), rtol=1e-5, atol=1e-5)


def test_shared_projections_use_one_matrix_for_queries_and_keys() -> None:
    projections = SharedProjections(H, N, D)
    assert not hasattr(projections, "query")
    x = rows(QUERIES)
    q, k, v = projections.all(x)
    assert torch.equal(q, k)
    torch.testing.assert_close(projections.queries(x), q)
    scores = ScaledDot(D)(q.transpose(0, 1)[None], k.transpose(0, 1)[None])
    torch.testing.assert_close(scores, scores.transpose(-2, -1))
    torch.testing.assert_close(v.flatten(1), projections.value(x))


def test_without_projections_heads_are_slices_of_x() -> None:
    module = attention(NoProjections(N * D, N, D), hidden=N * D)
    x, memory = rows(QUERIES, N * D), rows(KEYS, N * D, 1)
    assert {name for name, _ in module.named_parameters()} == {"output.weight", "output.bias"}
    out = module(x, AttentionPlan.between(QUERIES, KEYS), memory)
    expected = []
    for own, seen in zip(QUERIES.split(x), KEYS.split(memory), strict=True):
        slices = [slice(n * D, (n + 1) * D) for n in range(N)]
        heads = [one_head(own[:, part], seen[:, part], seen[:, part]) for part in slices]
        expected.append(module.output(torch.cat(heads, dim=1)))
    torch.testing.assert_close(out, torch.cat(expected), rtol=1e-5, atol=1e-5)


def test_without_projections_heads_of_full_width_see_all_of_x() -> None:
    module = attention(NoProjections(H, N, H), size=H)
    x = rows(QUERIES)
    out = module(x, AttentionPlan.between(QUERIES, QUERIES))
    expected = [module.output(one_head(own, own, own).repeat(1, N)) for own in QUERIES.split(x)]
    torch.testing.assert_close(out, torch.cat(expected), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("projections", "hidden", "size"),
    [
        (Projections(H, N, D), H, D),
        (SharedProjections(H, N, D), H, D),
        (NoProjections(12, N, D), 12, D),
        (NoProjections(H, N, H), H, H),
    ],
    ids=["separate", "shared", "slices", "full width"],
)
def test_steps_equal_the_causal_pass(projections: Projections, hidden: int, size: int) -> None:
    module = attention(projections, size, hidden)
    if size % 2 == 0:
        module.attend.positions = RotaryPositions(size)
    layout = Layout.ragged([5, 5])
    x = rows(layout, hidden)
    full = module(x, AttentionPlan.between(layout, layout, causal=True)).view(2, 5, hidden)
    past = None
    for t in range(5):
        out, past = module.step(x.view(2, 5, hidden)[:, t], past)
        assert past.keys.shape == (2, N, t + 1, size)
        torch.testing.assert_close(out, full[:, t], rtol=0, atol=1e-5)


def test_looking_at_a_remembered_rectangle_equals_cross_attention() -> None:
    module = attention(Projections(H, N, D))
    layout = Layout.ragged([1, 1, 1])
    x, memory = rows(layout), rows(KEYS, seed=1)
    expected = module(x, AttentionPlan.between(layout, KEYS), memory)
    remembered = module.remember(KEYS.pad(memory, 50.0))
    mask = Mask(KEYS.key_mask(x.device)[:, None, None])
    torch.testing.assert_close(module.look(x, remembered, mask), expected, rtol=0, atol=1e-5)


def test_select_picks_and_reorders_sequences() -> None:
    keys, values = torch.arange(3.0 * 2 * 5 * 7).view(3, 2, 5, 7), torch.zeros(3, 2, 5, 7)
    chosen = KeyValues(keys, values).select(torch.tensor([2, 0, 2, 1]))
    assert torch.equal(chosen.keys, keys[[2, 0, 2, 1]])
    assert chosen.values.shape == (4, 2, 5, 7)
