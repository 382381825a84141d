"""Looking inside a model: what is recorded is what happened, nothing changes, nothing stays behind."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from unmask.models.bert import Bert
from unmask.models.init import build_model
from unmask.models.settings import BertSettings, TransformerSettings
from unmask.models.transformer import Transformer
from unmask.nn.attend import Attend, attention_backend
from unmask.nn.batch import Batch
from unmask.nn.record import mask_heads, record_attention

N, D, H, LAYERS = 3, 4, 12, 2
UNSORTED = Batch.of([[1, 2, 3], [4, 5, 6, 7, 8, 9, 10], [11], [1, 3, 5, 7, 9], [2, 2, 4]])
ATTENTIONS = [f"encoder.stack.blocks.{layer}.self_attention" for layer in range(LAYERS)]


def bert(**changes: object) -> Bert:
    options = {"vocab_size": 13, "hidden_size": H, "num_heads": N, "ffn_size": 17, "num_layers": LAYERS}
    model = build_model(BertSettings(**options | {"max_length": 11, "init_std": 0.4} | changes), seed=3)
    assert isinstance(model, Bert)
    return model.eval()


def transformer() -> Transformer:
    sizes = {"hidden_size": H, "num_heads": N, "ffn_size": 17, "num_encoder_layers": 2, "num_decoder_layers": 2}
    model = build_model(TransformerSettings(source_vocab_size=13, target_vocab_size=13, **sizes), seed=5)
    assert isinstance(model, Transformer)
    return model.eval()


def hooks_of(model: nn.Module) -> int:
    return sum(len(module._forward_hooks) + len(module._forward_pre_hooks) for module in model.modules())


def heads_of(x: Tensor, linear: nn.Linear) -> Tensor:
    """(S, H) → (N, S, D)."""
    return linear(x).view(len(x), N, D).transpose(0, 1)


def test_weights_are_those_of_the_formula_in_the_order_of_the_batch() -> None:
    model = bert()
    with record_attention(model) as trace:
        model(UNSORTED)
    assert list(trace.attention) == ATTENTIONS
    x = model.encoder.embeddings(UNSORTED)
    for layer, name in enumerate(ATTENTIONS):
        record, parts = trace.attention[name], model.encoder.stack.blocks[layer].self_attention.projections
        assert [weights.shape for weights in record.weights] == [(N, n, n) for n in UNSORTED.layout.lengths]
        for b, own in enumerate(UNSORTED.layout.split(x)):
            q, k = heads_of(own, parts.query), heads_of(own, parts.key)
            expected = (q @ k.transpose(1, 2) / math.sqrt(D)).softmax(-1)
            torch.testing.assert_close(record.weights[b], expected, rtol=0, atol=1e-5)
            torch.testing.assert_close(record.queries[b], q, rtol=0, atol=1e-5)
            torch.testing.assert_close(record.keys[b], k, rtol=0, atol=1e-5)
            torch.testing.assert_close(record.weights[b].sum(-1), torch.ones(N, len(own)))
        x = trace.hidden[f"encoder.stack.blocks.{layer}"][0]
    assert torch.equal(x, model(UNSORTED).sequence)


def test_recording_changes_no_bit_and_leaves_nothing() -> None:
    model = bert().train()
    torch.manual_seed(0)
    expected = model(UNSORTED).sequence
    torch.manual_seed(0)
    with record_attention(model) as trace:
        assert hooks_of(model) > 0
        recorded = model(UNSORTED).sequence
    assert torch.equal(expected, recorded)
    assert recorded.requires_grad
    assert hooks_of(model) == 0
    for record in trace.attention.values():
        for tensor in (*record.weights, *record.queries, *record.keys):
            assert not tensor.requires_grad


def test_no_hook_stays_after_an_exception() -> None:
    model = bert()
    with pytest.raises(RuntimeError, match="on purpose"), record_attention(model):
        raise RuntimeError("on purpose")
    with pytest.raises(RuntimeError, match="on purpose"), mask_heads(model, {ATTENTIONS[0]: [1.0, 0.0, 1.0]}):
        raise RuntimeError("on purpose")
    assert hooks_of(model) == 0


def test_several_passes_follow_each_other_in_the_record() -> None:
    model, second = bert(), Batch.of([[5, 6], [7]])
    with record_attention(model) as trace:
        model(UNSORTED)
        model(second)
    sizes = [weights.shape[-1] for weights in trace.attention[ATTENTIONS[1]].weights]
    assert sizes == [3, 7, 1, 5, 3, 2, 1]
    assert len(trace.hidden["encoder.stack.blocks.1"]) == 2


def test_a_padded_batch_gives_the_same_record() -> None:
    model = bert()
    with record_attention(model) as ragged:
        model(UNSORTED)
    with record_attention(model) as padded:
        model(UNSORTED.padded())
    for name in ATTENTIONS:
        pairs = zip(ragged.attention[name].weights, padded.attention[name].weights, strict=True)
        for one, other in pairs:
            torch.testing.assert_close(one, other, rtol=0, atol=1e-5)


@pytest.mark.parametrize("backend", ["reference", "fast"])
def test_cross_attention_is_recorded(backend: str) -> None:
    model = transformer()
    source, target = Batch.of([[1, 2, 3, 4, 5], [6, 7], [8, 9, 10]]), Batch.of([[1, 2], [3, 4, 5], [6]])
    with attention_backend(model, backend), record_attention(model) as trace:
        model(source, target)
    cross = trace.attention["decoder.blocks.1.cross_attention"].weights
    assert [weights.shape for weights in cross] == [(N, 2, 5), (N, 3, 2), (N, 1, 3)]
    own = trace.attention["decoder.blocks.1.self_attention"].weights
    assert [weights.shape for weights in own] == [(N, 2, 2), (N, 3, 3), (N, 1, 1)]
    for weights in (*cross, *own):
        torch.testing.assert_close(weights.sum(-1), torch.ones(weights.shape[:2]))
    for weights in own:
        assert torch.equal(weights, weights.tril())
    assert len(trace.attention) == 6


def test_steps_and_failures_between_do_not_spoil_the_next_record(monkeypatch: pytest.MonkeyPatch) -> None:
    model = transformer()
    source, target = Batch.of([[1, 2, 3], [6, 7]]), Batch.of([[1, 2], [3, 4]])
    with record_attention(model) as trace:
        model.step(torch.tensor([1, 2]), model.start(model.encode(source)))
        with monkeypatch.context() as patch:
            patch.setattr(Attend, "_fast", failing)
            with pytest.raises(RuntimeError, match="on purpose"):
                model(source, target)
        model(source, target)
    last = trace.attention["decoder.blocks.0.self_attention"].weights[-2:]
    assert [weights.shape for weights in last] == [(N, 2, 2), (N, 2, 2)]


def failing(*args: object) -> Tensor:
    raise RuntimeError("on purpose")


def test_a_gate_of_zero_removes_the_heads_contribution() -> None:
    """The output matrix has D columns a head; with those at 0 the head is gone."""
    model, other = bert(), bert()
    gates = {ATTENTIONS[0]: [1.0, 0.0, 0.5], ATTENTIONS[1]: torch.tensor([0.0, 2.0, 1.0])}
    with mask_heads(model, gates):
        out = model(UNSORTED).sequence
    for name, gate in gates.items():
        attention = other.get_submodule(name)
        columns = torch.as_tensor(gate).repeat_interleave(D)
        attention.output.weight.data.mul_(columns)
    torch.testing.assert_close(out, other(UNSORTED).sequence, rtol=0, atol=1e-5)
    assert not torch.allclose(out, model(UNSORTED).sequence)
    assert hooks_of(model) == 0


def test_gradients_reach_the_gates() -> None:
    model, gate = bert(), torch.ones(N, requires_grad=True)
    weight = torch.randn(UNSORTED.layout.num_rows, H, generator=torch.Generator().manual_seed(1))
    with mask_heads(model, {ATTENTIONS[0]: gate}):
        (gradient,) = torch.autograd.grad((model(UNSORTED).sequence * weight).sum(), [gate])
    step = 1e-2
    for head in range(N):
        values = []
        for sign in (1, -1):
            moved = torch.ones(N)
            moved[head] += sign * step
            with torch.no_grad(), mask_heads(model, {ATTENTIONS[0]: moved}):
                values.append(float((model(UNSORTED).sequence.double() * weight).sum()))
        assert gradient[head].item() == pytest.approx((values[0] - values[1]) / (2 * step), rel=2e-2, abs=2e-3)
    assert model.get_submodule(ATTENTIONS[0]).output.weight.grad is None


@pytest.mark.parametrize(
    ("gates", "words"),
    [
        ({"encoder.stack.blocks.9.self_attention": [1.0] * N}, "blocks.9.self_attention is not an attention"),
        ({"encoder.stack.blocks.0.ffn": [1.0] * N}, "ffn is not an attention"),
        ({ATTENTIONS[1]: [1.0] * 4}, r"has 3 heads but \(4,\) gates"),
        ({ATTENTIONS[0]: [1.0] * N, ATTENTIONS[1]: 0.5}, r"has 3 heads but \(\) gates"),
    ],
)
def test_wrong_gates_are_refused(gates: dict[str, object], words: str) -> None:
    model = bert()
    with pytest.raises(ValueError, match=words), mask_heads(model, gates):
        pass
    assert hooks_of(model) == 0


def test_other_threads_are_left_alone() -> None:
    import threading

    model = bert()
    expected = model(UNSORTED).sequence
    wrong: list[object] = []
    stop = threading.Event()

    def bystander() -> None:
        while not stop.is_set():
            try:
                if not torch.equal(model(UNSORTED).sequence, expected):
                    wrong.append("another output")
            except Exception as error:
                wrong.append(error)

    thread = threading.Thread(target=bystander)
    thread.start()
    try:
        gates = {name: [0.0, 1.0, 0.0] for name in ATTENTIONS}
        for _ in range(20):
            with record_attention(model) as trace, mask_heads(model, gates):
                assert not torch.equal(model(UNSORTED).sequence, expected)
            assert {len(record.weights) for record in trace.attention.values()} == {len(UNSORTED)}
    finally:
        stop.set()
        thread.join()
    assert wrong == []
