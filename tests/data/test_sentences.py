from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unmask.data.sentences import split_sentences


@pytest.mark.parametrize(
    "sentences",
    [
        ["It rained.", "We stayed."],
        ["Why?", "Nobody knows!", "Well."],
        ["Dr. Smith met Mrs. Jones at St. Mary's.", "They spoke."],
        ["J. R. R. Tolkien wrote it.", "It sold well."],
        ["Pi is 3.14 and e is 2.72.", "Both are irrational."],
        ["Version 1.2.3 is out.", "See www.example.com for more."],
        ["Cats, dogs, e.g. Rex, i.e. pets.", "All of them."],
        ["He moved to the U.S. Army base.", "He left."],
        ["He moved to the U.S.", "He left."],
        ["It was 5 p.m. on Jan. 3.", "Then it was six."],
        ["Apple Inc. Announced it late."],
        ["See No. 5 and p. 7.", "The answer is no.", "Go on."],
        ["So it was I.", "The end."],
        ['"Why?" he asked.', '"Because."', "She left."],
        ["(He came.)", "Then he left."],
        ["Wait... what is it?", "Nothing..."],
        ["Wait...", "What is it?"],
        ["What?!", "No!!!"],
        ["The cat sat.", "Dogs bark."],
        ["今天下雨。", "我们没去！", "你呢？"],
        ["他说：“今天下雨。”", "然后走了。"],
        ["（见上图。）", "下面继续。"],
        ["他来了；", "她走了……", "谁知道？！", "没人。"],
        ["真的吗?", "他问道!", "好"],
        ["圆周率是3.14。", "版本是1.2.3。"],
        ["「好。」", "『不好！』", "他说。"],
        ["他在Apple Inc.工作。", "He likes it.", "真的。"],
        ["没有标点"],
        ["中文句子。", "English sentence.", "又一句。"],
        ["Il est né à Paris.", "Éva aussi."],
    ],
)
def test_sentences_are_found(sentences: list[str]) -> None:
    for between in (" ", "  ", "\t"):
        assert split_sentences(between.join(sentences)) == sentences


def test_chinese_needs_no_space_between_sentences() -> None:
    assert split_sentences("今天下雨。我们没去！“你呢？”他问。") == ["今天下雨。", "我们没去！", "“你呢？”", "他问。"]
    assert split_sentences("真的吗?他问!好") == ["真的吗?", "他问!", "好"]


@pytest.mark.parametrize("text", ["", " ", "\u3000\t"])
def test_nothing_has_no_sentences(text: str) -> None:
    assert split_sentences(text) == []


@given(st.text(alphabet="aA .!?…。！？；”’（）()\"'中文1\u3000", max_size=60))
def test_only_spaces_between_sentences_are_lost(text: str) -> None:
    sentences = split_sentences(text)
    assert all(sentence == sentence.strip() != "" for sentence in sentences)
    assert "".join("".join(sentences).split()) == "".join(text.split())


def test_a_long_text_takes_time_in_proportion() -> None:
    assert len(split_sentences("He saw Mr. Smith. " * 100_000)) == 100_000
    assert len(split_sentences("." * 1_000_000)) == 1
    assert len(split_sentences("a" * 1_000_000 + ". B")) == 2
