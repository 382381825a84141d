from __future__ import annotations

import pytest
import torch
from torch import nn

from unmask.nn.modes import evaluating


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
