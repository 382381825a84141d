"""Texts → vectors, any number of texts of any length.

A text longer than the model reads at once is cut into windows and its vector is pooled over all of them, so nothing
is left out. Working memory does not grow with the number of texts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from unmask.data.batching import budget_of, token_budget_batches
from unmask.errors import TaskError
from unmask.models.bert import BertEncoder, device_of
from unmask.models.sentence import SentenceSettings
from unmask.nn.batch import Batch
from unmask.nn.heads import pool
from unmask.nn.modes import evaluating
from unmask.nn.windows import join_rows
from unmask.text import Tokenizer

#: Texts tokenized and sorted by length together. More would sort better, and keep the first answer waiting.
CHUNK = 2048

Vectors = npt.NDArray[np.float32]


def embed(
    encoder: BertEncoder,
    tokenizer: Tokenizer,
    texts: Iterable[str],
    settings: SentenceSettings,
    *,
    max_length: int,
    token_budget: int | None = None,
) -> Iterator[Vectors]:
    """Vectors of `texts` in their order, (up to CHUNK, hidden) at a time."""
    if max_length < 3:
        raise TaskError(f"the model reads {max_length} tokens at once, which leaves no room between [CLS] and [SEP]")
    texts = iter(texts)
    while chunk := list(islice(texts, CHUNK)):
        windows, owners = _windows(tokenizer, chunk, max_length)
        with evaluating(encoder):
            pooled = _encode(encoder, windows, settings, token_budget or budget_of(encoder))
        vectors = _join(pooled, owners, [len(window) for window in windows], len(chunk), settings)
        yield vectors.float().cpu().numpy()


def _windows(tokenizer: Tokenizer, texts: list[str], max_length: int) -> tuple[list[list[int]], list[int]]:
    """Ids of every window, special tokens around each, and the number of the text each belongs to."""
    windows: list[list[int]] = []
    owners: list[int] = []
    for number, encoding in enumerate(tokenizer.encode_batch(texts)):
        ids = encoding.ids
        if len(ids) <= max_length:
            windows.append(ids)
            owners.append(number)
            continue
        before = encoding.special.index(False)
        after = encoding.special[::-1].index(False)
        content = ids[before : len(ids) - after]
        room = max_length - before - after
        for start in range(0, len(content), room):
            windows.append(ids[:before] + content[start : start + room] + ids[len(ids) - after :])
            owners.append(number)
    return windows, owners


@torch.inference_mode()
def _encode(
    encoder: BertEncoder, windows: Sequence[list[int]], settings: SentenceSettings, token_budget: int
) -> Tensor:
    """One pooled row a window, in their order."""
    device = device_of(encoder)
    rows: list[Tensor] = []
    order: list[int] = []
    for numbers in token_budget_batches([len(window) for window in windows], token_budget):
        encoded = encoder(Batch.of([windows[number] for number in numbers]).to(device))
        rows.append(pool(encoded.sequence, encoded.layout, settings.pooling))
        order += numbers
    back = torch.empty(len(order), dtype=torch.long)
    back[torch.tensor(order)] = torch.arange(len(order))
    return torch.cat(rows)[back.to(device)]


@torch.inference_mode()
def _join(pooled: Tensor, owners: list[int], lengths: list[int], num_texts: int, settings: SentenceSettings) -> Tensor:
    """One row a text from the rows of its windows: the greatest, or the mean weighted by tokens."""
    if len(owners) > num_texts:
        owner, weights = (torch.tensor(numbers, device=pooled.device) for numbers in (owners, lengths))
        pooled = join_rows(pooled, owner, num_texts, "max" if settings.pooling == "max" else "mean", weights)
    return F.normalize(pooled, dim=-1) if settings.normalise else pooled
