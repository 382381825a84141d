"""Classification: losses and gradients are those of `transformers`, and what is said of a text depends on it alone."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import finetune_toy as toy
import unmask
from unmask.data.examples import TextExample
from unmask.longtext.settings import LongTextSettings
from unmask.models.bert import Bert
from unmask.models.settings import ClassifySettings
from unmask.tasks import windows
from unmask.tasks.classify import (
    Classification,
    ClassifyCollate,
    ClassifyEvaluator,
    ClassPrediction,
    class_probabilities,
    classify,
    labelled,
)
from unmask.tasks.usage import Usage
from unmask.tasks.windows import Ready
from unmask.train.step import backward

LABELS: dict[str, tuple[str, ...]] = {
    "single": ("neg", "pos"),
    "pair": ("blue", "green", "red"),
    "multi": tuple(sorted(toy.ANIMALS)),
    "regression": ("score",),
}


def head_for(task: str, **changes: Any) -> ClassifySettings:
    problem = "single" if task == "pair" else task
    return ClassifySettings(labels=LABELS[task], dropout=0.0, problem=problem, **changes)


def examples_of(task: str, count: int = 12) -> list[TextExample]:
    made = []
    for row in toy.TASKS[task][1](count, seed=5):
        label = tuple(row["label"]) if isinstance(row["label"], list) else row["label"]
        made.append(TextExample(row.get("text", row.get("text_a")), row.get("text_b"), label))
    return made


USAGE = Usage(task="classify", long_text=LongTextSettings(strategy="windows"))


@pytest.mark.parametrize("task", LABELS)
def test_first_loss_and_gradients_are_those_of_transformers(task: str, tmp_path: Path) -> None:
    head, examples = head_for(task), examples_of(task)
    model = toy.model_with(head)
    theirs = toy.theirs_of(model, tmp_path / "model", "BertForSequenceClassification")
    items = labelled(toy.tokenizer(), examples, USAGE, head, 64)
    collate = ClassifyCollate(head, USAGE)
    # In micro-batches of different sizes, whose losses are one mean all the same.
    batches = [collate(items[:5]), collate(items[5:6]), collate(items[6:])]
    loss = backward(model, Classification(head), batches)["loss"]
    pairs = [example.pair for example in examples]
    inputs = toy.padded([example.text for example in examples], pairs if task == "pair" else None)
    targets = {
        "single": lambda: torch.tensor([head.labels.index(example.label) for example in examples]),
        "multi": lambda: torch.tensor([[float(one in example.label) for one in head.labels] for example in examples]),
        "regression": lambda: torch.tensor([example.label for example in examples]),
    }[head.problem]()
    expected = theirs(**inputs, labels=targets).loss
    assert loss == pytest.approx(float(expected.detach()), abs=1e-5)
    expected.backward()
    toy.check_gradients(model, theirs)


def test_smoothing_and_weights_are_those_of_torch() -> None:
    head, examples = head_for("pair"), examples_of("pair")
    model, weights = toy.model_with(head), torch.tensor([0.5, 2.0, 1.0])
    items = labelled(toy.tokenizer(), examples, USAGE, head, 64)
    batch = ClassifyCollate(head, USAGE)(items)
    found = backward(model, Classification(head, 0.1, weights), [batch])["loss"]
    logits = Classification(head).logits(model, batch)
    expected = nn.CrossEntropyLoss(weights, label_smoothing=0.1)(logits, batch.targets)
    assert found == pytest.approx(float(expected.detach()), abs=1e-6)


def test_a_fine_tuned_folder_says_the_same_in_transformers() -> None:
    transformers = pytest.importorskip("transformers")
    for task in ("single", "pair", "multi", "regression"):
        folder = toy.learned(task) / "model"
        theirs = transformers.AutoModelForSequenceClassification.from_pretrained(folder, dtype=torch.float32).eval()
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        rows = toy.dev_rows(task)[:20]
        texts, pairs = [row.get("text", row.get("text_a")) for row in rows], [row.get("text_b") for row in rows]
        inputs = tokenizer(texts, pairs if task == "pair" else None, return_tensors="pt", padding=True)
        with torch.inference_mode():
            logits = theirs(**inputs).logits
        said = unmask.load(folder).predict(texts, pairs if task == "pair" else None)
        assert theirs.config.id2label == dict(enumerate(LABELS[task]))
        if task == "regression":
            torch.testing.assert_close(torch.tensor([one.label for one in said]), logits[:, 0], atol=1e-5, rtol=0)
            continue
        shares = logits.sigmoid() if task == "multi" else logits.softmax(-1)
        found = torch.tensor([[one.probabilities[label] for label in LABELS[task]] for one in said])
        torch.testing.assert_close(found, shares, atol=1e-5, rtol=0)


# A text alone, among others, in any order and any batch


def long_texts(seed: int = 0) -> list[str]:
    """From nothing to several windows."""
    draw = random.Random(seed)
    words = toy.FILLER + toy.GOOD + toy.BAD
    return [" ".join(draw.choices(words, k=k)) for k in (0, 1, 7, 300, 3, 61, 62, 63, 40, 40, 150, 2, 500, 12)]


def same(one: ClassPrediction, two: ClassPrediction) -> None:
    assert one.label == two.label or isinstance(one.label, float)
    if isinstance(one.label, float):
        assert one.label == pytest.approx(two.label, abs=1e-5)
    assert one.probabilities.keys() == two.probabilities.keys()
    for label, share in one.probabilities.items():
        assert share == pytest.approx(two.probabilities[label], abs=1e-5)
    assert (one.coverage, one.windows, one.tokens) == (two.coverage, two.windows, two.tokens)


@pytest.mark.parametrize("pooling", ["pooler", "cls", "mean", "max"])
@pytest.mark.parametrize("join", ["mean", "max", "attention"])
def test_what_is_said_depends_on_the_text_alone(pooling: str, join: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = toy.model_with(head_for("single", pooling=pooling, window_attention=join == "attention"))
    usage = Usage(task="classify", long_text=LongTextSettings(strategy="windows", join=join))
    examples = [TextExample(text) for text in long_texts()]

    def said(given: list[TextExample]) -> list[ClassPrediction]:
        return list(classify(model, toy.tokenizer(), usage, given))

    together = said(examples)
    assert max(one.windows for one in together) > 8
    assert all(one.coverage == 1 for one in together)
    assert len({round(one.probabilities["pos"], 6) for one in together}) > 10
    for example, expected in zip(examples, together, strict=True):
        same(said([example])[0], expected)
    order = random.Random(1).sample(range(len(examples)), len(examples))
    for number, found in zip(order, said([examples[number] for number in order]), strict=True):
        same(found, together[number])
    for budget in (1, 100_000):
        texts = [Ready.all_of(encoding) for encoding in encoded(usage, examples)]
        monkeypatch.setattr(windows.run_windows, "__kwdefaults__", {"firsts": False, "budget": budget})
        found = class_probabilities(model, usage, texts)
        shares = torch.tensor([[one.probabilities[label] for label in LABELS["single"]] for one in together])
        torch.testing.assert_close(found, shares, atol=1e-5, rtol=0)


def encoded(usage: Usage, examples: list[TextExample]) -> Any:
    from unmask.tasks.classify import encode_texts

    return encode_texts(toy.tokenizer(), examples, usage, 64)


def test_small_chunks_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    model = toy.model_with(head_for("single"))
    examples = [TextExample(text) for text in long_texts()]
    whole = list(classify(model, toy.tokenizer(), USAGE, examples))
    monkeypatch.setattr(windows, "CHUNK_TEXTS", 3)
    monkeypatch.setattr(windows, "CHUNK_CHARACTERS", 50)
    for one, two in zip(classify(model, toy.tokenizer(), USAGE, iter(examples)), whole, strict=True):
        same(one, two)


def test_a_model_left_in_training_says_the_same_and_stays_in_it() -> None:
    head = ClassifySettings(labels=("neg", "pos"), dropout=0.5)
    model = Bert(toy.settings(dropout=0.5).replace(heads=(head,)))
    torch.manual_seed(0)
    examples = [TextExample(text) for text in long_texts()]
    calm = list(classify(model.eval(), toy.tokenizer(), USAGE, examples))
    assert not model.training
    model.train()
    model.encoder.embeddings.eval()  # a part that was frozen stays so
    restless = list(classify(model, toy.tokenizer(), USAGE, examples))
    assert restless == calm
    assert model.training
    assert model.heads["classify"].training
    assert not model.encoder.embeddings.training
    assert not any(parameter.grad is not None for parameter in model.parameters())


def test_long_texts_are_windows_read_by_hand() -> None:
    model = toy.model_with(head_for("single")).eval()
    text = long_texts()[3]
    bundle = unmask.bundle.Bundle(model, toy.tokenizer())
    ids = toy.tokenizer().encode(text, special_tokens=False).ids
    tokenizer = toy.tokenizer()
    starts = [*range(0, len(ids) - 62, 62 - 16), len(ids) - 62]
    from unmask.nn.batch import Batch

    pieces = [[tokenizer.cls_id, *ids[start : start + 62], tokenizer.sep_id] for start in starts]
    rows = bundle.model(Batch.of(pieces)).pooled
    by_hand = {"mean": rows.mean(0), "max": rows.max(0).values}
    for join, row in by_hand.items():
        usage = Usage(task="classify", long_text=LongTextSettings(strategy="windows", join=join))
        (said,) = classify(model, tokenizer, usage, [TextExample(text)])
        assert said.windows == len(starts)
        expected = model.heads["classify"].dense(row).softmax(-1)
        torch.testing.assert_close(torch.tensor([said.probabilities[one] for one in LABELS["single"]]), expected)


def test_head_leaves_out_and_says_so() -> None:
    model = toy.model_with(head_for("single"))
    usage = Usage(task="classify", long_text=LongTextSettings(strategy="head"))
    text = long_texts()[3]
    (said,) = classify(model, toy.tokenizer(), usage, [TextExample(text)])
    (cut,) = classify(model, toy.tokenizer(), usage, [TextExample(" ".join(text.split()[:62]))])
    assert said.probabilities == cut.probabilities
    assert cut.coverage == 1
    assert said.coverage == pytest.approx(len("".join(text.split()[:62])) / len("".join(text.split())), abs=1e-6)


def test_the_threshold_decides_of_several_labels() -> None:
    folder = toy.learned("multi") / "model"
    bundle = unmask.load(folder)
    text = "the cat and the dog"
    assert bundle.predict([text])[0].label == ("cat", "dog")
    shares = bundle.predict([text])[0].probabilities
    for threshold in (0.01, 0.3, 0.97):
        usage = bundle.predictor.usage.replace(threshold=threshold)
        (said,) = classify(bundle.model, bundle.tokenizer, usage, [TextExample(text)])
        assert set(said.label) == {label for label, share in shares.items() if share >= threshold}
    assert bundle.predict(["the"])[0].label == ()


@pytest.mark.parametrize("task", LABELS)
def test_what_is_measured_while_learning_is_what_sklearn_says(task: str) -> None:
    sklearn = pytest.importorskip("sklearn.metrics")
    bundle = unmask.load(toy.learned("single" if task == "single" else task) / "model")
    head = next(head for head in bundle.model.settings.heads if head.kind == "classify")
    usage = bundle.predictor.usage
    examples = examples_of(task, 60)
    draw = random.Random(0)
    wrong = [  # labels of others, so that something is wrong
        TextExample(one.text, one.pair, draw.choice(examples).label if draw.random() < 0.4 else one.label)
        for one in examples
    ]
    items = labelled(bundle.tokenizer, wrong, usage, head, 64)
    evaluator = ClassifyEvaluator(items, head, usage)
    with torch.no_grad():
        found = evaluator.conclude([evaluator.measure(bundle.model.eval(), n) for n in range(len(evaluator))])
    said = [one.label for one in classify(bundle.model, bundle.tokenizer, usage, wrong)]
    gold = [one.label for one in wrong]
    if task == "regression":
        pearson = torch.corrcoef(torch.tensor([gold, said]))[0, 1]
        assert found["pearson"] == pytest.approx(float(pearson), abs=1e-5)
        assert found["mean_squared_error"] == pytest.approx(sklearn.mean_squared_error(gold, said), abs=1e-5)
    elif task == "multi":
        flags = [[[float(label in one) for label in head.labels] for one in side] for side in (gold, said)]
        for name in ("micro", "macro"):
            assert found[f"{name}_f1"] == pytest.approx(sklearn.f1_score(*flags, average=name, zero_division=0))
        assert found["all_right"] == pytest.approx(sklearn.accuracy_score(*flags))
    else:
        assert found["accuracy"] == pytest.approx(sklearn.accuracy_score(gold, said))
        assert found["macro_f1"] == pytest.approx(sklearn.f1_score(gold, said, average="macro"))
        assert found["mcc"] == pytest.approx(sklearn.matthews_corrcoef(gold, said))
        assert found["accuracy"] < 0.9
