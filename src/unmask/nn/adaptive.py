"""Adaptive softmax (Grave et al. 2017): frequent tokens at full width, rare ones in clusters that are narrower.

A row first chooses among the frequent tokens and the clusters; only rows whose token is rare look into its cluster.
What a token is given stays a probability, exactly: p(token) = p(cluster) · p(token | cluster).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

from unmask.nn.vocabulary import vocabulary_loss


class AdaptiveOutput(nn.Module):
    """Rows → log-probabilities of all tokens, or the loss of one token a row without computing the others.

    The clusters are of tokens in the order of their frequency. Ids have another order, so `rank_of` is kept with the
    weights: for each id its place in that order.
    """

    rank_of: Tensor  # (V,) int64

    def __init__(
        self, vocab_size: int, hidden_size: int, cutoffs: Sequence[int], div_value: float, *, bias: bool = True
    ) -> None:
        super().__init__()
        self.softmax = nn.AdaptiveLogSoftmaxWithLoss(
            hidden_size, vocab_size, list(cutoffs), div_value=div_value, head_bias=bias
        )
        self.register_buffer("rank_of", torch.arange(vocab_size))

    def initialise(self, generator: torch.Generator) -> None:
        """As long as nobody has counted, ids stand for ranks.

        What makes rows narrow keeps their length: two small matrices one after the other would say almost nothing, and
        be told almost nothing by their gradients.
        """
        self.rank_of.copy_(torch.arange(len(self.rank_of)))
        for number in range(self.softmax.n_clusters):
            narrow, _ = self._cluster(number)
            nn.init.normal_(narrow.weight, std=narrow.in_features**-0.5, generator=generator)

    @torch.no_grad()
    def order_by(self, counts: Tensor) -> None:
        """Say how often each id (V,) occurs. For a model that has not learned yet: its weights are by rank."""
        order = counts.argsort(descending=True, stable=True)
        self.rank_of[order.to(self.rank_of.device)] = torch.arange(len(order), device=self.rank_of.device)

    @property
    def is_ordered(self) -> bool:
        """Whether every rank is there once, which a file need not be right about."""
        return torch.equal(self.rank_of.sort().values, torch.arange(len(self.rank_of), device=self.rank_of.device))

    def forward(self, rows: Tensor) -> Tensor:
        """(R, H) → log-probabilities (R, V), in the order of ids: logits whose softmax is themselves."""
        return self.softmax.log_prob(rows).index_select(1, self.rank_of)

    def loss(self, rows: Tensor, targets: Tensor) -> Tensor:
        """Minus the log-probability of targets (R,), summed over the rows."""
        ranks = self.rank_of.index_select(0, targets)
        chosen, total = ranks, rows.new_zeros(())
        for number, (low, high) in enumerate(pairwise(self.softmax.cutoffs)):
            inside = (ranks >= low) & (ranks < high)
            places = inside.nonzero().squeeze(1)
            narrow, wide = self._cluster(number)
            # Even where no row looks into it: every parameter has a gradient in every batch, if only of zeros.
            some = narrow(rows.index_select(0, places))
            total = total + vocabulary_loss(some, wide.weight, None, ranks.index_select(0, places) - low)
            chosen = torch.where(inside, self.softmax.shortlist_size + number, chosen)
        return total + vocabulary_loss(rows, self.softmax.head.weight, self.softmax.head.bias, chosen)

    def _cluster(self, number: int) -> tuple[nn.Linear, nn.Linear]:
        pair = self.softmax.tail[number]
        assert isinstance(pair, nn.Sequential)
        narrow, wide = pair
        assert isinstance(narrow, nn.Linear)
        assert isinstance(wide, nn.Linear)
        return narrow, wide


def order_by_frequency(model: nn.Module, counts: Tensor) -> None:
    """Tell every adaptive output of a new model how often each id occurs."""
    for module in model.modules():
        if isinstance(module, AdaptiveOutput):
            module.order_by(counts)
