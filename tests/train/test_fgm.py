"""FGM; and, as a program with two processes, all parts of the training room that must work on sharded parameters.

python test_fgm.py STORE
"""

from __future__ import annotations

import copy
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from unmask.errors import TaskError
from unmask.models.init import build_model
from unmask.models.recurrent import LstmEncoder
from unmask.models.settings import BertSettings, GptSettings, MaskedTokenSettings, TransformerSettings
from unmask.nn.batch import Batch
from unmask.nn.settings import DropoutSettings
from unmask.train.average import Average
from unmask.train.fgm import embedding_parameters, perturbed
from unmask.train.freeze import FreezeSettings, drop_gradients, frozen_names
from unmask.train.memory import checkpoint_activations

SIZES = {"hidden_size": 8, "num_heads": 2, "ffn_size": 8, "dropout": DropoutSettings.everywhere(0.0)}
IDS = [[1, 2, 3], [4, 5], [6], [1, 7, 8, 9]]
PROCESSES = 2


def bert() -> nn.Module:
    settings = BertSettings(**SIZES, vocab_size=11, num_layers=2, heads=(MaskedTokenSettings(),), init_std=0.3)
    return build_model(settings, seed=1)


def loss(model: nn.Module, ids: list[list[int]]) -> Tensor:
    """A sum over sequences, each by itself: an evenly split batch gives the same."""
    sequence = model(Batch.of(ids)).sequence
    return (sequence * torch.linspace(-1, 1, 8).sin()).sin().sum() / len(IDS)


def parameter(values: list[float], gradient: list[float] | None) -> nn.Parameter:
    made = nn.Parameter(torch.tensor(values))
    made.grad = None if gradient is None else torch.tensor(gradient)
    return made


def test_each_parameter_moves_by_epsilon_along_its_gradient() -> None:
    one, two = parameter([1.0, 2.0], [3.0, -4.0]), parameter([5.0], [1e-3])
    with perturbed([one, two], 0.5):
        torch.testing.assert_close(one.detach(), torch.tensor([1.3, 1.6]))
        torch.testing.assert_close(two.detach(), torch.tensor([5.5]))
    assert one.tolist() == [1.0, 2.0]
    assert two.tolist() == [5.0]
    assert one.grad is not None
    assert one.grad.tolist() == [3.0, -4.0]


@pytest.mark.parametrize("gradient", [None, [0.0, 0.0], [float("nan"), 1.0], [float("inf"), 1.0]], ids=str)
def test_without_a_direction_nothing_moves(gradient: list[float] | None) -> None:
    still, other = parameter([1.0, 2.0], gradient), parameter([1.0], [2.0])
    with perturbed([still, other], 0.5):
        assert still.tolist() == [1.0, 2.0]
        assert other.tolist() == [1.5]


def test_gradients_of_any_size_give_a_direction() -> None:
    for size in (1e-18, 1e-6, 1e18):
        moved = parameter([1.0, 1.0], [size, 0.0])
        with perturbed([moved], 0.5):
            assert moved.tolist() == pytest.approx([1.5, 1.0])


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_values_come_back_to_the_bit_whatever_happens(error: type[BaseException]) -> None:
    torch.manual_seed(0)
    moved = nn.Parameter(torch.randn(101, 7))
    moved.grad = torch.randn(101, 7)
    before = moved.detach().clone()

    def fail() -> None:
        with perturbed([moved], 0.1):
            assert not torch.equal(moved, before)
            raise error

    with pytest.raises(error):
        fail()
    assert torch.equal(moved, before)
    # Adding and taking away again would not do: this is why values are kept.
    step = 0.1 * moved.grad / moved.grad.norm()
    assert not torch.equal(before + step - step, before)


def adversarial(model: nn.Module, window: list[list[list[int]]], epsilon: float, scale: float = 1.0) -> None:
    """Two passes over a window, as the loop makes them."""
    for ids in window:
        (loss(model, ids) * scale).backward()
    with perturbed(embedding_parameters(model), epsilon):
        for ids in window:
            (loss(model, ids) * scale).backward()


def gradients(model: nn.Module) -> dict[str, Tensor]:
    return {name: whole(one.grad) for name, one in model.named_parameters() if one.grad is not None}


def test_adversarial_gradients_by_hand_and_for_any_split() -> None:
    model = bert().double()
    expected = copy.deepcopy(model)
    loss(expected, IDS).backward()
    moved = copy.deepcopy(expected)
    moved.zero_grad()
    table, gradient = moved.encoder.embeddings.token.weight, expected.encoder.embeddings.token.weight.grad
    with torch.no_grad():
        table += 0.5 * gradient / gradient.square().sum().sqrt()
    loss(moved, IDS).backward()
    assert float(loss(moved, IDS).detach()) > float(loss(expected, IDS).detach()) + 1e-3  # uphill
    wanted = {
        name: one.grad + two.grad
        for (name, one), two in zip(expected.named_parameters(), moved.parameters(), strict=True)
        if one.grad is not None
    }
    for window in ([IDS], [IDS[:1], IDS[1:]], [[ids] for ids in IDS]):
        model.zero_grad()
        adversarial(model, window, 0.5)
        found = gradients(model)
        assert found.keys() == wanted.keys()
        for name, one in found.items():
            torch.testing.assert_close(one, wanted[name], rtol=1e-9, atol=1e-12, msg=name)


def test_the_token_tables_of_each_model() -> None:
    gpt = build_model(GptSettings(**SIZES, vocab_size=11, num_layers=1))
    assert embedding_parameters(gpt) == [gpt.embeddings.token.weight]
    model = bert()
    assert embedding_parameters(nn.ModuleDict({"module": model})) == [model.encoder.embeddings.token.weight]
    sides = {"source_vocab_size": 11, "target_vocab_size": 11, "num_encoder_layers": 1, "num_decoder_layers": 1}
    for tie, count in (("all", 1), ("target", 2), ("none", 2)):
        translator = build_model(TransformerSettings(**SIZES, **sides, tie=tie))
        found = embedding_parameters(translator)
        assert len(found) == count
        assert found[0] is translator.source_embeddings.token.weight
        assert found[-1] is translator.target_embeddings.token.weight


def test_no_table_or_a_frozen_one_is_told() -> None:
    with pytest.raises(TaskError, match="no token embeddings"):
        embedding_parameters(LstmEncoder(11, 8))
    model = bert()
    model.encoder.embeddings.requires_grad_(False)
    with pytest.raises(TaskError, match="frozen"):
        embedding_parameters(model)


@pytest.mark.slow  # two processes
def test_sharded_parameters_do_the_same(tmp_path: Path) -> None:
    environment = os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    command = [sys.executable, __file__, str(tmp_path / "store")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("checked") == PROCESSES


def whole(tensor: Tensor) -> Tensor:
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def sharded(model: nn.Module, reshard: bool = True) -> nn.Module:
    from torch.distributed.fsdp import fully_shard

    for block in model.encoder.stack.blocks:
        fully_shard(block)
    # A root that is not told to stays in one piece after a pass without a backward.
    return fully_shard(model, reshard_after_forward=True) if reshard else fully_shard(model)


def check_sharded(rank: int) -> None:
    """FGM, averages, freezing and recomputation: two processes with shards against one with everything."""
    plain, model = bert(), sharded(bert())
    checkpoint_activations(model)
    averages = [Average(one, 0.5, warmup=True) for one in (plain, model)]
    # Not Adam: it makes a step of gradients that are zero but for rounding.
    optimizers = [torch.optim.SGD(one.parameters(), lr=0.1) for one in (plain, model)]
    for _ in range(3):
        before = [whole(tensor.detach()).clone() for tensor in model.parameters()]
        adversarial(plain, [IDS], 0.5)
        adversarial(model, [IDS[rank::PROCESSES]], 0.5, scale=PROCESSES)  # gradients of processes are averaged
        for one, two in zip(before, model.parameters(), strict=True):
            assert torch.equal(one, whole(two.detach()))
        expected, found = gradients(plain), gradients(model)
        assert expected.keys() == found.keys()
        for name, gradient in found.items():
            torch.testing.assert_close(gradient, expected[name], rtol=1e-4, atol=1e-5, msg=name)
        for one, optimizer, average in zip((plain, model), optimizers, averages, strict=True):
            drop_gradients(one, frozen_names(one, FreezeSettings(layers=1)))
            optimizer.step()
            optimizer.zero_grad()
            average.update(one)
    check_average(averages, model)


def check_average(averages: list[Average], model: nn.Module) -> None:
    expected, found = (average.tensors() for average in averages)
    assert expected.keys() == found.keys()
    for name, tensor in found.items():
        assert name == "updates" or hasattr(tensor, "to_local")
        torch.testing.assert_close(whole(tensor), expected[name], rtol=1e-4, atol=1e-5)
    stored = {name: whole(tensor).clone() for name, tensor in found.items()}
    restored = Average(model, 0.5, warmup=True)
    restored.restore(stored)
    for name, tensor in restored.tensors().items():
        assert torch.equal(whole(tensor), stored[name])
    before = {name: whole(one.detach()).clone() for name, one in model.named_parameters()}
    live = said(model)
    with restored.standing_in(model):
        for name, one in model.named_parameters():
            assert torch.equal(whole(one.detach()), stored[f"weights.{name}"])
        assert said(model) != live
    for name, one in model.named_parameters():
        assert torch.equal(whole(one.detach()), before[name])
    assert said(model) == live


def said(model: nn.Module) -> float:
    with torch.no_grad():
        return float(loss(model, IDS))


def check_unsharded() -> None:
    """Averages that would stay behind in the model are noticed."""
    model = sharded(bert(), reshard=False)
    average = Average(model, 0.5)
    with pytest.raises(RuntimeError, match="left unsharded"), average.standing_in(model):
        said(model)


def check(rank: int, store: str) -> None:
    torch.distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=PROCESSES)
    check_sharded(rank)
    check_unsharded()
    torch.distributed.destroy_process_group()
    print("checked", flush=True)


if __name__ == "__main__":
    # Imported once, before there are two of us: these take most of the time.
    import torch._dynamo
    import torch.distributed.fsdp
    import torch.multiprocessing

    torch.multiprocessing.start_processes(check, (sys.argv[1],), nprocs=PROCESSES, start_method="fork")
