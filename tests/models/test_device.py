"""No accelerator is at hand in tests; the meta device stands in for one: a stray CPU tensor cannot meet its tensors."""

from __future__ import annotations

import pytest
import torch

from unmask.models.init import assemble
from unmask.models.settings import BertSettings, GptSettings, TransformerSettings
from unmask.nn.batch import Batch

KINDS = ["none", "learned", "sinusoidal", "complex", "rotary", "alibi", "buckets", "shaw", "transformer_xl"]
SIZES = {"hidden_size": 12, "num_heads": 3, "ffn_size": 7}
UNSORTED, SORTED = Batch.of([[1, 2, 3], [4], [5, 6]]), Batch.of([[1], [2, 3], [4, 5]])


@pytest.mark.parametrize("batch", [UNSORTED, SORTED, UNSORTED.padded()], ids=["unsorted", "sorted", "padded"])
@pytest.mark.parametrize("kind", KINDS)
def test_every_tensor_of_a_forward_pass_is_on_the_models_device(kind: str, batch: Batch) -> None:
    positions = {"kind": kind}
    bert = BertSettings.parse({"vocab_size": 11, "num_layers": 2, "positions": positions, **SIZES})
    gpt = GptSettings.parse({"vocab_size": 11, "num_layers": 2, "positions": positions, **SIZES})
    two = TransformerSettings.parse(
        {"source_vocab_size": 11, "target_vocab_size": 11, "positions": positions, **SIZES}
        | {"num_encoder_layers": 1, "num_decoder_layers": 1}
    )
    with torch.device("meta"):
        models = [assemble(settings) for settings in (bert, gpt, two)]
    away = batch.to("meta")
    assert models[0](away).sequence.shape == (batch.layout.num_rows, 12)
    assert models[1](away).shape == (batch.layout.num_rows, 11)
    assert models[2](away, away).shape == (batch.layout.num_rows, 11)
