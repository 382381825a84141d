from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unmask.train.rdrop import RDrop, disagreement

Pair = tuple[Tensor, Tensor]


class Guess:
    """Classify rows of numbers; with a second loss that has another count."""

    def counts(self, batch: Pair) -> Mapping[str, int]:
        return {"label": len(batch[1]), "size": 2 * len(batch[1])}

    def sums(self, model: nn.Module, batch: Pair) -> Mapping[str, Tensor]:
        return self.loss(self.logits(model, batch), batch)

    def rows(self, batch: Pair) -> int:
        return len(batch[1])

    def logits(self, model: nn.Module, batch: Pair) -> Tensor:
        return model(batch[0])

    def loss(self, logits: Tensor, batch: Pair) -> Mapping[str, Tensor]:
        return {"label": F.cross_entropy(logits, batch[1], reduction="sum"), "size": logits.square().sum()}


def network(dropout: float) -> nn.Module:
    torch.manual_seed(5)
    return nn.Sequential(nn.Linear(3, 11), nn.Tanh(), nn.Dropout(dropout), nn.Linear(11, 5)).double()


def data(rows: int = 7) -> Pair:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(rows, 3, generator=generator, dtype=torch.float64)
    return x, torch.randint(0, 5, (rows,), generator=generator)


def gradients(model: nn.Module, task: Guess | RDrop[Pair], window: Sequence[Pair]) -> list[Tensor]:
    """As the loop does it: each sum by the count of the whole window."""
    model.zero_grad()
    totals: dict[str, float] = {}
    for batch in window:
        for name, count in task.counts(batch).items():
            totals[name] = totals.get(name, 0) + count
    for batch in window:
        parts = task.sums(model, batch)
        assert parts.keys() == totals.keys()
        sum(parts[name] / totals[name] for name in totals).backward()
    return [parameter.grad.clone() for parameter in model.parameters()]


def test_without_dropout_it_is_the_plain_task() -> None:
    model, batch = network(0.0), data()
    task = RDrop(Guess(), alpha=3.0)
    assert task.sums(model, batch)["r_drop"] == 0
    for found, expected in zip(gradients(model, task, [batch]), gradients(model, Guess(), [batch]), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-13, atol=1e-16)


def test_with_dropout_the_passes_disagree_and_the_losses_are_their_mean() -> None:
    model, batch = network(0.5), data()
    torch.manual_seed(9)
    task = Guess()
    first, second = task.logits(model, batch), task.logits(model, batch)
    torch.manual_seed(9)
    found = RDrop(task, alpha=3.0).sums(model, batch)
    for name in ("label", "size"):
        expected = (task.loss(first, batch)[name] + task.loss(second, batch)[name]) / 2
        torch.testing.assert_close(found[name], expected)
    p, q = first.softmax(-1), second.softmax(-1)
    direct = ((p * (p / q).log()).sum() + (q * (q / p).log()).sum()) / 2
    assert float(direct.detach()) > 0.01
    torch.testing.assert_close(found["r_drop"], 3.0 * direct)
    torch.testing.assert_close(found["r_drop"], 3.0 * disagreement(second, first))


def test_the_disagreement_by_torchs_own_divergence_with_gradients() -> None:
    one, two = (torch.randn(4, 5, dtype=torch.float64, requires_grad=True) for _ in range(2))
    p, q = one.log_softmax(-1), two.log_softmax(-1)
    both = [F.kl_div(a, b, reduction="sum", log_target=True) for a, b in ((p, q), (q, p))]
    expected = sum(both) / 2
    found = disagreement(one, two)
    torch.testing.assert_close(found, expected)
    for mine, theirs in zip(
        torch.autograd.grad(found, (one, two)), torch.autograd.grad(expected, (one, two)), strict=True
    ):
        torch.testing.assert_close(mine, theirs)


def test_both_passes_learn_from_the_disagreement() -> None:
    model, batch = network(0.5), data()
    torch.manual_seed(2)
    with_it = gradients(model, RDrop(Guess(), alpha=10.0), [batch])
    torch.manual_seed(2)
    without = gradients(model, RDrop(Guess(), alpha=0.0), [batch])
    for one, two in zip(with_it, without, strict=True):
        assert not torch.allclose(one, two)


class Moody(nn.Module):
    """Disagrees with itself as dropout does, but in the same way whatever the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.network = network(0.0)
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return self.network(x) * (1 + self.calls % 2)


@pytest.mark.parametrize("build", [lambda: network(0.0), Moody], ids=["agrees", "disagrees"])
@pytest.mark.parametrize("split", [(1, 6), (2, 2, 3), (1,) * 7])
def test_the_split_into_micro_batches_does_not_matter(split: tuple[int, ...], build: Callable[[], nn.Module]) -> None:
    model, (x, y) = build(), data()
    task = RDrop(Guess(), alpha=2.0)
    whole = gradients(model, task, [(x, y)])
    parts = gradients(model, task, list(zip(x.split(split), y.split(split), strict=True)))
    for one, two in zip(whole, parts, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-12, atol=1e-15)


def test_counts_are_those_of_the_task_and_the_rows() -> None:
    assert RDrop(Guess(), alpha=2.0).counts(data(7)) == {"label": 7, "size": 14, "r_drop": 7}


def test_half_digits_are_compared_in_full_ones() -> None:
    one, two = torch.randn(4, 5).bfloat16(), torch.randn(4, 5).bfloat16()
    assert disagreement(one, two).dtype == torch.float32
    torch.testing.assert_close(disagreement(one, two), disagreement(one.float(), two.float()))
