"""Asking for some rows only: the same numbers and gradients as from all of them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from unmask.models.bert import Bert
from unmask.models.init import build_model
from unmask.models.settings import BertSettings
from unmask.nn.batch import Batch
from unmask.nn.layout import Layout
from unmask.nn.record import mask_heads, record_attention
from unmask.train.memory import checkpoint_activations

SIZES = {"vocab_size": 31, "num_layers": 3, "hidden_size": 20, "num_heads": 5, "ffn_size": 17, "max_length": 23}
NONE = {"embedding": 0.0, "residual": 0.0, "attention": 0.0, "activation": 0.0}
LENGTHS = {"unequal": [3, 11, 1, 7, 7, 2], "equal": [5, 5, 5], "sorted": [1, 2, 2, 9], "single": [13], "ones": [1, 1]}
KINDS: dict[str, dict[str, object]] = {
    "post": {},
    "pre": {"norm_place": "pre"},
    "sinusoidal": {"positions": {"kind": "sinusoidal"}},
    "shared": {"projections": "shared_qk"},
    "no projections": {"projections": "none"},
    "no ffn": {"ffn": False},
    "rotary": {"positions": {"kind": "rotary"}, "head_size": 4},
    "alibi": {"positions": {"kind": "alibi"}},
    "buckets": {"positions": {"kind": "buckets"}},
    "shaw": {"positions": {"kind": "shaw"}},
    "transformer_xl": {"positions": {"kind": "transformer_xl"}},
    "batch norm": {"norm": "batch"},
    "batch norm, pre": {"norm": "batch", "norm_place": "pre"},
}
FALL_BACK = {"rotary", "alibi", "buckets", "shaw", "transformer_xl", "batch norm", "batch norm, pre"}


def bert(kind: str, **changes: object) -> Bert:
    model = build_model(BertSettings.parse(SIZES | {"dropout": NONE, "init_std": 0.3} | KINDS[kind] | changes), seed=2)
    assert isinstance(model, Bert)
    return model.double().train()


def batch_of(lengths: list[int], padded: bool = False) -> Batch:
    generator = torch.Generator().manual_seed(sum(lengths))
    layout = Layout.padded(lengths) if padded else Layout.ragged(lengths)
    ids = torch.randint(0, 31, (layout.num_rows,), generator=generator)
    return Batch(ids, torch.zeros_like(ids), layout)


def some_rows(layout: Layout) -> Tensor:
    """The first of every sequence, and about a third of the others."""
    generator = torch.Generator().manual_seed(layout.num_rows)
    chosen = torch.rand(layout.num_rows, generator=generator) < 0.3
    tokens = torch.zeros(layout.num_rows, dtype=torch.bool)
    tokens[layout.token_rows(torch.device("cpu"))] = True
    chosen &= tokens
    chosen[layout.first_rows(torch.device("cpu"))] = True
    return chosen.nonzero().squeeze(1)


def learned(model: Bert, run: Callable[[], tuple[Tensor, Tensor | None]]) -> tuple[Tensor, Tensor | None, list[Tensor]]:
    model.zero_grad()
    rows, pooled = run()
    weights = torch.linspace(-1, 1, rows.numel(), dtype=rows.dtype).view(rows.shape).sin()
    ((rows * weights).sum() + (0 if pooled is None else pooled.sin().sum())).backward()
    gradients = [p.grad.clone() if p.grad is not None else torch.zeros_like(p) for p in model.parameters()]
    return rows.detach(), pooled, gradients


def assert_same(model: Bert, batch: Batch, asked: Tensor) -> None:
    def everything() -> tuple[Tensor, Tensor | None]:
        encoded = model(batch)
        return encoded.sequence.index_select(0, asked), encoded.pooled

    def chosen() -> tuple[Tensor, Tensor | None]:
        encoded = model(batch, asked)
        assert encoded.layout == batch.layout.of_rows(asked)
        return encoded.sequence, encoded.pooled

    rows, pooled, gradients = learned(model, everything)
    rows_of_chosen, pooled_of_chosen, gradients_of_chosen = learned(model, chosen)
    torch.testing.assert_close(rows_of_chosen, rows, rtol=0, atol=1e-12)
    if pooled is not None:
        torch.testing.assert_close(pooled_of_chosen, pooled, rtol=0, atol=1e-12)
    for one, two in zip(gradients_of_chosen, gradients, strict=True):
        assert (one - two).abs().max() <= 1e-10 * two.abs().max() + 1e-13


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("padded", [False, True], ids=["ragged", "padded"])
def test_chosen_rows_are_those_of_the_whole(kind: str, padded: bool) -> None:
    if padded and "batch norm" in kind:
        pytest.skip("in training BatchNorm counts padding: the layouts differ by design")
    model = bert(kind)
    assert model.encoder.stack.blocks[-1].can_choose == (kind not in FALL_BACK)
    batch = batch_of(LENGTHS["unequal"], padded)
    assert_same(model, batch, some_rows(batch.layout))


@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize("padded", [False, True], ids=["ragged", "padded"])
def test_any_shape_of_batch(lengths: str, padded: bool) -> None:
    batch = batch_of(LENGTHS[lengths], padded)
    assert_same(bert("pre"), batch, some_rows(batch.layout))
    assert_same(bert("post"), batch, batch.layout.first_rows(torch.device("cpu")))
    assert_same(bert("post"), batch, batch.layout.token_rows(torch.device("cpu")))


@pytest.mark.parametrize("layers", [1, 2])
def test_few_layers_and_no_pooler(layers: int) -> None:
    batch = batch_of(LENGTHS["unequal"])
    assert_same(bert("post", num_layers=layers, pooler=False), batch, some_rows(batch.layout))


def test_in_single_precision() -> None:
    model, batch = bert("post").float().eval(), batch_of(LENGTHS["unequal"])
    asked = some_rows(batch.layout)
    with torch.no_grad():
        found, whole = model(batch, asked).sequence, model(batch).sequence[asked]
    torch.testing.assert_close(found, whole, rtol=0, atol=1e-6)


def test_a_sequence_that_nobody_asks_about_is_an_error() -> None:
    batch = batch_of([3, 4])
    with pytest.raises(ValueError, match="at least one"):
        bert("post")(batch, torch.tensor([0, 2]))


@pytest.mark.parametrize("kind", ["post", "pre", "rotary", "batch norm"])
def test_with_activations_computed_again(kind: str) -> None:
    rate = {"embedding": 0.1, "residual": 0.2, "attention": 0.3, "activation": 0.1}
    batch = batch_of(LENGTHS["unequal"])
    asked = some_rows(batch.layout)
    results = []
    for again in (False, True):
        model = bert(kind, dropout=rate)
        checkpoint_activations(model, again)
        torch.manual_seed(3)
        results.append(learned(model, lambda model=model: model(batch, asked)[:2]))
    (rows, _, gradients), (rows_again, _, gradients_again) = results
    assert torch.equal(rows, rows_again)
    assert all(torch.equal(one, two) for one, two in zip(gradients, gradients_again, strict=True))


@pytest.mark.parametrize("kind", ["post", "pre", "shared", "no projections"])
@pytest.mark.parametrize("padded", [False, True], ids=["ragged", "padded"])
def test_silenced_heads_and_records_are_those_of_the_rows(kind: str, padded: bool) -> None:
    model, batch = bert(kind).eval(), batch_of(LENGTHS["unequal"], padded)
    asked = some_rows(batch.layout)
    name = "encoder.stack.blocks.2.self_attention"
    gates = {name: [0.0, 1.0, 0.5, 1.0, 0.0]}
    with torch.no_grad(), mask_heads(model, gates):
        torch.testing.assert_close(model(batch, asked).sequence, model(batch).sequence[asked], rtol=0, atol=1e-12)
    with torch.no_grad(), record_attention(model) as some:
        model(batch, asked)
    with torch.no_grad(), record_attention(model) as whole:
        model(batch)
    assert len(some.attention[name].weights) == len(batch.layout.lengths)
    for number, (start, length) in enumerate(zip(batch.layout.starts, batch.layout.lengths, strict=True)):
        own = asked[(asked >= start) & (asked < start + length)] - start
        found, expected = some.attention[name].weights[number], whole.attention[name].weights[number]
        torch.testing.assert_close(found, expected[:, own], rtol=0, atol=1e-12)
    assert some.hidden["encoder.stack.blocks.2"][0].shape[0] == len(asked)
    assert some.hidden["encoder.stack.blocks.1"][0].shape[0] == batch.layout.num_rows
