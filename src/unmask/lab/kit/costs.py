"""What a computation costs: operations by torch's own counter, and one thread to time it with."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from unmask.nn.attend import attention_backend
from unmask.nn.attention import MultiHeadAttention
from unmask.nn.build import build_attention
from unmask.nn.layout import Layout
from unmask.nn.plan import AttentionPlan
from unmask.nn.positions import NoPositions
from unmask.nn.settings import LayerSettings


def attention_of(
    hidden: int, heads: int, head_size: int | None = None, score: str = "scaled_dot"
) -> MultiHeadAttention:
    """One attention without dropout, with torch's first values."""
    sizes = {"hidden_size": hidden, "num_heads": heads, "head_size": head_size, "ffn_size": 4 * hidden}
    settings = LayerSettings.parse({**sizes, "score": score, "dropout": {"attention": 0.0}})
    torch.manual_seed(0)
    return build_attention(settings, heads, NoPositions()).eval()


def rows_of(tokens: int, hidden: int) -> tuple[Tensor, AttentionPlan]:
    """Random rows of one sequence, and the plan with which they attend to themselves."""
    layout = Layout.ragged([tokens])
    rows = torch.randn(tokens, hidden, generator=torch.Generator().manual_seed(1))
    return rows, AttentionPlan.between(layout, layout)


@torch.no_grad()
def operations(attention: MultiHeadAttention, tokens: int) -> dict[str, int]:
    """Operations of an attention that follows the formula: product for scores, product for the mean, projections."""
    rows, plan = rows_of(tokens, attention.output.out_features)
    with attention_backend(attention, "reference"), FlopCounterMode(display=False) as counter:
        attention(rows, plan)
    counts: dict[str, dict[Any, int]] = counter.get_flop_counts()
    scores = _of(counts, "attend.score")
    mean = _of(counts, "attend") - scores
    return {"scores": scores, "mean": mean, "projections": counter.get_total_flops() - scores - mean}


def _of(counts: dict[str, dict[Any, int]], name: str) -> int:
    """Those of one module, by the end of its name."""
    return sum(sum(found.values()) for module, found in counts.items() if module.endswith(f".{name}"))


def counted(run: Callable[[], object]) -> int:
    """All operations of something."""
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        run()
    return int(counter.get_total_flops())


def matrix_parameters(module: nn.Module) -> int:
    """Numbers in matrices; biases not counted."""
    return sum(parameter.numel() for parameter in module.parameters() if parameter.dim() > 1)


@contextmanager
def one_thread() -> Iterator[None]:
    """Within the block torch computes with one thread."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
