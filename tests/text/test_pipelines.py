from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from unmask.errors import ModelError
from unmask.text import Tokenizer
from unmask.text.pipelines import Style, _none_of, splitter


@settings(deadline=None)
@given(
    st.sets(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=13), st.characters(exclude_categories=["Cs"])
)
def test_the_pattern_for_characters_outside_an_alphabet(alphabet: set[str], character: str) -> None:
    style = Style("wordpiece", byte_fallback=True)
    probe = f"{min(alphabet)}{character}"
    if any(one.isspace() or re.match(r"[\W_]", one) for one in probe):
        return  # BERT's own splitting would show, not the pattern
    pieces = [piece for piece, _ in splitter(style, alphabet).pre_tokenize_str(probe)]
    assert pieces == ([probe] if character in alphabet else [probe[0], probe[1]])


def test_neighbours_make_one_range() -> None:
    assert _none_of("cabz") == r"[^\s\x{61}-\x{63}\x{7A}-\x{7A}]"


def test_a_vocabulary_of_scores_cannot_be_extended() -> None:
    import tokenizers

    unigram = tokenizers.Tokenizer(tokenizers.models.Unigram([("<unk>", 0.0), ("a", -1.0)], unk_id=0))
    found = Tokenizer(unigram)
    assert found.kind == "unigram"
    with pytest.raises(ModelError, match="Unigram cannot take new tokens"):
        found.with_tokens(["b"])
