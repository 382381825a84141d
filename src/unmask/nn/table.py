"""Tables of vectors."""

from __future__ import annotations

import torch
from torch import nn


def vector_table(rows: int, size: int) -> nn.Embedding:
    """torch's embedding with torch's first values, except on the meta device, which has no values.

    There torch would run them through its compiler all the same, whose import costs a second and 75 MB.
    """
    weight = torch.empty(rows, size)
    if not weight.is_meta:
        nn.init.normal_(weight)
    return nn.Embedding.from_pretrained(weight, freeze=False)
