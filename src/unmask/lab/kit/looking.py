"""Real models on real texts, and where their heads look."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping
from functools import cache

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from unmask.bundle import Bundle, load
from unmask.data.masking import MaskVocabulary, mask_tokens
from unmask.lab.kit.daily import UNK, Hidden, daily, windows
from unmask.lab.kit.mlm import MEASURED
from unmask.metrics.intervals import Interval, bootstrap_sums
from unmask.models.bert import Bert
from unmask.models.fetch import fetch
from unmask.nn.batch import Batch
from unmask.nn.record import mask_heads, record_attention

MODELS = ("minilm", "mini-zh")


@cache
def bundle_of(name: str) -> Bundle:
    """A model with its tokenizer, without dropout."""
    bundle = load(name)
    bundle.model.eval()
    return bundle


def bert_of(name: str) -> Bert:
    """The same model alone."""
    model = bundle_of(name).model
    assert isinstance(model, Bert)
    return model


def labelled_texts(name: str, count: int, part: str = "test") -> list[str]:
    """The first texts of a labelled set."""
    with open(fetch(name) / f"{part}.csv", encoding="utf-8", newline="") as file:
        return [row["text"] for _, row in zip(range(count), csv.DictReader(file), strict=False)]


def stretches(count: int, length: int, seed: int = 12345) -> list[str]:
    """Stretches of newspaper, from articles that no model here has learned from."""
    known, rng = daily(), np.random.default_rng(seed)
    articles = tuple(one for one in known.held_out if len(one) >= length)
    return [as_text(ids) for ids in windows(articles, length, count, rng)]


def as_text(ids: np.ndarray) -> str:
    """Characters of ids; 某 for one that is not known."""
    characters = daily().characters
    return "".join("某" if id == UNK else characters[id] for id in ids)


@torch.inference_mode()
def weights_of(bundle: Bundle, model: Bert, texts: list[str]) -> Iterator[list[Tensor]]:
    """For each text the attention of every layer, (N, T, T) each."""
    for text in texts:
        with record_attention(model.encoder) as trace:
            model.encoder(bundle.batch([text]))
        yield [record.weights[0] for record in trace.attention.values()]


def interval(values: list[float]) -> list[float]:
    """Mean and 95 % interval over texts, by resampling them."""
    found = bootstrap_sums(values)
    return [found.value, found.low, found.high]


def masked(bundle: Bundle, texts: list[str], seed: int) -> list[Hidden]:
    """Texts with 15 % of their tokens hidden as BERT hides them, in batches of 50."""
    tokenizer, rng = bundle.tokenizer, np.random.default_rng(seed)
    assert tokenizer.mask_id is not None
    vocabulary = MaskVocabulary.of(tokenizer.vocab_size, tokenizer.mask_id, tokenizer.special_ids)
    batches = []
    for start in range(0, len(texts), 50):
        sequences, rows, targets, first = [], [], [], 0
        for text in texts[start : start + 50]:
            encoding = tokenizer.encode(text)
            ids, may = np.array(encoding.ids), ~np.array(encoding.special)
            found = mask_tokens(ids, may, np.ones(len(ids), dtype=bool), vocabulary, MEASURED, rng)
            sequences.append(found.ids.tolist())
            rows.append(found.places + first)
            targets.append(found.targets)
            first += len(ids)
        hidden = torch.from_numpy(np.concatenate(rows)), torch.from_numpy(np.concatenate(targets))
        batches.append(Hidden(Batch.of(sequences), *hidden))
    return batches


@torch.inference_mode()
def guessed(model: Bert, batches: list[Hidden], gates: Mapping[str, list[float]]) -> np.ndarray:
    """(texts, 3): summed loss, right answers and hidden tokens of each text, with some heads silenced."""
    found = []
    with mask_heads(model, gates):
        for batch in batches:
            rows = model(batch.batch).sequence.index_select(0, batch.rows)
            logits = model.masked_token_logits(rows)
            loss = F.cross_entropy(logits, batch.targets, reduction="none").double()
            right = (logits.argmax(-1) == batch.targets).double()
            owner = batch.batch.layout.row_sequences(rows.device)[batch.rows]
            columns = torch.stack([loss, right, torch.ones_like(loss)], 1)
            found.append(torch.zeros(len(batch.batch), 3, dtype=torch.float64).index_add_(0, owner, columns).numpy())
    return np.concatenate(found)


def per_token(difference: np.ndarray, tokens: np.ndarray) -> Interval:
    """A difference summed by text, as one a token, with its interval over texts."""
    return bootstrap_sums(np.stack([difference, tokens], 1), lambda sums: sums[:, 0] / sums[:, 1])
