"""Greedy decoding against a loop that runs the whole model for every token."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from unmask.decode.greedy import Hypothesis, greedy
from unmask.models.init import build_model
from unmask.models.settings import TransformerSettings
from unmask.models.transformer import DecoderState, Transformer
from unmask.nn.batch import Batch

V, START, END, LONGEST = 13, 1, 2, 11
SOURCES = [[3, 4, 5], [6], [7, 8, 9, 10, 11], [5, 5], [12, 3, 9, 4]]


def transformer(seed: int, **changes: object) -> Transformer:
    sizes = {"hidden_size": 12, "num_heads": 3, "ffn_size": 17, "num_encoder_layers": 1, "num_decoder_layers": 2}
    vocabularies = {"source_vocab_size": V, "target_vocab_size": V, "tie": "none", "output_bias": True}
    model = build_model(TransformerSettings.parse(sizes | vocabularies | changes), seed=seed)
    assert isinstance(model, Transformer)
    with torch.no_grad():  # livelier than first values, so that sentences differ and end at different times
        for parameter in model.parameters():
            parameter.mul_(1.7)
        model.output_bias[END] = 3.0
    return model.eval()


def by_hand(model: Transformer, source: list[int]) -> Hypothesis:
    ids: list[int] = []
    total = 0.0
    for _ in range(LONGEST):
        logits: Tensor = model(Batch.of([source]), Batch.of([[START, *ids]]))[-1]
        total += float(logits.log_softmax(-1).max().detach())
        best = int(logits.argmax())
        if best == END:
            break
        ids.append(best)
    return Hypothesis(ids, total)


def decode(model: Transformer, sources: list[list[int]]) -> list[Hypothesis]:
    return greedy(model, Batch.of(sources), start_id=START, end_id=END, max_length=LONGEST)


@pytest.mark.parametrize("kind", ["sinusoidal", "rotary", "buckets", "shaw"])
def test_equals_the_argmax_of_full_passes(kind: str) -> None:
    lengths = set()
    for seed in range(5):
        model = transformer(seed, positions={"kind": kind})
        found = decode(model, SOURCES)
        expected = [by_hand(model, source) for source in SOURCES]
        assert [one.ids for one in found] == [one.ids for one in expected]
        for one, two in zip(found, expected, strict=True):
            assert one.log_probability == pytest.approx(two.log_probability, abs=1e-4)
        lengths |= {len(one.ids) for one in found}
    assert len(lengths) > 3  # some finished early, at different times
    assert LONGEST in lengths  # and some never


@pytest.mark.parametrize("size", [1, 2, 5])
def test_the_batch_does_not_matter(size: int) -> None:
    for seed in range(5):
        model = transformer(seed)
        together = decode(model, SOURCES)
        parts = [one for first in range(0, 5, size) for one in decode(model, SOURCES[first : first + size])]
        assert [one.ids for one in parts] == [one.ids for one in together]
        for one, two in zip(parts, together, strict=True):
            assert one.log_probability == pytest.approx(two.log_probability, abs=1e-4)


def test_finished_sentences_leave_the_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    model = transformer(3)
    sizes = []
    step = model.step_some

    def noted(ids: Tensor, state: DecoderState, rows: Tensor | None) -> tuple[Tensor, DecoderState]:
        sizes.append(len(ids) if rows is None else len(rows))
        return step(ids, state, rows)

    monkeypatch.setattr(model, "step_some", noted)
    found = decode(model, SOURCES * 20)
    running = [sum(len(one.ids) >= t for one in found) for t in range(LONGEST)]
    assert sizes == [max(16, count) for count in running]  # but never fewer than sixteen rows
    assert sizes[0] == 100
    assert len(set(sizes)) > 2


def test_at_once_finished_is_empty() -> None:
    model = transformer(0)
    with torch.no_grad():
        model.output_bias[END] = 100.0
    assert [one.ids for one in decode(model, SOURCES)] == [[]] * 5


def test_the_model_can_be_trained_afterwards() -> None:
    """What was computed in inference mode, like the table of sinusoids, must not stand in the way."""
    model = transformer(0)
    decode(model, SOURCES)
    model(Batch.of(SOURCES), Batch.of(SOURCES)).square().sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
