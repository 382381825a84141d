"""BERT: who sees whom, published sizes to the unit, heads and their sentences."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor

from unmask.errors import SettingsError, TaskError, UserError
from unmask.models.bert import Bert, device_of, num_parameters
from unmask.models.init import assemble, build_model
from unmask.models.settings import (
    BertSettings,
    ClassifySettings,
    HeadSettings,
    MaskedTokenSettings,
    NextSentenceSettings,
    SentenceOrderSettings,
    SpanSettings,
    TagSettings,
    bert_preset,
)
from unmask.nn.batch import Batch
from unmask.nn.windows import Windows

IDS = [[1, 2, 3], [4, 5, 6, 7, 8, 9, 10], [11], [1, 3, 5, 7, 9]]
SEGMENTS = [[0, 0, 1], [0, 0, 0, 0, 1, 1, 1], [0], [0, 1, 1, 1, 1]]
HEADS = (
    MaskedTokenSettings(),
    NextSentenceSettings(),
    SentenceOrderSettings(),
    ClassifySettings(labels=("a", "b", "c")),
    TagSettings(labels=("O", "B", "I", "S", "E")),
    SpanSettings(),
)
POSITIONS = ["none", "learned", "sinusoidal", "complex", "rotary", "alibi", "buckets", "shaw", "transformer_xl"]


def bert(heads: tuple[HeadSettings, ...] = (), **changes: object) -> Bert:
    sizes = {"vocab_size": 13, "hidden_size": 12, "num_heads": 3, "ffn_size": 17, "num_layers": 2, "max_length": 11}
    settings = BertSettings.parse(sizes | {"init_std": 0.3} | changes).replace(heads=heads)
    model = build_model(settings, seed=7)
    assert isinstance(model, Bert)
    return model.eval()


def changed(sequence: int, place: int, token: int) -> list[list[int]]:
    return [[token if (b, t) == (sequence, place) else old for t, old in enumerate(ids)] for b, ids in enumerate(IDS)]


@pytest.mark.parametrize("kind", POSITIONS)
def test_a_token_moves_its_whole_sequence_and_no_other(kind: str) -> None:
    model = bert(positions={"kind": kind})
    batch, other = Batch.of(IDS), Batch.of(changed(1, 6, 2))
    before, after = batch.layout.split(model(batch).sequence), batch.layout.split(model(other).sequence)
    for number, (one, two) in enumerate(zip(before, after, strict=True)):
        moved = (one - two).abs().amax(-1)
        if number == 1:
            assert (moved > 1e-4).all()
        else:
            assert torch.equal(one, two)


@pytest.mark.parametrize("kind", POSITIONS)
def test_ragged_padded_and_alone_are_the_same(kind: str) -> None:
    model = bert(positions={"kind": kind})
    batch = Batch.of(IDS, SEGMENTS)
    together = model(batch)
    padded = batch.padded(12)
    rows = model(padded).sequence[padded.layout.token_rows(torch.device("cpu"))]
    torch.testing.assert_close(rows, together.sequence, rtol=0, atol=1e-5)
    torch.testing.assert_close(model(padded).pooled, together.pooled, rtol=0, atol=1e-5)
    alone = [model(Batch.of([ids], [segments])).sequence for ids, segments in zip(IDS, SEGMENTS, strict=True)]
    torch.testing.assert_close(torch.cat(alone), together.sequence, rtol=0, atol=1e-5)


def test_segments_matter_and_without_them_there_is_no_table() -> None:
    model = bert()
    assert not torch.allclose(model(Batch.of(IDS, SEGMENTS)).sequence, model(Batch.of(IDS)).sequence)
    model = bert(num_segments=0)
    assert torch.equal(model(Batch.of(IDS, SEGMENTS)).sequence, model(Batch.of(IDS)).sequence)


def test_outputs_of_every_head() -> None:
    model, batch = bert(HEADS), Batch.of(IDS)
    encoded = model(batch)
    assert encoded.sequence.shape == (16, 12)
    assert encoded.pooled.shape == (4, 12)
    assert model.masked_token_logits(encoded.sequence[[2, 5, 7]]).shape == (3, 13)
    assert model.next_sentence_logits(encoded).shape == (4, 2)
    assert model.sentence_order_logits(encoded).shape == (4, 2)
    assert model.class_logits(encoded).shape == (4, 3)
    assert model.tag_logits(encoded).shape == (16, 5)
    assert model.span_logits(encoded).shape == (16, 2)
    tags = model.best_tags(encoded)
    assert [len(row) for row in tags] == [3, 7, 1, 5]
    assert [tag for row in tags for tag in row] == model.tag_logits(encoded).argmax(-1).tolist()


def test_best_tags_with_a_crf_are_the_best_path() -> None:
    model = bert((TagSettings(labels=("a", "b"), crf=True),))
    crf = model.heads["tag"].crf
    with torch.no_grad():
        crf.transitions.copy_(torch.tensor([[-50.0, 0.0], [0.0, -50.0]]))  # labels must take turns
    for row in model.best_tags(model(Batch.of(IDS))):
        assert all(one != two for one, two in itertools.pairwise(row))


@pytest.mark.parametrize("pooling", ["cls", "mean", "max", "pooler"])
def test_class_logits_read_what_the_pooling_says(pooling: str) -> None:
    model = bert((ClassifySettings(labels=("a", "b", "c"), pooling=pooling),))
    encoded = model(Batch.of(IDS))
    pieces = encoded.layout.split(encoded.sequence)
    by_hand: dict[str, list[Tensor]] = {
        "cls": [piece[0] for piece in pieces],
        "mean": [piece.mean(0) for piece in pieces],
        "max": [piece.max(0).values for piece in pieces],
        "pooler": list(encoded.pooled),
    }
    expected = model.heads["classify"].dense(torch.stack(by_hand[pooling]))
    torch.testing.assert_close(model.class_logits(encoded), expected)


@pytest.mark.parametrize("problem", ["single", "multi", "regression"])
def test_class_probabilities_by_the_kind_of_problem(problem: str) -> None:
    model = bert((ClassifySettings(labels=("a", "b", "c"), problem=problem),))
    logits = model.class_logits(model(Batch.of(IDS)))
    raised = logits.exp()
    by_hand = {"single": raised / raised.sum(1, keepdim=True), "multi": raised / (1 + raised), "regression": logits}
    torch.testing.assert_close(model.class_probabilities(logits), by_hand[problem])


@pytest.mark.parametrize("attention", [False, True])
def test_windows_are_joined_before_the_classifier(attention: bool) -> None:
    model = bert((ClassifySettings(labels=("a", "b", "c"), window_attention=attention),))
    rows = model.class_rows(model(Batch.of(IDS)))
    head = model.heads["classify"]
    found = model.joined_class_logits(rows, Windows((3, 1)))
    alone = model.joined_class_logits(rows)
    torch.testing.assert_close(found[1], alone[3])  # a text of one window is that window
    weights = torch.full((3,), 1 / 3)
    if attention:
        weights = torch.stack([head.windows.score(head.windows.dense(row).tanh()).squeeze() for row in rows[:3]])
        weights = weights.softmax(0)
        assert weights.max() > 0.34
    torch.testing.assert_close(found[0], head.dense((weights[:, None] * rows[:3]).sum(0)))
    highest = model.joined_class_logits(rows, Windows((3, 1), "max"))
    if not attention:
        torch.testing.assert_close(highest[0], head.dense(rows[:3].max(0).values))
    else:
        assert torch.equal(highest, found)  # a layer that has learned to weigh is not overruled


def test_the_output_matrix_is_the_token_embedding_unless_untied() -> None:
    names = dict(bert((MaskedTokenSettings(),)).named_parameters())
    assert "heads.mlm.output.weight" not in names
    model = bert((MaskedTokenSettings(),))
    rows = model(Batch.of(IDS)).sequence
    logits = model.masked_token_logits(rows)
    with torch.no_grad():
        model.encoder.embeddings.token.weight[4, 0] += 1
    moved = (model.masked_token_logits(rows) - logits).abs().amax(0) > 1e-6
    assert moved.nonzero().flatten().tolist() == [4]
    untied = bert((MaskedTokenSettings(tied=False),))
    assert untied.heads["mlm"].output.weight is not untied.encoder.embeddings.token.weight
    assert num_parameters(untied) == num_parameters(model) + 13 * 12


@pytest.mark.parametrize(
    ("call", "kind"),
    [
        (lambda model, encoded: model.masked_token_logits(encoded.sequence), "mlm"),
        (lambda model, encoded: model.next_sentence_logits(encoded), "nsp"),
        (lambda model, encoded: model.sentence_order_logits(encoded), "sop"),
        (lambda model, encoded: model.class_logits(encoded), "classify"),
        (lambda model, encoded: model.tag_logits(encoded), "tag"),
        (lambda model, encoded: model.best_tags(encoded), "tag"),
        (lambda model, encoded: model.span_logits(encoded), "qa"),
    ],
)
def test_a_missing_head_is_named_with_those_there_are(call: object, kind: str) -> None:
    bare = bert()
    with pytest.raises(TaskError, match=f"no {kind} head: it is an encoder without any head"):
        call(bare, bare(Batch.of(IDS)))
    has = bert(tuple(head for head in HEADS if head.kind != kind))
    names = ", ".join(head.kind for head in HEADS if head.kind != kind)
    with pytest.raises(TaskError, match=f"no {kind} head: it has {names}; load a model"):
        call(has, has(Batch.of(IDS)))


def test_too_many_tokens_are_refused() -> None:
    with pytest.raises(UserError, match="12 tokens .* 11 rows"):
        bert()(Batch.of([[1] * 12]))


@pytest.mark.parametrize(
    ("size", "vocab_size", "heads", "count"),
    [
        ("tiny", 30522, (), 4_385_920),
        ("base", 30522, (), 109_482_240),
        ("base", 30522, HEADS[:2], 110_106_428),
        ("base", 21128, (), 102_267_648),
        ("large", 30522, (), 335_141_888),
        ("large", 30522, HEADS[:2], 336_226_108),
    ],
)
def test_published_sizes_to_the_unit(size: str, vocab_size: int, heads: tuple[HeadSettings, ...], count: int) -> None:
    with torch.device("meta"):
        model = assemble(bert_preset(size, vocab_size).replace(heads=heads))
    assert num_parameters(model) == count
    assert device_of(model).type == "meta"


def test_unknown_size_names_the_known() -> None:
    with pytest.raises(SettingsError, match="unknown size huge .* tiny, mini, small, medium, base, large"):
        bert_preset("huge")


def test_dropout_differs_by_seed_in_training_and_never_in_evaluation() -> None:
    model, batch = bert(), Batch.of(IDS)

    def output(seed: int) -> Tensor:
        torch.manual_seed(seed)
        return model(batch).sequence

    assert torch.equal(output(1), output(2))
    model.train()
    assert not torch.allclose(output(1), output(2))
    assert torch.equal(output(1), output(1))
