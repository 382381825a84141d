"""The best stretches of a context that answer a question, over all windows it was read in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from unmask.longtext.encoding import LongEncoding
from unmask.longtext.join import check_rows

_CONTEXT = 1  # a question is the first text of its pair, the context the second
_NEVER = float("-inf")


class Span(NamedTuple):
    """A candidate: `context[start:end]`, and the sum of its first token's and its last token's logits."""

    start: int
    end: int
    score: float


class Answers(NamedTuple):
    """Candidates, best first, and how well "there is no answer" scores."""

    spans: list[Span]
    null_score: float


def best_spans(logits: Sequence[Tensor], encoding: LongEncoding, max_answer: int = 30, top: int = 20) -> Answers:
    """The `top` best stretches of at most `max_answer` tokens; `logits` has (length, 2) for each window.

    Every stretch inside a window is a candidate, none is passed over. One that stands in several windows counts once,
    with its best score. A text has no answer only if none of its windows has one, so the null score, that of [CLS], is
    the least among the windows.
    """
    if max_answer < 1 or top < 1:
        raise ValueError(f"max_answer and top must be at least 1, given {max_answer} and {top}")
    check_rows(logits, encoding)
    logits = [scores.detach().float().cpu() for scores in logits]
    table = _span_table(logits, encoding, max_answer)
    null = min(float(scores[0].sum()) for scores in logits)
    offsets = encoding.offsets(_CONTEXT)
    spans: dict[tuple[int, int], float] = {}
    flat, count = table.flatten(), top
    while True:
        values, places = flat.topk(min(count, len(flat)))
        for value, place in zip(values.tolist(), places.tolist(), strict=True):
            first, extra = divmod(place, max_answer)
            if value > _NEVER and len(spans) < top:
                spans.setdefault((offsets[first][0], offsets[first + extra][1]), value)
        # Different tokens can be the same characters, as the bytes of one are: look further until enough are found.
        if len(spans) == top or count >= len(flat) or values[-1] == _NEVER:
            return Answers([Span(*place, score) for place, score in spans.items()], null)
        count *= 2


def _span_table(logits: Sequence[Tensor], encoding: LongEncoding, max_answer: int) -> Tensor:
    """(context tokens, max_answer): the best score of the span from a token on, by the number of tokens added to it."""
    table = torch.full((encoding.num_tokens(_CONTEXT), max_answer), _NEVER)
    for window, scores in zip(encoding.windows, logits, strict=True):
        rows = window.rows(_CONTEXT)
        starts, ends = scores[rows.start : rows.stop].unbind(1)
        done = 0
        for first, after in window.kept[_CONTEXT].ranges:
            part = slice(done, done + after - first)
            # Ends beyond the range are impossible; row i of the unfolded ends has those of tokens i, i+1, …
            later = F.pad(ends[part], (0, max_answer), value=_NEVER).unfold(0, max_answer, 1)[:-1]
            found = starts[part, None] + later
            table[first:after] = torch.maximum(table[first:after], found)
            done += after - first
    return table
