from __future__ import annotations

import pickle
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from unmask.errors import DataError, SettingsError
from unmask.text import Tokenizer

# What a tokenizer meets: letters with and without accents, Chinese, marks, spaces, controls, emoji, special names.
PIECES = st.one_of(
    st.sampled_from(["[MASK]", "[SEP]", "[CLS]", "##ing", "hello", "UNAFFABLE", "a" * 101, "中国", "é", "e\u0301"]),
    st.text(max_size=5),
    st.text(alphabet="aé中😀 \t\u200d\u3000\x00-", max_size=7),
)
TEXTS = st.lists(PIECES, max_size=7).map("".join).filter(lambda text: not any("\ud800" <= c <= "\udfff" for c in text))


def test_facts(tokenizer: Tokenizer, tokens: list[str]) -> None:
    assert (tokenizer.kind, tokenizer.vocab_size, tokenizer.lowercase) == ("wordpiece", len(tokens), True)
    assert (tokenizer.pad_id, tokenizer.unk_id, tokenizer.cls_id) == (0, 1, 2)
    assert (tokenizer.sep_id, tokenizer.mask_id, tokenizer.special_ids) == (3, 4, frozenset(range(5)))
    assert tokenizer.vocab == {token: number for number, token in enumerate(tokens)}
    assert not tokenizer.byte_fallback


def test_it_says_what_it_is(tokenizer: Tokenizer, tokens: list[str]) -> None:
    assert repr(tokenizer) == f"Tokenizer(wordpiece, {len(tokens)} tokens, lower-cased)"
    many = Tokenizer.from_vocab(["[UNK]", "[CLS]", "[SEP]", *map(str, range(2000))], lowercase=False)
    assert repr(many) == "Tokenizer(wordpiece, 2,003 tokens, cased)"


def test_a_special_token_that_is_missing_is_none() -> None:
    tokenizer = Tokenizer.from_vocab(["[UNK]", "[CLS]", "[SEP]", "a"])
    assert (tokenizer.pad_id, tokenizer.mask_id, tokenizer.unk_id) == (None, None, 0)


def test_tokens_and_ids_are_inverse(tokenizer: Tokenizer, tokens: list[str]) -> None:
    assert tokenizer.tokens(range(len(tokens))) == tokens
    assert [tokenizer.id(token) for token in tokens] == list(range(len(tokens)))
    assert tokenizer.id("nothing") is None
    assert tokenizer.token(np.int64(2)) == "[CLS]"


@pytest.mark.parametrize("id", [-1, 10_000])
def test_an_id_outside_is_an_error_not_silence(tokenizer: Tokenizer, id: int) -> None:
    for call in (tokenizer.token, lambda id: tokenizer.decode([2, id])):
        with pytest.raises(DataError, match=f"id {id} is outside the vocabulary, whose ids go from 0 to"):
            call(id)


def test_cleaning_has_three_switches(tokens: list[str]) -> None:
    def pieces(**settings: bool) -> list[str]:
        return (
            Tokenizer.from_vocab([*tokens, "é", "中国", "A"], **settings)
            .encode("A é 中国", special_tokens=False)
            .tokens
        )

    assert pieces() == ["a", "e", "中", "国"]
    assert pieces(lowercase=False) == ["A", "é", "中", "国"]
    assert pieces(strip_accents=False) == ["a", "é", "中", "国"]
    assert pieces(lowercase=False, strip_accents=True) == ["A", "e", "中", "国"]
    assert pieces(split_chinese=False) == ["a", "e", "中国"]


def test_words_over_a_hundred_letters_are_unknown(tokenizer: Tokenizer) -> None:
    assert tokenizer.encode("a" * 100, special_tokens=False).tokens == ["a"] + ["##a"] * 99
    assert tokenizer.encode("a" * 101, special_tokens=False).tokens == ["[UNK]"]


def test_decoding(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("Unaffable hello, 中国!").ids
    assert tokenizer.decode(ids) == "unaffable hello, 中 国!"
    assert tokenizer.decode(ids, skip_special_tokens=False) == "[CLS] unaffable hello, 中 国! [SEP]"
    assert tokenizer.decode(np.array(ids)) == tokenizer.decode(ids)
    assert tokenizer.decode([]) == ""


@pytest.mark.parametrize("offsets", [False, True])
def test_batches_are_the_same_as_one_at_a_time(tokenizer: Tokenizer, offsets: bool) -> None:
    texts = ["hello", "", "中国人民", "unaffable 😀", "a " * 97]
    pairs = ["", "world", "a", "b c d", "x"]
    for size in (None, 5, 11):
        batch = tokenizer.encode_batch(texts, pairs, max_length=size, offsets=offsets)
        single = [tokenizer.encode(*both, max_length=size) for both in zip(texts, pairs, strict=True)]
        assert [e.ids for e in batch] == [e.ids for e in single]
        for name in ("offsets", "words", "texts", "tokens", "segments", "special", "coverage", "num_dropped"):
            assert [getattr(e, name) for e in batch] == [getattr(e, name) for e in single]
        alone = tokenizer.encode_batch(texts, max_length=size, special_tokens=False, offsets=offsets)
        assert [e.offsets for e in alone] == [
            tokenizer.encode(t, max_length=size, special_tokens=False).offsets for t in texts
        ]
        assert [e.ids for e in alone] == [tokenizer.encode(t, max_length=size, special_tokens=False).ids for t in texts]
    assert tokenizer.encode_batch([]) == []
    assert tokenizer.encode_batch(tuple(texts))[0].ids == tokenizer.encode("hello").ids


def test_wrong_input_is_explained(tokenizer: Tokenizer) -> None:
    wrong: list[tuple[object, str]] = [
        (lambda: tokenizer.encode(None), "text must be a string but is None, a NoneType"),  # type: ignore[arg-type]
        (lambda: tokenizer.encode("a", b"b"), "pair must be a string but is b'b', a bytes"),  # type: ignore[arg-type]
        (lambda: tokenizer.encode_batch(["a", ("b", "c")]), "text 1 must be a string"),  # type: ignore[list-item]
        (lambda: tokenizer.encode_batch(["a", "b"], ["c", 5]), "pair 1 must be a string"),  # type: ignore[list-item]
        (lambda: tokenizer.encode_batch("hello"), "given one string; use encode"),
        (lambda: tokenizer.encode_batch(["a", "b", "c"], ["d"]), "3 texts and 1 pairs"),
        (lambda: tokenizer.encode("ab\ud83dc"), "text has a lone surrogate, U\\+D83D, at position 2"),
        (lambda: tokenizer.encode("ab", "\udc00"), "pair has a lone surrogate, U\\+DC00, at position 0"),
        (lambda: tokenizer.encode_batch(["a", "b", "cd\udfff"]), "text 2 has a lone surrogate.*position 2"),
        (lambda: tokenizer.encode_batch(["a"] * 3, ["b", "\ud800", "c"]), "pair 1 has a lone surrogate"),
        (lambda: tokenizer.normalize("a\ud800"), "lone surrogate"),
    ]
    for call, message in wrong:
        with pytest.raises(DataError, match=message):
            call()  # type: ignore[operator]


@pytest.mark.parametrize(("pair", "size", "least"), [(None, 1, 3), (None, 0, 3), (None, -7, 3), ("b", 2, 5)])
def test_a_length_too_small_for_the_special_tokens(
    tokenizer: Tokenizer, pair: str | None, size: int, least: int
) -> None:
    for call in (
        lambda: tokenizer.encode("a", pair, max_length=size),
        lambda: tokenizer.encode_batch(["a"], None if pair is None else [pair], max_length=size),
    ):
        with pytest.raises(SettingsError, match=f"max_length: {size} is too small.*at least {least}"):
            call()
    with pytest.raises(SettingsError, match="max_length: 0"):
        tokenizer.encode("a", special_tokens=False, max_length=0)


def test_new_words_go_to_the_end(tokenizer: Tokenizer, tokens: list[str]) -> None:
    size = len(tokens)
    assert tokenizer.encode("Covid covids 新冠肺炎 the-end", special_tokens=False).tokens.count("[UNK]") == 4
    grown = tokenizer.with_tokens(["COVID", "hello", "新冠", "the-end", "covid", "##es"])
    assert {token: grown.id(token) for token in tokens} == {token: tokenizer.id(token) for token in tokens}
    assert [grown.token(id) for id in range(size, grown.vocab_size)] == ["covid", "新冠", "the-end", "##es"]
    encoding = grown.encode("Covid covids 新冠肺炎 the-end then-the-ends coves", special_tokens=False)
    assert encoding.tokens[:7] == ["covid", "covid", "##s", "新冠", "[UNK]", "[UNK]", "the-end"]
    assert encoding.tokens[-4:] == ["c", "##o", "##v", "##es"]
    assert encoding.offsets[:4] == [(0, 5), (6, 11), (11, 12), (13, 15)]
    assert encoding.tokens.count("the-end") == 1
    assert tokenizer.vocab_size == size
    assert grown.with_tokens(["covid", "more"]).id("more") == size + 4
    assert grown.special_ids == tokenizer.special_ids


def test_new_words_that_cannot_be(tokenizer: Tokenizer) -> None:
    for words, message in (
        (["two words"], "without spaces"),
        ("covid", "given one string"),
        (["\x07"], "nothing is left"),
    ):
        with pytest.raises(DataError, match=message):
            tokenizer.with_tokens(words)


def test_threads_and_processes_can_share_it(tokenizer: Tokenizer) -> None:
    texts = [f"hello {number} 中国" for number in range(97)]
    expected = [tokenizer.encode(text).ids for text in texts]
    with ThreadPoolExecutor(4) as pool:
        sizes = list(pool.map(lambda n: len(tokenizer.encode(texts[n], max_length=3 + n % 5)), range(97)))
        assert list(pool.map(lambda text: tokenizer.encode(text).ids, texts)) == expected
    assert sizes == [min(3 + n % 5, len(expected[n])) for n in range(97)]
    copy = pickle.loads(pickle.dumps(tokenizer))
    assert [copy.encode(text).ids for text in texts] == expected
    assert copy.mask_id == tokenizer.mask_id


def test_vocabulary_file_and_list_agree(tokenizer: Tokenizer, vocab_folder: Path) -> None:
    assert Tokenizer.from_vocab(vocab_folder / "vocab.txt").vocab == tokenizer.vocab


@settings(deadline=None)
@given(TEXTS)
def test_offsets_lead_back_to_the_text(tokenizer: Tokenizer, text: str) -> None:
    encoding = tokenizer.encode(text, special_tokens=False)
    previous = 0
    for token, (start, end) in zip(encoding.tokens, encoding.offsets, strict=True):
        assert 0 <= start < end <= len(text)
        assert start >= previous
        previous = start
        if token not in ("[UNK]", "[MASK]", "[SEP]", "[CLS]"):
            source = tokenizer.normalize(text[start:end]).replace(" ", "")
            assert token.removeprefix("##") in source
    reached = {place for start, end in encoding.offsets for place in range(start, end)}
    for place, character in enumerate(text):
        if tokenizer.normalize(character).strip() and not text[place:].startswith("\u0301"):
            assert place in reached


@settings(deadline=None)
@given(TEXTS)
def test_decoding_and_encoding_again_is_stable(tokenizer: Tokenizer, text: str) -> None:
    ids = tokenizer.encode(text, special_tokens=False).ids
    if not tokenizer.special_ids.isdisjoint(ids):
        return  # an unknown word cannot come back
    again = tokenizer.encode(tokenizer.decode(ids), special_tokens=False)
    assert tokenizer.decode(again.ids) == tokenizer.decode(ids)


@settings(deadline=None)
@given(TEXTS, TEXTS)
def test_a_pair_is_its_two_texts(tokenizer: Tokenizer, text: str, pair: str) -> None:
    first, second = (tokenizer.encode(one, special_tokens=False) for one in (text, pair))
    both = tokenizer.encode(text, pair)
    assert both.ids == [2, *first.ids, 3, *second.ids, 3]
    assert both.offsets == [(0, 0), *first.offsets, (0, 0), *second.offsets, (0, 0)]
    assert both.segments == [0] * (len(first) + 2) + [1] * (len(second) + 1)
