"""What experiments compare with. The recurrent ones live in `models`, where training can reach them."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unmask.models.recurrent import LstmEncoder, LstmSeq2Seq
from unmask.nn.batch import Batch

__all__ = ["Cbow", "LstmEncoder", "LstmSeq2Seq"]


class Cbow(nn.Module):
    """Continuous bag of words: a token guessed from the mean of its neighbours' vectors (Mikolov et al. 2013).

    One vector a word, whatever the sentence: what BERT's masked tokens are compared with.
    """

    def __init__(self, vocab_size: int, hidden_size: int, window: int = 5) -> None:
        super().__init__()
        if window < 1:
            raise ValueError(f"window must be at least 1, given {window}")
        self.window = window
        self.embedding = nn.Embedding(vocab_size, hidden_size)
        self.output = nn.Linear(hidden_size, vocab_size, bias=False)

    def forward(self, batch: Batch) -> Tensor:
        """(R, V) logits of each token, from up to `window` tokens on either side of it, itself not seen."""
        layout = batch.layout
        dense = layout.pad(self.embedding(batch.ids))
        there = layout.key_mask(dense.device)
        # Sums over windows as differences of running sums: no loop over neighbours.
        running = F.pad((dense * there[..., None]).cumsum(1), (0, 0, 1, 0))
        count = F.pad(there.cumsum(1), (1, 0))
        length = dense.shape[1]
        place = torch.arange(length, device=dense.device)
        low, high = (place - self.window).clamp(min=0), (place + self.window + 1).clamp(max=length)
        total = running[:, high] - running[:, low] - dense * there[..., None]
        neighbours = (count[:, high] - count[:, low] - 1).clamp(min=1)
        mean = total / neighbours[..., None]
        rows = mean[there] if layout.width is None else mean.flatten(0, 1)
        return self.output(rows)
