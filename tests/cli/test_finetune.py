"""`unmask train classify`, `tag` and `qa`: from a file to predictions, several runs, and going on."""

from __future__ import annotations

import json
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import finetune_toy as toy
import train_toy
from unmask.cli.main import run as unmask
from unmask.models.folder import load_model
from unmask.tasks import grid
from unmask.train.checkpoint import newest_checkpoint

Captured = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def refused(capsys: Captured, *words: str) -> None:
    """What was said ends in one sentence with these words."""
    out, err = capsys.readouterr()
    assert out == ""
    *before, last = err.splitlines()
    assert last.startswith("unmask: ")
    assert not any(line.startswith("unmask: ") for line in before)
    for word in words:
        assert word in last
    assert "Traceback" not in err
    assert len(last) < 700


# Learning


@pytest.mark.parametrize("task", toy.TASKS)
def test_learned_from_a_file_and_told_by_predict(task: str, tmp_path: Path, capsys: Captured) -> None:
    run = toy.learned(task)
    main = next(iter(toy.scores(run).values()))
    assert main > 0.97
    rows = toy.dev_rows(task)[:40]
    right = ("label", "tags", "entities", "answers")
    asked = [{key: value for key, value in row.items() if key not in right} for row in rows]
    if "tokens" in asked[0]:
        asked = [{"text": " ".join(row["tokens"])} for row in asked]
    file = toy.write_rows(tmp_path / "asked.jsonl", asked)
    assert unmask(["predict", str(run), str(file), "--out", str(tmp_path / "said.jsonl")]) == 0
    said = [json.loads(line) for line in (tmp_path / "said.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [one["line"] for one in said] == list(range(1, 41))
    if task == "regression":
        errors = [abs(row["label"] - one["label"]) for row, one in zip(rows, said, strict=True)]
        assert sum(errors) / 40 < 0.3
    else:
        assert sum(told(row) == heard(one) for row, one in zip(rows, said, strict=True)) >= 38


def told(row: dict[str, Any]) -> Any:
    """What a row says is right, in the shape of `heard`."""
    if "answers" in row:
        return row["answers"][0]["text"] if row["answers"] else ""
    if "entities" in row:
        return [(one["start"], one["end"], one["label"]) for one in row["entities"]]
    if "tags" in row:
        spans: list[list[Any]] = []
        at = 0
        for word, tag in zip(row["tokens"], row["tags"], strict=True):
            if tag.startswith("I-"):
                spans[-1][1] = at + len(word)
            elif tag != "O":
                spans.append([at, at + len(word), tag.removeprefix("B-")])
            at += len(word) + 1
        return [tuple(span) for span in spans]
    return row["label"]


def heard(said: dict[str, Any]) -> Any:
    if "answer" in said:
        return said["answer"]
    if "words" in said:
        return [(one["start"], one["end"], one["tag"]) for one in said["words"]]
    if "entities" in said:
        return [(one["start"], one["end"], one["type"]) for one in said["entities"]]
    return said["label"]


@pytest.mark.parametrize(("task", "metric"), [("single", "accuracy"), ("words", "f1"), ("qa2", "exact")])
def test_shuffled_labels_teach_nothing(task: str, metric: str, tmp_path: Path) -> None:
    """Otherwise the tests above would pass for the wrong reason."""
    draw = random.Random(0)
    rows = toy.TASKS[task][1](400, seed=1)
    if task == "words":
        for row in rows:
            draw.shuffle(row["tags"])
    elif task == "single":
        labels = [row["label"] for row in rows]
        draw.shuffle(labels)
        rows = [row | {"label": label} for row, label in zip(rows, labels, strict=True)]
    else:
        for row in rows:
            word = draw.choice(row["context"].split())
            row["answers"] = draw.choice([[], [{"text": word, "answer_start": row["context"].index(word)}]])
    toy.write_rows(tmp_path / f"{task}-train.jsonl", rows)
    assert toy.train(task, tmp_path / "run", "--epochs", "4") == 0
    assert toy.scores(tmp_path / "run")[metric] < 0.75


# A run


def test_the_folder_of_a_run() -> None:
    run = toy.learned("single")
    names = {path.name for path in run.iterdir()}
    assert {"model", "report.html", "evaluation.json", "settings.json", "metrics.jsonl", "best"} <= names
    model = {path.name for path in (run / "model").iterdir()}
    expected = {"README.md", "config.json", "model.safetensors", "tokenizer.json", "unmask_task.json", "vocab.txt"}
    assert expected <= model
    card = (run / "model" / "README.md").read_text(encoding="utf-8")
    assert "accuracy" in card
    assert "<html" in (run / "report.html").read_text(encoding="utf-8")
    assert not [name for name in names if name.startswith(".")]


def test_json_says_where_the_model_is_and_how_good(tmp_path: Path, capsys: Captured) -> None:
    assert toy.train("single", tmp_path / "run", "--epochs", "1", "--json", count=60) == 0
    out, err = capsys.readouterr()
    said = json.loads(out)
    assert said["model"] == str(tmp_path / "run" / "model")
    assert set(said["scores"]) == {"accuracy", "macro_f1", "mcc"}
    score = said["scores"]["accuracy"]
    assert score["low"] <= score["value"] <= score["high"]
    assert score["n"] == 100
    assert "text is column 'text', label is column 'label'" in err
    assert "none of 60 texts is longer than the 64 tokens" in err


def test_without_a_development_file_a_tenth_is_set_apart(tmp_path: Path, capsys: Captured) -> None:
    start = toy.write_start(tmp_path / "start")
    file = toy.write_rows(tmp_path / "train.jsonl", toy.single_rows(80))
    told = ["--train", str(file), "--model", str(start), "--out", str(tmp_path / "run"), *toy.FAST, "--epochs", "1"]
    assert unmask(["train", "classify", *told]) == 0
    assert "no development file: 8 of the 80 examples are set apart for it" in capsys.readouterr().err
    stored = json.loads((tmp_path / "run" / "evaluation.json").read_text(encoding="utf-8"))
    assert [facts["examples"] for facts in stored["data"]] == [72, 8]


def test_the_best_model_is_kept_not_the_last(tmp_path: Path) -> None:
    """A rate that wrecks the model at its end, and a schedule that reaches it there."""
    run = tmp_path / "run"
    flags = ["--epochs", "6", "--set", "evaluations=2", "--learning-rate", "5e-3"]
    assert toy.train("single", run, *flags, count=64) == 0
    entries = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    found = [entry["evaluation"]["accuracy"] for entry in entries if "evaluation" in entry]
    assert len(found) >= 10
    assert toy.scores(run)["accuracy"] == pytest.approx(max(found))


def test_options_reach_the_run(tmp_path: Path) -> None:
    told = ["--layers", "1", "--class-weights", "auto", "--smoothing", "0.1", "--layer-decay", "0.9"]
    told += ["--r-drop", "1", "--freeze", "1", "--pooling", "mean", "--max-length", "32", "--seed", "7"]
    assert toy.train("single", tmp_path / "run", *told, "--epochs", "1", count=40) == 0
    settings = json.loads((tmp_path / "run" / "settings.json").read_text(encoding="utf-8"))["finetune"]
    assert settings["layers"] == 1
    assert settings["loss"] == {"smoothing": 0.1, "class_weights": "auto"}
    assert settings["train"]["optimizer"]["layer_decay"] == 0.9
    assert settings["r_drop"] == 1
    assert settings["train"]["freeze"]["layers"] == 1
    assert settings["train"]["freeze"]["embeddings"] is True
    assert settings["long_text"]["max_length"] == 32
    assert settings["seed"] == 7
    model, _ = load_model(tmp_path / "run" / "model")
    start, _ = load_model(tmp_path / "start")
    assert model.settings.num_layers == 1
    assert model.settings.heads[0].pooling == "mean"
    assert torch.equal(model.encoder.embeddings.token.weight, start.encoder.embeddings.token.weight)
    usage = json.loads((tmp_path / "run" / "model" / "unmask_task.json").read_text(encoding="utf-8"))
    assert usage["long_text"]["max_length"] == 32
    assert usage["pair"] is False


def test_settings_that_a_run_wrote_down_make_the_same_run(tmp_path: Path) -> None:
    flags = ["--epochs", "1", "--seed", "3"]
    assert toy.train("single", tmp_path / "one", *flags, count=48) == 0
    command = ["train", "classify", "--config", str(tmp_path / "one" / "settings.json"), "--threads", "1"]
    files = ["--train", "single-train.jsonl", "--dev", "single-dev.jsonl", "--model", "start"]
    files = [str(tmp_path / file) if not file.startswith("--") else file for file in files]
    assert unmask([*command, *files, "--out", str(tmp_path / "two")]) == 0
    weights = [(tmp_path / run / "model" / "model.safetensors").read_bytes() for run in ("one", "two")]
    assert weights[0] == weights[1]
    assert toy.train("single", tmp_path / "three", "--epochs", "1", "--seed", "4", count=48) == 0
    assert (tmp_path / "three" / "model" / "model.safetensors").read_bytes() != weights[0]


# Several runs


def test_several_seeds_of_which_one_fails(tmp_path: Path, capsys: Captured) -> None:
    run = tmp_path / "seeds"
    run.mkdir()
    (run / "seed-1").write_text("in the way", encoding="utf-8")
    flags = ["--seeds", "3", "--epochs", "1", "--json"]
    assert toy.train("single", run, *flags, count=40) == 2  # a script must notice
    out, err = capsys.readouterr()
    assert err.splitlines()[-1].startswith("unmask: 1 of 3 seeds failed (seed 1: ")
    said = json.loads(out)
    assert said["failed"] == [1]
    assert said == json.loads((run / "seeds.json").read_text(encoding="utf-8"))
    found = said["scores"]["accuracy"]
    assert found["n"] == 2
    values = [toy.scores(run / f"seed-{seed}")["accuracy"] for seed in (0, 2)]
    assert found["mean"] == pytest.approx(sum(values) / 2)
    (run / "seed-1").unlink()
    assert toy.train("single", run, *flags[:-1], "--resume", count=40) == 0
    assert "accuracy" in capsys.readouterr().out
    assert json.loads((run / "seeds.json").read_text(encoding="utf-8"))["scores"]["accuracy"]["n"] == 3


def test_all_seeds_wrong_is_one_sentence(tmp_path: Path, capsys: Captured) -> None:
    (tmp_path / "single-train.jsonl").write_text("", encoding="utf-8")
    assert toy.train("single", tmp_path / "run", "--seeds", "3") == 2
    refused(capsys, "single-train.jsonl: is empty")
    assert not (tmp_path / "run").exists()


def test_the_grid_tries_all_and_names_the_best(
    tmp_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grid, "BATCHES", (16, 32))
    monkeypatch.setattr(grid, "RATES", (3e-3,))
    monkeypatch.setattr(grid, "EPOCHS", (1, 2))
    run = tmp_path / "grid"
    assert toy.train("single", run, "--grid", count=96) == 0
    out, _ = capsys.readouterr()
    table = json.loads((run / "grid.json").read_text(encoding="utf-8"))
    assert table["metric"] == "accuracy"
    assert len(table["runs"]) == 4
    assert {(one["batch_size"], one["learning_rate"], one["epochs"]) for one in table["runs"]} == {
        (batch, rate, epochs) for batch in (16, 32) for rate in (3e-3,) for epochs in (1, 2)
    }
    for one in table["runs"]:
        assert toy.scores(Path(one["folder"]))["accuracy"] == one["score"]
        settings = json.loads((Path(one["folder"]) / "settings.json").read_text(encoding="utf-8"))["finetune"]
        assert settings["batch_size"] == one["batch_size"]
        assert settings["train"]["optimizer"]["learning_rate"] == one["learning_rate"]
    best = max(table["runs"], key=lambda one: one["score"])
    assert f"{best['folder']}/model" in out
    assert (run / "grid.png").read_bytes().startswith(b"\x89PNG")
    assert toy.train("single", run, "--grid", "--resume", "--json", count=96) == 0
    said = json.loads(capsys.readouterr().out)
    assert [one["score"] for one in said["runs"]] == sorted((one["score"] for one in table["runs"]), reverse=True)


# Going on


LONG = ["--epochs", "3", "--set", "dropout=0.1", "--set", "train.save_every=10", "--set", "train.log_every=1"]


def finetune_command(folder: Path, *more: object) -> list[str]:
    told = ["--train", folder / "single-train.jsonl", "--dev", folder / "single-dev.jsonl", "--model", folder / "start"]
    arguments = ["train", "classify", *told, "--out", folder / "run", *toy.FAST, *LONG, *more]
    return [sys.executable, "-m", "unmask", *map(str, arguments)]


def test_killed_and_resumed_it_is_the_unbroken_run_to_the_bit(tmp_path: Path) -> None:
    toy.write_start(tmp_path / "start", dropout=0.1)
    assert toy.train("single", tmp_path / "whole", *LONG) == 0
    run, log = tmp_path / "run", tmp_path / "run" / "metrics.jsonl"
    process = subprocess.Popen(
        finetune_command(tmp_path), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=train_toy.environment()
    )
    while process.poll() is None and not (log.is_file() and log.read_bytes().count(b"\n") >= 25):
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL
    assert newest_checkpoint(run) is not None
    assert not (run / "model").exists()
    command = finetune_command(tmp_path)[3:]
    assert unmask([*command, "--resume"]) == 0
    for name in ("model/model.safetensors", "best/model.safetensors", "model/unmask_task.json", "metrics.jsonl"):
        assert (run / name).read_bytes() == (tmp_path / "whole" / name).read_bytes(), name
    assert toy.scores(run) == toy.scores(tmp_path / "whole")


@pytest.mark.slow
def test_two_processes_learn_the_same(tmp_path: Path) -> None:
    toy.write_start(tmp_path / "start", dropout=0.1)
    together = ["--set", "train.accumulate=2"]
    assert toy.train("single", tmp_path / "whole", *LONG, *together) == 0
    command = finetune_command(tmp_path, *together)
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    environment = {**train_toy.environment(), "OMP_NUM_THREADS": "1"}
    subprocess.run([command[0], *launcher, *command[1:]], check=True, timeout=300, env=environment)
    texts = [(tmp_path / name / "metrics.jsonl").read_text() for name in ("whole", "run")]
    one, two = ([json.loads(line) for line in text.splitlines()] for text in texts)
    assert len(one) == len(two) > 20
    for mine, theirs in zip(one, two, strict=True):
        kind = "losses" if "losses" in mine else "evaluation"
        for name, value in mine[kind].items():
            assert theirs[kind][name] == pytest.approx(value, rel=1e-4), (mine, theirs)


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A finished run and its files, which may be spoilt."""
    shutil.copytree(toy.learned("single").parent, tmp_path / "single")
    return tmp_path / "single" / "run"


def again(copy: Path, *flags: object) -> int:
    """The same command again, as it was given; the files stand where they stood."""
    return toy.train("single", copy, *flags, files=toy.learned("single").parent)


def test_a_run_is_not_written_over(copy: Path, capsys: Captured) -> None:
    before = (copy / "model" / "model.safetensors").read_bytes()
    assert again(copy) == 2
    refused(capsys, "a run is there already", "--resume")
    assert again(copy, "--resume") == 0
    assert (copy / "model" / "model.safetensors").read_bytes() == before


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--seed", 5], "had another seed (0, now 5)"),
        (["--batch-size", 8], "had another batch_size (16, now 8)"),
        (["--learning-rate", 0.5], "train.optimizer.learning_rate (0.003, now 0.5)"),
        (["--max-length", 8], "long_text.max_length (None, now 8)"),
        (["--columns", "text=text,label=label"], "columns (None, now 'text=text,label=label')"),
    ],
)
def test_other_settings_do_not_go_on(flags: list[object], words: str, copy: Path, capsys: Captured) -> None:
    assert again(copy, "--resume", *flags) == 2
    refused(capsys, words, "settings.json")


def test_a_folder_of_other_things_is_left_alone(tmp_path: Path, capsys: Captured) -> None:
    run = tmp_path / "thesis"
    run.mkdir()
    (run / "thesis.txt").write_text("precious", encoding="utf-8")
    assert toy.train("single", run, files=toy.learned("single").parent) == 2
    refused(capsys, "holds other things")
    assert [path.name for path in run.iterdir()] == ["thesis.txt"]
