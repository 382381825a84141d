"""What a student learns: each loss against its formula written out, and the same gradient however a batch is split."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import finetune_toy as toy
from unmask.bundle import load
from unmask.compress.cut import Pieces, cut
from unmask.compress.distill import (
    Augmented,
    Bridged,
    Distillation,
    MaskedBatch,
    Teacher,
    attention_loss,
    hidden_loss,
    layer_mapping,
    soft_loss,
)
from unmask.compress.lessons import Lessons, Source, lessons, read_examples, texts_of
from unmask.compress.recover import dropping, recover
from unmask.compress.settings import RecoverySettings, Steps
from unmask.models.bert import Bert
from unmask.models.init import build_model
from unmask.models.surgery import keep_tokens, remove_heads, remove_layers, remove_neurons
from unmask.nn.batch import Batch
from unmask.nn.record import record_attention
from unmask.tasks.predict import Predictor
from unmask.tasks.windows import Epochs
from unmask.train.progress import Listener
from unmask.train.step import backward

ONE = torch.tensor([[1.0, -0.5, 2.0], [0.0, 0.3, -1.0]])
TWO = torch.tensor([[0.5, 0.5, 1.0], [2.0, -0.3, 0.1]])


def softmax(row: list[float], temperature: float) -> list[float]:
    powers = [math.exp(value / temperature) for value in row]
    return [value / sum(powers) for value in powers]


# Losses


@pytest.mark.parametrize("temperature", [1.0, 2.5])
def test_soft_answers(temperature: float) -> None:
    expected = 0.0
    for student, teacher in zip(ONE.tolist(), TWO.tolist(), strict=True):
        q, p = softmax(student, temperature), softmax(teacher, temperature)
        expected += temperature**2 * sum(a * math.log(a / b) for a, b in zip(p, q, strict=True))
    assert soft_loss(ONE, TWO, "single", temperature).item() == pytest.approx(expected, rel=1e-5)
    assert soft_loss(TWO, TWO, "single", temperature).item() == pytest.approx(0, abs=1e-6)


def test_soft_answers_of_several_labels_and_of_numbers() -> None:
    expected = 0.0
    for student, teacher in zip(ONE.flatten().tolist(), TWO.flatten().tolist(), strict=True):
        p, q = 1 / (1 + math.exp(-teacher)), 1 / (1 + math.exp(-student))
        expected -= p * math.log(q) + (1 - p) * math.log(1 - q)
    assert soft_loss(ONE, TWO, "multi").item() == pytest.approx(expected / 3, rel=1e-5)
    assert soft_loss(ONE[:, :1], TWO[:, :1], "regression").item() == pytest.approx(0.25 + 4.0)


def test_places_that_are_not_there_have_no_part_in_it() -> None:
    """Windows of question answering are filled up with a number so low that it is no answer."""
    filled = [torch.cat([rows, torch.full((2, 2), -1e4)], 1) for rows in (ONE, TWO)]
    torch.testing.assert_close(soft_loss(*filled, "rows", 2.0), soft_loss(ONE, TWO, "rows", 2.0))


def test_hidden_states() -> None:
    student = [torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.zeros(2, 2)]
    teacher = [torch.tensor([[1.0, 0.0], [3.0, 5.0]]), torch.ones(2, 2)]
    # Layer one: (0 + 4) / 2 + (0 + 1) / 2 = 2.5; layer two: 1 + 1 = 2.
    assert hidden_loss(student, teacher).item() == pytest.approx((2.5 + 2.0) / 2)


def test_attention_maps_of_different_numbers_of_heads() -> None:
    student = [[torch.tensor([[[0.5, 0.5], [1.0, 0.0]]])]]
    teacher = [[torch.tensor([[[1.0, 0.0], [0.0, 1.0]], [[0.5, 0.5], [0.5, 0.5]]])]]
    # The teacher's mean: [[.75, .25], [.25, .75]].
    expected = 2 * 0.25**2 + 2 * 0.75**2
    assert attention_loss(student, teacher).item() == pytest.approx(expected)


def test_which_layer_looks_at_which() -> None:
    assert layer_mapping(3, 6) == [1, 3, 5]
    assert layer_mapping(4, 6) == [0, 2, 3, 5]
    assert layer_mapping(6, 6) == list(range(6))
    assert layer_mapping(2, 6, "last") == [4, 5]
    assert layer_mapping(2, 6, "first") == [0, 1]
    with pytest.raises(ValueError, match="7 layers cannot look at a teacher of 6"):
        layer_mapping(7, 6)


# The task


@pytest.fixture(scope="module")
def learned() -> tuple[Bert, Any, Any, list[Any]]:
    bundle = load(toy.learned("single") / "model")
    usage = bundle.predictor.usage
    file = toy.learned("single").parent / "single-train.jsonl"
    assert isinstance(bundle.model, Bert)
    return bundle.model, bundle.tokenizer, usage, read_examples(Source(str(file)), usage, bundle.model)


def batches_of(learned: tuple[Any, ...], count: int) -> tuple[Lessons, list[Any]]:
    model, tokenizer, usage, examples = learned
    found = lessons(model, tokenizer, usage, examples[:count])
    return found, list(found.items)


def everything() -> RecoverySettings:
    return RecoverySettings(hard=0.3, soft=0.7, hidden=0.5, attention=0.2)


def smaller(model: Bert) -> Any:
    return remove_neurons(remove_heads(remove_layers(model, [0]), {0: [1]}), {0: range(40)})


def test_all_losses_together_are_what_their_formulas_say(learned: tuple[Any, ...]) -> None:
    teacher = learned[0]
    found, items = batches_of(learned, 5)
    student = smaller(teacher)
    batch = found.collate(items)
    task = Distillation(found, Teacher(teacher), everything())
    sums = task.sums(student, MaskedBatch(batch, False))
    with record_attention(teacher) as theirs, record_attention(student) as ours:
        said, answered = found.task.logits(teacher, batch), found.task.logits(student, batch)
    torch.testing.assert_close(sums["loss"], found.task.loss(answered, batch)["loss"])
    torch.testing.assert_close(sums["soft"], soft_loss(answered, said, "single", 2.0))
    last = "encoder.stack.blocks.1", "encoder.stack.blocks.0"
    expected = (ours.hidden[last[1]][0] - theirs.hidden[last[0]][0]).square().sum() / 32
    torch.testing.assert_close(sums["hidden"], expected)
    pairs = zip(
        ours.attention[f"{last[1]}.self_attention"].weights,
        theirs.attention[f"{last[0]}.self_attention"].weights,
        strict=True,
    )
    maps = sum((one.mean(0) - two.mean(0)).square().sum() for one, two in pairs)
    torch.testing.assert_close(sums["attention"], maps)
    assert task.weights == {"loss": 0.3, "soft": 0.7, "hidden": 0.5, "attention": 0.2}


def test_the_gradient_does_not_depend_on_the_split_into_micro_batches(learned: tuple[Any, ...]) -> None:
    found, items = batches_of(learned, 6)
    gradients = []
    for parts in ([items], [items[:1], items[1:4], items[4:]]):
        student = smaller(learned[0]).eval()
        task = Distillation(found, Teacher(learned[0]), everything())
        backward(student, task, [MaskedBatch(found.collate(part), False) for part in parts])
        gradients.append({name: p.grad.clone() for name, p in student.named_parameters() if p.grad is not None})
    assert gradients[0]
    for name, gradient in gradients[0].items():
        torch.testing.assert_close(gradients[1][name], gradient, rtol=1e-4, atol=1e-6)


def test_masked_texts_have_no_labels(learned: tuple[Any, ...]) -> None:
    found, items = batches_of(learned, 3)
    task = Distillation(found, Teacher(learned[0]), everything())
    batch = MaskedBatch(found.collate(items), True)
    assert task.counts(batch)["loss"] == 0
    assert task.sums(smaller(learned[0]), batch)["loss"].item() == 0
    assert task.sums(smaller(learned[0]), batch)["soft"].item() > 0


def test_a_teacher_reads_in_its_own_numbers(learned: tuple[Any, ...]) -> None:
    teacher, tokenizer, usage, examples = learned
    ids = sorted(tokenizer.indispensable | {tokenizer.vocab[word] for word in toy.FILLER[1:] + toy.GOOD})
    student, fewer = keep_tokens(teacher, ids), tokenizer.with_only(ids)
    own, theirs = lessons(student, fewer, usage, examples[:9]), lessons(teacher, tokenizer, usage, examples[:9])
    task = Distillation(own, Teacher(teacher, torch.tensor(ids)), RecoverySettings(hard=0.0, hidden=1.0))
    sums = task.sums(student.eval(), MaskedBatch(own.collate(own.items), False))
    assert sums["soft"].item() == pytest.approx(0, abs=1e-6)  # the same model, so the same answers
    assert sums["hidden"].item() == pytest.approx(0, abs=1e-8)
    assert not np.array_equal(own.items[0].windows[0].ids, theirs.items[0].windows[0].ids)


def test_a_narrower_student_learns_its_bridge(learned: tuple[Any, ...]) -> None:
    teacher = learned[0]
    settings = teacher.settings.replace(hidden_size=16, ffn_size=32, num_layers=1)
    student = build_model(settings, 1)
    assert isinstance(student, Bert)
    bridged = Bridged(student, 32)
    found, items = batches_of(learned, 4)
    task = Distillation(found, Teacher(teacher), RecoverySettings(attention=0.5))
    backward(bridged, task, [MaskedBatch(found.collate(items), False)])
    assert bridged.bridge.weight.grad is not None
    assert bridged.bridge.weight.grad.abs().sum() > 0
    assert student.encoder.embeddings.token.weight.grad is not None


def test_masking_is_a_function_of_the_number_and_spares_special_tokens(learned: tuple[Any, ...]) -> None:
    tokenizer = learned[1]
    found, items = batches_of(learned, 64)
    source = Epochs(items, found.collate, 16, seed=3)
    one, two = (Augmented(source, 0.3, tokenizer.mask_id, tokenizer.special_ids, 7) for _ in range(2))
    changed = total = 0
    for number in (3, 1, 0, 2):
        batch, plain = one[number], source[number]
        assert torch.equal(batch.inner.batch.ids, two[number].inner.batch.ids)
        assert batch.masked == (number % 2 == 1)
        moved = batch.inner.batch.ids != plain.batch.ids
        if number % 2 == 0:
            assert not moved.any()
            continue
        assert (batch.inner.batch.ids[moved] == tokenizer.mask_id).all()
        assert not torch.isin(plain.batch.ids[moved], torch.tensor(sorted(tokenizer.special_ids))).any()
        changed, total = changed + int(moved.sum()), total + len(moved)
    assert 0.1 < changed / total < 0.4


def test_dropout_is_another_only_within_the_block() -> None:
    model = build_model(toy.settings(dropout=0.25), 1).train()
    batch = Batch.of([[5, 6, 7, 8]])
    plain = model.eval()(batch).sequence
    model.train()
    with dropping(model, 0.0):
        assert torch.equal(model(batch).sequence, plain)
    assert not torch.allclose(model(batch).sequence, plain, atol=1e-3)
    with dropping(model, None):
        assert not torch.allclose(model(batch).sequence, plain, atol=1e-3)
    assert model.encoder.embeddings.dropout.p == 0.25
    assert model.encoder.stack.blocks[0].ffn.dropout.p == 0.0


# Learning


@pytest.mark.parametrize("recovery", ["distill", "labels"])
def test_what_was_cut_away_is_learned_again(recovery: str, learned: tuple[Any, ...], tmp_path: Path) -> None:
    """A student of one layer with a few neurons has forgotten; the teacher's answers alone bring it back."""
    model, tokenizer, usage, examples = learned
    steps = Steps(layers=1, heads=0.5, neurons=0.1)
    pieces = cut(Pieces(model, tokenizer), steps, usage, examples, texts_of(examples))
    with torch.no_grad():  # cut deeper than any cut would
        pieces.model.encoder.embeddings.token.weight.mul_(0.3)
    file = str(toy.learned("single").parent / "single-dev.jsonl")

    def accuracy() -> float:
        found = Predictor(pieces.model, pieces.tokenizer, usage).evaluate(file).scores["accuracy"].value
        assert found is not None
        return found

    assert accuracy() < 0.85
    settings = RecoverySettings(
        examples=1600, batch_size=16, learning_rate=3e-3, hard=0.0, hidden=0.1 if recovery == "distill" else 0.0
    )
    recover(pieces, model if recovery == "distill" else None, usage, examples, settings, tmp_path / "run", Listener())
    assert not pieces.model.training
    assert accuracy() > 0.97
    assert all(parameter.grad is None for parameter in model.parameters())
