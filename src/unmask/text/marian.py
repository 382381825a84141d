"""The tokenizers of published translators (opus-mt): pieces by SentencePiece, ids by vocab.json.

They give what `transformers.MarianTokenizer` gives. A piece that SentencePiece does not know is looked for in
vocab.json all the same: it is made for both languages, so it often has what one side alone does not know.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, NoReturn, cast

import tokenizers
from tokenizers import models

from unmask.errors import DataError, ModelError, TaskError
from unmask.text.encoding import Encoding
from unmask.text.pipelines import SPACE_MARK
from unmask.text.scripts import is_han
from unmask.text.sentencepiece import Found, SentencePiece
from unmask.text.tokenizer import Tokenizer
from unmask.text.vocabulary import surrogate_position

_CODE_START, _CODE_END = ">>", "<<"  # around the name of the language to translate into
#: What a folder may ask to undo in translated text; in this order.
_TIDYING = (" .", " ?", " !", " ,", " ' ", " n't", " 'm", " 's", " 've", " 're")


class AddedToken(NamedTuple):
    """A token beside the pieces, which is found in a text wherever it is typed."""

    id: int
    text: str
    special: bool


@dataclass(frozen=True)
class MarianVocabulary:
    """Tokens with their ids, and those that have a meaning of their own."""

    ids: Mapping[str, int]
    end: str = "</s>"
    unknown: str = "<unk>"
    pad: str = "<pad>"
    added: tuple[AddedToken, ...] = ()

    @property
    def names(self) -> dict[str, str]:
        """Role → token, by the roles of every tokenizer."""
        return {"sep": self.end, "unk": self.unknown, "pad": self.pad}


class MarianTokenizer(Tokenizer):
    """One side of a published translator. Language codes such as `>>deu<<` at the start of a text are tokens."""

    def __init__(
        self, pieces: SentencePiece, vocabulary: MarianVocabulary, *, speller: SentencePiece, tidy: bool = False
    ) -> None:
        """`speller` turns pieces into text, which is the source's for both sides where they share their ids."""
        super().__init__(_lookup(pieces.file.kind, vocabulary), vocabulary.names)
        self.pieces, self.vocabulary, self.tidy = pieces, vocabulary, tidy
        self._speller = speller
        self._ids = {**vocabulary.ids, **{token.text: token.id for token in vocabulary.added}}
        self._unknown = vocabulary.ids[vocabulary.unknown]
        typed = {*vocabulary.names.values(), *(token.text for token in vocabulary.added)}
        self._typed = re.compile("|".join(re.escape(token) for token in sorted(typed, key=len, reverse=True)))

    def encode(
        self, text: str, pair: str | None = None, *, max_length: int | None = None, special_tokens: bool = True
    ) -> Encoding:
        """The tokens of a text, with an end token behind them if `special_tokens`."""
        if pair is not None:
            raise DataError("a translator's tokenizer takes single texts, not pairs")
        return self.encode_batch([text], max_length=max_length, special_tokens=special_tokens)[0]

    def encode_batch(
        self,
        texts: Sequence[str],
        pairs: Sequence[str] | None = None,
        *,
        max_length: int | None = None,
        special_tokens: bool = True,
        offsets: bool = False,
    ) -> list[Encoding]:
        """The tokens of many texts; offsets come with them, asked for or not."""
        if isinstance(texts, str) or pairs is not None:
            raise DataError("a translator's tokenizer takes a list of single texts, not pairs and not one string")
        if max_length is not None and max_length < 1 + special_tokens:
            raise DataError(f"max_length {max_length} leaves no room for text; use at least {1 + special_tokens}")
        return [self._encoding(text, max_length, special_tokens) for text in texts]

    def num_special_tokens(self, pair: bool = False) -> int:
        """How many special tokens are put around a text."""
        return 1

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """The text that ids stand for."""
        made, waiting = "", []
        for id in map(int, ids):
            token = self.token(id)
            if id not in self.special_ids:
                waiting.append(token)
            elif not skip_special_tokens:
                made += self._speller.decode(waiting) + token + " "
                waiting = []
        made = (made + self._speller.decode(waiting)).replace(SPACE_MARK, " ").strip()
        for spaced in _TIDYING if self.tidy else ():
            made = made.replace(spaced, spaced.strip())
        return made

    def normalize(self, text: str) -> str:
        """Text as it looks after cleaning, before it is cut; spaces are written ▁."""
        return self.pieces.normalise(text)

    def save(self, folder: object) -> NoReturn:
        """Not by itself: the files of a translator hold both of its sides."""
        raise TaskError("a translator's tokenizers are saved together, with the translator")

    def with_tokens(self, words: Sequence[str]) -> NoReturn:
        """Not possible: pieces have scores, which new ones would not have."""
        raise TaskError("a vocabulary of SentencePiece cannot take new tokens")

    def _encoding(self, text: object, max_length: int | None, special_tokens: bool) -> Encoding:
        if not isinstance(text, str):
            raise DataError(f"a text must be a string but is {text!r:.60}, a {type(text).__name__}")
        position = surrogate_position(text)
        if position is not None:
            raise DataError(
                f"a text has a lone surrogate, U+{ord(text[position]):04X}, at position {position}, "
                "which is half a character; decode the text again with errors='replace' or remove it"
            )
        tokens = _Tokens()
        for token, start, end in self._found(text):
            tokens.add(token, self._ids.get(token, self._unknown), (start, end))
        if special_tokens:
            tokens.close(self.vocabulary.end, self._ids[self.vocabulary.end])
        # It has all that is read of the library's own class, which cannot be made from here.
        return Encoding(cast(tokenizers.Encoding, tokens), text, None, max_length)

    def _found(self, text: str) -> Iterator[Found]:
        """The tokens of a text: what is typed as one, and the pieces between them."""
        place = 0
        for match in self._typed.finditer(text):
            yield from self._between(text, place, match.start())
            yield Found(match.group(), *match.span())
            place = match.end()
        yield from self._between(text, place, len(text))

    def _between(self, text: str, start: int, end: int) -> Iterator[Found]:
        stretch = text[start:end]
        code = stretch.find(_CODE_END) + len(_CODE_END)
        if stretch.startswith(_CODE_START) and code >= len(_CODE_END):
            yield Found(stretch[:code], start, start + code)
            start, stretch = start + code, stretch[code:]
        for piece, first, last in self.pieces.encode(stretch):
            yield Found(piece, start + first, start + last)


@dataclass
class _Tokens:
    """What an Encoding reads, one item for each token."""

    ids: list[int] = field(default_factory=list)
    tokens: list[str] = field(default_factory=list)
    offsets: list[tuple[int, int]] = field(default_factory=list)
    word_ids: list[int | None] = field(default_factory=list)
    sequence_ids: list[int | None] = field(default_factory=list)
    special_tokens_mask: list[int] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def type_ids(self) -> list[int]:
        return [0] * len(self.ids)

    def add(self, token: str, id: int, span: tuple[int, int]) -> None:
        """One more token of the text."""
        word = self.word_ids[-1] if self.word_ids else None
        if word is None or not _goes_on(self.tokens[-1], token):
            word = 0 if word is None else word + 1
        self._append(token, id, span, word, 0)

    def close(self, token: str, id: int) -> None:
        """The token behind the text."""
        self._append(token, id, (0, 0), None, None)

    def _append(self, token: str, id: int, span: tuple[int, int], word: int | None, owner: int | None) -> None:
        self.ids.append(id)
        self.tokens.append(token)
        self.offsets.append(span)
        self.word_ids.append(word)
        self.sequence_ids.append(owner)
        self.special_tokens_mask.append(int(owner is None))


def _goes_on(before: str, piece: str) -> bool:
    """Whether a piece goes on with the word of the one before it."""
    if piece.startswith(SPACE_MARK):
        return False
    if before == SPACE_MARK:
        return True
    first, last = piece[0], before[-1]
    return first.isalnum() and last.isalnum() and not (is_han(first) or is_han(last))


def _lookup(kind: str, vocabulary: MarianVocabulary) -> tokenizers.Tokenizer:
    """A pipeline that only knows tokens and their ids: text is cut by our own steps."""
    ids, unknown = vocabulary.ids, vocabulary.unknown
    model: Any
    if kind == "unigram" and sorted(ids.values()) == list(range(len(ids))):
        ordered = sorted(ids, key=ids.__getitem__)
        model = models.Unigram([(token, 0.0) for token in ordered], unk_id=ids[unknown])
    else:
        model = models.BPE(dict(ids), [], unk_token=unknown)
    pipeline = tokenizers.Tokenizer(model)
    pipeline.add_special_tokens([token for token in vocabulary.names.values() if token in ids])
    for token in vocabulary.added:
        (pipeline.add_special_tokens if token.special else pipeline.add_tokens)([token.text])
        if pipeline.token_to_id(token.text) != token.id:
            raise ModelError(
                f"the added token {token.text!r:.60} should have the id {token.id} but the vocabulary gives it "
                f"{pipeline.token_to_id(token.text)}; the files do not belong together"
            )
    return pipeline
