"""A learned table of positions for texts longer than it was trained for: hierarchical positions (Su 2020).

Position i·n + j, of a table of n rows, is written with two numbers as on a clock: α u_i + (1 − α) u_j. The vectors u
follow from the demand that the first n positions stay as they are: u_i = (p_i − α p_0) / (1 − α). A model extended so
gives the same answers on short texts as before, and needs some training to make much of long ones.
"""

from __future__ import annotations

import copy

import torch
from torch import Tensor

from unmask.errors import SettingsError, TaskError
from unmask.models.bert import Bert
from unmask.nn.positions.absolute import LearnedPositions


def extend_positions(model: Bert, max_length: int, alpha: float = 0.4) -> Bert:
    """A copy of a model that reads `max_length` tokens, at most the square of what it read before."""
    positions = model.encoder.embeddings.positions
    if not isinstance(positions, LearnedPositions):
        raise TaskError(
            f"the model's positions are {model.settings.positions.kind}: only a learned table of positions is extended"
        )
    table = positions.table.weight
    old = len(table)
    if not old < max_length <= old**2:
        raise SettingsError(
            f"max_length: a table of {old:,} positions can be extended to {old + 1:,} up to {old**2:,}, "
            f"given {max_length:,}"
        )
    longer = copy.deepcopy(model)
    longer.settings = model.settings.replace(max_length=max_length)
    # Made without memory, so that nothing is drawn from anybody's generator for values that go at once.
    with torch.device("meta"):
        extended = LearnedPositions(max_length, table.shape[1])
    values = hierarchical(table.detach(), max_length, alpha)
    extended.table.weight = torch.nn.Parameter(values, requires_grad=table.requires_grad)
    longer.encoder.embeddings.positions = extended.train(model.training)
    return longer


def hierarchical(table: Tensor, length: int, alpha: float = 0.4) -> Tensor:
    """(n, H) → (length, H), length at most n²: the first n rows as they are, the others made from them."""
    if not 0 < alpha < 1 or alpha == 0.5:
        # At one half the positions i·n + j and j·n + i would be the same.
        raise SettingsError(f"alpha: must lie between 0 and 1 and not be 0.5, given {alpha}")
    basis = (table - alpha * table[:1]) / (1 - alpha)
    places = torch.arange(len(table), length, device=table.device)
    made = alpha * basis[places // len(table)] + (1 - alpha) * basis[places % len(table)]
    return torch.cat([table, made])
