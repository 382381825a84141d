from __future__ import annotations

import math
from pathlib import Path
from random import Random

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from unmask.data.corpus.build import build_corpus
from unmask.data.corpus.store import Corpus
from unmask.data.masking import MaskingSettings
from unmask.data.pairs import PairSettings
from unmask.data.pretraining import Examples, ExampleSettings, PretrainBatch
from unmask.models.bert import Bert
from unmask.models.init import build_model
from unmask.models.settings import BertSettings, MaskedTokenSettings, NextSentenceSettings, SentenceOrderSettings
from unmask.nn.modes import evaluating
from unmask.nn.settings import DropoutSettings
from unmask.tasks.pretrain import HeldOut, Pretraining, Stages
from unmask.text import Tokenizer
from unmask.train.step import backward

VOCAB = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghij我爱北京"]
HEADS = {"nsp": (NextSentenceSettings(),), "sop": (SentenceOrderSettings(),), "none": ()}
OBJECTIVES = pytest.mark.parametrize("objective", ["nsp", "sop", "none"])


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    folder, draw = tmp_path_factory.mktemp("corpus"), Random(0)
    documents = [
        "\n".join(" ".join(draw.choices("abcdefghij我爱北京", k=draw.randint(2, 9))) for _ in range(draw.randint(2, 9)))
        for _ in range(40)
    ]
    (folder / "text.txt").write_text("\n\n".join(documents), encoding="utf-8")
    return build_corpus([folder / "text.txt"], Tokenizer.from_vocab(VOCAB), folder / "corpus", workers=1)


def settings(objective: str, length: int = 32) -> ExampleSettings:
    return ExampleSettings(length=length, batch_tokens=200, held_out=4, pairs=PairSettings(objective=objective))


def new_model(objective: str, dropout: float = 0.0) -> Bert:
    model = build_model(
        BertSettings(
            vocab_size=len(VOCAB),
            num_layers=2,
            hidden_size=12,
            num_heads=3,
            ffn_size=17,
            max_length=32,
            heads=(MaskedTokenSettings(), *HEADS[objective]),
            init_std=0.3,
            dropout=DropoutSettings.everywhere(dropout),
        ),
        seed=2,
    )
    assert isinstance(model, Bert)
    return model


def plainly(model: Bert, batch: PretrainBatch, objective: str) -> tuple[Tensor, Tensor | None]:
    """Logits by way of every token, whatever is asked."""
    encoded = model(batch.batch)
    tokens = model.masked_token_logits(encoded.sequence)[batch.masked_rows]
    if objective == "none":
        return tokens, None
    return tokens, model.next_sentence_logits(encoded) if objective == "nsp" else model.sentence_order_logits(encoded)


@OBJECTIVES
def test_losses_and_gradients_are_those_of_the_plain_way(corpus: Corpus, objective: str) -> None:
    batch, task = Examples(corpus, settings(objective))[0], Pretraining(objective)
    mine, other = new_model(objective).double(), new_model(objective).double()
    found = backward(mine, task, [batch])
    tokens, pairs = plainly(other, batch, objective)
    expected = {"mlm": F.cross_entropy(tokens, batch.targets)}
    if pairs is not None:
        assert batch.pair_labels is not None
        expected[objective] = F.cross_entropy(pairs, batch.pair_labels)
    assert found == pytest.approx({name: value.item() for name, value in expected.items()}, rel=1e-9)
    torch.stack(list(expected.values())).sum().backward()
    gradients = {name: p.grad for name, p in other.named_parameters() if p.grad is not None}
    for name, parameter in mine.named_parameters():
        if name in gradients:
            assert parameter.grad is not None, name
            torch.testing.assert_close(parameter.grad, gradients[name], rtol=1e-8, atol=1e-11)
        else:
            assert parameter.grad is None or not parameter.grad.any(), name


@OBJECTIVES
def test_what_is_counted(corpus: Corpus, objective: str) -> None:
    batch = Examples(corpus, settings(objective))[0]
    counts = Pretraining(objective).counts(batch)
    assert counts.pop("mlm") == len(batch.targets)
    assert counts == ({} if objective == "none" else {objective: len(batch.batch)})
    assert set(Pretraining(objective).sums(new_model(objective), batch)) == {"mlm", *counts}


def test_a_batch_in_which_nothing_is_hidden_does_no_harm(corpus: Corpus) -> None:
    quiet = settings("nsp").replace(masking=MaskingSettings(rate=1e-9))
    examples = Examples(corpus, quiet)
    empty, full = examples[0], Examples(corpus, settings("nsp"))[1]
    assert len(empty.targets) == 0
    model = new_model("nsp")
    found = backward(model, Pretraining("nsp"), [empty])
    assert found["mlm"] == 0.0
    assert math.isfinite(found["nsp"])
    assert all(p.grad is None or torch.isfinite(p.grad).all() for p in model.parameters())
    both = backward(new_model("nsp"), Pretraining("nsp"), [empty, full])
    alone = backward(new_model("nsp"), Pretraining("nsp"), [full])
    assert both["mlm"] == pytest.approx(alone["mlm"], rel=1e-6)


@OBJECTIVES
def test_an_evaluation_by_hand(corpus: Corpus, objective: str) -> None:
    held = Examples(corpus, settings(objective), "held_out")
    evaluator = HeldOut(held, 400, corpus.load_tokenizer())
    assert len(evaluator) == 2
    model = new_model(objective, dropout=0.3)
    with evaluating(model), torch.no_grad():
        results = [evaluator.measure(model, number) for number in range(2)]
        found = evaluator.conclude(results)
        assert evaluator.conclude([evaluator.measure(model, number) for number in range(2)]) == found
        answers = [plainly(model, held[number], objective) for number in range(2)]
    tokens = torch.cat([tokens for tokens, _ in answers])
    targets = torch.cat([held[number].targets for number in range(2)])
    expected = {
        "mlm_loss": F.cross_entropy(tokens, targets).item(),
        "mlm_accuracy": (tokens.argmax(-1) == targets).double().mean().item(),
    }
    expected["perplexity"] = math.exp(expected["mlm_loss"])
    if objective != "none":
        pairs = torch.cat([pairs for _, pairs in answers if pairs is not None])
        labels = torch.cat([held[number].pair_labels for number in range(2)])  # type: ignore[misc]
        expected[f"{objective}_loss"] = F.cross_entropy(pairs, labels).item()
        expected[f"{objective}_accuracy"] = (pairs.argmax(-1) == labels).double().mean().item()
    assert found == pytest.approx(expected, rel=1e-5)
    assert evaluator.score in found


def test_an_evaluation_looks_at_every_held_out_text_at_most_once(corpus: Corpus) -> None:
    held = Examples(corpus, settings("nsp"), "held_out")
    size = held.batches_of_epoch(0)
    assert len(HeldOut(held, 10**9, corpus.load_tokenizer())) == size
    assert len(HeldOut(held, 1, corpus.load_tokenizer())) == 1
    again = HeldOut(Examples(corpus, settings("nsp"), "held_out"), 10**9, corpus.load_tokenizer())
    for number, batch in enumerate(again.batches):
        assert torch.equal(batch.batch.ids, held[number].batch.ids)


def test_remarks_show_the_best_guesses(corpus: Corpus) -> None:
    evaluator = HeldOut(
        Examples(corpus, settings("nsp"), "held_out"), 100, corpus.load_tokenizer(), ("a [MASK] c", "我爱[MASK][MASK]")
    )
    model = new_model("nsp")
    with torch.no_grad():
        model.heads["mlm"].bias[VOCAB.index("北")] = 50.0
    with evaluating(model), torch.no_grad():
        one, two = evaluator.remarks(model)
    assert one.startswith("a [MASK] c  →  北 1.00")
    assert two.count("|") == 1
    assert HeldOut(Examples(corpus, settings("nsp"), "held_out"), 100, corpus.load_tokenizer()).remarks(model) == []


def test_stages_follow_one_another(corpus: Corpus) -> None:
    short, long = Examples(corpus, settings("nsp", 16)), Examples(corpus, settings("nsp", 32))
    stages = Stages([(short, 3), (long, 4)])
    expected = [*(short[number] for number in range(3)), *(long[number] for number in range(6))]
    for number, batch in enumerate(expected):
        assert torch.equal(stages[number].batch.ids, batch.batch.ids)
        assert max(stages[number].batch.layout.lengths) <= (16 if number < 3 else 32)


def test_a_text_that_repeats_itself_is_learned(tmp_path: Path) -> None:
    """A letter again and again: what is hidden can be told from its neighbours, and whether the second text follows."""
    documents = ["\n".join([" ".join(letter * 6)] * 4) for letter in "abcdefghij"]
    (tmp_path / "text.txt").write_text("\n\n".join(documents), encoding="utf-8")
    corpus = build_corpus([tmp_path / "text.txt"], Tokenizer.from_vocab(VOCAB), tmp_path / "corpus", workers=1)
    chosen = settings("nsp").replace(batch_tokens=400, held_out=0, masking=MaskingSettings(keep=0.0, random=0.2))
    examples, task, model = Examples(corpus, chosen), Pretraining("nsp"), new_model("nsp")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses: list[dict[str, float]] = []
    for number in range(180):
        optimizer.zero_grad()
        losses.append(backward(model, task, [examples[number]]))
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    for name, share in (("mlm", 0.2), ("nsp", 0.75)):
        assert np.mean([one[name] for one in losses[-10:]]) < share * losses[0][name], name
