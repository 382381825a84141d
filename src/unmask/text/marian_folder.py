"""The files of a published translator's tokenizers: source.spm, target.spm, vocab.json and what stands beside them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from os.path import lexists
from pathlib import Path
from typing import Any

from unmask.config import read_json
from unmask.errors import ModelError, SettingsError
from unmask.storage import atomic_write
from unmask.text.marian import AddedToken, MarianTokenizer, MarianVocabulary
from unmask.text.sentencepiece import SentencePiece
from unmask.text.vocabulary import MAX_TOKENS, surrogate_position

SOURCE_PIECES, TARGET_PIECES = "source.spm", "target.spm"
VOCAB, TARGET_VOCAB = "vocab.json", "target_vocab.json"
_CONFIG = "tokenizer_config.json"


def has_marian_tokenizers(folder: Path) -> bool:
    """Whether a folder has the files of such tokenizers."""
    return lexists(folder / SOURCE_PIECES)


def read_marian_tokenizers(folder: Path) -> tuple[MarianTokenizer, MarianTokenizer]:
    """The tokenizers of the source and of the target; ModelError in one sentence if a file is missing or damaged."""
    config = _read_object(folder / _CONFIG)
    separate, tidy = (_flag(config, name, folder) for name in ("separate_vocabs", "clean_up_tokenization_spaces"))
    vocabulary = _vocabulary(folder, VOCAB, config)
    ours = SentencePiece.read(folder / SOURCE_PIECES)
    theirs = SentencePiece.read(folder / TARGET_PIECES)
    source = MarianTokenizer(ours, vocabulary, speller=ours, tidy=tidy)
    if separate:
        return source, MarianTokenizer(theirs, _vocabulary(folder, TARGET_VOCAB, config), speller=theirs, tidy=tidy)
    return source, MarianTokenizer(theirs, vocabulary, speller=ours, tidy=tidy)


def write_marian_tokenizers(folder: Path, source: MarianTokenizer, target: MarianTokenizer) -> None:
    """Write files from which both, and `transformers.MarianTokenizer`, are made again."""
    atomic_write(folder / SOURCE_PIECES, source.pieces.file.data)
    atomic_write(folder / TARGET_PIECES, target.pieces.file.data)
    _write_json(folder / VOCAB, dict(source.vocabulary.ids))
    config: dict[str, Any] = {
        "tokenizer_class": "MarianTokenizer",
        "eos_token": source.vocabulary.end,
        "unk_token": source.vocabulary.unknown,
        "pad_token": source.vocabulary.pad,
        "clean_up_tokenization_spaces": source.tidy,
    }
    if source.vocabulary.added:
        config["added_tokens_decoder"] = {
            str(token.id): {"content": token.text, "special": token.special, "normalized": False}
            for token in source.vocabulary.added
        }
    if target.vocabulary is not source.vocabulary:
        config["separate_vocabs"] = True
        _write_json(folder / TARGET_VOCAB, dict(target.vocabulary.ids))
    _write_json(folder / _CONFIG, config)


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    atomic_write(path, (json.dumps(content, ensure_ascii=False, indent=1) + "\n").encode())


def _vocabulary(folder: Path, name: str, config: Mapping[str, Any]) -> MarianVocabulary:
    path = folder / name
    if not lexists(path):
        raise ModelError(f"{folder}: has no {name}, which gives the pieces their ids; download the folder again")
    ids = _read_object(path)
    seen: dict[int, str] = {}
    for token, number in ids.items():
        if type(number) is not int or not 0 <= number < MAX_TOKENS:
            raise ModelError(f"{path}: the token {token!r:.60} has the id {number!r:.60}, which is no id")
        if number in seen:
            raise ModelError(f"{path}: the tokens {seen[number]!r:.60} and {token!r:.60} have the same id, {number}")
        seen[number] = token
    named = _names(folder, config)
    for role in ("eos_token", "unk_token"):
        if named[role] not in ids:
            raise ModelError(f"{path}: has no {named[role]} ({role}), which every text or unknown piece needs")
    added = tuple(sorted(_added(folder, config, ids)))
    return MarianVocabulary(ids, named["eos_token"], named["unk_token"], named["pad_token"], added)


def _names(folder: Path, config: Mapping[str, Any]) -> dict[str, str]:
    """How the special tokens are written: as the folder says, else as is usual."""
    names = {"eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
    for source in (_read_object(folder / "special_tokens_map.json"), config):
        for role in names:
            said = source.get(role)
            said = said.get("content") if isinstance(said, dict) else said
            if isinstance(said, str) and said:
                names[role] = said
    return names


def _added(folder: Path, config: Mapping[str, Any], ids: Mapping[str, int]) -> Iterator[AddedToken]:
    """Tokens beside the pieces, in either of the two ways in which folders list them."""
    path, listed = folder / _CONFIG, config.get("added_tokens_decoder")
    if listed is None:
        path = folder / "added_tokens.json"
        listed = {str(number): {"content": text} for text, number in _read_object(path).items()}
    if not isinstance(listed, dict):
        raise ModelError(f"{path}: added_tokens_decoder must be an object but is a {type(listed).__name__}")
    for number, fields in listed.items():
        text = fields.get("content") if isinstance(fields, dict) else None
        if not number.isdecimal() or int(number) >= MAX_TOKENS or not isinstance(text, str) or not text:
            raise ModelError(f"{path}: the added token {number!r:.60} cannot be read; it needs an id and a content")
        for flag in ("lstrip", "rstrip", "single_word"):
            if fields.get(flag):
                raise ModelError(f"{path}: the added token {text!r:.60} asks for {flag}, which is not supported")
        if ids.get(text, int(number)) != int(number):
            raise ModelError(f"{path}: the added token {text!r:.60} has the id {number} but {ids[text]} in {VOCAB}")
        yield AddedToken(int(number), text, fields.get("special") is True)


def _flag(config: Mapping[str, Any], name: str, folder: Path) -> bool:
    value = config.get(name)
    if value is not None and not isinstance(value, bool):
        raise ModelError(f"{folder / _CONFIG}: {name} must be true or false but is {value!r:.60}")
    return value is True


def _read_object(path: Path) -> dict[str, Any]:
    """The object in a JSON file; empty if there is no such file."""
    if not lexists(path):
        return {}
    try:
        content = read_json(path)
    except SettingsError as error:
        raise ModelError(str(error)) from None
    if not isinstance(content, dict):
        raise ModelError(f"{path}: must be a JSON object but is a {type(content).__name__}")
    if surrogate_position("".join(content)) is not None:
        raise ModelError(f"{path}: has half a character in it (a lone surrogate, \\ud800 to \\udfff); remove it")
    return content
