"""Weights as the kernels read them: panels of 64 columns, fp32 or int8 with a scale a column."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unmask.engine.binding import CMatrix, CNorm, address

#: Columns that are computed together, and values of a vector register. As in product.h and vector.h.
PANEL, LANES = 64, 16  # heads and pasts have whole vectors: of 16 numbers with AVX-512, of 8 elsewhere
#: Values that one int8 instruction multiplies and sums.
FOUR = 4


def whole(count: int, unit: int) -> int:
    """At least so many, in whole units."""
    return -(-count // unit) * unit


@dataclass(frozen=True)
class Packed:
    """A linear map: y = x Wᵀ + b."""

    weights: Tensor
    scales: Tensor | None
    sums: Tensor | None
    bias: Tensor
    inputs: int
    outputs: int

    def as_c(self) -> CMatrix:
        """For the kernels; valid while this object lives."""
        addresses = [address(tensor) for tensor in (self.weights, self.scales, self.sums, self.bias)]
        return CMatrix(*addresses, self.inputs, self.outputs)


def pack(weight: Tensor, bias: Tensor | None, *, int8: bool) -> Packed:
    """From W (outputs, inputs) and b (outputs,); a panel at a time, so that no second copy of W is ever held."""
    outputs, inputs = weight.shape
    full_outputs, full_inputs = whole(outputs, PANEL), whole(inputs, FOUR)
    offset = torch.zeros(full_outputs)
    if bias is not None:
        offset[:outputs] = bias
    rows = torch.zeros(PANEL, full_inputs)  # zeros stay behind the inputs
    if not int8:
        panels = torch.empty(full_outputs // PANEL, full_inputs, PANEL)
        for number, panel in enumerate(panels):
            panel.copy_(_panel_of(weight, number, rows).T)
        return Packed(panels, None, None, offset, full_inputs, full_outputs)
    scales, sums = torch.empty(full_outputs), torch.empty(full_outputs, dtype=torch.int32)
    quantised = torch.empty(full_outputs // PANEL, full_inputs // FOUR, PANEL, FOUR, dtype=torch.int8)
    for number, panel in enumerate(quantised):
        here = slice(number * PANEL, (number + 1) * PANEL)
        rows = _panel_of(weight, number, rows)
        scales[here] = rows.abs().amax(1) / 127
        whole_numbers = rows.div(scales[here].clamp(min=torch.finfo(torch.float32).tiny)[:, None]).round_()
        panel.copy_(whole_numbers.view(PANEL, -1, FOUR).transpose(0, 1))
        sums[here] = whole_numbers.sum(1) * 128
    return Packed(quantised, scales, sums, offset, full_inputs, full_outputs)


def _panel_of(weight: Tensor, number: int, rows: Tensor) -> Tensor:
    """The panel's rows of W, written into `rows`; zeros where W has ended."""
    found = weight[number * PANEL : (number + 1) * PANEL]
    rows[: len(found), : weight.shape[1]] = found
    rows[len(found) :] = 0
    return rows


@dataclass(frozen=True)
class PackedNorm:
    """LayerNorm's gain and shift, zeros behind them up to whole panels."""

    weight: Tensor | None
    bias: Tensor | None
    epsilon: float

    def as_c(self) -> CNorm:
        """For the kernels; valid while this object lives."""
        return CNorm(address(self.weight), address(self.bias), self.epsilon)


NO_NORM = PackedNorm(None, None, 0.0)


def pack_norm(norm: nn.Module) -> PackedNorm:
    """A LayerNorm; an identity is no norm."""
    if not isinstance(norm, nn.LayerNorm):
        return NO_NORM
    size = norm.normalized_shape[0]
    room = (0, whole(size, PANEL) - size)
    weight = F.pad(norm.weight.detach().float(), room).contiguous()
    bias = torch.zeros(size) if norm.bias is None else norm.bias.detach().float()
    return PackedNorm(weight, F.pad(bias, room).contiguous(), norm.eps)


def heads_apart(weight: Tensor, heads: int, size: int, full_size: int, *, dim: int) -> Tensor:
    """W with each head's `size` rows (dim 0) or columns (dim 1) filled up with zeros to `full_size`."""
    if size == full_size:
        return weight
    split = weight.unflatten(dim, (heads, size))
    room = [0, 0] * (split.dim() - dim - 2) + [0, full_size - size]
    return F.pad(split, room).flatten(dim, dim + 1)
