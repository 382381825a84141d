"""Attention by hand, and the fast backend against the reference in every combination that can be built."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from pydantic import TypeAdapter
from torch import Tensor, nn

from unmask.nn.attend import Attend, attention_backend
from unmask.nn.build import build_attention_positions, build_score
from unmask.nn.masks import CAUSAL, EVERYTHING, Mask, packed_mask, padding_mask
from unmask.nn.positions import NoPositions
from unmask.nn.scores import Dot, ScaledDot
from unmask.nn.settings import LayerSettings, PositionSettings

B, N, D, S = 2, 3, 10, 7
LENGTHS = torch.tensor([4, 7])
DOCUMENTS = torch.tensor([[0, 0, 1, 1, 1, 2, 2], [3, 3, 3, 3, 4, 4, 4]])

SCORES = ("scaled_dot", "dot", "normed_dot", "additive")
POSITIONS: dict[str, dict[str, object]] = {
    "none": {},
    "rotary": {"base": 100.0},
    "alibi": {},
    "buckets": {"num_buckets": 8, "max_distance": 6},
    "shaw": {"max_distance": 3},
    "transformer_xl": {},
}
MASKS: dict[str, Callable[[int], Mask]] = {
    "none": lambda queries: EVERYTHING,
    "causal": lambda queries: CAUSAL,
    "padding": lambda queries: padding_mask(LENGTHS, S),
    "packed": lambda queries: Mask(packed_mask(DOCUMENTS).allowed[:, :, -queries:]),
    "causal and padding": lambda queries: CAUSAL & padding_mask(LENGTHS, S),
    "causal and packed": lambda queries: Mask(packed_mask(DOCUMENTS).allowed[:, :, -queries:], causal=True),
}


def build(score: str, kind: str, dropout: float = 0.0, *, causal: bool = False) -> Attend:
    positions = TypeAdapter(PositionSettings).validate_python({"kind": kind} | POSITIONS[kind])
    layer = LayerSettings(hidden_size=N * D, num_heads=N, ffn_size=1, score=score, positions=positions)
    attend = Attend(build_score(layer), build_attention_positions(layer, N, causal=causal), dropout)
    generator = torch.Generator().manual_seed(13)
    for parameter in attend.parameters():
        nn.init.normal_(parameter, std=0.5, generator=generator)
    return attend


def inputs(queries: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(17)
    q, k, v = (torch.randn(B, N, length, D, generator=generator) * 0.7 for length in (queries, S, S))
    return q.to(dtype), k.to(dtype), v.to(dtype)


def run(attend: Attend, backend: str, mask: Mask, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    attend.backend = backend
    torch.manual_seed(19)
    return attend(attend.prepare_queries(q, S - q.shape[2]), attend.prepare_keys(k), v, mask)


def test_every_kind_of_positions_is_tried() -> None:
    kinds = {option.model_fields["kind"].default for option in PositionSettings.__origin__.__args__}
    elsewhere = {"learned", "sinusoidal", "complex"}  # act on embeddings, and inside attention do nothing
    assert kinds == set(POSITIONS) | elsewhere
    for kind in elsewhere:
        layer = LayerSettings.parse({"hidden_size": 6, "num_heads": 3, "ffn_size": 1, "positions": {"kind": kind}})
        assert isinstance(build_attention_positions(layer, 3, causal=False), NoPositions)


def test_two_tokens_by_hand() -> None:
    """Scores 2·ln 2 / sqrt(4) = ln 2 and 0 give weights 2/3 and 1/3; equal scores give halves."""
    q = torch.tensor([[2.0, 0, 0, 0], [0, 0, 0, 0]])[None, None]
    k = torch.tensor([[math.log(2), 5, 0, 0], [0, 0, 7, 0]])[None, None]
    v = torch.tensor([[3.0, 0, 30, 1], [6, 0, 0, 1]])[None, None]
    attend = Attend(ScaledDot(4), NoPositions())
    torch.testing.assert_close(attend.weights(q, k)[0, 0], torch.tensor([[2 / 3, 1 / 3], [0.5, 0.5]]))
    for backend in ("reference", "fast"):
        attend.backend = backend
        torch.testing.assert_close(attend(q, k, v)[0, 0], torch.tensor([[4.0, 0, 20, 1], [4.5, 0, 15, 1]]))
        torch.testing.assert_close(attend(q, k, v, CAUSAL)[0, 0], torch.tensor([[3.0, 0, 30, 1], [4.5, 0, 15, 1]]))


def test_three_keys_by_hand() -> None:
    """softmax(a, a, 2a) with a = ln 2 is (2, 2, 4) / 8."""
    a = math.log(2)
    attend = Attend(Dot(), NoPositions())
    q, k = torch.tensor([[[[1.0]]]]), torch.tensor([[[[a], [a], [2 * a]]]])
    v = torch.tensor([[[[8.0], [16.0], [4.0]]]])
    torch.testing.assert_close(attend.weights(q, k)[0, 0, 0], torch.tensor([0.25, 0.25, 0.5]))
    torch.testing.assert_close(attend(q, k, v), torch.tensor([[[[8.0]]]]))
    without_last = Mask(torch.tensor([[True, True, False]]))
    torch.testing.assert_close(attend(q, k, v, without_last), torch.tensor([[[[12.0]]]]))


@pytest.mark.parametrize("dropout", [0.0, 0.3], ids=["eval", "train with dropout"])
@pytest.mark.parametrize("kind", POSITIONS)
@pytest.mark.parametrize("score", SCORES)
def test_fast_equals_reference(score: str, kind: str, dropout: float) -> None:
    for (name, make), queries, causal in itertools.product(MASKS.items(), (S, 5, 1), (False, True)):
        if causal != ("causal" in name):
            continue
        attend = build(score, kind, dropout, causal=causal).train(dropout > 0)
        parts = [part.requires_grad_() for part in inputs(queries)]
        learned = [*parts, *attend.parameters()]
        results = []
        for backend in ("reference", "fast"):
            out = run(attend, backend, make(queries), *parts)
            weight = torch.linspace(-1, 1, out.numel()).view_as(out)
            results.append((out, torch.autograd.grad((out * weight).sum(), learned, allow_unused=True)))
        (expected, expected_grads), (out, grads) = results
        message = f"{name}, {queries} queries"
        torch.testing.assert_close(out, expected, rtol=0, atol=1e-6, msg=message)
        for ours, theirs in zip(grads, expected_grads, strict=True):
            assert (ours is None) == (theirs is None)
            if ours is not None:
                torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=2e-6, msg=message)


@pytest.mark.parametrize("dropout", [0.0, 0.3], ids=["eval", "train with dropout"])
@pytest.mark.parametrize("kind", POSITIONS)
@pytest.mark.parametrize("score", SCORES)
def test_fast_equals_reference_in_bfloat16(score: str, kind: str, dropout: float) -> None:
    """bfloat16 has 8 bits: results near 1 are 2⁻⁸ apart, and scores of size 4 are rounded by 2⁻⁷."""
    for (name, make), queries in itertools.product(MASKS.items(), (S, 5)):
        attend = build(score, kind, dropout, causal="causal" in name).train(dropout > 0).to(torch.bfloat16)
        parts = inputs(queries, torch.bfloat16)
        reference = run(attend, "reference", make(queries), *parts)
        fast = run(attend, "fast", make(queries), *parts)
        assert fast.dtype == reference.dtype == torch.bfloat16
        torch.testing.assert_close(fast, reference, rtol=2**-6, atol=2**-5, msg=f"{name}, {queries} queries")


@pytest.mark.parametrize("kind", POSITIONS)
@pytest.mark.parametrize("score", SCORES)
def test_weights_sum_to_one_and_respect_the_mask(score: str, kind: str) -> None:
    for make, queries in itertools.product(MASKS.values(), (S, 5)):
        attend, (q, k, _) = build(score, kind), inputs(queries)
        weights = attend.weights(attend.prepare_queries(q), attend.prepare_keys(k), make(queries))
        assert weights.shape == (B, N, queries, S)
        torch.testing.assert_close(weights.sum(-1), torch.ones(B, N, queries))
        allowed = make(queries).dense(queries, S, q.device)
        if allowed is not None:
            assert (weights.masked_select(~allowed) == 0).all()
            assert (weights.masked_select(allowed) > 0).all()


@pytest.mark.parametrize("kind", POSITIONS)
@pytest.mark.parametrize("backend", ["reference", "fast"])
def test_a_query_that_may_see_nothing_takes_nothing_home(backend: str, kind: str) -> None:
    allowed = torch.ones(B, 1, 5, S, dtype=torch.bool)
    allowed[0, :, 2] = False
    attend, parts = build("scaled_dot", kind), [part.requires_grad_() for part in inputs(5)]
    for mask in (Mask(allowed), Mask(allowed, causal=True)):
        out = run(attend, backend, mask, *parts)
        assert (out[0, :, 2] == 0).all()
        assert (out[1, :, 2] != 0).any()
        for gradient in torch.autograd.grad(out.square().sum(), parts):
            assert gradient.isfinite().all()


def test_dropout_drops_whole_weights_and_scales_the_rest() -> None:
    """With values that name their key, the output shows which weights survived."""
    attend = Attend(Dot(), NoPositions(), dropout=0.5)
    q = k = torch.zeros(1, 1, 64, 64)
    for backend in ("reference", "fast"):
        attend.backend = backend
        torch.manual_seed(0)
        kept = attend(q, k, torch.eye(64)[None, None]) * 64
        assert set(kept.unique().tolist()) == {0.0, 2.0}
        assert 0.45 < (kept > 0).float().mean() < 0.55
        assert torch.equal(attend.eval()(q, k, torch.ones_like(k)), torch.ones_like(k))
        attend.train()


@pytest.mark.parametrize(
    ("score", "kind", "fused"),
    [
        ("scaled_dot", "none", True),
        ("normed_dot", "buckets", True),
        ("additive", "none", False),
        ("dot", "shaw", False),
    ],
)
def test_only_the_fast_backend_uses_the_fused_kernel(
    score: str, kind: str, fused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []
    kernel = F.scaled_dot_product_attention
    monkeypatch.setattr(F, "scaled_dot_product_attention", lambda *a, **k: calls.append(1) or kernel(*a, **k))
    attend = build(score, kind)
    assert attend.backend == "fast"
    run(attend, "reference", CAUSAL, *inputs(S))
    assert not calls
    run(attend, "fast", CAUSAL, *inputs(S))
    assert bool(calls) == fused


def test_attention_backend_holds_within_the_block_only() -> None:
    model = nn.ModuleList([Attend(Dot(), NoPositions()) for _ in range(3)])
    model[1].backend = "reference"
    with attention_backend(model, "reference"):
        assert [attend.backend for attend in model] == ["reference"] * 3
        with attention_backend(model, "fast"):
            assert [attend.backend for attend in model] == ["fast"] * 3
    assert [attend.backend for attend in model] == ["fast", "reference", "fast"]
    with pytest.raises(RuntimeError, match="on purpose"), attention_backend(model, "reference"):
        raise RuntimeError("on purpose")
    assert [attend.backend for attend in model] == ["fast", "reference", "fast"]
