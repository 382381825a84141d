"""The weights of a model folder (safetensors): described without loading, read lazily, never trusted.

Pickles (`pytorch_model.bin`, `*.pt`, `*.ckpt`) are never opened: reading one runs whatever its author put in it.
"""

from __future__ import annotations

import difflib
import json
import shlex
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

import torch

from unmask.errors import ModelError
from unmask.models.weights_file import (
    INDEX_FILE,
    MAX_HEADER_BYTES,
    SINGLE_FILE,
    SafetensorsFile,
    first_line,
)
from unmask.models.weights_write import write_weights

__all__ = ["INDEX_FILE", "SINGLE_FILE", "WeightFolder", "WeightSource", "read_weights", "write_weights"]

_PICKLES = ("pytorch_model*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl", "*.bin")


class WeightSource(Protocol):
    """Anything that has named tensors: a safetensors folder, a TensorFlow checkpoint."""

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """The shape of each tensor, known without loading it."""

    @property
    def dtypes(self) -> Mapping[str, torch.dtype]:
        """The type of each tensor's numbers."""

    def tensor(self, name: str) -> torch.Tensor:
        """Load one tensor."""


class WeightFolder:
    """The tensors of a model folder: only names are held, each tensor is mapped from its file when asked for.

    A tensor stays valid after `close` (it holds its own mapping). Writing into one never reaches the file.
    """

    def __init__(self, folder: Path, files: Mapping[str, SafetensorsFile], places: Mapping[str, str]) -> None:
        self.folder = folder
        self._files = dict(files)
        self._places = dict(places)
        self.shapes = {name: files[file].shapes[name] for name, file in places.items()}
        self.dtypes = {name: files[file].dtypes[name] for name, file in places.items()}

    def tensor(self, name: str) -> torch.Tensor:
        """One tensor, memory-mapped; ModelError if it holds NaN or infinity."""
        if name not in self._places:
            near = difflib.get_close_matches(name, self._places, n=1)
            hint = f"; the nearest name is {near[0]}" if near else ""
            raise ModelError(f"{self.folder}: holds no tensor {name}{hint}")
        return self._files[self._places[name]].tensor(name)

    def close(self) -> None:
        """Let go of the files; tensors taken before stay valid."""
        for file in self._files.values():
            file.close()
        self._files, self._places = {}, {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def read_weights(folder: Path) -> WeightFolder:
    """The weights in `model.safetensors`, or in the shards that `model.safetensors.index.json` names."""
    if not folder.is_dir():
        raise ModelError(f"{folder}: no such folder; give a folder that holds config.json and {SINGLE_FILE}")
    if (folder / SINGLE_FILE).is_file():
        file = SafetensorsFile(folder / SINGLE_FILE)
        return WeightFolder(folder, {SINGLE_FILE: file}, dict.fromkeys(file.shapes, SINGLE_FILE))
    if (folder / INDEX_FILE).is_file():
        return _read_shards(folder)
    raise ModelError(_nothing_to_read(folder))


def _read_shards(folder: Path) -> WeightFolder:
    index = folder / INDEX_FILE
    places = _weight_map(index)
    files: dict[str, SafetensorsFile] = {}
    for shard in sorted(set(places.values())):
        if not (folder / shard).is_file():
            raise ModelError(f"{index}: names the shard {shard}, which is not in the folder; fetch it again")
        files[shard] = SafetensorsFile(folder / shard)
    for name, shard in places.items():
        if name not in files[shard].shapes:
            raise ModelError(f"{index}: says that {name[:60]!r} is in {shard}, which lacks it; fetch both again")
    return WeightFolder(folder, files, places)


def _weight_map(index: Path) -> dict[str, str]:
    """Tensor name → shard, from an index whose every value is checked."""
    if index.stat().st_size > MAX_HEADER_BYTES:
        raise ModelError(f"{index}: larger than the allowed {MAX_HEADER_BYTES:,} bytes")
    try:
        places = json.loads(index.read_bytes())["weight_map"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ModelError(f"{index}: not a JSON index with a weight_map ({first_line(error)})") from None
    if not isinstance(places, dict) or not places:
        raise ModelError(f"{index}: weight_map is empty or no map; it must give each tensor's file")
    for name, shard in places.items():
        # Only plain names: anything with a path in it could reach a file outside the folder.
        if not isinstance(shard, str) or not shard.endswith(".safetensors") or set(shard) & set("/\\:\0"):
            raise ModelError(f"{index}: {name[:60]!r} is placed in {shard!r}, not in a plain *.safetensors file name")
    return places


def _nothing_to_read(folder: Path) -> str:
    """Why there is nothing to read, and the way out."""
    pickle = next((path for pattern in _PICKLES for path in sorted(folder.glob(pattern))), None)
    if pickle is None:
        return (
            f"{folder}: holds no weights; looked for {SINGLE_FILE} and {INDEX_FILE}, so give a folder that has "
            "one of them or fetch the model again"
        )
    return (
        f"{folder}: holds only {pickle.name}, a pickle that can run code when opened and is never loaded; look "
        f"for a version with {SINGLE_FILE} on the Hub, or convert it in an isolated environment with: "
        f"{_conversion(pickle)}"
    )


def _conversion(pickle: Path) -> str:
    """A command that turns a pickle into safetensors without running what is in it."""
    target = pickle.with_name(SINGLE_FILE)
    script = (
        "import torch; from safetensors.torch import save_file; "
        f"w = torch.load({str(pickle)!r}, map_location='cpu', weights_only=True); "
        "save_file({k: v.clone().contiguous() for k, v in w.items()}, "
        f"{str(target)!r}, metadata={{'format': 'pt'}})"
    )
    return f"python -c {shlex.quote(script)}"
