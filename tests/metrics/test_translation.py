from __future__ import annotations

import json
import math
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sacrebleu
from hypothesis import given, settings
from hypothesis import strategies as st
from nltk.translate.bleu_score import corpus_bleu as nltk_bleu

from unmask.errors import DataError, SettingsError
from unmask.metrics.translation import (
    BleuSums,
    by_source_length,
    paired_bleu,
    score_translations,
    word_splitter,
)

VOCABULARY = "a the cat dog sat ran on under mat table , . Der Hund läuft 12,5 % don't U.S."
WORDS = VOCABULARY.split()
CHINESE = ["今天天气很好。", "我喜欢吃苹果,不喜欢香蕉。", "他在2008年去了北京。", "这只猫坐在垫子上。", "你好吗?"]
BAD_CHINESE = ["今天天气好。", "我喜欢苹果,不喜欢吃香蕉。", "他2008年去北京。", "猫坐在垫子上。", "你好!"]


def sentences(number: int, seed: int, longest: int = 15) -> list[str]:
    draw = random.Random(seed)
    return [" ".join(draw.choices(WORDS, k=draw.randint(4, longest))) for _ in range(number)]


def spoiled(texts: list[str], share: float, seed: int) -> list[str]:
    draw = random.Random(seed)
    return [" ".join(word if draw.random() > share else draw.choice(WORDS) for word in text.split()) for text in texts]


REFERENCES = sentences(120, 0)
SYSTEM = spoiled(REFERENCES, 0.2, 1)


@pytest.mark.parametrize("lowercase", [False, True])
@pytest.mark.parametrize("tokenize", ["13a", "zh", "char", "intl", "none"])
def test_scores_and_signatures_are_those_of_sacrebleu(tokenize: Any, lowercase: bool) -> None:
    shouted = [text.upper() if number % 3 else text for number, text in enumerate(SYSTEM)]
    found = score_translations(shouted, REFERENCES, tokenize=tokenize, lowercase=lowercase, resamples=10)
    bleu = sacrebleu.BLEU(tokenize=tokenize, lowercase=lowercase)
    chrf = sacrebleu.CHRF(lowercase=lowercase)
    expected = bleu.corpus_score(shouted, [REFERENCES])
    assert (found.n, found.bleu, found.brevity_penalty, found.length_ratio) == (
        120,
        expected.score,
        expected.bp,
        expected.ratio,
    )
    assert found.chrf == chrf.corpus_score(shouted, [REFERENCES]).score
    assert (found.bleu_signature, found.chrf_signature) == (str(bleu.get_signature()), str(chrf.get_signature()))
    assert f"tok:{tokenize}|" in found.bleu_signature
    assert ("case:lc" if lowercase else "case:mixed") in found.chrf_signature


def test_case_counts_unless_it_is_said() -> None:
    upper = [text.upper() for text in REFERENCES]
    assert score_translations(upper, REFERENCES, resamples=1).bleu < 60
    assert score_translations(upper, REFERENCES, lowercase=True, resamples=1).bleu == pytest.approx(100)


def test_by_hand() -> None:
    def score(hypothesis: str, reference: str) -> Any:
        return score_translations([hypothesis], [reference], tokenize="none", resamples=5)

    found = score("the cat sat on the mat", "the cat sat on a mat")
    # One of two "the" is right; 5 of 6 words, 3 of 5 pairs, 2 of 4 triples, 1 of 3 fours.
    assert found.bleu == pytest.approx(100 * (5 / 6 * 3 / 5 * 2 / 4 * 1 / 3) ** 0.25)
    assert (found.brevity_penalty, found.length_ratio) == (1.0, 1.0)
    short = score("the cat sat on", "the cat sat on a mat")
    assert short.bleu == pytest.approx(100 * math.exp(1 - 6 / 4))
    assert (short.brevity_penalty, short.length_ratio) == (pytest.approx(math.exp(-0.5)), pytest.approx(4 / 6))
    # Of one letter half are right, of two letters none; longer ones do not exist.
    assert score("ab", "ac").chrf == pytest.approx(25)
    # The closer of two references counts for the length, the better one for each n-gram.
    both = score_translations(["a b c d e"], [["a b c d e f g", "a b c x"]], tokenize="none", resamples=5)
    assert (both.bleu, both.length_ratio) == (pytest.approx(100), 5 / 4)


def test_another_implementation_agrees() -> None:
    found = score_translations(SYSTEM, REFERENCES, tokenize="none", resamples=1)
    theirs = nltk_bleu([[text.split()] for text in REFERENCES], [text.split() for text in SYSTEM])
    assert found.bleu == pytest.approx(100 * theirs)


def test_punctuation_is_cut_off_unless_texts_are_said_to_be_words() -> None:
    joined, apart = ["I like cats, dogs and birds."], ["I like cats , dogs and birds ."]
    assert score_translations(joined, apart, tokenize="13a", resamples=1).bleu == pytest.approx(100)
    assert score_translations(joined, apart, tokenize="none", resamples=1).bleu < 50


def test_chinese_is_cut_into_characters() -> None:
    found = score_translations(BAD_CHINESE, CHINESE)
    assert found.bleu == sacrebleu.corpus_bleu(BAD_CHINESE, [CHINESE], tokenize="zh").score
    assert "tok:zh" in found.bleu_signature
    # As 13a has it, a sentence is one word or two.
    assert found.bleu > 20 + score_translations(BAD_CHINESE, CHINESE, tokenize="13a").bleu


def test_auto() -> None:
    english = ["one", "two", "three"]
    assert word_splitter(english) == "13a"
    assert word_splitter(CHINESE) == "zh"
    assert word_splitter([*CHINESE, *english]) == "zh"
    assert word_splitter([*CHINESE[:3], *english]) == "13a"  # half of them is not most
    assert word_splitter([[text, "x"] for text in CHINESE]) == "zh"
    assert word_splitter(["𠮷野家"]) == "zh"
    assert word_splitter(["これはペンです"]) == "13a"
    assert word_splitter(CHINESE, "none") == "none"
    # What the hypotheses are does not matter: a system that speaks the wrong language is measured by the right rule.
    assert "tok:zh" in score_translations(english, CHINESE[:3], resamples=1).bleu_signature
    for wrong in ("spm", "flores200", "ja-mecab", "13A", ""):
        with pytest.raises(SettingsError, match=f"tokenize is auto, 13a, zh, char, intl, none, given '{wrong}'"):
            word_splitter(english, wrong)


def test_several_references_and_another_number_for_each() -> None:
    other = spoiled(REFERENCES, 0.3, 7)
    same = score_translations(SYSTEM, list(zip(REFERENCES, other, strict=True)), resamples=10)
    assert same.bleu == sacrebleu.corpus_bleu(SYSTEM, [REFERENCES, other]).score
    assert same.chrf == sacrebleu.corpus_chrf(SYSTEM, [REFERENCES, other]).score
    assert same.bleu_signature.startswith("nrefs:2|")
    mixed = [
        [one, two] if number % 2 else [one] for number, (one, two) in enumerate(zip(REFERENCES, other, strict=True))
    ]
    streams: Any = [REFERENCES, [text if number % 2 else None for number, text in enumerate(other)]]
    found = score_translations(SYSTEM, mixed, resamples=10)
    assert found.bleu == sacrebleu.corpus_bleu(SYSTEM, streams).score
    assert found.bleu_signature.startswith("nrefs:var|")
    assert score_translations(SYSTEM, [[one] for one in REFERENCES]) == score_translations(SYSTEM, REFERENCES)


def test_empty_translations_count_as_words_that_are_missing() -> None:
    some = ["" if number % 2 else text for number, text in enumerate(REFERENCES)]
    found = score_translations(some, REFERENCES, resamples=20)
    assert found.bleu == sacrebleu.corpus_bleu(some, [REFERENCES]).score
    assert found.bleu == pytest.approx(100 * found.brevity_penalty)
    nothing = score_translations([""] * 3, REFERENCES[:3], resamples=20)
    assert (nothing.bleu, nothing.chrf, nothing.brevity_penalty, nothing.length_ratio) == (0.0, 0.0, 0.0, 0.0)
    assert (nothing.bleu_interval.low, nothing.bleu_interval.high) == (0.0, 0.0)
    score_translations(["x"], [""], resamples=5)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.text(max_size=20), st.text(max_size=20)), min_size=1, max_size=6))
def test_any_text_can_be_scored(pairs: list[tuple[str, str]]) -> None:
    texts, references = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    found = score_translations(texts, references, resamples=5)
    tokenize = word_splitter(references)
    assert found.bleu == sacrebleu.corpus_bleu(texts, [references], tokenize=tokenize, force=True).score
    assert 0 <= found.bleu_interval.low <= found.bleu_interval.high <= 100.0001


def test_sums_over_parts_give_the_score_of_the_whole() -> None:
    bleu = BleuSums("13a")
    parts = [bleu.counts(SYSTEM[at : at + 7], [[text] for text in REFERENCES[at : at + 7]]) for at in range(0, 120, 7)]
    total = sum(part.sum(axis=0) for part in parts)
    assert bleu.of_sums(np.array([total]))[0] == sacrebleu.corpus_bleu(SYSTEM, [REFERENCES]).score


def test_order_does_not_matter() -> None:
    order = np.random.default_rng(0).permutation(120).tolist()
    found = score_translations(SYSTEM, REFERENCES)
    moved = score_translations([SYSTEM[n] for n in order], [REFERENCES[n] for n in order])
    assert (moved.bleu, moved.brevity_penalty) == (found.bleu, found.brevity_penalty)
    assert moved.chrf == pytest.approx(found.chrf)
    perfect = score_translations(REFERENCES, REFERENCES)
    assert (perfect.bleu, perfect.chrf) == (pytest.approx(100), pytest.approx(100))
    assert score_translations(SYSTEM, SYSTEM[::-1], resamples=1).bleu < found.bleu


def test_the_interval_is_near_that_of_sacrebleu_and_always_the_same() -> None:
    # So many that half the width is known to 1 in 100: its error falls with their root.
    theirs = sacrebleu.BLEU().corpus_score(SYSTEM, [REFERENCES], n_bootstrap=20_000)
    sure = score_translations(SYSTEM, REFERENCES, resamples=20_000).bleu_interval
    assert (sure.high - sure.low) / 2 == pytest.approx(theirs._ci, rel=0.05)
    assert (sure.high + sure.low) / 2 == pytest.approx(theirs._mean, abs=0.05 * theirs._ci)
    found = score_translations(SYSTEM, REFERENCES)
    interval = found.bleu_interval
    assert interval.low < found.bleu == interval.value < interval.high
    assert interval.level == 0.95
    assert score_translations(SYSTEM, REFERENCES) == found
    assert score_translations(SYSTEM, REFERENCES, seed=1).bleu_interval != interval
    # Four times the sentences, half the width.
    many = score_translations(SYSTEM * 4, REFERENCES * 4).bleu_interval
    assert (many.high - many.low) / (interval.high - interval.low) == pytest.approx(0.5, rel=0.15)


def test_by_length_of_the_source() -> None:
    lengths = [3, 9, 10, 14, 15, 100] * 20
    found = by_source_length(lengths, SYSTEM, REFERENCES, edges=(10, 15, 20, 30))
    assert [(bucket.name, bucket.n, bucket.small) for bucket in found] == [
        ("0–9", 40, True),
        ("10–14", 40, True),
        ("15–19", 20, True),
        ("20–29", 0, True),
        ("30+", 20, True),
    ]
    inside = [number for number, length in enumerate(lengths) if 10 <= length < 15]
    texts, references = [SYSTEM[n] for n in inside], [REFERENCES[n] for n in inside]
    assert found[1].scores == score_translations(texts, references)
    assert found[3].scores is None
    assert found[3].as_json() == {"low": 20, "high": 30, "n": 0, "small": True, "scores": None}
    whole = by_source_length(lengths, SYSTEM, REFERENCES, edges=())
    assert (whole[0].name, whole[0].n, whole[0].small) == ("0+", 120, False)
    assert whole[0].scores == score_translations(SYSTEM, REFERENCES)


def test_all_buckets_are_cut_into_words_alike() -> None:
    """The few English references among Chinese ones must not get a bucket by another rule."""
    references, lengths = [*CHINESE, "an English one"], [12] * 5 + [3]
    found = by_source_length(lengths, references, references)
    assert all("tok:zh" in bucket.scores.bleu_signature for bucket in found if bucket.scores is not None)


def test_two_systems() -> None:
    worse = spoiled(REFERENCES, 0.4, 3)
    found = paired_bleu(SYSTEM, worse, REFERENCES, resamples=500, names=("big", "small"))
    expected = sacrebleu.corpus_bleu(SYSTEM, [REFERENCES]).score - sacrebleu.corpus_bleu(worse, [REFERENCES]).score
    assert found.difference == pytest.approx(expected)
    assert 0 < found.low < found.difference < found.high
    assert found.p == pytest.approx(1 / 501)
    assert found.verdict.startswith("big scores higher than small (+")
    assert paired_bleu(SYSTEM, worse, REFERENCES, resamples=500, names=("big", "small")) == found
    turned = paired_bleu(worse, SYSTEM, REFERENCES, resamples=500)
    assert (turned.difference, turned.p) == (pytest.approx(-found.difference), found.p)
    assert (turned.low, turned.high) == (pytest.approx(-found.high), pytest.approx(-found.low))
    same = paired_bleu(SYSTEM, SYSTEM, REFERENCES, resamples=50)
    assert (same.difference, same.low, same.high, same.p) == (0.0, 0.0, 0.0, 1.0)
    assert not paired_bleu(SYSTEM, spoiled(REFERENCES, 0.2, 9), REFERENCES, resamples=500).differs


def test_p_is_near_that_of_sacrebleu() -> None:
    from sacrebleu.significance import PairedTest

    other = spoiled(REFERENCES, 0.23, 4)
    found = paired_bleu(SYSTEM, other, REFERENCES, resamples=2000)
    systems = [("a", SYSTEM), ("b", other)]
    metrics = {"BLEU": sacrebleu.BLEU(references=[REFERENCES])}
    _, theirs = PairedTest(systems, metrics, references=None, test_type="ar", n_samples=2000)()
    assert found.p == pytest.approx(theirs["BLEU"][1].p_value, abs=0.04)
    assert 0.001 < found.p < 1


def test_what_cannot_be_scored_is_one_sentence() -> None:
    with pytest.raises(DataError, match="there is nothing to score: there are no translations"):
        score_translations([], [])
    with pytest.raises(DataError, match="there are 2 translations but references for 1;"):
        score_translations(["a", "b"], ["a"])
    with pytest.raises(DataError, match="there are 2 translations but references for 3;"):
        paired_bleu(["a", "b", "c"], ["a", "b"], ["a", "b", "c"])
    with pytest.raises(DataError, match="there are 1 lengths of sources but 2 translations"):
        by_source_length([1], ["a", "b"], ["a", "b"])
    with pytest.raises(SettingsError, match="edges rise from 1, such as 10, 15, 20; given 10, 10"):
        by_source_length([1], ["a"], ["a"], edges=(10, 10))
    with pytest.raises(SettingsError, match="edges rise"):
        by_source_length([1], ["a"], ["a"], edges=(0, 10))
    with pytest.raises(DataError, match="translation 2 needs a reference, or several, that are texts; given \\[\\]"):
        score_translations(["a", "b"], [["a"], []])
    with pytest.raises(DataError, match="references are a list of texts, given one text"):
        score_translations(["a", "b"], "ab")
    with pytest.raises(DataError, match="translation 1 must be a text but is None"):
        score_translations([None], ["ab"])  # type: ignore[list-item]


def test_as_plain_data_and_as_a_sentence() -> None:
    found = score_translations(SYSTEM, REFERENCES, resamples=50)
    plain = json.loads(json.dumps(found.as_json()))
    assert plain["bleu"] == plain["bleu_interval"]["value"] == found.bleu
    assert set(plain) == {
        "n",
        "bleu",
        "bleu_interval",
        "bleu_signature",
        "chrf",
        "chrf_signature",
        "brevity_penalty",
        "length_ratio",
    }
    assert str(found).startswith(f"BLEU {found.bleu:.2f} (95% interval ")
    assert found.bleu_signature in str(found)
    assert str(found).endswith("120 sentences")


def test_importing_does_not_import_sacrebleu() -> None:
    code = "import unmask.metrics.translation, sys; sys.exit('sacrebleu' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_real_text(data_folder: Path) -> None:
    """The same captions, cut into words by others beforehand: 13a and none nearly agree, and Chinese is recognised."""
    folder = data_folder / "multi30k_en-de"
    raw = (folder / "test_2016_flickr.de").read_text(encoding="utf-8").splitlines()
    cut = (folder / "test_2016_flickr.lc.norm.tok.de").read_text(encoding="utf-8").splitlines()
    found = score_translations(cut, raw, lowercase=True, resamples=20)
    assert found.bleu == sacrebleu.corpus_bleu(cut, [raw], lowercase=True, force=True).score
    assert found.bleu > 90
    assert score_translations(cut, raw, tokenize="none", resamples=1).bleu < 50
    lines = (data_folder / "tatoeba_cmn-eng" / "cmn.txt").read_text(encoding="utf-8").splitlines()
    assert word_splitter([line.split("\t")[1] for line in lines]) == "zh"
    assert word_splitter([line.split("\t")[0] for line in lines]) == "13a"
