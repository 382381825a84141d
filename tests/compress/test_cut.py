"""What goes is what matters least, measured by independent means; the rest computes as if it were silent."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

import finetune_toy as toy
from unmask.bundle import load
from unmask.compress.cut import Pieces, cut, fewer_tokens, smallest_zeroed
from unmask.compress.importance import importance, least_heads, least_layers, least_neurons, strength
from unmask.compress.lessons import Lessons, Source, lessons, read_examples, sample, texts_of
from unmask.compress.settings import Steps, on_top
from unmask.data.examples import TextExample
from unmask.errors import SettingsError
from unmask.models.bert import Bert, num_parameters
from unmask.models.surgery import remove_layers
from unmask.nn.record import mask_heads


@pytest.fixture(scope="module")
def learned() -> tuple[Bert, Any, Any, list[Any]]:
    bundle = load(toy.learned("single") / "model")
    usage = bundle.predictor.usage
    file = toy.learned("single").parent / "single-train.jsonl"
    assert isinstance(bundle.model, Bert)
    return bundle.model, bundle.tokenizer, usage, read_examples(Source(str(file)), usage, bundle.model)


def loss_of(model: Bert, found: Lessons, batch: Any) -> torch.Tensor:
    return found.task.loss(found.task.logits(model, batch), batch)["loss"]


def answer_of(model: Bert, found: Lessons, batch: Any) -> torch.Tensor:
    return strength(found.task.logits(model, batch), found.problem)


def test_heads_matter_as_much_as_their_gates(learned: tuple[Any, ...]) -> None:
    """Against gates that the recording room multiplies heads with, text by text."""
    model, tokenizer, usage, examples = learned
    found = lessons(model, tokenizer, usage, examples[:6])
    ours = importance(model, found, [found.collate(found.items)]).heads
    expected = [torch.zeros(2), torch.zeros(2)]
    for item in found.items:
        gates = {f"encoder.stack.blocks.{n}.self_attention": torch.ones(2, requires_grad=True) for n in range(2)}
        with mask_heads(model, gates):
            answer_of(model, found, found.collate([item])).backward()
        for layer, gate in enumerate(gates.values()):
            assert gate.grad is not None
            expected[layer] += gate.grad.abs()
    model.zero_grad(set_to_none=True)
    for one, two in zip(ours, expected, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-3, atol=1e-6)


def test_neurons_matter_as_much_as_the_answer_moves_when_they_do(learned: tuple[Any, ...]) -> None:
    """Against differences of the answer, for a text of a single token, in float64."""
    model, tokenizer, usage, examples = learned
    model = copy.deepcopy(model).double()
    found = lessons(model, tokenizer, usage, examples[:1])
    item = found.items[0]
    alone = type(item)(windows=(type(item.windows[0])(item.windows[0].ids[:1], 0),), target=item.target)
    batch = found.collate([alone])
    ours = importance(model, found, [batch]).neurons
    for layer, block in enumerate(model.encoder.stack.blocks):
        for neuron in range(0, 64, 7):
            column = block.ffn.outer.weight.data[:, neuron].clone()
            ends = []
            for scale in (1.001, 0.999):
                block.ffn.outer.weight.data[:, neuron] = column * scale
                with torch.no_grad():
                    ends.append(float(answer_of(model, found, batch)))
            block.ffn.outer.weight.data[:, neuron] = column
            assert float(ours[layer][neuron]) == pytest.approx(abs(ends[0] - ends[1]) / 0.002, rel=0.02, abs=2e-6)


def test_how_clear_an_answer_is() -> None:
    logits = torch.tensor([[3.0, 1.0, -1.0], [0.0, 0.5, -1e4]])
    assert strength(logits, "single").item() == pytest.approx(2.0 + 0.25)  # the third of the second is not there
    assert strength(logits[:1], "multi").item() == pytest.approx(5.0)
    assert strength(logits[:, :1], "regression").item() == pytest.approx(3.0)


def test_long_examples_are_drawn_more_often_and_none_twice() -> None:
    examples = [TextExample("x" * (9 if number % 2 else 99)) for number in range(2000)]
    drawn = sample(examples, 500)
    assert len({id(example) for example in drawn}) == 500
    assert 0.85 < sum(len(example.text) == 99 for example in drawn) / 500 < 0.95  # 100 to 10, less as they run out
    assert sample(examples, 500) == drawn
    assert len(sample(examples, 9999)) == 2000


def test_the_least_go_and_every_layer_keeps_one() -> None:
    found = [torch.tensor([5.0, 1.0, 3.0]), torch.tensor([0.02, 0.01, 0.005])]
    assert least_heads(found, 2) == {0: [1], 1: [2]}  # layers are put on one scale first
    assert sum(map(len, least_heads(found, 9).values())) == 4
    rows = [torch.arange(256.0), torch.arange(256.0).flip(0)]
    gone = least_neurons(rows, 0.3)
    assert [256 - len(gone[layer]) for layer in (0, 1)] == [64, 64]  # 77 in whole panels
    assert gone[0] == list(range(192))
    assert gone[1] == list(range(64, 256))
    assert len(least_neurons([torch.arange(10.0)], 0.5)[0]) == 5


def test_the_layer_that_is_missed_least_goes(learned: tuple[Any, ...]) -> None:
    model, tokenizer, usage, examples = learned
    found = lessons(model, tokenizer, usage, examples[:40])
    batches = list(found.batches(40))
    losses = []
    for layer in range(2):
        with torch.no_grad():
            losses.append(sum(float(loss_of(remove_layers(model, [layer]), found, batch)) for batch in batches))
    assert least_layers(model, found, batches, 1) == [losses.index(min(losses))]


def test_a_cut_model_equals_the_same_with_those_parts_silent(learned: tuple[Any, ...]) -> None:
    model, tokenizer, usage, examples = learned
    said: list[str] = []
    whole = Pieces(model, tokenizer)
    pieces = cut(whole, Steps(heads=0.5, neurons=0.5), usage, examples, [], said.append)
    found = lessons(model, tokenizer, usage, examples[:20])
    matter = importance(model, found, found.batches(20))
    assert [shape.num_heads for shape in pieces.model.settings.shapes] == [1, 1]
    assert pieces.model.settings.ffn_size == 32
    assert pieces.model.settings.ffn_by_layer is None
    assert "heads that stay, by layer: 1, 1" in said
    silent = copy.deepcopy(model)
    gates = {}
    for layer, block in enumerate(pieces.model.encoder.stack.blocks):
        old = silent.encoder.stack.blocks[layer]
        # Which stayed is found again in the weights themselves.
        stayed = [n for n in range(64) if (old.ffn.inner.weight[n] == block.ffn.inner.weight).all(1).any()]
        assert len(stayed) == 32
        old.ffn.outer.weight.data[:, [n for n in range(64) if n not in stayed]] = 0
        queries = old.self_attention.projections.query.weight, block.self_attention.projections.query.weight
        head = 0 if torch.equal(queries[0][:16], queries[1]) else 1
        gates[f"encoder.stack.blocks.{layer}.self_attention"] = [float(n == head) for n in range(2)]
    batch = found.collate(found.items)
    with mask_heads(silent, gates), torch.no_grad():
        expected = found.task.logits(silent, batch)
        torch.testing.assert_close(found.task.logits(pieces.model, batch), expected, rtol=0, atol=1e-6)
    assert matter.heads[0].sum() > 0


def test_only_tokens_of_the_texts_stay_and_all_can_be_written(learned: tuple[Any, ...]) -> None:
    model, tokenizer, _, _ = learned
    size = len(tokenizer.indispensable) + 3
    pieces = fewer_tokens(Pieces(model, tokenizer), ["good dog", "bad dog"], size)
    assert pieces.tokenizer.vocab_size == size
    half = fewer_tokens(Pieces(model, tokenizer), ["good"], None)
    assert half.tokenizer.vocab_size == max(len(tokenizer.indispensable) + 1, tokenizer.vocab_size // 2)
    assert {"good", "dog", "bad"} < pieces.tokenizer.vocab.keys()
    assert "lovely" not in pieces.tokenizer.vocab
    assert pieces.kept is not None
    assert pieces.tokenizer.tokens([0, 4]) == tokenizer.tokens(pieces.kept[[0, 4]].tolist())
    assert pieces.tokenizer.encode("lovely").tokens[1:-1] == ["l", "##o", "##v", "##e", "##l", "##y"]
    more = fewer_tokens(Pieces(model, tokenizer), ["good dog"], pieces.tokenizer.vocab_size + 5)
    assert more.tokenizer.vocab_size == pieces.tokenizer.vocab_size + 5
    again = fewer_tokens(more, ["good"], None)
    assert again.kept is not None
    assert again.tokenizer.tokens(range(again.tokenizer.vocab_size)) == tokenizer.tokens(again.kept.tolist())
    with pytest.raises(SettingsError, match="too few; .* must stay"):
        fewer_tokens(Pieces(model, tokenizer), ["good"], 20)


def test_zeros_make_nothing_smaller(learned: tuple[Any, ...]) -> None:
    model = learned[0]
    zeroed = smallest_zeroed(model, 0.3)
    assert num_parameters(zeroed) == num_parameters(model)
    weight, before = zeroed.encoder.stack.blocks[0].ffn.inner.weight, model.encoder.stack.blocks[0].ffn.inner.weight
    assert (weight == 0).float().mean().item() == pytest.approx(0.7, abs=0.01)
    kept = weight != 0
    assert torch.equal(weight[kept], before[kept])
    assert before[~kept].abs().max() <= before[kept].abs().min()


def test_too_many_layers(learned: tuple[Any, ...]) -> None:
    model, tokenizer, usage, examples = learned
    with pytest.raises(SettingsError, match="5 cannot stay, the model has 2"):
        cut(Pieces(model, tokenizer), Steps(layers=5), usage, examples, [])


def test_names_of_steps_and_of_steps_on_top_of_each_other() -> None:
    first = Steps(vocab=True, neurons=0.5, recovery="distill", storage="int8")
    assert first.name == "vocabulary + 50 % of neurons + distilled + int8"
    both = on_top(first, Steps(heads=0.5, neurons=0.5, layers=1, storage="fp16"))
    assert both == Steps(vocab=True, layers=1, heads=0.5, neurons=0.25, recovery="distill", storage="fp16")
    with pytest.raises(SettingsError, match="zeros would be learned away"):
        Steps(magnitude=0.5, recovery="labels")


@pytest.mark.parametrize("task", ["regression", "crf", "qa"])
def test_every_task_says_what_matters(task: str) -> None:
    run = toy.learned(task)
    bundle = load(run / "model")
    usage, model = bundle.predictor.usage, bundle.model
    assert isinstance(model, Bert)
    examples = read_examples(Source(str(run.parent / f"{task}-train.jsonl")), usage, model)
    assert len(texts_of(examples)) >= len(examples)
    found = lessons(model, bundle.tokenizer, usage, examples[:20])
    batch = found.collate(found.items[:8])
    logits = found.task.logits(model, batch)
    assert len(logits) == found.task.rows(batch)
    torch.testing.assert_close(found.task.loss(logits, batch)["loss"], found.task.sums(model, batch)["loss"])
    matter = importance(model, found, found.batches(20))
    assert all(row.min() >= 0 and row.sum() > 0 for row in (*matter.heads, *matter.neurons))


def test_a_student_that_loses_nothing_is_not_its_teacher(learned: tuple[Any, ...]) -> None:
    model, tokenizer, usage, examples = learned
    student = cut(Pieces(model, tokenizer), Steps(recovery="distill", storage="int8"), usage, examples, []).model
    theirs = dict(model.named_parameters())
    for name, tensor in student.named_parameters():
        assert torch.equal(tensor, theirs[name])
        assert tensor.data_ptr() != theirs[name].data_ptr()
