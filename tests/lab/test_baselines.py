"""The continuous bag of words against a loop over neighbours."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from unmask.lab.baselines import Cbow
from unmask.nn.batch import Batch
from unmask.nn.layout import Layout

V, H = 13, 5
IDS = [[1, 2, 3], [4, 5, 6, 7, 8, 9, 10], [11], [1, 3, 5, 7, 9]]


def model(window: int) -> Cbow:
    torch.manual_seed(19)
    return Cbow(V, H, window)


def naive(cbow: Cbow, ids: list[int]) -> Tensor:
    rows = []
    for place in range(len(ids)):
        near = [
            cbow.embedding.weight[token]
            for other, token in enumerate(ids)
            if other != place and abs(other - place) <= cbow.window
        ]
        mean = sum(near, torch.zeros(H)) / max(len(near), 1)
        rows.append(cbow.output.weight @ mean)
    return torch.stack(rows)


@pytest.mark.parametrize("window", [1, 2, 5, 100])
def test_each_token_sees_the_mean_of_its_neighbours(window: int) -> None:
    cbow = model(window)
    logits = cbow(Batch.of(IDS))
    assert logits.shape == (16, V)
    torch.testing.assert_close(logits, torch.cat([naive(cbow, ids) for ids in IDS]), rtol=0, atol=1e-5)


def test_padding_cannot_leak() -> None:
    cbow, batch = model(2), Batch.of(IDS)
    layout = Layout(batch.layout.lengths, 11)
    ids = torch.full((4, 11), 12)
    ids[layout.key_mask(ids.device)] = batch.ids
    padded = Batch(ids.flatten(), torch.zeros(44, dtype=torch.long), layout)
    rows = cbow(padded)[layout.token_rows(ids.device)]
    torch.testing.assert_close(rows, cbow(batch), rtol=0, atol=1e-5)


def test_a_token_alone_is_guessed_from_nothing() -> None:
    assert (model(3)(Batch.of([[11]])) == 0).all()


def test_the_token_itself_is_not_seen() -> None:
    cbow = model(2)
    one, two = cbow(Batch.of([[1, 2, 3, 4, 5]])), cbow(Batch.of([[1, 2, 9, 4, 5]]))
    torch.testing.assert_close(one[2], two[2], rtol=0, atol=1e-6)
    assert not torch.allclose(one[1], two[1])


def test_a_window_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 1, given 0"):
        Cbow(V, H, 0)
