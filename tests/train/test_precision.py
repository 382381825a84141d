from __future__ import annotations

import json

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from unmask.errors import SettingsError
from unmask.models.init import build_model
from unmask.models.settings import BertSettings
from unmask.nn.batch import Batch
from unmask.nn.settings import DropoutSettings
from unmask.train.precision import Precision, autocasting, build_scaler, restore_scaler, scaler_state

CPU, CUDA = torch.device("cpu"), torch.device("cuda", 1)
BATCH = Batch.of([[1, 2, 3, 4, 5, 6, 7], [4, 5], [9, 8, 7]])


def model() -> nn.Module:
    sizes = {"hidden_size": 24, "num_heads": 3, "ffn_size": 40, "vocab_size": 13, "num_layers": 2}
    return build_model(BertSettings(**sizes, dropout=DropoutSettings.everywhere(0.0)), seed=1)


def run(precision: Precision) -> tuple[torch.Tensor, torch.dtype, dict[str, torch.Tensor]]:
    network = model()
    seen: list[torch.dtype] = []
    first = network.encoder.stack.blocks[0].ffn
    first.inner.register_forward_hook(lambda module, args, output: seen.append(output.dtype))
    with autocasting(CPU, precision):
        loss = F.cross_entropy(network(BATCH).pooled[:, :3], torch.tensor([0, 1, 2]))
    loss.backward()
    return loss.detach(), seen[0], {name: p.grad for name, p in network.named_parameters() if p.grad is not None}


def test_bf16_computes_with_fewer_digits_and_learns_with_all() -> None:
    full, full_type, wanted = run("fp32")
    half, half_type, found = run("bf16")
    assert (full_type, half_type) == (torch.float32, torch.bfloat16)
    assert half.dtype == torch.float32
    assert not torch.equal(full, half)
    torch.testing.assert_close(half, full, rtol=2e-2, atol=0)
    assert found.keys() == wanted.keys()
    flat_found, flat_wanted = (torch.cat([g.flatten() for g in grads.values()]) for grads in (found, wanted))
    assert {gradient.dtype for gradient in found.values()} == {torch.float32}
    assert F.cosine_similarity(flat_found, flat_wanted, dim=0) > 0.999


def test_autocast_ends_with_the_block() -> None:
    with autocasting(CPU, "bf16"):
        assert torch.is_autocast_enabled("cpu")
    assert not torch.is_autocast_enabled("cpu")
    with autocasting(CPU, "fp32"):
        assert not torch.is_autocast_enabled("cpu")


@pytest.mark.parametrize("device", ["cpu", "mps", "meta"])
def test_fp16_needs_cuda(device: str) -> None:
    for build in (autocasting, build_scaler):
        with pytest.raises(SettingsError, match=f"fp16 needs a CUDA device, given {device}; use bf16"):
            build(torch.device(device), "fp16")


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_scaler_that_does_nothing_lets_the_loop_have_no_ifs(precision: Precision) -> None:
    network = nn.Linear(2, 1)
    twin = nn.Linear(2, 1)
    twin.load_state_dict(network.state_dict())
    scaler = build_scaler(CPU, precision)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    scaler.scale(network(torch.ones(1, 2)).sum()).backward()
    scaler.unscale_(optimizer)
    scaler.step(optimizer)
    scaler.update()
    twin(torch.ones(1, 2)).sum().backward()
    for one, two in zip(network.parameters(), twin.parameters(), strict=True):
        assert torch.equal(one, two - 0.1 * two.grad)
    assert not scaler.is_enabled()
    assert not build_scaler(CUDA, precision).is_enabled()
    assert scaler_state(scaler) == {}
    restore_scaler(scaler, {})
    restore_scaler(scaler, {"scale": 2.0})


def live_scaler() -> torch.amp.GradScaler:
    """One that scales on the CPU, which the project never builds, but whose state is that of any other."""
    return torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=3)


def learn(scaler: torch.amp.GradScaler, losses: list[float]) -> None:
    weight = nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([weight], lr=0.0)
    for loss in losses:
        scaler.scale((weight * loss).sum()).backward()
        scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()


def test_the_state_of_a_scaler_goes_through_json() -> None:
    whole, first, second = live_scaler(), live_scaler(), live_scaler()
    before, after = [1.0, 1.0, 1.0, float("inf"), 1.0], [1.0, 1.0, 1.0]
    learn(whole, before + after)
    learn(first, before)
    assert scaler_state(first)["scale"] == 8.0  # twice up, then back by an overflow
    restore_scaler(second, json.loads(json.dumps(scaler_state(first))))
    assert scaler_state(second) == scaler_state(first)
    learn(second, after)
    assert scaler_state(second) == scaler_state(whole)
    assert scaler_state(second)["scale"] == 16.0


def test_a_scaler_starts_afresh_after_a_run_that_had_none() -> None:
    scaler = live_scaler()
    restore_scaler(scaler, {})
    assert scaler_state(scaler)["scale"] == 8.0
