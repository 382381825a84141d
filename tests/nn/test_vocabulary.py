"""Loss over a vocabulary against torch's own, gradients too."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from unmask.nn import vocabulary
from unmask.nn.vocabulary import agreeing_loss, vocabulary_loss
from unmask.train.rdrop import disagreement


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.5])
@pytest.mark.parametrize("with_bias", [True, False])
def test_equals_cross_entropy(smoothing: float, with_bias: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vocabulary, "_SLICE", 16 * 50)  # several slices, the last one short
    generator = torch.Generator().manual_seed(0)
    rows, weight, bias = (
        torch.randn(*shape, generator=generator, dtype=torch.float64).requires_grad_()
        for shape in ((37, 8), (50, 8), (50,))
    )
    targets = torch.randint(50, (37,), generator=generator)
    given = [rows, weight, *([bias] if with_bias else [])]
    ours = vocabulary_loss(rows, weight, bias if with_bias else None, targets, smoothing)
    logits = rows @ weight.t() + (bias if with_bias else 0)
    theirs = F.cross_entropy(logits, targets, reduction="sum", label_smoothing=smoothing)
    torch.testing.assert_close(ours, theirs, rtol=1e-13, atol=1e-13)
    gradients = torch.autograd.grad(3 * ours, given), torch.autograd.grad(3 * theirs, given)
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("with_bias", [True, False])
def test_two_passes_that_should_agree_equal_the_formula(with_bias: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vocabulary, "_SLICE", 16 * 50)
    generator = torch.Generator().manual_seed(0)
    one, two, weight, bias = (
        torch.randn(*shape, generator=generator, dtype=torch.float64).requires_grad_()
        for shape in ((37, 8), (37, 8), (50, 8), (50,))
    )
    targets = torch.randint(50, (37,), generator=generator)
    given = [one, two, weight, *([bias] if with_bias else [])]
    ours, apart = agreeing_loss((one, two), (weight, bias if with_bias else None), targets, 0.1, 0.7)
    logits = [rows @ weight.t() + (bias if with_bias else 0) for rows in (one, two)]
    mean = sum(F.cross_entropy(rows, targets, reduction="sum", label_smoothing=0.1) for rows in logits) / 2
    between = 0.7 * disagreement(*logits)
    torch.testing.assert_close(ours, mean, rtol=1e-13, atol=1e-13)
    torch.testing.assert_close(apart, between.detach(), rtol=1e-13, atol=1e-13)
    gradients = torch.autograd.grad(3 * ours, given), torch.autograd.grad(3 * (mean + between), given)
    for left, right in zip(*gradients, strict=True):
        torch.testing.assert_close(left, right, rtol=1e-11, atol=1e-12)


def test_passes_that_should_agree_within_autocast() -> None:
    generator = torch.Generator().manual_seed(0)
    one, two, weight = (torch.randn(*shape, generator=generator) for shape in ((37, 8), (37, 8), (50, 8)))
    targets = torch.randint(50, (37,), generator=generator)
    weight.requires_grad_()
    exact, _ = agreeing_loss((one, two), (weight, None), targets, 0.1, 0.7)
    (wanted,) = torch.autograd.grad(exact, weight)
    with torch.autocast("cpu", torch.bfloat16):
        ours, _ = agreeing_loss((one.bfloat16(), two.bfloat16()), (weight, None), targets, 0.1, 0.7)
    (found,) = torch.autograd.grad(ours, weight)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, wanted, rtol=0.05, atol=0.05 * float(wanted.abs().max()))
