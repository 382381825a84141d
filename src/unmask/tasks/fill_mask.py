"""A text with [MASK] in it → what the model would put there."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from unmask.data.batching import collate
from unmask.errors import TaskError
from unmask.models.bert import Bert, device_of
from unmask.nn.modes import evaluating
from unmask.text import Tokenizer


@dataclass(frozen=True)
class Guess:
    """One candidate for a masked place."""

    token: str
    id: int
    probability: float
    text: str  # the whole text with the candidate in its place, other masks still there


@torch.inference_mode()
def fill_mask(model: Bert, tokenizer: Tokenizer, text: str, *, top: int, max_length: int) -> list[list[Guess]]:
    """For each [MASK] of the text, in order, the `top` most probable tokens."""
    if "mlm" not in model.heads:
        raise TaskError(
            "this model cannot fill masks: it has no mlm head, which pre-training gives and fine-tuning or embedding "
            "models drop; load a pre-trained BERT with its masked-token head, such as bert-base-uncased"
        )
    if top < 1:
        raise TaskError(f"top must be at least 1, given {top}")
    mask = tokenizer.mask_id
    if mask is None:
        raise TaskError("this tokenizer has no mask token")
    encoding = tokenizer.encode(text)
    places = [row for row, id in enumerate(encoding.ids) if id == mask]
    if not places:
        raise TaskError(f"the text has no {tokenizer.token(mask)} to fill: {text[:60]!r}")
    if len(encoding) > max_length:
        raise TaskError(
            f"the text has {len(encoding)} tokens but the model reads {max_length}; give the part around the mask"
        )
    device = device_of(model)
    with evaluating(model):
        encoded = model(collate([encoding]).to(device))
        logits = model.masked_token_logits(encoded.sequence[torch.tensor(places, device=device)])
    best = logits.float().softmax(-1).topk(min(top, logits.shape[-1]))
    return [
        [
            _guess(tokenizer, text, encoding.offsets[place], id, probability)
            for id, probability in zip(ids, probabilities, strict=True)
        ]
        for place, ids, probabilities in zip(places, best.indices.tolist(), best.values.tolist(), strict=True)
    ]


def _guess(tokenizer: Tokenizer, text: str, span: tuple[int, int], id: int, probability: float) -> Guess:
    token = tokenizer.token(id)
    start, end = span
    before = text[:start]
    if token.startswith("##"):
        token_text, before = token[2:], before.rstrip(" ")
    else:
        token_text = token
    return Guess(token, id, probability, before + token_text + text[end:])
