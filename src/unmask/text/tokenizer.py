"""The tokenizer: strings to ids and back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import tokenizers

from unmask.errors import DataError, SettingsError
from unmask.text import facts, folders, pipelines, pruning
from unmask.text.encoding import Encoding
from unmask.text.panics import panics_told
from unmask.text.vocabulary import BERT_NAMES, check_vocab, check_words, read_vocab, surrogate_position


class Tokenizer:
    """Turns text into the ids of a vocabulary, exactly as published BERT tokenizers do, and ids into text.

    Attributes:
        kind: how words are cut: wordpiece, bpe, byte_bpe, or another model that a tokenizer.json asked for.
        vocab_size: how many rows an embedding table for the vocabulary has.
        lowercase: whether text is lower-cased.
        byte_fallback: whether a character outside the vocabulary becomes its bytes, not the unknown token.
        pad_id, unk_id, cls_id, sep_id, mask_id: the ids of the special tokens; None for one that is missing.
        special_ids: the ids of all special tokens.

    A tokenizer is never changed after it is made, so threads can share one.
    """

    def __init__(
        self,
        pipeline: tokenizers.Tokenizer,
        names: Mapping[str, str] = BERT_NAMES,
        config: Mapping[str, Any] | None = None,
    ) -> None:
        """Wrap a pipeline of the Rust library; `from_folder`, `from_vocab` and `train_tokenizer` do it for you."""
        # A published tokenizer.json may ask to cut at 128 tokens and to pad to 128; here neither happens unasked.
        pipeline.no_truncation()
        pipeline.no_padding()
        self._pipeline = pipeline
        self._names = {role: name for role, name in names.items() if pipeline.token_to_id(name) is not None}
        self._config = dict(config or {})
        self.kind: Final = facts.kind_of(pipeline)
        self.vocab_size: Final = facts.vocab_size(pipeline)
        self.lowercase: Final = facts.lowercases(pipeline)
        self.byte_fallback: Final = facts.falls_back_to_bytes(pipeline)
        self.special_ids: Final = facts.special_ids(pipeline)
        self.pad_id: Final = self._role("pad")
        self.unk_id: Final = self._role("unk")
        self.cls_id: Final = self._role("cls")
        self.sep_id: Final = self._role("sep")
        self.mask_id: Final = self._role("mask")

    def __repr__(self) -> str:
        case = "lower-cased" if self.lowercase else "cased"
        return f"Tokenizer({self.kind}, {self.vocab_size:,} tokens, {case})"

    @classmethod
    def from_folder(cls, folder: Path) -> Tokenizer:
        """The tokenizer of a model folder: its `tokenizer.json`, or else its `vocab.txt` with the settings beside."""
        found = folders.read_folder(Path(folder))
        return cls(found.pipeline, found.names, found.config)

    @classmethod
    def from_vocab(
        cls,
        vocab: Path | Sequence[str],
        *,
        lowercase: bool = True,
        strip_accents: bool | None = None,
        split_chinese: bool = True,
    ) -> Tokenizer:
        """BERT's tokenizer over a `vocab.txt` or a list of tokens; accents go when `lowercase`, unless told."""
        if isinstance(vocab, str | Path):
            tokens = read_vocab(Path(vocab))
        else:
            tokens = list(vocab)
            check_vocab(tokens)
        style = pipelines.Style("wordpiece", lowercase, strip_accents, split_chinese)
        return cls(pipelines.bert(tokens, style))

    def save(self, folder: Path) -> None:
        """Write the files from which `from_folder`, and the transformers library, make the same tokenizer."""
        folders.write_folder(Path(folder), self._pipeline, self._names, self._config)

    def encode(
        self, text: str, pair: str | None = None, *, max_length: int | None = None, special_tokens: bool = True
    ) -> Encoding:
        """The tokens of a text, or of a pair of texts.

        With `max_length` the longer text is cut first, and `coverage` and `num_dropped` say what is missing;
        without it nothing is ever cut.
        """
        self._check_length(max_length, pair is not None, special_tokens)
        _check_strings([text], "text")
        if pair is not None:
            _check_strings([pair], "pair")
        try:
            with panics_told():
                source = self._pipeline.encode(text, pair, add_special_tokens=special_tokens)
        except TypeError:
            _find_surrogate([text], "text")
            _find_surrogate([pair or ""], "pair")
            raise
        return Encoding(source, text, pair, max_length)

    def encode_batch(
        self,
        texts: Sequence[str],
        pairs: Sequence[str] | None = None,
        *,
        max_length: int | None = None,
        special_tokens: bool = True,
        offsets: bool = False,
    ) -> list[Encoding]:
        """The tokens of many texts, or pairs of texts; much faster than one at a time.

        Tokens as strings, offsets and words are found only when they are read, which costs as much as `encode`;
        who will read them for most texts says so with `offsets`.
        """
        self._check_length(max_length, pairs is not None, special_tokens)
        if isinstance(texts, str) or isinstance(pairs, str):
            raise DataError("encode_batch takes lists of texts but was given one string; use encode for one text")
        if pairs is not None and len(pairs) != len(texts):
            raise DataError(f"{len(texts)} texts and {len(pairs)} pairs were given; every text needs its pair")
        seconds: Sequence[str | None] = [None] * len(texts) if pairs is None else pairs
        _check_strings(texts, "text")
        _check_strings(pairs or (), "pair")
        inputs = list(texts) if pairs is None else list(zip(texts, pairs, strict=True))
        encode = self._pipeline.encode_batch if offsets else self._pipeline.encode_batch_fast
        try:
            with panics_told():
                sources = encode(inputs, add_special_tokens=special_tokens)
        except TypeError:
            _find_surrogate(texts, "text")
            _find_surrogate(pairs or (), "pair")
            raise
        finder = None if offsets else self._pipeline
        return [Encoding(*item, max_length, finder) for item in zip(sources, texts, seconds, strict=True)]

    def num_special_tokens(self, pair: bool = False) -> int:
        """How many special tokens are put around a text, or a pair of texts."""
        return self._pipeline.num_special_tokens_to_add(pair)

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """The text that ids stand for, up to the spaces and letter case that the vocabulary does not keep."""
        numbers = [self._checked(id) for id in ids]
        with panics_told():
            return self._pipeline.decode(numbers, skip_special_tokens=skip_special_tokens)

    def token(self, id: int) -> str:
        """The token with this id."""
        token = self._pipeline.id_to_token(self._checked(id))
        if token is None:
            raise DataError(f"the vocabulary has no token with the id {id}")
        return token

    def tokens(self, ids: Sequence[int]) -> list[str]:
        """The tokens with these ids."""
        return [self.token(id) for id in ids]

    def id(self, token: str) -> int | None:
        """The id of a token; None if the vocabulary does not have it."""
        return self._pipeline.token_to_id(token)

    @property
    def vocab(self) -> dict[str, int]:
        """All tokens with their ids; a new dictionary each time."""
        return self._pipeline.get_vocab()

    def normalize(self, text: str) -> str:
        """Text as it looks after cleaning (and lower-casing, if the tokenizer does that), before it is cut."""
        _find_surrogate([text], "text")
        step = self._pipeline.normalizer
        with panics_told():
            return text if step is None else str(step.normalize_str(text))

    def with_tokens(self, words: Sequence[str]) -> Tokenizer:
        """A new tokenizer whose vocabulary has these words too, at the end; the ids of the old ones stay.

        Words are written as the tokenizer would clean them (lower-cased if it lower-cases); those with Chinese
        characters are taken, and found, as they are. Known words are passed over. A model that uses the new
        tokenizer needs one more embedding for each new token.
        """
        if isinstance(words, str):
            raise DataError(f"with_tokens takes a list of words but was given one string, {words!r}")
        check_words(words)
        return Tokenizer(pipelines.extended(self._pipeline, words), self._names, self._config)

    @property
    def indispensable(self) -> frozenset[int]:
        """The ids that `with_only` must be given: special tokens and single letters, so that words can be spelt."""
        vocab = self.vocab
        return frozenset(vocab[token] for token in pruning.must_stay(self._pipeline))

    def with_only(self, ids: Sequence[int]) -> Tokenizer:
        """A new tokenizer that has only these tokens, in this order; the first gets the id 0, the next 1, …

        No text that could be written becomes unknown: DataError unless every letter of the vocabulary is kept.
        """
        tokens = self.tokens(ids)
        if len(set(tokens)) < len(tokens):
            raise DataError("a token can be kept only once")
        pruning.check_kept(self._pipeline, tokens)
        return Tokenizer(pruning.pruned(self._pipeline, tokens), self._names, self._config)

    def _role(self, role: str) -> int | None:
        name = self._names.get(role)
        return None if name is None else self._pipeline.token_to_id(name)

    def _checked(self, id: int) -> int:
        number = int(id)  # also from the integers of arrays
        if not 0 <= number < self.vocab_size:
            raise DataError(f"the id {number} is outside the vocabulary, whose ids go from 0 to {self.vocab_size - 1}")
        return number

    def _check_length(self, max_length: int | None, pair: bool, special_tokens: bool) -> None:
        if max_length is None:
            return
        needed = self.num_special_tokens(pair) if special_tokens else 0
        if max_length < max(needed, 1):
            raise SettingsError(
                f"max_length: {max_length} is too small to hold the {needed} special tokens around "
                f"{'a pair of texts' if pair else 'a text'}; use at least {needed + 1 + pair}"
            )


def _check_strings(texts: Sequence[object], name: str) -> None:
    for number, text in enumerate(texts):
        if not isinstance(text, str):
            where = name if len(texts) == 1 else f"{name} {number}"
            raise DataError(f"{where} must be a string but is {text!r:.60}, a {type(text).__name__}")


def _find_surrogate(texts: Sequence[str], name: str) -> None:
    """The Rust library takes only text that has a UTF-8 form; say which character does not."""
    for number, text in enumerate(texts):
        position = surrogate_position(text)
        if position is not None:
            where = name if len(texts) == 1 else f"{name} {number}"
            raise DataError(
                f"{where} has a lone surrogate, U+{ord(text[position]):04X}, at position {position}, "
                "which is half a character; decode the text again with errors='replace' or remove it"
            )
