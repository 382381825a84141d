"""BERT against `transformers`: a published checkpoint, and random ones with every head, gradients included."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import transformers
from torch import Tensor

import unmask
from unmask.models.folder import load_model
from unmask.models.init import Model, build_model
from unmask.models.settings import (
    BertSettings,
    ClassifySettings,
    HeadSettings,
    MaskedTokenSettings,
    NextSentenceSettings,
    SpanSettings,
    TagSettings,
)
from unmask.nn.batch import Batch
from unmask.nn.settings import DropoutSettings

TOLERANCE = 1e-5

LENGTHS = (7, 3, 11, 1, 7, 2, 5)
VOCAB = 101


def texts_of(data: Path) -> list[str]:
    """200 real texts of mixed length, English, some beyond 300 tokens."""
    lines = (data / "enwiki_sample" / "enwiki_sample.txt").read_text(encoding="utf-8").split("\n")
    long = [line for line in lines if len(line) > 900][:30]
    other = [line for line in lines if 0 < len(line) <= 900][:110]
    short = (data / "multi30k_en-de" / "train.en").read_text(encoding="utf-8").split("\n")[:60]
    texts = [text for triple in zip(other, short + other, long + short + other, strict=False) for text in triple]
    texts = list(dict.fromkeys(texts))[:200]
    assert len(texts) == 200
    return texts


@pytest.fixture(scope="module")
def theirs(minilm_folder: Path) -> transformers.PreTrainedModel:
    return transformers.AutoModel.from_pretrained(minilm_folder, dtype=torch.float32).eval()


@pytest.mark.parametrize("every", [4, pytest.param(1, marks=pytest.mark.slow)])
def test_minilm_equals_transformers_on_real_texts_one_by_one_and_in_any_batch(
    minilm_folder: Path, data_folder: Path, theirs: transformers.PreTrainedModel, every: int
) -> None:
    bert = unmask.load(minilm_folder)
    tokenizer = transformers.AutoTokenizer.from_pretrained(minilm_folder)
    texts = texts_of(data_folder)[::every]
    expected: list[Tensor] = []
    with torch.inference_mode():
        for text in texts:
            encoded = tokenizer(text, return_tensors="pt", truncation=True, max_length=512)
            expected.append(theirs(**encoded).last_hidden_state[0])
        lengths = [len(rows) for rows in expected]
        assert max(lengths) > 200
        assert min(lengths) < 20
        for size, until in ((1, min(60, len(texts))), (7, len(texts)), (32, len(texts))):
            for start in range(0, until, size):
                numbers = list(range(start, min(start + size, len(texts))))
                encoded = bert.encoder(bert.batch([texts[number] for number in numbers]))
                for number, rows in zip(numbers, encoded.layout.split(encoded.sequence), strict=True):
                    torch.testing.assert_close(rows, expected[number], atol=TOLERANCE, rtol=0)
    vectors = bert.embed(texts, pooling="mean", normalise=False)
    means = torch.stack([rows.mean(0) for rows in expected]).numpy()
    np.testing.assert_allclose(vectors, means, atol=TOLERANCE, rtol=0)
    shuffled = np.random.default_rng(0).permutation(len(texts))
    again = bert.embed([texts[number] for number in shuffled], pooling="mean", normalise=False)
    np.testing.assert_allclose(again, means[shuffled], atol=TOLERANCE, rtol=0)


def settings_with(*heads: HeadSettings, dropout: float = 0.0) -> BertSettings:
    return BertSettings(
        vocab_size=VOCAB,
        num_layers=3,
        hidden_size=35,
        num_heads=5,
        ffn_size=53,
        max_length=13,
        heads=heads,
        # transformers drops the pooler where no head reads it
        pooler=any(head.kind in ("nsp", "classify") for head in heads),
        init_std=0.3,  # large, so that a wrong sign or a missing term shows
        dropout=DropoutSettings(embedding=dropout, residual=dropout, attention=dropout, activation=0.0),
    )


def random_batch(seed: int = 0) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    ids = [torch.randint(5, VOCAB, (length,), generator=generator).tolist() for length in LENGTHS]
    segments = [[0] * (length - length // 3) + [1] * (length // 3) for length in LENGTHS]
    return Batch.of(ids, segments)


def padded_inputs(batch: Batch) -> dict[str, Tensor]:
    layout = batch.layout
    return {
        "input_ids": layout.pad(batch.ids),
        "token_type_ids": layout.pad(batch.segments),
        "attention_mask": layout.key_mask(batch.ids.device).long(),
    }


def pair_of(model: Model, folder: Path, kind: str) -> transformers.PreTrainedModel:
    """The same weights in `transformers`, through the folder that we write."""
    from unmask.models.folder import save_model

    save_model(model, folder)
    cls = getattr(transformers, kind)
    theirs, info = cls.from_pretrained(folder, output_loading_info=True, dtype=torch.float32)
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    return theirs


def masked_targets(batch: Batch) -> Tensor:
    labels = torch.full_like(batch.ids, -100)
    labels[::3] = (batch.ids[::3] * 7 + 1) % VOCAB
    return labels


HEADS = {
    "BertForPreTraining": (MaskedTokenSettings(), NextSentenceSettings()),
    "BertForMaskedLM": (MaskedTokenSettings(),),
    "BertForNextSentencePrediction": (NextSentenceSettings(),),
    "BertForSequenceClassification": (ClassifySettings(labels=("a", "b", "c"), dropout=0.0),),
    "BertForTokenClassification": (TagSettings(labels=("O", "B", "I"), dropout=0.0),),
    "BertForQuestionAnswering": (SpanSettings(),),
}


def losses(model: Model, theirs: transformers.PreTrainedModel, kind: str) -> tuple[Tensor, Tensor]:
    """The same training loss by both, on ragged rows by ours and on padded rows by theirs."""
    batch, layout = random_batch(), random_batch().layout
    inputs, encoded = padded_inputs(batch), model(batch)
    follow = torch.tensor([number % 2 for number in range(len(LENGTHS))])
    classes = torch.tensor([number % 3 for number in range(len(LENGTHS))])
    ours = torch.zeros(())
    given: dict[str, Tensor] = {}
    if kind in ("BertForPreTraining", "BertForMaskedLM"):
        labels = masked_targets(batch)
        rows = (labels != -100).nonzero().squeeze(1)
        ours = ours + F.cross_entropy(model.masked_token_logits(encoded.sequence[rows]), labels[rows])
        given["labels"] = layout.pad(labels, -100)
    if kind == "BertForPreTraining":
        given["next_sentence_label"] = follow
    if kind == "BertForNextSentencePrediction":
        given["labels"] = follow
    if kind in ("BertForPreTraining", "BertForNextSentencePrediction"):
        ours = ours + F.cross_entropy(model.next_sentence_logits(encoded), follow)
    if kind == "BertForSequenceClassification":
        ours = F.cross_entropy(model.class_logits(encoded), classes)
        given["labels"] = classes
    if kind == "BertForTokenClassification":
        tags = batch.ids % 3
        ours = F.cross_entropy(model.tag_logits(encoded), tags)
        given["labels"] = layout.pad(tags, -100)
    if kind == "BertForQuestionAnswering":
        spans = model.span_logits(encoded)
        starts = torch.zeros(len(LENGTHS), dtype=torch.long)
        ends = torch.tensor(LENGTHS) - 1
        dense = layout.pad(spans, torch.finfo(torch.float32).min)
        ours = (F.cross_entropy(dense[..., 0], starts) + F.cross_entropy(dense[..., 1], ends)) / 2
        out = theirs(**inputs)
        hide = ~inputs["attention_mask"].bool()
        floor = torch.finfo(torch.float32).min
        their_loss = F.cross_entropy(out.start_logits.masked_fill(hide, floor), starts)
        return ours, (their_loss + F.cross_entropy(out.end_logits.masked_fill(hide, floor), ends)) / 2
    return ours, theirs(**inputs, **given).loss


@pytest.mark.parametrize("kind", HEADS)
def test_training_loss_and_every_gradient_equal_transformers(kind: str, tmp_path: Path) -> None:
    """In double precision, so that what is compared is the formula and not how a processor rounds."""
    model = build_model(settings_with(*HEADS[kind]), seed=3).train()
    theirs = pair_of(model, tmp_path / "model", kind).train()
    ours, expected = losses(model.double(), theirs.double(), kind)
    torch.testing.assert_close(ours, expected, atol=1e-12, rtol=1e-12)
    ours.backward()
    expected.backward()
    gradients = {name: parameter.grad for name, parameter in theirs.named_parameters() if parameter.grad is not None}
    from unmask.models.folder import stored_names

    names = stored_names(model)
    largest = max(gradient.abs().max() for gradient in gradients.values())
    compared = 0
    for name, parameter in model.named_parameters():
        if parameter.grad is None:
            continue
        mine, their = parameter.grad, gradients[names[name]]
        # Some gradients are zero but for rounding: a key's bias moves all scores of a query alike.
        vanishes = max(mine.abs().max(), their.abs().max()) < 1e-12 * largest
        assert vanishes or (mine - their).abs().max() <= 1e-10 * their.abs().max(), name
        compared += 1
    assert compared == len(gradients)
    assert compared > 50


@pytest.mark.parametrize("kind", HEADS)
def test_dropout_moves_training_and_leaves_evaluation_alone(kind: str, tmp_path: Path) -> None:
    without = build_model(settings_with(*HEADS[kind]), seed=3)
    with_dropout = build_model(settings_with(*HEADS[kind], dropout=0.3), seed=3)
    theirs = pair_of(with_dropout, tmp_path / "model", kind).eval()
    torch.manual_seed(0)
    first, _ = losses(with_dropout.train(), theirs, kind)
    second, _ = losses(with_dropout.train(), theirs, kind)
    calm, expected = losses(with_dropout.eval(), theirs, kind)
    torch.testing.assert_close(calm, expected, atol=1e-6, rtol=TOLERANCE)
    torch.testing.assert_close(calm, losses(without.eval(), theirs, kind)[0], atol=0, rtol=0)
    assert abs(first - calm) > 1e-3
    assert abs(first - second) > 1e-3


def test_a_folder_of_transformers_is_read_with_every_head(tmp_path: Path) -> None:
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=VOCAB,
        hidden_size=35,
        num_hidden_layers=3,
        num_attention_heads=5,
        intermediate_size=53,
        max_position_embeddings=13,
        hidden_act="gelu_new",
        layer_norm_eps=1e-6,
        id2label={0: "x", 1: "y"},
    )
    batch = random_batch()
    for kind in HEADS:
        theirs = getattr(transformers, kind)(config).eval()
        folder = tmp_path / kind
        theirs.save_pretrained(folder)
        model, report = load_model(folder)
        assert str(report) == f"loaded {report.total} of {report.total} tensors"
        assert {head.kind for head in model.settings.heads} == {head.kind for head in HEADS[kind]}
        with torch.inference_mode():
            expected = theirs.bert(**padded_inputs(batch)).last_hidden_state[
                padded_inputs(batch)["attention_mask"].bool()
            ]
            torch.testing.assert_close(model(batch).sequence, expected, atol=TOLERANCE, rtol=0)


def test_fill_mask_ranks_and_scores_as_transformers(minilm_folder: Path, tmp_path: Path) -> None:
    bert = unmask.load(minilm_folder, heads=[MaskedTokenSettings()], seed=1)
    bert.save(tmp_path / "with-head")
    again = unmask.load(tmp_path / "with-head")
    assert "new" not in str(again.report)
    model = transformers.BertForMaskedLM.from_pretrained(tmp_path / "with-head", dtype=torch.float32).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "with-head")
    text = "Paris is the [MASK] of [MASK]."
    encoded = tokenizer(text, return_tensors="pt")
    with torch.inference_mode():
        probabilities = model(**encoded).logits[0].softmax(-1)
    places = (encoded["input_ids"][0] == tokenizer.mask_token_id).nonzero().squeeze(1).tolist()
    guesses = again.fill_mask(text, top=7)
    assert len(guesses) == len(places) == 2
    for place, found in zip(places, guesses, strict=True):
        best = probabilities[place].topk(7)
        assert [guess.id for guess in found] == best.indices.tolist()
        np.testing.assert_allclose([guess.probability for guess in found], best.values, rtol=1e-4)
    assert guesses[0][0].text == text.replace("[MASK]", guesses[0][0].token.removeprefix("##"), 1)


def test_an_untied_output_layer_has_its_own_bias_in_both_directions(tmp_path: Path) -> None:
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=VOCAB,
        hidden_size=35,
        num_hidden_layers=1,
        num_attention_heads=5,
        intermediate_size=53,
        tie_word_embeddings=False,
    )
    theirs = transformers.BertForMaskedLM(config).eval()
    with torch.no_grad():
        theirs.cls.predictions.decoder.bias.normal_()
    theirs.save_pretrained(tmp_path / "theirs")
    model, _ = load_model(tmp_path / "theirs")
    again = pair_of(model, tmp_path / "ours", "BertForMaskedLM").eval()
    batch = random_batch()
    inputs = padded_inputs(batch)
    keep = inputs["attention_mask"].bool()
    with torch.inference_mode():
        mine = model.masked_token_logits(model(batch).sequence)
        torch.testing.assert_close(mine, theirs(**inputs).logits[keep], atol=TOLERANCE, rtol=0)
        torch.testing.assert_close(mine, again(**inputs).logits[keep], atol=TOLERANCE, rtol=0)
