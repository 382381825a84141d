"""The CRF against the sum and the maximum over every label sequence there is."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from unmask.nn.crf import CRF
from unmask.nn.layout import Layout

LABELS = 3
LENGTHS = st.lists(st.integers(1, 5), min_size=1, max_size=5)


def field(seed: int = 0) -> CRF:
    crf = CRF(LABELS)
    generator = torch.Generator().manual_seed(seed)
    for parameter in crf.parameters():
        torch.nn.init.normal_(parameter, generator=generator)
    return crf


def emissions_for(layout: Layout, seed: int = 1) -> Tensor:
    return torch.randn(layout.num_rows, LABELS, generator=torch.Generator().manual_seed(seed))


def score(crf: CRF, emissions: Tensor, path: tuple[int, ...]) -> Tensor:
    total = crf.start[path[0]] + crf.end[path[-1]]
    for t, label in enumerate(path):
        total = total + emissions[t, label]
    for before, after in itertools.pairwise(path):
        total = total + crf.transitions[before, after]
    return total


def every_path(crf: CRF, emissions: Tensor) -> dict[tuple[int, ...], Tensor]:
    return {path: score(crf, emissions, path) for path in itertools.product(range(LABELS), repeat=len(emissions))}


@settings(max_examples=15, deadline=None)
@given(LENGTHS, st.integers(0, 1000))
def test_partition_likelihood_and_best_path(lengths: list[int], seed: int) -> None:
    crf, layout = field(seed), Layout.ragged(lengths)
    emissions = emissions_for(layout, seed + 1)
    labels = torch.randint(LABELS, (layout.num_rows,), generator=torch.Generator().manual_seed(seed))
    with torch.no_grad():
        partition = crf.log_partition(emissions, layout)
        likelihood = crf.log_likelihood(emissions, labels, layout)
        decoded = crf.decode(emissions, layout)
        for b, (piece, given_labels) in enumerate(zip(layout.split(emissions), layout.split(labels), strict=True)):
            scores = every_path(crf, piece)
            expected = torch.stack(list(scores.values())).logsumexp(0)
            torch.testing.assert_close(partition[b], expected, rtol=1e-5, atol=1e-5)
            chosen = scores[tuple(given_labels.tolist())]
            torch.testing.assert_close(likelihood[b], chosen - expected, rtol=1e-5, atol=1e-5)
            assert tuple(decoded[b]) == max(scores, key=lambda path: float(scores[path]))


def test_probabilities_of_all_paths_sum_to_one() -> None:
    crf, length = field(), 5
    paths = list(itertools.product(range(LABELS), repeat=length))
    layout = Layout.ragged([length] * len(paths))
    one = emissions_for(Layout.ragged([length]))
    likelihood = crf.log_likelihood(one.repeat(len(paths), 1), torch.tensor(paths).flatten(), layout)
    assert likelihood.exp().sum().item() == pytest.approx(1, abs=1e-5)


def test_padding_changes_neither_partition_nor_path() -> None:
    crf, ragged = field(), Layout.ragged([5, 1, 3])
    emissions, padded = emissions_for(ragged), Layout((5, 1, 3), 7)
    dense = torch.full((3, 7, LABELS), 25.0)
    dense[padded.key_mask(emissions.device)] = emissions
    torch.testing.assert_close(crf.log_partition(dense.flatten(0, 1), padded), crf.log_partition(emissions, ragged))
    assert crf.decode(dense.flatten(0, 1), padded) == crf.decode(emissions, ragged)


def test_gradient_of_the_partition_is_the_marginal_probability() -> None:
    crf, layout = field(), Layout.ragged([3, 1, 4])
    emissions = emissions_for(layout).requires_grad_()
    (gradient,) = torch.autograd.grad(crf.log_partition(emissions, layout).sum(), [emissions])
    crf.requires_grad_(False)
    for piece, marginals in zip(layout.split(emissions.detach()), layout.split(gradient), strict=True):
        expected = torch.zeros_like(piece)
        scores = every_path(crf, piece)
        total = torch.stack(list(scores.values())).logsumexp(0)
        for path, value in scores.items():
            for t, label in enumerate(path):
                expected[t, label] += float((value - total).exp())
        torch.testing.assert_close(marginals, expected, rtol=1e-4, atol=1e-5)


@settings(max_examples=15, deadline=None)
@given(LENGTHS, st.integers(0, 1000), st.booleans())
def test_marginals_are_the_shares_of_all_paths(lengths: list[int], seed: int, inference: bool) -> None:
    crf, layout = field(seed), Layout.ragged(lengths)
    with torch.inference_mode(inference):  # as what a model said in that mode
        emissions = emissions_for(layout, seed + 1)
        found = crf.marginals(emissions, layout)
    assert found.dtype == emissions.dtype
    assert all(parameter.grad is None for parameter in crf.parameters())
    for piece, marginals in zip(layout.split(emissions), layout.split(found), strict=True):
        with torch.no_grad():
            scores = every_path(crf, piece)
            total = torch.stack(list(scores.values())).logsumexp(0)
            expected = torch.zeros_like(piece)
            for path, value in scores.items():
                expected[range(len(path)), path] += (value - total).exp()
        torch.testing.assert_close(marginals, expected, rtol=0, atol=1e-5)


def test_a_long_text_keeps_its_digits() -> None:
    """Scores grow with a text: in 32 bits thousands of words would leave no digits for what tells labels apart."""
    crf, length = field(), 3000
    emissions = emissions_for(Layout.ragged([length])) * 3 + 20
    long = Layout.ragged([length])
    marginals, path = crf.marginals(emissions, long), crf.decode(emissions, long)[0]
    torch.testing.assert_close(marginals.sum(1), torch.ones(length), rtol=0, atol=1e-5)
    exact = by_messages(crf, emissions)
    torch.testing.assert_close(marginals.double(), exact.softmax(1), rtol=0, atol=1e-5)
    # A text in which each word says clearly what it is has the labels that words say alone.
    clear = torch.full((length, LABELS), -50.0)
    clear[range(length), [t % LABELS for t in range(length)]] = 50
    assert crf.decode(clear, long)[0] == [t % LABELS for t in range(length)]
    # The middle of a long text is what it is within a part of it: far words do not reach there.
    part = Layout.ragged([200])
    assert crf.decode(emissions[1400:1600], part)[0][50:150] == path[1450:1550]
    torch.testing.assert_close(crf.marginals(emissions[1400:1600], part)[50:150], marginals[1450:1550])


def by_messages(crf: CRF, emissions: Tensor) -> Tensor:
    """Log shares of each label at each place by passing messages in both directions, none of which grows."""
    emissions, pass_on = emissions.double(), crf.transitions.detach().double()
    forward, backward = [crf.start.detach() + emissions[0]], [crf.end.detach().double()]
    for emission in emissions[1:]:
        forward.append((forward[-1][:, None] + pass_on).logsumexp(0) + emission)
        forward[-1] = forward[-1] - forward[-1].max()
    for emission in emissions[1:].flip(0):
        backward.append((pass_on + emission + backward[-1]).logsumexp(1))
        backward[-1] = backward[-1] - backward[-1].max()
    return torch.stack(forward) + torch.stack(backward[::-1])


def test_gradients_are_finite_everywhere() -> None:
    crf, layout = field(), Layout.ragged([5, 1, 2])
    emissions = (emissions_for(layout) * 100).requires_grad_()
    labels = torch.tensor([0, 1, 2, 0, 1, 2, 1, 0])
    crf.log_likelihood(emissions, labels, layout).sum().backward()
    for tensor in (emissions, *crf.parameters()):
        assert tensor.grad.isfinite().all()
        assert tensor.grad.abs().sum() > 0


def test_padded_labels_are_refused() -> None:
    layout = Layout.padded([3, 1])
    with pytest.raises(ValueError, match="ragged rows"):
        field().log_likelihood(emissions_for(layout), torch.zeros(6, dtype=torch.long), layout)


def test_first_values_are_small_and_from_the_generator() -> None:
    crf, again = CRF(11), CRF(11)
    crf.initialise(torch.Generator().manual_seed(7))
    again.initialise(torch.Generator().manual_seed(7))
    assert torch.equal(crf.transitions, again.transitions)
    assert 0.05 < crf.transitions.abs().max() <= 0.1
