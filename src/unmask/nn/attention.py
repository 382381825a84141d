"""Multi-head attention, with its projections as a part handed in."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unmask.nn.attend import Attend
from unmask.nn.branches import Cells, StepPlan, whole_registers
from unmask.nn.masks import EVERYTHING, Mask
from unmask.nn.plan import AttentionPlan

#: The weights of several linear maps as one, and their biases if they have any.
Joined = tuple[Tensor, Tensor | None]


class Projections(nn.Module):
    """W_Q, W_K and W_V: rows (R, H) → queries, keys and values (R, N, D)."""

    def __init__(self, hidden_size: int, num_heads: int, head_size: int, *, bias: bool = True) -> None:
        super().__init__()
        self.num_heads, self.head_size = num_heads, head_size
        self.query = nn.Linear(hidden_size, num_heads * head_size, bias=bias)
        self.key = nn.Linear(hidden_size, num_heads * head_size, bias=bias)
        self.value = nn.Linear(hidden_size, num_heads * head_size, bias=bias)

    def queries(self, x: Tensor) -> Tensor:
        """(R, H) → (R, N, D)."""
        return self._heads(self.query(x))

    def keys_values(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """(R, H) → two of (R, N, D)."""
        keys, values = _together(x, self.key, self.value)
        return self._heads(keys), self._heads(values)

    def all(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values of the same rows, by one matrix product."""
        queries, keys, values = _together(x, self.query, self.key, self.value)
        return self._heads(queries), self._heads(keys), self._heads(values)

    def few(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The same as `all` for rows so few, as in a decoder's steps, that joining the weights would cost most."""
        return self._heads(self.query(x)), self._heads(self.key(x)), self._heads(self.value(x))

    def joined(self) -> Joined | None:
        """W_Q, W_K and W_V in one, for the many steps of a decoder; worth nothing once a weight has changed."""
        return _join(self.query, self.key, self.value)

    def side_by_side(self, x: Tensor, joined: Joined | None) -> Tensor:
        """(R, H) → (R, 3, N, D): queries, keys and values of the same rows, with what `joined` gave."""
        if joined is None:
            return torch.stack(self.few(x), dim=1)
        return F.linear(x, *joined).unflatten(-1, (3, self.num_heads, self.head_size))

    def _heads(self, rows: Tensor) -> Tensor:
        return rows.unflatten(-1, (self.num_heads, self.head_size))


class SharedProjections(Projections):
    """One matrix for queries and keys, so that the score of a with b equals that of b with a."""

    def __init__(self, hidden_size: int, num_heads: int, head_size: int, *, bias: bool = True) -> None:
        super().__init__(hidden_size, num_heads, head_size, bias=bias)
        del self.query

    def queries(self, x: Tensor) -> Tensor:
        """The same as the keys."""
        return self._heads(self.key(x))

    def all(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries that are the keys, and values."""
        keys, values = self.keys_values(x)
        return keys, keys, values

    def few(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The same for few rows."""
        keys = self._heads(self.key(x))
        return keys, keys, self._heads(self.value(x))

    def joined(self) -> Joined | None:
        """None: the keys would be computed twice."""
        return None


class NoProjections(Projections):
    """Nothing is multiplied: every head takes its slice of x, or all of x where heads have full width."""

    def __init__(self, hidden_size: int, num_heads: int, head_size: int) -> None:
        super().__init__(hidden_size, num_heads, head_size)
        del self.query, self.key, self.value

    def queries(self, x: Tensor) -> Tensor:
        """x itself."""
        return self._heads(x)

    def keys_values(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """x itself, twice."""
        return self._heads(x), self._heads(x)

    def all(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """x itself, three times."""
        heads = self._heads(x)
        return heads, heads, heads

    def few(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The same for few rows."""
        return self.all(x)

    def joined(self) -> Joined | None:
        """None: there is nothing to multiply by."""
        return None

    def _heads(self, rows: Tensor) -> Tensor:
        if rows.shape[-1] == self.head_size:
            return rows[:, None].expand(-1, self.num_heads, -1)
        return super()._heads(rows)


#: How many steps a decoder's past gets room for at once.
_STEPS_AT_ONCE = 16


class _Room:
    """Keys and values of a decoder's steps in one tensor (steps, B, 2, N, D), with room behind the last.

    A step is written in place, and one `index_select` reorders keys and values together.
    """

    def __init__(self, steps: int, like: Tensor, sequences: int) -> None:
        capacity = (steps // _STEPS_AT_ONCE + 1) * _STEPS_AT_ONCE
        self.data = like.new_empty(capacity, sequences, 2, like.shape[1], like.shape[3])
        self.used = steps

    def write(self, keys: Tensor, values: Tensor) -> None:
        """One more step, (B, N, 1, D) each."""
        self.data[self.used, :, 0] = keys[:, :, 0]
        self.data[self.used, :, 1] = values[:, :, 0]
        self.used += 1

    def first(self, steps: int) -> KeyValues:
        """The first steps, as views."""
        keys, values = self.data[:steps].permute(2, 1, 3, 0, 4)
        return KeyValues(keys, values, self)


@dataclass
class KeyValues:
    """Prepared keys and values (B, N, S, D) that a decoder keeps between steps."""

    keys: Tensor
    values: Tensor
    room: _Room | None = None  # where they lie, if more may be written behind them

    def select(self, sequences: Tensor) -> KeyValues:
        """Those of some sequences, in the order given."""
        if self.room is None:
            keys = self.keys.transpose(2, 3).index_select(0, sequences).transpose(2, 3)  # they lie as they lay
            return KeyValues(keys, self.values.index_select(0, sequences))
        steps = self.keys.shape[2]
        room = _Room(steps, self.keys, len(sequences))
        torch.index_select(self.room.data[:steps], 1, sequences, out=room.data[:steps])
        return room.first(steps)

    def extended(self, keys: Tensor, values: Tensor) -> KeyValues:
        """With one more step (B, N, 1, D) at the end. These here stay as they are."""
        if keys.requires_grad or keys.shape != values.shape:  # nothing in place under a gradient
            return KeyValues(torch.cat([self.keys, keys], dim=2), torch.cat([self.values, values], dim=2))
        steps, room = self.keys.shape[2], self.room
        # Who was extended before has somebody else's step behind it, which must not be written over.
        if room is None or room.used != steps or steps == len(room.data):
            room = _Room(steps, keys, len(keys))
            room.data[:steps, :, 0] = self.keys.permute(2, 0, 1, 3)
            room.data[:steps, :, 1] = self.values.permute(2, 0, 1, 3)
        room.write(keys, values)
        return room.first(steps + 1)


class MultiHeadAttention(nn.Module):
    """Concat(head_1, …, head_N) W_O, with head_n = attend(x W_Q, m W_K, m W_V); m is x or an encoder's output."""

    def __init__(self, projections: Projections, attend: Attend, hidden_size: int, *, bias: bool = True) -> None:
        super().__init__()
        self.projections = projections
        self.attend = attend
        width = projections.num_heads * projections.head_size
        self.output = nn.Linear(width, hidden_size, bias=bias)

    @property
    def num_heads(self) -> int:
        """How many heads there are."""
        return self.projections.num_heads

    def forward(self, x: Tensor, plan: AttentionPlan, memory: Tensor | None = None) -> Tensor:
        """Rows (R, H) attend to themselves, or to the rows of `memory`."""
        if memory is None:
            q, k, v = self.projections.all(x)
        else:
            q, (k, v) = self.projections.queries(x), self.projections.keys_values(memory)
        return self.output(plan.run(self.attend, q, k, v).flatten(1))

    def remember(self, memory: Tensor) -> KeyValues:
        """Keys and values of a rectangle (B, S, H), prepared for `step`."""
        k, v = self.projections.keys_values(memory.flatten(0, 1))
        k, v = (rows.view(*memory.shape[:2], *rows.shape[1:]).transpose(1, 2) for rows in (k, v))
        return KeyValues(_side_by_side(self.attend.prepare_keys(k)), v.contiguous())

    def step(self, x: Tensor, past: KeyValues | None) -> tuple[Tensor, KeyValues]:
        """One new row a sequence (B, H) attends to itself and to the past; gives the past with it added."""
        q, k, v = (rows[:, :, None] for rows in self.projections.few(x))  # (B, N, 1, D)
        position = 0 if past is None else past.keys.shape[2]
        k = self.attend.prepare_keys(k, position)
        past = KeyValues(k, v) if past is None else past.extended(k, v)
        out = self.attend(self.attend.prepare_queries(q, position), past.keys, past.values)
        return self.output(out.flatten(1)), past

    def branch(self, x: Tensor, past: Cells, joined: Joined | None, plan: StepPlan) -> tuple[Tensor, Cells]:
        """The rows (R, H) of a step attend to themselves and to their own past; gives the cells with theirs added."""
        everyone = plan.rectangle(self.projections.side_by_side(x, joined))  # (B, K, 3, N, D)
        q, k, v = everyone.flatten(0, 1)[:, :, :, None].unbind(1)  # (B·K, N, 1, D): each stands at the same position
        q = self.attend.prepare_queries(q, plan.position)
        k = self.attend.prepare_keys(k, plan.position)
        q, k, v = (rows[:, :, 0].unflatten(0, plan.shape).transpose(1, 2) for rows in (q, k, v))  # (B, N, K, D)
        past = past.written(k, v, plan.first)
        out = self.attend(q, *past.first(whole_registers(plan.cells)), plan.own)
        return self.output(plan.flat(out.transpose(1, 2)).flatten(1)), past

    def look(self, x: Tensor, memory: KeyValues, mask: Mask = EVERYTHING, plan: StepPlan | None = None) -> Tensor:
        """Rows (B·K, H), K of each sequence side by side, attend to keys and values prepared by `remember`.

        With a plan, only the rows (R, H) that it computes.

        The K are independent of each other, so the attention must have no positions where there is more than one.
        """
        q = self.projections.queries(x)
        q = q.unflatten(0, (len(memory.keys), -1)) if plan is None else plan.rectangle(q)
        q = q.transpose(1, 2)  # (B, N, K, D)
        out = self.attend(self.attend.prepare_queries(q), memory.keys, memory.values, mask).transpose(1, 2)
        return self.output((out.flatten(0, 1) if plan is None else plan.flat(out)).flatten(1))


def _side_by_side(keys: Tensor) -> Tensor:
    """The same keys (B, N, S, D) with S innermost in memory, as products of few queries with them like it."""
    return keys.transpose(2, 3).contiguous().transpose(2, 3)


def _together(x: Tensor, *linears: nn.Linear) -> tuple[Tensor, ...]:
    """Several linear maps of the same rows as one matrix product: the weights are few, the rows are many."""
    return F.linear(x, *_join(*linears)).split([linear.out_features for linear in linears], dim=-1)


def _join(*linears: nn.Linear) -> Joined:
    """Weights and biases of several linear maps, one below the other."""
    weights: list[Tensor] = [linear.weight for linear in linears]
    biases: list[Tensor] = [linear.bias for linear in linears if linear.bias is not None]
    return torch.cat(weights), torch.cat(biases) if biases else None
