"""First values: whose randomness they use, and how they are distributed."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from unmask.models.assign import named_tensors
from unmask.models.bert import Bert
from unmask.models.gpt import Gpt
from unmask.models.init import Model, assemble, build_model, initialise
from unmask.models.recurrent import LstmSeq2Seq
from unmask.models.settings import (
    BertSettings,
    GptSettings,
    LstmSettings,
    ModelSettings,
    TagSettings,
    TransformerSettings,
)
from unmask.models.transformer import Transformer

POSITIONS = ["none", "learned", "sinusoidal", "complex", "rotary", "alibi", "buckets", "shaw", "transformer_xl"]
LAYER = {"hidden_size": 12, "num_heads": 3, "ffn_size": 17}
BERT = BertSettings.parse(
    {"vocab_size": 13, "num_layers": 2, "heads": [{"kind": "tag", "labels": ["a", "b"], "crf": True}, {"kind": "mlm"}]}
    | LAYER
)
GPT = GptSettings.parse({"vocab_size": 13, "num_layers": 2} | LAYER)
TRANSFORMER = TransformerSettings.parse({"source_vocab_size": 13, "target_vocab_size": 13, "output_bias": True} | LAYER)
LSTM = LstmSettings(source_vocab_size=13, target_vocab_size=13, hidden_size=12)
ALL = {"bert": BERT, "gpt": GPT, "transformer": TRANSFORMER, "lstm": LSTM}
EVERY = pytest.mark.parametrize("settings", ALL.values(), ids=ALL)


@EVERY
def test_settings_choose_the_architecture(settings: ModelSettings) -> None:
    kinds = {"bert": Bert, "gpt": Gpt, "transformer": Transformer, "lstm": LstmSeq2Seq}
    assert type(assemble(settings)) is kinds[settings.model]


@EVERY
def test_the_seed_alone_decides(settings: ModelSettings) -> None:
    torch.manual_seed(1)
    one = named_tensors(build_model(settings, seed=5))
    torch.manual_seed(2)
    two = named_tensors(build_model(settings, seed=5))
    other = named_tensors(build_model(settings, seed=6))
    assert one.keys() == two.keys()
    assert all(torch.equal(one[name], two[name]) for name in one)
    matrices = [name for name in one if one[name].dim() > 1]
    assert all(not torch.equal(one[name], other[name]) for name in matrices)


@EVERY
def test_the_global_generator_is_left_alone(settings: ModelSettings) -> None:
    torch.manual_seed(3)
    before = torch.get_rng_state()
    build_model(settings)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("score", ["scaled_dot", "normed_dot", "additive"])
@pytest.mark.parametrize("kind", POSITIONS)
def test_every_parameter_is_set(kind: str, score: str) -> None:
    """Whatever stood there before, afterwards only the generator's values do."""
    for base in (BERT, GPT, TRANSFORMER):
        for norm in ("layer", "rms", "batch"):
            data = base.model_dump(mode="json") | {"positions": {"kind": kind}, "score": score, "norm": norm}
            settings = type(base).parse(data)
            model = assemble(settings)
            for tensor in named_tensors(model).values():
                tensor.data.fill_(77)
            initialise(model, settings, torch.Generator().manual_seed(0))
            left = [name for name, tensor in named_tensors(model).items() if (tensor == 77).any()]
            assert left == []


def wide(init: str) -> BertSettings:
    options = {"hidden_size": 96, "num_heads": 3, "ffn_size": 256, "vocab_size": 500, "num_layers": 1}
    return BertSettings.parse(options | {"init": init, "init_std": 0.05})


def weights(model: Model, kind: type[nn.Module]) -> list[Tensor]:
    return [module.weight.detach() for module in model.modules() if isinstance(module, kind)]


def test_truncated_normal() -> None:
    """Cut at two standard deviations, a normal distribution keeps 0.8796 of its deviation."""
    model = build_model(wide("truncated_normal"))
    for weight in weights(model, nn.Linear) + weights(model, nn.Embedding):
        assert weight.abs().max() <= 0.1
        if weight.numel() > 5000:
            assert weight.std().item() == pytest.approx(0.05 * 0.8796, rel=0.03)
            assert weight.abs().max() > 0.095
            assert abs(weight.mean().item()) < 0.003


def test_xavier_and_embeddings() -> None:
    model = build_model(wide("xavier"))
    for weight in weights(model, nn.Linear):
        bound = math.sqrt(6 / sum(weight.shape))
        assert weight.abs().max() <= bound
        assert weight.abs().max() > 0.95 * bound
        assert weight.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.03)
    token = model.encoder.embeddings.token.weight
    assert token.std().item() == pytest.approx(96**-0.5, rel=0.02)
    assert token.abs().max() > 3 * 96**-0.5  # nothing cut off


def test_branches_that_begin_quietly() -> None:
    """Only the last matrix of each sub-layer is smaller, by the factor; everything else is drawn as it was."""
    sizes = {"hidden_size": 12, "num_heads": 3, "ffn_size": 20, "source_vocab_size": 11, "target_vocab_size": 11}
    plain = TransformerSettings(**sizes, num_encoder_layers=2, num_decoder_layers=2)
    loud, quiet = (build_model(plain.replace(init_branches=factor), seed=3).state_dict() for factor in (1.0, 0.25))
    last = {name for name in loud if name.endswith(("attention.output.weight", "ffn.outer.weight"))}
    assert len(last) == 2 * 2 + 2 * 3
    for name, weight in quiet.items():
        torch.testing.assert_close(weight, loud[name] * (0.25 if name in last else 1.0), rtol=0, atol=0)


@pytest.mark.parametrize("init", ["truncated_normal", "xavier"])
def test_biases_start_at_zero_and_norms_at_one(init: str) -> None:
    model = build_model(wide(init))
    for module in model.modules():
        if isinstance(module, nn.Linear):
            assert (module.bias == 0).all()
        if isinstance(module, nn.LayerNorm):
            assert (module.weight == 1).all()
            assert (module.bias == 0).all()


def test_parts_have_the_last_word() -> None:
    settings = BERT.replace(heads=(TagSettings(labels=("a", "b", "c"), crf=True),), score="normed_dot")
    model = build_model(settings)
    crf = model.heads["tag"].crf
    assert 0 < crf.transitions.abs().max() <= 0.1
    gain = model.encoder.stack.blocks[0].self_attention.attend.score.query_norm.weight
    torch.testing.assert_close(gain.detach(), torch.full((4,), 4**-0.25))
