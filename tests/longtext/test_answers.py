"""The best spans are those of a search through all of them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from unmask.longtext.answers import Span, best_spans
from unmask.longtext.encode import encode_long, encode_questions
from unmask.longtext.encoding import LongEncoding
from unmask.longtext.settings import LongTextSettings
from unmask.models.catalogue import shipped
from unmask.text import Tokenizer, VocabularySettings, train_tokenizer


def brute_force(logits: list[Tensor], found: LongEncoding, max_answer: int) -> list[Span]:
    best: dict[tuple[int, int], float] = {}
    for window, scores in zip(found.windows, logits, strict=True):
        places = [row for row, text in enumerate(window.texts) if text == 1]
        tokens = [token for start, end in window.kept[1].ranges for token in range(start, end)]
        for one, first in enumerate(places):
            for two, last in enumerate(places):
                # Neighbours in the window must be neighbours in the text.
                if 0 <= two - one < max_answer and tokens[two] - tokens[one] == two - one:
                    span = (window.offsets[first][0], window.offsets[last][1])
                    score = float(scores[first, 0] + scores[last, 1])
                    best[span] = max(score, best.get(span, float("-inf")))
    ordered = sorted(best.items(), key=lambda item: -item[1])
    return [Span(*span, score) for span, score in ordered]


def random_logits(found: LongEncoding, seed: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(len(window), 2, generator=generator) for window in found.windows]


@settings(max_examples=40)
@given(st.integers(1, 40), st.integers(8, 30), st.integers(1, 35), st.integers(1, 60), st.integers(0, 9), st.booleans())
def test_the_best_are_those_of_brute_force(
    tokenizer: Tokenizer, count: int, limit: int, max_answer: int, top: int, seed: int, two_ranges: bool
) -> None:
    context = " ".join(f"w{number}" for number in range(count))
    if two_ranges:
        asked = LongTextSettings(strategy="head_tail")
        (found,) = encode_long(tokenizer, ["a"], [context], limit, asked)
    else:
        (found,) = encode_questions(tokenizer, ["hello 中"], [context], limit)
    logits = random_logits(found, seed)
    answers = best_spans(logits, found, max_answer, top)
    expected = brute_force(logits, found, max_answer)
    assert answers.spans == expected[:top]
    assert answers.null_score == pytest.approx(min(float(scores[0].sum()) for scores in logits))


def test_the_same_characters_are_one_answer(tmp_path: Path) -> None:
    file = tmp_path / "corpus.txt"
    file.write_text("hello world\n" * 50, encoding="utf-8")
    tokenizer = train_tokenizer([file], VocabularySettings(size=300, byte_fallback=True))
    (found,) = encode_questions(tokenizer, ["hello"], ["龘鱻 hello 爨"], 64)
    assert found.num_tokens(1) == 10
    for seed in range(5):
        logits = random_logits(found, seed)
        for top in (1, 3, 9, 50):
            spans = best_spans(logits, found, 30, top).spans
            assert len({span[:2] for span in spans}) == len(spans) == min(top, 10)
            assert spans == brute_force(logits, found, 30)[:top]


def test_an_answer_never_reaches_into_question_or_special_tokens(tokenizer: Tokenizer) -> None:
    (found,) = encode_questions(tokenizer, ["hello world"], ["w1 w2 w3"], 64)
    logits = torch.zeros(8, 2)
    logits[:4] = 100.0
    logits[7] = 100.0
    logits[5, 0] = logits[6, 1] = 1.0
    answers = best_spans([logits], found)
    assert answers.spans[0] == Span(3, 8, 2.0)
    assert len(answers.spans) == 6
    assert answers.null_score == 200.0


def test_a_context_without_tokens_has_no_answer(tokenizer: Tokenizer) -> None:
    (found,) = encode_questions(tokenizer, ["hello"], [" \u200b"], 64)
    assert best_spans([torch.ones(len(found.windows[0]), 2)], found).spans == []


def test_wrong_numbers_are_refused(tokenizer: Tokenizer) -> None:
    (found,) = encode_questions(tokenizer, ["hello"], ["w1"], 64)
    with pytest.raises(ValueError, match=r"have \[5\] tokens but \[3\] rows"):
        best_spans([torch.zeros(3, 2)], found)
    with pytest.raises(ValueError, match="at least 1"):
        best_spans([torch.zeros(5, 2)], found, max_answer=0)


def test_half_precision_and_gradients_are_taken(tokenizer: Tokenizer) -> None:
    (found,) = encode_questions(tokenizer, ["hello"], ["w1 w2"], 64)
    logits = torch.ones(6, 2, dtype=torch.bfloat16, requires_grad=True)
    assert best_spans([logits], found).spans[0].score == 2.0


def test_an_answer_at_any_place_of_a_long_text_is_found(tokenizer: Tokenizer) -> None:
    context = " ".join(f"w{number % 100}" for number in range(50_000))
    (found,) = encode_questions(tokenizer, ["hello world"], [context], 512)
    offsets = found.offsets(1)
    for first in (0, 100, 379, 507, 508, 25_000, 49_990):
        last = first + 9
        logits = []
        for window in found.windows:
            scores = torch.zeros(len(window), 2)
            (start, end), rows = window.kept[1].ranges[0], window.rows(1)
            if start <= first < end:
                scores[rows.start + first - start, 0] = 5.0
            if start <= last < end:
                scores[rows.start + last - start, 1] = 5.0
            logits.append(scores)
        best = best_spans(logits, found).spans[0]
        assert best == Span(offsets[first][0], offsets[last][1], 10.0)


def test_real_answers_come_back_as_their_characters(data_folder: Path) -> None:
    tokenizer = Tokenizer.from_folder(shipped()["mini-zh"].folder)
    data = json.loads((data_folder / "cmrc2018" / "dev.json").read_text(encoding="utf-8"))["data"]
    asked = [(part["context"], part["qas"][0]) for entry in data[:200] for part in entry["paragraphs"]]
    found = encode_questions(tokenizer, [one["question"] for _, one in asked], [text for text, _ in asked], 192)
    exact = 0
    for one, (context, question) in zip(found, asked, strict=True):
        answer = question["answers"][0]
        start, end = answer["answer_start"], answer["answer_start"] + len(answer["text"])
        logits = []
        for window in one.windows:
            offsets, texts = window.offsets, window.texts
            context_rows = [row for row, text in enumerate(texts) if text == 1]
            first = [row for row in context_rows if offsets[row][0] <= start < offsets[row][1]]
            last = [row for row in context_rows if offsets[row][0] < end <= offsets[row][1]]
            scores = torch.zeros(len(window), 2)
            scores[first, 0] = scores[last, 1] = 5.0
            logits.append(scores)
        best = best_spans(logits, one, max_answer=60).spans[0]
        exact += context[best.start : best.end] == answer["text"]
        if len(answer["text"]) <= 30:
            assert answer["text"] in context[best.start : best.end]
    assert exact >= 0.95 * len(asked)
