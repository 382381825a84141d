"""A smaller vocabulary: kept pieces are read as before, and nothing becomes unknown that was not."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from unmask.errors import DataError
from unmask.text.tokenizer import Tokenizer

LETTERS = "abcdefgh"
PIECES = ["bad", "bade", "beg", "face", "##ed", "##ing", "##gged", "##ade", "cab", "##cab", "ab", "##ab", "的", "##的"]
VOCABULARY = [
    *("[PAD]", "[UNK]", "[unused1]", "[CLS]", "[SEP]", "[MASK]"),
    *LETTERS,
    *(f"##{letter}" for letter in LETTERS),
    *(*"ing.", *(f"##{letter}" for letter in "ing.")),
    *PIECES,
]
VOCABULARY = list(dict.fromkeys(VOCABULARY))


def whole() -> Tokenizer:
    return Tokenizer.from_vocab(VOCABULARY)


def kept_ids(tokenizer: Tokenizer, pieces: list[str]) -> list[int]:
    return sorted(tokenizer.indispensable | {tokenizer.vocab[piece] for piece in pieces})


def test_texts_of_kept_pieces_are_read_as_before() -> None:
    tokenizer = whole()
    ids = kept_ids(tokenizer, ["bad", "##ing", "ab"])
    smaller = tokenizer.with_only(ids)
    assert smaller.vocab_size == len(ids)
    assert smaller.cls_id == ids.index(tokenizer.cls_id)
    assert smaller.pad_id == 0
    for text in ("bad bading ab", "abing 的 .", "bad [MASK] z"):
        one, two = tokenizer.encode(text, "ab."), smaller.encode(text, "ab.")
        assert one.tokens == two.tokens
        assert [ids[number] for number in two.ids] == one.ids


def test_removed_pieces_are_spelt_and_nothing_new_is_unknown() -> None:
    tokenizer = whole()
    draw = random.Random(3)
    for _ in range(30):
        smaller = tokenizer.with_only(kept_ids(tokenizer, draw.sample(PIECES, 4)))
        for _ in range(40):
            text = "".join(draw.choices([*LETTERS, "ing", "gged", "face", "的", "z"], k=draw.randint(1, 9)))
            was, now = tokenizer.encode(text), smaller.encode(text)
            assert now.tokens.count("[UNK]") <= was.tokens.count("[UNK]"), text
            if "[UNK]" not in was.tokens:
                spelt = "".join(token.removeprefix("##") for token in now.tokens[1:-1])
                assert spelt == text


def test_saved_and_read_again(tmp_path: Path) -> None:
    tokenizer = whole()
    smaller = tokenizer.with_only(kept_ids(tokenizer, ["bad"]))
    smaller.save(tmp_path)
    again = Tokenizer.from_folder(tmp_path)
    assert again.encode("bad bading", "cab").ids == smaller.encode("bad bading", "cab").ids
    assert (tmp_path / "vocab.txt").read_text().splitlines() == smaller.tokens(range(smaller.vocab_size))


def test_what_is_needed_must_stay() -> None:
    tokenizer = whole()
    every = set(range(tokenizer.vocab_size))
    for token in ("[CLS]", "a", "##a", "的"):
        with pytest.raises(DataError, match="cannot be left out"):
            tokenizer.with_only(sorted(every - {tokenizer.vocab[token]}))
    with pytest.raises(DataError, match="only once"):
        tokenizer.with_only([*sorted(every), 3])


def test_a_vocabulary_without_its_letters_cannot_be_made_smaller() -> None:
    tokenizer = Tokenizer.from_vocab(["[UNK]", "[CLS]", "[SEP]", "a", "##a", "ab"])
    with pytest.raises(DataError, match="the letter '##b' but not the letter by itself"):
        tokenizer.with_only(range(tokenizer.vocab_size))
