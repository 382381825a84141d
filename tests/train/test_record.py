from __future__ import annotations

import json
import math
import socket
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from unmask.errors import FetchError
from unmask.train.progress import Progress
from unmask.train.record import Record, is_loss, read_entries, training_seconds, training_tokens

UPDATES = 23


def progress(update: int, loss: float | None = None, seconds: float = 0.5) -> Progress:
    losses = {"mlm": 1 / (3 + update) if loss is None else loss, "nsp": 0.1 * update}
    return Progress(update, UPDATES, losses, 2.0 / update, 1e-4 * update, tokens=100 + update, seconds=seconds)


def go(run: Path, done: int, to: int, every: int = 1) -> None:
    """Updates after `done` up to `to`, with an evaluation after every fifth."""
    with Record(run, done, every) as record:
        for update in range(done + 1, to + 1):
            record.update(progress(update, seconds=0.5 + 0.01 * done))
            if update % 5 == 0:
                record.evaluation(update, {"accuracy": 0.01 * update})


def strict(path: Path) -> list[dict[str, object]]:
    """Lines of JSON as the standard has it, which knows no NaN."""

    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is not JSON")

    return [json.loads(line, parse_constant=refuse) for line in path.read_text(encoding="utf-8").splitlines()]


def curves(run: Path) -> dict[str, list[tuple[int, float]]]:
    """What TensorBoard's own reader sees."""
    reader = EventAccumulator(str(run / "tensorboard"), size_guidance={"scalars": 0})
    reader.Reload()
    return {tag: [(one.step, one.value) for one in reader.Scalars(tag)] for tag in reader.Tags()["scalars"]}


def test_lines_say_what_happened(tmp_path: Path) -> None:
    go(tmp_path, 0, UPDATES, every=10)
    metrics = strict(tmp_path / "metrics.jsonl")
    logged = [entry for entry in metrics if "losses" in entry]
    assert [entry["update"] for entry in logged] == [10, 20, 23]  # the last one always
    assert logged[0] == {
        "update": 10,
        "losses": {"mlm": 1 / 13, "nsp": 1.0},
        "gradient_norm": 0.2,
        "learning_rate": 1e-3,
    }
    evaluations = [entry for entry in metrics if "evaluation" in entry]
    assert [entry["update"] for entry in evaluations] == [5, 10, 15, 20]
    assert evaluations[0] == {"update": 5, "evaluation": {"accuracy": 0.05}}
    times = strict(tmp_path / "times.jsonl")
    # Updates between the logged ones count too.
    assert [entry["seconds"] for entry in times] == [5.0, 10.0, 11.5]
    assert [entry["tokens"] for entry in times] == [1055, 2210, 2576]
    assert len({entry["started"] for entry in times}) == 1


def test_a_line_is_there_as_soon_as_it_is_written(tmp_path: Path) -> None:
    with Record(tmp_path, 0) as record:
        record.update(progress(1))
        record.evaluation(1, {"accuracy": 0.5})
        assert len(strict(tmp_path / "metrics.jsonl")) == 2
        assert curves(tmp_path)["evaluation/accuracy"] == [(1, 0.5)]


@pytest.mark.parametrize("half", [b"", b'{"update": 14, "los', b'{"update": 14, "losses": {"\xe4\xb8', b"\x00\x00\x00"])
@pytest.mark.parametrize("done", [0, 10])
def test_a_stopped_run_writes_the_same_bits(tmp_path: Path, half: bytes, done: int) -> None:
    go(tmp_path / "whole", 0, UPDATES)
    go(tmp_path / "stopped", 0, 13)
    for name in ("metrics.jsonl", "times.jsonl"):
        with (tmp_path / "stopped" / name).open("ab") as file:
            file.write(half)
    go(tmp_path / "stopped", done, UPDATES)
    whole, stopped = ((tmp_path / name / "metrics.jsonl").read_bytes() for name in ("whole", "stopped"))
    assert whole == stopped
    assert curves(tmp_path / "whole") == curves(tmp_path / "stopped")


def test_a_new_beginning_forgets_even_an_evaluation_before_the_first_update(tmp_path: Path) -> None:
    for _ in range(2):
        with Record(tmp_path, 0) as record:
            record.evaluation(0, {"accuracy": 0.5})
            record.update(progress(1))
    assert [entry["update"] for entry in strict(tmp_path / "metrics.jsonl")] == [0, 1]
    assert curves(tmp_path)["evaluation/accuracy"] == [(0, 0.5)]


def test_seconds_and_tokens_add_up_over_processes(tmp_path: Path) -> None:
    assert training_seconds(tmp_path) == 0.0
    assert training_tokens(tmp_path) == 0
    go(tmp_path, 0, 13)
    assert training_seconds(tmp_path) == pytest.approx(6.5)
    go(tmp_path, 10, 18)  # 11 to 13 are done again: their first time does not count
    go(tmp_path, 15, UPDATES)
    assert training_seconds(tmp_path) == pytest.approx(10 * 0.5 + 5 * 0.6 + 8 * 0.65)
    assert training_tokens(tmp_path) == sum(100 + update for update in range(1, UPDATES + 1))


def test_a_stop_between_two_logged_updates_loses_no_time(tmp_path: Path) -> None:
    go(tmp_path, 0, 13, every=10)
    assert training_seconds(tmp_path) == pytest.approx(6.5)
    assert [entry["update"] for entry in strict(tmp_path / "times.jsonl")] == [10, 13]
    go(tmp_path, 13, UPDATES, every=10)
    assert training_seconds(tmp_path) == pytest.approx(6.5 + 10 * 0.63)
    assert training_tokens(tmp_path) == sum(100 + update for update in range(1, UPDATES + 1))


def test_tensorboard_shows_one_curve_without_overlaps(tmp_path: Path) -> None:
    for done, to in ((0, 13), (10, 18), (15, UPDATES)):
        go(tmp_path, done, to)
    seen = curves(tmp_path)
    assert set(seen) == {"loss/mlm", "loss/nsp", "gradient_norm", "learning_rate", "evaluation/accuracy"}
    assert [step for step, _ in seen["loss/mlm"]] == list(range(1, UPDATES + 1))
    assert [step for step, _ in seen["evaluation/accuracy"]] == [5, 10, 15, 20]
    assert dict(seen["loss/mlm"])[7] == np.float32(1 / 10)
    assert dict(seen["learning_rate"])[20] == np.float32(2e-3)
    files = sorted(path.name for path in (tmp_path / "tensorboard").iterdir())
    assert files == [f"events.out.tfevents.00000{number}" for number in (1, 2, 3)]
    assert not any(socket.gethostname() in name for name in files)


def test_what_was_not_logged_before_a_checkpoint_leaves_no_trace_after_it(tmp_path: Path) -> None:
    go(tmp_path, 0, 19, every=6)
    go(tmp_path, 15, UPDATES, every=6)
    assert [step for step, _ in curves(tmp_path)["loss/mlm"]] == [6, 12, 18, 23]


def test_numbers_that_are_none_stay_readable(tmp_path: Path) -> None:
    with Record(tmp_path, 0) as record:
        record.update(progress(1, loss=math.nan))
        record.update(progress(2, loss=math.inf))
        record.evaluation(2, {"loss": math.nan, "score": np.float32(0.5), "huge": 1e300})
    first, second, third = strict(tmp_path / "metrics.jsonl")
    assert (first["losses"], second["losses"]) == ({"mlm": None, "nsp": 0.1}, {"mlm": None, "nsp": 0.2})
    assert third["evaluation"] == {"loss": None, "score": 0.5, "huge": 1e300}
    assert math.isnan(curves(tmp_path)["loss/mlm"][0][1])


def test_an_update_that_is_left_out_is_noticed(tmp_path: Path) -> None:
    with Record(tmp_path, 0) as record:
        record.update(progress(1))
        with pytest.raises(ValueError, match="update 3 was told after update 1"):
            record.update(progress(3))


def test_a_killed_process_loses_nothing_that_was_written(tmp_path: Path) -> None:
    code = f"""
import os, signal
from pathlib import Path
from unmask.train.progress import Progress
from unmask.train.record import Record
record = Record(Path({str(tmp_path)!r}), 0)
for update in range(1, 8):
    record.update(Progress(update, 100, {{"mlm": 0.5 * update}}, 1.0, 1e-4, 10, 0.1))
os.kill(os.getpid(), signal.SIGKILL)
"""
    assert subprocess.run([sys.executable, "-W", "error", "-c", code], check=False).returncode == -9
    assert [entry["update"] for entry in strict(tmp_path / "metrics.jsonl")] == list(range(1, 8))
    assert curves(tmp_path)["loss/mlm"] == [(update, 0.5 * update) for update in range(1, 8)]


def test_no_thread_is_left_or_even_made(tmp_path: Path) -> None:
    before = set(threading.enumerate())
    with Record(tmp_path, 0) as record:
        record.update(progress(1))
        assert set(threading.enumerate()) == before
    record.close()  # a second time does no harm


def test_a_disk_that_refuses_is_one_sentence(tmp_path: Path) -> None:
    with Record(tmp_path, 0) as record:
        (tmp_path / "metrics.jsonl").mkdir()
        with pytest.raises(FetchError, match="metrics.jsonl: could not be written"):
            record.update(progress(1))


def test_a_file_that_is_not_there_has_no_entries(tmp_path: Path) -> None:
    assert read_entries(tmp_path / "metrics.jsonl") == []


def test_losses_are_told_from_other_values() -> None:
    assert is_loss("mlm", {"mlm": 1})
    assert is_loss("mlm_loss", {})
    assert not is_loss("mlm_accuracy", {"mlm": 1})
