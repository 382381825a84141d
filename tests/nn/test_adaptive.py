"""Adaptive softmax: probabilities by hand, the loss without them, and the order of tokens."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from unmask.errors import SettingsError
from unmask.nn.adaptive import AdaptiveOutput, order_by_frequency
from unmask.nn.settings import AdaptiveSettings

V, H, CUTOFFS = 23, 16, (5, 11)


def output(*, ordered: bool = True, bias: bool = True, dtype: torch.dtype = torch.float64) -> AdaptiveOutput:
    torch.manual_seed(3)
    made = AdaptiveOutput(V, H, CUTOFFS, 2.0, bias=bias).to(dtype)
    if ordered:
        made.order_by(torch.randint(0, 9, (V,)))  # with many ties
    return made


def by_hand(made: AdaptiveOutput, rows: Tensor) -> Tensor:
    """p(token) = p(head entry), or p(cluster) · p(token in cluster), token by token."""
    softmax = made.softmax
    head = rows @ softmax.head.weight.T + (0.0 if softmax.head.bias is None else softmax.head.bias)
    head = head.exp() / head.exp().sum(1, keepdim=True)
    found = torch.empty(len(rows), V, dtype=rows.dtype)
    bounds = (*CUTOFFS, V)
    for token in range(V):
        rank = int(made.rank_of[token])
        if rank < CUTOFFS[0]:
            found[:, token] = head[:, rank]
            continue
        number = next(i for i in range(len(CUTOFFS)) if bounds[i] <= rank < bounds[i + 1])
        narrow, wide = (layer.weight for layer in softmax.tail[number])
        inside = (rows @ narrow.T @ wide.T).exp()
        share = inside[:, rank - bounds[number]] / inside.sum(1)
        found[:, token] = head[:, CUTOFFS[0] + number] * share
    return found


@pytest.mark.parametrize("bias", [True, False])
def test_probabilities_are_those_by_hand_and_sum_to_one(bias: bool) -> None:
    made, rows = output(bias=bias), torch.randn(7, H, dtype=torch.float64)
    found = made(rows)
    torch.testing.assert_close(found.exp(), by_hand(made, rows))
    torch.testing.assert_close(found.exp().sum(1), torch.ones(7, dtype=torch.float64))
    torch.testing.assert_close(found.log_softmax(1), found)


def test_clusters_grow_narrower() -> None:
    widths = [pair[0].out_features for pair in output().softmax.tail]
    assert widths == [8, 4]
    assert (output().softmax.head.bias is None, output(bias=False).softmax.head.bias is None) == (False, True)


@pytest.mark.parametrize("targets", ["all", "frequent", "none"])
def test_the_loss_is_minus_the_log_probability_with_its_gradients(targets: str) -> None:
    made = output()
    wanted = {
        "all": torch.arange(V),
        "frequent": (made.rank_of < CUTOFFS[0]).nonzero().squeeze(1),
        "none": torch.empty(0).long(),
    }[targets]
    rows = torch.randn(len(wanted), H, dtype=torch.float64)
    losses, gradients = [], []
    for way in ("quick", "plain", "torch"):
        given = rows.clone().requires_grad_()
        made.zero_grad()
        if way == "quick":
            loss = made.loss(given, wanted)
        elif way == "plain":
            loss = -made(given).gather(1, wanted[:, None]).sum()
        else:
            loss = -made.softmax(given, made.rank_of[wanted]).output.sum() if len(wanted) else given.sum()
        loss.backward()
        losses.append(loss.detach())
        found = {name: one.grad for name, one in made.named_parameters()} | {"rows": given.grad}
        if way == "quick":
            assert all(one is not None for one in found.values())  # zeros, where no target is rare
        gradients.append({name: 0.0 if one is None else one for name, one in found.items()})
    for loss, found in zip(losses[1:], gradients[1:], strict=True):
        torch.testing.assert_close(losses[0], loss)
        for name, one in gradients[0].items():
            other = torch.zeros_like(one) + found[name]
            torch.testing.assert_close(one, other, msg=name)


def test_frequent_tokens_come_first_and_ties_keep_the_order_of_ids() -> None:
    made = AdaptiveOutput(6, 8, (2,), 2.0)
    assert made.rank_of.tolist() == [0, 1, 2, 3, 4, 5]
    order_by_frequency(torch.nn.Sequential(made), torch.tensor([0, 7, 3, 9, 3, 0]))
    assert made.rank_of.tolist() == [4, 1, 2, 0, 3, 5]
    assert made.is_ordered
    made.rank_of[0] = 5
    assert not made.is_ordered


def test_the_order_is_kept_with_the_weights() -> None:
    one, other = output(), AdaptiveOutput(V, H, CUTOFFS, 2.0).double()
    rows = torch.randn(4, H, dtype=torch.float64)
    other.load_state_dict(one.state_dict())
    assert torch.equal(one(rows), other(rows))
    other.initialise(torch.Generator())
    assert not torch.allclose(one(rows), other(rows))


@torch.no_grad()
def test_mixed_precision_gives_nearly_the_same() -> None:
    made, rows, targets = output(dtype=torch.float32), torch.randn(V, H), torch.arange(V)
    plain = made.loss(rows, targets)
    with torch.autocast("cpu", torch.bfloat16):
        mixed = made.loss(rows, targets)
        assert F.cross_entropy(made(rows).float(), targets, reduction="sum") == pytest.approx(float(plain), rel=0.02)
    assert float(mixed) == pytest.approx(float(plain), rel=0.02)


@pytest.mark.parametrize(
    ("cutoffs", "div", "said"), [((4, 4), 4.0, "must grow"), ((23,), 4.0, "23 tokens"), ((5, 11), 8.0, "no width")]
)
def test_what_cannot_be(cutoffs: tuple[int, ...], div: float, said: str) -> None:
    with pytest.raises((ValueError, SettingsError), match=said):
        AdaptiveSettings(cutoffs=cutoffs, div_value=div).check_fits(V, H)
