from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from unmask.errors import ModelError
from unmask.train.average import Average


def network() -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.Linear(5, 3))
    model[2].weight = nn.Parameter(model[0].weight.detach().T.clone())
    return model


def moved(model: nn.Module, number: int) -> None:
    """Any change of everything, buffers too."""
    generator = torch.Generator().manual_seed(number)
    with torch.no_grad():
        for tensor in [*model.parameters(), *model.buffers()]:
            if tensor.is_floating_point():
                tensor.add_(torch.randn(tensor.shape, generator=generator).to(tensor.dtype))
            else:
                tensor.add_(1)


def bits(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def same(one: dict[str, torch.Tensor], two: dict[str, torch.Tensor]) -> bool:
    return one.keys() == two.keys() and all(torch.equal(one[name], two[name]) for name in one)


@pytest.mark.parametrize("warmup", [False, True])
def test_the_formula_by_hand(warmup: bool) -> None:
    model = network()
    average = Average(model, 0.75, warmup=warmup)
    expected = {name: tensor.double() for name, tensor in bits(model).items() if tensor.is_floating_point()}
    for n in range(30):
        moved(model, n)
        decay = min(0.75, (1 + n) / (10 + n)) if warmup else 0.75
        assert average.decay_now == decay
        average.update(model)
        live = bits(model)
        expected = {name: decay * old + (1 - decay) * live[name].double() for name, old in expected.items()}
    stored = average.tensors()
    assert int(stored.pop("updates")) == 30
    assert {name.removeprefix("weights.") for name in stored} == set(expected)
    assert any("running_mean" in name for name in stored)
    for name, wanted in expected.items():
        torch.testing.assert_close(stored[f"weights.{name}"].double(), wanted, rtol=1e-5, atol=1e-5)


def test_the_average_stands_in_and_the_live_weights_come_back() -> None:
    model = network()
    average = Average(model, 0.5)
    moved(model, 1)
    average.update(model)
    before = bits(model)
    parameters = list(model.parameters())
    with average.standing_in(model):
        inside = bits(model)
        for name, tensor in average.tensors().items():
            if name != "updates":
                assert torch.equal(inside[name.removeprefix("weights.")], tensor)
        assert inside["1.num_batches_tracked"] == before["1.num_batches_tracked"]
        assert not torch.equal(inside["0.weight"], before["0.weight"])
        model.train()(torch.randn(7, 3))  # moves the buffers
    after = bits(model)
    after["1.num_batches_tracked"] -= 1  # no average stood in for the counter, so the live one went on
    assert same(before, after)
    assert all(one is two for one, two in zip(parameters, model.parameters(), strict=True))


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_the_live_weights_come_back_whatever_happens(error: type[BaseException]) -> None:
    model = network()
    average = Average(model, 0.5)
    moved(model, 1)
    before, kept = bits(model), {name: tensor.clone() for name, tensor in average.tensors().items()}

    def fail() -> None:
        with average.standing_in(model):
            moved(model, 2)
            raise error

    with pytest.raises(error):
        fail()
    after = bits(model)
    after["1.num_batches_tracked"] -= 1
    assert same(before, after)
    assert same(kept, average.tensors())


def test_a_restored_average_goes_on_to_the_same_bits() -> None:
    model = network()
    whole, first = Average(model, 0.9, warmup=True), Average(model, 0.9, warmup=True)
    for n in range(3):
        moved(model, n)
        whole.update(model)
        first.update(model)
    stored = {name: tensor.clone() for name, tensor in first.tensors().items()}
    moved(model, 99)
    second = Average(model, 0.9, warmup=True)
    second.restore(stored)
    for n in range(3, 6):
        moved(model, n)
        whole.update(model)
        second.update(model)
    assert same(whole.tensors(), second.tensors())


def test_restoring_copies() -> None:
    model = network()
    average, stored = Average(model, 0.9), Average(model, 0.9).tensors()
    before = {name: tensor.clone() for name, tensor in stored.items()}
    average.restore(stored)
    moved(model, 0)
    average.update(model)
    assert same(before, stored)


def test_small_changes_of_bf16_weights_are_not_lost() -> None:
    model = nn.Linear(1, 1, bias=False).bfloat16()
    with torch.no_grad():
        model.weight.fill_(1.0)
    average = Average(model, 0.999)
    with torch.no_grad():
        model.weight.fill_(1.0 + 2**-7)  # the next number bf16 has
    for _ in range(2000):
        average.update(model)
    assert average.tensors()["weights.weight"].dtype == torch.float32
    assert float(average.tensors()["weights.weight"]) == pytest.approx(1 + 2**-7 * (1 - 0.999**2000), rel=1e-4)
    with average.standing_in(model):
        assert model.weight.dtype == torch.bfloat16


def test_another_model_is_refused() -> None:
    average = Average(network(), 0.9)
    with pytest.raises(ModelError, match="another model: .* weights"):
        average.restore(Average(nn.Linear(3, 5), 0.9).tensors())
    other = average.tensors() | {"weights.0.weight": torch.zeros(7, 3)}
    with pytest.raises(ModelError, match=r"0.weight has shape \(7, 3\) but the model's is \(5, 3\)"):
        average.restore(other)
    with pytest.raises(ValueError, match="other names"):
        average.update(nn.Linear(3, 5))


def test_tied_weights_are_averaged_once_and_stay_tied() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    model[1].weight = model[0].weight
    average = Average(model, 0.5)
    assert sum(name.endswith(".weight") for name in average.tensors()) == 1
    live = copy.deepcopy(model[0].weight.detach())
    with torch.no_grad():
        model[0].weight.add_(1)
    average.update(model)
    with average.standing_in(model):
        assert model[1].weight is model[0].weight
        torch.testing.assert_close(model[1].weight.detach(), live + 0.5)
