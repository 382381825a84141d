"""Masks written out: True means may attend."""

from __future__ import annotations

import torch

from unmask.nn.masks import CAUSAL, EVERYTHING, Mask, packed_mask, padding_mask

CPU = torch.device("cpu")


def written(*lines: str) -> torch.Tensor:
    return torch.tensor([[letter == "x" for letter in line] for line in lines])


def test_everything_is_no_mask_at_all() -> None:
    assert EVERYTHING.dense(3, 5, CPU) is None


def test_causal_square() -> None:
    assert torch.equal(CAUSAL.dense(3, 3, CPU), written("x..", "xx.", "xxx"))


def test_causal_with_kept_keys_puts_the_last_query_at_the_last_key() -> None:
    assert torch.equal(CAUSAL.dense(2, 5, CPU), written("xxxx.", "xxxxx"))


def test_padding_mask() -> None:
    assert torch.equal(padding_mask([2, 3]).allowed[:, 0, 0], written("xx.", "xxx"))
    assert torch.equal(padding_mask(torch.tensor([2, 3]), 5).allowed[:, 0, 0], written("xx...", "xxx.."))
    assert padding_mask([2, 3]).allowed.shape == (2, 1, 1, 3)


def test_packed_mask() -> None:
    mask = packed_mask(torch.tensor([[0, 0, 1], [4, 3, 4]]))
    assert mask.allowed.shape == (2, 1, 3, 3)
    assert torch.equal(mask.allowed[0, 0], written("xx.", "xx.", "..x"))
    assert torch.equal(mask.allowed[1, 0], written("x.x", ".x.", "x.x"))


def test_and_is_allowed_by_both() -> None:
    padding = padding_mask([2, 3])
    both = (CAUSAL & padding).dense(3, 3, CPU)
    assert torch.equal(both[0, 0], written("x..", "xx.", "xx."))
    assert torch.equal(both[1, 0], written("x..", "xx.", "xxx"))
    assert torch.equal(both, (padding & CAUSAL).dense(3, 3, CPU))
    left, right = Mask(written("xx.", "x.x")), Mask(written("x.x", "xxx"))
    assert torch.equal((left & right).allowed, written("x..", "x.x"))
    assert (EVERYTHING & EVERYTHING) == EVERYTHING
    assert (EVERYTHING & CAUSAL) == CAUSAL
    assert not (padding & padding).causal
