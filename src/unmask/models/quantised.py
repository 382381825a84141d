"""Weights stored as int8: one scale a row, so that reading them back is one product.

A matrix W becomes whole numbers Q between -127 and 127 and scales s, one for each row (an output of a linear map, a
token of an embedding), with W ≈ s · Q. The largest number of each row is 127, so quantising what was read back gives
the very same Q: the int8 engine, which quantises rows in the same way, computes with exactly what the file holds.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import torch
from torch import Tensor

from unmask.errors import ModelError
from unmask.models.weights import WeightSource

#: How weights are kept on disk. They are fp32 again when they have been read.
Storage = Literal["fp32", "fp16", "int8"]

#: A matrix's scales stand beside it under its name and this.
SCALE = ".scale"
#: Smaller matrices (a classifier, the table of two segments) are kept as they are: nothing would be saved.
LEAST = 1024
_FP16_MAX = torch.finfo(torch.float16).max


def quantise(weight: Tensor) -> tuple[Tensor, Tensor]:
    """(rows, columns) → int8 numbers and the (rows,) scales they are to be multiplied by."""
    weight = weight.detach().float()
    scales = weight.abs().amax(1) / 127
    numbers = (weight / scales.clamp(min=torch.finfo(torch.float32).tiny)[:, None]).round()
    return numbers.clamp(-127, 127).to(torch.int8), scales


def dequantise(numbers: Tensor, scales: Tensor) -> Tensor:
    """What int8 numbers and their scales stand for, in fp32."""
    return numbers.float() * scales[:, None]


def is_quantised(tensor: Tensor) -> bool:
    """Whether int8 storage changes a tensor: matrices that are worth it."""
    return tensor.dim() == 2 and tensor.is_floating_point() and tensor.numel() >= LEAST


def stored(tensors: Mapping[str, Tensor], storage: Storage) -> dict[str, Tensor]:
    """The tensors of a folder in the form they are written in."""
    match storage:
        case "fp32":
            return dict(tensors)
        case "fp16":
            return {name: _half(name, tensor) for name, tensor in tensors.items()}
        case "int8":
            found: dict[str, Tensor] = {}
            for name, tensor in tensors.items():
                if is_quantised(tensor):
                    found[name], found[name + SCALE] = quantise(tensor)
                else:
                    found[name] = tensor
            return found


def _half(name: str, tensor: Tensor) -> Tensor:
    if not tensor.is_floating_point():
        return tensor
    if tensor.numel() and tensor.detach().abs().max() > _FP16_MAX:
        raise ModelError(f"tensor {name} holds numbers beyond what fp16 can hold; keep it in fp32 or int8")
    return tensor.detach().half()


class Dequantised:
    """A source whose int8 tensors are read as fp32; their scales are not seen."""

    def __init__(self, source: WeightSource, folder: object) -> None:
        self._source = source
        self._whole = {name for name, dtype in source.dtypes.items() if dtype == torch.int8}
        for name in self._whole:
            _check(source, name, folder)
        scales = {name + SCALE for name in self._whole}
        self.shapes = {name: shape for name, shape in source.shapes.items() if name not in scales}
        self.dtypes = {
            name: torch.float32 if name in self._whole else dtype
            for name, dtype in source.dtypes.items()
            if name not in scales
        }

    def tensor(self, name: str) -> Tensor:
        """One tensor."""
        found = self._source.tensor(name)
        return dequantise(found, self._source.tensor(name + SCALE)) if name in self._whole else found


def _check(source: WeightSource, name: str, folder: object) -> None:
    """ModelError for int8 numbers that nothing says the size of."""
    scale, shape = name + SCALE, source.shapes[name]
    if source.dtypes.get(scale) != torch.float32 or source.shapes[scale] != shape[:1] or len(shape) != 2:
        raise ModelError(
            f"{folder}: tensor {name} is int8 of shape {shape} but has no fp32 scale for each row ({scale}); "
            "the file is damaged or was made by another program"
        )
