"""GPT: the past never moves, and steps equal the full pass."""

from __future__ import annotations

import pytest
import torch

from unmask.errors import UserError
from unmask.models.bert import num_parameters
from unmask.models.gpt import Gpt, GptState
from unmask.models.init import assemble, build_model
from unmask.models.settings import GptSettings
from unmask.nn.batch import Batch

POSITIONS = ["none", "learned", "sinusoidal", "complex", "rotary", "alibi", "buckets", "shaw", "transformer_xl"]
IDS = [[1, 2, 3], [4, 5, 6, 7, 8, 9, 10], [11], [1, 3, 5, 7, 9]]


def gpt(**changes: object) -> Gpt:
    sizes = {"vocab_size": 13, "hidden_size": 12, "num_heads": 3, "ffn_size": 17, "num_layers": 2, "max_length": 11}
    model = build_model(GptSettings.parse(sizes | {"init_std": 0.3} | changes), seed=11)
    assert isinstance(model, Gpt)
    return model.eval()


@pytest.mark.parametrize("kind", POSITIONS)
def test_a_future_token_never_moves_the_past(kind: str) -> None:
    model, place = gpt(positions={"kind": kind}), 4
    other = [list(ids) for ids in IDS]
    other[1][place] = 2
    batch = Batch.of(IDS)
    before, after = (batch.layout.split(model(Batch.of(ids))) for ids in (IDS, other))
    moved = (before[1] - after[1]).abs().amax(-1)
    assert (moved[:place] == 0).all()
    assert (moved[place:] > 1e-5).all()
    for number in (0, 2, 3):
        assert torch.equal(before[number], after[number])


@pytest.mark.parametrize("score", ["scaled_dot", "normed_dot", "additive"])
@pytest.mark.parametrize("kind", POSITIONS)
def test_steps_equal_the_full_pass(kind: str, score: str) -> None:
    model = gpt(positions={"kind": kind}, score=score)
    ids = torch.tensor([[1, 5, 2, 7, 3, 11, 12], [8, 8, 0, 1, 2, 3, 4], [3, 1, 4, 1, 5, 9, 2]])
    full = model(Batch.of(ids.tolist())).view(3, 7, 13)
    state = model.start()
    for t in range(7):
        logits, state = model.step(ids[:, t], state)
        torch.testing.assert_close(logits, full[:, t], rtol=0, atol=1e-5)
        assert state.position == t + 1


def test_steps_go_on_for_chosen_sequences() -> None:
    model, chosen = gpt(), torch.tensor([2, 0])
    ids = torch.tensor([[1, 5, 2, 7], [8, 8, 0, 1], [3, 1, 4, 1]])
    full = model(Batch.of(ids.tolist())).view(3, 4, 13)
    state = model.start()
    for t in range(2):
        _, state = model.step(ids[:, t], state)
    state = GptState([past.select(chosen) for past in state.past], state.position)
    for t in (2, 3):
        logits, state = model.step(ids[chosen, t], state)
        torch.testing.assert_close(logits, full[chosen, t], rtol=0, atol=1e-5)


def test_steps_beyond_the_table_are_refused_with_both_numbers() -> None:
    model = gpt(max_length=2)
    state = model.start()
    for _ in range(2):
        _, state = model.step(torch.tensor([1]), state)
    with pytest.raises(UserError, match="3 tokens .* 2 rows"):
        model.step(torch.tensor([1]), state)


def test_ragged_equals_padded() -> None:
    model, batch = gpt(), Batch.of(IDS)
    padded = batch.padded(12)
    rows = model(padded)[padded.layout.token_rows(torch.device("cpu"))]
    torch.testing.assert_close(rows, model(batch), rtol=0, atol=1e-5)


def test_the_output_is_the_embedding_unless_untied() -> None:
    tied, untied = gpt(), gpt(tie_output=False)
    assert tied.output is None
    assert num_parameters(untied) == num_parameters(tied) + 13 * 12
    hidden = torch.randn(3, 12)
    torch.testing.assert_close(tied._logits(hidden), hidden @ tied.embeddings.token.weight.T)


def test_gpt2_small_to_the_unit() -> None:
    settings = GptSettings(vocab_size=50257, hidden_size=768, num_heads=12, ffn_size=3072, num_layers=12)
    with torch.device("meta"):
        assert num_parameters(assemble(settings)) == 124_439_808


def test_buckets_are_spent_on_the_past_only() -> None:
    for block in gpt(positions={"kind": "buckets"}).stack.blocks:
        assert block.self_attention.attend.positions.causal


def test_a_state_can_be_thinned_out() -> None:
    model = gpt()
    ids = torch.tensor([[1, 5, 2], [8, 8, 0], [3, 1, 4]])
    full = model(Batch.of(ids.tolist())).view(3, 3, -1)
    state = model.start()
    keep = torch.tensor([2, 0])
    state = state.select(keep)  # nothing is there yet
    for place in range(3):
        logits, state = model.step(ids[keep, place], state)
        torch.testing.assert_close(logits, full[keep, place], atol=1e-5, rtol=0)
    logits, _ = model.step(torch.tensor([7]), state.select(torch.tensor([1])))
    alone = model(Batch.of([[*ids[0].tolist(), 7]]))[-1]
    torch.testing.assert_close(logits[0], alone, atol=1e-5, rtol=0)
