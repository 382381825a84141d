"""What a TensorFlow checkpoint's index says of its variables, checked against the shards that hold them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from unmask.errors import ModelError
from unmask.models.tensorflow_table import TableError, message, read_table
from unmask.models.weights_file import sensible

# An index costs about 100 bytes a variable; BERT-large with its optimiser needs 150 kB.
_MAX_INDEX_BYTES = 4 * 2**20
_MAX_VARIABLES = 20_000
_MAX_SHARDS = 99_999
_MAX_RANK = 8

# TensorFlow's DataType numbers → how numpy sees the bytes, and what torch calls them.
TYPES: Mapping[int, tuple[str, torch.dtype]] = {
    1: ("<f4", torch.float32),
    2: ("<f8", torch.float64),
    3: ("<i4", torch.int32),
    4: ("<u1", torch.uint8),
    5: ("<i2", torch.int16),
    6: ("<i1", torch.int8),
    9: ("<i8", torch.int64),
    10: ("<u1", torch.bool),
    14: ("<i2", torch.bfloat16),  # numpy has none: the bytes are looked at as something of the same size
    19: ("<f2", torch.float16),
}


@dataclass(frozen=True)
class Variable:
    """Where one variable lies and what it is."""

    dtype: int
    shape: tuple[int, ...]
    shard: int
    offset: int
    size: int
    checksum: int


@dataclass(frozen=True)
class Bundle:
    """The variables of a checkpoint; those that hold no numbers (strings) are left out."""

    prefix: Path
    num_shards: int
    variables: Mapping[str, Variable]

    def shard(self, number: int) -> Path:
        """The file of a shard."""
        return Path(f"{self.prefix}.data-{number:05d}-of-{self.num_shards:05d}")


def read_bundle(prefix: Path) -> Bundle:
    """The bundle `<prefix>.index` describes, every number in it checked."""
    index = Path(f"{prefix}.index")
    try:
        if index.stat().st_size > _MAX_INDEX_BYTES:
            raise ModelError(f"{index}: larger than the {_MAX_INDEX_BYTES:,} bytes an index may have")
        rows = list(itertools.islice(read_table(index.read_bytes()), _MAX_VARIABLES + 1))
        if len(rows) > _MAX_VARIABLES:
            raise TableError(f"it names more than {_MAX_VARIABLES:,} variables")
        if not rows or rows[0][0] != b"":
            raise TableError("it has no header entry")
        num_shards = _header(rows[0][1])
        entries = {_name(key): _entry(value) for key, value in rows[1:]}
    except TableError as error:
        raise ModelError(f"{index}: not a sound checkpoint index, for {error}; fetch it again") from None
    except OSError as error:
        raise ModelError(f"{index}: cannot be read ({error.strerror})") from None
    bundle = Bundle(prefix, num_shards, {name: entry for name, entry in entries.items() if entry is not None})
    _check_places(bundle)
    return bundle


def _header(value: bytes) -> int:
    """The number of shards, from BundleHeaderProto."""
    fields = dict(message(value))
    if fields.get(2, 0) != 0:
        raise TableError("its numbers are big-endian, which is not supported")
    num_shards = fields.get(1, 0)
    if not isinstance(num_shards, int) or not 1 <= num_shards <= _MAX_SHARDS:
        raise TableError(f"it claims {num_shards!r} shards")
    return num_shards


def _name(key: bytes) -> str:
    name = key.decode("utf-8", errors="replace")
    if not sensible(name) or "\ufffd" in name:
        raise TableError(f"a variable has the name {key[:60]!r}")
    return name


def _entry(value: bytes) -> Variable | None:
    """A variable from BundleEntryProto; None for what holds no numbers (strings, resources)."""
    numbers = dict.fromkeys((1, 3, 4, 5, 6), 0)
    shape: tuple[int, ...] = ()
    for number, raw in message(value):
        if number == 2 and isinstance(raw, bytes):
            shape = _shape(raw)
        elif number == 7:
            raise TableError("it holds partitioned variables, which are not supported")
        elif number in numbers and isinstance(raw, int):
            numbers[number] = raw
    dtype, shard, offset, size, checksum = numbers.values()
    if dtype not in TYPES:
        return None
    if math.prod(shape) * np.dtype(TYPES[dtype][0]).itemsize != size:
        raise TableError(f"a variable of shape {shape} claims {size} bytes")
    return Variable(dtype, shape, shard, offset, size, checksum)


def _shape(raw: bytes) -> tuple[int, ...]:
    """The axes of TensorShapeProto."""
    axes = []
    for number, axis in message(raw):
        if number == 2 and isinstance(axis, bytes):
            size = dict(message(axis)).get(1, 0)
            # Negative sizes are written as numbers close to 2^64.
            if not isinstance(size, int) or size >= 2**48:
                raise TableError("a variable has an axis of impossible size")
            axes.append(size)
    if len(axes) > _MAX_RANK:
        raise TableError(f"a variable has {len(axes)} axes")
    return tuple(axes)


def _check_places(bundle: Bundle) -> None:
    """Every variable lies inside its shard and on no other one, so that reading all reads each byte once."""
    index = f"{bundle.prefix}.index"
    sizes: dict[int, int] = {}
    end, other = (0, 0), ""
    places = sorted(bundle.variables.items(), key=lambda item: (item[1].shard, item[1].offset, item[1].size))
    for name, place in places:
        path = bundle.shard(place.shard)
        if place.shard >= bundle.num_shards:
            raise ModelError(f"{index}: places {name} in shard {place.shard} of {bundle.num_shards}; fetch it again")
        if place.shard not in sizes:
            if not path.is_file():
                raise ModelError(f"{path}: missing, but the index places {name} in it; fetch it again")
            sizes[place.shard] = path.stat().st_size
        if place.offset + place.size > sizes[place.shard]:
            raise ModelError(
                f"{path}: is {sizes[place.shard]:,} bytes long, but {name} should end at byte "
                f"{place.offset + place.size:,}, so it is cut off; fetch it again"
            )
        if (place.shard, place.offset) < end:
            raise ModelError(f"{index}: {name} and {other} claim the same bytes; fetch it again")
        end, other = (place.shard, place.offset + place.size), name
