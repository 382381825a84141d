"""Question answering: the loss of `transformers`, answers at exact places of texts of any length, or none."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
import torch

import finetune_toy as toy
import unmask
from unmask.data.examples import Answer, QuestionExample
from unmask.data.questions import read_questions
from unmask.longtext.settings import LongTextSettings
from unmask.models.settings import SpanSettings
from unmask.nn.batch import Batch
from unmask.nn.layout import Layout
from unmask.tasks import windows
from unmask.tasks.answer import (
    AnswerEvaluator,
    Answering,
    AnswerPrediction,
    answer,
    answer_windows,
    answered,
    collate_answers,
    question_texts,
    span_loss,
)
from unmask.tasks.usage import Usage
from unmask.train.step import backward

USAGE = Usage(task="qa", long_text=LongTextSettings(strategy="windows"))
WHO = "who was it ?"


def examples_of(tmp_path: Path, count: int = 10, silent: float = 0.3) -> list[QuestionExample]:
    return read_questions(toy.write_rows(tmp_path / "q.jsonl", toy.question_rows(count, 5, silent))).examples


def test_first_loss_and_gradients_are_those_of_transformers(tmp_path: Path) -> None:
    examples = examples_of(tmp_path)
    assert any(example.impossible for example in examples)
    model = toy.model_with(SpanSettings())
    theirs = toy.theirs_of(model, tmp_path / "model", "BertForQuestionAnswering")
    items = answer_windows(toy.tokenizer(), examples, USAGE, 64)
    loss = backward(model, Answering(), [collate_answers(items[:3]), collate_answers(items[3:])])["loss"]
    total = 0.0
    for example in examples:  # one by one, for there padding competes with the text
        inputs = toy.padded([example.question], [example.context])
        start, end = 0, 0
        if example.answers:  # every word is one token
            before = len(example.question.split()) + 2 + len(example.context[: example.answers[0].start].split())
            start, end = before, before + len(example.answers[0].text.split()) - 1
        out = theirs(**inputs, start_positions=torch.tensor([start]), end_positions=torch.tensor([end]))
        total += float(out.loss.detach()) / len(examples)
        (out.loss / len(examples)).backward()
    assert loss == pytest.approx(total, abs=1e-5)
    toy.check_gradients(model, theirs)


def test_smoothing_spreads_over_the_tokens_of_each_window() -> None:
    layout = Layout.ragged([3, 7, 1])
    logits = torch.randn(11, 2, generator=torch.Generator().manual_seed(0))
    targets = torch.tensor([[1, 2], [0, 6], [0, 0]])
    found = span_loss(logits, layout, targets, 0.1)
    expected = 0.0
    for piece, (start, end) in zip(layout.split(logits), targets, strict=True):
        for column, target in ((0, start), (1, end)):
            loss = torch.nn.functional.cross_entropy(piece[None, :, column], target[None], label_smoothing=0.1)
            expected += float(loss) / 2
    assert float(found) == pytest.approx(expected, abs=1e-5)


def test_a_fine_tuned_folder_says_the_same_in_transformers() -> None:
    transformers = pytest.importorskip("transformers")
    folder = toy.learned("qa2") / "model"
    theirs = transformers.AutoModelForQuestionAnswering.from_pretrained(folder, dtype=torch.float32).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    bundle = unmask.load(folder)
    for row in toy.dev_rows("qa2")[:10]:
        with torch.inference_mode():
            out = theirs(**tokenizer(row["question"], row["context"], return_tensors="pt"))
            ours = bundle.model.span_logits(bundle.model(bundle.batch([row["question"]], [row["context"]])))
        torch.testing.assert_close(ours, torch.stack([out.start_logits[0], out.end_logits[0]], 1), atol=1e-5, rtol=0)
        said = bundle.predict(row["question"], row["context"])[0]
        assert said.answer == (row["answers"][0]["text"] if row["answers"] else "")


# Where answers stand

HARD = {
    "traditional Chinese": "我說臺灣。{}，了東東",
    "full-width": "ＡＢＣ（{}）１２３！？",
    "emoji": "👩‍👩‍👧‍👦 {} 🏳️‍🌈 👍🏽",
    "combining": "cafe\u0301 {} e\u0301 n\u0303",
    "right to left": "שלום \u202e{}\u202c مرحبا",
    "tabs and newlines": "\t\n {}\r\n\n the\t",
    "double spaces": "  the   {}    was  ",
    "accents": "the {}\u0301 was",
}


@pytest.mark.parametrize("name", HARD)
def test_answers_stand_exactly_where_they_are(name: str) -> None:
    bundle = unmask.load(toy.learned("qa") / "model")
    text = HARD[name].format("Bob")
    usage = bundle.predictor.usage.replace(max_answer=1)  # the model was never taught this script: one word is enough
    examples = [QuestionExample("1", "  who\twas it ?", text), QuestionExample("2", WHO, "the ada was")]
    said, other = answer(bundle.model, bundle.tokenizer, usage, examples)
    assert other.answer == "ada"
    assert said.answer == text[said.start : said.end]
    assert said.answer == ("Bob\u0301" if name == "accents" else "Bob")
    assert said.start == text.index("Bob")


def documents() -> tuple[str, list[int]]:
    """20,000 words of filler, and places from first to last, borders of windows among them."""
    draw = random.Random(0)
    words = draw.choices(toy.FILLER, k=20_000)
    room = 64 - 3 - 4
    step = room - 15
    places = [0, 1, 9_999, 19_998, 19_999, room - 1, room, step, step - 1, 100 * step, 100 * step + room - 1]
    return " ".join(words), places


def test_an_answer_is_found_anywhere_in_a_long_document() -> None:
    bundle = unmask.load(toy.learned("qa") / "model")
    text, places = documents()
    examples = []
    for place in places:
        words = text.split(" ")
        words[place] = "eve"
        examples.append(QuestionExample(str(place), WHO, " ".join(words)))
    found = 0
    for example, said in zip(examples, bundle.predictor.run(examples), strict=True):
        place, score = by_hand(bundle, example.context.split(" "))
        assert said.start == len(" ".join([*example.context.split(" ")[:place], ""])), example.id
        assert said.score == pytest.approx(score, abs=1e-4)
        found += said.start == example.context.index("eve")
        assert said.coverage == 1
        assert said.windows > 400
        assert said.tokens == 20_000 + 7
    assert found >= len(places) - 2  # hundreds of windows without a name, which it was never taught, may win


def by_hand(bundle: unmask.Bundle, words: list[str]) -> tuple[int, float]:
    """The first word of the best answer over all windows, and its score: each window and each span, one by one."""
    asked, room = bundle.tokenizer.encode(WHO).ids, 64 - 3 - 4
    ids = [toy.VOCABULARY.index(word) for word in words]
    starts = [*range(0, len(ids) - room, room - 15), len(ids) - room]
    pieces = [[*asked, *ids[start : start + room], bundle.tokenizer.sep_id] for start in starts]
    segments = [[0] * len(asked) + [1] * (room + 1) for _ in starts]
    with torch.inference_mode():
        encoded = bundle.model.eval()(Batch.of(pieces, segments))
        logits = torch.stack(encoded.layout.split(bundle.model.span_logits(encoded)))[:, len(asked) : -1]
    scores = logits[:, :, None, 0] + logits[:, None, :, 1]  # window, first, last
    allowed = torch.ones(room, room).triu() - torch.ones(room, room).triu(30) > 0
    best = scores.masked_fill(~allowed, -torch.inf).flatten().argmax()
    window, first = divmod(int(best) // room, room)
    return starts[window] + first, float(scores.flatten()[best])


def test_windows_that_hold_no_answer_point_at_nothing(tmp_path: Path) -> None:
    words = ["the"] * 150
    words[75] = "ada"
    context = " ".join(words)
    (start,) = [context.index("ada")]
    example = QuestionExample("1", WHO, context, (Answer("ada", start),))
    items = answer_windows(toy.tokenizer(), [example], USAGE, 64)
    ids = [item.ready.ids.tolist() for item in items]
    ada = toy.VOCABULARY.index("ada")
    for item, window in zip(items, ids, strict=True):
        assert (item.start, item.end) == ((window.index(ada),) * 2 if ada in window else (0, 0))
    assert 1 <= sum(ada in window for window in ids) < len(ids)


def test_a_question_teaches_only_what_is_known() -> None:
    known = QuestionExample("1", WHO, "the ada was", (Answer("ada", 4),))
    missing = QuestionExample("2", WHO, "the ada was", (Answer("bob", -1),))
    silent = QuestionExample("3", WHO, "the was", impossible=True)
    nothing = QuestionExample("4", WHO, "the was")
    for examples, count in [([known], 1), ([missing], 0), ([silent], 1), ([nothing], 0), ([known, missing, silent], 2)]:
        assert len(answer_windows(toy.tokenizer(), examples, USAGE, 64)) == count


# An answer or none


def said_of(logits: torch.Tensor, usage: Usage, context: str = "ada was bob") -> AnswerPrediction:
    (text,) = question_texts(toy.tokenizer(), [QuestionExample("1", "who", context)], usage, 64)
    return answered(text, [logits], usage)


def test_no_answer_is_given_when_it_scores_better_by_the_threshold() -> None:
    logits = torch.full((7, 2), -5.0)  # [CLS] who [SEP] ada was bob [SEP]
    logits[3, 0] = logits[3, 1] = 1.0
    logits[0] = 1.5
    always = said_of(logits, USAGE)
    assert (always.answer, always.start, always.end, always.score) == ("ada", 0, 3, 2.0)
    assert always.doubt == 1.0
    for threshold, expected in [(0.5, ""), (0.99, ""), (1.0, "ada"), (3.0, "ada"), (-1.0, "")]:
        said = said_of(logits, USAGE.replace(no_answer=threshold))
        assert said.answer == expected
        assert said.best == "ada"
        assert (said.start, said.end) == ((0, 3) if expected else (0, 0))
    rivals = torch.tensor([2.0, 3.0])
    assert said_of(logits, USAGE.replace(no_answer=0.0)).probability == pytest.approx(
        float(rivals.softmax(0)[1]), abs=1e-3
    )


def test_an_answer_never_ends_before_it_starts_nor_in_the_question() -> None:
    logits = torch.full((7, 2), -5.0)
    logits[5, 0] = logits[3, 1] = 9.0  # would be bob … ada
    logits[1] = 50.0  # the question itself
    logits[6] = 60.0  # [SEP]
    assert said_of(logits, USAGE).answer in ("bob", "ada", "ada was bob")
    logits[3, 0] = 8.5
    assert said_of(logits, USAGE).answer == "ada"


def test_a_text_without_a_token_has_no_answer() -> None:
    bundle = unmask.load(toy.learned("qa") / "model")
    said = bundle.predict([WHO, WHO], ["\u200b", "the ada was"])
    assert [one.answer for one in said] == ["", "ada"]


def test_what_is_said_depends_on_the_question_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    bundle = unmask.load(toy.learned("qa2") / "model")
    draw = random.Random(0)
    examples = [QuestionExample(row["id"], row["question"], row["context"]) for row in toy.dev_rows("qa2")[:12]]
    for length in (55, 57, 58, 200, 400):
        words = [*draw.choices(toy.FILLER, k=length), draw.choice(toy.PEOPLE)]
        draw.shuffle(words)
        examples.append(QuestionExample(f"long {length}", WHO, " ".join(words)))
    together = list(bundle.predictor.run(examples))
    assert {one.answer == "" for one in together} == {True, False}

    def same(one: AnswerPrediction, two: AnswerPrediction) -> None:
        assert (one.answer, one.start, one.end, one.windows) == (two.answer, two.start, two.end, two.windows)
        for name in ("probability", "score", "doubt"):
            assert getattr(one, name) == pytest.approx(getattr(two, name), abs=2e-5)

    for example, expected in zip(examples, together, strict=True):
        same(next(bundle.predictor.run([example])), expected)
    order = draw.sample(range(len(examples)), len(examples))
    for number, found in zip(order, bundle.predictor.run([examples[n] for n in order]), strict=True):
        same(found, together[number])
    bundle.model.train()
    monkeypatch.setattr(windows, "CHUNK_TEXTS", 2)
    for budget in (1, 1_000_000):
        monkeypatch.setattr(windows.run_windows, "__kwdefaults__", {"firsts": False, "budget": budget})
        for one, two in zip(bundle.predictor.run(examples), together, strict=True):
            same(one, two)
    assert bundle.model.training


def test_what_is_measured_while_learning_is_the_official_score(tmp_path: Path) -> None:
    bundle = unmask.load(toy.learned("qa2") / "model")
    rows = toy.dev_rows("qa2")
    for row in rows[::4]:
        row["context"] = row["context"].replace(" ", "  ")  # of other texts than it was taught
        row["answers"] = []
    examples = read_questions(toy.write_rows(tmp_path / "dev.jsonl", rows)).examples
    usage = bundle.predictor.usage
    evaluator = AnswerEvaluator(question_texts(bundle.tokenizer, examples, usage, 64), usage)
    with torch.no_grad():
        found = evaluator.conclude([evaluator.measure(bundle.model, n) for n in range(len(evaluator))])
    said = list(bundle.predictor.run(examples))
    exact = [one.answer in ([a.text for a in e.answers] or [""]) for e, one in zip(examples, said, strict=True)]
    assert found["exact"] == pytest.approx(sum(exact) / len(exact))
    assert 0.5 < found["exact"] < 1
    assert json.dumps(found)
