"""`unmask quickstart` on small budgets: what it makes, what it says, and that it goes on where it was stopped."""

from __future__ import annotations

import csv
import json
import random
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

from finetune_toy import single_rows, write_start
from unmask.cli import quickstart, quickstart_steps, quickstart_zh
from unmask.cli.main import run
from unmask.errors import Stopped
from unmask.metrics.compare import Comparison
from unmask.models.weights import read_weights
from unmask.tasks.pretrain_settings import read_pretrain_settings
from unmask.train.progress import Progress

TOPICS = {"sports": "球队比赛进球冠军", "stocks": "股票大盘基金涨跌", "game": "玩家网游副本装备"}


def write_set(folder: Path, rows: list[dict[str, Any]]) -> None:
    folder.mkdir()
    test, dev = len(rows) // 5, len(rows) // 3
    for part, chosen in (("test", rows[:test]), ("dev", rows[test:dev]), ("train", rows[dev:])):
        with (folder / f"{part}.csv").open("w", encoding="utf-8", newline="") as file:
            table = csv.DictWriter(file, ("text", "label"))
            table.writeheader()
            table.writerows(chosen)


def headlines(count: int) -> list[dict[str, Any]]:
    draw = random.Random(0)
    labels = [draw.choice(list(TOPICS)) for _ in range(count)]
    return [{"text": "".join(draw.choices(TOPICS[label], k=8)), "label": label} for label in labels]


@pytest.fixture
def carriers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The data sets, small and of this machine."""
    folder = tmp_path / "carriers"
    folder.mkdir()
    write_set(folder / "movie-reviews", single_rows(480))
    write_set(folder / "zh-reviews", [{**row, "text": row["text"] + "。很好。"} for row in headlines(180)])
    (folder / "people-daily").mkdir()
    articles = ["\n".join(f"{row['text']}。我们知道。" for row in headlines(6)) for _ in range(30)]
    (folder / "people-daily" / "text.txt").write_text("\n\n".join(articles) + "\n", encoding="utf-8")

    def fetched(name: str) -> Path:
        return folder / name if (folder / name).is_dir() else Path(name)

    for module in (quickstart_steps, quickstart_zh):
        monkeypatch.setattr(module, "fetched", fetched)
    return folder


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    told = {"epochs": 8, "train": {"save_every": 4, "optimizer": {"learning_rate": 3e-3}}}
    monkeypatch.setattr(quickstart, "SETTINGS", quickstart.SETTINGS | told | {"batch_size": 16})
    return str(write_start(tmp_path / "start"))


@pytest.fixture
def _small_zh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A vocabulary, a model and runs of seconds; the larger contender is the other small one."""
    small = {"num_layers": 1, "hidden_size": 16, "num_heads": 2, "ffn_size": 24, "max_length": 130}
    changes = [
        'stages=[{"length": 24, "updates": 8, "batch_tokens": 240}]',
        f"model.other={json.dumps(small)}",
        "vocabulary.size=60",
        "vocabulary.min_frequency=1",
        "held_out=6",
        "evaluation_tokens=400",
        "train.save_every=2",
        "train.evaluate_every=4",
        "train.schedule.warmup=2",
    ]
    monkeypatch.setattr(quickstart_zh, "QUICK", changes)
    contenders = quickstart_zh._contenders

    def two_small(start: Path) -> tuple[quickstart_zh.Contender, ...]:
        first, second, third = contenders(start)
        return first, second, quickstart_zh.Contender(third.folder, third.name, str(start), third.settings)

    monkeypatch.setattr(quickstart_zh, "_contenders", two_small)


def english(out: Path, model: str, *more: str) -> int:
    return run(["quickstart", "--out", str(out), "--model", model, "--threads", "1", *more])


def weights_of(model: Path) -> dict[str, torch.Tensor]:
    found = read_weights(model)
    return {name: found.tensor(name) for name in found.shapes}


def same(one: Path, two: Path) -> bool:
    first, second = weights_of(one), weights_of(two)
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


@pytest.fixture
def stop_after(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Ctrl-C at an update of a run, once: {"update": 5}. What was trained is in "seen"."""
    told: dict[str, Any] = {"update": None, "seen": []}
    update = quickstart_steps.Shown.update

    def heard(self: quickstart_steps.Shown, progress: Progress) -> None:
        update(self, progress)
        told["seen"].append(progress.update)
        if progress.update == told["update"]:
            told["update"] = None
            raise Stopped(signal.SIGINT)

    monkeypatch.setattr(quickstart_steps.Shown, "update", heard)
    return told


def test_english_from_data_to_predictions(
    carriers: Path,
    model: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    stop_after: dict[str, Any],
) -> None:
    out = tmp_path / "out"
    assert english(out, model) == 0
    printed, said = capsys.readouterr()
    folder = out / "quickstart"
    scores = json.loads((folder / "test" / "evaluation.json").read_text())["scores"]["accuracy"]
    value, low, high, number = scores
    assert number == 96
    assert value > 0.8  # the toy is easy
    assert low < value <= high
    assert f"{value:.4f}" in printed
    assert "95 % interval" in printed
    for sentence in quickstart.SENTENCES:
        assert sentence in printed
    for made in ("test/report.html", "run/report.html", "run/model/README.md", "attention.html"):
        assert (folder / made).stat().st_size > 500
    assert f"Next: unmask predict {folder / 'run' / 'model'}" in said
    assert "1. Fetching" in said
    assert "\\n" not in said
    assert stop_after["seen"]

    stop_after["seen"].clear()  # the same again: nothing is trained, the results are shown
    assert english(out, model) == 0
    once_more = capsys.readouterr()
    assert stop_after["seen"] == []
    assert once_more.out == printed
    assert "done by an earlier call" in once_more.err
    assert "--again" in once_more.err

    assert english(out, model, "--again") == 0  # and anew: everything is trained, to the same bits
    assert stop_after["seen"]
    assert capsys.readouterr().out == printed


def test_english_goes_on_after_an_interruption(
    carriers: Path, model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], stop_after: dict[str, Any]
) -> None:
    assert english(tmp_path / "whole", model) == 0
    updates = stop_after["seen"][-1]
    stop_after.update(update=9, seen=[])
    assert english(tmp_path / "stopped", model) == 130
    assert "unmask: stopped" in capsys.readouterr().err
    assert not (tmp_path / "stopped" / "quickstart" / "test").exists()
    stop_after["seen"].clear()
    assert english(tmp_path / "stopped", model) == 0
    assert 4 < stop_after["seen"][0] <= 10  # from a checkpoint, not from the start
    assert stop_after["seen"][-1] == updates
    assert same(*(tmp_path / name / "quickstart" / "run" / "model" for name in ("whole", "stopped")))


@pytest.mark.slow  # one interruption is tried in every run of the tests
def test_stopped_while_measuring(
    carriers: Path, model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stop_after: dict[str, Any]
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise Stopped(signal.SIGINT)

    with monkeypatch.context() as patched:
        patched.setattr(quickstart_steps, "write_evaluated", interrupted)
        assert english(tmp_path, model) == 130
    stop_after["seen"].clear()
    assert english(tmp_path, model) == 0
    assert stop_after["seen"] == []
    assert (tmp_path / "quickstart" / "test" / "report.html").is_file()


def test_quick_learns_from_few_in_a_folder_of_its_own(carriers: Path, model: str, tmp_path: Path) -> None:
    assert english(tmp_path, model, "--quick") == 0
    folder = tmp_path / "quickstart-quick"
    assert len((folder / "few-train.csv").read_text(encoding="utf-8").splitlines()) == 97
    assert not (tmp_path / "quickstart").exists()
    told = json.loads((folder / "run" / "settings.json").read_text())["finetune"]
    assert told["epochs"] == 1


def test_what_is_not_its_own_is_left_alone(
    carriers: Path, model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = tmp_path / "quickstart" / "thesis.txt"
    kept.parent.mkdir()
    kept.write_text("years of work")
    for more in ((), ("--again",)):
        assert english(tmp_path, model, *more) == 2
        assert "holds other things; choose another folder with --out" in capsys.readouterr().err
    assert kept.read_text() == "years of work"


def test_another_model_is_not_mixed_with_the_first(
    carriers: Path, model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert english(tmp_path, model, "--quick") == 0
    capsys.readouterr()
    assert english(tmp_path, str(write_start(tmp_path / "other")), "--quick") == 2
    assert "other settings; add --again" in capsys.readouterr().err
    assert run(["quickstart", "--lang", "zh", "--model", model]) == 2
    assert "--model belongs to --lang en" in capsys.readouterr().err


def chinese(out: Path) -> int:
    return run(["quickstart", "--lang", "zh", "--quick", "--out", str(out), "--threads", "1"])


@pytest.mark.usefixtures("_small_zh")
def test_chinese_from_nothing(
    carriers: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], stop_after: dict[str, Any]
) -> None:
    assert chinese(tmp_path) == 0
    printed, said = capsys.readouterr()
    folder = tmp_path / "quickstart-zh-quick"
    for row in ("刚预训练的模型", "随机初始化", "mini-zh", *quickstart_zh.SENTENCES):
        assert row in printed
    assert "95% 区间" in printed
    assert "显著" in printed  # or not, but it says which
    assert "1. 下载中文数据" in said
    assert "learning a vocabulary" not in said
    assert (folder / "pretrain" / "model" / "vocab.txt").is_file()
    told = {
        name: json.loads((folder / name / "settings.json").read_text())["finetune"] for name in ("pretrained", "random")
    }
    assert told["random"].pop("from_nothing") is True
    assert told["pretrained"].pop("from_nothing") is False
    assert told["random"] == told["pretrained"]  # nothing but the start is different
    # Nothing that is tested was read before.
    learned = (folder / "reviews.txt").read_text(encoding="utf-8")
    with (carriers / "zh-reviews" / "test.csv").open(encoding="utf-8", newline="") as file:
        assert not any(row["text"] in learned for row in csv.DictReader(file))

    stop_after["seen"].clear()
    assert chinese(tmp_path) == 0
    again = capsys.readouterr()
    assert stop_after["seen"] == []
    assert again.out == printed
    assert "预训练已在之前完成" in again.err


@pytest.mark.slow  # as in English
@pytest.mark.usefixtures("_small_zh")
def test_chinese_goes_on_after_an_interruption(carriers: Path, tmp_path: Path, stop_after: dict[str, Any]) -> None:
    assert chinese(tmp_path / "whole") == 0
    stop_after.update(update=5, seen=[])
    assert chinese(tmp_path / "stopped") == 130
    stop_after["seen"].clear()
    assert chinese(tmp_path / "stopped") == 0
    assert stop_after["seen"][0] > 2
    for part in ("pretrain", "pretrained", "random"):
        assert same(*(tmp_path / name / "quickstart-zh-quick" / part / "model" for name in ("whole", "stopped")))


def test_the_verdict_is_honest() -> None:
    names = ("甲", "乙")
    better = Comparison(0.05, 0.02, 0.08, 0.001, 0.95, "McNemar's exact test", names)
    worse = Comparison(-0.05, -0.08, -0.02, 0.00001, 0.95, "McNemar's exact test", names)
    unclear = Comparison(0.01, -0.01, 0.03, 0.3, 0.95, "McNemar's exact test", names)
    disagreeing = Comparison(0.02, 0.001, 0.04, 0.06, 0.95, "McNemar's exact test", names)
    assert quickstart_zh.verdict(better).startswith(
        "甲优于乙（差 +5.0 个百分点，95% 区间 +2.0 到 +8.0，p = 0.0010），差异显著"
    )
    assert quickstart_zh.verdict(worse).startswith("甲不如乙")
    assert "p < 0.0001" in quickstart_zh.verdict(worse)
    for found in (unclear, disagreeing):
        assert "没有显著差异" in quickstart_zh.verdict(found)


def test_the_real_settings_load() -> None:
    assert read_pretrain_settings(quickstart_zh.CONFIG).model.size == "tiny"
    assert read_pretrain_settings(quickstart_zh.CONFIG, quickstart_zh.QUICK).train.updates == 20
