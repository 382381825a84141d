from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import toy
from unmask.errors import SettingsError, UserError
from unmask.train.finder import FinderSettings, RateSweep, SweepRow, find_rate, plot_sweep
from unmask.train.optimizer import OptimizerSettings, build_optimizer
from unmask.train.step import backward

ADAM = OptimizerSettings(weight_decay=0.0)


class Way(nn.Module):
    """A number that has to go from 0 to `distance`."""

    def __init__(self, distance: float) -> None:
        super().__init__()
        self.distance = distance
        self.place = nn.Parameter(torch.zeros(5))


class Go:
    def counts(self, batch: int) -> dict[str, int]:
        return {"away": 5}

    def sums(self, model: nn.Module, batch: int) -> dict[str, Tensor]:
        assert isinstance(model, Way)
        return {"away": ((model.place - model.distance) / model.distance).square().sum()}


class Count:
    """Which micro-batches were asked for."""

    def __init__(self) -> None:
        self.asked: list[int] = []

    def __getitem__(self, number: int) -> int:
        self.asked.append(number)
        return number


@pytest.mark.parametrize("distance", [1e-3, 0.1, 10.0])
def test_the_best_rate_is_in_proportion_to_the_way(distance: float) -> None:
    """Adam moves by the rate at each update. Rates grow by 1.23 a step, so all steps up to one of rate r go 5 r."""
    settings = FinderSettings(smallest=1e-6, largest=1e3, updates=100, smoothing=0.5, clip=None)
    sweep = find_rate(Way(distance), Go(), Count(), settings, ADAM)
    assert sweep.suggestion is not None
    assert 0.03 * distance < sweep.suggestion < 0.6 * distance
    assert 0.003 * distance < sweep.tenth_of_best < 0.1 * distance
    assert sweep.diverged_at is not None
    assert sweep.diverged_at > sweep.suggestion
    assert len(sweep.rows) < 100


def test_rates_are_even_on_a_logarithmic_scale_and_each_has_its_batches() -> None:
    source = Count()
    settings = FinderSettings(smallest=1e-6, largest=1e-2, updates=5, accumulate=3)
    sweep = find_rate(Way(1.0), Go(), source, settings, ADAM)
    assert [row.rate for row in sweep.rows] == pytest.approx([1e-6, 1e-5, 1e-4, 1e-3, 1e-2])
    assert source.asked == list(range(15))
    assert sweep.diverged_at is None


def test_the_losses_are_those_of_a_run_with_these_rates() -> None:
    settings = FinderSettings(smallest=1e-3, largest=1e-1, updates=4, smoothing=0.5)
    sweep = find_rate(Way(1.0), Go(), Count(), settings, ADAM)
    model = Way(1.0)
    optimizer = build_optimizer(model, ADAM)
    losses = []
    for rate in settings.rates:
        losses.append(backward(model, Go(), [0])["away"])
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.step()
        optimizer.zero_grad()
    assert [row.loss for row in sweep.rows] == losses
    first, second, third = losses[:3]
    assert sweep.rows[0].smoothed == first
    assert sweep.rows[1].smoothed == pytest.approx((second + 0.5 * first) / 1.5)
    assert sweep.rows[2].smoothed == pytest.approx((third + 0.5 * second + 0.25 * first) / 1.75)


class Broken(Go):
    """A loss that is no number from the fourth batch on."""

    def sums(self, model: nn.Module, batch: int) -> dict[str, Tensor]:
        return {
            name: value * (float("nan") if batch >= 3 else 1.0) for name, value in super().sums(model, batch).items()
        }


def test_a_loss_that_is_no_number_ends_the_sweep() -> None:
    settings = FinderSettings(smallest=1e-6, largest=1e-2, updates=5)
    sweep = find_rate(Way(1.0), Broken(), Count(), settings, ADAM)
    assert len(sweep.rows) == 3
    assert sweep.diverged_at == pytest.approx(1e-3)
    with pytest.raises(UserError, match="after 2 updates.*choose a lower `smallest`"):
        find_rate(Way(1.0), Broken(), _From(1), settings, ADAM)


class _From:
    def __init__(self, first: int) -> None:
        self.first = first

    def __getitem__(self, number: int) -> int:
        return self.first + number


@pytest.fixture
def model() -> nn.Module:
    made = toy.model()
    made.encoder.eval()  # a mixture of modes must come back too
    return made


def state(model: nn.Module) -> list[Tensor]:
    return [*(tensor.clone() for tensor in model.state_dict().values()), torch.get_rng_state()]


@pytest.mark.parametrize("fails", [False, True])
def test_everything_is_as_it_was(model: nn.Module, fails: bool) -> None:
    gradient = torch.ones_like(model.encoder.embeddings.token.weight)
    model.encoder.embeddings.token.weight.grad = gradient
    torch.manual_seed(77)
    before = state(model)
    modes = [module.training for module in model.modules()]
    settings = FinderSettings(updates=5, largest=0.1)
    if fails:
        with pytest.raises(IndexError):
            find_rate(model, toy.GuessMasks(), [toy.Sentences()[0]], settings, ADAM)
    else:
        find_rate(model, toy.GuessMasks(), toy.Sentences(), settings, ADAM)
    assert all(torch.equal(one, two) for one, two in zip(before, state(model), strict=True))
    assert [module.training for module in model.modules()] == modes
    assert model.encoder.embeddings.token.weight.grad is gradient
    assert torch.equal(gradient, torch.ones_like(gradient))
    assert sum(parameter.grad is not None for parameter in model.parameters()) == 1


def test_a_sweep_can_be_repeated_and_dropout_has_its_seed(model: nn.Module) -> None:
    settings = FinderSettings(updates=5)
    sweeps = []
    for seed in (0, 0, 1):
        torch.rand(3)  # whatever the generator is at must not matter
        sweeps.append(find_rate(model, toy.GuessMasks(), toy.Sentences(), settings.replace(seed=seed), ADAM))
    assert sweeps[0] == sweeps[1]
    assert sweeps[0] != sweeps[2]


def test_a_real_model_learns_well_with_the_suggestion() -> None:
    """Much better than with a hundredth of it, and the range in which small models learn is known."""
    network = toy.model(dropout=0.0)
    settings = FinderSettings(smallest=1e-6, largest=1.0, updates=40)
    sweep = find_rate(network, toy.GuessMasks(), toy.Sentences(8), settings, ADAM)
    assert sweep.suggestion is not None
    assert 3e-4 < sweep.suggestion < 1e-1

    def after(rate: float) -> float:
        learner = toy.model(dropout=0.0)
        optimizer = torch.optim.Adam(learner.parameters(), lr=rate)
        for number in range(30):
            means = backward(learner, toy.GuessMasks(), [toy.Sentences(8)[number]])
            optimizer.step()
            optimizer.zero_grad()
        return sum(means.values())

    assert after(sweep.suggestion) < after(sweep.suggestion / 100) - 0.1


def test_a_loss_that_never_falls_has_no_suggestion(tmp_path: Path) -> None:
    flat = RateSweep(tuple(SweepRow(10.0**i, 1.0, 1.0) for i in range(5)), None)
    rising = RateSweep(tuple(SweepRow(10.0**i, 1.0 + i, 1.0 + i) for i in range(5)), 1e4)
    for sweep in (flat, rising):
        assert sweep.suggestion is None
        plot_sweep(sweep, tmp_path / "sweep.png")


def test_the_steepest_place_before_the_lowest() -> None:
    losses = [9.0, 8.9, 7.0, 4.0, 3.5, 3.4, 30.0, 30.0, 3.5]
    rows = tuple(SweepRow(10.0 ** (i - 5), one, one) for i, one in enumerate(losses))
    sweep = RateSweep(rows, None)
    assert sweep.suggestion == pytest.approx(1e-3)
    assert sweep.tenth_of_best == pytest.approx(0.1)


def test_the_picture(tmp_path: Path) -> None:
    sweep = find_rate(Way(1.0), Go(), Count(), FinderSettings(updates=20), ADAM)
    plot_sweep(sweep, tmp_path / "sweep.png")
    assert (tmp_path / "sweep.png").read_bytes().startswith(b"\x89PNG")
    assert [path.name for path in tmp_path.iterdir()] == ["sweep.png"]
    assert "matplotlib.pyplot" not in sys.modules


@pytest.mark.parametrize(
    "wrong", [{"smallest": 1.0, "largest": 0.1}, {"updates": 2}, {"diverged": 1.0}, {"smoothing": 1.0}], ids=str
)
def test_settings_out_of_range(wrong: dict[str, object]) -> None:
    with pytest.raises(SettingsError, match=next(iter(wrong))):
        FinderSettings.parse(wrong)
