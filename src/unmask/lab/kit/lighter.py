"""A fine-tuned model made lighter in several ways: run otherwise, in fewer digits, with fewer parts, as a student."""

from __future__ import annotations

import copy
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from unmask.compress.cut import Pieces, cut
from unmask.compress.distill import soft_loss
from unmask.compress.settings import Steps
from unmask.compress.speed import size_of
from unmask.data.examples import TextExample
from unmask.data.labelled import read_labelled
from unmask.engine.choose import accelerated, choose
from unmask.lab.kit.classify import Examples, logits
from unmask.lab.kit.costs import one_thread
from unmask.lab.kit.fitting import Fit, fit, seeded
from unmask.lab.kit.minizh import LENGTH, Tuning, headlines, start, tokenizer
from unmask.models.bert import Bert
from unmask.models.fetch import fetch
from unmask.models.folder import load_model, write_model
from unmask.models.init import build_model, start_as_sinusoids
from unmask.nn.batch import Batch
from unmask.tasks.usage import Usage

BATCH = 32
#: Learning rates of the model itself, of what lost some parts, and of a student from nothing.
RATE, AGAIN, STUDENT = 3e-4, 1e-4, 1e-3
TEMPERATURE = 2.0
#: What goes: half of the weights, heads, neurons, layers.
CUTS = {
    "zeros": Steps(magnitude=0.5),
    "heads": Steps(heads=0.5),
    "neurons": Steps(neurons=0.5),
    "layers": Steps(layers=2),
}


@dataclass(frozen=True)
class Sizes:
    """How much is learned from and for how long."""

    headlines: int = 2000
    looked_at: int = 256  # headlines by which it is decided what goes
    epochs: int = 2
    student_epochs: int = 6


@dataclass(frozen=True)
class Way:
    """One way to get answers: a model, how it is run, and how large its folder is."""

    model: Bert
    bytes: int
    padded: bool = False
    threads: int = 1
    #: Why this machine cannot show how fast it is; empty: it can.
    untimed: str = ""


@dataclass(frozen=True)
class Headlines:
    """Headlines as texts with their labels, and as ids."""

    texts: Sequence[TextExample]
    examples: Examples

    @classmethod
    def read(cls, part: str, count: int) -> Headlines:
        """The first of a part of thucnews-10k, whose order has no meaning."""
        texts = read_labelled(fetch("thucnews-10k") / f"{part}.csv").examples[:count]
        encoded, names = tokenizer().encode_batch([one.text for one in texts], max_length=LENGTH), headlines(part)[1]
        return cls(texts, Examples([one.ids for one in encoded], [names.index(str(one.label)) for one in texts]))

    def batches(self, count: int | None = None) -> list[Batch]:
        """Of 32 headlines each, in their order."""
        ids = self.examples.sequences[:count]
        return [Batch.of(ids[first : first + BATCH]) for first in range(0, len(ids), BATCH)]


def ways(sizes: Sizes, seed: int) -> dict[str, Way]:
    """All of them, from one model that was fine-tuned with this seed."""
    data = Headlines.read("train", sizes.headlines)
    base = learned(start(Tuning(Fit(1), BATCH), seed), data.examples, sizes.epochs, RATE, seed)
    found = {"base": Way(base, bytes_of(base))}
    found |= run_otherwise(found["base"]) | fewer_digits(base)
    pieces, usage = Pieces(base, tokenizer()), Usage(task="classify")
    for name, steps in CUTS.items():
        smaller = cut(pieces, steps, usage, data.texts[: sizes.looked_at], []).model
        if steps.magnitude is None:  # zeros would be learned away
            learned(smaller, data.examples, 1, AGAIN, seed)
        found[name] = Way(smaller, bytes_of(smaller))
    said = torch.cat(answers(found["base"], data.batches()))
    for name, teacher in (("student", said), ("labels", None)):
        small = learned(student_of(base, seed), data.examples, sizes.student_epochs, STUDENT, seed, teacher)
        found[name] = Way(small, bytes_of(small))
    return found


def run_otherwise(base: Way) -> dict[str, Way]:
    """The same model and the same answers, computed in another manner."""
    chosen = choose(base.model, "fp32")
    cores = os.cpu_count() or 1
    with one_thread():  # the kernels take as many threads as torch has now
        fast = accelerated(base.model, "fp32") if chosen.engine == "fp32" else base.model
    return {
        "padded": Way(base.model, base.bytes, padded=True),
        "two threads": Way(base.model, base.bytes, threads=2, untimed="" if cores > 1 else "there is one core"),
        "kernels": Way(fast, base.bytes, untimed=chosen.why),
    }


def fewer_digits(base: Bert) -> dict[str, Way]:
    """In 16 bits, and in 8; weights on disk have as many."""
    found = {}
    for name, kind in (("bf16", torch.bfloat16), ("fp16", torch.float16)):
        half = copy.deepcopy(base).to(kind)
        found[name] = Way(half, bytes_of(half))
    with tempfile.TemporaryDirectory() as folder:
        write_model(base, Path(folder), "int8")
        rounded, size = load_model(Path(folder))[0], size_of(Path(folder))
    assert isinstance(rounded, Bert)
    chosen = choose(rounded, "int8")
    with one_thread():
        fast = accelerated(rounded, "int8") if chosen.engine == "int8" else rounded
    found["int8"] = Way(fast, size, untimed=chosen.why)
    return found


def has_instructions(digits: str) -> bool:
    """Whether the processor multiplies matrices of bf16 or fp16 by itself, as far as torch knows; else it converts."""
    asked = getattr(torch.ops.mkldnn, f"_is_mkldnn_{digits}_supported", None)
    return bool(asked is not None and asked())


def student_of(teacher: Bert, seed: int) -> Bert:
    """A new model of 2 layers of 128 that reads the same tokens and gives the same labels."""
    sizes = {"num_layers": 2, "hidden_size": 128, "num_heads": 2, "ffn_size": 512}
    model = build_model(teacher.settings.replace(**sizes), seed)
    assert isinstance(model, Bert)
    start_as_sinusoids(model)
    return model


def learned(
    model: Bert, examples: Examples, epochs: int, rate: float, seed: int, teacher: Tensor | None = None
) -> Bert:
    """Train a model from labels, or from what a teacher says: logits, a row an example."""
    generator, order = seeded(seed), list[int]()

    def loss(_: int) -> Tensor:
        while len(order) < BATCH:
            order.extend(torch.randperm(len(examples), generator=generator).tolist())
        chosen, order[:] = order[:BATCH], order[BATCH:]
        some = examples.some(chosen)
        if teacher is None:
            return F.cross_entropy(logits(model, some), torch.tensor(some.labels))
        return soft_loss(logits(model, some), teacher[chosen], "single", TEMPERATURE) / len(chosen)

    fit(model, loss, Fit(max(1, epochs * len(examples) // BATCH), rate))
    return model


def bytes_of(model: Bert) -> int:
    """Of a model's folder: weights and config, without the tokenizer, which is the same for all."""
    with tempfile.TemporaryDirectory() as folder:
        write_model(model, Path(folder))
        return size_of(Path(folder))


@torch.no_grad()
def answers(way: Way, batches: Sequence[Batch]) -> list[Tensor]:
    """Logits of each batch."""
    model = way.model.eval()
    return [model.class_logits(model(batch.padded() if way.padded else batch)).float() for batch in batches]


def accuracies(some: Mapping[str, Way], asked: Headlines) -> dict[str, float | None]:
    """The share of right answers of each way, None where torch cannot compute it here; each model is asked once."""
    batches, right = asked.batches(), torch.tensor(asked.examples.labels)
    found: dict[tuple[int, bool], float | None] = {}
    for way in some.values():
        if (key := (id(way.model), way.padded)) not in found:
            try:
                found[key] = float((torch.cat(answers(way, batches)).argmax(-1) == right).double().mean())
            except RuntimeError:  # as "not implemented for 'Half'"
                found[key] = None
    return {name: found[id(way.model), way.padded] for name, way in some.items()}


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Within the block torch computes with so many threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
