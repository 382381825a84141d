"""How well a vocabulary fits a text: what it loses, and how many tokens it needs."""

from __future__ import annotations

import itertools
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from unmask.text.encoding import Encoding
from unmask.text.pipelines import BYTE_TOKENS, PREFIX
from unmask.text.scripts import HAN, script
from unmask.text.tokenizer import Tokenizer

BATCH = 256
LIMIT = 512  # positions of a BERT
BOUNDS = (8, 16, 32, 64, 128, 256, LIMIT, 1024, 2048, 4096)


@dataclass(frozen=True)
class ScriptReport:
    """The part of one script in a text."""

    characters: int
    tokens: int
    lost: int
    """Characters that ended in the unknown token."""
    tokens_per_character: float


@dataclass(frozen=True)
class TokenizerReport:
    """What a tokenizer does to a text; characters are counted without spaces, tokens without special ones."""

    lines: int
    characters: int
    words: int
    """Chinese characters, and runs of other characters between them and spaces."""
    tokens: int
    unknown_tokens: int
    lost_characters: int
    """Characters under an unknown token, those of the same word included."""
    scripts: dict[str, ScriptReport]
    missing_characters: dict[str, int]
    """The most frequent characters that no token of the vocabulary can write, and how often they were lost."""
    lengths: dict[str, int]
    """Lines by their number of tokens, special ones included: from the bound before up to this one."""
    lines_above_limit: int

    @property
    def unknown_rate(self) -> float:
        """Share of the tokens that are unknown."""
        return _share(self.unknown_tokens, self.tokens)

    @property
    def lost_rate(self) -> float:
        """Share of the characters that are lost."""
        return _share(self.lost_characters, self.characters)

    @property
    def tokens_per_character(self) -> float:
        """Tokens for one character."""
        return _share(self.tokens, self.characters)

    @property
    def tokens_per_word(self) -> float:
        """Tokens for one word."""
        return _share(self.tokens, self.words)

    @property
    def share_above_limit(self) -> float:
        """Share of the lines with more tokens than a BERT has positions (512)."""
        return _share(self.lines_above_limit, self.lines)

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain data."""
        rates = ("unknown_rate", "lost_rate", "tokens_per_character", "tokens_per_word", "share_above_limit")
        return asdict(self) | {name: getattr(self, name) for name in rates}


def report(tokenizer: Tokenizer, lines: Iterable[str], *, most_common: int = 20) -> TokenizerReport:
    """Encode all lines and count; memory does not grow with the number of lines."""
    counts = _Counts(tokenizer)
    for batch in _batches(lines):
        for text, encoding in zip(batch, tokenizer.encode_batch(batch), strict=True):
            counts.add(text, encoding)
    return counts.result(most_common)


class _Counts:
    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.lines = self.words = self.above = 0
        self.characters: Counter[str] = Counter()
        self.ids: Counter[int] = Counter()
        self.tokens: Counter[str] = Counter()  # by script, of tokens that do not show their script themselves
        self.lost: Counter[str] = Counter()
        self.lengths = [0] * (len(BOUNDS) + 1)
        # Counting ids is fast; only tokens that say nothing about their text need a look at their offsets.
        self.unclear = {id for id in tokenizer.vocab.values() if self._script_of(id) is None}

    def add(self, text: str, encoding: Encoding) -> None:
        self.lines += 1
        self.words += len(HAN.findall(text)) + len(HAN.sub(" ", text).split())
        self.characters.update(text)
        self.ids.update(encoding.ids)
        self.lengths[bisect_left(BOUNDS, len(encoding))] += 1
        self.above += len(encoding) > LIMIT
        if not self.unclear.isdisjoint(encoding.ids):
            self._look_closer(text, encoding)

    def _look_closer(self, text: str, encoding: Encoding) -> None:
        for id, (start, end), owner in zip(encoding.ids, encoding.offsets, encoding.texts, strict=True):
            if id in self.unclear and owner is not None:
                source = text[start:end]
                self.tokens[_main_script(source) or "space"] += 1
                if id == self.tokenizer.unk_id:
                    self.lost.update("".join(source.split()))

    def result(self, most_common: int) -> TokenizerReport:
        for id in self.tokenizer.special_ids - {self.tokenizer.unk_id}:
            del self.ids[id]
        by_script = Counter(self.tokens)
        for id, count in self.ids.items():
            if id not in self.unclear:
                by_script[self._script_of(id) or "other"] += count
        characters = Counter[str]()
        lost = Counter[str]()
        for character, count in self.characters.items():
            characters[script(character)] += count
            lost[script(character)] += self.lost[character]
        del characters["space"]
        names = [name for name, _ in characters.most_common()]
        missing = Counter({c: n for c, n in self.lost.items() if not self._can_write(c)})
        labels = [f"<= {bound}" for bound in BOUNDS] + [f"> {BOUNDS[-1]}"]
        return TokenizerReport(
            lines=self.lines,
            characters=characters.total(),
            words=self.words,
            tokens=self.ids.total(),
            unknown_tokens=self.ids[self.tokenizer.unk_id] if self.tokenizer.unk_id is not None else 0,
            lost_characters=self.lost.total(),
            scripts={
                name: ScriptReport(
                    characters[name], by_script[name], lost[name], _share(by_script[name], characters[name])
                )
                for name in names
            },
            missing_characters=dict(sorted(missing.items(), key=lambda item: (-item[1], item[0]))[:most_common]),
            lengths=dict(zip(labels, self.lengths, strict=True)),
            lines_above_limit=self.above,
        )

    def _script_of(self, id: int) -> str | None:
        """The script that a token is written in; None if it could stand for several, as unknown and bytes do."""
        if id in self.tokenizer.special_ids:
            return None if id == self.tokenizer.unk_id else "special"
        token = self.tokenizer.token(id)
        if self.tokenizer.byte_fallback and token in BYTE_TOKENS:
            return None
        text = token.removeprefix(PREFIX) if self.tokenizer.kind == "wordpiece" else self.tokenizer.decode([id])
        return None if "\ufffd" in text else _main_script(text)

    def _can_write(self, character: str) -> bool:
        parts = self.tokenizer.normalize(character).split()
        known = (self.tokenizer.id(form) is not None for part in parts for form in (part, PREFIX + part))
        return not parts or any(known)


def _main_script(text: str) -> str | None:
    """The script of the first character that is not a space."""
    return next((script(character) for character in text if not character.isspace()), None)


def _batches(lines: Iterable[str]) -> Iterator[Sequence[str]]:
    source = iter(lines)
    while batch := list(itertools.islice(source, BATCH)):
        yield batch


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 0.0
