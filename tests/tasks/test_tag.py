"""Tagging: losses of `transformers`, exact places in any script, one answer however a text is read."""

from __future__ import annotations

import itertools
import random
import unicodedata
from pathlib import Path

import pytest
import torch

import finetune_toy as toy
import unmask
from unmask.data.examples import Entity, TaggedExample
from unmask.data.tagged import read_tagged
from unmask.longtext.settings import LongTextSettings
from unmask.models.bert import Bert
from unmask.models.settings import TagSettings
from unmask.nn.layout import Layout
from unmask.tasks import windows
from unmask.tasks.tag import CrfTagging, TagEvaluator, Tagging, TagPrediction, collate_tags, tag
from unmask.tasks.tag_texts import over_words, tag_texts, tag_windows
from unmask.tasks.usage import Usage
from unmask.train.step import backward

LABELS = ("O", "B-LOC", "I-LOC", "B-PER", "I-PER")
USAGE = Usage(task="tag", long_text=LongTextSettings(strategy="windows"))


def head(crf: bool = False) -> TagSettings:
    return TagSettings(labels=LABELS, dropout=0.0, crf=crf)


def examples_of(tmp_path: Path, count: int = 12) -> list[TaggedExample]:
    return read_tagged(toy.write_rows(tmp_path / "words.jsonl", toy.word_rows(count, seed=5))).examples


def test_first_loss_and_gradients_are_those_of_transformers(tmp_path: Path) -> None:
    examples = examples_of(tmp_path)
    # Words of several tokens: only the first of each is asked.
    examples.append(TaggedExample("xyz was adx", ((0, 3), (4, 7), (8, 11)), entities=(Entity(8, 11, "PER"),)))
    model = toy.model_with(head())
    theirs = toy.theirs_of(model, tmp_path / "model", "BertForTokenClassification")
    items = tag_windows(toy.tokenizer(), examples, USAGE, LABELS, 64)
    loss = backward(model, Tagging(head()), [collate_tags(items[:4]), collate_tags(items[4:])])["loss"]
    inputs = toy.padded([example.text for example in examples])
    labels = torch.full_like(inputs["input_ids"], -100)
    for row, example in enumerate(examples):
        starts = {start: number for number, (start, _) in enumerate(example.words)}
        tags = dict.fromkeys(range(len(example.words)), "O")
        for start, end, type in example.entities:
            inside = [n for n, (a, b) in enumerate(example.words) if start <= a and b <= end]
            tags |= {n: f"{'B' if n == inside[0] else 'I'}-{type}" for n in inside}
        for column, (start, _) in enumerate(toy.tokenizer().encode(example.text).offsets):
            token = toy.VOCABULARY[inputs["input_ids"][row, column]]
            if start in starts and not token.startswith(("##", "[CLS]", "[SEP]")):
                labels[row, column] = LABELS.index(tags[starts[start]])
    assert int((labels >= 0).sum()) == sum(len(example.words) for example in examples)
    expected = theirs(**inputs, labels=labels).loss
    assert loss == pytest.approx(float(expected.detach()), abs=1e-5)
    expected.backward()
    toy.check_gradients(model, theirs)


def test_the_loss_of_a_crf_is_that_of_its_words(tmp_path: Path) -> None:
    examples = examples_of(tmp_path)
    model = toy.model_with(head(crf=True)).eval()
    items = tag_windows(toy.tokenizer(), examples, USAGE, LABELS, 64)
    loss = backward(model, CrfTagging(head(crf=True)), [collate_tags(items[:4]), collate_tags(items[4:])])["loss"]
    crf, total, words = model.heads["tag"].crf, 0.0, 0
    for item in items:
        with torch.no_grad():
            logits = model.tag_logits(model(windows.batch_of([item.ready])))[torch.from_numpy(item.rows)]
            layout = Layout.ragged([len(item.rows)])
            total -= float(crf.log_likelihood(logits, torch.from_numpy(item.targets), layout))
        words += len(item.rows)
    assert loss == pytest.approx(total / words, abs=1e-5)


def test_fine_tuned_folders_say_the_same_in_transformers() -> None:
    transformers = pytest.importorskip("transformers")
    for task in ("words", "spans", "plain"):
        folder = toy.learned(task) / "model"
        theirs = transformers.AutoModelForTokenClassification.from_pretrained(folder, dtype=torch.float32).eval()
        bundle = unmask.load(folder)
        for row in toy.dev_rows(task)[:10]:
            text = row["text"] if "text" in row else " ".join(row["tokens"])
            inputs = transformers.AutoTokenizer.from_pretrained(folder)(text, return_tensors="pt")
            with torch.inference_mode():
                logits = theirs(**inputs).logits[0]
                ours = bundle.model.tag_logits(bundle.model(bundle.batch([text])))
            torch.testing.assert_close(ours, logits, atol=1e-5, rtol=0)
            words, best = inputs.word_ids(), [theirs.config.id2label[int(one)] for one in logits.argmax(-1)]
            said = [best[n] for n, word in enumerate(words) if word is not None and word != words[n - 1]]
            assert [tag for _, _, tag in bundle.predict([text])[0].words] == said


# Exact places

#: Texts with names in them, and something hard around each.
HARD = {
    "traditional Chinese": ("spans", "我說{}去了{}和東東", ["張偉", "臺灣"]),
    "full-width": ("spans", "ＡＢＣ，{}！？（{}）１２３", ["李娜", "北京"]),
    "emoji": ("words", "👩‍👩‍👧‍👦 {} 🏳️‍🌈,{}-👍🏽 was", ["ada", "bob"]),
    "combining": ("words", "cafe\u0301 {} e\u0301e\u0302 {} n\u0303", ["eve", "tom"]),
    "right to left": ("words", "שלום {} مرحبا \u202e{}\u202c the", ["ada", "eve"]),
    "tabs and newlines": ("words", "\t\n{}\r\n\n the\t{}\t\n", ["bob", "ada"]),
    "double spaces": ("words", "  the   {}    was  {}  ", ["eve", "bob"]),
    "no-break and zero-width": ("words", "the\u00a0{}\u00a0was\u200b {}\ufeff.", ["tom", "ada"]),
    "capitals and ligatures": ("words", "ﬁne {} ǅ ß {} İ", ["ADA", "Bob"]),
    "beyond the first plane": ("words", "𝒜𝒷 {} 𠀀𠀁 {} 𐍈", ["ada", "tom"]),
    "punctuation": ("words", "({}),-{}!?", ["ada", "bob"]),
}


@pytest.mark.parametrize("name", HARD)
@pytest.mark.parametrize("alone", [True, False])
def test_entities_stand_exactly_where_they_are(name: str, alone: bool) -> None:
    task, frame, names = HARD[name]
    text = frame.format(*names)
    bundle = unmask.load(toy.learned(task) / "model")
    others = [] if alone else ["the ada was", "", "x" * 300, "bob " * 100]
    said = bundle.predict([*others, text])[-1]
    assert isinstance(said, TagPrediction)
    found = [text[entity.start : entity.end] for entity in said.entities]
    assert found == names
    places = [text.index(name) for name in names]
    assert [entity.start for entity in said.entities] == places
    for start, end, _ in said.words:
        assert 0 <= start < end <= len(text)
        assert not text[start:end].isspace()
    spans = [word[:2] for word in said.words]
    assert spans == sorted(spans)
    assert all(before[1] <= after[0] for before, after in itertools.pairwise(spans))


def test_a_name_keeps_its_accent() -> None:
    """Taken apart, the accent is a character of its own that the tokenizer drops."""
    bundle = unmask.load(toy.learned("words") / "model")
    text = "the a\u0301da\u0300\u0323 was bob\u0301."
    (said,) = bundle.predict(text)
    assert [text[one.start : one.end] for one in said.entities] == ["a\u0301da\u0300\u0323", "bob\u0301"]
    gold = (Entity(4, 10, "PER"), Entity(15, 19, "PER"))
    (ready,) = tag_texts(bundle.tokenizer, [TaggedExample(text, entities=gold)], bundle.predictor.usage, 64)
    assert ready.tags == ("O", "B-PER", "O", "B-PER", "O")
    assert {Entity(*one[:3]) for one in said.entities} == set(gold)


def test_words_that_have_no_token_are_outside() -> None:
    bundle = unmask.load(toy.learned("words") / "model")
    text = "ada \u200b bob"
    example = TaggedExample(text, ((0, 3), (4, 5), (6, 9)))
    assert unicodedata.category(text[4]) == "Cf"
    (said,) = tag(bundle.model, bundle.tokenizer, bundle.predictor.usage, [example])
    assert [word[2] for word in said.words] == ["B-PER", "O", "B-PER"]
    assert [entity[:3] for entity in said.entities] == [(0, 3, "PER"), (6, 9, "PER")]


def test_stretches_take_whole_words_and_no_word_twice() -> None:
    words = [(0, 3), (4, 8), (9, 12), (12, 13)]
    found = over_words([Entity(1, 5, "A"), Entity(6, 10, "B"), Entity(12, 13, "C"), Entity(13, 13, "D")], words)
    assert found == [Entity(0, 2, "A"), Entity(2, 3, "B"), Entity(3, 4, "C")]


# The same however it is read


def texts_of_all_lengths() -> list[str]:
    draw = random.Random(0)
    words = toy.FILLER * 2 + toy.PEOPLE + [f"york {place}" for place in toy.PLACES[:3]]
    return [" ".join(draw.choices(words, k=k)) for k in (1, 400, 9, 62, 63, 61, 30, 30, 0, 200, 3)]


def same(one: TagPrediction, two: TagPrediction) -> None:
    assert one.words == two.words
    assert [entity[:3] for entity in one.entities] == [entity[:3] for entity in two.entities]
    for a, b in zip(one.entities, two.entities, strict=True):
        assert a.probability == pytest.approx(b.probability, abs=1e-5)
    assert (one.coverage, one.windows, one.tokens) == (two.coverage, two.windows, two.tokens)


@pytest.mark.parametrize("task", ["words", "crf"])
def test_what_is_found_depends_on_the_text_alone(task: str, monkeypatch: pytest.MonkeyPatch) -> None:
    bundle = unmask.load(toy.learned(task) / "model")
    texts = texts_of_all_lengths()
    together = bundle.predict(texts)
    assert max(one.windows for one in together) > 5
    assert sum(len(one.entities) for one in together) > 40
    for text, expected in zip(texts, together, strict=True):
        same(bundle.predict(text)[0], expected)
    order = random.Random(1).sample(range(len(texts)), len(texts))
    for number, found in zip(order, bundle.predict([texts[number] for number in order]), strict=True):
        same(found, together[number])
    for budget in (1, 1_000_000):
        monkeypatch.setattr(windows.run_windows, "__kwdefaults__", {"firsts": False, "budget": budget})
        for one, two in zip(bundle.predict(texts), together, strict=True):
            same(one, two)
    monkeypatch.setattr(windows, "CHUNK_TEXTS", 2)
    bundle.model.train()
    for one, two in zip(bundle.predict(texts), together, strict=True):
        same(one, two)
    assert bundle.model.training


def test_a_long_text_with_a_crf_is_decoded_as_a_whole() -> None:
    bundle = unmask.load(toy.learned("crf") / "model")
    model, usage = bundle.model, bundle.predictor.usage
    assert isinstance(model, Bert)
    (text,) = tag_texts(bundle.tokenizer, [TaggedExample(texts_of_all_lengths()[1])], usage, 64)
    said = windows.run_windows(model, text.windows, lambda out: windows.rows_of(out, model.tag_logits(out)))
    logits = text.of_words(said)
    assert len(logits) == len(text.words)
    layout = Layout.ragged([len(logits)])
    crf, labels = model.heads["tag"].crf, next(head for head in model.settings.heads if head.kind == "tag").labels
    path, shares = crf.decode(logits, layout)[0], crf.marginals(logits, layout)
    (found,) = bundle.predict(texts_of_all_lengths()[1])
    assert [word[2] for word in found.words] == [labels[label] for label in path]
    first = found.entities[0]
    inside = [n for n, (start, end) in enumerate(text.words) if start >= first.start and end <= first.end]
    assert first.probability == pytest.approx(float(shares[inside, [path[n] for n in inside]].mean()), abs=1e-5)


def long_document(num_tokens: int = 20_000) -> tuple[str, list[tuple[int, int, str]]]:
    """Filler with a name at the beginning, the end, the middle, and around every border of a window."""
    draw = random.Random(2)
    words = draw.choices(toy.FILLER, k=num_tokens)
    room, step = 62, 62 - 16
    borders = [*range(0, num_tokens - room, step), num_tokens - room]
    planted = {0, num_tokens // 2, num_tokens - 1}
    for start in borders[::20]:
        planted |= {start - 1, start, start + room - 1, start + room}
    planted = {place for place in planted if 0 <= place < num_tokens}
    for place in planted:
        words[place] = draw.choice(toy.PEOPLE)
    starts, at = [], 0
    for word in words:
        starts.append(at)
        at += len(word) + 1
    return " ".join(words), sorted((starts[place], starts[place] + len(words[place]), "PER") for place in planted)


def test_every_name_of_a_long_document_is_found() -> None:
    bundle = unmask.load(toy.learned("words") / "model")
    text, planted = long_document()
    (said,) = bundle.predict(text)
    assert said.tokens == 20_002
    assert said.windows > 400
    assert said.coverage == 1
    assert [entity[:3] for entity in said.entities] == planted
    assert len(planted) > 60
    usage = bundle.predictor.usage.replace(long_text=LongTextSettings(strategy="head"))
    (cut,) = tag(bundle.model, bundle.tokenizer, usage, [TaggedExample(text)])
    assert cut.coverage < 0.01
    assert [entity[:3] for entity in cut.entities] == [
        one for one in planted if one[1] <= len(" ".join(text.split()[:62]))
    ]
    assert len(cut.words) == 20_000
    assert {word[2] for word in cut.words[62:]} == {"O"}


# Measuring


@pytest.mark.parametrize("task", ["words", "crf", "spans", "plain"])
def test_what_is_measured_while_learning_is_what_seqeval_says(task: str, tmp_path: Path) -> None:
    seqeval = pytest.importorskip("seqeval.metrics")
    bundle = unmask.load(toy.learned(task) / "model")
    rows = toy.dev_rows(task)
    draw = random.Random(0)
    for row in rows[::3]:  # something must be wrong
        if "tags" in row:
            row["tags"] = [draw.choice(["O", "B-PER"]) if task != "plain" else "WORD" for _ in row["tags"]]
        else:
            row["entities"] = row["entities"][1:]
    examples = read_tagged(toy.write_rows(tmp_path / "dev.jsonl", rows)).examples
    usage, settings = bundle.predictor.usage, bundle.model.settings.heads[0]
    texts = tag_texts(bundle.tokenizer, examples, usage, 64)
    evaluator = TagEvaluator(texts, settings, usage)
    with torch.no_grad():
        found = evaluator.conclude([evaluator.measure(bundle.model, n) for n in range(len(evaluator))])
    gold = [list(text.tags) for text in texts]
    said = [[word[2] for word in one.words] for one in tag(bundle.model, bundle.tokenizer, usage, examples)]
    right = sum(a == b for one, two in zip(gold, said, strict=True) for a, b in zip(one, two, strict=True))
    assert found["accuracy"] == pytest.approx(right / sum(map(len, gold)))
    assert 0.2 < found["accuracy"] < 1
    if task == "plain":
        return
    assert found["f1"] == pytest.approx(seqeval.f1_score(gold, said))
    assert found["precision"] == pytest.approx(seqeval.precision_score(gold, said))
    assert found["recall"] == pytest.approx(seqeval.recall_score(gold, said))
    assert 0.2 < found["f1"] < 1
