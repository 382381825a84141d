"""Reading a `vocab.txt`: one token on each line, its line number (from 0) is its id."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from types import MappingProxyType

from unmask.errors import DataError

# The largest published vocabularies have about 500,000 lines and 6 MB; beyond this it is some other file.
MAX_FILE_BYTES = 64 * 1024 * 1024
MAX_TOKENS = 1_000_000
MAX_TOKEN_LENGTH = 1000

PAD, UNK, CLS, SEP, MASK = "[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"
SPECIAL_TOKENS = (PAD, UNK, CLS, SEP, MASK)
BERT_NAMES: Mapping[str, str] = MappingProxyType({"pad": PAD, "unk": UNK, "cls": CLS, "sep": SEP, "mask": MASK})


def read_vocab(path: Path) -> list[str]:
    """The tokens of a `vocab.txt`, checked."""
    if not path.is_file():
        raise DataError("no such file; a vocabulary has one token on each line", file=path)
    size = path.stat().st_size
    if size > MAX_FILE_BYTES:
        raise DataError(
            f"{size:,} bytes are too many for a vocabulary (at most {MAX_FILE_BYTES:,}); is it the right file?",
            file=path,
        )
    try:
        # Universal newlines end a line, but not the rarer separators that `str.splitlines` also honours:
        # U+2028 is a token in some published vocabularies.
        with path.open(encoding="utf-8-sig") as lines:
            tokens = [line.removesuffix("\n") for line in islice(lines, MAX_TOKENS + 1)]
    except UnicodeDecodeError as error:
        raise DataError(f"not UTF-8 ({error.reason}); save the vocabulary as UTF-8", file=path) from None
    except OSError as error:
        raise DataError(f"cannot be read ({error.strerror or error})", file=path) from None
    while tokens and not tokens[-1]:
        tokens.pop()
    check_vocab(tokens, path)
    return tokens


def check_vocab(tokens: Sequence[str], path: Path | None = None) -> None:
    """DataError if these tokens cannot be the vocabulary of a BERT."""
    if not tokens:
        raise DataError("the vocabulary is empty; it must have one token on each line", file=path)
    if len(tokens) > MAX_TOKENS:
        raise DataError(f"more than {MAX_TOKENS:,} tokens; no vocabulary has so many, is it the right file?", file=path)
    first_seen: dict[str, int] = {}
    for line, token in enumerate(tokens, start=1):
        if not isinstance(token, str) or surrogate_position(token) is not None:
            raise DataError(f"the token {token!r} is not valid text", file=path, line=line)
        if len(token) > MAX_TOKEN_LENGTH:
            raise DataError(
                f"a token of {len(token):,} characters; the longest allowed has {MAX_TOKEN_LENGTH:,}. "
                "Is it a vocabulary, with one token on each line?",
                file=path,
                line=line,
            )
        if token in first_seen:
            raise DataError(
                f"the token {token!r} is there twice, first on line {first_seen[token]}; remove one "
                "(ids are line numbers, so replace it by an unused name such as [unused-1])",
                file=path,
                line=line,
            )
        first_seen[token] = line
    # Without these, text could not be wrapped or unknown words marked; adding them silently would
    # give ids beyond the embedding table of the model that belongs to the vocabulary.
    missing = [token for token in (UNK, CLS, SEP) if token not in first_seen]
    if missing:
        raise DataError(
            f"the vocabulary has no {' and no '.join(missing)}; add a line for each special token", file=path
        )


def surrogate_position(text: str) -> int | None:
    """Where a lone surrogate stands in a string, which has no UTF-8 form; None if there is none."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        return error.start
    return None


def check_words(words: Iterable[str]) -> None:
    """DataError if one of these cannot be added to a vocabulary as a token."""
    for word in words:
        if not isinstance(word, str) or not word or any(character.isspace() for character in word):
            raise DataError(f"cannot add {word!r} to the vocabulary; a token is a word without spaces")
        if len(word) > MAX_TOKEN_LENGTH or surrogate_position(word) is not None:
            raise DataError(f"cannot add {word[:40]!r} to the vocabulary; it is too long or not valid Unicode")
