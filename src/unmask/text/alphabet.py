"""Which characters get a token of their own when a vocabulary is learned."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from tokenizers import normalizers, pre_tokenizers


def count_characters(lines: Iterable[str], cleaning: normalizers.Normalizer | None) -> Counter[str]:
    """How often each character occurs in cleaned text, spaces aside."""
    raw: Counter[str] = Counter()
    for line in lines:
        raw.update(line)
    counts: Counter[str] = Counter()
    # Cleaning works character by character, so it is enough to clean each character once.
    for character, count in raw.items():
        clean = character if cleaning is None else cleaning.normalize_str(character)
        for part in clean:
            if part != " ":
                counts[part] += count
    return counts


def choose_alphabet(counts: Mapping[str, int], *, coverage: float, min_frequency: int) -> list[str]:
    """The most frequent characters that together make up `coverage` of the text, most frequent first."""
    total = sum(counts.values())
    chosen: list[str] = []
    covered = 0
    # Ties are broken by code point: the same text always gives the same alphabet.
    for character, count in sorted(counts.items(), key=lambda item: (-item[1], item[0])):
        if covered >= coverage * total or count < min_frequency:
            break
        chosen.append(character)
        covered += count
    return chosen


def spellings(
    alphabet: Iterable[str],
    prefix: str,
    splitting: pre_tokenizers.PreTokenizer,
    room: int,
    cleaning: normalizers.Normalizer | None = None,
) -> list[str]:
    """The tokens for single characters, at the start of a word and, with the prefix, inside it; at most `room`.

    Every character that can stand inside a word gets both, so that any word made of them can be spelled. Whether it can
    is for the splitter to say, after cleaning: that is where BERT puts spaces around Chinese characters.
    """
    whole: list[str] = []
    inside: list[str] = []
    for character in alphabet:
        if not splitting.pre_tokenize_str(character):  # a kind of space, on which words are split
            continue
        word = f"a{character}" if cleaning is None else cleaning.normalize_str(f"a{character}")
        continues = bool(prefix) and len(splitting.pre_tokenize_str(word)) == 1
        if len(whole) + len(inside) + 1 + continues > room:
            break
        whole.append(character)
        if continues:
            inside.append(prefix + character)
    return sorted(whole) + sorted(inside)
