"""Our dropout: how many, which, how reproducible; and attention with it against the formula."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
import torch
from scipy.stats import binom
from torch import Tensor

from unmask.nn.attend import Attend
from unmask.nn.dropout import Dropout, DroppedAttention, drop_steps, dropout, factors
from unmask.nn.masks import Mask
from unmask.nn.positions.base import Positions
from unmask.nn.scores import ScaledDot

B, N, T, S, D = 2, 3, 5, 7, 11


@pytest.mark.parametrize("p", [0.01, 0.1, 0.5, 0.9])
def test_as_many_are_dropped_as_chance_allows(p: float) -> None:
    torch.manual_seed(0)
    size = 1_000_003
    found = factors(torch.empty(size), p)
    rate = drop_steps(p) / 65536
    assert abs(rate - p) <= 0.5 / 65536
    low, high = binom.interval(0.999, size, rate)
    assert low <= int((found == 0).sum()) <= high
    kept = found[found != 0].unique()
    assert kept.tolist() == pytest.approx([1 / (1 - rate)], rel=1e-7)
    assert (1 - rate) * float(kept[0]) == pytest.approx(1.0, rel=1e-7)  # the mean stays


@pytest.mark.parametrize("distance", [1, 2, 3, 4, 5, 64])
def test_neighbours_know_nothing_of_each_other(distance: int) -> None:
    torch.manual_seed(1)
    kept = factors(torch.empty(800_004), 0.3) != 0
    rate = 1 - drop_steps(0.3) / 65536
    for offset in range(4):  # each of the four that one draw decides
        one, two = kept[offset::4], kept[offset + distance :: 4]
        size = min(len(one), len(two))
        both = int((one[:size] & two[:size]).sum())
        low, high = binom.interval(0.9999, size, rate * rate)
        assert low <= both <= high


def test_every_place_of_a_draw_is_dropped_alike() -> None:
    torch.manual_seed(2)
    dropped = (factors(torch.empty(4, 250_000).t().contiguous(), 0.2) == 0).sum(0)
    low, high = binom.interval(0.9999, 250_000, drop_steps(0.2) / 65536)
    assert all(low <= int(count) <= high for count in dropped)


def test_the_seed_alone_decides(threads: None) -> None:
    x = torch.randn(301, 997)
    found = []
    for number in (1, 2, 1):
        torch.set_num_threads(number)
        torch.manual_seed(5)
        found.append(dropout(x, 0.1))
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])
    assert not torch.equal(found[0], dropout(x, 0.1))


@pytest.fixture
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("shape", [(), (1,), (2,), (3,), (5, 1, 3), (0,), (4, 0, 2), (7, 13)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_any_shape_and_type(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    x = torch.ones(shape, dtype=dtype)
    torch.manual_seed(0)
    found = dropout(x, 0.5)
    assert (found.shape, found.dtype) == (x.shape, dtype)
    assert set(found.flatten().tolist()) <= {0.0, 2.0}


def test_rows_that_do_not_lie_end_to_end() -> None:
    x = torch.randn(17, 23)
    torch.manual_seed(0)
    expected = dropout(x, 0.4)
    torch.manual_seed(0)
    assert torch.equal(dropout(x.t().contiguous().t(), 0.4), expected)
    torch.manual_seed(0)
    spread = dropout(x[:1].expand(17, 23), 0.4)  # one row in memory, seventeen in the tensor
    assert torch.equal(spread == 0, expected == 0)


def test_the_ends_of_the_scale() -> None:
    x = torch.ones(100_000)
    assert dropout(x, 0.0) is x
    assert torch.equal(dropout(x, 1e-9), x)  # rounded to nothing
    assert not dropout(x, 1.0).any()
    torch.manual_seed(0)
    almost = dropout(x, 1 - 1e-9)
    assert int((almost != 0).sum()) < 20
    assert set(almost.tolist()) <= {0.0, 65536.0}
    assert drop_steps(0.999999) == 65535


def test_only_training_drops_and_the_gradient_is_the_factor() -> None:
    module = Dropout(0.25)
    x = torch.randn(31, 7, dtype=torch.float64, requires_grad=True)
    torch.manual_seed(3)
    module(x).sum().backward()
    torch.manual_seed(3)
    assert x.grad is not None
    assert torch.equal(x.grad, factors(x, 0.25))
    assert module.eval()(x) is x
    assert repr(module) == "Dropout(p=0.25)"


# Attention


def inputs(dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(7)
    q = torch.randn(B, N, T, D, generator=generator, dtype=dtype)
    k, v = torch.randn(2, B, N, S, D, generator=generator, dtype=dtype)
    return q.requires_grad_(), k.requires_grad_(), v.requires_grad_()


def formula(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, scale: float, p: float) -> Tensor:
    scores = scale * q @ k.transpose(-1, -2)
    weights = (scores if bias is None else scores + bias).softmax(-1)
    return (weights * factors(weights, p)) @ v


def biases() -> dict[str, Tensor | None]:
    generator = torch.Generator().manual_seed(8)
    hidden = torch.zeros(B, 1, 1, S, dtype=torch.float64)
    hidden[1, ..., 4:] = -math.inf
    causal = torch.zeros(T, S, dtype=torch.float64).masked_fill(torch.ones(T, S).triu(1 + S - T) > 0, -math.inf)
    return {
        "none": None,
        "each": torch.randn(B, N, T, S, generator=generator, dtype=torch.float64),
        "head": torch.randn(1, N, T, S, generator=generator, dtype=torch.float64),
        "key": torch.randn(S, generator=generator, dtype=torch.float64),
        "hidden": hidden,
        "causal": causal,
        "causal and hidden": causal + hidden,
    }


@pytest.mark.parametrize("kind", biases())
@pytest.mark.parametrize("p", [0.1, 0.6])
def test_dropped_attention_is_the_formula(kind: str, p: float) -> None:
    found, expected = [], []
    for function, results in ((DroppedAttention.apply, found), (formula, expected)):
        given, bias = inputs(), biases()[kind]
        if bias is not None:
            bias.requires_grad_()
        torch.manual_seed(9)
        out = function(*given, bias, 0.37, p)
        out.backward(torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view(out.shape).sin())
        results += [out.detach(), *(tensor.grad for tensor in given), None if bias is None else bias.grad]
    for one, two in zip(found, expected, strict=True):
        if one is not None or two is not None:
            torch.testing.assert_close(one, two, rtol=0, atol=1e-13)


def test_the_gradient_by_small_steps() -> None:
    def seeded(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
        torch.manual_seed(9)
        return DroppedAttention.apply(q, k, v, bias, 0.5, 0.3)

    q, k, v = (tensor.detach()[:1, :2, :3, :3].clone().requires_grad_() for tensor in inputs())
    bias = torch.randn(1, 2, 1, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(seeded, (q, k, v, bias))


def test_only_what_is_asked_for_has_a_gradient() -> None:
    q, k, v = (tensor.detach() for tensor in inputs())
    bias = torch.randn(N, T, S, dtype=torch.float64, requires_grad=True)
    DroppedAttention.apply(q, k, v, bias, 0.5, 0.3).sum().backward()
    assert bias.grad is not None
    assert q.grad is None


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("hidden", ["none", "some", "all of one"])
def test_both_backends_drop_the_same(causal: bool, hidden: str) -> None:
    attend = Attend(ScaledDot(D), Positions(), dropout=0.3).train()
    allowed = None
    if hidden != "none":
        allowed = torch.ones(B, 1, 1, S, dtype=torch.bool)
        allowed[1, ..., 4 if hidden == "some" else 0 :] = False
    results = []
    for backend in ("fast", "reference"):
        attend.backend = backend
        given = inputs()
        torch.manual_seed(1)
        out = attend(*given, Mask(allowed, causal))
        out.sin().sum().backward()
        results.append([out.detach(), *(tensor.grad for tensor in given)])
    for one, two in zip(*results, strict=True):
        torch.testing.assert_close(one, two, rtol=0, atol=1e-13)
        assert torch.isfinite(one).all()
    if hidden == "all of one":
        assert not results[0][0][1].any()


@pytest.mark.parametrize("narrow", [(), (0,), (0, 1, 2)])
def test_within_autocast_whatever_is_given(narrow: tuple[int, ...]) -> None:
    given = [tensor.detach().float() for tensor in inputs()]
    given = [(x.bfloat16() if number in narrow else x).requires_grad_() for number, x in enumerate(given)]
    with torch.autocast("cpu", torch.bfloat16):
        torch.manual_seed(4)
        out = DroppedAttention.apply(*given, torch.zeros(S), 0.3, 0.2)
    out.float().sin().sum().backward()
    exact = [tensor.detach().double().requires_grad_() for tensor in given]
    torch.manual_seed(4)
    expected = formula(*exact, None, 0.3, 0.2)
    expected.sin().sum().backward()
    torch.testing.assert_close(out.double(), expected, rtol=0.02, atol=0.02)
    for one, two in zip(given, exact, strict=True):
        assert one.grad is not None
        assert two.grad is not None
        assert one.grad.dtype == one.dtype
        torch.testing.assert_close(one.grad.double(), two.grad, rtol=0.05, atol=0.05)
