"""How the steps of the Rust library are put together for each kind of vocabulary.

A pipeline is: normalise, split into words, cut words into tokens (the model), wrap in special tokens; and back.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, assert_never

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from unmask.errors import DataError, ModelError
from unmask.text.scripts import HAN
from unmask.text.vocabulary import CLS, SEP, SPECIAL_TOKENS, UNK

Kind = Literal["wordpiece", "bpe", "byte_bpe"]

PREFIX = "##"
BYTE_TOKENS = tuple(f"<0x{byte:02X}>" for byte in range(256))
SPACE_MARK = "▁"


@dataclass(frozen=True)
class Style:
    """How text is cleaned and split before it is cut into tokens."""

    kind: Kind
    lowercase: bool = True
    strip_accents: bool | None = None  # None: as `lowercase`, which is BERT's rule
    split_chinese: bool = True
    byte_fallback: bool = False


def bert(tokens: Sequence[str], style: Style, extra_special: Sequence[str] = ()) -> Tokenizer:
    """The pipeline of BERT over a list of tokens: greedy longest match, `[UNK]` for words it cannot spell."""
    vocab = {token: number for number, token in enumerate(tokens)}
    pipeline = Tokenizer(models.WordPiece(vocab, unk_token=UNK, max_input_chars_per_word=100))
    pipeline.normalizer = normalizer(style)
    pipeline.pre_tokenizer = splitter(style)
    pipeline.decoder = decoder(style)
    add_special(pipeline, vocab, extra_special)
    return pipeline


def merging(
    vocab: Mapping[str, int],
    merges: Sequence[tuple[str, str]],
    style: Style,
    extra_special: Sequence[str] = (),
) -> Tokenizer:
    """The pipeline of a vocabulary that is applied by merging pairs in the order they were learned."""
    pipeline = Tokenizer(merging_model(style, vocab, merges))
    if (step := normalizer(style)) is not None:
        pipeline.normalizer = step
    pipeline.pre_tokenizer = splitter(style, characters_of(vocab))
    pipeline.decoder = decoder(style)
    add_special(pipeline, vocab, extra_special)
    return pipeline


def merging_model(
    style: Style, vocab: Mapping[str, int] | None = None, merges: Sequence[tuple[str, str]] = ()
) -> models.BPE:
    """A model that merges pairs; empty, to be trained, if no vocabulary is given."""
    options: dict[str, str] = {}  # the library tells an option that is None from one that is not given
    if style.kind != "byte_bpe":
        options["unk_token"] = UNK
    if style.kind == "wordpiece":
        options["continuing_subword_prefix"] = PREFIX
    return models.BPE(dict(vocab or {}), list(merges), byte_fallback=style.byte_fallback, **options)


def normalizer(style: Style) -> normalizers.Normalizer | None:
    """The step that cleans text."""
    if style.kind == "wordpiece":
        return normalizers.BertNormalizer(
            clean_text=True,
            handle_chinese_chars=style.split_chinese,
            strip_accents=style.strip_accents,
            lowercase=style.lowercase,
        )
    return normalizers.Lowercase() if style.lowercase else None


def splitter(style: Style, alphabet: Iterable[str] = ()) -> pre_tokenizers.PreTokenizer:
    """The step that splits text into the words within which tokens are found."""
    chinese = pre_tokenizers.Split(Regex(r"\p{Han}" if style.split_chinese else r"\p{Han}+"), "isolated")
    match style.kind:
        case "wordpiece" if style.byte_fallback:
            # A character without a token stands alone, so that its bytes are not mixed with "##". It is
            # looked for in the whole text, not in each word, which is faster.
            unknown = pre_tokenizers.Split(Regex(_none_of(alphabet)), "isolated")
            return pre_tokenizers.Sequence([unknown, pre_tokenizers.BertPreTokenizer()])
        case "wordpiece":
            return pre_tokenizers.BertPreTokenizer()
        case "bpe":
            # Only the first word gets a space mark of its own, so text after a special token keeps its form.
            spaces = pre_tokenizers.Metaspace(SPACE_MARK, prepend_scheme="first", split=True)
            marks = pre_tokenizers.Split(Regex(r"\p{P}"), "isolated")
            return pre_tokenizers.Sequence([spaces, marks, chinese])
        case "byte_bpe":
            return pre_tokenizers.Sequence([chinese, pre_tokenizers.ByteLevel(add_prefix_space=False)])
        case _:
            assert_never(style.kind)


def decoder(style: Style) -> decoders.Decoder:
    """The step that turns tokens back into text."""
    match style.kind:
        case "wordpiece":
            pieces = decoders.WordPiece(prefix=PREFIX)
            return decoders.Sequence([decoders.ByteFallback(), pieces]) if style.byte_fallback else pieces
        case "bpe":
            words = decoders.Metaspace(SPACE_MARK, prepend_scheme="first", split=True)
            if style.byte_fallback:
                return decoders.Sequence([decoders.ByteFallback(), words])
            return words
        case "byte_bpe":
            return decoders.ByteLevel()
        case _:
            assert_never(style.kind)


def add_special(pipeline: Tokenizer, vocab: Mapping[str, int], extra: Sequence[str] = ()) -> None:
    """Mark the special tokens as such, and wrap texts as BERT does: [CLS] a [SEP] b [SEP]."""
    pipeline.add_special_tokens([token for token in (*SPECIAL_TOKENS, *extra) if token in vocab])
    wrap = processors.TemplateProcessing(
        single=f"{CLS}:0 $A:0 {SEP}:0",
        pair=f"{CLS}:0 $A:0 {SEP}:0 $B:1 {SEP}:1",
        special_tokens=[(CLS, vocab[CLS]), (SEP, vocab[SEP])],
    )
    if isinstance(pipeline.decoder, decoders.ByteLevel):
        # Offsets of " word" then point to the word, not to the space before it.
        trim = processors.ByteLevel(add_prefix_space=False, trim_offsets=True)
        pipeline.post_processor = processors.Sequence([trim, wrap])
    else:
        pipeline.post_processor = wrap


def characters_of(vocab: Iterable[str]) -> list[str]:
    """The single characters in a vocabulary, in order of code point."""
    return sorted(token for token in vocab if len(token) == 1)


def extended(pipeline: Tokenizer, words: Sequence[str]) -> Tokenizer:
    """A copy of a pipeline with these words at the end of its vocabulary."""
    plan = json.loads(pipeline.to_str())
    vocab = plan["model"].get("vocab")
    if not isinstance(vocab, dict):
        raise ModelError(f"a vocabulary of the kind {plan['model'].get('type')} cannot take new tokens")
    next_id = max(pipeline.get_vocab().values(), default=-1) + 1
    matched = []
    for word in dict.fromkeys(_cleaned(pipeline, word) for word in words):
        if pipeline.token_to_id(word) is None:
            vocab[word] = next_id
            next_id += 1
            if not _is_found_by_model(pipeline, word):
                matched.append(_as_added(word))
    copy = Tokenizer.from_str(json.dumps(plan))
    copy.add_tokens(matched)
    return copy


def _cleaned(pipeline: Tokenizer, word: str) -> str:
    # BERT's cleaning would put spaces into words with Chinese characters.
    if pipeline.normalizer is None or HAN.search(word):
        return word
    clean = "".join(pipeline.normalizer.normalize_str(word).split())
    if not clean:
        raise DataError(f"cannot add {word!r} to the vocabulary; nothing is left of it after cleaning")
    return clean


def _is_found_by_model(pipeline: Tokenizer, word: str) -> bool:
    """Whether greedy matching finds a word that is in the vocabulary: if it is not split before."""
    if not isinstance(pipeline.model, models.WordPiece):
        return False
    bare = word.removeprefix(PREFIX)
    clean = bare if pipeline.normalizer is None else pipeline.normalizer.normalize_str(bare)
    return pipeline.pre_tokenizer is None or len(pipeline.pre_tokenizer.pre_tokenize_str(clean)) == 1


def _as_added(word: str) -> AddedToken:
    """A word that is looked for in the text itself, before anything is split."""
    # Chinese has no spaces, so a word may start anywhere; others must not match inside a longer word, and
    # are found in any letter case if the tokenizer lower-cases.
    chinese = HAN.search(word) is not None
    return AddedToken(word, single_word=not chinese, normalized=not chinese)


def _none_of(alphabet: Iterable[str]) -> str:
    """A pattern for one character that is neither a space nor in an alphabet, written with ranges of code points."""
    ranges: list[list[int]] = []
    for code in sorted(map(ord, alphabet)):
        if ranges and ranges[-1][1] == code - 1:
            ranges[-1][1] = code
        else:
            ranges.append([code, code])
    return r"[^\s" + "".join(f"\\x{{{first:X}}}-\\x{{{last:X}}}" for first, last in ranges) + "]"
