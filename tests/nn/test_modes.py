from __future__ import annotations

import pytest
import torch
from torch import nn

from unmask.nn.modes import evaluating, no_denormals


def test_every_module_comes_back_to_its_own_mode() -> None:
    model = nn.Sequential(nn.Dropout(0.5), nn.Linear(3, 5), nn.Sequential(nn.Dropout(0.5)))
    model.train()
    model[2].eval()
    x = torch.ones(7, 3)

    def fail() -> None:
        with evaluating(model):
            assert torch.equal(model(x), model(x))
            raise RuntimeError("on purpose")

    with pytest.raises(RuntimeError):
        fail()
    assert [module.training for module in model.modules()] == [True, True, True, False, False]


def test_numbers_too_small_are_nothing_within_the_block_only() -> None:
    tiny = torch.tensor(1e-39)
    with no_denormals():
        if tiny * 1.0:
            pytest.skip("this CPU keeps such numbers")
        with no_denormals():
            pass
        assert tiny * 1.0 == 0, "an inner block leaves what the outer one set"
    assert tiny * 1.0 != 0
