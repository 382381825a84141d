"""Words that a text is full of and a vocabulary breaks into pieces: what a model of another field should learn."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import islice

from unmask.text.tokenizer import Tokenizer
from unmask.text.words import segment

_MOST_COUNTED = 2_000_000  # words kept while counting, so that memory stays bounded
_TOGETHER = 4096


def missing_words(lines: Iterable[str], tokenizer: Tokenizer, count: int, *, at_least: int = 5) -> list[str]:
    """The `count` words whose own token would save the most tokens, best first.

    Words of Chinese characters are left out unless a character is unknown: BERT reads Chinese by characters.
    """
    seen: Counter[str] = Counter()
    for line in lines:
        clean = tokenizer.normalize(line)
        seen.update(clean[start:end] for start, end in segment(clean))
        if len(seen) > _MOST_COUNTED:
            seen = Counter(dict(seen.most_common(_MOST_COUNTED // 2)))
    frequent = iter([word for word, number in seen.items() if number >= at_least])
    saved: dict[str, int] = {}
    while words := list(islice(frequent, _TOGETHER)):
        for word, ids in zip(words, pieces(words, tokenizer), strict=True):
            gain = _gain(word, ids, tokenizer)
            if gain:
                saved[word] = gain * seen[word]
    return sorted(saved, key=lambda word: (-saved[word], word))[:count]


def pieces(words: Sequence[str], tokenizer: Tokenizer) -> list[list[int]]:
    """The ids with which a tokenizer writes each word."""
    return [encoding.ids for encoding in tokenizer.encode_batch(words, special_tokens=False)]


def _gain(word: str, ids: Sequence[int], tokenizer: Tokenizer) -> int:
    """Tokens that a token for this word would save; a word that could not be read at all counts as two."""
    if tokenizer.unk_id in ids:
        return 2 if len(ids) == 1 else 0
    if not word.isascii() and len(ids) == len(word):
        return 0  # by characters, as it should be
    return len(ids) - 1
