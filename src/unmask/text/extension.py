"""Words that a text is full of and a vocabulary breaks into pieces: what a model of another field should learn."""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import groupby, islice

from unmask.text.scripts import is_han
from unmask.text.tokenizer import Tokenizer
from unmask.text.vocabulary import MAX_TOKEN_LENGTH
from unmask.text.words import segment

_MOST_COUNTED = 2_000_000  # words kept while counting, so that memory stays bounded
_TOGETHER = 4096


def missing_words(lines: Iterable[str], tokenizer: Tokenizer, count: int, *, at_least: int = 5) -> list[str]:
    """The `count` words whose own token would save the most tokens, best first.

    BERT reads Chinese by characters, so of Chinese only characters count, those that are unknown.
    """
    seen = _counted(lines, tokenizer)
    frequent = iter([word for word, number in seen.items() if number >= at_least and len(word) <= MAX_TOKEN_LENGTH])
    saved: dict[str, int] = {}
    while words := list(islice(frequent, _TOGETHER)):
        for word, ids in zip(words, pieces(words, tokenizer), strict=True):
            gain = _gain(ids, tokenizer)
            if gain:
                saved[word] = gain * seen[word]
    best = iter(sorted(saved, key=lambda word: (-saved[word], word)))
    found: list[str] = []
    while len(found) < count and (words := list(islice(best, count - len(found)))):
        found += _that_become_one(words, tokenizer)
    return found


def pieces(words: Sequence[str], tokenizer: Tokenizer) -> list[list[int]]:
    """The ids with which a tokenizer writes each word."""
    return [encoding.ids for encoding in tokenizer.encode_batch(words, special_tokens=False)]


def _counted(lines: Iterable[str], tokenizer: Tokenizer) -> Counter[str]:
    seen: Counter[str] = Counter()
    for line in lines:
        seen.update(_words(tokenizer.normalize(line)))
        if len(seen) > _MOST_COUNTED:
            seen = Counter(dict(seen.most_common(_MOST_COUNTED // 2)))
    return seen


def _words(text: str) -> Iterator[str]:
    """Words as BERT sees them: a Chinese character or a mark is one by itself, though a dictionary may join them."""
    for start, end in segment(text):
        for alone, characters in groupby(text[start:end], _stands_alone):
            together = "".join(characters)
            yield from together if alone else [together]


@lru_cache(maxsize=65536)
def _stands_alone(character: str) -> bool:
    letter = character.isalnum() or unicodedata.category(character).startswith("M")
    return not letter or is_han(character)


def _gain(ids: Sequence[int], tokenizer: Tokenizer) -> int:
    """Tokens that a token for this word would save; a word that could not be read at all counts as two."""
    if tokenizer.unk_id in ids:
        return 2 if len(ids) == 1 else 0
    return max(0, len(ids) - 1)


def _that_become_one(words: Sequence[str], tokenizer: Tokenizer) -> list[str]:
    """Those that really are one token once they are added; some tokenizers do not find, or not clean, all alike."""
    extended = tokenizer.with_tokens(words)
    return [word for word, ids in zip(words, pieces(words, extended), strict=True) if ids == [extended.id(word)]]
