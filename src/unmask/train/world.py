"""The processes that train together, by torch's own engines: DDP and FSDP2.

What is trained is the same however many there are: micro-batches are numbered over all processes, every process takes
its share of each update's, and sums are divided by the counts of all.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

from unmask.errors import SettingsError

Engine = Literal["ddp", "fsdp"]
T = TypeVar("T")


@dataclass(frozen=True)
class World:
    """Who trains: one process, or number `rank` of `size`."""

    rank: int = 0
    size: int = 1
    engine: Engine = "ddp"

    @classmethod
    def present(cls, engine: Engine = "ddp") -> World:
        """The processes that were joined; this one alone if none were."""
        if not dist.is_initialized():
            return cls()
        return cls(dist.get_rank(), dist.get_world_size(), engine)

    @property
    def is_first(self) -> bool:
        """Whether this process writes files and speaks."""
        return self.rank == 0

    def total(self, values: Sequence[float]) -> list[float]:
        """Numbers added up over all processes."""
        if self.size == 1:
            return list(values)
        # On the device of the backend: NCCL knows no CPU tensors.
        together = torch.tensor(values, dtype=torch.float64, device=_collective_device())
        dist.all_reduce(together)
        return together.tolist()

    def gather(self, mine: Sequence[Mapping[str, float]]) -> list[list[dict[str, float]]]:
        """What every process holds, on every process, in their order; sent as JSON."""
        if self.size == 1:
            return [[dict(one) for one in mine]]
        device = _collective_device()
        text = torch.frombuffer(bytearray(json.dumps([dict(one) for one in mine]).encode()), dtype=torch.uint8)
        lengths = [torch.zeros(1, dtype=torch.int64, device=device) for _ in range(self.size)]
        dist.all_gather(lengths, torch.tensor([len(text)], device=device))
        longest = max(int(length) for length in lengths)
        padded = torch.zeros(longest, dtype=torch.uint8)
        padded[: len(text)] = text
        received = [torch.zeros(longest, dtype=torch.uint8, device=device) for _ in range(self.size)]
        dist.all_gather(received, padded.to(device))
        return [
            json.loads(bytes(one[: int(length)].cpu().numpy()))
            for one, length in zip(received, lengths, strict=True)
        ]

    def wait(self) -> None:
        """Until all processes are here."""
        if self.size > 1:
            dist.barrier()


@contextmanager
def joined() -> Iterator[World]:
    """Join the processes that torchrun started; without it, this one is alone."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        yield World()
        return
    missing = [name for name in ("RANK", "MASTER_ADDR", "MASTER_PORT") if name not in os.environ]
    if missing:
        raise SettingsError(f"WORLD_SIZE is set but {missing[0]} is not; start several processes with torchrun")
    device = local_device()
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    try:
        yield World.present()
    finally:
        dist.destroy_process_group()


def local_device() -> torch.device:
    """This process's own: a GPU each where there are some, else Apple's, else the CPU."""
    if torch.cuda.is_available():
        return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
    if torch.backends.mps.is_available() and int(os.environ.get("WORLD_SIZE", "1")) == 1:
        return torch.device("mps")
    return torch.device("cpu")


class Learner(nn.Module):
    """A model behind one door, so that the engines see everything that is done with it in training."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, work: Callable[[nn.Module], T]) -> T:
        """Do something with the model."""
        return work(self.model)


def joint_learner(model: nn.Module, world: World) -> nn.Module:
    """The learner of this process. With FSDP2, `model` itself is cut up: each process keeps a part of every tensor."""
    learner = Learner(model)
    if world.size == 1:
        return learner
    if world.engine == "ddp":
        return DistributedDataParallel(learner, broadcast_buffers=False)
    for module in model.modules():
        blocks = getattr(module, "blocks", None)
        for block in blocks if isinstance(blocks, nn.ModuleList) else ():
            fully_shard(block)
    fully_shard(learner)
    return learner


@contextmanager
def syncing(learner: nn.Module, last: bool) -> Iterator[None]:
    """Within the block, a backward pass adds up gradients over the processes only if it is the last of its update."""
    if isinstance(learner, DistributedDataParallel) and not last:
        with learner.no_sync():
            yield
    else:
        # FSDP2 adds up every time: waiting would need room for whole gradients, which it is there to avoid.
        yield


def whole(tensor: Tensor) -> Tensor:
    """All of a tensor, wherever its parts are. Every process must ask."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def part_like(full: Tensor, own: Tensor) -> Tensor:
    """The part of a whole tensor that belongs where `own` is."""
    if isinstance(own, DTensor):
        # Every process has the whole tensor and takes its own part: nothing is sent.
        return distribute_tensor(full.to(own.device), own.device_mesh, own.placements, src_data_rank=None)
    return full.to(own.device)


def _collective_device() -> torch.device:
    return local_device() if dist.get_backend() == "nccl" else torch.device("cpu")


def everyone(world: World, values: Mapping[str, float]) -> dict[str, Any]:
    """Named numbers added up over all processes; names must be the same everywhere."""
    return dict(zip(values, world.total(list(values.values())), strict=True))
