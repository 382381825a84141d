"""Positions that act on embeddings, against the papers' formulas."""

from __future__ import annotations

import math

import pytest
import torch

from unmask.nn.positions import ComplexPositions, LearnedPositions, SinusoidalPositions, sinusoids

H = 22  # eleven pairs


def paper(position: int, dimension: int) -> float:
    """PE(pos, 2i) = sin(pos / 10000^(2i/d)), PE(pos, 2i+1) = cos(pos / 10000^(2i/d))."""
    angle = position / 10000 ** (dimension // 2 * 2 / H)
    return math.cos(angle) if dimension % 2 else math.sin(angle)


def test_sinusoids_are_the_papers() -> None:
    expected = torch.tensor([[paper(position, dimension) for dimension in range(H)] for position in range(-3, 301)])
    torch.testing.assert_close(sinusoids(torch.arange(-3, 301), H).float(), expected, rtol=0, atol=1e-6)


def test_concatenated_order_has_all_sines_first() -> None:
    waves = sinusoids(torch.arange(5), H)
    apart = sinusoids(torch.arange(5), H, order="concatenated")
    assert torch.equal(apart, torch.cat([waves[:, 0::2], waves[:, 1::2]], dim=1))


def test_tensor2tensor_spacing_reaches_the_slowest_wave() -> None:
    """Ten steps between eleven waves: the last has wavelength 2π·10000 exactly."""
    slowest = sinusoids(torch.tensor([10000]), H, spacing="tensor2tensor")[0, -2:]
    torch.testing.assert_close(slowest, torch.tensor([math.sin(1), math.cos(1)], dtype=torch.float64))
    second = sinusoids(torch.tensor([1]), H, spacing="tensor2tensor")[0, 2]
    assert second.item() == pytest.approx(math.sin(10000 ** (-1 / 10)))
    assert sinusoids(torch.tensor([1]), 2, spacing="tensor2tensor").tolist()[0] == pytest.approx(
        [math.sin(1), math.cos(1)]
    )


@pytest.mark.parametrize("step", [1, 7, 50])
def test_moving_by_a_fixed_step_is_one_linear_map(step: int) -> None:
    """PE(pos + k) = M_k PE(pos) for every pos: M_k turns each pair of sine and cosine by k · frequency."""
    turns = []
    for i in range(H // 2):
        sin, cos = paper(step, 2 * i), paper(step, 2 * i + 1)
        turns.append(torch.tensor([[cos, sin], [-sin, cos]], dtype=torch.float64))
    waves = sinusoids(torch.arange(400), H)
    torch.testing.assert_close(waves[:350] @ torch.block_diag(*turns).T, waves[step : 350 + step], rtol=0, atol=1e-12)


@pytest.mark.parametrize("start", [0, 2])
def test_sinusoidal_positions_add_the_wave_of_each_position(start: int) -> None:
    positions = SinusoidalPositions(H, start=start)
    x = torch.randn(3, H, generator=torch.Generator().manual_seed(0))
    for where in ([0, 5, 2], [700, 1, 63], [64, 65, 700]):  # the table grows, and is used again
        out = positions.embed(x, torch.zeros(3, dtype=torch.long), torch.tensor(where), max(where) + 1)
        expected = x + torch.tensor([[paper(p + start, d) for d in range(H)] for p in where])
        torch.testing.assert_close(out, expected, rtol=0, atol=1e-6)
    assert not list(positions.parameters())
    assert not positions.state_dict()


def test_sinusoidal_positions_made_in_inference_can_be_trained_with() -> None:
    positions, where = SinusoidalPositions(H), torch.arange(3)
    with torch.inference_mode():
        positions.embed(torch.zeros(3, H), where, where, 3)
    x = torch.ones(3, H, requires_grad=True)
    positions.embed(x * x, where, where, 3).square().sum().backward()
    assert x.grad is not None


def test_learned_positions_add_their_row() -> None:
    positions = LearnedPositions(7, 5)
    x = torch.zeros(3, 5)
    where = torch.tensor([6, 0, 6])
    assert torch.equal(positions.embed(x, where, where, 7), positions.table.weight[where])
    assert positions.limit == 7


def test_complex_positions_multiply_by_a_turning_number() -> None:
    vocab, half = 13, 11
    positions = ComplexPositions(vocab, 2 * half)
    generator = torch.Generator().manual_seed(5)
    torch.nn.init.normal_(positions.frequencies.weight, generator=generator)
    x = torch.randn(7, 2 * half, generator=generator)
    ids = torch.randint(vocab, (7,), generator=generator)
    where = torch.tensor([0, 1, 2, 0, 1, 2, 3])
    out = positions.embed(x, ids, where, 4)
    omega = positions.frequencies.weight[ids].double()
    turned = torch.complex(x[:, :half].double(), x[:, half:].double()) * torch.exp(1j * omega * where[:, None])
    torch.testing.assert_close(out.double(), torch.cat([turned.real, turned.imag], dim=1), rtol=0, atol=1e-5)
    assert torch.equal(out[where == 0], x[where == 0])


def test_complex_positions_start_with_the_sinusoids_frequencies() -> None:
    positions = ComplexPositions(3, H)
    positions.initialise(torch.Generator())
    expected = torch.tensor([10000 ** (-2 * i / H) for i in range(H // 2)])
    torch.testing.assert_close(positions.frequencies.weight.data, expected.expand(3, -1))
