"""Vocabularies made smaller: which tokens may go, and the same pipeline without them.

WordPiece takes the longest piece that fits, then the longest of what is left. While every letter that occurs in the
vocabulary is a piece by itself, at the beginning of a word and inside, there is always one that fits: a word whose
piece has gone is written with smaller ones, down to letters, and nothing becomes unknown that was not before.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

import tokenizers
from tokenizers import models

from unmask.errors import DataError
from unmask.text.pipelines import PREFIX


def must_stay(pipeline: tokenizers.Tokenizer) -> set[str]:
    """Tokens without which texts would be read otherwise: special and added ones, and every single letter."""
    if not isinstance(pipeline.model, models.WordPiece):
        raise DataError(
            f"only a WordPiece vocabulary can be made smaller, and this is a {type(pipeline.model).__name__}: its "
            "merges belong together"
        )
    added = {token.content for token in pipeline.get_added_tokens_decoder().values()}
    vocab = pipeline.get_vocab()
    bare = _letters(piece for piece in vocab if piece not in added and not _is_name(piece)) - vocab.keys()
    if bare:
        raise DataError(
            f"the vocabulary has pieces with the letter {min(bare)!r} but not the letter by itself, so words that lose "
            "their piece could become unknown: this vocabulary cannot be made smaller"
        )
    return added | {piece for piece in vocab if len(piece.removeprefix(PREFIX)) == 1}


def check_kept(pipeline: tokenizers.Tokenizer, tokens: Sequence[str]) -> None:
    """DataError if some text that could be written could not be any more."""
    missing = must_stay(pipeline) - set(tokens)
    if missing:
        raise DataError(f"the token {min(missing)!r} cannot be left out: texts could not be written without it")


def pruned(pipeline: tokenizers.Tokenizer, tokens: Sequence[str]) -> tokenizers.Tokenizer:
    """The same pipeline with these tokens only, numbered in their order."""
    numbers = {token: number for number, token in enumerate(tokens)}
    plan = json.loads(pipeline.to_str())
    plan["model"]["vocab"] = numbers
    for token in plan["added_tokens"]:
        token["id"] = numbers[token["content"]]
    _renumber(plan.get("post_processor") or {}, numbers)
    return tokenizers.Tokenizer.from_str(json.dumps(plan))


def _renumber(step: dict[str, Any], numbers: dict[str, int]) -> None:
    """What stands around a text is written in numbers too."""
    for name in ("cls", "sep"):
        if isinstance(step.get(name), list):
            step[name] = [step[name][0], numbers[step[name][0]]]
    special = step.get("special_tokens")
    if isinstance(special, dict):
        for entry in special.values():
            entry["ids"] = [numbers[token] for token in entry["tokens"]]
    for inner in step.get("processors") or ():
        _renumber(inner, numbers)


def _letters(pieces: Iterable[str]) -> set[str]:
    """Every letter of these pieces as the piece it would be by itself."""
    found: set[str] = set()
    for piece in pieces:
        inner = piece.startswith(PREFIX) and piece != PREFIX
        bare = piece.removeprefix(PREFIX) if inner else piece
        found.update(PREFIX + letter for letter in (bare if inner else bare[1:]))
        if not inner:
            found.add(bare[:1])
    return found


def _is_name(piece: str) -> bool:
    """Whether a piece is a name such as [unused1] rather than text."""
    return len(piece) > 2 and piece[0] == "[" and piece[-1] == "]"
