from __future__ import annotations

import gzip
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from unmask.data.corpus import encode
from unmask.data.corpus.encode import SentenceEncoder, Tokens, encode_slowly
from unmask.text import Tokenizer, VocabularySettings, segment, train_tokenizer, whole_words
from unmask.text.scripts import HAN

LETTERS = list("abcdefghijklmnopqrstuvwxyz0123456789.,!?'-()=~#[]")
TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *LETTERS, *(f"##{letter}" for letter in LETTERS)]
TOKENS += [*"中国人民银行我爱你北京天安门是的首都。，！？（）《》", "hello", "##ing", "##able", "豈"]

ODDITIES = [
    "naïve café e\u0301te\u0301",
    "中\u0301x 中\u0301中",
    "a\x00b\ufffdc\x0bd\x0ce\x85f\x1cg\u200bh\u2028i\u2029j",
    "½ ≠ ≠\u0338 \u037e \uf900 \U0002f800 \U0002a6d6 \U00030000 \ue000",
    "한국어 ひらがな カタカナ\u3099 Ελληνικός İstanbul ẞß ŉ",
    "😀👩\u200d👩\u200d👧 🇩🇪",
    "don't U.S.A. 3.14 a_b `x` $5 ^^ <tag> C++ °C № ﬁ",
    "####able ##ing",
    "א\u05b0ב ทดสอบ \u0300\u0301",
    "\u3000全角　空格\xa0",
    "x" * 300,
    "北京天安门" * 50,
]


@pytest.fixture(scope="module", params=["uncased", "cased", "unsplit"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folders of the three ways in which BERT cleans text."""
    path: Path = tmp_path_factory.mktemp("tokenizer")
    styles = {"uncased": {}, "cased": {"lowercase": False}, "unsplit": {"split_chinese": False}}
    Tokenizer.from_vocab(TOKENS, **styles[request.param]).save(path)
    return path


def assert_same(one: Tokens, two: Tokens) -> None:
    for field in fields(Tokens):
        np.testing.assert_array_equal(getattr(one, field.name), getattr(two, field.name), err_msg=field.name)


def test_the_table_is_used_where_it_is_exact(folder: Path) -> None:
    assert SentenceEncoder(folder, words=False)._table is not None


def test_odd_characters_become_what_the_tokenizer_makes_of_them(folder: Path) -> None:
    tokenizer, encoder = Tokenizer.from_folder(folder), SentenceEncoder(folder, words=False)
    for sentences in ([*ODDITIES], *[[oddity] for oddity in ODDITIES], ["a", "", "\u200b", "b", ""], []):
        found = encoder.encode(sentences)
        assert_same(found, encode_slowly(tokenizer, sentences))
        assert found.lengths.tolist() == [len(tokenizer.encode(one, special_tokens=False)) for one in sentences]


@pytest.mark.parametrize("step", [17, pytest.param(1, marks=pytest.mark.slow)])
def test_every_character_between_letters(folder: Path, step: int) -> None:
    tokenizer, encoder = Tokenizer.from_folder(folder), SentenceEncoder(folder, words=False)
    codes = [code for code in range(1, 0x32000, step) if code != 0x0A and not 0xD800 <= code < 0xE000]
    for start in range(0, len(codes), 20_000):
        sentences = [f"a{chr(code)}b {chr(code)}{chr(code)}" for code in codes[start : start + 20_000]]
        assert_same(encoder.encode(sentences), encode_slowly(tokenizer, sentences))


@given(st.lists(st.text(st.characters(exclude_characters="\n", exclude_categories=["Cs"])), max_size=5))
def test_any_text(sentences: list[str]) -> None:
    tokenizer, encoder = _shared()
    assert_same(encoder.encode(sentences), encode_slowly(tokenizer, sentences))


_SHARED: list[tuple[Tokenizer, SentenceEncoder]] = []


def _shared() -> tuple[Tokenizer, SentenceEncoder]:
    if not _SHARED:
        import tempfile

        with tempfile.TemporaryDirectory() as spare:
            Tokenizer.from_vocab(TOKENS).save(Path(spare))
            _SHARED.append((Tokenizer.from_folder(Path(spare)), SentenceEncoder(Path(spare), words=False)))
    return _SHARED[0]


def test_special_tokens_in_the_text_are_found(folder: Path) -> None:
    tokenizer, encoder = Tokenizer.from_folder(folder), SentenceEncoder(folder, words=False)
    sentences = ["hello [MASK] 中", "[SEP]x", "[mask]"]
    found = encoder.encode(sentences)
    assert_same(found, encode_slowly(tokenizer, sentences))
    assert tokenizer.mask_id in found.ids.tolist()


def test_a_full_memory_is_begun_anew(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encode, "_MAX_WORDS", 3)
    tokenizer, encoder = Tokenizer.from_folder(folder), SentenceEncoder(folder, words=False)
    for sentences in (["one two three four five"], ["six one", "two seven"], ["one"]):
        assert_same(encoder.encode(sentences), encode_slowly(tokenizer, sentences))


@pytest.mark.parametrize("kind", ["bpe", "byte_bpe", "fallback"])
def test_other_tokenizers_go_through_whole(kind: str, tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("the cat sat on the mat\n北京是中国的首都。\n" * 30, encoding="utf-8")
    plan = {"kind": "wordpiece", "byte_fallback": True} if kind == "fallback" else {"kind": kind}
    tokenizer = train_tokenizer([text], VocabularySettings.parse({"size": 500, **plan}))
    tokenizer.save(tmp_path / "tokenizer")
    encoder = SentenceEncoder(tmp_path / "tokenizer", words=False)
    assert encoder._table is None
    sentences = ["the cat 北京 zebra 😀", "x" * 70_000, "", "首都。"]
    found = encoder.encode(sentences)
    encodings = [tokenizer.encode(sentence, special_tokens=False) for sentence in sentences]
    assert found.ids.tolist() == [id for encoding in encodings for id in encoding.ids]
    begins = [
        number == 0 or word != encoding.words[number - 1]
        for encoding in encodings
        for number, word in enumerate(encoding.words)
    ]
    assert found.begins_word.tolist() == begins


def expected_starts(tokenizer: Tokenizer, sentence: str) -> list[bool]:
    """Where words begin, by the rule as it is told: tokenizer's words, joined inside a word with Chinese in it."""
    encoding = tokenizer.encode(sentence, special_tokens=False)
    spans = segment(sentence)
    numbers = whole_words(encoding, spans)
    starts = []
    for place, (word, number) in enumerate(zip(encoding.words, numbers, strict=True)):
        begins = place == 0 or word != encoding.words[place - 1]
        if place and number is not None and number == numbers[place - 1]:
            start = encoding.offsets[place][0]
            owner = next(span for span in spans if span[0] <= start < span[1])
            begins = begins and not HAN.search(sentence, *owner)
        starts.append(begins)
    return starts


def test_chinese_words_are_joined_and_others_left(folder: Path) -> None:
    tokenizer, encoder = Tokenizer.from_folder(folder), SentenceEncoder(folder, words=True)
    sentences = ["我爱北京天安门", "hello, 3.14!", "", "卡拉OK在3.14中国", "人民银行 (hello) 中\u0301国", *ODDITIES]
    found = encoder.encode(sentences)
    expected = [flag for sentence in sentences for flag in expected_starts(tokenizer, sentence)]
    assert found.begins_word.tolist() == expected


def test_words_by_hand(tmp_path: Path) -> None:
    Tokenizer.from_vocab(TOKENS).save(tmp_path)
    both = {words: SentenceEncoder(tmp_path, words=words).encode(["我爱北京", "hiing 3.14"]) for words in (True, False)}
    # 我 | 爱 | 北京  and  h ##i ##ing | 3 | . | 1 ##4
    assert both[True].begins_word.tolist() == [True, True, True, False, True, False, False, True, True, True, False]
    assert both[False].begins_word.tolist() == [True] * 5 + [False, False, True, True, True, False]
    assert both[True].lengths.tolist() == [4, 7]


def test_real_text(minilm_folder: Path, data_folder: Path, tmp_path: Path) -> None:
    with gzip.open(data_folder / "zhwiki_sample" / "zhwiki_sample.txt.gz", "rt", encoding="utf-8") as file:
        chinese = [line.strip() for line, _ in zip(file, range(6000), strict=False)]
    with (data_folder / "brown" / "brown.txt").open(encoding="utf-8") as file:
        english = [line.strip() for line, _ in zip(file, range(6000), strict=False)]
    tokenizer = Tokenizer.from_folder(minilm_folder)
    tokenizer.save(tmp_path)
    plain, worded = SentenceEncoder(tmp_path, words=False), SentenceEncoder(tmp_path, words=True)
    for sentences in (chinese, english):
        assert_same(plain.encode(sentences), encode_slowly(tokenizer, sentences))
        few = sentences[:1500]
        expected = [flag for sentence in few for flag in expected_starts(tokenizer, sentence)]
        assert worded.encode(few).begins_word.tolist() == expected
