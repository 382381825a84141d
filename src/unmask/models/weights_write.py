"""Writing tensors as safetensors: atomic, sharded when large, the same bytes for the same tensors."""

from __future__ import annotations

import errno
import json
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file

from unmask.errors import FetchError, ModelError
from unmask.models.weights_file import DTYPES, INDEX_FILE, SINGLE_FILE, first_line
from unmask.storage import atomic_write, disk_trouble, replacing

MAX_SHARD_BYTES = 5 * 10**9


def write_weights(
    folder: Path,
    tensors: Mapping[str, torch.Tensor],
    *,
    max_shard_bytes: int = MAX_SHARD_BYTES,
    metadata: Mapping[str, str] | None = None,
) -> None:
    """Write tensors into a model folder, replacing the weights that are there.

    One `model.safetensors`, or shards of at most `max_shard_bytes` (a larger tensor has a shard of its own) with
    the index written last. A crash leaves the old weights, the new ones, or, when shards are replaced by as many
    shards, a folder without an index: never a mixture that loads.
    """
    for name, tensor in tensors.items():
        if tensor.dtype not in DTYPES.values():
            raise ModelError(f"{folder}: tensor {name} has dtype {tensor.dtype}, which the weight file cannot hold")
    shards = _split(tensors, max_shard_bytes)
    stamp = dict(metadata) if metadata is not None else {"format": "pt"}
    with disk_trouble(folder / SINGLE_FILE):
        folder.mkdir(parents=True, exist_ok=True)
        if len(shards) == 1:
            _write_file(folder / SINGLE_FILE, shards[0], stamp)
            _remove_old(folder, keep={SINGLE_FILE})
            return
        names = [f"model-{i:05d}-of-{len(shards):05d}.safetensors" for i in range(1, len(shards) + 1)]
        if any((folder / name).exists() for name in names):
            # Overwriting shards under a living index would let a crash leave two models mixed.
            (folder / INDEX_FILE).unlink(missing_ok=True)
        for name, shard in zip(names, shards, strict=True):
            _write_file(folder / name, shard, stamp)
        places = {tensor: name for name, shard in zip(names, shards, strict=True) for tensor in shard}
        total = sum(tensor.nbytes for tensor in tensors.values())
        index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(places.items()))}
        atomic_write(folder / INDEX_FILE, (json.dumps(index, indent=2) + "\n").encode())
        _remove_old(folder, keep={INDEX_FILE, *names})


def _split(tensors: Mapping[str, torch.Tensor], limit: int) -> list[dict[str, torch.Tensor]]:
    """Shards filled in the order of names, so that the order of insertion does not change the files."""
    shards: list[dict[str, torch.Tensor]] = [{}]
    filled = 0
    for name in sorted(tensors):
        size = tensors[name].nbytes
        if shards[-1] and filled + size > limit:
            shards.append({})
            filled = 0
        shards[-1][name] = tensors[name]
        filled += size
    return shards


def _write_file(path: Path, tensors: Mapping[str, torch.Tensor], metadata: dict[str, str]) -> None:
    with replacing(path) as temporary:
        mode = temporary.stat().st_mode
        try:
            save_file(_separate(tensors), temporary, metadata=metadata)
            temporary.chmod(mode)  # the library's own file may be read by nobody else
        except SafetensorError as error:
            # The library hides the system's error number in its text.
            raise _as_disk_error(error, path) from error


def _separate(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Contiguous CPU tensors; tied ones, which share memory, become copies, as the format requires."""
    separate = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    end = 0
    for name, tensor in sorted(separate.items(), key=lambda item: (item[1].data_ptr(), item[0])):
        # Tensors mapped from one file share a storage without overlapping: those are written as they are.
        if tensor.data_ptr() < end:
            separate[name] = tensor.clone()
        end = max(end, tensor.data_ptr() + tensor.nbytes)
    return separate


def _as_disk_error(error: SafetensorError, path: Path) -> Exception:
    text = str(error)
    for number in (errno.ENOSPC, errno.EFBIG, errno.EDQUOT, errno.EACCES, errno.EROFS):
        if f"os error {number}" in text:
            return OSError(number, text)
    return FetchError(f"{path}: could not be written ({first_line(error)})")


def _remove_old(folder: Path, keep: set[str]) -> None:
    """Remove earlier weights, which a reader would otherwise prefer or find beside the new ones."""
    old = [folder / SINGLE_FILE, folder / INDEX_FILE, *folder.glob("model-*-of-*.safetensors")]
    for path in old:
        if path.name not in keep:
            path.unlink(missing_ok=True)
