"""Learning a vocabulary from text files."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Self

import tokenizers
from pydantic import Field, model_validator
from tokenizers import pre_tokenizers, trainers

from unmask.config import Settings
from unmask.errors import DataError, SettingsError
from unmask.text import alphabet, facts, pipelines
from unmask.text.files import TextEncoding, read_lines_at, size_of
from unmask.text.pipelines import BYTE_TOKENS, PREFIX, SPACE_MARK, Kind, Style
from unmask.text.tokenizer import Tokenizer
from unmask.text.vocabulary import MAX_TOKENS, SPECIAL_TOKENS, check_words

# Longer lines are handed on in pieces: the library works on many lines at once, and they may be whole books.
PIECE_LENGTH = 32_768


class VocabularySettings(Settings):
    """What vocabulary to learn."""

    kind: Kind = "wordpiece"
    size: int = Field(default=30_000, ge=1, le=MAX_TOKENS)
    lowercase: bool = True
    strip_accents: bool | None = None
    """Whether accents are removed (wordpiece only); None means as `lowercase`."""
    split_chinese: bool = True
    """Whether each Chinese character is a token by itself."""
    min_frequency: int = Field(default=2, ge=1)
    """Characters and pairs of pieces that occur less often get no token."""
    character_coverage: float = Field(default=0.9995, gt=0.0, le=1.0)
    """Share of the text whose characters get a token; the rarest beyond it do not eat up the vocabulary."""
    character_share: float = Field(default=0.75, gt=0.0, le=1.0)
    """At most this share of the vocabulary goes to single characters; the rest is left for longer pieces."""
    byte_fallback: bool = False
    """Whether a character without a token is written as its bytes, so that none is lost."""
    special_tokens: tuple[str, ...] = ()
    """Special tokens beyond [PAD] [UNK] [CLS] [SEP] [MASK]."""
    encoding: TextEncoding = "utf-8"
    """How the files are written."""

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.kind == "byte_bpe" and self.byte_fallback:
            raise ValueError("byte_fallback: every token of byte_bpe is made of bytes already; leave it out")
        if self.kind != "wordpiece" and self.strip_accents is not None:
            raise ValueError(f"strip_accents: only wordpiece can remove accents, not {self.kind}")
        return self

    @property
    def style(self) -> Style:
        """How text is cleaned and split."""
        return Style(self.kind, self.lowercase, self.strip_accents, self.split_chinese, self.byte_fallback)


@dataclass(frozen=True)
class Progress:
    """How far training has come: bytes of the files read so far in this stage, of all bytes."""

    stage: Literal["counting characters", "counting words", "merging"]
    done: int
    total: int


OnProgress = Callable[[Progress], None]


def train_tokenizer(
    files: Sequence[Path], settings: VocabularySettings, on_progress: OnProgress | None = None
) -> Tokenizer:
    """Learn one vocabulary over all files together.

    The files are streamed, twice unless the kind is byte_bpe; what stays in memory is how often each word occurs.
    The same files and settings always give the same vocabulary.
    """
    corpus = _Corpus([Path(file) for file in files], settings.encoding, on_progress)
    fixed = _fixed_tokens(settings, corpus)
    style = settings.style
    learner = tokenizers.Tokenizer(pipelines.merging_model(style))
    if (cleaning := pipelines.normalizer(style)) is not None:
        learner.normalizer = cleaning
    learner.pre_tokenizer = pipelines.splitter(style, pipelines.characters_of(fixed))
    learner.train_from_iterator(corpus.lines("counting words"), _trainer(settings, fixed))
    if corpus.is_blank:
        raise DataError(f"there is no text in {', '.join(str(file) for file in files)}")
    return _assembled(learner, settings)


def _fixed_tokens(settings: VocabularySettings, corpus: _Corpus) -> list[str]:
    """The tokens that are there before any pair is merged, in the order of their ids."""
    check_words(settings.special_tokens)
    fixed = list(dict.fromkeys((*SPECIAL_TOKENS, *settings.special_tokens)))
    if settings.byte_fallback:
        fixed += BYTE_TOKENS
    if settings.kind == "byte_bpe":
        fixed += sorted(pre_tokenizers.ByteLevel.alphabet())
    room = settings.size - len(fixed)
    if room < 1:
        raise SettingsError(
            f"size: {settings.size} cannot hold the {len(fixed)} tokens that this vocabulary always has; "
            f"use at least {len(fixed) + 1}, better thousands"
        )
    if settings.kind == "byte_bpe":
        return fixed
    style = settings.style
    cleaning = pipelines.normalizer(style)
    counts = alphabet.count_characters(corpus.lines("counting characters"), cleaning)
    chosen = alphabet.choose_alphabet(
        counts, coverage=settings.character_coverage, min_frequency=settings.min_frequency
    )
    if settings.kind == "bpe":
        chosen = [SPACE_MARK, *(character for character in chosen if character != SPACE_MARK)]
    plain = pipelines.splitter(Style(settings.kind, split_chinese=settings.split_chinese))
    most = max(1, int(room * settings.character_share))
    return fixed + alphabet.spellings(chosen, _prefix(settings) or "", plain, most, cleaning)


def _trainer(settings: VocabularySettings, fixed: list[str]) -> trainers.BpeTrainer:
    """The library's trainer, made deterministic.

    Left alone it numbers characters in the order of a hash table, cuts the alphabet at random among equals, and
    breaks ties between pairs by these numbers. Passed as "special" tokens they have their numbers beforehand.
    """
    characters = pipelines.characters_of(fixed)
    trainer = trainers.BpeTrainer(
        vocab_size=settings.size,
        min_frequency=settings.min_frequency,
        show_progress=False,
        special_tokens=fixed,
        initial_alphabet=characters,
        limit_alphabet=len(characters),
    )
    trainer.continuing_subword_prefix = _prefix(settings)
    return trainer


def _assembled(learner: tokenizers.Tokenizer, settings: VocabularySettings) -> Tokenizer:
    """The tokenizer for what was learned, without the trainer's notion of what is special."""
    vocab = learner.get_vocab()
    extra = settings.special_tokens
    if settings.kind == "wordpiece" and not settings.byte_fallback:
        return Tokenizer(pipelines.bert(sorted(vocab, key=vocab.__getitem__), settings.style, extra))
    merges = [(first, second) for first, second in facts.described(learner.model)["merges"]]
    return Tokenizer(pipelines.merging(vocab, merges, settings.style, extra))


def _prefix(settings: VocabularySettings) -> str | None:
    return PREFIX if settings.kind == "wordpiece" else None


class _Corpus:
    """The text of several files, streamed as often as it is asked for."""

    def __init__(self, files: Sequence[Path], encoding: TextEncoding, on_progress: OnProgress | None) -> None:
        if not files:
            raise DataError("no files to learn a vocabulary from were given")
        self._files = files
        self._encoding = encoding
        self._on_progress = on_progress
        self._sizes = [size_of(file) for file in files]
        self.is_blank = True

    def lines(self, stage: Literal["counting characters", "counting words"]) -> Iterator[str]:
        """All lines, the very long ones in pieces; calls the callback about once for each percent."""
        total = sum(self._sizes)
        reported = before = 0
        for file, size in zip(self._files, self._sizes, strict=True):
            for line, position in read_lines_at(file, encoding=self._encoding):
                if line and not line.isspace():
                    self.is_blank = False
                    yield from _pieces(line)
                if before + position - reported > total // 100:
                    reported = before + position
                    self._report(stage, reported, total)
            before += size
        self._report(stage, total, total)
        if stage == "counting words":
            self._report("merging", total, total)

    def _report(
        self, stage: Literal["counting characters", "counting words", "merging"], done: int, total: int
    ) -> None:
        if self._on_progress is not None:
            self._on_progress(Progress(stage, min(done, total), total))


def _pieces(line: str) -> Iterator[str]:
    """A line in pieces of bounded length, cut at spaces where there are any."""
    start = 0
    while len(line) - start > PIECE_LENGTH:
        space = line.rfind(" ", start + 1, start + PIECE_LENGTH)
        end = space if space > 0 else start + PIECE_LENGTH
        yield line[start:end]
        start = end
    yield line[start:]
