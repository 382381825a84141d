"""Removing parts equals silencing them; the result is a smaller model that its own settings describe."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from torch import Tensor

from unmask.models.assign import named_tensors
from unmask.models.bert import Bert, num_parameters
from unmask.models.folder import load_model, save_model
from unmask.models.init import Model, assemble, build_model
from unmask.models.settings import BertSettings, GptSettings, TransformerSettings
from unmask.models.surgery import (
    extend_vocabulary,
    keep_tokens,
    remove_heads,
    remove_layers,
    remove_neurons,
    remove_pooler,
)
from unmask.nn.batch import Batch
from unmask.nn.record import mask_heads

H, N, D, WIDE, LAYERS = 15, 3, 4, 17, 3  # heads narrower than hidden_size / num_heads: sizes differ everywhere
BATCH = Batch.of([[1, 2, 3], [4, 5, 6, 7, 8, 9, 10], [11], [1, 3, 5, 7, 9]])
SHARED = {"buckets": {"share_layers": True}, "shaw": {"share_layers": True}, "transformer_xl": {"share_layers": True}}
OWN = {
    "learned": {},
    "rotary": {},
    "buckets": {"share_layers": False},
    "shaw": {"share_layers": False},
    "transformer_xl": {"share_layers": False},
}


def build(kind: str, positions: dict[str, object], **changes: object) -> Model:
    even = 14 if kind == "transformer_xl" else H
    sizes = {"vocab_size": 13, "hidden_size": even, "num_heads": N, "head_size": D, "ffn_size": WIDE, "max_length": 11}
    data = sizes | {"num_layers": LAYERS, "positions": {"kind": kind} | positions, "init_std": 0.3} | changes
    if data.pop("model", "bert") == "gpt":
        return build_model(GptSettings.parse(data), seed=3).eval()
    heads = [{"kind": "mlm"}, {"kind": "classify", "labels": ["a", "b"]}]
    return build_model(BertSettings.parse({"heads": heads} | data), seed=3).eval()


def output(model: Model) -> Tensor:
    out = model(BATCH)
    return out if isinstance(out, Tensor) else out.sequence


def prefix(model: Model) -> str:
    return "stack.blocks" if isinstance(model.settings, GptSettings) else "encoder.stack.blocks"


def assert_settings_describe(model: Model) -> None:
    with torch.device("meta"):
        fresh = assemble(type(model.settings).parse(model.settings.model_dump(mode="json")))
    ours, theirs = named_tensors(model), named_tensors(fresh)
    assert {name: tensor.shape for name, tensor in ours.items()} == {n: t.shape for n, t in theirs.items()}


@pytest.mark.parametrize("model_kind", ["bert", "gpt"])
@pytest.mark.parametrize("kind", OWN)
@pytest.mark.parametrize("projections", ["separate", "shared_qk"])
def test_removed_heads_equal_silent_heads(model_kind: str, kind: str, projections: str) -> None:
    model = build(kind, OWN[kind], model=model_kind, projections=projections, score="normed_dot")
    removed = {0: [1], 2: [0, 2]}
    before = {name: tensor.clone() for name, tensor in named_tensors(model).items()}
    smaller = remove_heads(model, removed)
    gates = {
        f"{prefix(model)}.{layer}.self_attention": [0.0 if head in heads else 1.0 for head in range(N)]
        for layer, heads in removed.items()
    }
    exact, exact_smaller = (copy.deepcopy(one).double() for one in (model, smaller))
    with mask_heads(exact, gates):
        expected = output(exact)
    torch.testing.assert_close(output(exact_smaller), expected, rtol=0, atol=1e-12)
    assert not torch.allclose(expected, output(exact), atol=1e-3)
    assert smaller.settings.heads_by_layer == (2, 3, 1)
    assert_settings_describe(smaller)
    assert all(torch.equal(tensor, before[name]) for name, tensor in named_tensors(model).items())


@pytest.mark.parametrize("kind", SHARED)
def test_heads_of_layers_that_share_positions(kind: str) -> None:
    model = build(kind, SHARED[kind])
    smaller = remove_heads(model, {layer: [0] for layer in range(LAYERS)})
    gates = {f"{prefix(model)}.{layer}.self_attention": [0.0, 1.0, 1.0] for layer in range(LAYERS)}
    with mask_heads(model, gates):
        torch.testing.assert_close(output(smaller), output(model), rtol=0, atol=1e-6)
    assert_settings_describe(smaller)


@pytest.mark.parametrize("kind", ["buckets", "transformer_xl"])
def test_different_heads_of_layers_that_share_positions_are_refused(kind: str) -> None:
    for heads in ({0: [0]}, {0: [0], 1: [1], 2: [0]}):
        with pytest.raises(ValueError, match="remove the same heads in each"):
            remove_heads(build(kind, SHARED[kind]), heads)


def test_a_removed_head_takes_its_parameters_with_it() -> None:
    model = build("learned", {})
    smaller = remove_heads(model, {1: [0, 2]})
    head = 3 * (H * D + D) + D * H  # W_Q, W_K, W_V with biases, and its columns of W_O
    assert num_parameters(model) - num_parameters(smaller) == 2 * head


def test_heads_can_be_removed_again_and_again() -> None:
    model = build("learned", {})
    once = remove_heads(model, {0: [0, 2], 1: [1]})
    twice = remove_heads(remove_heads(model, {0: [2]}), {0: [0], 1: [1]})
    assert once.settings == twice.settings
    assert torch.equal(output(once), output(twice))


@pytest.mark.parametrize("gated", [False, True])
def test_removed_neurons_equal_silent_neurons(gated: bool) -> None:
    model = build("learned", {}, gated=gated)
    removed = {0: [0, 5, 16], 1: [], 2: [3]}
    smaller = remove_neurons(model, removed)
    silent = copy.deepcopy(model)
    for layer, neurons in removed.items():
        silent.encoder.stack.blocks[layer].ffn.outer.weight.data[:, neurons] = 0
    torch.testing.assert_close(output(smaller), output(silent), rtol=0, atol=1e-6)
    assert not torch.allclose(output(silent), output(model), atol=1e-3)
    neuron = (2 if gated else 1) * (H + 1) + H
    assert num_parameters(model) - num_parameters(smaller) == 4 * neuron
    assert smaller.settings.ffn_by_layer == (14, 17, 16)
    assert_settings_describe(smaller)


def test_neurons_that_are_not_there_cannot_be_removed() -> None:
    with pytest.raises(ValueError, match="feed-forward"):
        remove_neurons(build("learned", {}, ffn=False), {0: [1]})


@pytest.mark.parametrize("model_kind", ["bert", "gpt"])
@pytest.mark.parametrize(("kind", "options"), [*OWN.items(), *SHARED.items()])
def test_removed_layers_equal_a_stack_without_them(model_kind: str, kind: str, options: dict[str, object]) -> None:
    model = build(kind, options, model=model_kind)
    smaller = remove_layers(model, [0])
    expected = copy.deepcopy(model)
    del (expected.stack if model_kind == "gpt" else expected.encoder.stack).blocks[0]
    assert torch.equal(output(smaller), output(expected))
    assert num_parameters(smaller) == num_parameters(expected)
    assert smaller.settings.num_layers == 2
    assert_settings_describe(smaller)


def test_one_after_another() -> None:
    """Heads, then neurons, then a layer: the shapes of the layers that stay move with them."""
    model = remove_neurons(remove_heads(build("learned", {}), {0: [0], 2: [0, 1]}), {1: [1, 2], 2: [0]})
    smaller = remove_layers(model, [1])
    assert smaller.settings.heads_by_layer == (2, 1)
    assert smaller.settings.ffn_by_layer == (17, 16)
    expected = copy.deepcopy(model)
    del expected.encoder.stack.blocks[1]
    assert torch.equal(output(smaller), output(expected))
    assert_settings_describe(smaller)


def test_the_new_model_shares_no_memory_and_can_be_trained() -> None:
    model = build("learned", {}).train()
    for smaller in (remove_heads(model, {0: [0]}), remove_neurons(model, {0: [0]}), remove_layers(model, [0])):
        assert smaller.training
        output(smaller).square().sum().backward()
        with torch.no_grad():
            for parameter in smaller.parameters():
                parameter.zero_()
    assert all(tensor.abs().sum() > 0 for name, tensor in named_tensors(model).items() if tensor.dim() > 1)


def test_buffers_come_along() -> None:
    model = build("learned", {}, norm="batch").train()
    output(model)
    model.eval()
    smaller = remove_layers(model, [0])
    running = smaller.encoder.stack.blocks[0].around_attention.norm.running_mean
    assert torch.equal(running, model.encoder.stack.blocks[1].around_attention.norm.running_mean)
    assert running.abs().sum() > 0


@pytest.mark.parametrize(
    ("operate", "words"),
    [
        (lambda model: remove_heads(model, {0: [3]}), "layer 0 has 3 heads, there is no number 3"),
        (lambda model: remove_heads(model, {0: [-1]}), "layer 0 has 3 heads, there is no number -1"),
        (lambda model: remove_heads(model, {1: [0, 1, 2]}), "layer 1 has 3 heads, at least one must stay"),
        (lambda model: remove_heads(model, {3: [0]}), "the model has 3 layers, there is no number 3"),
        (lambda model: remove_neurons(model, {2: [17]}), "layer 2 has 17 neurons, there is no number 17"),
        (lambda model: remove_neurons(model, {2: range(17)}), "layer 2 has 17 neurons, at least one must stay"),
        (lambda model: remove_neurons(model, {-1: [0]}), "the model has 3 layers, there is no number -1"),
        (lambda model: remove_layers(model, [0, 1, 2]), "the model has 3 layers, at least one must stay"),
        (lambda model: remove_layers(model, [5]), "the model has 3 layers, there is no number 5"),
    ],
)
def test_what_is_not_there_or_must_stay_is_refused(operate: object, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        operate(build("learned", {}))


def test_heads_that_are_known_by_their_number_are_refused() -> None:
    with pytest.raises(ValueError, match="ALiBi .* cannot be removed"):
        remove_heads(build("alibi", {}), {0: [0]})
    with pytest.raises(ValueError, match="without projections .* cannot be removed"):
        remove_heads(build("learned", {}, projections="none", head_size=None), {0: [0]})


def test_an_encoder_decoder_is_refused() -> None:
    sizes = {"source_vocab_size": 13, "target_vocab_size": 13, "hidden_size": 12, "num_heads": 3, "ffn_size": 5}
    model = build_model(TransformerSettings.parse(sizes))
    for operate in (remove_heads, remove_neurons):
        with pytest.raises(ValueError, match="models of one stack"):
            operate(model, {0: [0]})
    with pytest.raises(ValueError, match="models of one stack"):
        remove_layers(model, [0])


# More tokens

PIECES = [[3], [1, 2, 3], [12, 12, 5]]
HEADS = [{"kind": "nsp"}, {"kind": "classify", "labels": ["a", "b"]}]


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("kind", ["learned", "rotary"])
def test_new_tokens_begin_as_the_mean_of_their_pieces(tied: bool, kind: str) -> None:
    model = build(kind, {}, heads=[{"kind": "mlm", "tied": tied}, *HEADS])
    assert isinstance(model, Bert)
    with torch.no_grad():
        model.heads["mlm"].bias.copy_(torch.linspace(-1, 1, 13))
    before = {name: tensor.clone() for name, tensor in named_tensors(model).items()}
    larger = extend_vocabulary(model, PIECES)
    assert larger.settings == model.settings.replace(vocab_size=16)
    assert_settings_describe(larger)
    assert all(torch.equal(tensor, before[name]) for name, tensor in named_tensors(model).items())
    for name, tensor in named_tensors(larger).items():
        old = before[name]
        if tensor.shape != old.shape:
            assert tensor.shape[0] == 16, name
            expected = torch.stack([old[ids].mean(0) for ids in PIECES])
            torch.testing.assert_close(tensor[13:], expected, rtol=0, atol=1e-7)
        assert torch.equal(tensor[:13] if tensor.shape != old.shape else tensor, old), name
    assert torch.equal(output(larger), output(model))
    rows = output(model)
    logits = larger.masked_token_logits(rows)
    old_logits = model.masked_token_logits(rows)
    torch.testing.assert_close(logits[:, :13], old_logits, rtol=0, atol=1e-6)
    means = torch.stack([old_logits[:, ids].mean(1) for ids in PIECES], 1)
    torch.testing.assert_close(logits[:, 13:], means, rtol=0, atol=1e-5)
    encoded = model(BATCH)
    assert torch.equal(larger.next_sentence_logits(larger(BATCH)), model.next_sentence_logits(encoded))


def test_new_tokens_are_read_and_learn() -> None:
    model = build("learned", {})
    assert isinstance(model, Bert)
    larger = extend_vocabulary(model, PIECES).train()
    batch = Batch.of([[13, 14, 15], [1, 15]])
    table = larger.encoder.embeddings.token.weight
    assert table.requires_grad
    larger.masked_token_logits(larger(batch).sequence).logsumexp(-1).sum().backward()
    assert table.grad is not None
    assert table.grad[13:].abs().sum(1).min() > 0
    one, two = Batch.of([[13]]), Batch.of([[3]])  # made of this one alone
    larger.eval()
    torch.testing.assert_close(larger(one).sequence, larger(two).sequence, rtol=0, atol=1e-6)


@pytest.mark.parametrize("tied", [True, False])
def test_a_larger_model_is_saved_and_loaded(tied: bool, tmp_path: Path) -> None:
    model = build("learned", {}, head_size=None, heads=[{"kind": "mlm", "tied": tied}])
    assert isinstance(model, Bert)
    larger = extend_vocabulary(model, PIECES)
    save_model(larger, tmp_path / "model")
    loaded, report = load_model(tmp_path / "model")
    assert isinstance(loaded, Bert)
    assert not report.new
    assert loaded.settings.vocab_size == 16
    assert all(torch.equal(tensor, named_tensors(larger)[name]) for name, tensor in named_tensors(loaded).items())


def test_what_was_frozen_stays_so_and_nothing_to_add_adds_nothing() -> None:
    model = build("learned", {})
    assert isinstance(model, Bert)
    model.encoder.embeddings.token.weight.requires_grad_(False)
    larger = extend_vocabulary(model, PIECES)
    assert not larger.encoder.embeddings.token.weight.requires_grad
    assert larger.heads["mlm"].bias.requires_grad
    assert not larger.training
    assert extend_vocabulary(model, []).settings == model.settings
    with pytest.raises(ValueError, match="at least one old token"):
        extend_vocabulary(model, [[1], []])


# Fewer tokens


@pytest.mark.parametrize("kind", ["learned", "complex"])
@pytest.mark.parametrize("tied", [True, False])
def test_kept_tokens_are_read_as_before(tied: bool, kind: str) -> None:
    model = build(kind, {}, hidden_size=14, head_size=None, num_heads=2, heads=[{"kind": "mlm", "tied": tied}])
    assert isinstance(model, Bert)
    kept = [0, 1, 2, 5, 7, 12]
    smaller = keep_tokens(model, kept)
    assert smaller.settings == model.settings.replace(vocab_size=6)
    assert_settings_describe(smaller)
    old, new = Batch.of([[1, 5, 12], [7], [2, 2, 0, 5]]), Batch.of([[1, 3, 5], [4], [2, 2, 0, 3]])
    rows = model(old).sequence
    assert torch.equal(smaller(new).sequence, rows)
    expected = model.masked_token_logits(rows)[:, kept]
    torch.testing.assert_close(smaller.masked_token_logits(rows), expected, rtol=0, atol=1e-6)
    assert num_parameters(smaller) < num_parameters(model)


@pytest.mark.parametrize("kept", [[0, 0, 1], [0, 13], [-1, 2]])
def test_tokens_that_are_not_there_cannot_be_kept(kept: list[int]) -> None:
    model = build("learned", {})
    assert isinstance(model, Bert)
    with pytest.raises(ValueError, match="different numbers from 0 to 12"):
        keep_tokens(model, kept)


def test_a_pooler_that_nobody_reads_can_go() -> None:
    model = build("learned", {}, heads=[{"kind": "classify", "labels": ["a", "b"], "pooling": "mean"}])
    assert isinstance(model, Bert)
    smaller = remove_pooler(model)
    assert torch.equal(smaller.class_logits(smaller(BATCH)), model.class_logits(model(BATCH)))
    assert num_parameters(model) - num_parameters(smaller) == H * H + H


def test_as_many_neurons_in_each_layer_make_an_ordinary_model() -> None:
    smaller = remove_neurons(build("learned", {}), {layer: [layer, 9] for layer in range(LAYERS)})
    assert smaller.settings.ffn_size == WIDE - 2
    assert smaller.settings.ffn_by_layer is None
