"""How attention, the only part that needs rectangles, finds them in ragged rows.

Sequences are sorted by length and cut into groups whose padding stays small; each group is one dense attention.
Rows are gathered once for all groups, and not at all when the batch already lies in groups of equal length.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from unmask.nn.attend import Attend
from unmask.nn.layout import Layout
from unmask.nn.masks import Mask

#: How much larger than its sequences a group's rectangle may be, where rows must be gathered anyway. Rows that already
#: lie sorted by length need no gathering as long as groups are pure, which is faster still. Measured on CPU by
#: benchmarks/attention_groups.py.
PADDING_TOLERANCE = 0.1


@dataclass(frozen=True)
class Group:
    """Sequences that are attended to together, as a rectangle of T queries and S keys."""

    members: tuple[tuple[int, int, int], ...]  # sequence number, its queries, its keys
    queries: int
    keys: int
    mask: Mask

    @property
    def size(self) -> int:
        """How many sequences (B)."""
        return len(self.members)


@dataclass(frozen=True)
class AttentionPlan:
    """Groups for attention from one layout to another. Made once a forward pass, used by every layer.

    The indices say which row goes to which place of the rectangles (`query_index`, `key_index`) and where each row
    finds its answer (`output_index`); None means the rows already lie that way.
    """

    groups: tuple[Group, ...]
    query_index: Tensor | None
    key_index: Tensor | None
    output_index: Tensor | None

    @classmethod
    def between(
        cls, queries: Layout, keys: Layout, *, causal: bool = False, device: torch.device | None = None
    ) -> AttentionPlan:
        """The plan for sequences of `queries` to attend to the same-numbered sequences of `keys`."""
        if queries.num_sequences != keys.num_sequences:
            raise ValueError(f"{queries.num_sequences} query sequences but {keys.num_sequences} of keys")
        if causal and queries != keys:
            raise ValueError("causal attention goes from a layout to itself: elsewhere no query stands at a key")
        device = torch.device("cpu") if device is None else device
        if queries.width is not None or keys.width is not None:
            members = [tuple(range(queries.num_sequences))]
        else:
            members = _group(queries.lengths, keys.lengths)
        groups = tuple(_describe(group, queries, keys, causal, device) for group in members)
        query_rows = _rows(queries, groups, [group.queries for group in groups])
        key_rows = query_rows if keys is queries else _rows(keys, groups, [group.keys for group in groups])
        return cls(
            groups,
            _index(query_rows, queries.num_rows, device),
            _index(key_rows, keys.num_rows, device),
            _index(_answers(queries, groups), len(query_rows), device),
        )

    def run(self, attend: Attend, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Rows of queries (R_q, N, D), keys and values (R_k, N, D) → rows of answers (R_q, N, D)."""
        q = q if self.query_index is None else q.index_select(0, self.query_index)
        if self.key_index is not None:
            k, v = k.index_select(0, self.key_index), v.index_select(0, self.key_index)
        query_sizes = [group.size * group.queries for group in self.groups]
        key_sizes = [group.size * group.keys for group in self.groups]
        pieces = zip(self.groups, q.split(query_sizes), k.split(key_sizes), v.split(key_sizes), strict=True)
        answers = [self._attend(attend, *piece) for piece in pieces]
        out = answers[0] if len(answers) == 1 else torch.cat(answers)
        return out if self.output_index is None else out.index_select(0, self.output_index)

    @staticmethod
    def _attend(attend: Attend, group: Group, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q, k, v = (
            rows.view(group.size, -1, *rows.shape[1:]).transpose(1, 2)  # (B, N, T or S, D)
            for rows in (q, k, v)
        )
        answer = attend(attend.prepare_queries(q), attend.prepare_keys(k), v, group.mask)
        return answer.transpose(1, 2).flatten(0, 1)


def padding_tolerance(order: list[int]) -> float:
    """What `order`, the sequences from shortest to longest, allows: nothing where they lie in that order already."""
    return 0.0 if order == list(range(len(order))) else PADDING_TOLERANCE


def _group(queries: Sequence[int], keys: Sequence[int]) -> list[tuple[int, ...]]:
    """Sequence numbers in groups whose rectangles are hardly larger than their content."""
    order = sorted(range(len(queries)), key=lambda i: (queries[i], keys[i]))
    tolerance = padding_tolerance(order)
    groups: list[tuple[int, ...]] = []
    current: list[int] = []
    rows = widest = longest = 0
    for i in order:
        widest, longest = max(widest, keys[i]), max(longest, queries[i])
        rows += queries[i] + keys[i]
        if current and (len(current) + 1) * (widest + longest) > (1 + tolerance) * rows:
            groups.append(tuple(current))
            current, widest, longest, rows = [], keys[i], queries[i], queries[i] + keys[i]
        current.append(i)
    groups.append(tuple(current))
    return groups


def _describe(members: tuple[int, ...], queries: Layout, keys: Layout, causal: bool, device: torch.device) -> Group:
    length = queries.width or max(queries.lengths[i] for i in members)
    key_lengths = [keys.lengths[i] for i in members]
    width = keys.width or max(key_lengths)
    allowed = None
    if min(key_lengths) < width:
        reach = torch.arange(width, device=device) < torch.tensor(key_lengths, device=device)[:, None]
        allowed = reach[:, None, None, :]
    described = tuple((i, queries.lengths[i], keys.lengths[i]) for i in members)
    return Group(described, length, width, Mask(allowed, causal))


def _rows(layout: Layout, groups: tuple[Group, ...], widths: list[int]) -> list[int]:
    """The row of `layout` for each place of the groups' rectangles; padding repeats the sequence's last row."""
    rows: list[int] = []
    for group, width in zip(groups, widths, strict=True):
        for i, _, _ in group.members:
            start, length = layout.starts[i], layout.width or layout.lengths[i]
            rows.extend(range(start, start + length))
            rows.extend([start + length - 1] * (width - length))
    return rows


def _answers(layout: Layout, groups: tuple[Group, ...]) -> list[int]:
    """For each row of `layout`, its place in the groups' rectangles."""
    places = [0] * layout.num_rows
    place = 0
    for group in groups:
        for i, _, _ in group.members:
            start, length = layout.starts[i], layout.width or layout.lengths[i]
            places[start : start + length] = range(place, place + length)
            place += group.queries
    return places


def _index(rows: list[int], size: int, device: torch.device) -> Tensor | None:
    """Which of `size` rows to take, as a tensor, or None when they are simply all of them."""
    return None if rows == list(range(size)) else torch.tensor(rows, device=device)
