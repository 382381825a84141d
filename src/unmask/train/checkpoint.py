"""All that a run needs to go on as if it had never stopped, as safetensors and JSON: no pickle.

A checkpoint is a folder `checkpoint-N` that appears complete or not at all; N is the number of updates done. Tensors
are whole in it, so that a run can go on with another number of processes.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor, nn

from unmask.config import Settings
from unmask.errors import ModelError, SettingsError
from unmask.models.assign import named_tensors
from unmask.models.weights import WeightFolder, read_weights
from unmask.models.weights_write import write_weights
from unmask.storage import atomic_write, new_folder
from unmask.train.average import Average
from unmask.train.optimizer import optimizer_tensors, restore_optimizer
from unmask.train.precision import restore_scaler, scaler_state
from unmask.train.world import ALONE, World, part_like, whole

FORMAT = 1
BEST = "best"


class Position(Settings):
    """How far a run is."""

    format: Annotated[int, Field(ge=1)] = FORMAT
    updates: Annotated[int, Field(ge=0)] = 0
    micro_batches: Annotated[int, Field(ge=0)] = 0
    best: float | None = None  # the best score so far
    best_update: int | None = None
    stale: Annotated[int, Field(ge=0)] = 0  # evaluations since then
    stopped: bool = False  # early, because it got no better
    scaler: dict[str, float] = Field(default_factory=dict)


@dataclass(frozen=True)
class Trained:
    """What moves while a model is trained."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    scaler: torch.amp.GradScaler
    average: Average | None = None


def write_checkpoint(run: Path, trained: Trained, position: Position, world: World = ALONE) -> None:
    """Write `checkpoint-N` into a run folder; Ctrl-C, a crash or a full disk leave the earlier ones as they were."""
    tensors = _model_tensors(trained.model)
    memory = optimizer_tensors(trained.model, trained.optimizer)
    tensors |= {f"optimizer.{name}": tensor for name, tensor in memory.items()}
    if trained.average is not None:
        tensors |= {f"average.{name}": tensor for name, tensor in trained.average.tensors().items()}
    tensors |= _random_state()
    position = position.replace(scaler=scaler_state(trained.scaler))
    _write(run / f"checkpoint-{position.updates}", tensors, position, world)


def write_best(run: Path, model: nn.Module, position: Position, world: World = ALONE) -> None:
    """Write the weights, as they are now, as the best ones so far."""
    _write(run / BEST, _model_tensors(model), position, world)


def read_checkpoint(folder: Path, trained: Trained) -> Position:
    """Put a model, its optimizer and the random generators back to where they were."""
    position = _read_position(folder)
    with read_weights(folder) as weights:
        _read_model(folder, weights, trained.model)
        restore_optimizer(trained.model, trained.optimizer, _under(weights, "optimizer."))
        if trained.average is not None:
            # A run that had none so far begins its average here.
            trained.average.restore(_under(weights, "average.") or Average(trained.model, 0.0).tensors())
        _restore_random_state(_under(weights, "random."))
    restore_scaler(trained.scaler, position.scaler)
    return position


def read_best(run: Path, model: nn.Module) -> bool:
    """Give a model the best weights of its run; False if none were kept."""
    folder = run / BEST
    if not (folder / "position.json").is_file():
        return False
    _read_position(folder)
    with read_weights(folder) as weights:
        _read_model(folder, weights, model)
    return True


def average_checkpoints(run: Path, model: nn.Module, count: int) -> list[int]:
    """Give a model the mean of the weights in the `count` newest checkpoints of its run; their numbers of updates."""
    found = _numbered(run)
    chosen = sorted(found)[-count:]
    sums: dict[str, Tensor] = {}
    for number in chosen:
        with read_weights(found[number]) as weights:
            _read_model(found[number], weights, model)
        for name, tensor in named_tensors(model).items():
            if tensor.is_floating_point():
                wide = tensor.detach().to(torch.float64)
                sums[name] = sums[name] + wide if name in sums else wide.clone()
    own = named_tensors(model)
    with torch.no_grad():
        for name, total in sums.items():
            own[name].copy_(total / len(chosen))
    return chosen


def newest_checkpoint(run: Path) -> Path | None:
    """The checkpoint with the most updates; None if there is none. Drafts of an interrupted save do not count."""
    found = _numbered(run)
    return found[max(found)] if found else None


def agreed_checkpoint(run: Path, world: World) -> Path | None:
    """The newest checkpoint as the first process sees it, on every process; SettingsError where one cannot see it."""
    newest = newest_checkpoint(run)
    number = world.first(-1 if newest is None else _number(newest))
    if number < 0:
        return None
    folder = run / f"checkpoint-{number}"
    blind = int(world.total([not (folder / "position.json").is_file()])[0])
    if blind:
        raise SettingsError(
            f"{folder}: {blind} of {world.size} processes do not see it; "
            "put the run folder on a disk that all machines share"
        )
    return folder


def drop_old_checkpoints(run: Path, keep: int) -> None:
    """Remove all but the newest `keep`, and drafts that a killed process left behind."""
    found = _numbered(run)
    for number in sorted(found)[:-keep]:
        shutil.rmtree(found[number])
    # A process may have been killed while it removed one.
    broken = [folder for folder in run.glob("checkpoint-*") if not (folder / "position.json").is_file()]
    for draft in (*broken, *run.glob(".checkpoint-*"), *run.glob(f".{BEST}.*")):
        shutil.rmtree(draft, ignore_errors=True)
    for file in run.glob(".*.tmp"):
        file.unlink(missing_ok=True)


def _write(target: Path, tensors: Mapping[str, Tensor], position: Position, world: World) -> None:
    """Written by the first process; the others wait, so that none runs on from what is not there."""
    full: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        # One after another, and only the first process keeps them: no device holds more than one that is whole.
        found = whole(tensor)
        if world.is_first:
            full[name] = found if found is tensor else found.cpu()
    if world.is_first:
        with new_folder(target, overwrite=True) as draft:
            write_weights(draft, full)
            atomic_write(draft / "position.json", (json.dumps(position.model_dump(mode="json")) + "\n").encode())
    world.wait()


def _model_tensors(model: nn.Module) -> dict[str, Tensor]:
    return {f"model.{name}": tensor for name, tensor in named_tensors(model).items()}


def _read_position(folder: Path) -> Position:
    position = Position.read(folder / "position.json")
    if position.format > FORMAT:
        raise ModelError(f"{folder}: written in format {position.format} by a newer unmask; this reads up to {FORMAT}")
    return position


def _read_model(folder: Path, weights: WeightFolder, model: nn.Module) -> None:
    own = named_tensors(model)
    stored = {name.removeprefix("model.") for name in weights.shapes if name.startswith("model.")}
    if stored != set(own):
        different = sorted(stored ^ set(own))
        raise ModelError(f"{folder}: belongs to another model; {len(different)} tensors differ, as {different[0]}")
    with torch.no_grad():
        for name, tensor in own.items():
            found = weights.tensor(f"model.{name}")
            if found.shape != tensor.shape:
                raise ModelError(
                    f"{folder}: {name} has shape {tuple(found.shape)} but the model's is {tuple(tensor.shape)}"
                )
            tensor.copy_(part_like(found, tensor))


def _under(weights: WeightFolder, prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): weights.tensor(name) for name in weights.shapes if name.startswith(prefix)}


def _numbered(run: Path) -> dict[int, Path]:
    folders = run.glob("checkpoint-*") if run.is_dir() else []
    named = [folder for folder in folders if re.fullmatch(r"checkpoint-\d+", folder.name)]
    return {_number(folder): folder for folder in named if (folder / "position.json").is_file()}


def _number(folder: Path) -> int:
    return int(folder.name.removeprefix("checkpoint-"))


def _random_state() -> dict[str, Tensor]:
    """Of the CPU and of this process's own GPU: to look at the others' would take memory there."""
    state = {"random.cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        state["random.cuda"] = torch.cuda.get_rng_state().cpu()
    return state


def _restore_random_state(tensors: Mapping[str, Tensor]) -> None:
    torch.set_rng_state(tensors["cpu"].clone())
    if torch.cuda.is_available() and "cuda" in tensors:
        torch.cuda.set_rng_state(tensors["cuda"].clone())
