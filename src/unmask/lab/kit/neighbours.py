"""Pairs of neighbouring stretches of newspaper, true and false."""

from __future__ import annotations

import numpy as np

from unmask.lab.kit.daily import CLS, SEP, windows

Articles = tuple[np.ndarray, ...]
Pair = tuple[np.ndarray, np.ndarray]
HALF = 31  # characters of each of the two


def true_pairs(articles: Articles, count: int, rng: np.random.Generator, half: int = HALF) -> list[Pair]:
    """Two stretches of which the second follows the first."""
    long = tuple(article for article in articles if len(article) >= 2 * half)
    return [(text[:half], text[half:]) for text in windows(long, 2 * half, count, rng)]


def half_strange(articles: Articles, count: int, rng: np.random.Generator) -> tuple[list[Pair], list[int]]:
    """Pairs of which half have a second text from another article, and 0 for a true one, 1 for a false one."""
    long = tuple(article for article in articles if len(article) >= 2 * HALF)
    sizes = np.array([len(article) for article in long], dtype=float)
    pairs, labels = [], []
    for number in rng.choice(len(long), count, p=sizes / sizes.sum()):
        first, second = _cut(long[number], rng)
        strange = int(rng.random() < 0.5)
        if strange:
            other = int(rng.integers(len(long) - 1))
            _, second = _cut(long[other + (other >= number)], rng)
        pairs.append((first, second))
        labels.append(strange)
    return pairs, labels


def half_swapped(articles: Articles, count: int, rng: np.random.Generator) -> tuple[list[Pair], list[int]]:
    """Neighbours of which half are in the wrong order, and 0 for the right one, 1 for the wrong one."""
    labels = (rng.random(count) < 0.5).astype(int).tolist()
    pairs = true_pairs(articles, count, rng)
    return [(b, a) if swapped else (a, b) for (a, b), swapped in zip(pairs, labels, strict=True)], labels


def joined(pair: Pair) -> tuple[np.ndarray, np.ndarray]:
    """Ids with [CLS] and [SEP], and segments."""
    first, second = pair
    ids = np.concatenate([[CLS], first, [SEP], second, [SEP]]).astype(np.int64)
    segments = np.concatenate([np.zeros(len(first) + 2), np.ones(len(second) + 1)]).astype(np.int64)
    return ids, segments


def _cut(article: np.ndarray, rng: np.random.Generator) -> Pair:
    start = int(rng.integers(len(article) - 2 * HALF + 1))
    return article[start : start + HALF], article[start + HALF : start + 2 * HALF]
