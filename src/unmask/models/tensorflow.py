"""Google's original BERT checkpoints (`bert_model.ckpt.*`), read without TensorFlow.

A checkpoint is an index (`tensorflow_table`, `tensorflow_bundle`) that says for each variable its type, shape, shard,
offset, size and checksum, and shards that hold nothing but numbers. Shards are memory-mapped. The checksum of every
tensor that is taken is compared (about 400 MB a second): a flipped bit in a weight would never be noticed otherwise.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from unmask.errors import ModelError
from unmask.models.tensorflow_bundle import TYPES, Bundle, read_bundle
from unmask.models.tensorflow_checksum import masked_crc32c
from unmask.models.tensorflow_names import hf_name, is_training_state
from unmask.models.weights_file import check_finite

__all__ = [
    "TensorflowCheckpoint",
    "TensorflowWeights",
    "find_checkpoint",
    "hf_name",
    "read_checkpoint",
    "read_tensorflow",
]


class TensorflowCheckpoint:
    """The variables of a checkpoint under the names TensorFlow gave them; each is read when asked for."""

    def __init__(self, bundle: Bundle) -> None:
        self.prefix = bundle.prefix
        self.shapes = {name: variable.shape for name, variable in bundle.variables.items()}
        self.dtypes = {name: TYPES[variable.dtype][1] for name, variable in bundle.variables.items()}
        self._bundle = bundle
        self._maps: dict[int, npt.NDArray[np.uint8]] = {}

    def tensor(self, name: str) -> torch.Tensor:
        """One variable, mapped from its shard, its checksum and its numbers checked."""
        variable = self._bundle.variables.get(name)
        if variable is None:
            raise ModelError(f"{self.prefix}.index: holds no variable {name}")
        layout, dtype = TYPES[variable.dtype]
        if variable.size == 0:
            return torch.empty(variable.shape, dtype=dtype)
        path = self._bundle.shard(variable.shard)
        octets = self._map(variable.shard)[variable.offset : variable.offset + variable.size]
        if octets.size != variable.size or masked_crc32c(octets) != variable.checksum:
            raise ModelError(f"{path}: the checksum of {name} does not match, so it is damaged; fetch it again")
        tensor = torch.from_numpy(octets.view(layout).reshape(variable.shape))
        tensor = tensor if tensor.dtype == dtype else tensor.view(dtype)
        check_finite(tensor, name, path)
        return tensor

    def _map(self, shard: int) -> npt.NDArray[np.uint8]:
        if shard not in self._maps:
            # Copy-on-write: torch wants memory it may write to, and the file must never change.
            self._maps[shard] = np.memmap(self._bundle.shard(shard), np.uint8, "c")
        return self._maps[shard]


class TensorflowWeights:
    """A BERT checkpoint of Google's under Hugging Face names and in their layout: a `WeightSource`.

    `ignored` lists variables that are neither BERT weights nor training state: nothing is lost silently.
    """

    def __init__(self, checkpoint: TensorflowCheckpoint) -> None:
        self.checkpoint = checkpoint
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.dtypes: dict[str, torch.dtype] = {}
        self._sources: dict[str, tuple[str, bool]] = {}
        ignored = []
        for source, shape in checkpoint.shapes.items():
            target = hf_name(source)
            if target is not None:
                name, transpose = target
                if transpose and len(shape) != 2:
                    raise ModelError(f"{checkpoint.prefix}.index: {source} has shape {shape}, not two axes")
                self._sources[name] = (source, transpose)
                self.shapes[name] = shape[::-1] if transpose else shape
                self.dtypes[name] = checkpoint.dtypes[source]
            elif not is_training_state(source):
                ignored.append(source)
        self.ignored = tuple(ignored)
        if not self._sources:
            sample = ", ".join(list(checkpoint.shapes)[:3]) or "none"
            raise ModelError(
                f"{checkpoint.prefix}.index: holds no variables named like Google's BERT (it has {sample}); only "
                "the original BERT checkpoints (bert/encoder/layer_0/...) can be read"
            )

    def tensor(self, name: str) -> torch.Tensor:
        """One tensor by its Hugging Face name, in the layout torch wants."""
        if name not in self._sources:
            raise ModelError(f"{self.checkpoint.prefix}.index: holds no variable for {name}")
        source, transpose = self._sources[name]
        tensor = self.checkpoint.tensor(source)
        return tensor.t().contiguous() if transpose else tensor


def read_tensorflow(path: Path) -> TensorflowWeights:
    """A BERT checkpoint, given its folder, its prefix (`.../bert_model.ckpt`) or its `.index` file."""
    return TensorflowWeights(read_checkpoint(path))


def read_checkpoint(path: Path) -> TensorflowCheckpoint:
    """The variables of any TensorFlow 1 checkpoint (`.index` and `.data-*` files) under their own names."""
    return TensorflowCheckpoint(read_bundle(find_checkpoint(path)))


def find_checkpoint(path: Path) -> Path:
    """The prefix of the checkpoint that `path` (folder, prefix or index file) means."""
    if path.is_dir():
        found = sorted(path.glob("*.index"))
        if not found:
            raise ModelError(f"{path}: holds no TensorFlow checkpoint; looked for bert_model.ckpt.index")
        if len(found) > 1:
            names = ", ".join(file.name for file in found[:5])
            raise ModelError(f"{path}: holds several checkpoints ({names}); give the path of one of them")
        return found[0].with_suffix("")
    if path.suffix == ".index" and path.is_file():
        return path.with_suffix("")
    if not Path(f"{path}.index").is_file():
        raise ModelError(f"{path}: no such checkpoint; there is no such folder and no file {path.name}.index")
    return path
