from __future__ import annotations

import pytest
import torch

from unmask.models.assign import named_tensors
from unmask.models.folder import stored_names
from unmask.models.init import assemble
from unmask.models.names import NameTable, bert_names, ctranslate_names, marian_names, modern_name, with_prefix
from unmask.models.settings import (
    MaskedTokenSettings,
    NextSentenceSettings,
    SpanSettings,
    TagSettings,
    bert_preset,
    transformer_preset,
)
from unmask.nn.settings import LearnedSettings


@pytest.mark.parametrize("classifier", [None, "classify", "tag"])
def test_bert_table_is_a_bijection(classifier: str | None) -> None:
    table = bert_names(13, classifier)
    pairs = list(table)
    assert len({ours for ours, _ in pairs}) == len({theirs for _, theirs in pairs}) == len(pairs)
    for ours, theirs in pairs:
        assert table.theirs(ours) == theirs
        assert table.ours(theirs) == ours
    assert len(pairs) == 5 + 13 * 16 + 2 + 6 + 2 + 2 + (2 if classifier else 0)


def test_table_covers_every_tensor_of_a_plain_bert_and_nothing_else() -> None:
    heads = (MaskedTokenSettings(tied=False), NextSentenceSettings(), SpanSettings(), TagSettings(labels=("a", "b")))
    with torch.device("meta"):
        model = assemble(bert_preset("tiny", 7).replace(heads=heads))
    table = bert_names(2, "tag")
    assert set(named_tensors(model)) == {ours for ours, _ in table}
    assert stored_names(model)["encoder.embeddings.token.weight"] == "bert.embeddings.word_embeddings.weight"


def test_an_encoder_alone_is_stored_without_prefix() -> None:
    with torch.device("meta"):
        model = assemble(bert_preset("tiny", 7))
    names = stored_names(model)
    assert names["encoder.stack.blocks.1.ffn.inner.bias"] == "encoder.layer.1.intermediate.dense.bias"
    assert len(set(names.values())) == len(names)


def test_ctranslate_table_covers_every_tensor_of_a_transformer() -> None:
    changes = {"final_norm": True, "embedding_norm": True, "tie": "none", "output_bias": True}
    settings = transformer_preset("tiny", 11, 13).replace(**changes)
    with torch.device("meta"):
        model = assemble(settings)
    table = ctranslate_names(4, 4)
    assert set(named_tensors(model)) == {ours for ours, _ in table}
    assert table.theirs("decoder.blocks.3.cross_attention.projections.value.weight") == (
        "decoder.layer_3.attention.linear_1.weight[1/2]"
    )


def test_marian_table_covers_every_tensor_of_a_plain_transformer() -> None:
    changes = {"tie": "none", "output_bias": True, "positions": LearnedSettings(), "num_decoder_layers": 3}
    with torch.device("meta"):
        model = assemble(transformer_preset("tiny", 11, 13).replace(**changes))
    table = marian_names(4, 3)
    assert set(named_tensors(model)) == {ours for ours, _ in table}
    assert all(table.ours(theirs) == ours and table.theirs(ours) == theirs for ours, theirs in table)
    assert table.theirs("decoder.blocks.2.around_cross.norm.weight") == (
        "model.decoder.layers.2.encoder_attn_layer_norm.weight"
    )


def test_old_spelling_and_missing_prefix() -> None:
    assert modern_name("bert.embeddings.LayerNorm.gamma") == "bert.embeddings.LayerNorm.weight"
    assert modern_name("bert.embeddings.LayerNorm.beta") == "bert.embeddings.LayerNorm.bias"
    assert with_prefix("embeddings.word_embeddings.weight") == "bert.embeddings.word_embeddings.weight"
    assert with_prefix("cls.predictions.bias") == "cls.predictions.bias"


def test_a_name_that_stands_twice_is_refused() -> None:
    with pytest.raises(ValueError, match="twice"):
        NameTable([("a", "x"), ("b", "x")])
