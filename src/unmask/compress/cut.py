"""The cuts themselves: parts that matter least really go, so that tensors are smaller."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from unmask.compress.importance import importance, least_heads, least_layers, least_neurons
from unmask.compress.lessons import Lessons, lessons, sample
from unmask.compress.settings import Steps
from unmask.errors import SettingsError
from unmask.models.bert import Bert
from unmask.models.fetch import fetch
from unmask.models.folder import load_model
from unmask.models.settings import reads_pooler
from unmask.models.surgery import keep_tokens, remove_heads, remove_layers, remove_neurons, remove_pooler
from unmask.tasks.usage import Usage
from unmask.text.tokenizer import Tokenizer

#: Examples that importance is taken from.
LOOKED_AT = 1024


@dataclass(frozen=True)
class Pieces:
    """A model in the making."""

    model: Bert
    tokenizer: Tokenizer
    #: The number that each token had in the model it all began with; None: the same.
    kept: Tensor | None = None


def cut(
    pieces: Pieces,
    steps: Steps,
    usage: Usage,
    examples: Sequence[Any],
    texts: Sequence[str],
    tell: Callable[[str], None] = lambda _: None,
) -> Pieces:
    """A copy without what the steps leave out. `examples` say what matters, `texts` which tokens are used.

    What learns again afterwards never shares its weights with what was given, which may be its teacher.
    """
    given = pieces.model
    if steps.student is not None:
        pieces = Pieces(other_student(pieces, steps.student), pieces.tokenizer, pieces.kept)
    if steps.vocab:
        pieces = fewer_tokens(pieces, texts, steps.vocab_size)
        tell(f"{pieces.tokenizer.vocab_size:,} tokens stay")
    model = pieces.model
    if model.encoder.pooler is not None and not any(reads_pooler(head) for head in model.settings.heads):
        model = remove_pooler(model)
    if steps.removes:
        learned = lessons(model, pieces.tokenizer, usage, sample(examples, LOOKED_AT))
        model = _fewer_parts(model, steps, learned, tell)
    if steps.magnitude is not None:
        model = smallest_zeroed(model, steps.magnitude)
    if model is given and steps.recovery != "none":
        model = copy.deepcopy(model)
    return Pieces(model, pieces.tokenizer, pieces.kept)


def other_student(pieces: Pieces, name: str) -> Bert:
    """Another encoder with a new head of the same kind."""
    folder = fetch(name)
    if Tokenizer.from_folder(folder).vocab != pieces.tokenizer.vocab:
        raise SettingsError(f"student: {name} reads other tokens than the model it is to learn from")
    student, _ = load_model(folder, heads=pieces.model.settings.heads)
    if not isinstance(student, Bert):
        raise SettingsError(f"student: {name} is a {student.settings.model} model, and an encoder is needed")
    if student.settings.num_layers > pieces.model.settings.num_layers:
        raise SettingsError(f"student: {name} has more layers than the model it is to learn from")
    return student


def fewer_tokens(pieces: Pieces, texts: Sequence[str], size: int | None) -> Pieces:
    """Only tokens that the texts have, the most frequent first; places that are left go to the vocabulary's first ones.

    Special tokens and single letters stay in any case, so every word can still be written. Where no size is given, at
    least half of the vocabulary stays: texts to come have words that these do not, and measuring would not show it.
    """
    tokenizer = pieces.tokenizer
    used: Counter[int] = Counter()
    for start in range(0, len(texts), 4096):
        for encoding in tokenizer.encode_batch(list(texts[start : start + 4096])):
            used.update(encoding.ids)
    needed = tokenizer.indispensable
    ranked = [
        number for number, _ in sorted(used.items(), key=lambda item: (-item[1], item[0])) if number not in needed
    ]
    if size is None:
        size = max(len(needed) + len(ranked), tokenizer.vocab_size // 2)
    if size < len(needed):
        raise SettingsError(
            f"vocab_size: {size:,} tokens are too few; {len(needed):,} are special or single letters and must stay"
        )
    ranked += [number for number in range(tokenizer.vocab_size) if number not in needed and number not in used]
    ids = sorted(needed | set(ranked[: size - len(needed)]))
    kept = torch.tensor(ids) if pieces.kept is None else pieces.kept[ids]
    return Pieces(keep_tokens(pieces.model, ids), tokenizer.with_only(ids), kept)


def _fewer_parts(model: Bert, steps: Steps, learned: Lessons, tell: Callable[[str], None]) -> Bert:
    cut_model: Any = model
    depth = model.settings.num_layers
    if steps.layers is not None:
        if steps.layers > depth:
            raise SettingsError(f"layers: {steps.layers} cannot stay, the model has {depth}")
        if steps.layers < depth:
            tell("which layers are missed least?")
            batches = list(learned.batches(LOOKED_AT // 2))
            gone = least_layers(cut_model, learned, batches, depth - steps.layers)
            tell(f"layers that go: {', '.join(str(layer + 1) for layer in gone)} of {depth}")
            cut_model = remove_layers(cut_model, gone)
    if steps.heads is None and steps.neurons is None:
        return cut_model
    tell("what do heads and neurons matter?")
    found = importance(cut_model, learned, learned.batches(LOOKED_AT))
    if steps.heads is not None:
        total = sum(map(len, found.heads))
        heads = least_heads(found.heads, total - max(1, round(steps.heads * total)))
        cut_model = remove_heads(cut_model, heads)
        tell(f"heads that stay, by layer: {', '.join(str(shape.num_heads) for shape in cut_model.settings.shapes)}")
    if steps.neurons is not None:
        cut_model = remove_neurons(cut_model, least_neurons(found.neurons, steps.neurons))
    return cut_model


def smallest_zeroed(model: Bert, share: float) -> Bert:
    """A copy whose matrices in the blocks keep a share of their numbers, the largest; the others are zero.

    For comparison: zeros take as much room and as much time as other numbers, as long as nobody stores and multiplies
    them in a special way. At half of them hardly anybody does.
    """
    zeroed: Any = remove_layers(model, [])
    with torch.no_grad():
        for weight in zeroed.encoder.stack.parameters():
            if weight.dim() == 2:
                least = weight.abs().flatten().kthvalue(max(1, round((1 - share) * weight.numel()))).values
                weight.masked_fill_(weight.abs() <= least, 0.0)
    return zeroed
