"""What the loop can be told besides how long: each option does what it says, and a run that has it goes on exactly."""

from __future__ import annotations

import contextlib
import copy
import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import toy
from unmask.errors import UserError
from unmask.models.bert import Bert
from unmask.models.init import build_model
from unmask.models.settings import BertSettings, ClassifySettings
from unmask.nn.settings import DropoutSettings
from unmask.train import loop
from unmask.train.checkpoint import newest_checkpoint, read_best
from unmask.train.fgm import perturbed
from unmask.train.freeze import FreezeSettings
from unmask.train.loop import fit
from unmask.train.losses import LossSettings, class_weights, cross_entropy, weight_of
from unmask.train.optimizer import OptimizerSettings, build_optimizer, set_rate
from unmask.train.progress import Listener, Progress
from unmask.train.rdrop import RDrop
from unmask.train.schedule import ScheduleSettings, build_schedule
from unmask.train.step import backward

TOKEN = "encoder.embeddings.token.weight"


@pytest.fixture(autouse=True)
def no_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drawing curves takes longer than these runs, and is tested elsewhere."""
    monkeypatch.setattr(loop, "plot_curves", lambda run: None)


def weights(model: nn.Module) -> dict[str, Tensor]:
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


def equal(one: Mapping[str, Tensor], two: Mapping[str, Tensor]) -> bool:
    return one.keys() == two.keys() and all(torch.equal(one[name], two[name]) for name in one)


class Watch(Listener):
    """Keeps the weights after each update; cuts the power after one if asked."""

    def __init__(self, model: nn.Module, last: int | None = None) -> None:
        self.model, self.last = model, last
        self.weights: list[dict[str, Tensor]] = []
        self.progress: list[Progress] = []
        self.evaluations: dict[int, Mapping[str, float]] = {}

    def update(self, progress: Progress) -> None:
        self.weights.append(weights(self.model))
        self.progress.append(progress)
        if progress.update == self.last:
            raise InterruptedError

    def evaluation(self, update: int, values: Mapping[str, float], remarks: Sequence[str]) -> None:
        self.evaluations[update] = values


class Scores:
    """Says what it was told to say, and remembers the weights it saw."""

    score, lower_is_better = "quality", False

    def __init__(self, *scores: float) -> None:
        self.scores = list(scores)
        self.seen: list[dict[str, Tensor]] = []

    def __len__(self) -> int:
        return 1

    def measure(self, model: nn.Module, number: int) -> dict[str, float]:
        assert not model.training
        self.seen.append(weights(model))
        return {"quality": self.scores[len(self.seen) - 1]}

    def conclude(self, results: Sequence[Mapping[str, float]]) -> Mapping[str, float]:
        return results[0]

    def remarks(self, model: nn.Module) -> list[str]:
        return []


def train(
    run: Path, updates: int = 12, evaluator: Scores | None = None, last: int | None = None, **changes: Any
) -> tuple[nn.Module, Watch, Any]:
    model = toy.model(dropout=changes.pop("dropout", 0.1))
    watch = Watch(model, last)
    settings = toy.settings(updates).replace(**changes)
    try:
        position = fit(model, toy.GuessMasks(), toy.Sentences(), settings, run, evaluator, watch)
    except InterruptedError:
        position = None
    return model, watch, position


def goes_on_exactly(tmp_path: Path, **changes: Any) -> None:
    """Cut off after an update between two checkpoints, a run ends as if it had not been."""
    whole, _, _ = train(tmp_path / "whole", **changes)
    train(tmp_path / "cut", last=8, **changes)
    parts, watch, _ = train(tmp_path / "cut", **changes)
    assert watch.progress[0].update == 6
    assert equal(weights(whole), weights(parts))


# Evaluation


def test_patience_ends_a_run_and_it_stays_ended(tmp_path: Path) -> None:
    scores = Scores(0.2, 0.5, 0.4, 0.5, 0.9, 0.9)  # as good is not better
    _, watch, position = train(tmp_path, 30, scores, evaluate_every=2, patience=2)
    assert (position.updates, position.stopped, position.best, position.best_update) == (8, True, 0.5, 4)
    assert list(watch.evaluations) == [2, 4, 6, 8]
    assert newest_checkpoint(tmp_path) == tmp_path / "checkpoint-8"
    model, again, position = train(tmp_path, 30, Scores(), evaluate_every=2, patience=2)
    assert again.progress == []
    assert (position.updates, position.stopped) == (8, True)
    assert equal(weights(model), watch.weights[-1])
    assert read_best(tmp_path, model)
    assert equal(weights(model), watch.weights[3])


def test_patience_counts_over_an_interruption(tmp_path: Path) -> None:
    train(tmp_path, 30, Scores(0.5, 0.4), last=5, evaluate_every=2, patience=3, save_every=4)
    _, watch, position = train(tmp_path, 30, Scores(0.3, 0.2, 0.9), evaluate_every=2, patience=3, save_every=4)
    assert list(watch.evaluations) == [6, 8]
    assert (position.updates, position.best_update) == (8, 2)


@pytest.mark.parametrize("average", [None, 0.9])
def test_the_best_weights_are_kept(average: float | None, tmp_path: Path) -> None:
    scores = Scores(0.1, 0.8, 0.3)
    model, watch, position = train(tmp_path, 12, scores, evaluate_every=4, average=average)
    assert position.best_update == 8
    assert not position.stopped
    last = weights(model)
    assert read_best(tmp_path, model)
    assert equal(weights(model), scores.seen[1])
    assert not equal(weights(model), last)
    if average is None:
        assert equal(weights(model), watch.weights[7])
        assert equal(last, watch.weights[-1])
    assert not read_best(tmp_path / "nowhere", model)


# Averages


def test_the_average_is_evaluated_and_handed_over(tmp_path: Path) -> None:
    scores = Scores(0.1, 0.2, 0.3)
    model, watch, _ = train(tmp_path, 12, scores, evaluate_every=5, average=0.7)
    average = {name: tensor.double() for name, tensor in weights(toy.model()).items()}
    for number, now in enumerate(watch.weights):
        decay = min(0.7, (1 + number) / (10 + number))
        average = {name: decay * average[name] + (1 - decay) * now[name].double() for name in average}
        if number + 1 in (5, 10):
            seen = scores.seen[(number + 1) // 5 - 1]
            assert all((seen[name] - average[name]).abs().max() < 1e-6 for name in average)
    final = weights(model)
    assert all((final[name] - average[name]).abs().max() < 1e-6 for name in average)
    assert not equal(final, watch.weights[-1])
    plain, plain_watch, _ = train(tmp_path / "plain", 12)
    assert equal(weights(plain), watch.weights[-1])  # averaging disturbs nothing
    assert equal(plain_watch.weights[5], watch.weights[5])


def test_a_run_with_an_average_goes_on_exactly(tmp_path: Path) -> None:
    goes_on_exactly(tmp_path, average=0.8)
    names = json.loads((tmp_path / "cut" / "checkpoint-12" / "position.json").read_text(encoding="utf-8"))
    assert names["updates"] == 12


# FGM


def test_the_first_update_with_fgm_by_hand(tmp_path: Path) -> None:
    _, watch, _ = train(tmp_path, 3, dropout=0.0, fgm=0.5, accumulate=2)
    model, task = toy.model(dropout=0.0), toy.GuessMasks()
    settings = toy.settings(3)
    optimizer = build_optimizer(model, settings.optimizer)
    window = [toy.Sentences()[0], toy.Sentences()[1]]
    backward(model, task, window)
    with perturbed([model.get_parameter(TOKEN)], 0.5):
        backward(model, task, window)
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    set_rate(optimizer, settings.optimizer.learning_rate * build_schedule(settings.schedule, 3)(0))
    optimizer.step()
    assert watch.progress[0].gradient_norm == pytest.approx(float(norm), rel=1e-5)
    for name, expected in weights(model).items():
        torch.testing.assert_close(watch.weights[0][name], expected, rtol=0, atol=1e-6, msg=name)
    _, plain, _ = train(tmp_path / "plain", 3, dropout=0.0)
    assert not equal(plain.weights[0], watch.weights[0])


def test_a_run_with_fgm_goes_on_exactly(tmp_path: Path) -> None:
    goes_on_exactly(tmp_path, fgm=0.3)


# Freezing


def test_what_is_frozen_stays(tmp_path: Path) -> None:
    before = weights(toy.model())
    model, _, _ = train(tmp_path, 4, freeze=FreezeSettings(embeddings=True, layers=1))
    for name, now in weights(model).items():
        low = name.startswith(("encoder.embeddings.", "encoder.stack.blocks.0."))
        assert torch.equal(now, before[name]) == low, name


def test_what_is_frozen_for_a_while_learns_afterwards(tmp_path: Path) -> None:
    before = weights(toy.model())
    freeze = FreezeSettings(layers=1, until=3)
    _, watch, _ = train(tmp_path / "run", 6, freeze=freeze)
    low = [name for name in before if name.startswith("encoder.stack.blocks.0.")]
    assert all(torch.equal(watch.weights[2][name], before[name]) for name in low)
    assert not any(torch.equal(watch.weights[3][name], before[name]) for name in low)
    assert not torch.equal(watch.weights[0][TOKEN], before[TOKEN])
    goes_on_exactly(tmp_path / "exact", freeze=FreezeSettings(layers=1, until=7))


# Speed and memory


def test_bf16_is_near_and_activations_again_are_the_same(tmp_path: Path) -> None:
    exact, watch, _ = train(tmp_path / "fp32", 6)
    rough, near, _ = train(tmp_path / "bf16", 6, precision="bf16")
    for one, two in zip(watch.progress, near.progress, strict=True):
        assert two.losses["masked"] == pytest.approx(one.losses["masked"], rel=0.03)
    assert all(parameter.dtype == torch.float32 for parameter in rough.parameters())
    assert not equal(weights(exact), weights(rough))
    again, _, _ = train(tmp_path / "again", 6, checkpoint_activations=True)
    assert equal(weights(exact), weights(again))


def test_runs_with_options_together_go_on_exactly(tmp_path: Path) -> None:
    options = {"precision": "bf16", "average": 0.9, "fgm": 0.1, "checkpoint_activations": True, "clip": None}
    goes_on_exactly(tmp_path, **options)


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_compiled_blocks_compute_the_same(tmp_path: Path) -> None:
    if not any(shutil.which(name) for name in ("g++", "c++", "clang++")):
        pytest.skip("torch.compile needs a C++ compiler, and there is none")
    _, plain, _ = train(tmp_path / "plain", 4, dropout=0.0)
    _, compiled, _ = train(tmp_path / "compiled", 4, dropout=0.0, compile=True)
    for name, one in plain.weights[-1].items():
        torch.testing.assert_close(compiled.weights[-1][name], one, rtol=0, atol=1e-4, msg=name)
    _, dropped, _ = train(tmp_path / "dropped", 4, compile=True)
    assert all(torch.isfinite(torch.tensor(one.gradient_norm)) for one in dropped.progress)


# Steps


def test_no_clipping_and_layer_decay(tmp_path: Path) -> None:
    _, clipped, _ = train(tmp_path / "clipped", 3, clip=1e-6, dropout=0.0)
    _, free, _ = train(tmp_path / "free", 3, clip=None, dropout=0.0)
    _, loose, _ = train(tmp_path / "loose", 3, clip=1e9, dropout=0.0)
    assert free.progress[0].gradient_norm == clipped.progress[0].gradient_norm > 1e-3  # as it was before
    assert equal(free.weights[-1], loose.weights[-1])
    assert not equal(free.weights[-1], clipped.weights[-1])
    steep = OptimizerSettings(learning_rate=1e-3, layer_decay=0.1, weight_decay=0.0, eps=1e-12)
    before = weights(toy.model())
    _, watch, _ = train(tmp_path / "decay", 1, dropout=0.0, optimizer=steep, schedule=ScheduleSettings(kind="constant"))
    moved = {name: float((watch.weights[0][name] - before[name]).abs().max()) for name in before}
    # Adam's first step is the rate itself: of the heads, of block 1, of block 0, of the embeddings.
    names = ("heads.mlm.bias", "blocks.1.ffn.outer.weight", "blocks.0.ffn.outer.weight", TOKEN)
    found = [next(value for name, value in moved.items() if name.endswith(one)) for one in names]
    assert found == pytest.approx([1e-3, 1e-4, 1e-5, 1e-6], rel=0.02)


@pytest.mark.parametrize("kind", ["linear", "cosine", "inverse_sqrt", "constant"])
def test_the_rate_is_the_schedules(kind: Any, tmp_path: Path) -> None:
    schedule = ScheduleSettings(kind=kind, warmup=2)
    _, watch, _ = train(tmp_path, 5, schedule=schedule)
    factor = build_schedule(schedule, 5)
    assert [one.learning_rate for one in watch.progress] == pytest.approx([3e-3 * factor(n) for n in range(5)])


def test_logging_and_saving_less_often_than_there_are_updates(tmp_path: Path) -> None:
    train(tmp_path, 3, log_every=100, save_every=100)
    assert newest_checkpoint(tmp_path) == tmp_path / "checkpoint-3"
    entries = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    assert entries[-1]["update"] == 3
    assert "masked" in entries[-1]["losses"]


class Poisoned(toy.GuessMasks):  # type: ignore[name-defined,misc]
    """A task whose seventh update is not a number."""

    def __init__(self) -> None:
        self.calls = 0

    def sums(self, model: nn.Module, batch: Any) -> dict[str, Tensor]:
        self.calls += 1
        sums: dict[str, Tensor] = super().sums(model, batch)
        return {name: value * (float("nan") if self.calls > 12 else 1.0) for name, value in sums.items()}


def test_a_gradient_that_is_no_number_ends_it_in_a_sentence(tmp_path: Path) -> None:
    model = toy.model()
    with pytest.raises(UserError, match=r"gradient of update 7 is not finite \(nan\).*lower learning rate") as caught:
        fit(model, Poisoned(), toy.Sentences(), toy.settings(12), tmp_path)
    assert "\n" not in str(caught.value)
    assert newest_checkpoint(tmp_path) == tmp_path / "checkpoint-5"
    assert all(torch.isfinite(parameter).all() for parameter in model.parameters())
    train(tmp_path, 12)
    train(tmp_path.parent / "whole", 12)
    one, two = (folder / "checkpoint-12" / "model.safetensors" for folder in (tmp_path, tmp_path.parent / "whole"))
    assert one.read_bytes() == two.read_bytes()


# Losses


class Classify:
    """Which of three thirds of the vocabulary a sentence begins in."""

    labels = ("low", "middle", "high")

    def __init__(self, settings: LossSettings) -> None:
        self.settings = settings
        self.by_class = class_weights(settings, self.labels, (2, 1, 1))

    def targets(self, batch: Any) -> Tensor:
        first = batch.batch.ids[batch.batch.layout.first_rows(batch.batch.ids.device)]
        return (first * 3 // toy.VOCAB).clamp(max=2)

    def counts(self, batch: Any) -> dict[str, float]:
        return {"class": weight_of(self.targets(batch), self.by_class)}

    def rows(self, batch: Any) -> int:
        return len(batch.batch)

    def logits(self, model: nn.Module, batch: Any) -> Tensor:
        assert isinstance(model, Bert)
        return model.class_logits(model(batch.batch))

    def loss(self, logits: Tensor, batch: Any) -> dict[str, Tensor]:
        return {"class": cross_entropy(logits, self.targets(batch), self.settings.smoothing, self.by_class)}

    def sums(self, model: nn.Module, batch: Any) -> dict[str, Tensor]:
        return self.loss(self.logits(model, batch), batch)


def classifier(dropout: float = 0.0) -> nn.Module:
    sizes = {"num_layers": 1, "hidden_size": 24, "num_heads": 3, "ffn_size": 40, "max_length": 16}
    settings = BertSettings(
        vocab_size=toy.VOCAB,
        heads=(ClassifySettings(labels=Classify.labels, dropout=dropout),),
        dropout=DropoutSettings.everywhere(dropout),
        **sizes,
    )
    return build_model(settings, seed=1)


@pytest.mark.parametrize(
    "settings",
    [
        LossSettings(smoothing=0.1),
        LossSettings(class_weights="auto"),
        LossSettings(smoothing=0.2, class_weights={"low": 0.5, "middle": 3.0, "high": 1.0}),
    ],
    ids=["smoothing", "auto", "both"],
)
def test_smoothing_and_weights_are_torchs_mean_over_the_update(settings: LossSettings, tmp_path: Path) -> None:
    model, task = classifier(), Classify(settings)
    first = copy.deepcopy(model).eval()
    watch = Watch(model)
    fit(model, task, toy.Sentences(), toy.settings(40), tmp_path, None, watch)
    window = [toy.Sentences()[0], toy.Sentences()[1]]
    with torch.no_grad():
        logits = torch.cat([task.logits(first, batch) for batch in window])
        targets = torch.cat([task.targets(batch) for batch in window])
    plain = torch.nn.CrossEntropyLoss(task.by_class, label_smoothing=settings.smoothing)
    found = [one.losses["class"] for one in watch.progress]
    assert found[0] == pytest.approx(float(plain(logits, targets)), rel=1e-5)
    assert sum(found[-5:]) < 0.8 * sum(found[:5])


def test_r_drop_through_the_loop(tmp_path: Path) -> None:
    def run(name: str, make: Callable[[Classify], Any], last: int | None = None) -> tuple[dict[str, Tensor], Watch]:
        model = classifier(dropout=0.2)
        watch = Watch(model, last)
        task = make(Classify(LossSettings()))
        with contextlib.suppress(InterruptedError):
            fit(model, task, toy.Sentences(), toy.settings(12), tmp_path / name, None, watch)
        return weights(model), watch

    found, watch = run("whole", lambda task: RDrop(task, 2.0))
    assert set(watch.progress[0].losses) == {"class", "r_drop"}
    assert watch.progress[0].losses["r_drop"] > 0
    run("cut", lambda task: RDrop(task, 2.0), last=8)
    again, _ = run("cut", lambda task: RDrop(task, 2.0))
    assert equal(found, again)
    plain, _ = run("plain", lambda task: task)
    assert not equal(found, plain)
