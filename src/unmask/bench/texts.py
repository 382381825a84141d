"""Texts to measure with: the user's, or made-up ones of mixed lengths."""

from __future__ import annotations

import random
from collections.abc import Sequence

from unmask.text.tokenizer import Tokenizer


def mixed_texts(tokenizer: Tokenizer, count: int = 128, seed: int = 0) -> list[str]:
    """Texts whose lengths spread as in real traffic, many short and a few long, from whole words of the vocabulary."""
    draw = random.Random(seed)
    words = sorted(word for word in tokenizer.vocab if word.isalpha() and len(word) > 1) or sorted(tokenizer.vocab)
    texts = []
    for _ in range(count):
        length = max(5, min(round(draw.lognormvariate(3.25, 0.8)), 280))
        texts.append(" ".join(draw.choice(words) for _ in range(length)))
    return texts


def text_of(tokenizer: Tokenizer, tokens: int, among: Sequence[str]) -> list[int]:
    """Ids of exactly so many tokens, special ones included, from the beginning of the texts."""
    first = tokenizer.encode(among[0]).ids
    content = [token for text in among for token in tokenizer.encode(text).ids[1:-1]]
    while len(content) < tokens:
        content += content or [first[0]]
    return [first[0], *content[: tokens - 2], first[-1]]
