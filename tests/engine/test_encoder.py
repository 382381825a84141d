"""The kernels against torch: every shape and kind of block they know, and the same numbers in any company."""

from __future__ import annotations

import copy
import threading
from typing import Any

import pytest
import torch
from torch import Tensor

from unmask.engine.choose import accelerated, choose, kernels, unfit
from unmask.engine.encoder import FastEncoder
from unmask.errors import UserError
from unmask.models.bert import Bert
from unmask.models.init import build_model
from unmask.models.settings import BertSettings, ClassifySettings, TagSettings
from unmask.models.surgery import remove_heads, remove_neurons
from unmask.nn.batch import Batch

pytestmark = pytest.mark.skipif(kernels() is None, reason="no C compiler here")
INT8 = kernels() is not None and bool(kernels().unmask_has_int8())  # type: ignore[union-attr]
PRECISIONS = ["fp32", pytest.param("int8", marks=pytest.mark.skipif(not INT8, reason="no int8 on this processor"))]

LENGTHS = (3, 1, 40, 17, 16, 2, 33, 90)


def bert(**changes: Any) -> Bert:
    given = {"vocab_size": 50, "num_layers": 2, "hidden_size": 64, "num_heads": 4, "ffn_size": 128, "init_std": 0.3}
    model = build_model(BertSettings(**given | changes), seed=1)
    assert isinstance(model, Bert)
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for name, tensor in model.named_parameters():  # norms and biases that do something
            if "norm" in name or name.endswith("bias"):
                tensor.add_(0.2 * torch.randn(tensor.shape, generator=generator))
    return model.eval()


def batch(lengths: tuple[int, ...] = LENGTHS, vocabulary: int = 50) -> Batch:
    generator = torch.Generator().manual_seed(3)
    ids = [torch.randint(0, vocabulary, (length,), generator=generator).tolist() for length in lengths]
    segments = [[int(place > length // 2) for place in range(length)] for length in lengths]
    return Batch.of(ids, segments)


@torch.inference_mode()
def rows(model: Bert, given: Batch, asked: Tensor | None = None) -> Tensor:
    return model(given, asked).sequence


def close(found: Tensor, expected: Tensor, precision: str) -> None:
    if precision == "fp32":
        assert (found - expected).abs().max() < 1e-5 * max(float(expected.abs().max()), 1.0)
    else:
        assert torch.cosine_similarity(found, expected, dim=-1).mean() > 0.99


VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "one layer": {"num_layers": 1},
    "three layers": {"num_layers": 3},
    "pre-norm": {"norm_place": "pre", "final_norm": True},
    "pre-norm, no last norm": {"norm_place": "pre"},
    "tanh": {"activation": "gelu_tanh"},
    "relu": {"activation": "relu"},
    "silu": {"activation": "silu"},
    "identity": {"activation": "identity"},
    "no bias": {"bias": False},
    "unscaled": {"score": "dot", "init_std": 0.1},
    "odd sizes": {"hidden_size": 60, "num_heads": 5, "ffn_size": 77},
    "narrow": {"hidden_size": 6, "num_heads": 2, "ffn_size": 3},
    "wide heads": {"hidden_size": 96, "num_heads": 1, "ffn_size": 200},
    "heads of another size": {"head_size": 24},
    "heads of full width": {"num_heads": 2, "head_size": 64},
    "no positions": {"positions": {"kind": "none"}},
    "sinusoids": {"positions": {"kind": "sinusoidal"}},
    "no segments": {"num_segments": 0},
    "no embedding norm": {"embedding_norm": False},
    "scaled embeddings": {"scale_embeddings": True},
    "no pooler": {"pooler": False},
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_fp32_gives_what_torch_gives(variant: str) -> None:
    model, given = bert(**VARIANTS[variant]), batch()
    assert unfit(model.encoder) is None
    fast = accelerated(model, "fp32")
    close(rows(fast, given), rows(copy.deepcopy(model).double(), given), "fp32")


def test_tables_outlive_the_model_they_came_from() -> None:
    model, given = bert(), batch()
    expected = rows(model, given)
    fast = accelerated(model, "fp32")
    model.double()  # every parameter lies elsewhere now
    fast.encoder.pooler = None
    close(rows(fast, given), expected, "fp32")


@pytest.mark.skipif(not INT8, reason="no int8 on this processor")
@pytest.mark.parametrize("variant", VARIANTS)
def test_int8_comes_close(variant: str) -> None:
    model, given = bert(**VARIANTS[variant]), batch()
    found, expected = rows(accelerated(model, "int8"), given), rows(model, given)
    assert torch.cosine_similarity(found, expected, dim=-1).mean() > 0.99
    assert not torch.equal(found, expected)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_layers_of_different_shapes(precision: Any) -> None:
    model = remove_neurons(remove_heads(bert(num_layers=3), {0: [1], 2: [0, 2, 3]}), {1: range(0, 128, 3)})
    assert isinstance(model, Bert)
    close(rows(accelerated(model, precision), batch()), rows(model, batch()), precision)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("threads", [1, 2, 3, 7])
def test_a_text_has_the_same_numbers_in_any_company(precision: Any, threads: int) -> None:
    fast, given = accelerated(bert(), precision), batch()
    encoder = fast.encoder
    assert isinstance(encoder, FastEncoder)
    encoder.threads = threads
    together = given.layout.split(rows(fast, given))
    ids, segments = given.layout.split(given.ids), given.layout.split(given.segments)
    for number, alone in enumerate(together):
        one = Batch.of([ids[number].tolist()], [segments[number].tolist()])
        assert torch.equal(rows(fast, one), alone)
    backwards = Batch.of([row.tolist() for row in ids[::-1]], [row.tolist() for row in segments[::-1]])
    turned = backwards.layout.split(rows(fast, backwards))
    assert all(torch.equal(one, other) for one, other in zip(turned[::-1], together, strict=True))


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize("lengths", [(70,), (1,), LENGTHS, (400, 2), (30,) * 40])
def test_rows_that_are_asked_for_are_the_same_rows(precision: Any, threads: int, lengths: tuple[int, ...]) -> None:
    fast, given = accelerated(bert(max_length=400), precision), batch(lengths)
    assert isinstance(fast.encoder, FastEncoder)
    fast.encoder.threads = threads
    everything = rows(fast, given)
    firsts = given.layout.first_rows(torch.device("cpu"))
    some = torch.unique(torch.cat([firsts, torch.arange(0, len(given.ids), 3), torch.arange(len(given.ids) // 2)]))
    for asked in (firsts, some):
        assert torch.equal(rows(fast, given, asked), everything[asked])


@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_long_text(precision: Any) -> None:
    model, given = bert(max_length=1500), batch((1500, 4))
    close(rows(accelerated(model, precision), given), rows(model, given), precision)


def test_heads_read_the_fast_encoder() -> None:
    model = bert(heads=(ClassifySettings(labels=("a", "b")), TagSettings(labels=("x", "y", "z"), crf=True)))
    fast = accelerated(model, "fp32")
    with torch.inference_mode():
        ours, theirs = fast(batch()), model(batch())
        assert (fast.class_logits(ours) - model.class_logits(theirs)).abs().max() < 1e-5
        assert fast.best_tags(ours) == model.best_tags(theirs)
        assert ours.pooled is not None
        assert theirs.pooled is not None
        assert (ours.pooled - theirs.pooled).abs().max() < 1e-5


@pytest.mark.parametrize(
    ("ids", "segments", "message"),
    [
        ([[1, 99]], None, "the id 99"),
        ([[1, -1]], None, "the id 1"),
        ([[1, 2]], [[0, 5]], "the segment 5"),
        ([[1] * 600], None, "600 tokens"),
    ],
)
def test_what_torch_refuses_is_refused(ids: list[list[int]], segments: list[list[int]] | None, message: str) -> None:
    with pytest.raises(UserError, match=message):
        rows(accelerated(bert(), "fp32"), Batch.of(ids, segments))


def test_padded_batches_are_for_torch() -> None:
    with pytest.raises(UserError, match="ragged"):
        rows(accelerated(bert(), "fp32"), batch().padded())


def test_blocks_are_given_up_as_they_are_packed() -> None:
    model = bert()
    expected = rows(model, batch())
    fast = accelerated(model, "fp32", spend=True)
    assert sum(tensor.numel() for tensor in model.encoder.stack.parameters()) == 0
    assert (rows(fast, batch()) - expected).abs().max() < 1e-5


def test_many_threads_of_python_at_once() -> None:
    fast, given = accelerated(bert(), "fp32"), batch()
    expected = rows(fast, given)
    found: list[Tensor] = []
    workers = [threading.Thread(target=lambda: found.extend(rows(fast, given) for _ in range(20))) for _ in range(6)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert len(found) == 120
    assert all(torch.equal(one, expected) for one in found)


@pytest.mark.skipif(not INT8, reason="no int8 on this processor")
def test_empty_rows_have_no_scale() -> None:
    """A row of zeros is quantised without dividing by zero."""
    model = bert(embedding_norm=False, positions={"kind": "none"}, num_segments=0)
    with torch.no_grad():
        model.encoder.embeddings.token.weight.zero_()
    assert rows(accelerated(model, "int8"), batch()).isfinite().all()


UNFIT: dict[str, dict[str, Any]] = {
    "positions in attention": {"positions": {"kind": "rotary"}},
    "projections": {"projections": "shared_qk"},
    "score": {"score": "additive"},
    "feed-forward network": {"gated": True},
    "norm": {"residual": False},
    "RMSNorm": {"norm": "rms"},
}


@pytest.mark.parametrize("part", UNFIT)
def test_what_the_kernels_do_not_know_stays_with_torch(part: str) -> None:
    model = bert(**UNFIT[part])
    chosen = choose(model, "fp32")
    assert chosen.engine == "torch"
    assert part in chosen.why


def test_a_net_without_feed_forward_stays_with_torch() -> None:
    assert choose(bert(ffn=False), "int8").engine == "torch"


def test_a_net_of_another_precision_stays_with_torch() -> None:
    assert "float64" in choose(bert().double(), "fp32").why
