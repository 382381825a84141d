"""One safetensors file, checked as a whole before anything is taken from it.

A file from the network may lie about every number in it. The safetensors library refuses most lies; this module
bounds what the library is asked to look at, refuses the rest, and turns each refusal into one sentence.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from unmask.errors import ModelError

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"

# A header costs about 100 bytes a tensor, so this has room for 100,000; a longer one is an attack on memory.
MAX_HEADER_BYTES = 10_000_000

#: Bytes looked at together when a tensor is checked: they fit into a core's own cache.
CHECKED_AT_ONCE = 1 << 20

DTYPES: Mapping[str, torch.dtype] = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}


class SafetensorsFile:
    """Names, shapes and types of one file's tensors; a tensor is mapped from the file when asked for."""

    def __init__(self, path: Path) -> None:
        self.path = path
        length = _header_length(path)
        try:
            self._handle: Any = safe_open(path, framework="pt")
        except (SafetensorError, OSError, RuntimeError) as error:
            raise ModelError(f"{path}: not a sound safetensors file ({first_line(error)}); fetch it again") from None
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.dtypes: dict[str, torch.dtype] = {}
        self._places: dict[str, tuple[int, int]] = {}
        for name, entry in _header(path, length).items():
            if name == "__metadata__":
                continue
            if not sensible(name):
                raise ModelError(f"{path}: a tensor has the name {name[:60]!r}, which no tensor has; fetch it again")
            dtype = DTYPES.get(entry["dtype"])
            if dtype is None:
                raise ModelError(
                    f"{path}: tensor {name} has dtype {entry['dtype']}, which is not one of {', '.join(DTYPES)}"
                )
            self.shapes[name] = tuple(entry["shape"])
            self.dtypes[name] = dtype
            first, last = entry["data_offsets"]
            self._places[name] = (8 + length + first, last - first)

    def tensor(self, name: str) -> torch.Tensor:
        """One tensor, memory-mapped; ModelError if it holds NaN or infinity."""
        try:
            tensor: torch.Tensor = self._handle.get_tensor(name)
        except (SafetensorError, OSError, RuntimeError) as error:
            raise ModelError(
                f"{self.path}: tensor {name} cannot be read ({first_line(error)}); fetch it again"
            ) from None
        if tensor.is_floating_point():
            self._check(name, tensor.dtype)
        return tensor

    def _check(self, name: str, dtype: torch.dtype) -> None:
        """Read aside, not through the map: pages looked at there would count as memory, an unused embedding's too."""
        place, left = self._places[name]
        buffer = bytearray(min(left, CHECKED_AT_ONCE))
        with self.path.open("rb", buffering=0) as file:
            file.seek(place)
            while left:
                count = file.readinto(memoryview(buffer)[:left])
                if not count or count % dtype.itemsize:
                    raise ModelError(f"{self.path}: ends within tensor {name}; fetch it again")
                check_finite(torch.frombuffer(buffer, dtype=dtype, count=count // dtype.itemsize), name, self.path)
                left -= count

    def close(self) -> None:
        """Let go of the file; tensors taken before stay valid."""
        self._handle.__exit__(None, None, None)


def check_finite(tensor: torch.Tensor, name: str, path: Path) -> None:
    """ModelError if a tensor holds NaN or infinity: one such number silently spoils every answer."""
    if not tensor.is_floating_point() or tensor.numel() == 0:
        return
    # The extremes carry NaN along and, unlike a sum, cannot overflow by themselves.
    low, high = torch.aminmax(tensor)
    if not (torch.isfinite(low) and torch.isfinite(high)):
        raise ModelError(f"{path}: tensor {name} holds NaN or infinity, so the file is damaged; fetch or save it again")


def sensible(name: str) -> bool:
    """Whether a name from a file can be shown to a user: one line, of a length that can be read."""
    return 0 < len(name) <= 500 and name.isprintable()


def first_line(error: Exception) -> str:
    """The first line of a library's message, without the length of a paragraph."""
    lines = str(error).splitlines() or [type(error).__name__]
    return lines[0][:200]


def _header_length(path: Path) -> int:
    """The length the file claims for its header, held against its real size before anyone allocates it."""
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            start = file.read(8)
    except OSError as error:
        raise ModelError(f"{path}: cannot be read ({error.strerror})") from None
    if len(start) < 8:
        raise ModelError(f"{path}: only {size} bytes long, so not a safetensors file; fetch it again")
    length = int.from_bytes(start, "little")
    if length > size - 8:
        raise ModelError(
            f"{path}: claims a header of {length:,} bytes but is {size:,} bytes long, so it is cut off or no "
            "safetensors file; fetch it again"
        )
    if length > MAX_HEADER_BYTES:
        raise ModelError(f"{path}: a header of {length:,} bytes is beyond the allowed {MAX_HEADER_BYTES:,}")
    return length


def _header(path: Path, length: int) -> dict[str, Any]:
    """The header's entries. The library has proven their types, but does not notice a name given twice."""

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        entries: dict[str, Any] = {}
        for name, value in pairs:
            if name in entries:
                raise ModelError(f"{path}: names {name} twice, so it is not a sound safetensors file")
            entries[name] = value
        return entries

    with path.open("rb") as file:
        file.seek(8)
        entries: dict[str, Any] = json.loads(file.read(length), object_pairs_hook=once)
    return entries
