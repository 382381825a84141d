"""The digits that forward passes compute with: fp32, bf16, or fp16 with scaled gradients."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Literal, assert_never

import torch

from unmask.errors import SettingsError

Precision = Literal["fp32", "bf16", "fp16"]


def autocasting(device: torch.device, precision: Precision) -> AbstractContextManager[object]:
    """Within the block, products of matrices have the digits of `precision`; weights and gradients stay as they are."""
    _check(device, precision)
    match precision:
        case "fp32":
            return nullcontext()
        case "bf16":
            return torch.autocast(device.type, dtype=torch.bfloat16)
        case "fp16":
            return torch.autocast(device.type, dtype=torch.float16)
        case _:
            assert_never(precision)


def build_scaler(device: torch.device, precision: Precision) -> torch.amp.GradScaler:
    """What keeps small fp16 gradients from vanishing. For any other precision an object that does nothing.

    So a loop says `scaler.scale(loss).backward()`, `scaler.unscale_(optimizer)`, `scaler.step(optimizer)` and
    `scaler.update()` whatever the precision is.
    """
    _check(device, precision)
    return torch.amp.GradScaler(device.type, enabled=precision == "fp16")


def scaler_state(scaler: torch.amp.GradScaler) -> dict[str, float]:
    """What a scaler has learned, as plain numbers for JSON; empty for one that does nothing."""
    return scaler.state_dict()


def restore_scaler(scaler: torch.amp.GradScaler, state: Mapping[str, float]) -> None:
    """Go on from what `scaler_state` gave. A run that now has another precision starts afresh."""
    if state and scaler.is_enabled():
        scaler.load_state_dict(dict(state))


def _check(device: torch.device, precision: Precision) -> None:
    if precision == "fp16" and device.type != "cuda":
        raise SettingsError(f"precision fp16 needs a CUDA device, given {device.type}; use bf16 or fp32 there")
