"""`unmask compress`: from a fine-tuned model to a smaller one, or to a refusal that leaves nothing behind."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import html5lib
import pytest
import torch
from safetensors.torch import load_file

import finetune_toy as toy
import unmask
from unmask.bundle import Bundle
from unmask.cli import compress as command
from unmask.cli.main import run as cli
from unmask.errors import Stopped
from unmask.models.init import build_model
from unmask.text.tokenizer import Tokenizer
from unmask.train.progress import Listener, Progress

Captured = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Speed is measured, but not long."""
    monkeypatch.setattr("unmask.compress.speed.TEXTS", 16)
    monkeypatch.setattr("unmask.compress.speed.REPEATS", 5)


def files() -> tuple[Path, Path, Path]:
    run = toy.learned("single")
    return run, run.parent / "single-train.jsonl", run.parent / "single-dev.jsonl"


def shrink(out: Path, *flags: object, learning: bool = True) -> int:
    run, train, dev = files()
    more = ["--train", train] if learning else []
    return cli([*map(str, ["compress", run, "--out", out, "--data", dev, "--threads", 1, *more, *flags])])


STEPS = ["--int8", "--vocab", "--neurons", "0.5", "--heads", "0.5", "--distill", "--examples", "320"]


def test_a_smaller_model_is_an_ordinary_folder(tmp_path: Path, capsys: Captured) -> None:
    out = tmp_path / "small"
    assert shrink(out, *STEPS, "--learning-rate", "1e-3", "--max-drop", "3") == 0
    shown, said = capsys.readouterr()
    assert "vocabulary + 50 % of neurons + distilled" not in shown  # heads stand between
    assert "vocabulary + 50 % of heads + 50 % of neurons + distilled + int8" in shown
    assert "tokens stay" in said
    assert [path.name for path in tmp_path.iterdir()] == ["small"]
    tensors = load_file(out / "model.safetensors")
    assert tensors["encoder.stack.blocks.0.ffn.inner.weight"].shape == (32, 32)
    assert tensors["encoder.stack.blocks.0.ffn.inner.weight"].dtype == torch.int8
    _, _, dev = files()
    for engine in ("torch", "fp32", "int8", None):
        bundle = unmask.load(out, engine=engine)
        found = bundle.predictor.evaluate(str(dev))
        assert found.scores["accuracy"].value >= 0.97
    assert cli(["evaluate", str(out), str(dev), "--engine", "int8"]) == 0
    assert cli(["predict", str(out), "--text", "a lovely old dog"]) == 0
    assert '"label": "pos"' in capsys.readouterr().out
    (tmp_path / "texts.txt").write_text("a lovely old dog\nit was dull\n")
    few = ["--texts", str(tmp_path / "texts.txt"), "--peers", "none", "--rounds", "1", "--repeats", "5"]
    assert cli(["bench", str(out), *few]) == 0
    assert cli(["info", str(out)]) == 0


def test_the_report_needs_nothing_else_and_says_what_the_json_says(tmp_path: Path, capsys: Captured) -> None:
    assert shrink(tmp_path / "small", "--max-drop", "3", "--json", learning=False) == 0
    told = json.loads(capsys.readouterr().out)
    kept = json.loads((tmp_path / "small" / "compress.json").read_text(encoding="utf-8"))
    assert [one["name"] for one in kept["attempts"]] == ["fp16", "int8", "vocabulary + int8"]
    assert told["taken"] == kept["taken"]
    assert kept["examples"] == 100
    for one in kept["attempts"]:
        assert one["bytes"] < kept["before"]["bytes"]
        assert one["speed"]["latency_ms"]["p50"] > 0
        assert one["score"]["drop"] <= 3
        assert one["score"]["drop_low"] <= one["score"]["drop"] <= one["score"]["drop_high"]
    page = (tmp_path / "small" / "report.html").read_text(encoding="utf-8")
    tree = html5lib.HTMLParser(strict=True).parse(page)
    sources = [element.get("src") for element in tree.iter() if element.get("src")]
    assert len(sources) == 1
    assert sources[0].startswith("data:image/svg+xml;base64,")
    assert not [element for element in tree.iter() if element.get("href")]
    for one in kept["attempts"]:
        assert one["name"] in page
        assert f"{one['score']['after']:.2f}" in page
    assert "int8" in (tmp_path / "small" / "README.md").read_text(encoding="utf-8")


def test_what_breaks_the_contract_is_refused_and_nothing_is_written(tmp_path: Path, capsys: Captured) -> None:
    out = tmp_path / "small"
    assert shrink(out, "--magnitude", "0.02", "--max-drop", "0") == 1
    shown, said = capsys.readouterr()
    assert shown == ""
    last = said.splitlines()[-1]
    assert last.startswith("unmask: nothing was written, for nothing keeps the contract. 2 % of weights not zero:")
    assert "loses" in last
    assert "95 % interval of the loss" in last
    assert "at most 0 allowed: refused" in last
    assert list(tmp_path.iterdir()) == []


def test_the_ladder_goes_on_from_what_was_kept(tmp_path: Path, capsys: Captured) -> None:
    flags = ["--max-drop", "4", "--examples", "160", "--learning-rate", "1e-3", "--json"]
    assert shrink(tmp_path / "small", *flags) == 0
    found = json.loads(capsys.readouterr().out)
    names = [one["name"] for one in found["attempts"]]
    assert names[:3] == ["fp16", "int8", "vocabulary + int8"]
    assert names[3].endswith("88 % of heads + 88 % of neurons + distilled + int8")
    kept = [one for one in found["attempts"] if one["kept"]]
    assert found["taken"] in [one["name"] for one in kept]
    best = next(one for one in kept if one["name"] == found["taken"])
    assert all(one["times_as_fast"] / one["bytes"] <= best["times_as_fast"] / best["bytes"] for one in kept)


def test_another_encoder_learns_the_same(tmp_path: Path, capsys: Captured) -> None:
    """Narrower, of one layer, from random weights: the teacher's answers are all it has."""
    narrow = toy.settings().replace(hidden_size=16, ffn_size=32, num_layers=1)
    Bundle(build_model(narrow, seed=4), toy.tokenizer()).save(tmp_path / "narrow")
    flags = ["--student", tmp_path / "narrow", "--distill", "--examples", "3200", "--learning-rate", "5e-3"]
    assert shrink(tmp_path / "small", *flags, "--set", "batch_size=16", "--set", "hard=0.0", "--max-drop", "5") == 0
    found = unmask.load(tmp_path / "small")
    assert found.model.settings.hidden_size == 16
    capsys.readouterr()
    Tokenizer.from_vocab(toy.VOCABULARY[:-1]).save(tmp_path / "narrow")
    assert shrink(tmp_path / "other", *flags) == 2
    assert "reads other tokens" in capsys.readouterr().err
    assert not (tmp_path / "other.work").exists()


class _Stopping(Listener):
    """Ctrl-C in the middle of a recovery."""

    def update(self, progress: Progress) -> None:
        if progress.update == 61:
            raise Stopped(2)


def test_stopped_and_resumed_is_as_if_never_stopped(
    tmp_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    flags = ["--heads", "0.5", "--fp16", "--distill", "--examples", "1600", "--max-drop", "50"]
    flags += ["--set", "batch_size=16"]
    assert shrink(tmp_path / "whole", *flags) == 0
    out = tmp_path / "small"
    with monkeypatch.context() as patched:
        patched.setattr(command, "_watch", _stopping)
        assert shrink(out, *flags) == 130
    assert "--resume goes on" in capsys.readouterr().err
    assert not out.exists()
    assert (tmp_path / "small.work").is_dir()
    assert shrink(out, *flags) == 2
    assert "add --resume" in capsys.readouterr().err
    assert shrink(out, *flags, "--resume", "--learning-rate", "1e-3") == 2
    assert "learning_rate" in capsys.readouterr().err
    assert shrink(out, *flags, "--resume") == 0
    one, two = (load_file(tmp_path / name / "model.safetensors") for name in ("whole", "small"))
    assert one.keys() == two.keys()
    assert all(torch.equal(tensor, two[name]) for name, tensor in one.items())
    assert not (tmp_path / "small.work").exists()


def _stopping(name: str) -> Any:
    from contextlib import nullcontext

    return nullcontext(_Stopping())


@pytest.mark.parametrize(
    ("flags", "learning", "words"),
    [
        (["--heads", "0.5"], False, "add --train FILE"),
        (["--int8", "--fp16"], True, "not both"),
        (["--neurons", "1.5"], True, "neurons"),
        (["--layers", "7"], True, "the model has 2"),
        (["--vocab-size", "5"], True, "too few"),
        (["--set", "temprature=3"], True, "did you mean temperature"),
        (["--magnitude", "0.5", "--distill"], True, "zeros would be learned away"),
    ],
)
def test_wrong_flags(flags: list[str], learning: bool, words: str, tmp_path: Path, capsys: Captured) -> None:
    assert shrink(tmp_path / "small", *flags, learning=learning) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert words in err.splitlines()[-1]
    assert list(tmp_path.iterdir()) == []


def test_models_that_say_nothing_of_texts(tmp_path: Path, capsys: Captured) -> None:
    toy.write_start(tmp_path / "start")
    _, _, dev = files()
    arguments = ["compress", tmp_path / "start", "--out", tmp_path / "small", "--data", dev, "--int8"]
    assert cli([*map(str, arguments)]) == 2
    assert "train it first" in capsys.readouterr().err


def test_a_contract_by_magnitude_says_what_it_is_for(tmp_path: Path, capsys: Captured) -> None:
    assert shrink(tmp_path / "small", "--magnitude", "0.6", "--max-drop", "50") == 0
    shown, said = capsys.readouterr()
    assert "for comparison only" in said
    assert "60 % of weights not zero" in shown
