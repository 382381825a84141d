"""A linear-chain conditional random field, exact: partition function by the forward algorithm, best path by Viterbi."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from unmask.nn.layout import Layout


class CRF(nn.Module):
    """Scores label sequences by emissions, transitions, and how they start and end."""

    def __init__(self, num_labels: int) -> None:
        super().__init__()
        self.start = nn.Parameter(torch.zeros(num_labels))
        self.transitions = nn.Parameter(torch.zeros(num_labels, num_labels))  # from, to
        self.end = nn.Parameter(torch.zeros(num_labels))

    def initialise(self, generator: torch.Generator) -> None:
        """Nearly indifferent at first."""
        for parameter in (self.start, self.transitions, self.end):
            nn.init.uniform_(parameter, -0.1, 0.1, generator=generator)

    def log_likelihood(self, emissions: Tensor, labels: Tensor, layout: Layout) -> Tensor:
        """(B,) log probability of each sequence's labels (R,), given emissions (R, labels)."""
        return self.score(emissions, labels, layout) - self.log_partition(emissions, layout)

    def score(self, emissions: Tensor, labels: Tensor, layout: Layout) -> Tensor:
        """(B,) unnormalised score of the labels given."""
        if layout.width is not None:
            raise ValueError("a CRF takes ragged rows: padding has no labels")
        rows = torch.arange(len(labels), device=labels.device)
        rest = rows[layout.row_positions(labels.device) > 0]
        token_scores = emissions[rows, labels]
        token_scores = token_scores.index_add(0, rest, self.transitions[labels[rest - 1], labels[rest]])
        first = layout.first_rows(labels.device)
        last = first + torch.tensor(layout.lengths, device=labels.device) - 1
        ends = self.start[labels[first]] + self.end[labels[last]]
        return ends.index_add(0, layout.row_sequences(labels.device), token_scores)

    def log_partition(self, emissions: Tensor, layout: Layout) -> Tensor:
        """(B,) log of the sum over all label sequences of exp(score)."""
        # Unbound at once: the gradient of a column taken by its number is as large as all columns together.
        columns = layout.pad(emissions).unbind(1)
        masks = layout.key_mask(emissions.device)[..., None].unbind(1)
        alpha = self.start + columns[0]  # (B, to)
        for emission, mask in zip(columns[1:], masks[1:], strict=True):
            longer = torch.logsumexp(alpha[:, :, None] + self.transitions, dim=1) + emission
            alpha = torch.where(mask, longer, alpha)
        return torch.logsumexp(alpha + self.end, dim=1)

    def marginals(self, emissions: Tensor, layout: Layout) -> Tensor:
        """(R, labels) the probability of each label at each place, whatever stands at the others.

        It is the gradient of the log partition function: raising an emission raises that by the label's share.
        """
        with torch.inference_mode(False), torch.enable_grad():
            # Scores add up over a long text until 32 bits have no digits left for the differences that count.
            free = emissions.detach().double().clone().requires_grad_()
            (found,) = torch.autograd.grad(self.log_partition(free, layout).sum(), free)
        return found.to(emissions.dtype)

    @torch.no_grad()
    def decode(self, emissions: Tensor, layout: Layout) -> list[list[int]]:
        """The best label sequence of each sequence."""
        columns = layout.pad(emissions.double()).unbind(1)  # 64 bits for the same reason as marginals
        masks = layout.key_mask(emissions.device)[..., None].unbind(1)
        best = self.start + columns[0]
        came_from = []
        for emission, mask in zip(columns[1:], masks[1:], strict=True):
            through = best[:, :, None] + self.transitions
            longer, origin = through.max(dim=1)
            best = torch.where(mask, longer + emission, best)
            came_from.append(origin)
        label = (best + self.end).argmax(dim=1).tolist()
        origins = [origin.tolist() for origin in came_from]
        return [_trace_back(label[b], origins, b, length) for b, length in enumerate(layout.lengths)]


def _trace_back(label: int, origins: list[list[list[int]]], sequence: int, length: int) -> list[int]:
    path = [label]
    for t in range(length - 2, -1, -1):
        path.append(origins[t][sequence][path[-1]])
    return path[::-1]
