from __future__ import annotations

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import normalizers, pre_tokenizers

from unmask.text.alphabet import choose_alphabet, count_characters, spellings


def test_counting_after_cleaning() -> None:
    cleaning = normalizers.BertNormalizer()
    assert count_characters(["Aa é", "\x07中 a"], cleaning) == Counter({"a": 3, "e": 1, "中": 1})
    assert count_characters(["Aa b"], None) == Counter({"A": 1, "a": 1, "b": 1})


@settings(deadline=None)
@given(st.lists(st.text(max_size=17).filter(lambda text: text.isprintable()), max_size=7))
def test_counting_characters_one_by_one_is_counting_the_cleaned_text(lines: list[str]) -> None:
    cleaning = normalizers.BertNormalizer()
    expected = Counter("".join(cleaning.normalize_str(line) for line in lines))
    del expected[" "]
    assert count_characters(lines, cleaning) == expected


def test_rare_characters_are_left_out_and_ties_go_by_code_point() -> None:
    counts = Counter({"a": 90, "c": 4, "b": 4, "e": 1, "d": 1})
    assert choose_alphabet(counts, coverage=1.0, min_frequency=1) == ["a", "b", "c", "d", "e"]
    assert choose_alphabet(counts, coverage=0.98, min_frequency=1) == ["a", "b", "c"]
    assert choose_alphabet(counts, coverage=0.91, min_frequency=1) == ["a", "b"]
    assert choose_alphabet(counts, coverage=1.0, min_frequency=2) == ["a", "b", "c"]
    assert choose_alphabet({}, coverage=1.0, min_frequency=1) == []


def test_characters_that_stand_inside_words_are_spelled_twice() -> None:
    splitting = pre_tokenizers.BertPreTokenizer()
    assert spellings("b.a\u3000", "##", splitting, 11) == [".", "a", "b", "##a", "##b"]
    assert spellings("b.a", "##", splitting, 3) == [".", "b", "##b"]
    assert spellings("b.a", "##", splitting, 4) == [".", "b", "##b"]
    assert spellings("b.a", "", splitting, 2) == [".", "b"]
