"""Faster inference: every verdict, the softmax of two levels by hand, and small runs of what is timed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from typing import Any

import pytest
import torch

from unmask.lab.catalogue import entry_of, parts_of
from unmask.lab.draw import draw
from unmask.lab.entry import Conclusion, Plan, Record, Verdict
from unmask.lab.kit import lighter
from unmask.lab.kit.costs import counted
from unmask.lab.kit.effects import Effect, named
from unmask.lab.kit.fitting import Fit
from unmask.lab.kit.lighter import Headlines, Sizes, Way
from unmask.lab.kit.minizh import Tuning, start
from unmask.lab.kit.ratios import conclude_faster, ratio_of
from unmask.lab.kit.two_levels import Flat, TwoLevels, rows_at
from unmask.lab.questions import faster_inference as asked

SUPPORTED, NOT, DEPENDS, HIDDEN = Verdict.SUPPORTED, Verdict.NOT_SUPPORTED, Verdict.DEPENDS, Verdict.NOT_VISIBLE
TINY = Sizes(headlines=32, looked_at=16, epochs=1, student_epochs=1)


def checked(conclusion: Conclusion) -> Conclusion:
    assert len(conclusion.says.en) > 80
    assert len(conclusion.says.zh) > 40
    assert not any("nan" in text for text in conclusion.says)
    for picture in conclusion.pictures:
        assert "<svg" in draw(picture, "en")
        assert "<svg" in draw(picture, "zh")
    if conclusion.table is not None:
        assert all(len(row) == len(conclusion.table.columns) for row in conclusion.table.rows)
    return conclusion


def rounds(seconds: float, unsure: bool = False) -> list[float]:
    """Twenty rounds, close together or far apart."""
    return [seconds * (1 + (0.5 if unsure else 0.01) * (-1) ** number * (number % 7) / 7) for number in range(20)]


def way_records(seconds: Mapping[str, float], *, native: bool = True) -> dict[str, Record]:
    """Of three seeds; ways that take a time are there, the others are not available."""
    accuracy = {way: 0.8 - 0.02 * number for number, way in enumerate(asked.WAYS)}
    record: Record = {
        "accuracy": accuracy,
        "bytes": dict.fromkeys(asked.WAYS, 21_000_000),
        "untimed": {way: "it cannot" for way in asked.WAYS if way not in seconds and way not in ("base", "labels")},
        "instructions": {"bf16": native, "fp16": native},
    }
    times = {way: rounds(one) for way, one in {"base": 1.0, **seconds}.items()}
    first = {**record, "seconds": times, "headlines": 128}
    return {named(asked.TRIAL, 0): first, named(asked.TRIAL, 1): record, named(asked.TRIAL, 2): record}


def all_ways(fp16: float = 0.5, zeros: float = 0.9, other: float = 0.6, student: float = 0.2) -> dict[str, float]:
    smaller = {"zeros": zeros, "heads": other, "neurons": other, "layers": other, "student": student}
    return {"padded": 1.2, "two threads": 0.6, "bf16": fp16, "fp16": fp16, **smaller}


@pytest.mark.parametrize(
    ("seconds", "verdict", "words"),
    [
        (all_ways(), SUPPORTED, "Pruning is faster: weights zeroed 0.90"),
        (all_ways(2, 2, 2, 2), NOT, "Distillation is slower: student 2.00"),
        (all_ways(zeros=1), DEPENDS, "Pruning is faster in some ways only"),
        (all_ways(fp16=3), DEPENDS, "fp16 is slower: fp16 3.00"),
        (all_ways(1, 1, 1, 1), HIDDEN, "fp16 is neither faster nor slower"),
    ],
)
def test_each_way(seconds: dict[str, float], verdict: Verdict, words: str) -> None:
    records = way_records(seconds)
    if verdict is HIDDEN:  # the same time on the whole, but not in each round
        mixed = {
            way: one if way == "base" else one[::-1] for way, one in records["all ways, seed 0"]["seconds"].items()
        }
        records["all ways, seed 0"]["seconds"] = mixed
    found = checked(asked.conclude_ways(records))
    assert found.verdict == verdict
    assert words in found.says.en
    assert "Not available on this machine, or of no use on it: our kernels, int8." in found.says.en


def test_what_has_no_instructions_does_not_count() -> None:
    found = checked(asked.conclude_ways(way_records(all_ways(fp16=4), native=False)))
    assert found.verdict == SUPPORTED
    assert "fp16 takes 4.00 (4.00 – 4.00), but the processor has no instructions" in found.says.en
    without = {way: one for way, one in all_ways().items() if "16" not in way}
    found = checked(asked.conclude_ways(way_records(without)))
    assert found.verdict == SUPPORTED
    assert "fp16: not available here." in found.says.en
    assert "Not available on this machine, or of no use on it: our kernels, bf16, fp16, int8." in found.says.en


def test_what_torch_cannot_compute_has_no_accuracy() -> None:
    records = way_records({way: one for way, one in all_ways().items() if way != "fp16"})
    for name, record in records.items():
        records[name] = {**record, "accuracy": {**record["accuracy"], "fp16": None}}
    found = checked(asked.conclude_ways(records))
    assert found.table is not None
    row = next(row for row in found.table.rows if row[0] == "fp16")
    assert row[1:3] == ("–", "–")
    assert row[4:] == ("–", "–")


def level_records(given: float, search: float, at_once: float, unsure: bool = False) -> dict[str, Record]:
    times = {
        "given, one level": rounds(1.0),
        "given, two levels": rounds(given, unsure),
        "best, one level": rounds(1.0),
        "best, two levels by a search": rounds(search),
        "best, two levels at once": rounds(at_once),
    }
    counts = {"one level": 2_048_000, "given": 45_824.0, "best": 184_544.0}
    shares = {"operations": 1000, "vocabulary": 30, "classifier": 900, "classifier_vocabulary": 0}
    return {
        asked.LEVELS: {"multiplications": counts, "same": 1.0, "seconds": times},
        asked.SHARES: {**shares, "seconds": {"encoder": rounds(0.9), "vocabulary": rounds(0.1)}},
    }


@pytest.mark.parametrize(
    ("given", "search", "at_once", "verdict", "words"),
    [
        (0.1, 0.5, 1.1, SUPPORTED, "by a search, the quicker"),
        (0.1, 1.4, 1.1, DEPENDS, "at once, the quicker"),
        (1.5, 0.5, 0.5, NOT, "slower even for one given token"),
    ],
)
def test_two_levels(given: float, search: float, at_once: float, verdict: Verdict, words: str) -> None:
    found = checked(asked.conclude_levels(level_records(given, search, at_once)))
    assert found.verdict == verdict
    assert words in found.says.en
    assert "is 3% of the multiplications of filling one mask a headline and 10% of the time" in found.says.en


def test_two_levels_may_not_be_told_apart() -> None:
    assert checked(asked.conclude_levels(level_records(1.0, 0.5, 0.5, unsure=True))).verdict == HIDDEN


# ratios ---------------------------------------------------------------------------------------------------------------


def test_a_ratio_of_medians_is_drawn_in_pairs() -> None:
    base = rounds(2.0, unsure=True)
    assert ratio_of([one / 4 for one in base], base) == pytest.approx((0.25, 0.25, 0.25)), "both are slow together"
    found = ratio_of(rounds(1.0, unsure=True)[::-1], rounds(1.0))
    assert found.low < found.mean < found.high
    sides = [conclude_faster(Effect(1.0, *ends)) for ends in ((0.8, 0.9), (1.1, 1.2), (0.9, 1.1))]
    assert sides == [SUPPORTED, NOT, HIDDEN]


# two levels -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def levels() -> tuple[TwoLevels, torch.Tensor]:
    """23 tokens in 5 groups of 5, the last of 3; 11 rows."""
    draw = torch.Generator().manual_seed(0)
    flat = Flat(torch.randn(23, 7, generator=draw), torch.zeros(23))
    return TwoLevels.random(flat, 5, draw), torch.randn(11, 7, generator=draw)


def test_probabilities_of_two_levels_sum_to_one(levels: tuple[TwoLevels, torch.Tensor]) -> None:
    made, rows = levels
    every = torch.stack([made.log_probability(rows, torch.full((11,), token)) for token in range(23)], 1)
    torch.testing.assert_close(every.exp().sum(1), torch.ones(11))
    best, looked = made.best(rows)
    assert torch.equal(best, every.argmax(1))
    assert torch.equal(best, made.best_of_all(rows))
    assert bool((looked >= 3).all())
    assert bool((looked < 23).any()), "a search need not open all groups"
    assert made.size_of(torch.tensor([0, 4, 5, 19, 20, 22])).tolist() == [5, 5, 5, 5, 3, 3]


def test_multiplications_are_those_that_torch_counts(levels: tuple[TwoLevels, torch.Tensor]) -> None:
    made, rows = levels
    for target in (1, 22):
        given = torch.tensor([target])
        wanted = (5 + int(made.size_of(given))) * 7
        assert counted(partial(made.log_probability, rows[:1], given)) == 2 * wanted
    looked = int(made.best(rows[:1])[1])
    assert counted(lambda: made.best(rows[:1])) == 2 * (5 + looked) * 7


def test_a_flat_softmax_and_the_rows_of_places() -> None:
    flat = Flat(torch.eye(3), torch.zeros(3))
    rows = torch.tensor([[5.0, 0, 0], [0, 0, 2.0]])
    assert flat.best(rows).tolist() == [0, 2]
    found = flat.log_probability(rows, torch.tensor([0, 1]))
    torch.testing.assert_close(found, rows.log_softmax(-1)[[0, 1], [0, 1]])
    assert rows_at([[1, 2, 3], [4, 5], [6, 7, 8]], [1, 0, 2]).tolist() == [1, 3, 7]


def test_a_small_run_of_two_levels() -> None:
    part = parts_of(entry_of("faster-inference"))["hierarchical-softmax"]
    records = {trial.name: trial.job() for trial in part.trials(Plan("small"))}
    found = records[asked.LEVELS]
    assert (found["vocab"], found["hidden"], found["group"], found["rows"]) == (8000, 256, 89, 64)
    assert found["same"] == 1
    assert found["multiplications"]["one level"] == 2_048_000
    assert 43_000 < found["multiplications"]["given"] <= (90 + 89) * 256
    beside = records[asked.SHARES]
    assert beside["vocabulary"] == 2 * 32 * 2_048_000
    assert beside["classifier_vocabulary"] == 0 < beside["classifier"] < beside["operations"]
    json.dumps(records, allow_nan=False)
    checked(part.conclude(records))


# the models -----------------------------------------------------------------------------------------------------------


def test_every_way_gives_answers_and_half_of_what_goes_is_gone() -> None:
    found = lighter.ways(TINY, 0)
    assert found.keys() == asked.WAYS.keys()
    assert [shape.num_heads for shape in found["heads"].model.settings.shapes].count(4) < 4
    assert sum(shape.num_heads for shape in found["heads"].model.settings.shapes) == 8
    assert [shape.ffn_size for shape in found["neurons"].model.settings.shapes] == [512] * 4
    assert found["layers"].model.settings.num_layers == 2
    student = found["student"].model.settings
    assert (student.num_layers, student.hidden_size) == (2, 128)
    blocks = [weight for weight in found["zeros"].model.encoder.stack.parameters() if weight.dim() == 2]
    assert sum(int((weight == 0).sum()) for weight in blocks) == sum(weight.numel() for weight in blocks) // 2
    sizes = {name: way.bytes for name, way in found.items()}
    assert sizes["base"] == sizes["zeros"] == sizes["padded"] > sizes["heads"] > sizes["neurons"] > sizes["layers"]
    assert sizes["int8"] < 0.3 * sizes["base"] < 0.55 * sizes["base"]
    assert sizes["fp16"] == pytest.approx(sizes["base"] / 2, rel=0.01)

    batches = Headlines.read("test", 8).batches()
    base, padded = (torch.cat(lighter.answers(found[name], batches)) for name in ("base", "padded"))
    torch.testing.assert_close(padded, base, rtol=1e-4, atol=1e-4)
    for name in ("bf16", "int8", "kernels"):
        torch.testing.assert_close(torch.cat(lighter.answers(found[name], batches)), base, rtol=0.1, atol=0.1)


class Constant:
    """Says label 3, always, and counts how often it was asked."""

    calls = 0

    def eval(self) -> Constant:
        return self

    def __call__(self, batch: Any) -> Any:
        self.calls += 1
        return batch

    def class_logits(self, batch: Any) -> torch.Tensor:
        return torch.nn.functional.one_hot(torch.full((len(batch),), 3), 10).float()


class Refusing(Constant):
    """A model that torch has no product for."""

    def __call__(self, batch: Any) -> Any:
        raise RuntimeError("\"addmm_impl_cpu_\" not implemented for 'Half'")


def test_accuracies_are_shares_and_missing_where_torch_refuses() -> None:
    test, model = Headlines.read("test", 40), Constant()
    found = lighter.accuracies(
        {"base": Way(model, 1), "two threads": Way(model, 1, threads=2), "fp16": Way(Refusing(), 1)},  # type: ignore[arg-type]
        test,
    )
    right = test.examples.labels.count(3) / 40
    assert found == {"base": right, "two threads": right, "fp16": None}
    assert model.calls == 2, "40 headlines are two batches, and threads change nothing"


def test_a_student_learns_what_its_teacher_says() -> None:
    data = Headlines.read("train", 32)
    teacher = torch.nn.functional.one_hot(torch.full((32,), 7), 10).float() * 20
    base = start(Tuning(Fit(1), 32), 0)
    student = lighter.learned(lighter.student_of(base, 0), data.examples, 20, 1e-3, 0, teacher)
    said = torch.cat(lighter.answers(Way(student, 0), data.batches())).argmax(-1)
    assert said.tolist() == [7] * 32, "whatever the labels are"


def test_threads_are_given_back() -> None:
    before = torch.get_num_threads()
    with lighter.threads(before + 1):
        assert torch.get_num_threads() == before + 1
    assert torch.get_num_threads() == before
    assert lighter.has_instructions("fp16") in (True, False)
    assert not lighter.has_instructions("fp3")


@pytest.mark.slow
def test_a_small_run_of_each_way() -> None:
    part = parts_of(entry_of("faster-inference"))["each-way"]
    records = {trial.name: trial.job() for trial in part.trials(Plan("small", 2))}
    first, second = records.values()
    timed = asked.WAYS.keys() - first["untimed"].keys() - {"labels"}
    assert first["seconds"].keys() == timed
    assert all(len(one) == 3 for one in first["seconds"].values())
    assert "seconds" not in second
    json.dumps(records, allow_nan=False)
    checked(part.conclude(records))
