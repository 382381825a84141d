"""The toy run in several processes, and everything that may happen to them.

torchrun … distributed_toy.py JOBS.json

JOBS.json is a list of jobs, done one after another by all processes:

    {"gradients": FILE, "settings": {…}, …}   the gradients of one update, and the losses, into a safetensors file
    {"fit": RUN, "settings": {…}, …}          a run, and what its evaluations and its model say into RUN.RANK.json
    {"refuse": RUN, "settings": {…}, …}       the sentence with which such settings are refused, into RUN.RANK.json

`settings` are changes of the toy's. `trouble` says what goes wrong, where and when; it goes wrong once.
"""

from __future__ import annotations

import copy
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

import toy
from unmask.errors import DataError, Stopped, UnmaskError
from unmask.models.init import build_model
from unmask.nn.batch import Batch
from unmask.train import checkpoint, loop
from unmask.train.loop import fit
from unmask.train.settings import TrainSettings
from unmask.train.step import Means, Part, run_window, share_of, window_counts
from unmask.train.world import World, joined, joint_learner, model_of, whole

Job = Mapping[str, Any]


class Uneven:
    """Micro-batches of one to five sentences."""

    def __getitem__(self, number: int) -> toy.MaskedBatch:
        return toy.Sentences(1 + number * 7 % 5)[number]


class OnlyMasks(toy.GuessMasks):
    """Does not use BERT's pooler."""

    def counts(self, batch: toy.MaskedBatch) -> dict[str, int]:
        return {"masked": len(batch.rows)}

    def sums(self, model: nn.Module, batch: toy.MaskedBatch) -> dict[str, Tensor]:
        return {"masked": super().sums(model, batch)["masked"]}


class NowAndThen(toy.GuessMasks):
    """Uses BERT's pooler in some micro-batches only."""

    def counts(self, batch: toy.MaskedBatch) -> dict[str, int]:
        found = super().counts(batch)
        return found if len(batch.rows) % 2 else {"masked": found["masked"]}

    def sums(self, model: nn.Module, batch: toy.MaskedBatch) -> dict[str, Tensor]:
        found = super().sums(model, batch)
        return found if len(batch.rows) % 2 else {"masked": found["masked"]}


class Twice(toy.GuessMasks):
    """Two passes with other dropout, as R-Drop makes them."""

    def sums(self, model: nn.Module, batch: toy.MaskedBatch) -> dict[str, Tensor]:
        one, two = super().sums(model, batch), super().sums(model, batch)
        return {name: one[name] + 0.5 * two[name] for name in one}


TASKS = {"both": toy.GuessMasks, "masks": OnlyMasks, "sometimes": NowAndThen, "twice": Twice}


class Judge:
    """Evaluates on `size` batches and looks whether it got each of them once."""

    score = "loss"
    lower_is_better = True

    def __init__(self, size: int) -> None:
        self.size = size
        self.said: list[dict[str, float]] = []

    def __len__(self) -> int:
        return self.size

    def measure(self, model: nn.Module, number: int) -> dict[str, float]:
        assert not model.training
        assert not torch.is_grad_enabled()
        batch = Uneven()[10**4 + number]
        logits = model.masked_token_logits(model(batch.batch).sequence[batch.rows])
        loss = F.cross_entropy(logits, batch.targets, reduction="sum")
        return {"number": number, "loss": float(loss), "masked": len(batch.rows)}

    def conclude(self, results: Sequence[Mapping[str, float]]) -> dict[str, float]:
        assert [one["number"] for one in results] == list(range(self.size))
        self.said.append({"loss": sum(one["loss"] for one in results) / sum(one["masked"] for one in results)})
        return self.said[-1]

    def remarks(self, model: nn.Module) -> list[str]:
        return [str(tuple(model(Batch.of([[5, 6, toy.MASK]])).sequence.shape))]


class Trouble:
    """Something that goes wrong in one of the processes when micro-batch `number` or a save is due."""

    def __init__(self, source: Any, what: str, rank: int, number: int, once: str) -> None:
        self.source, self.what, self.rank, self.number, self.once = source, what, rank, number, Path(once)
        self.process = os.getpid()  # not that of a worker, which may be the one that asks

    def __getitem__(self, number: int) -> Any:
        if number >= self.number and int(os.environ.get("RANK", "0")) == self.rank and not self.once.exists():
            self.once.write_text(str(os.getpid()))
            match self.what:
                case "killed":
                    os.kill(self.process, signal.SIGKILL)
                case "terminated":
                    os.kill(self.process, signal.SIGTERM)
                case "data":
                    self.once.unlink()  # a wrong file stays wrong
                    raise DataError("no label in this line", file="train.tsv", line=7)
                case "killed while saving":
                    threading.Thread(target=self._killed_while_saving, daemon=True).start()
        return self.source[number]

    def _killed_while_saving(self) -> None:
        """Kills this process when a draft of a checkpoint is there (this one's or, if it waits, the first one's)."""
        while not list(self.once.parent.glob("run/.checkpoint-*.draft")):
            time.sleep(0.0005)
        os.kill(os.getpid(), signal.SIGKILL)


def slowly(seconds: float) -> None:
    """Makes saving take so long that something can happen meanwhile."""
    real = checkpoint.write_weights

    def write(folder: Path, tensors: Mapping[str, Tensor]) -> None:
        time.sleep(seconds)
        real(folder, tensors)

    checkpoint.write_weights = write  # type: ignore[assignment]


def settings_of(job: Job) -> TrainSettings:
    return TrainSettings.model_validate(toy.settings(20).model_dump() | job.get("settings", {}))


def toy_of(job: Job) -> nn.Module:
    changes = job.get("model", {})
    model = toy.model()
    if changes:
        model = build_model(type(model.settings).model_validate(model.settings.model_dump() | changes), seed=1)
    return model.double() if job.get("double") else model


def gradients_of(job: Job) -> dict[str, Tensor]:
    """The whole gradients of the first update, as one process or several compute them."""
    settings = settings_of(job)
    world = World.present(settings.engine)
    torch.set_default_dtype(torch.float64 if job.get("double") else torch.float32)
    learner = joint_learner(toy_of(job), world)
    model = model_of(learner)
    numbers = range(job.get("start", 0), job.get("start", 0) + settings.accumulate)
    window = [Part(number, Uneven()[number], counts) for number, counts in share_of(numbers, world)]
    means = Means(TASKS[job.get("task", "both")](), world, settings.seed, precision=settings.precision)
    synced: list[bool] = []
    learner.register_forward_pre_hook(
        lambda learner, inputs: synced.append(getattr(learner, "require_backward_grad_sync", True))
    )
    losses = run_window(learner.train(), window, window_counts(window, means), means)
    torch.set_default_dtype(torch.float32)
    found = {f"gradient.{name}": whole(p.grad) for name, p in model.named_parameters() if p.grad is not None}
    found |= {f"loss.{name}": torch.tensor(value, dtype=torch.float64) for name, value in losses.items()}
    return found | {"held": held_by_each(model, world), "synced": torch.tensor(synced)}


def held_by_each(model: nn.Module, world: World) -> Tensor:
    """Which part of a model's parameters each process holds."""
    own = sum((p.to_local() if isinstance(p, DTensor) else p).numel() for p in model.parameters())
    whole_size = sum(p.numel() for p in model.parameters())
    return torch.tensor([one["own"] / whole_size for (one,) in world.gather([{"own": own}])])


def fitted(job: Job) -> dict[str, Any]:
    """Train; what evaluations said, and what the trained model says alone in each process."""
    model, judge = toy_of(job), Judge(job.get("evaluate", 0))
    source: Any = Uneven()
    if "trouble" in job:
        source = Trouble(source, **job["trouble"])
    if "slowly" in job:
        slowly(job["slowly"])
    run = Path(job["fit"])
    task = TASKS[job.get("task", "both")]()
    position = fit(model, task, source, settings_of(job), run, judge if len(judge) else None)
    model = copy.deepcopy(model.to(torch.float64)).eval()  # an ordinary model again
    with torch.no_grad():
        alone = float(model(Batch.of([[5, 6, 7]])).sequence.square().sum())
    return {"said": judge.said, "alone": alone, "position": position.model_dump(mode="json")}


def refused(job: Job) -> dict[str, Any]:
    # Machines that share no disk each see a folder of their own.
    run = Path(f"{job['refuse']}-{World.present().rank}" if job.get("apart") else job["refuse"])
    try:
        fit(toy_of(job), TASKS[job.get("task", "both")](), Uneven(), settings_of(job), run)
    except UnmaskError as error:
        return {"error": type(error).__name__, "says": str(error)}
    return {}


def work(jobs: Sequence[Job], world: World) -> None:
    for job in jobs:
        if "gradients" in job:
            found = gradients_of(job)
            if world.is_first:
                save_file({name: tensor.contiguous() for name, tensor in found.items()}, job["gradients"])
        else:
            said = fitted(job) if "fit" in job else refused(job)
            name = job["fit"] if "fit" in job else job["refuse"]
            Path(f"{name}.{world.rank}.json").write_text(json.dumps(said))


def main(path: str) -> int:
    """As the command line does: one sentence and an exit code."""
    torch.set_num_threads(1)
    loop.plot_curves = lambda run: None  # type: ignore[assignment]  # takes longer than all the rest
    try:
        with joined() as world:
            work(json.loads(Path(path).read_text()), world)
    except UnmaskError as error:
        print(f"unmask: {error}", file=sys.stderr, flush=True)
        return error.exit_code
    except Stopped as stopped:
        print("unmask: stopped", file=sys.stderr, flush=True)
        return stopped.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
