"""The two vocabularies of a translator, and how it is to be used: what its weights do not say, kept beside them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from unmask.config import Settings, read_json
from unmask.data.translation import EncodedPairs, Frame, Sequences
from unmask.decode.settings import DecodeSettings
from unmask.decode.stepping import TargetIds
from unmask.errors import ModelError, SettingsError
from unmask.storage import atomic_write
from unmask.tasks.translate_marian import SpecialIds, read_marian_folder
from unmask.tasks.usage import USAGE
from unmask.text.encoding import Encoding
from unmask.text.marian import MarianTokenizer
from unmask.text.marian_folder import has_marian_tokenizers, read_marian_tokenizers, write_marian_tokenizers
from unmask.text.tokenizer import Tokenizer

SOURCE, TARGET = "source", "target"  # folders of the tokenizers, where there are two
SPECIAL = "unmask_special_ids.json"
_CODE = re.compile(r"\s*>>[^<>\s]+<<\s*")
_NOBODY_KNOWS = "\U000f0000"  # a character for private use, which no vocabulary has learned


class TranslateUsage(Settings):
    """How a translator reads and writes."""

    task: Literal["translate"] = "translate"
    max_source: Annotated[int, Field(ge=2)]
    """Tokens of a source that are read at once, the end token too; longer ones are split."""
    decode: DecodeSettings = DecodeSettings()


@dataclass(frozen=True)
class Languages:
    """What turns sources into ids, and ids into targets; the same tokenizer twice where the vocabulary is joint."""

    source: Tokenizer
    target: Tokenizer
    #: The ids around a sentence where they are not BERT's.
    special: SpecialIds | None = field(default=None, kw_only=True)

    @classmethod
    def from_folder(cls, folder: Path) -> Languages:
        """The tokenizers of a model folder."""
        special = _special(folder)
        if has_marian_tokenizers(folder):
            made = cls(*read_marian_tokenizers(folder), special=special)
        elif (folder / SOURCE).is_dir():
            source, target = (Tokenizer.from_folder(folder / name) for name in (SOURCE, TARGET))
            made = cls(source, target, special=special)
        else:
            joint = Tokenizer.from_folder(folder)
            made = cls(joint, joint, special=special)
        made._check(folder)
        return made

    def save(self, folder: Path) -> None:
        """Write them into a model folder."""
        if self.special is not None:
            _write_settings(folder / SPECIAL, self.special)
        if isinstance(self.source, MarianTokenizer) and isinstance(self.target, MarianTokenizer):
            write_marian_tokenizers(folder, self.source, self.target)
            return
        if self.is_joint:
            self.source.save(folder)
            return
        for name, tokenizer in ((SOURCE, self.source), (TARGET, self.target)):
            (folder / name).mkdir()
            tokenizer.save(folder / name)

    @property
    def is_joint(self) -> bool:
        """Whether one vocabulary serves both languages."""
        return self.source is self.target

    @cached_property
    def frame(self) -> Frame:
        """The special tokens around a sentence: BERT's first and last, unless the folder says otherwise."""
        if self.special is not None:
            end, behind = self.special.end, self.source.sep_id
            return Frame(self.special.start, end, end if behind is None else behind)
        ids = (self.target.cls_id, self.target.sep_id, self.source.sep_id)
        if None in ids:
            raise ModelError("a translator's vocabularies need [CLS] and [SEP], to start and to end a sentence")
        return Frame(*(int(id) for id in ids if id is not None))

    @cached_property
    def target_ids(self) -> TargetIds:
        """What decoding must know of the target's vocabulary."""
        target, end = self.target, self.frame.end
        never = {id for id in target.special_ids if id not in (end, target.unk_id)}
        never |= set() if self.special is None else {*self.special.never} - {end}
        # Published translators may write what they do not know, as they do elsewhere.
        unknown = None if isinstance(target, MarianTokenizer) else target.unk_id
        return TargetIds(self.frame.start, end, unknown, tuple(sorted(never)))

    @cached_property
    def unknown(self) -> tuple[list[int], list[int]]:
        """How a character that nobody knows, with a space before it, is written on either side."""
        return self.source_ids(_NOBODY_KNOWS), self.target_ids_of(_NOBODY_KNOWS)

    def code_of(self, text: str) -> str:
        """The code at the start of a text that says into which language (`>>deu<<`), where the model knows such."""
        found = _CODE.match(text) if isinstance(self.source, MarianTokenizer) else None
        return "" if found is None else found.group()

    def source_ids(self, text: str) -> list[int]:
        """A source without special tokens."""
        return self.source.encode(text, special_tokens=False).ids

    def target_ids_of(self, text: str) -> list[int]:
        """A target without special tokens."""
        return self.target.encode(text, special_tokens=False).ids

    def encode_sources(self, texts: Sequence[str], *, offsets: bool = False) -> list[Encoding]:
        """Sources without special tokens."""
        return self.source.encode_batch(texts, special_tokens=False, offsets=offsets)

    def encode_pairs(self, sources: Sequence[str], targets: Sequence[str]) -> EncodedPairs:
        """Both sides as ids."""
        return EncodedPairs(Sequences(_ids(self.source, sources)), Sequences(_ids(self.target, targets)), self.frame)

    def _check(self, folder: Path) -> None:
        """ModelError where a folder's files speak of different vocabularies."""
        for name in ("start", "end") if self.special is not None else ():
            given, size = getattr(self.special, name), self.target.vocab_size
            if given >= size:
                raise ModelError(f"{folder}: the {name} token has the id {given}, but the vocabulary {size} tokens")
        marian = read_marian_folder(folder)
        if marian is not None:
            for name, tokenizer in (("vocab_size", self.source), ("decoder_vocab_size", self.target)):
                known = getattr(marian, name)
                if tokenizer.vocab_size > known:
                    raise ModelError(
                        f"{folder}: the tokenizer has {tokenizer.vocab_size} tokens but {name} is {known}; "
                        "they do not belong together"
                    )


def _ids(tokenizer: Tokenizer, texts: Sequence[str], at_once: int = 10_000) -> Iterable[list[int]]:
    for start in range(0, len(texts), at_once):
        for encoding in tokenizer.encode_batch(texts[start : start + at_once], special_tokens=False):
            yield encoding.ids


def read_translate_usage(folder: Path) -> TranslateUsage | None:
    """How the translator in a folder is to be used; None if none is there."""
    path = folder / USAGE
    if not path.is_file():
        marian = read_marian_folder(folder)
        return None if marian is None else TranslateUsage(max_source=marian.max_source, decode=marian.decode)
    try:
        data = read_json(path)
        if not isinstance(data, dict) or data.get("task") != "translate":
            return None
        return TranslateUsage.parse(data, str(path))
    except SettingsError as error:
        raise ModelError(str(error)) from None


def write_translate_usage(folder: Path, usage: TranslateUsage) -> None:
    """Keep it in a model folder."""
    _write_settings(folder / USAGE, usage)


def _write_settings(path: Path, settings: Settings) -> None:
    text = json.dumps(settings.model_dump(mode="json"), indent=1, ensure_ascii=False)
    atomic_write(path, (text + "\n").encode())


def _special(folder: Path) -> SpecialIds | None:
    """The ids around a sentence: those that we have kept, those of a Marian folder, or None for BERT's."""
    path = folder / SPECIAL
    if not path.is_file():
        marian = read_marian_folder(folder)
        return None if marian is None else marian.special
    try:
        return SpecialIds.read(path)
    except SettingsError as error:
        raise ModelError(str(error)) from None
