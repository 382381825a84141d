"""The processes that train together, by torch's own engines: DDP and FSDP2.

What is trained is the same however many there are: micro-batches are numbered over all processes, every process takes
its share of each update's, and sums are divided by the counts of all.
"""

from __future__ import annotations

import copy
import gc
import json
import os
import re
import secrets
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Literal, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import PrefixStore, Store, TCPStore  # type: ignore[attr-defined]
from torch.nn.parallel import DistributedDataParallel

from unmask.errors import FetchError, SettingsError
from unmask.models.assign import assign, named_tensors
from unmask.train.precision import Precision

Engine = Literal["ddp", "fsdp"]
T = TypeVar("T")

_LOST = re.compile(r"Connection (closed by|reset by) peer|Broken pipe|gloo/transport|NCCL communicator was aborted")


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

    def most(self, value: int) -> int:
        """The greatest of all processes' numbers."""
        if self.size == 1:
            return value
        together = torch.tensor(value, dtype=torch.int64, device=_collective_device())
        dist.all_reduce(together, dist.ReduceOp.MAX)
        return int(together)

    def first(self, value: int) -> int:
        """The number of the first process, on all of them."""
        if self.size == 1:
            return value
        together = torch.tensor(value, dtype=torch.int64, device=_collective_device())
        dist.broadcast(together, 0)
        return int(together)

    def gather(self, mine: Sequence[Mapping[str, float]]) -> list[list[dict[str, float]]]:
        """What every process holds, on every process, in their order; sent as JSON."""
        plain = [{name: float(value) for name, value in one.items()} for one in mine]
        if self.size == 1:
            return [plain]
        device = _collective_device()
        text = torch.frombuffer(bytearray(json.dumps(plain).encode()), dtype=torch.uint8)
        lengths = [torch.zeros(1, dtype=torch.int64, device=device) for _ in range(self.size)]
        dist.all_gather(lengths, torch.tensor([len(text)], device=device))
        longest = max(int(length) for length in lengths)
        padded = torch.zeros(longest, dtype=torch.uint8)
        padded[: len(text)] = text
        received = [torch.zeros(longest, dtype=torch.uint8, device=device) for _ in range(self.size)]
        dist.all_gather(received, padded.to(device))
        return [
            json.loads(bytes(one[: int(length)].cpu().numpy())) for one, length in zip(received, lengths, strict=True)
        ]

    def wait(self) -> None:
        """Until all processes are here, however long one of them prepares or writes something."""
        if self.size > 1:
            dist.barrier(_patient)


ALONE = World()
#: Torch gives up waiting after minutes, as it should where all compute the same; here one may work for all.
_patient: dist.ProcessGroup | None = None


@contextmanager
def joined() -> Iterator[World]:
    """Join the processes that torchrun started; without it, this one is alone."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        yield ALONE
        return
    missing = [name for name in ("RANK", "MASTER_ADDR", "MASTER_PORT") if name not in os.environ]
    if missing:
        raise SettingsError(f"WORLD_SIZE is set but {missing[0]} is not; start several processes with torchrun")
    with lost():
        _join()
        yield World.present()
    # After an error nothing is taken down: the others may be waiting for us, and leaving is what tells them.
    global _patient
    _patient = None  # a group that outlives the others has threads that end the process the hard way
    gc.collect()
    dist.destroy_process_group()


def _join() -> None:
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    store = _clean_store(rank, size) if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True" else None
    device = local_device()
    if device.type == "cuda":
        torch.cuda.set_device(device)
        dist.init_process_group("nccl", store=store, rank=rank, world_size=size, device_id=device)
    else:
        dist.init_process_group("gloo", store=store, rank=rank, world_size=size)
    global _patient
    _patient = dist.new_group(backend="gloo", timeout=timedelta(days=7))


def _clean_store(rank: int, size: int) -> Store:
    """A corner of torchrun's store that no earlier process has used.

    torchrun keeps one store however often it starts its processes, and who comes first would find the addresses of the
    dead there. So each says hello with a word of its own, and the first one answers with the name of a corner until all
    have heard it.
    """
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    store = TCPStore(address, port, is_master=False, timeout=timedelta(minutes=30))
    word = corner = secrets.token_hex(8)
    if rank:
        store.set(f"unmask/hello/{rank}", word)
        corner = store.get(f"unmask/answer/{word}").decode()
        store.set(f"unmask/heard/{corner}/{rank}", "yes")
    missing = [] if rank else list(range(1, size))
    while missing:
        for other in missing:
            if store.check([f"unmask/hello/{other}"]):
                word = store.get(f"unmask/hello/{other}").decode()
                store.set(f"unmask/answer/{word}", corner)
        missing = [other for other in missing if not store.check([f"unmask/heard/{corner}/{other}"])]
        time.sleep(0.01)
    return PrefixStore(f"unmask/{corner}", store)


@contextmanager
def lost() -> Iterator[None]:
    """What torch says within the block because another process is gone, in a sentence."""
    try:
        yield
    except RuntimeError as error:
        if _LOST.search(str(error)):
            raise FetchError("another process of this run has ended or is stuck; its own message says why") from error
        raise


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


def check_possible(model: nn.Module, world: World, precision: Precision, compiled: bool) -> None:
    """SettingsError for what several processes cannot do together, or not with this engine."""
    if world.size == 1:
        return
    if any(isinstance(module, nn.BatchNorm1d) for module in model.modules()):
        raise SettingsError(
            f"norm batch learns its statistics from each micro-batch in turn, which {world.size} processes cannot do; "
            "train with one process, or choose the norm layer or rms"
        )
    if world.engine == "fsdp" and compiled:
        raise SettingsError("compile and engine fsdp do not go together; use engine ddp, or set compile to false")
    if world.engine == "fsdp" and precision == "fp16":
        raise SettingsError("precision fp16 and engine fsdp do not go together; use bf16, or engine ddp")


def joint_learner(model: nn.Module, world: World) -> nn.Module:
    """The learner of this process, and in it the model that learns (`model_of`); see `give_back`."""
    if world.size == 1:
        return Learner(model)
    device = next(model.parameters()).device
    if world.engine == "fsdp":
        return _sharded(model, world, device)
    learner = Learner(model)
    # A model may have parts that a task does not use, as BERT's pooler where there are no pairs; torch would stop at
    # the second update. It also lets torch leave its buckets in their first order, without which a resumed run of three
    # or more processes would add up in another order than an unbroken one.
    learner.register_parameter("unused", nn.Parameter(torch.zeros(1, device=device)))  # or torch warns of none
    return DistributedDataParallel(learner, forward_sync_buffers=False, find_unused_parameters=True)


def model_of(learner: nn.Module) -> nn.Module:
    """The model that learns: the one given to `joint_learner`, or with FSDP2 a copy that is cut up."""
    inner = learner.module if isinstance(learner, DistributedDataParallel) else learner
    assert isinstance(inner, Learner)
    return inner.model


def give_back(learner: nn.Module, model: nn.Module) -> None:
    """Give the model that `joint_learner` was given what was learned. Every process must ask."""
    learned = model_of(learner)
    if learned is not model:
        assign(model, {name: whole(tensor.detach()) for name, tensor in named_tensors(learned).items()})


def _sharded(model: nn.Module, world: World, device: torch.device) -> nn.Module:
    """A copy of which each process keeps a part of every tensor. The model itself waits on the CPU.

    A copy, because torch cannot undo it: what was cut up cannot be moved, copied or used by one process alone.
    """
    # Not at the top: its import takes longer than torch's own.
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    learner = Learner(copy.deepcopy(model))
    model.cpu()
    for tensor in named_tensors(learner).values():  # as DDP does: all begin with the first one's values
        dist.broadcast(tensor.detach(), 0)
    mesh = init_device_mesh(device.type, (world.size,))
    for block in _separate_blocks(learner):
        fully_shard(block, mesh=mesh, reshard_after_forward=True)
    # Said outright, for torch would leave the outermost whole after an evaluation; its tensors are then other objects.
    fully_shard(learner, mesh=mesh, reshard_after_forward=True)
    return learner


def _separate_blocks(model: nn.Module) -> list[nn.Module]:
    """Blocks that share no parameter with another: FSDP2 wants all uses of a parameter in one place."""
    stacks = [getattr(module, "blocks", None) for module in model.modules()]
    blocks = [block for stack in stacks if isinstance(stack, nn.ModuleList) for block in stack]
    # How many blocks use each parameter.
    uses = Counter(id(parameter) for block in blocks for parameter in block.parameters())
    return [block for block in blocks if all(uses[id(parameter)] == 1 for parameter in block.parameters())]


@contextmanager
def syncing(learner: nn.Module, last: bool) -> Iterator[None]:
    """Forward and backward in this block add up gradients over the processes only if they are the last of an update."""
    if isinstance(learner, DistributedDataParallel) and not last:
        with learner.no_sync():
            yield
    else:
        # FSDP2 adds up every time: waiting would need room for whole gradients, which it is there to avoid.
        yield


def whole(tensor: Tensor) -> Tensor:
    """All of a tensor, wherever its parts are. Every process must ask."""
    put_together = getattr(tensor, "full_tensor", None)  # of torch's DTensor
    return tensor if put_together is None else put_together()


def part_like(full: Tensor, own: Tensor) -> Tensor:
    """The part of a whole tensor that belongs where `own` is."""
    if not hasattr(own, "placements"):
        return full.to(own.device)
    from torch.distributed.tensor import DTensor, distribute_tensor

    assert isinstance(own, DTensor)
    # Every process has the whole tensor and takes its own part: nothing is sent.
    return distribute_tensor(full.to(own.device), own.device_mesh, own.placements, src_data_rank=None)


def _collective_device() -> torch.device:
    return local_device() if dist.get_backend() == "nccl" else torch.device("cpu")


def everyone(world: World, values: Mapping[str, float]) -> dict[str, float]:
    """Named numbers added up over all processes, in their order."""
    total: dict[str, float] = {}
    for (one,) in world.gather([values]):
        for name, value in one.items():
            total[name] = total.get(name, 0.0) + value
    return total
