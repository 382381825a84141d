"""AdamW with BERT's parameter groups, and its state as plain named tensors."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any

import torch
from pydantic import Field
from torch import Tensor, nn

from unmask.config import Settings
from unmask.errors import ModelError
from unmask.train.world import part_like

_NORMS = (nn.LayerNorm, nn.RMSNorm, nn.BatchNorm1d)


class OptimizerSettings(Settings):
    """How parameters move. Defaults are BERT's for fine-tuning."""

    learning_rate: Annotated[float, Field(gt=0.0)] = 5e-5
    weight_decay: Annotated[float, Field(ge=0.0)] = 0.01
    beta1: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.9
    beta2: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.999
    eps: Annotated[float, Field(gt=0.0)] = 1e-6
    layer_decay: Annotated[float, Field(gt=0.0, le=1.0)] = 1.0  # each layer below learns this much less


def build_optimizer(model: nn.Module, settings: OptimizerSettings) -> torch.optim.AdamW:
    """AdamW over the parameters that want a gradient. Biases and norms do not decay."""
    norms = {id(p) for module in model.modules() if isinstance(module, _NORMS) for p in module.parameters()}
    depths = _depths([name for name, _ in model.named_parameters()])
    top = max(depths.values(), default=0)
    groups: dict[tuple[float, float], list[nn.Parameter]] = {}
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        is_bias = name.rpartition(".")[2].startswith("bias") or name.endswith("bias")  # an LSTM's is bias_ih_l0
        decay = 0.0 if id(parameter) in norms or is_bias else settings.weight_decay
        scale = settings.layer_decay ** (top - depths[name])
        groups.setdefault((decay, scale), []).append(parameter)
    if not groups:
        raise ModelError("every parameter of the model is frozen: there is nothing to train")
    listed: list[dict[str, Any]] = [
        {"params": members, "weight_decay": decay, "scale": scale, "lr": settings.learning_rate * scale}
        for (decay, scale), members in groups.items()
    ]
    betas = (settings.beta1, settings.beta2)
    # One pass over each tensor instead of a dozen.
    return torch.optim.AdamW(listed, lr=settings.learning_rate, betas=betas, eps=settings.eps, fused=True)


def set_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Give every group its share of a learning rate."""
    for group in optimizer.param_groups:
        group["lr"] = rate * group["scale"]


def optimizer_tensors(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The optimizer's memory of each parameter, under the parameter's name: `exp_avg.NAME`, …"""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    return {
        f"{kind}.{names[id(parameter)]}": value
        for parameter, memory in optimizer.state.items()
        for kind, value in memory.items()
    }


def restore_optimizer(model: nn.Module, optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor]) -> None:
    """Give an optimizer the memory that `optimizer_tensors` wrote down."""
    wanted = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    for name, parameter in model.named_parameters():
        memory = {
            kind: tensors[f"{kind}.{name}"].clone()
            for kind in ("step", "exp_avg", "exp_avg_sq")
            if f"{kind}.{name}" in tensors
        }
        if memory and id(parameter) in wanted:
            # The step counter is whole everywhere, and beside its parameter: the fused optimizer wants it there.
            optimizer.state[parameter] = {
                kind: value.to(parameter.device) if kind == "step" else part_like(value, parameter)
                for kind, value in memory.items()
            }


def _depths(names: list[str]) -> dict[str, int]:
    """0 for embeddings, 1 for the first block, …, and one more than the last block for what stands on them."""
    blocks = {name: int(found.group(1)) for name in names if (found := re.search(r"blocks\.(\d+)\.", name))}
    above = 2 + max(blocks.values(), default=-1)
    return {name: 1 + blocks[name] if name in blocks else 0 if "embeddings." in name else above for name in names}
