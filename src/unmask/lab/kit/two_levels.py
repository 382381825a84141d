"""A softmax of two levels: first a group of tokens, then a token of that group. p(token) = p(group) · p(token | group).

Equal groups of consecutive ids, for counting and timing: what is learned here is nothing. The library's own softmax
over groups, whose groups follow the frequency of tokens, is `unmask.nn.adaptive`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from unmask.lab.kit.minizh import headlines, tokenizer
from unmask.models.bert import Bert
from unmask.models.fetch import fetch
from unmask.models.folder import load_model
from unmask.nn.batch import Batch
from unmask.nn.heads import MaskedTokenHead


@dataclass(frozen=True)
class Flat:
    """The usual softmax: one row of weights a token."""

    weight: Tensor  # (V, H)
    bias: Tensor  # (V,)

    def log_probability(self, rows: Tensor, targets: Tensor) -> Tensor:
        """Of the target (R,) of each row (R, H)."""
        return F.linear(rows, self.weight, self.bias).log_softmax(-1).gather(1, targets[:, None])[:, 0]

    def best(self, rows: Tensor) -> Tensor:
        """The most probable token of each row."""
        return F.linear(rows, self.weight, self.bias).argmax(-1)


@dataclass(frozen=True)
class TwoLevels:
    """Groups of `size` tokens; the last one may be smaller."""

    groups: Tensor  # (G, H)
    tokens: Tensor  # (V, H)
    size: int

    @classmethod
    def random(cls, flat: Flat, count: int, generator: torch.Generator) -> TwoLevels:
        """With so many groups, and weights as large as those of a flat softmax."""
        vocab, hidden = flat.weight.shape
        drawn = torch.randn(count + vocab, hidden, generator=generator) * flat.weight.std()
        return cls(drawn[:count].clone(), drawn[count:].clone(), -(-vocab // count))

    def log_probability(self, rows: Tensor, targets: Tensor) -> Tensor:
        """Of the target of each row: its group among all, then the target in its group alone."""
        of = targets // self.size
        found = F.linear(rows, self.groups).log_softmax(-1).gather(1, of[:, None])[:, 0]
        for group in of.unique().tolist():
            here = (of == group).nonzero()[:, 0]
            inside = self._inside(rows[here], group)
            found[here] += inside.gather(1, targets[here, None] - group * self.size)[:, 0]
        return found

    def best_of_all(self, rows: Tensor) -> Tensor:
        """The most probable token, by all tokens of all groups at once."""
        outer = F.linear(rows, self.groups).log_softmax(-1)
        missing = len(self.groups) * self.size - len(self.tokens)
        logits = F.pad(F.linear(rows, self.tokens), (0, missing), value=float("-inf"))
        inside = logits.unflatten(1, (len(self.groups), self.size)).log_softmax(-1)
        return (inside + outer[:, :, None]).flatten(1).argmax(-1)

    def best(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """The same by a search, and how many tokens were looked at: groups are opened in the order of their
        probability, until none is left that is more probable than the best token found, for none could hold a better.
        """
        value, order = F.linear(rows, self.groups).log_softmax(-1).sort(-1, descending=True)
        best, token = rows.new_full((len(rows),), float("-inf")), torch.zeros(len(rows), dtype=torch.int64)
        looked = torch.zeros(len(rows), dtype=torch.int64)
        for rank in range(len(self.groups)):
            there = (value[:, rank] > best).nonzero()[:, 0]
            if not len(there):
                break
            opened = order[there, rank]
            for group in opened.unique().tolist():
                here = there[opened == group]
                inside = self._inside(rows[here], group)
                found, place = (inside + value[here, rank, None]).max(-1)
                better = found > best[here]
                token[here] = torch.where(better, place + group * self.size, token[here])
                best[here] = torch.where(better, found, best[here])
                looked[here] += inside.shape[1]
        return token, looked

    def size_of(self, targets: Tensor) -> Tensor:
        """How many tokens the group of each target has."""
        first = targets // self.size * self.size
        return (len(self.tokens) - first).clamp(max=self.size)

    def _inside(self, rows: Tensor, group: int) -> Tensor:
        return F.linear(rows, self.tokens[group * self.size : (group + 1) * self.size]).log_softmax(-1)


def mini_zh() -> tuple[Bert, MaskedTokenHead]:
    """The model with its MLM head."""
    model, _ = load_model(fetch("mini-zh"))
    assert isinstance(model, Bert)
    head = model.heads["mlm"]
    assert isinstance(head, MaskedTokenHead)
    return model.eval(), head


def one_hidden(count: int) -> tuple[list[list[int]], list[int], list[int]]:
    """Test headlines with the token in their middle hidden: their ids, its place in each, and which it was."""
    sequences = headlines("test")[0].sequences[:count]
    places = [len(one) // 2 for one in sequences]
    answers = [one[place] for one, place in zip(sequences, places, strict=True)]
    mask = tokenizer().mask_id
    assert mask is not None
    return [[*one[:p], mask, *one[p + 1 :]] for one, p in zip(sequences, places, strict=True)], places, answers


@torch.no_grad()
def hidden_rows(count: int) -> tuple[Flat, Tensor, Tensor]:
    """mini-zh's softmax, the rows that it reads for so many hidden tokens, and the tokens."""
    model, head = mini_zh()
    ids, places, answers = one_hidden(count)
    rows = []
    for first in range(0, len(ids), 32):
        encoded = model(Batch.of(ids[first : first + 32]))
        rows.append(encoded.sequence[rows_at(ids[first : first + 32], places[first : first + 32])])
    assert head.bias is not None
    read = head.norm(head.activation(head.dense(torch.cat(rows))))
    return Flat(model.encoder.embeddings.token.weight, head.bias), read, torch.tensor(answers)


def rows_at(ids: list[list[int]], places: list[int]) -> Tensor:
    """The row of a place in each sequence of a batch."""
    firsts = torch.tensor([0, *(len(one) for one in ids[:-1])]).cumsum(0)
    return firsts + torch.tensor(places)
