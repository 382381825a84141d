"""Models with an adaptive output: folders, decoding, other programs, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import unmask
from unmask.bundle import Bundle
from unmask.decode.search import decode
from unmask.decode.settings import DecodeSettings
from unmask.decode.stepping import TargetIds
from unmask.errors import ModelError, SettingsError, TaskError
from unmask.models.bert import Bert, num_parameters
from unmask.models.folder import load_model, save_model
from unmask.models.init import build_model
from unmask.models.inspect import inspect
from unmask.models.marian_export import TranslationIds, export_marian
from unmask.models.recurrent import lstm_like
from unmask.models.settings import BertSettings, MaskedTokenSettings, TransformerSettings
from unmask.models.surgery import extend_vocabulary
from unmask.models.transformer import Transformer
from unmask.nn.adaptive import order_by_frequency
from unmask.nn.batch import Batch
from unmask.nn.settings import AdaptiveSettings
from unmask.text import Tokenizer

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghijklmnopqrst"]
V = len(WORDS)
ADAPTIVE = AdaptiveSettings(cutoffs=(6, 12), div_value=2.0)
LAYER = {"hidden_size": 16, "num_heads": 2, "ffn_size": 20, "init_std": 0.3}


def bert(**changes: Any) -> Bert:
    heads = (MaskedTokenSettings(tied=False, output=ADAPTIVE),)
    model = build_model(BertSettings(**LAYER | {"vocab_size": V, "num_layers": 2, "heads": heads} | changes))
    order_by_frequency(model, torch.arange(V) * 7 % 5)
    assert isinstance(model, Bert)
    return model.eval()


def transformer(**changes: Any) -> Transformer:
    sizes = {"source_vocab_size": V, "target_vocab_size": V, "num_encoder_layers": 1, "num_decoder_layers": 1}
    given = LAYER | sizes | {"tie": "none", "output": ADAPTIVE} | changes
    model = build_model(TransformerSettings(**given))
    order_by_frequency(model, torch.arange(V) * 7 % 5)
    assert isinstance(model, Transformer)
    return model.eval()


@pytest.mark.parametrize("build", [bert, transformer])
def test_a_folder_keeps_it_with_its_order(build: Any, tmp_path: Path) -> None:
    model = build()
    save_model(model, tmp_path / "model")
    again, report = load_model(tmp_path / "model")
    assert report.loaded == report.total
    assert again.settings == model.settings
    for (name, one), (other_name, other) in zip(
        sorted(model.state_dict().items()), sorted(again.state_dict().items()), strict=True
    ):
        assert name == other_name
        assert torch.equal(one, other)
    ranks = next(tensor for name, tensor in again.state_dict().items() if name.endswith("rank_of"))
    assert ranks.tolist() != list(range(V))


def test_a_damaged_order_is_refused(tmp_path: Path) -> None:
    save_model(bert(), tmp_path / "model")
    path = tmp_path / "model" / "model.safetensors"
    tensors = load_file(path)
    name = next(name for name in tensors if name.endswith("rank_of"))
    tensors[name][3] = 999
    save_file(tensors, path)
    with pytest.raises(ModelError, match="order of its tokens"):
        load_model(tmp_path / "model")


def test_parameters_are_counted() -> None:
    model = transformer()
    found = {part.name: part.parameters for part in inspect(model).parts if part.name.startswith("adaptive")}
    assert found == {"adaptive.softmax.head": 16 * 8, "adaptive.softmax.tail.*.*": 16 * 8 + 8 * 6 + 16 * 4 + 4 * 13}
    dense = transformer(output=None)
    assert num_parameters(dense) - num_parameters(model) == 16 * V - sum(found.values())
    assert len(transformer(output_bias=True).adaptive.softmax.head.bias) == 8  # type: ignore[union-attr]


def test_transformers_gets_an_encoder_and_no_half_head(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    model = bert()
    save_model(model, tmp_path / "model")
    assert json.loads((tmp_path / "model" / "config.json").read_text())["architectures"] == ["BertModel"]
    theirs = transformers.BertModel.from_pretrained(tmp_path / "model").eval()
    with torch.no_grad():
        found = theirs(torch.tensor([[2, 7, 9, 3]])).last_hidden_state[0]
        torch.testing.assert_close(found, model(Batch.of([[2, 7, 9, 3]])).sequence, atol=1e-5, rtol=1e-5)


def test_masks_are_filled_with_the_engine_and_without(tmp_path: Path) -> None:
    model = bert()
    Bundle(model, Tokenizer.from_vocab(WORDS)).save(tmp_path / "model")
    guesses = [
        unmask.load(tmp_path / "model", engine=engine).fill_mask("a b [MASK] d", top=V)[0]  # type: ignore[arg-type]
        for engine in ("torch", "auto", None)
    ]
    for guess in guesses:
        assert sum(one.probability for one in guess) == pytest.approx(1.0, abs=1e-5)
        assert [one.id for one in guess] == [one.id for one in guesses[0]]
    with torch.no_grad():
        encoded = model(Batch.of([[2, 5, 6, 4, 8, 3]]))
        expected = model.masked_token_logits(encoded.sequence[3:4]).exp()[0]
    for one in guesses[0]:
        assert one.probability == pytest.approx(float(expected[one.id]), abs=1e-5)


@pytest.mark.parametrize("beam", [1, 3])
def test_decoding_is_exact(beam: int) -> None:
    """Scores of beam search are sums of the log-probabilities of the whole model, run again over what was found."""
    model = transformer()
    settings = DecodeSettings(beam=beam, length_penalty=0.0, max_length=6)
    sources = [[5, 6, 7, 1], [9, 1]]
    found = decode(model, sources, TargetIds(start=0, end=1), settings)
    for source, best in zip(sources, found, strict=True):
        ids = list(best[0].ids) + ([1] if best[0].finished else [])
        with torch.no_grad():
            logs = model(Batch.of([source]), Batch.of([[0, *ids[:-1]]]))
        torch.testing.assert_close(logs.exp().sum(1), torch.ones(len(ids)))
        total = float(logs.gather(1, torch.tensor(ids)[:, None]).sum())
        assert best[0].log_probability == pytest.approx(total, abs=1e-4)
        if beam == 1:
            assert logs.argmax(1).tolist() == ids


def test_other_programs_are_refused(tmp_path: Path) -> None:
    with pytest.raises(TaskError, match="adaptive output cannot be written for MarianMTModel"):
        export_marian(transformer(), tmp_path / "marian", TranslationIds(0, 1, 0))
    from unmask.export.dense import DenseBert

    with pytest.raises(TaskError, match="--head none"):
        DenseBert(bert())
    assert DenseBert(bert(), "none").head is None
    assert list(tmp_path.iterdir()) == []


def test_combinations_that_are_not_right() -> None:
    with pytest.raises(SettingsError, match="set tied to false"):
        MaskedTokenSettings(output=ADAPTIVE)
    with pytest.raises(SettingsError, match="set tie to 'none'"):
        transformer(tie="target")
    with pytest.raises(SettingsError, match="last cutoff, 12"):
        bert(vocab_size=12)
    with pytest.raises(SettingsError, match="leave output out"):
        lstm_like(transformer().settings, attention=True)
    with pytest.raises(TaskError, match="clusters are fixed"):
        extend_vocabulary(bert(), [[5, 6]])
    model = transformer()
    with pytest.raises(TaskError, match="set smoothing to 0"):
        model.token_loss(torch.zeros(2, 16), torch.tensor([1, 2]), 0.1)
    with pytest.raises(TaskError, match="no single matrix"):
        _ = model.output_layer


def test_a_new_head_on_an_old_encoder_starts_in_the_order_of_ids(tmp_path: Path) -> None:
    save_model(bert(heads=()), tmp_path / "model")
    model, report = load_model(tmp_path / "model", heads=[MaskedTokenSettings(tied=False, output=ADAPTIVE)])
    assert any(name.endswith("rank_of") for name in report.new)
    assert model.heads["mlm"].adaptive.rank_of.tolist() == list(range(V))  # type: ignore[union-attr]
