"""Tables of positions made longer: the old rows stay, the new ones follow the published formula."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import transformers

from unmask.errors import SettingsError, TaskError
from unmask.models.assign import named_tensors
from unmask.models.bert import Bert
from unmask.models.folder import load_model, save_model
from unmask.models.init import assemble, build_model
from unmask.models.long_positions import extend_positions, hierarchical
from unmask.models.settings import BertSettings
from unmask.nn.batch import Batch

TABLE = "encoder.embeddings.positions.table.weight"
OLD = 7
SHORT = Batch.of([[1, 2, 3], [4, 5, 6, 7, 8, 9, 10], [11]])
LONG = Batch.of([list(range(1, 13)) * 2, [4, 5, 6]])


def build(**changes: object) -> Bert:
    sizes = {"vocab_size": 13, "hidden_size": 15, "num_heads": 3, "ffn_size": 17, "num_layers": 2, "max_length": OLD}
    heads = [{"kind": "mlm"}, {"kind": "nsp"}]
    model = build_model(BertSettings.parse(sizes | {"init_std": 0.3, "heads": heads} | changes), seed=3).eval()
    assert isinstance(model, Bert)
    return model


@pytest.mark.parametrize("alpha", [0.4, 0.2, 0.7])
def test_rows_follow_the_formula(alpha: float) -> None:
    """In the paper's words, counted from one: q_{(i-1)n+j} = α u_i + (1-α) u_j, and q_j = p_j for the first n."""
    p = torch.randn(OLD, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    q = hierarchical(p, OLD**2, alpha)
    u = [(p[i] - alpha * p[0]) / (1 - alpha) for i in range(OLD)]
    assert torch.equal(q[:OLD], p)
    for i in range(OLD):
        for j in range(OLD):
            torch.testing.assert_close(q[i * OLD + j], alpha * u[i] + (1 - alpha) * u[j])
    assert len({tuple(row) for row in q.tolist()}) == OLD**2
    assert torch.equal(hierarchical(p, 31, alpha), q[:31])


def test_short_texts_are_read_as_before_and_long_ones_are_read() -> None:
    model = build()
    before = {name: tensor.clone() for name, tensor in named_tensors(model).items()}
    longer = extend_positions(model, 30)
    assert longer.settings == model.settings.replace(max_length=30)
    assert torch.equal(longer(SHORT).sequence, model(SHORT).sequence)
    assert torch.equal(named_tensors(longer)[TABLE], hierarchical(before[TABLE], 30))
    rows = longer(LONG).sequence
    assert torch.isfinite(rows).all()
    assert not torch.allclose(rows[0], rows[12], atol=1e-3)  # the same token in another place
    assert all(torch.equal(tensor, before[name]) for name, tensor in named_tensors(model).items())
    with torch.device("meta"):
        fresh = assemble(longer.settings)
    shapes = {name: tensor.shape for name, tensor in named_tensors(fresh).items()}
    assert {name: tensor.shape for name, tensor in named_tensors(longer).items()} == shapes


def test_the_copy_shares_no_memory_keeps_its_mode_and_learns() -> None:
    model = build().train()
    model.encoder.embeddings.token.weight.requires_grad_(False)
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    longer = extend_positions(model, OLD**2)
    assert torch.equal(torch.rand(1), expected)  # nothing was drawn
    assert longer.training
    assert all(module.training for module in longer.modules())
    assert not longer.encoder.embeddings.token.weight.requires_grad
    longer(LONG).sequence.square().sum().backward()
    table = named_tensors(longer)[TABLE]
    assert table.grad is not None
    assert table.grad[:24].abs().sum(1).min() > 0
    with torch.no_grad():
        for parameter in longer.parameters():
            parameter.zero_()
    assert named_tensors(model)[TABLE].abs().sum() > 0


def test_the_folder_loads_again_here_and_in_transformers(tmp_path: Path) -> None:
    longer = extend_positions(build(), 30)
    save_model(longer, tmp_path / "model")
    loaded, report = load_model(tmp_path / "model")
    assert isinstance(loaded, Bert)
    assert not report.new
    assert loaded.settings.max_length == 30
    expected = longer(LONG).sequence
    assert torch.equal(loaded.eval()(LONG).sequence, expected)
    theirs, info = transformers.BertForPreTraining.from_pretrained(
        tmp_path / "model", output_loading_info=True, dtype=torch.float32
    )
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    with torch.inference_mode():
        rows = theirs.eval().bert(input_ids=LONG.ids[None, :24]).last_hidden_state[0]
    torch.testing.assert_close(rows, expected[:24], rtol=0, atol=1e-5)


@pytest.mark.parametrize("max_length", [0, 3, OLD, OLD**2 + 1])
def test_lengths_that_make_no_sense_are_refused(max_length: int) -> None:
    with pytest.raises(SettingsError, match="7 positions can be extended to 8 up to 49"):
        extend_positions(build(), max_length)


@pytest.mark.parametrize("alpha", [-0.1, 0.0, 0.5, 1.0, float("nan")])
def test_an_alpha_under_which_positions_are_lost_is_refused(alpha: float) -> None:
    with pytest.raises(SettingsError, match="alpha"):
        extend_positions(build(), 30, alpha)


def test_positions_without_a_table_are_refused() -> None:
    with pytest.raises(TaskError, match="positions are alibi"):
        extend_positions(build(positions={"kind": "alibi"}), 30)
