"""Ids and offsets against the tokenizers of transformers: the fast one everywhere, the original one in Python where
the two agree. They differ by Unicode version (characters assigned after Unicode 8, and unassigned ones), by a gap of
256 rare characters that the fast one does not treat as Chinese, and by a composition step in the cased original.
"""

from __future__ import annotations

import gzip
import itertools
import random
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path

import pytest
from transformers import AutoTokenizer, BertTokenizerFast
from transformers.models.bert.tokenization_bert_legacy import BertTokenizerLegacy

from unmask.text import Encoding, Tokenizer, VocabularySettings, read_lines, train_tokenizer

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
BATCH = 5000
# First and last code point, and how often: ASCII, Latin, accents, Greek to Arabic, Indic, Jamo, symbols, kana, Chinese
# with its extensions, Hangul, compatibility forms, emoji, private use, and anything at all.
BLOCKS = [
    *[(0x20, 0x7E, 6), (0x00, 0x24F, 3), (0x300, 0x36F, 1), (0x370, 0x52F, 2), (0x590, 0x6FF, 1), (0x900, 0x97F, 1)],
    *[(0x1100, 0x11FF, 1), (0x1E00, 0x1EFF, 2), (0x2000, 0x2BFF, 2), (0x3000, 0x30FF, 2), (0x3400, 0x4DBF, 1)],
    *[(0x4E00, 0x9FFF, 4), (0xAC00, 0xD7AF, 1), (0xE000, 0xFFFF, 2), (0x1F300, 0x1FAFF, 2), (0x20000, 0x323AF, 2)],
    *[(0x0000, 0xD7FF, 2), (0x10000, 0x10FFFF, 1)],
]
INSERTS = ["[MASK]", "[SEP]", "##", "  ", "a" * 100, "a" * 101, "中" * 101, "e\u0301", "Hello", "\u3000", "don't"]


@pytest.fixture(scope="module")
def lines(data_folder: Path) -> list[str]:
    """100,000 lines of English and Chinese."""
    zhwiki = data_folder / "zhwiki_sample" / "zhwiki_sample.txt.gz"
    parts = [
        itertools.islice(read_lines(data_folder / "brown" / "brown.txt"), 30_000),
        itertools.islice(read_lines(data_folder / "enwiki_sample" / "enwiki_sample.txt"), 8000),
        itertools.islice(read_lines(data_folder / "tnews" / "train.tsv"), 50_000),
        itertools.islice(read_lines(data_folder / "chnsenticorp" / "train.tsv"), 9600),
        itertools.islice((line for line in read_lines(zhwiki) if line), 5000),
    ]
    found = [line for part in parts for line in part]
    assert len(found) >= 100_000
    return found[-100_000:]


@pytest.fixture(scope="module")
def strings() -> list[str]:
    """200,000 random strings from all over Unicode."""
    draw = random.Random(20181011)
    weights = [block[2] for block in BLOCKS]

    def string() -> str:
        characters = [
            chr(draw.randint(first, last)) for first, last, _ in draw.choices(BLOCKS, weights, k=draw.randrange(23))
        ]
        if draw.random() < 0.2:
            characters.insert(draw.randrange(len(characters) + 1), draw.choice(INSERTS))
        return "".join(character for character in characters if not "\ud800" <= character <= "\udfff")

    return [string() for _ in range(200_000)]


@pytest.fixture(scope="module")
def chinese_folder(data_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A vocabulary in the style of the Chinese BERT: every character twice, some Latin pieces, cased."""
    source = data_folder / "zhwiki_sample" / "zhwiki_sample.txt.gz"
    with gzip.open(source, "rt", encoding="utf-8") as file:
        text = "".join(itertools.islice(file, 3000))
    letters = sorted({letter for letter in text if not letter.isspace()} | set("abcdefghijklmnopqrstuvwxyz"))
    pieces = ["the", "##ing", "in", "##er", "中国", "##ab", "[unused1]"]
    tokens = list(dict.fromkeys([*SPECIAL, *letters, *(f"##{letter}" for letter in letters), *pieces]))
    folder = tmp_path_factory.mktemp("chinese")
    (folder / "vocab.txt").write_text("\n".join(tokens) + "\n", encoding="utf-8")
    return folder


def _batches(texts: Sequence[str]) -> Iterator[Sequence[str]]:
    for start in range(0, len(texts), BATCH):
        yield texts[start : start + BATCH]


def _theirs(tokenizer: object, texts: Sequence[str]) -> list[list[int]]:
    found = tokenizer(texts, return_token_type_ids=False, return_attention_mask=False)  # type: ignore[operator]
    return list(found["input_ids"])


def _auto(folder: Path) -> object:
    tokenizer = AutoTokenizer.from_pretrained(str(folder))
    tokenizer.model_max_length = 10**9
    return tokenizer


def _check_offsets(normalize: Callable[[str], str], text: str, encoding: Encoding) -> None:
    """Each token is what becomes of the text it points to; the tokens are in order."""
    previous = 0
    for token, (start, end) in zip(encoding.tokens[1:-1], encoding.offsets[1:-1], strict=True):
        assert previous <= start < end <= len(text), (text, encoding.offsets)
        previous = start
        source = text[start:end]
        if token == source or token in SPECIAL:
            continue
        source = normalize(source)
        if token != source:
            piece = token.removeprefix("##")
            # Only a character that is itself taken apart, as Hangul is, can be shared by several tokens.
            assert piece == source or (len(source) > end - start and piece in source), (text, token, source)


def _check(ours: Tokenizer, theirs: object, texts: Sequence[str]) -> None:
    normalize = lru_cache(maxsize=200_000)(lambda text: ours.normalize(text).replace(" ", ""))
    for number, batch in enumerate(_batches(texts)):
        expected = _theirs(theirs, batch)
        if number % 4 == 0:  # without offsets, the same code of the library takes another path
            assert [encoding.ids for encoding in ours.encode_batch(batch)] == expected
        for text, encoding, ids in zip(batch, ours.encode_batch(batch, offsets=True), expected, strict=True):
            assert encoding.ids == ids, text
            _check_offsets(normalize, text, encoding)


#: Every so-many-th text in each run of the tests, all of them in the slow ones.
EVERY = [5, pytest.param(1, marks=pytest.mark.slow)]


@pytest.mark.parametrize("every", EVERY)
@pytest.mark.parametrize("lowercase", [True, False])
def test_random_strings(minilm_folder: Path, strings: list[str], lowercase: bool, every: int) -> None:
    vocab = minilm_folder / "vocab.txt"
    ours = Tokenizer.from_vocab(vocab, lowercase=lowercase)
    _check(ours, BertTokenizerFast(vocab=str(vocab), do_lower_case=lowercase), strings[::every])


@pytest.mark.parametrize("every", EVERY)
def test_english_and_chinese_lines(minilm_folder: Path, lines: list[str], every: int) -> None:
    _check(Tokenizer.from_folder(minilm_folder), _auto(minilm_folder), lines[::every])


@pytest.mark.slow
def test_lines_with_a_cased_chinese_vocabulary(chinese_folder: Path, lines: list[str]) -> None:
    ours = Tokenizer.from_vocab(chinese_folder / "vocab.txt", lowercase=False)
    theirs = BertTokenizerFast(vocab=str(chinese_folder / "vocab.txt"), do_lower_case=False)
    _check(ours, theirs, lines[-20_000:])


@pytest.mark.parametrize("settings", [(True, False, True), (False, True, True), (True, None, False)])
def test_the_other_settings(minilm_folder: Path, strings: list[str], settings: tuple[bool, bool | None, bool]) -> None:
    vocab = minilm_folder / "vocab.txt"
    lowercase, accents, chinese = settings
    ours = Tokenizer.from_vocab(vocab, lowercase=lowercase, strip_accents=accents, split_chinese=chinese)
    theirs = BertTokenizerFast(
        vocab=str(vocab), do_lower_case=lowercase, strip_accents=accents, tokenize_chinese_chars=chinese
    )
    _check(ours, theirs, strings[:20_000])


@pytest.mark.parametrize("size", [8, 13, 32, 128])
def test_cutting_pairs(minilm_folder: Path, strings: list[str], size: int) -> None:
    ours, theirs = Tokenizer.from_folder(minilm_folder), _auto(minilm_folder)
    draw = random.Random(size)
    texts, pairs = ([" ".join(draw.sample(strings, draw.randrange(1, 9))) for _ in range(499)] for _ in "ab")
    expected = theirs(texts, pairs, truncation=True, max_length=size)  # type: ignore[operator]
    found = ours.encode_batch(texts, pairs, max_length=size)
    assert [encoding.ids for encoding in found] == expected["input_ids"]
    assert [encoding.segments for encoding in found] == expected["token_type_ids"]
    alone = theirs(texts, truncation=True, max_length=size)["input_ids"]  # type: ignore[operator]
    assert [encoding.ids for encoding in ours.encode_batch(texts, max_length=size)] == alone
    plain = theirs(texts, pairs, add_special_tokens=False)["input_ids"]  # type: ignore[operator]
    assert [encoding.ids for encoding in ours.encode_batch(texts, pairs, special_tokens=False)] == plain


def test_lines_against_the_original_in_python(minilm_folder: Path, lines: list[str]) -> None:
    vocab = minilm_folder / "vocab.txt"
    sample = lines[::29]
    for lowercase in (True, False):
        original = BertTokenizerLegacy(str(vocab), do_lower_case=lowercase)
        ours = Tokenizer.from_vocab(vocab, lowercase=lowercase)
        for text, encoding in zip(sample, ours.encode_batch(sample, special_tokens=False, offsets=True), strict=True):
            assert encoding.tokens == original.tokenize(text), text


@pytest.mark.slow
def test_every_character_against_the_original_in_python(minilm_folder: Path) -> None:
    """Letters, digits, symbols and spaces of all scripts; 102 marks of newer Unicode versions are not split on."""
    vocab = minilm_folder / "vocab.txt"
    original = BertTokenizerLegacy(str(vocab))
    ours = Tokenizer.from_vocab(vocab)
    characters = [chr(code) for code in range(0x110000) if not 0x2B820 <= code < 0x2B920]  # the gap
    characters = [one for one in characters if unicodedata.category(one) not in ("Cn", "Co", "Cs")]
    assert len(characters) > 140_000
    texts = [f"a{character}b" for character in characters]
    different = {}
    found = ours.encode_batch(texts, special_tokens=False, offsets=True)
    for character, text, encoding in zip(characters, texts, found, strict=True):
        if encoding.tokens != original.tokenize(text):
            different[character] = unicodedata.category(character)
    assert {category[0] for category in different.values()} <= {"P", "M", "C", "S"}
    assert sum(category[0] == "S" for category in different.values()) <= 1
    assert len(different) < 0.004 * len(characters)
    assert all(ord(character) > 0x600 for character in different)


KINDS = [("wordpiece", False), ("wordpiece", True), ("bpe", False), ("bpe", True), ("byte_bpe", False)]


@pytest.mark.parametrize(("kind", "byte_fallback"), KINDS)
def test_what_we_save_loads_there(kind: str, byte_fallback: bool, tmp_path: Path, strings: list[str]) -> None:
    (tmp_path / "text").write_text("the lowest river, the newest sea 北京 天安门\n" * 7, encoding="utf-8")
    settings = VocabularySettings.parse({"kind": kind, "byte_fallback": byte_fallback, "size": 400})
    trained = train_tokenizer([tmp_path / "text"], settings)
    for name, ours in (("plain", trained), ("grown", trained.with_tokens(["seas", "新冠"]))):
        ours.save(tmp_path / name)
        theirs = _auto(tmp_path / name)
        assert len(theirs) == ours.vocab_size  # type: ignore[arg-type]
        assert theirs.mask_token_id == ours.mask_id  # type: ignore[attr-defined]
        texts = ["The seas 新冠 北京 [MASK]x", *strings[:2000]]
        assert [encoding.ids for encoding in ours.encode_batch(texts)] == _theirs(theirs, texts)


def test_published_folder_saved_again(minilm_folder: Path, tmp_path: Path, strings: list[str]) -> None:
    ours = Tokenizer.from_folder(minilm_folder)
    ours.save(tmp_path)
    texts = strings[:2000]
    expected = [encoding.ids for encoding in ours.encode_batch(texts)]
    assert _theirs(_auto(tmp_path), texts) == expected
    (tmp_path / "tokenizer.json").unlink()
    assert _theirs(_auto(tmp_path), texts) == expected
    assert [encoding.ids for encoding in Tokenizer.from_folder(tmp_path).encode_batch(texts)] == expected
    assert (tmp_path / "vocab.txt").read_bytes() == (minilm_folder / "vocab.txt").read_bytes()
