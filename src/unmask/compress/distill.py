"""Distillation: a student learns what a teacher says of the same texts, not only what their labels say.

Losses, each a sum over items that the loop divides by their number:

    loss       the task's own, from the labels
    soft       T² · KL(teacher ‖ student) of answers softened by the temperature T (Hinton et al. 2015); for several
               labels the cross-entropy with the teacher's probabilities, for numbers the squared distance
    hidden     the mean squared distance of hidden states after each layer and the teacher's layer it is mapped to
    attention  the squared distance of attention maps (Jiao et al. 2020), each the mean over its heads: students have
               fewer
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unmask.compress.lessons import Lessons
from unmask.compress.settings import RecoverySettings
from unmask.models.bert import Bert
from unmask.nn.modes import evaluating
from unmask.nn.record import record_attention
from unmask.train.task import Source


def soft_loss(student: Tensor, teacher: Tensor, problem: str, temperature: float = 1.0) -> Tensor:
    """How far a student's logits (rows, classes) are from the teacher's, summed over rows."""
    student, teacher = student.float(), teacher.float()
    if problem == "regression":
        return F.mse_loss(student, teacher, reduction="sum")
    if problem == "multi":
        return F.binary_cross_entropy_with_logits(student, teacher.sigmoid(), reduction="sum") / student.shape[-1]
    log_q, log_p = (student / temperature).log_softmax(-1), (teacher / temperature).log_softmax(-1)
    return temperature**2 * F.kl_div(log_q, log_p, reduction="sum", log_target=True)


def layer_mapping(student: int, teacher: int, how: str = "uniform") -> list[int]:
    """The teacher's layer that each of the student's layers looks at; the student has at most as many."""
    if student > teacher:
        raise ValueError(f"a student of {student} layers cannot look at a teacher of {teacher}")
    if how == "first":
        return list(range(student))
    if how == "last":
        return list(range(teacher - student, teacher))
    return [((layer + 1) * teacher) // student - 1 for layer in range(student)]


def hidden_loss(student: list[Tensor], teacher: list[Tensor]) -> Tensor:
    """The mean squared distance of rows (R, H) of mapped layers, summed over rows, mean over layers."""
    found = [
        F.mse_loss(one.float(), two.float(), reduction="sum") / one.shape[-1] for one, two in _pairs(student, teacher)
    ]
    return torch.stack(found).mean()


def attention_loss(student: list[list[Tensor]], teacher: list[list[Tensor]]) -> Tensor:
    """The squared distance of maps (N, T, S), mean over heads first, summed over queries, mean over layers."""
    layers = []
    for ours, theirs in zip(student, teacher, strict=True):
        parts = [(one.float().mean(0) - two.float().mean(0)).square().sum() for one, two in _pairs(ours, theirs)]
        layers.append(torch.stack(parts).sum())
    return torch.stack(layers).mean()


def _pairs(ours: list[Tensor], theirs: list[Tensor]) -> Iterator[tuple[Tensor, Tensor]]:
    return zip(ours, theirs, strict=True)


@dataclasses.dataclass(frozen=True)
class MaskedBatch:
    """A micro-batch some of whose tokens may have been masked: then its labels may be wrong, but not the teacher."""

    inner: Any
    masked: bool

    @property
    def num_tokens(self) -> int:
        """How many tokens there are."""
        return int(self.inner.num_tokens)

    def to(self, device: torch.device) -> MaskedBatch:
        """The same on another device."""
        return MaskedBatch(self.inner.to(device), self.masked)


class Augmented:
    """A source whose every second micro-batch has some tokens masked; each a function of its number alone."""

    def __init__(self, source: Source, share: float, mask_id: int, special: frozenset[int], seed: int) -> None:
        self.source, self.share, self.mask_id, self.seed = source, share, mask_id, seed
        self.special = torch.tensor(sorted(special))

    def __getitem__(self, number: int) -> MaskedBatch:
        """Micro-batch `number`."""
        inner = self.source[number]
        if not self.share or number % 2 == 0:
            return MaskedBatch(inner, False)
        ids = inner.batch.ids
        drawn = torch.from_numpy(np.random.default_rng([self.seed % 2**63, number]).random(len(ids)))
        chosen = (drawn < self.share) & ~torch.isin(ids, self.special)
        return MaskedBatch(with_ids(inner, ids.masked_fill(chosen, self.mask_id)), True)


def with_ids(batch: Any, ids: Tensor) -> Any:
    """The same micro-batch of any task with other tokens."""
    return dataclasses.replace(batch, batch=dataclasses.replace(batch.batch, ids=ids))


class Teacher:
    """A model that is asked, and does not learn."""

    def __init__(self, model: Bert, kept: Tensor | None = None, fast: Bert | None = None) -> None:
        """`kept` gives the teacher's id for each of the student's; `fast` answers where only answers are wanted."""
        self.model, self.kept, self.fast = model, kept, fast

    def batch(self, batch: Any) -> Any:
        """A student's micro-batch in the teacher's numbers."""
        if self.kept is None:
            return batch
        return with_ids(batch, self.kept.to(batch.batch.ids.device)[batch.batch.ids])


class Bridged(nn.Module):
    """A student narrower or wider than its teacher, with a map between their hidden states that learns along."""

    def __init__(self, student: Bert, width: int) -> None:
        super().__init__()
        self.student = student
        self.bridge = nn.Linear(student.settings.hidden_size, width, bias=False)
        with torch.no_grad():
            nn.init.orthogonal_(self.bridge.weight, generator=torch.Generator().manual_seed(0))


class Distillation:
    """A task for the loop: the student learns from labels and from the teacher."""

    def __init__(self, lessons: Lessons, teacher: Teacher, settings: RecoverySettings) -> None:
        self.lessons, self.teacher, self.settings = lessons, teacher, settings
        asked = {
            "loss": settings.hard,
            "soft": settings.soft,
            "hidden": settings.hidden,
            "attention": settings.attention,
        }
        self.weights = {name: weight for name, weight in asked.items() if weight > 0}
        if not self.weights:
            raise ValueError("distillation needs at least one loss with a weight")

    def counts(self, batch: MaskedBatch) -> Mapping[str, float]:
        """Items of the task, rows of its logits, tokens."""
        found = {
            "loss": 0.0 if batch.masked else self.lessons.task.counts(batch.inner)["loss"],
            "soft": float(self.lessons.task.rows(batch.inner)),
            "hidden": float(batch.num_tokens),
            "attention": float(batch.num_tokens),
        }
        return {name: found[name] for name in self.weights}

    def sums(self, model: nn.Module, batch: MaskedBatch) -> Mapping[str, Tensor]:
        """Each loss summed over its items."""
        task, settings = self.lessons.task, self.settings
        student = model.student if isinstance(model, Bridged) else model
        assert isinstance(student, Bert)
        with self._watching(student) as seen:
            logits = task.logits(student, batch.inner)
        said, shown = self._asked(self.teacher.batch(batch.inner))
        found: dict[str, Tensor] = {}
        if "loss" in self.weights:
            loss = task.loss(logits, batch.inner)["loss"]
            found["loss"] = loss * 0.0 if batch.masked else loss
        if "soft" in self.weights:
            found["soft"] = soft_loss(logits, said, self.lessons.problem, settings.temperature)
        layers = layer_mapping(student.settings.num_layers, self.teacher.model.settings.num_layers, settings.mapping)
        if "hidden" in self.weights:
            states = [model.bridge(one) for one in seen.hidden] if isinstance(model, Bridged) else seen.hidden
            found["hidden"] = hidden_loss(states, [shown.hidden[layer] for layer in layers])
        if "attention" in self.weights:
            found["attention"] = attention_loss(seen.maps, [shown.maps[layer] for layer in layers])
        return found

    @torch.no_grad()
    def _asked(self, batch: Any) -> tuple[Tensor, _Seen]:
        """The teacher's logits, and what goes on inside it where that is wanted."""
        inside = {"hidden", "attention"} & self.weights.keys()
        model = self.teacher.model if inside or self.teacher.fast is None else self.teacher.fast
        with evaluating(model), self._watching(model) as seen:
            return self.lessons.task.logits(model, batch), seen

    @contextlib.contextmanager
    def _watching(self, model: Bert) -> Iterator[_Seen]:
        seen = _Seen([], [])
        if "attention" in self.weights:
            with record_attention(model, gradients=True) as trace:
                yield seen
            seen.maps += [record.weights for record in trace.attention.values()]
            seen.hidden += [states[0] for states in trace.hidden.values()]
            return
        blocks = list(model.encoder.stack.blocks) if "hidden" in self.weights else []
        handles = [block.register_forward_hook(lambda *given: seen.hidden.append(given[2])) for block in blocks]
        try:
            yield seen
        finally:
            for handle in handles:
                handle.remove()


@dataclasses.dataclass
class _Seen:
    """What was seen inside a model: hidden states after each block, attention maps of each."""

    hidden: list[Tensor]
    maps: list[list[Tensor]]
