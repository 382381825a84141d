"""All that a run needs to go on as if it had never stopped, as safetensors and JSON: no pickle.

A checkpoint is a folder `checkpoint-N` that appears complete or not at all; N is the number of updates done.
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
from unmask.errors import ModelError
from unmask.models.assign import named_tensors
from unmask.models.weights import read_weights
from unmask.models.weights_write import write_weights
from unmask.storage import atomic_write, new_folder
from unmask.train.optimizer import optimizer_tensors, restore_optimizer

FORMAT = 1


class Position(Settings):
    """How far a run is."""

    format: Annotated[int, Field(ge=1)] = FORMAT
    updates: Annotated[int, Field(ge=0)]
    micro_batches: Annotated[int, Field(ge=0)]
    cuda_devices: Annotated[int, Field(ge=0)] = 0


@dataclass(frozen=True)
class Trained:
    """What moves while a model is trained."""

    model: nn.Module
    optimizer: torch.optim.Optimizer


def write_checkpoint(run: Path, trained: Trained, position: Position) -> Path:
    """Write `checkpoint-N` into a run folder; Ctrl-C, a crash or a full disk leave the earlier ones as they were."""
    tensors = {f"model.{name}": tensor for name, tensor in named_tensors(trained.model).items()}
    memory = optimizer_tensors(trained.model, trained.optimizer)
    tensors |= {f"optimizer.{name}": tensor for name, tensor in memory.items()}
    tensors |= _random_state()
    target = run / f"checkpoint-{position.updates}"
    with new_folder(target, overwrite=True) as draft:
        write_weights(draft, tensors)
        atomic_write(draft / "position.json", (json.dumps(position.model_dump(mode="json")) + "\n").encode())
    return target


def read_checkpoint(folder: Path, trained: Trained) -> Position:
    """Put a model, its optimizer and the random generators back to where they were."""
    position = Position.read(folder / "position.json")
    if position.format > FORMAT:
        raise ModelError(f"{folder}: written in format {position.format} by a newer unmask; this reads up to {FORMAT}")
    with read_weights(folder) as weights:
        own = named_tensors(trained.model)
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
                tensor.copy_(found)
        memory = {
            name.removeprefix("optimizer."): weights.tensor(name)
            for name in weights.shapes
            if name.startswith("optimizer.")
        }
        restore_optimizer(trained.model, trained.optimizer, memory)
        _restore_random_state({name: weights.tensor(name) for name in weights.shapes if name.startswith("random.")})
    return position


def newest_checkpoint(run: Path) -> Path | None:
    """The checkpoint with the most updates; None if there is none. Drafts of an interrupted save do not count."""
    found = _numbered(run)
    return found[max(found)] if found else None


def drop_old_checkpoints(run: Path, keep: int) -> None:
    """Remove all but the newest `keep`."""
    found = _numbered(run)
    for number in sorted(found)[:-keep]:
        shutil.rmtree(found[number])


def _numbered(run: Path) -> dict[int, Path]:
    folders = run.glob("checkpoint-*") if run.is_dir() else []
    matches = ((re.fullmatch(r"checkpoint-(\d+)", folder.name), folder) for folder in folders)
    return {int(match.group(1)): folder for match, folder in matches if match and (folder / "position.json").is_file()}


def _random_state() -> dict[str, Tensor]:
    state = {"random.cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        state |= {f"random.cuda.{i}": one.cpu() for i, one in enumerate(torch.cuda.get_rng_state_all())}
    return state


def _restore_random_state(tensors: Mapping[str, Tensor]) -> None:
    torch.set_rng_state(tensors["random.cpu"].clone())
    if torch.cuda.is_available():
        for i in range(torch.cuda.device_count()):
            if f"random.cuda.{i}" in tensors:
                torch.cuda.set_rng_state(tensors[f"random.cuda.{i}"].clone(), i)
