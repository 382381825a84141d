"""Tokenizers in model folders: the files that published models come with, read strictly and written atomically."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from os.path import lexists
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken, models, normalizers

from unmask.config import read_json
from unmask.errors import ModelError
from unmask.storage import atomic_write, disk_trouble
from unmask.text import facts, pipelines
from unmask.text.panics import is_ours
from unmask.text.vocabulary import SPECIAL_TOKENS, read_vocab, surrogate_position

MAX_JSON_BYTES = 256 * 1024 * 1024

# How the same special token is called by different families, for folders that do not say it.
_USUAL_NAMES = {
    "pad": ("[PAD]", "<pad>", "<|padding|>"),
    "unk": ("[UNK]", "<unk>"),
    "cls": ("[CLS]", "<s>"),
    "sep": ("[SEP]", "</s>"),
    "mask": ("[MASK]", "<mask>"),
}
_BERT_SETTINGS = {
    "do_lower_case": "lowercase",
    "strip_accents": "strip_accents",
    "tokenize_chinese_chars": "handle_chinese_chars",
}


@dataclass(frozen=True)
class Found:
    """A tokenizer as it lay in a folder."""

    pipeline: tokenizers.Tokenizer
    names: Mapping[str, str]
    config: Mapping[str, Any]


def read_folder(folder: Path) -> Found:
    """The tokenizer of a model folder; ModelError or DataError in one sentence if it is missing or broken."""
    if not folder.is_dir():
        raise ModelError(f"{folder}: no such folder; a tokenizer is a folder with tokenizer.json or vocab.txt")
    config = _read_object(folder / "tokenizer_config.json")
    if lexists(folder / "tokenizer.json"):
        pipeline = _read_pipeline(folder / "tokenizer.json")
        _apply_config(pipeline, config, folder)
    elif lexists(folder / "vocab.txt"):
        pipeline = _from_vocab(folder, config)
    else:
        raise ModelError(f"{folder}: has neither tokenizer.json nor vocab.txt, so there is no tokenizer in it")
    names = _special_names(pipeline, config, _read_object(folder / "special_tokens_map.json"))
    _try_out(pipeline, folder)
    return Found(pipeline, names, config)


def write_folder(
    folder: Path, pipeline: tokenizers.Tokenizer, names: Mapping[str, str], config: Mapping[str, Any]
) -> None:
    """Write tokenizer.json, tokenizer_config.json and, for plain WordPiece, vocab.txt."""
    with disk_trouble(folder):
        folder.mkdir(parents=True, exist_ok=True)
    plain = isinstance(pipeline.model, models.WordPiece)
    settings = facts.described(pipeline.normalizer)
    written = {key: settings[name] for key, name in _BERT_SETTINGS.items() if name in settings}
    written |= {f"{role}_token": name for role, name in names.items()}
    # Only this class reads tokenizer.json as it stands; the others build their own pipeline from the vocabulary.
    written["tokenizer_class"] = config.get("tokenizer_class", "BertTokenizer") if plain else "PreTrainedTokenizerFast"
    if plain and (lines := _vocab_lines(pipeline)) is not None:
        atomic_write(folder / "vocab.txt", lines.encode())
    config_text = json.dumps({**config, **written}, ensure_ascii=False, indent=2)
    # Half a character (a lone surrogate) has no UTF-8 form; what replaces it is how JSON writes one.
    atomic_write(folder / "tokenizer_config.json", f"{config_text}\n".encode(errors="backslashreplace"))
    atomic_write(folder / "tokenizer.json", f"{pipeline.to_str(pretty=True)}\n".encode())


def _vocab_lines(pipeline: tokenizers.Tokenizer) -> str | None:
    """The content of a vocab.txt; None if lines cannot say it, because ids have gaps or tokens have line ends."""
    vocab = pipeline.get_vocab()
    tokens = sorted(vocab, key=vocab.__getitem__)
    if len(tokens) != facts.vocab_size(pipeline) or any("\n" in token or "\r" in token for token in tokens):
        return None
    return "".join(f"{token}\n" for token in tokens)


def _read_object(path: Path) -> dict[str, Any]:
    """The object in a JSON file; empty if there is no such file."""
    if not lexists(path):  # a link to nothing is a fault, not a file that was left out
        return {}
    content = read_json(path)
    if not isinstance(content, dict):
        raise ModelError(f"{path}: must be a JSON object but is a {type(content).__name__}")
    if surrogate_position(json.dumps(content, ensure_ascii=False)) is not None:
        raise ModelError(f"{path}: has half a character in it (a lone surrogate, \\ud800 to \\udfff); remove it")
    return content


def _read_pipeline(path: Path) -> tokenizers.Tokenizer:
    if not path.is_file() or path.stat().st_size > MAX_JSON_BYTES:
        raise ModelError(f"{path}: not a file of at most {MAX_JSON_BYTES:,} bytes, so not a tokenizer")
    try:
        pipeline = tokenizers.Tokenizer.from_str(path.read_text(encoding="utf-8-sig"))
    except UnicodeDecodeError as error:
        raise ModelError(f"{path}: not UTF-8 ({error.reason})") from None
    except BaseException as error:
        if is_ours(error):
            raise
        raise ModelError(f"{path}: not a tokenizer that can be read ({error}); download the folder again") from None
    tokens, rows = pipeline.get_vocab_size(), facts.vocab_size(pipeline)
    if rows > tokens + facts.MAX_GAPS:
        raise ModelError(f"{path}: the largest id is {rows - 1} although there are only {tokens} tokens")
    return pipeline


def _apply_config(pipeline: tokenizers.Tokenizer, config: Mapping[str, Any], folder: Path) -> None:
    """Let tokenizer_config.json have the last word on BERT's cleaning, as it has elsewhere."""
    settings = facts.described(pipeline.normalizer)
    if settings.get("type") == "BertNormalizer":
        changed = _bert_settings(config, folder)
        merged = {name: changed.get(name, settings[name]) for name in ("clean_text", *_BERT_SETTINGS.values())}
        pipeline.normalizer = normalizers.BertNormalizer(**merged)


def _bert_settings(config: Mapping[str, Any], folder: Path) -> dict[str, bool | None]:
    """The settings of BERT's cleaning that a tokenizer_config.json gives."""
    given = {key: config[key] for key in _BERT_SETTINGS if key in config}
    for key, value in given.items():
        if not isinstance(value, bool) and not (value is None and key == "strip_accents"):
            raise ModelError(f"{folder / 'tokenizer_config.json'}: {key} must be true or false but is {value!r}")
    return {_BERT_SETTINGS[key]: value for key, value in given.items()}


def _from_vocab(folder: Path, config: Mapping[str, Any]) -> tokenizers.Tokenizer:
    given = _bert_settings(config, folder)
    style = pipelines.Style(
        "wordpiece",
        lowercase=given.get("lowercase") is not False,
        strip_accents=given.get("strip_accents"),
        split_chinese=given.get("handle_chinese_chars") is not False,
    )
    pipeline = pipelines.bert(read_vocab(folder / "vocab.txt"), style)
    for number, token in sorted(_added_tokens(folder, config)):
        pipeline.add_tokens([token])
        if pipeline.token_to_id(token.content) != number:
            raise ModelError(
                f"{folder}: the added token {token.content!r} should have the id {number} but the vocabulary "
                f"gives it {pipeline.token_to_id(token.content)}; vocab.txt and the added tokens do not belong together"
            )
    return pipeline


def _added_tokens(folder: Path, config: Mapping[str, Any]) -> Iterator[tuple[int, AddedToken]]:
    """Tokens beyond vocab.txt, in either of the two ways in which folders list them."""
    path = folder / "added_tokens.json"
    try:
        for content, number in _read_object(path).items():
            yield int(number), AddedToken(content, normalized=content not in SPECIAL_TOKENS)
        path = folder / "tokenizer_config.json"
        for number, fields in config.get("added_tokens_decoder", {}).items():
            yield int(number), AddedToken(**fields)
    except (TypeError, ValueError, AttributeError) as error:
        raise ModelError(f"{path}: the added tokens cannot be read ({error})") from None


def _special_names(pipeline: tokenizers.Tokenizer, *sources: Mapping[str, Any]) -> dict[str, str]:
    """How the special tokens are written: as the folder says, or one of the usual names."""
    names = {}
    for role, usual in _USUAL_NAMES.items():
        said = [source.get(f"{role}_token") for source in sources]
        said = [name.get("content") if isinstance(name, dict) else name for name in said]
        if role == "unk":
            said.append(getattr(pipeline.model, "unk_token", None))
        for name in (*said, *usual):
            if isinstance(name, str) and pipeline.token_to_id(name) is not None:
                names[role] = name
                break
    return names


def _try_out(pipeline: tokenizers.Tokenizer, folder: Path) -> None:
    """Encode something once, so that a vocabulary without what it refers to is found now, not in the middle of work."""
    try:
        # Of all scripts and none, so that an unknown word is among them.
        ids = pipeline.encode("a 中 \U0001f600 \ue000", "b").ids
    except BaseException as error:
        if is_ours(error):
            raise
        raise ModelError(f"{folder}: the tokenizer cannot encode text ({error}); download the folder again") from None
    rows = facts.vocab_size(pipeline)
    if max(ids, default=0) >= rows:
        raise ModelError(f"{folder}: the tokenizer wraps text in the id {max(ids)}, but its largest id is {rows - 1}")
