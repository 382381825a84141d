"""What windows say of tokens, joined to what is said of those of the whole text; for texts see `nn/windows.py`."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from unmask.longtext.encoding import LongEncoding
from unmask.longtext.windows import Window


def farthest_from_cuts(windows: Sequence[Window], num_tokens: int) -> tuple[Tensor, Tensor]:
    """For each token of a text the window that knows most about it, and its place among the window's tokens.

    That is the window in which it stands farthest from an edge at which the text was cut; where the text itself begins
    or ends nothing was cut. The earlier of equals. Both are -1 for a token that no window holds.
    """
    depth = torch.full((num_tokens,), -1)
    owner, place = depth.clone(), depth.clone()
    for number, window in enumerate(windows):
        before = 0
        for start, end in window.ranges:
            count = torch.arange(end - start)
            left = count if start > 0 else torch.full_like(count, num_tokens)
            right = count.flip(0) if end < num_tokens else torch.full_like(count, num_tokens)
            found = torch.minimum(left, right)
            better = found > depth[start:end]
            depth[start:end][better] = found[better]
            owner[start:end][better] = number
            place[start:end][better] = before + count[better]
            before += end - start
    return owner, place


def join_tags(scores: Sequence[Tensor], encoding: LongEncoding, text: int = 0) -> tuple[Tensor, Tensor]:
    """Label scores of each window's tokens → those of each content token of the text (n, labels), and which were seen.

    A window's scores (its length, labels) have a row for every token, special ones included. A token that no window
    holds has zeros, and False in the second tensor (n,).
    """
    windows = encoding.windows
    check_rows(scores, encoding)
    owner, place = farthest_from_cuts([window.kept[text] for window in windows], encoding.num_tokens(text))
    lengths = torch.tensor([0, *(len(rows) for rows in scores[:-1])]).cumsum(0)
    first = lengths + torch.tensor([window.rows(text).start for window in windows])
    seen = owner >= 0
    device = scores[0].device
    rows = torch.cat(list(scores))[(first[owner[seen]] + place[seen]).to(device)]
    joined = rows.new_zeros(len(owner), rows.shape[1])
    joined[seen.to(device)] = rows
    return joined, seen


def check_rows(rows: Sequence[Tensor], encoding: LongEncoding) -> None:
    """ValueError unless there is one row for each token of each window."""
    given, needed = [len(row) for row in rows], [len(window) for window in encoding.windows]
    if given != needed:
        raise ValueError(f"the windows have {needed} tokens but {given} rows were given")
