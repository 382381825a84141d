"""What can be read off a pipeline of the Rust library: its kind, its size, its special tokens."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import tokenizers

from unmask.text.pipelines import PREFIX

# A vocabulary may have gaps, but an id far beyond the number of tokens would ask for a useless embedding table.
MAX_GAPS = 100_000


def kind_of(pipeline: tokenizers.Tokenizer) -> str:
    """wordpiece, bpe, byte_bpe; or the name of another model in lower case."""
    name = type(pipeline.model).__name__.lower()
    if name != "bpe":
        return name
    # Our byte fallback for WordPiece is a merging model with WordPiece's way of writing (see docs/decisions).
    if pipeline.model.continuing_subword_prefix == PREFIX:
        return "wordpiece"
    return "byte_bpe" if has_step(pipeline, "ByteLevel") else "bpe"


def lowercases(pipeline: tokenizers.Tokenizer) -> bool:
    """Whether a step of the pipeline lower-cases text."""
    for step in steps(described(pipeline.normalizer)):
        if step.get("type") == "Lowercase" or step.get("lowercase") is True:
            return True
    return False


def falls_back_to_bytes(pipeline: tokenizers.Tokenizer) -> bool:
    """Whether a character outside the vocabulary becomes its bytes."""
    return bool(getattr(pipeline.model, "byte_fallback", False))


def special_ids(pipeline: tokenizers.Tokenizer) -> frozenset[int]:
    """The ids of all special tokens."""
    return frozenset(number for number, token in pipeline.get_added_tokens_decoder().items() if token.special)


def vocab_size(pipeline: tokenizers.Tokenizer) -> int:
    """How many rows an embedding table for this vocabulary has: one more than the largest id."""
    return max(pipeline.get_vocab().values(), default=-1) + 1


def has_step(pipeline: tokenizers.Tokenizer, name: str) -> bool:
    """Whether a step of this type splits or writes text."""
    found = (described(pipeline.pre_tokenizer), described(pipeline.decoder))
    return any(step.get("type") == name for part in found for step in steps(part))


def described(step: object | None) -> dict[str, Any]:
    """The settings of a step as the library itself writes them; empty if there is no such step."""
    if step is None:
        return {}
    state: dict[str, Any] = json.loads(step.__getstate__())  # type: ignore[arg-type]
    return state


def steps(part: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """A step, or each step of a sequence of them."""
    for name in ("normalizers", "pretokenizers", "decoders"):
        for inner in part.get(name, ()):
            yield from steps(inner)
    yield part
