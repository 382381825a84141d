"""Cross-entropy for labels that are noisy or unbalanced: label smoothing and class weights, as a sum and a count."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from unmask.config import Settings
from unmask.errors import SettingsError

#: A target that counts for nothing, as in torch.
IGNORED = -100


class LossSettings(Settings):
    """How wrong answers are counted."""

    smoothing: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.0  # how much of the answer is spread over all labels
    #: "auto" weighs labels by how rare they are; a table gives each label its weight.
    class_weights: Literal["none", "auto"] | dict[str, Annotated[float, Field(gt=0.0)]] = "none"


def class_weights(settings: LossSettings, labels: Sequence[str], counts: Sequence[int]) -> Tensor | None:
    """The weight of each label, in the order of `labels`; None where all weigh the same.

    `counts` says how often each label occurs in the training data. "auto" gives N / (C · count), where C labels occur
    N times in all: rare labels weigh more, and the mean weight of an example is 1. A label that never occurs has no
    frequency to go by and weighs 1.
    """
    chosen = settings.class_weights
    if chosen == "none":
        return None
    if isinstance(chosen, dict):
        return _from_table(chosen, labels)
    occurring = sum(count > 0 for count in counts)
    total = sum(counts)
    by_label = zip(labels, counts, strict=True)
    return torch.tensor([total / (occurring * count) if count else 1.0 for _, count in by_label])


def cross_entropy(logits: Tensor, targets: Tensor, smoothing: float = 0.0, weights: Tensor | None = None) -> Tensor:
    """Cross-entropy of rows (R, C) against labels (R,), SUMMED over rows.

    Divided by `weight_of` the same targets it is torch's weighted mean. Sums and counts of micro-batches may be added
    before they are divided, so the split into micro-batches does not matter.
    """
    if logits.dtype in (torch.float16, torch.bfloat16):
        logits = logits.float()  # a sum over many rows needs more digits than these have
    weights = None if weights is None else weights.to(logits)
    return F.cross_entropy(logits, targets, weights, ignore_index=IGNORED, reduction="sum", label_smoothing=smoothing)


def weight_of(targets: Tensor, weights: Tensor | None = None) -> float:
    """What a sum of `cross_entropy` is to be divided by: how many targets there are, or their weights together."""
    counted = targets[targets != IGNORED]
    if weights is None:
        return float(counted.numel())
    return float(weights.to(counted.device)[counted].sum(dtype=torch.float64))


def _from_table(table: Mapping[str, float], labels: Sequence[str]) -> Tensor:
    missing = [label for label in labels if label not in table]
    unknown = [label for label in table if label not in labels]
    if missing or unknown:
        said = f"has no weight for {_some(missing)}" if missing else f"names {_some(unknown)}, which no example has"
        raise SettingsError(
            f"class_weights {said}; give a weight for each of the labels {_some(labels)} and no other, or use 'auto'"
        )
    return torch.tensor([table[label] for label in labels])


def _some(labels: Sequence[str]) -> str:
    """Labels as a message may show them: the first few."""
    return ", ".join(labels[:8]) + (f" and {len(labels) - 8} more" if len(labels) > 8 else "")
