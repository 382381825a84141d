from __future__ import annotations

import pytest
import torch

from unmask.bundle import Bundle
from unmask.errors import TaskError
from unmask.models.folder import LoadReport
from unmask.models.init import build_model
from unmask.models.settings import BertSettings, MaskedTokenSettings
from unmask.text import Tokenizer

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "北", "京", "市", "paris", "##ian", "is"]


def bundle(*heads: MaskedTokenSettings) -> Bundle:
    settings = BertSettings(
        vocab_size=len(WORDS), num_layers=1, hidden_size=15, num_heads=3, ffn_size=7, max_length=9, heads=heads
    )
    return Bundle(build_model(settings).eval(), Tokenizer.from_vocab(WORDS), LoadReport(0, 0))


def favouring(token: str) -> Bundle:
    """A model that always answers the same."""
    chosen = bundle(MaskedTokenSettings())
    with torch.no_grad():
        chosen.model.heads["mlm"].bias[WORDS.index(token)] = 50.0
    return chosen


def test_the_best_token_stands_in_its_place() -> None:
    found = favouring("京").fill_mask("北[MASK]市 is [MASK]", top=3)
    assert [guesses[0].token for guesses in found] == ["京", "京"]
    assert found[0][0].text == "北京市 is [MASK]"
    assert found[1][0].text == "北[MASK]市 is 京"
    assert found[0][0].probability > 0.99
    assert len(found[0]) == 3
    assert [guess.probability for guess in found[0]] == sorted((g.probability for g in found[0]), reverse=True)


def test_a_piece_of_a_word_joins_the_word_before_it() -> None:
    found = favouring("##ian").fill_mask("paris [MASK] is", top=1)
    assert found[0][0].text == "parisian is"


def test_probabilities_of_all_tokens_sum_to_one() -> None:
    found = bundle(MaskedTokenSettings()).fill_mask("[MASK]", top=100)
    assert len(found[0]) == len(WORDS)
    assert sum(guess.probability for guess in found[0]) == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("text", "words"),
    [("paris is", "no .MASK. to fill"), ("paris " * 9 + "[MASK]", "12 tokens but the model reads 9")],
)
def test_what_cannot_be_filled_is_said(text: str, words: str) -> None:
    with pytest.raises(TaskError, match=words):
        bundle(MaskedTokenSettings()).fill_mask(text)


def test_a_model_without_the_head_says_so() -> None:
    with pytest.raises(TaskError, match="no mlm head"):
        bundle().fill_mask("paris is [MASK]")
    with pytest.raises(TaskError, match="top must be at least 1"):
        bundle(MaskedTokenSettings()).fill_mask("[MASK]", top=0)


def test_a_head_that_was_never_trained_does_not_guess() -> None:
    fresh = bundle(MaskedTokenSettings())
    fresh.report = LoadReport(10, 10, new=("heads.mlm.bias",))
    with pytest.raises(TaskError, match="has not been trained"):
        fresh.fill_mask("[MASK]")
