"""Fine-tuning from the inside: one update whatever its micro-batches, one run of one seed, where it starts."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
import torch

import finetune_toy as toy
import unmask
from unmask.errors import DataError, SettingsError, UserError
from unmask.models.folder import load_model
from unmask.models.settings import ClassifySettings
from unmask.tasks.finetune import finetune, load_start, set_apart
from unmask.tasks.finetune_answer import prepare_answer
from unmask.tasks.finetune_classify import prepare_classify
from unmask.tasks.finetune_settings import AnswerRun, ClassifyRun, Files, FinetuneSettings, TagRun
from unmask.tasks.finetune_tag import prepare_tag
from unmask.tasks.runs import check_free
from unmask.train.progress import Listener

KINDS = {
    "single": (ClassifyRun, prepare_classify),
    "multi": (ClassifyRun, prepare_classify),
    "words": (TagRun, prepare_tag),
    "crf": (TagRun, prepare_tag),
    "qa2": (AnswerRun, prepare_answer),
}


def files_for(task: str, folder: Path, count: int = 21, dropout: float = 0.0) -> Files:
    """Files of a task, some of whose texts are so long that they are read in windows."""
    start = toy.write_start(folder / "start", max_length=24, dropout=dropout)
    train = toy.write_rows(folder / "train.jsonl", toy.TASKS[task][1](count, seed=1))
    dev = toy.write_rows(folder / "dev.jsonl", toy.TASKS[task][1](10, seed=2))
    return Files(model=str(start), train=str(train), dev=str(dev))


def weights(run: Path) -> dict[str, torch.Tensor]:
    model, _ = load_model(run / "model")
    return {name: parameter.detach() for name, parameter in model.named_parameters()}


@pytest.mark.parametrize("task", KINDS)
def test_the_first_update_is_the_same_in_one_part_and_in_four(task: str, tmp_path: Path) -> None:
    files = files_for(task, tmp_path)
    kind, prepare = KINDS[task]
    extra = {"crf": True} if task == "crf" else {"problem": "multi"} if task == "multi" else {}
    found = []
    for accumulate in (1, 4):
        loop = {"optimizer": {"learning_rate": 1e-3}, "schedule": {"kind": "constant"}, "log_every": 1}
        said = {"epochs": 1, "batch_size": 100, "warmup": 0.0, "dropout": 0.0, "head_dropout": 0.0, **extra}
        settings = kind.parse(said | {"train": loop | {"accumulate": accumulate}})
        run = tmp_path / str(accumulate)
        finetune(settings, files, run, prepare, Listener())
        entries = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
        found.append((weights(run), entries[0]))
    (one, first), (four, second) = found
    assert first["losses"]["loss"] == pytest.approx(second["losses"]["loss"], rel=1e-5)
    start, _ = load_model(Path(files.model))
    moved = one["encoder.embeddings.token.weight"] - start.encoder.embeddings.token.weight.detach()
    assert moved.abs().max() > 5e-4
    for name, tensor in one.items():
        # Adam divides by the gradient's size, so where that is nothing but rounding its sign is chance.
        far = (tensor - four[name]).abs() > 1e-5
        assert far.float().mean() < 0.01, name


def test_the_same_seed_is_the_same_run_and_another_is_another(tmp_path: Path) -> None:
    files = files_for("single", tmp_path, 40, dropout=0.1)
    runs = []
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        finetune(ClassifyRun(epochs=2, batch_size=8, seed=seed), files, tmp_path / name, prepare_classify, Listener())
        runs.append((tmp_path / name / "model" / "model.safetensors").read_bytes())
    assert runs[0] == runs[1]
    assert runs[0] != runs[2]


def test_where_a_run_starts(tmp_path: Path) -> None:
    files = files_for("single", tmp_path)
    head = ClassifySettings(labels=("neg", "pos"))
    start, _ = load_model(Path(files.model))
    table = start.encoder.embeddings.token.weight

    def begun(**changes: object) -> torch.Tensor:
        return load_start(ClassifyRun.parse(changes), files, head)

    model = begun()
    assert torch.equal(model.encoder.embeddings.token.weight, table)
    assert not torch.equal(begun(seed=1).heads["classify"].dense.weight, model.heads["classify"].dense.weight)
    assert not torch.allclose(begun(from_nothing=True, seed=1).encoder.embeddings.token.weight, table)
    assert begun(layers=1).settings.num_layers == 1
    longer = begun(long_text={"strategy": "hierarchical", "max_length": 100})
    assert longer.settings.max_length == 100
    assert begun(long_text={"strategy": "hierarchical"}).settings.max_length == 96
    with pytest.raises(SettingsError, match="5 were asked for but .* has 2"):
        begun(layers=5)


def test_hierarchical_positions_read_more_at_once(tmp_path: Path) -> None:
    files = files_for("single", tmp_path)
    long = [row | {"text": row["text"] + " the" * 60} for row in toy.single_rows(12)]
    toy.write_rows(Path(files.train), long)
    settings = ClassifyRun.parse({"epochs": 1, "long_text": {"strategy": "hierarchical"}})
    finetune(settings, files, tmp_path / "run", prepare_classify, Listener())
    bundle = unmask.load(tmp_path / "run" / "model")
    assert bundle.max_length == 96
    (said,) = bundle.predict(long[0]["text"])
    assert (said.windows, said.coverage) == (1, 1.0)


@pytest.mark.parametrize(("join", "attention"), [("mean", False), ("max", False), ("attention", True)])
def test_long_texts_are_learned_in_windows(join: str, attention: bool, tmp_path: Path) -> None:
    """The word that decides stands anywhere in texts of several windows; the model knows it in short ones."""
    files = files_for("single", tmp_path).replace(model=str(toy.learned("single") / "model"))
    draw = random.Random(0)

    def rows(count: int) -> list[dict[str, object]]:
        made = []
        for row in toy.single_rows(count, seed=count):
            words = [*draw.choices(toy.FILLER, k=150), *row["text"].split()]
            draw.shuffle(words)
            made.append(row | {"text": " ".join(words)})
        return made

    toy.write_rows(Path(files.train), rows(160))
    toy.write_rows(Path(files.dev), rows(60))
    long = {"strategy": "windows", "join": join}
    rate = {"optimizer": {"learning_rate": 3e-3}}
    settings = ClassifyRun.parse({"epochs": 3, "batch_size": 16, "long_text": long, "train": rate})
    found = finetune(settings, files, tmp_path / "run", prepare_classify, Listener())
    assert found.scores["accuracy"].value > 0.9
    assert min(outcome.windows for outcome in found.outcomes) >= 3
    assert all(outcome.coverage == 1 for outcome in found.outcomes)
    model, _ = load_model(tmp_path / "run" / "model")
    assert (model.heads["classify"].windows is not None) == attention


def test_what_is_not_learned_from_is_said(tmp_path: Path) -> None:
    files = files_for("single", tmp_path)
    toy.write_rows(Path(files.train), [row | {"text": row["text"] + " the" * 60} for row in toy.single_rows(12)])

    class Heard(Listener):
        said: tuple[str, ...] = ()

        def say(self, text: str) -> None:
            self.said += (text,)

    heard = Heard()
    settings = ClassifyRun.parse({"epochs": 1, "long_text": {"strategy": "head"}})
    found = finetune(settings, files, tmp_path / "run", prepare_classify, heard)
    (sentence,) = [said for said in heard.said if said.startswith("of the training texts")]
    assert "12 of 12 texts are too long" in sentence
    assert "of the characters read" in sentence
    assert any(sentence in note for note in found.notes)


def test_the_loop_follows_from_examples_and_epochs() -> None:
    settings = FinetuneSettings(epochs=3, batch_size=32)
    loop = settings.loop(100, 3)
    assert (loop.updates, loop.evaluate_every, loop.schedule.warmup) == (9, 3, 1)
    assert FinetuneSettings(epochs=0.5).loop(1000, 31).updates == 16
    assert FinetuneSettings(evaluations=4).loop(1000, 31).evaluate_every == 7
    fixed = FinetuneSettings.parse({"train": {"schedule": {"warmup": 7}, "evaluate_every": 5, "save_every": 2}})
    loop = fixed.loop(1000, 31)
    assert (loop.schedule.warmup, loop.evaluate_every, loop.save_every) == (7, 5, 2)


def test_what_is_set_apart_is_not_learned_from() -> None:
    rest, apart = set_apart(range(100), 0.1, seed=0, file="a.csv")
    assert len(apart) == 10
    assert sorted(rest + apart) == list(range(100))
    assert set_apart(range(100), 0.1, seed=0, file="a.csv") == (rest, apart)
    assert set_apart(range(100), 0.1, seed=1, file="a.csv") != (rest, apart)
    assert len(set_apart(range(3), 0.01, seed=0, file="a.csv")[1]) == 1
    with pytest.raises(DataError, match=r"a\.csv: one example is too few to set some apart"):
        set_apart(range(1), 0.1, seed=0, file="a.csv")


def test_a_taken_folder_is_told_before_anything_is_read(tmp_path: Path) -> None:
    def never(*_: object) -> object:
        raise AssertionError("read")

    (tmp_path / "file").write_text("", encoding="utf-8")
    for run in (tmp_path / "file", toy.learned("single")):
        with pytest.raises(UserError, match="is a file|already"):
            finetune(ClassifyRun(), Files(model="m", train="t"), run, never, Listener())
    check_free(toy.learned("single"), resume=True)
    check_free(tmp_path / "new", resume=False)
