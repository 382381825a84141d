"""One step of pre-training against `transformers`' BertForPreTraining: losses, every gradient, and the step itself.

The same real text, masks and labels on both sides; ragged here, padded there.
"""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
import transformers
from torch import Tensor

from unmask.data.corpus.build import build_corpus
from unmask.data.pairs import PairSettings
from unmask.data.pretraining import Examples, ExampleSettings, PretrainBatch
from unmask.models.bert import Bert
from unmask.models.folder import load_model, save_model, stored_names
from unmask.models.init import build_model
from unmask.models.settings import BertSettings, MaskedTokenSettings, NextSentenceSettings
from unmask.nn.settings import DropoutSettings
from unmask.tasks.pretrain import Pretraining
from unmask.text.training import VocabularySettings, train_tokenizer
from unmask.train.optimizer import OptimizerSettings, build_optimizer
from unmask.train.step import backward

TOLERANCE = 1e-5
VOCAB = 300

TEXT = """The quick brown fox jumps over the lazy dog.
It was a bright cold day in April, and the clocks were striking thirteen.
Nobody knew where the fox had gone.

今天天气很好，我们一起去公园。
公园里有很多人在跑步。
孩子们在草地上放风筝，老人坐在树下聊天。

Call me Ishmael.
Some years ago, having little money in my purse, I thought I would sail about a little.

北京是中国的首都。
上海是中国最大的城市，也是重要的港口。
从北京坐火车到上海只要四个多小时。

All happy families are alike; every unhappy family is unhappy in its own way.
Everything was in confusion in the house.

他每天早上六点起床，先喝一杯水，然后出门。
晚上他在家里读书，有时候也看 BBC news。
"""


@pytest.fixture(scope="module")
def batch(tmp_path_factory: pytest.TempPathFactory) -> PretrainBatch:
    """All pairs of the text, of unequal lengths."""
    folder = tmp_path_factory.mktemp("text")
    (folder / "text.txt").write_text(TEXT, encoding="utf-8")
    tokenizer = train_tokenizer([folder / "text.txt"], VocabularySettings(size=VOCAB, min_frequency=1))
    corpus = build_corpus([folder / "text.txt"], tokenizer, folder / "corpus", workers=1)
    settings = ExampleSettings(length=96, batch_tokens=800, held_out=0, pairs=PairSettings(short=0.3), seed=1)
    assert corpus.vocab_size == VOCAB
    found = Examples(corpus, settings)[0]
    assert found.pair_labels is not None
    assert set(found.pair_labels.tolist()) == {0, 1}
    assert len(set(found.batch.layout.lengths)) > 5
    assert len(found.targets) > 30
    seen = found.batch.ids[found.masked_rows]
    assert {bool(same) for same in seen == found.targets} == {True, False}
    return found


def new_model(init_std: float = 0.3) -> Bert:
    settings = BertSettings(
        vocab_size=VOCAB,
        num_layers=3,
        hidden_size=35,
        num_heads=5,
        ffn_size=53,
        max_length=96,
        heads=(MaskedTokenSettings(), NextSentenceSettings()),
        init_std=init_std,  # large, so that a wrong sign or a missing term shows
        dropout=DropoutSettings.everywhere(0.0),
    )
    model = build_model(settings, seed=3)
    assert isinstance(model, Bert)
    return model.train()


def counterpart(model: Bert, folder: Path) -> transformers.PreTrainedModel:
    """The same weights in `transformers`, through the folder that we write."""
    save_model(model, folder)
    theirs, info = transformers.BertForPreTraining.from_pretrained(
        folder, output_loading_info=True, dtype=torch.float32
    )
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    assert not info["mismatched_keys"]
    return theirs.train()


def their_losses(theirs: transformers.PreTrainedModel, batch: PretrainBatch) -> dict[str, Tensor]:
    layout = batch.batch.layout
    labels = torch.full_like(batch.batch.ids, -100)
    labels[batch.masked_rows] = batch.targets
    padded = layout.pad(labels, -100)
    out = theirs(
        input_ids=layout.pad(batch.batch.ids),
        token_type_ids=layout.pad(batch.batch.segments),
        attention_mask=layout.key_mask(torch.device("cpu")).long(),
        labels=padded,
        next_sentence_label=batch.pair_labels,
    )
    found = {
        "mlm": F.cross_entropy(out.prediction_logits.flatten(0, 1), padded.flatten(), ignore_index=-100),
        "nsp": F.cross_entropy(out.seq_relationship_logits, batch.pair_labels),
    }
    torch.testing.assert_close(out.loss, found["mlm"] + found["nsp"])
    return found | {"sum": out.loss}


def assert_same(mine: dict[str, Tensor], their: dict[str, Tensor]) -> None:
    """Relative to the largest number of each tensor."""
    assert set(mine) == set(their)
    largest = max(float(tensor.abs().max()) for tensor in their.values())
    for name, tensor in their.items():
        # Some are zero but for rounding: a key's bias moves all scores of a query alike.
        vanishes = max(float(mine[name].abs().max()), float(tensor.abs().max())) < 1e-6 * largest
        assert vanishes or (mine[name] - tensor).abs().max() <= TOLERANCE * tensor.abs().max(), name


def test_losses_and_every_gradient_equal_transformers(batch: PretrainBatch, tmp_path: Path) -> None:
    model = new_model()
    theirs = counterpart(model, tmp_path / "model")
    found = backward(model, Pretraining("nsp"), [batch])
    expected = their_losses(theirs, batch)
    for name in ("mlm", "nsp"):
        assert found[name] == pytest.approx(expected[name].item(), rel=TOLERANCE)
    expected["sum"].backward()
    names = stored_names(model)
    mine = {names[name]: p.grad for name, p in model.named_parameters() if p.grad is not None}
    assert len(mine) == len(list(model.parameters())) > 50
    assert_same(mine, {name: p.grad for name, p in theirs.named_parameters() if p.grad is not None})


def test_a_step_of_adamw_equals_transformers(batch: PretrainBatch, tmp_path: Path) -> None:
    """In double precision: Adam divides a gradient by itself at first, which is its rounding error where it is tiny."""
    model = new_model()
    theirs = counterpart(model, tmp_path / "model").double()
    model.double()
    before = backward(model, Pretraining("nsp"), [batch])
    their_losses(theirs, batch)["sum"].backward()
    build_optimizer(model, OptimizerSettings(learning_rate=1e-2, weight_decay=0.1)).step()
    still = [p for name, p in theirs.named_parameters() if "LayerNorm" in name or name.endswith("bias")]
    free = [p for name, p in theirs.named_parameters() if not ("LayerNorm" in name or name.endswith("bias"))]
    groups = [{"params": free, "weight_decay": 0.1}, {"params": still, "weight_decay": 0.0}]
    torch.optim.AdamW(groups, lr=1e-2, betas=(0.9, 0.999), eps=1e-6).step()
    names = stored_names(model)
    mine = {names[name]: p.detach() for name, p in model.named_parameters()}
    assert_same(mine, {name: p.detach() for name, p in theirs.named_parameters()})
    with torch.no_grad():
        expected = {name: value.item() for name, value in their_losses(theirs, batch).items()}
    after = backward(model, Pretraining("nsp"), [batch])
    for name in ("mlm", "nsp"):
        assert after[name] == pytest.approx(expected[name], rel=TOLERANCE)
        assert abs(after[name] - before[name]) > 0.01


def test_a_saved_model_gives_the_same_losses_in_transformers(batch: PretrainBatch, tmp_path: Path) -> None:
    model = new_model(init_std=0.02)
    theirs = counterpart(model, tmp_path / "full").eval()
    task = Pretraining("nsp")
    with torch.no_grad():
        expected = their_losses(theirs, batch)
        sums = task.sums(model.eval(), batch)
    for name, count in task.counts(batch).items():
        assert float(sums[name]) / count == pytest.approx(float(expected[name]), rel=TOLERANCE)


def test_a_model_saved_in_half_precision_is_the_same_model_in_both(batch: PretrainBatch, tmp_path: Path) -> None:
    model = new_model()
    folder = tmp_path / "half"
    theirs = counterpart(copy.deepcopy(model).half(), folder).eval()
    assert (folder / "model.safetensors").stat().st_size < 2.2 * sum(p.numel() for p in model.parameters())
    again, report = load_model(folder)
    assert report.loaded == report.total
    assert isinstance(again, Bert)
    task = Pretraining("nsp")
    with torch.no_grad():
        expected = their_losses(theirs, batch)
        rounded, full = (task.sums(one.eval(), batch) for one in (again, model))
    for name, count in task.counts(batch).items():
        assert float(rounded[name]) / count == pytest.approx(float(expected[name]), rel=TOLERANCE)
        assert float(rounded[name]) == pytest.approx(float(full[name]), rel=2e-2)
        assert float(rounded[name]) != float(full[name])
