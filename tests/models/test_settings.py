"""Settings of models: what goes together, and the sentence for what does not."""

from __future__ import annotations

import json

import pytest

from unmask.config import with_tuples
from unmask.errors import SettingsError
from unmask.models.settings import (
    MODEL_SETTINGS,
    BertSettings,
    GptSettings,
    LstmSettings,
    ModelSettings,
    TransformerSettings,
    bert_preset,
    transformer_preset,
)
from unmask.nn.settings import DropoutSettings, LayerSettings, LayerShape

LAYER = {"hidden_size": 12, "num_heads": 3, "ffn_size": 17}
STACK = LAYER | {"vocab_size": 13, "num_layers": 2}
PAIR = LAYER | {"source_vocab_size": 13, "target_vocab_size": 13}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"hidden_size": 13}, "hidden_size 13 is not a multiple of num_heads 3; .* set head_size"),
        ({"projections": "none", "head_size": 5}, "without projections head_size is"),
        ({"positions": {"kind": "rotary"}, "head_size": 5}, "head_size 5 must be even"),
        ({"hidden_size": 9, "positions": {"kind": "sinusoidal"}}, "sinusoidal .* hidden_size 9 must be even"),
        ({"hidden_size": 9, "positions": {"kind": "complex"}}, "complex .* hidden_size 9 must be even"),
        ({"hidden_size": 9, "positions": {"kind": "transformer_xl"}}, "transformer_xl .* hidden_size 9 must be even"),
        ({"positions": {"kind": "buckets", "num_buckets": 6}}, "num_buckets.* multiple of 4 .*given 6"),
        ({"positions": {"kind": "buckets", "max_distance": 16}}, "max_distance must exceed half of num_buckets, 16"),
        ({"heads_by_layer": [2]}, "heads_by_layer has 1 entries but num_layers is 2"),
        ({"ffn_by_layer": [2, 3, 4]}, "ffn_by_layer has 3 entries but num_layers is 2"),
        ({"heads_by_layer": [2, 3], "positions": {"kind": "buckets"}}, "shared by all layers need the same number"),
        ({"positions": {"kind": "shawl"}}, "positions.*shawl"),
        ({"pooler": False, "heads": [{"kind": "nsp"}]}, "the nsp head reads the pooled output"),
        ({"pooler": False, "heads": [{"kind": "sop"}]}, "the sop head reads the pooled output"),
        (
            {"pooler": False, "heads": [{"kind": "classify", "labels": ["a", "b"]}]},
            "the classify head reads the pooled",
        ),
        ({"heads": [{"kind": "mlm"}, {"kind": "mlm", "tied": False}]}, "each kind of head at most once"),
        ({"heads": [{"kind": "tag", "labels": []}]}, r"heads\.0\.tag\.labels"),
        ({"heads": [{"kind": "classify", "labels": ["a"]}]}, "one label of one leaves nothing to choose"),
        ({"heads": [{"kind": "classify", "labels": ["a", "b"], "problem": "many"}]}, r"classify\.problem"),
        ({"num_layers": 1001}, "num_layers.*1000"),
        ({"vocab_size": 1}, "vocab_size"),
    ],
)
def test_what_does_not_go_together_is_refused(changes: dict[str, object], words: str) -> None:
    with pytest.raises(SettingsError, match=words):
        BertSettings.parse(STACK | changes)


@pytest.mark.parametrize(
    "changes",
    [
        {"head_size": 5},
        {"projections": "none"},
        {"projections": "none", "head_size": 12},
        {"heads_by_layer": [2, 3], "positions": {"kind": "shaw", "share_layers": True}},
        {"heads_by_layer": [2, 2], "positions": {"kind": "buckets"}},
        {"pooler": False, "heads": [{"kind": "classify", "labels": ["a", "b"], "pooling": "mean"}, {"kind": "mlm"}]},
        {"heads": [{"kind": "classify", "labels": ["a"], "problem": "regression"}]},
        {"heads": [{"kind": "classify", "labels": ["a"], "problem": "multi", "window_attention": True}]},
    ],
)
def test_what_does_is_taken(changes: dict[str, object]) -> None:
    BertSettings.parse(STACK | changes)


def test_one_vocabulary_is_needed_to_tie_all() -> None:
    with pytest.raises(SettingsError, match="given 13 and 17 tokens; use tie 'target'"):
        TransformerSettings.parse(PAIR | {"target_vocab_size": 17})
    TransformerSettings.parse(PAIR | {"target_vocab_size": 17, "tie": "target"})
    with pytest.raises(SettingsError, match="given 13 and 17 tokens; use tie 'target'"):
        LstmSettings(source_vocab_size=13, target_vocab_size=17, hidden_size=8)


def test_shapes_of_layers() -> None:
    settings = BertSettings.parse(STACK | {"heads_by_layer": [2, 1]})
    assert settings.shapes == (LayerShape(2, 17), LayerShape(1, 17))
    assert BertSettings.parse(STACK).shapes == (LayerShape(3, 17),) * 2
    assert LayerSettings.parse(LAYER).uniform(3) == (LayerShape(3, 17),) * 3


def test_dropout_everywhere() -> None:
    assert DropoutSettings.everywhere(0.3).model_dump() == dict.fromkeys(
        ("embedding", "residual", "attention", "activation"), 0.3
    )


@pytest.mark.parametrize(
    "settings",
    [
        bert_preset("tiny"),
        transformer_preset("big", 100),
        GptSettings.parse(STACK),
        LstmSettings(source_vocab_size=13, target_vocab_size=17, hidden_size=8, attention=False, tie="none"),
        BertSettings.parse(
            STACK | {"heads": [{"kind": "tag", "labels": ["a"], "crf": True}], "positions": {"kind": "shaw"}}
        ),
    ],
    ids=["bert", "transformer", "gpt", "lstm", "everything"],
)
def test_settings_survive_json(settings: ModelSettings) -> None:
    plain = json.loads(settings.model_dump_json())
    assert MODEL_SETTINGS.validate_python(with_tuples(plain)) == settings
    assert type(settings).parse(settings.model_dump(mode="json")) == settings


def test_the_papers_defaults() -> None:
    """Base of "Attention is all you need" (table 3) and of BERT (section 3)."""
    base = transformer_preset("base", 37000)
    assert (base.num_encoder_layers, base.num_decoder_layers) == (6, 6)
    assert (base.hidden_size, base.ffn_size, base.num_heads, base.width_of_head) == (512, 2048, 8, 64)
    assert (base.activation, base.norm_place, base.positions.kind) == ("relu", "post", "sinusoidal")
    assert base.scale_embeddings
    assert (base.dropout.residual, transformer_preset("big", 37000).dropout.residual) == (0.1, 0.3)
    bert = bert_preset("base")
    assert (bert.num_layers, bert.hidden_size, bert.num_heads, bert.ffn_size) == (12, 768, 12, 3072)
    assert (bert.activation, bert.norm_place, bert.norm_eps, bert.max_length) == ("gelu", "post", 1e-12, 512)
    assert (bert.init, bert.init_std) == ("truncated_normal", 0.02)
