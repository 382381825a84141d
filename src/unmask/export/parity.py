"""Does the exported model say what ours says? Texts of many lengths, alone and padded, through both."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from unmask.data.batching import collate
from unmask.errors import TaskError
from unmask.export.dense import INPUTS, VECTORS, DenseBert
from unmask.models.bert import Bert
from unmask.nn.batch import Batch
from unmask.nn.heads import pool
from unmask.nn.modes import evaluating
from unmask.text.tokenizer import Tokenizer

#: Largest difference that rounding explains, for outputs of size 1 and above in proportion.
TOLERANCE = 1e-4
#: Of int8: the largest part of an output's length that may be difference. What is unrelated differs by 1 and more.
INT8_TOLERANCE = 0.3

Numbers = npt.NDArray[np.float32]
#: Our numbers and theirs, of one shape.
Pair = tuple[Numbers, Numbers]
#: Ids, mask and segments (B, S) → outputs by name. Those not listed are not compared.
Runner = Callable[[Any, Any, Any], dict[str, Numbers]]

_SHORT = ("", "No.", "The cat sat on the mat.", "北京是中国的首都，有两千多万人口。", "a b c 1 2 3 — 😀")
_LONG = (
    "It was a bright cold day in spring, and the clocks of the town were striking one after another. "
    "昨天下午，我们在图书馆里读了一本很旧的书。 "
)


@dataclass(frozen=True)
class Parity:
    """What a comparison found."""

    largest: float  # the largest difference of any number
    relative: float  # of all numbers of an output together, |theirs - ours| / |ours|; the worst of the outputs
    size: float  # the largest of our numbers
    rows: int

    def __str__(self) -> str:
        return f"largest difference {self.largest:.2g}, {self.relative:.2g} of the length of all outputs"


def text_batches(tokenizer: Tokenizer, max_length: int, *, pairs: bool = False) -> list[Batch]:
    """One text alone, some of different lengths together, one of the full length beside a short one; and pairs."""
    texts = [*_SHORT, _LONG, _LONG * (2 + max_length // 20)]
    encodings = tokenizer.encode_batch(texts, max_length=max_length)
    groups = [encodings[2:3], encodings[:-1], [encodings[-1], encodings[1]]]
    if pairs and max_length > tokenizer.num_special_tokens(pair=True):
        seconds = [_LONG[: 5 + 11 * number] for number in range(len(texts))]
        groups.append(tokenizer.encode_batch(texts, seconds, max_length=max_length))
    kept = ([encoding for encoding in group if len(encoding)] for group in groups)
    return [collate(group) for group in kept if group]


def random_batches(vocabulary: int, max_length: int) -> list[Batch]:
    """Ids that mean nothing, where there is no tokenizer: one row alone, and some of different lengths."""
    generator = torch.Generator().manual_seed(0)
    shapes = ((5,), (30, 28, 1, 13))
    return [
        Batch.of([torch.randint(0, vocabulary, (min(n, max_length),), generator=generator).tolist() for n in lengths])
        for lengths in shapes
    ]


def compare(dense: DenseBert, run: Runner, batches: Iterable[Batch], *, padding: int = 0) -> Parity:
    """The model itself, on ragged batches, against whatever answers to the same batches padded."""
    pairs: dict[str, list[Pair]] = {}
    for batch in batches:
        expected, found = _said(dense, batch), run(*rectangle(batch, padding))
        for name in (name for name in dense.outputs if name in found):
            ours = expected[name].numpy()
            theirs = _rows(found[name], batch.layout.lengths, per_token=dense.per_token(name))
            if theirs.shape != ours.shape:
                raise TaskError(f"the exported model gives {name} of shape {theirs.shape} instead of {ours.shape}")
            pairs.setdefault(name, []).append((ours, theirs))
    return parity_of(pairs)


def parity_of(pairs: Mapping[str, Sequence[Pair]]) -> Parity:
    """How far their numbers are from ours; each output has its own name, and several batches."""
    gaps = {
        name: [np.where(np.isfinite(theirs), theirs - ours, np.inf) for ours, theirs in some]
        for name, some in pairs.items()
    }
    sizes = {name: [ours for ours, _ in some] for name, some in pairs.items()}
    relative = max(_length(gaps[name]) / max(_length(sizes[name]), 1e-9) for name in gaps)
    largest, size = (max(float(np.abs(one).max()) for all in kept.values() for one in all) for kept in (gaps, sizes))
    return Parity(largest, relative, size, sum(len(one) for all in gaps.values() for one in all))


def demand(dense: DenseBert, run: Runner, batches: Sequence[Batch], *, padding: int = 0, int8: bool = False) -> Parity:
    """The same; TaskError if the difference is more than rounding (int8: more than its rounding) explains."""
    return accepted(compare(dense, run, batches, padding=padding), int8=int8)


def accepted(found: Parity, *, int8: bool = False) -> Parity:
    """What was found, if it may be written; otherwise TaskError."""
    same = found.relative <= INT8_TOLERANCE if int8 else found.largest <= TOLERANCE * max(1.0, found.size)
    if not same:
        raise TaskError(f"the exported model says something else than the model ({found}); it was not written")
    return found


def rectangle(batch: Batch, padding: int = 0) -> tuple[npt.NDArray[np.int64], ...]:
    """A ragged batch as arrays of (B, S): ids, mask, segments."""
    layout = batch.layout
    ids, segments = layout.pad(batch.ids, padding), layout.pad(batch.segments)
    return ids.numpy(), layout.key_mask(ids.device).long().numpy(), segments.numpy()


def named(given: Sequence[Any]) -> dict[str, Any]:
    """Arrays under the names of the inputs."""
    return dict(zip(INPUTS, given, strict=True))


@torch.inference_mode()
def _said(dense: DenseBert, batch: Batch) -> dict[str, Tensor]:
    """What our own model, which knows no padding, says: a row for each token, or for each text."""
    model: Bert = dense.model
    with evaluating(model):
        encoded = model(batch)
        match dense.head:
            case "classify":
                return {"logits": model.class_logits(encoded)}
            case "tag":
                return {"logits": model.tag_logits(encoded)}
            case "qa":
                return dict(zip(dense.outputs, model.span_logits(encoded).unbind(-1), strict=True))
            case "mlm":
                return {"logits": model.masked_token_logits(encoded.sequence)}
    said = {VECTORS: encoded.sequence}
    if dense.sentence is not None:
        rows = pool(encoded.sequence, encoded.layout, dense.sentence.pooling)
        said[dense.outputs[1]] = F.normalize(rows, dim=-1) if dense.sentence.normalise else rows
    return said


def _rows(found: Numbers, lengths: Sequence[int], *, per_token: bool) -> Numbers:
    if not per_token:
        return found
    return np.concatenate([row[:length] for row, length in zip(found, lengths, strict=True)])


def _length(numbers: Sequence[Numbers]) -> float:
    return float(np.sqrt(sum(float((one.astype(np.float64) ** 2).sum()) for one in numbers)))
